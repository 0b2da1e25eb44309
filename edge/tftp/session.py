"""The transfers under way: one `Session` for each, their turns in the event loop, and which one gives way to another.

    the client's packets  --+
    the timer             --+--> transfer.ReadTransfer --> transport.UdpTransport
    more of the file      --+

`edge.tftp.server` starts the sessions and is called when one has ended. A session closes its file exactly once.

Requests with forged addresses leave half-open transfers behind, which are never acknowledged. A real client
acknowledges within milliseconds. So when the server is full, the oldest half-open transfer ends; a transfer that the
client acknowledges runs to its end. Registered machines and strangers are counted separately: a stranger's transfer
gives way to a machine's, and a machine's transfer only to another machine's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

from edge.tftp import packets
from edge.tftp.blocks import Burst
from edge.tftp.packets import ErrorCode, Opcode, ReadRequest
from edge.tftp.source import TftpFile
from edge.tftp.transfer import ReadTransfer
from edge.tftp.transport import Address, UdpTransport, is_port_closed, sender

log = logging.getLogger(__name__)

MAX_TRANSFERS = 4096
MAX_TRANSFERS_PER_CLIENT = 16
MAX_HALF_OPEN = 512

TURN_SECONDS = 0.0005
"""Time of all transfers in one turn of the event loop. DHCP and the other services run on the same loop."""

SILENT_SECONDS = 4.0
"""Time without an acknowledgement after which the journey reports that a transfer is stalled."""

LATE_COPY_SECONDS = 1.0
"""A request repeated within this time after an acknowledgement is a late copy. Later, the client has restarted."""

MAX_UNQUEUED = 4
"""Number of transfers whose windows fit into TURN_SECONDS: these need no queue."""

_MAX_RECEIVED_BYTES = 256  # an acknowledgement has 4 bytes, an ERROR a line of text
_PAUSE_SECONDS = 0.005  # before packets are sent again that the kernel had no room for
_ANSWERS_TO_STRANGERS = 16


class TransferScheduler:
    """Shares the event loop between transfers: a queue in which each transfer gets one window at a time."""

    # Without the queue, the sockets that epoll lists first would get all the time: a client often acknowledges a window
    # before the last transfer has had its turn.

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        self.active = 0
        """The number of transfers."""
        self._clock = clock
        self._queue: deque[Session] = deque()

    def schedule(self, session: Session) -> None:
        """Call `session.step` after the sessions that are queued already."""
        if session.scheduled:
            return
        session.scheduled = True
        self._queue.append(session)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Step through the queue for TURN_SECONDS, then give the event loop to others."""
        ends = self._clock() + TURN_SECONDS
        queue = self._queue
        while queue:
            session = queue[0]
            session.scheduled = False
            session.step()
            queue.popleft()
            if self._clock() > ends:
                break
        if queue:
            asyncio.get_running_loop().call_soon(self._next)


@dataclass(eq=False)
class Session:
    """One client's transfer. Call `start` once.

    on_end: called once, after everything is closed.
    on_silence: called once, when the client has acknowledged nothing for SILENT_SECONDS.
    own_socket: None if packets come through `receive`.
    """

    request: ReadRequest
    file: TftpFile
    transfer: ReadTransfer
    transport: UdpTransport
    scheduler: TransferScheduler
    on_end: Callable[[Session], None]
    on_silence: Callable[[Session], None] = lambda _: None
    _: KW_ONLY
    own_socket: socket.socket | None

    def __post_init__(self) -> None:
        self.client = self.transport.client
        self.is_machine = self.file.mac is not None
        """True if the client is a registered machine."""
        self._silence_reported = False
        self._source: tuple[object, ...] = self.client  # in the form that recvfrom returns
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._pending_datagram: bytes | None = None  # the client's packet, until this session's turn
        self._due = False  # the timer has fired
        self._follower: asyncio.Task[None] | None = None
        self._filled = 0
        self._grown = False  # more of the file has arrived
        self._answers_left = _ANSWERS_TO_STRANGERS
        self._is_closed = False
        self.scheduled = False
        """True while the session is in the queue of `TransferScheduler`, which sets it."""

    def start(self) -> None:
        """Send the first packets."""
        self.scheduler.active += 1
        if self.own_socket is not None:
            self._loop.add_reader(self.own_socket, self._readable, self.own_socket)
        self._send(self.transfer.start(self._loop.time()))
        self._settle()

    def receive(self, datagram: bytes) -> None:
        """Handle a packet of the client."""
        transfer = self.transfer
        burst = transfer.receive(datagram, self._time())
        if burst:
            self._send(burst)
        if transfer.ended is not None or transfer.starved or transfer.deadline < self._timer_at:
            self._settle()

    def requested_again(self) -> bool:
        """Return True if this session answers the client's repeated request, False if the client has restarted."""
        now = self._loop.time()
        if self.transfer.answered:
            return now - self.transfer.last_received_at < LATE_COPY_SECONDS
        self._send(self.transfer.requested_again(now))
        self._settle()
        return True

    def replace(self) -> None:
        """End the transfer because the client has requested another file."""
        self.transfer.replaced(self._loop.time())
        self._settle()

    def bind_to_device(self, device: bytes) -> None:
        """Use another interface of the name `device`, which ends with a NUL byte. Raises OSError."""
        if self.own_socket is not None:
            self.own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)

    def abandon(self, reason: str) -> None:
        """End the transfer, and send the client an error."""
        with suppress(OSError):
            self.transport.send([packets.error(ErrorCode.UNDEFINED, reason), b""])
        self.drop()

    def drop(self) -> None:
        """End the transfer without a packet to the client."""
        if self._is_closed:
            return
        self._is_closed = True
        self.scheduler.active -= 1
        if self._timer is not None:
            self._timer.cancel()
        if self._follower is not None:
            self._follower.cancel()
        if self.own_socket is not None:
            self._loop.remove_reader(self.own_socket)
            self.own_socket.close()
        close(self.file)
        self.on_end(self)

    # --- events ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Handle the packet, the growth of the file and the timer, whichever has occurred."""
        if self._is_closed:
            return
        try:
            datagram, self._pending_datagram = self._pending_datagram, None
            if datagram is None and self.own_socket is not None:
                datagram = self._take(self.own_socket)
            if datagram is not None:
                self.receive(datagram)
                if not (self._grown or self._due):
                    return
            if self._grown:
                self._grown = False
                self._send(self.transfer.arrived(self._filled, self._loop.time()))
            if self._due:  # `expire` does nothing if the packet above has moved the deadline
                self._due = False
                transfer, now = self.transfer, self._loop.time()
                self._send(transfer.expire(now))
                is_stalled = transfer.ended is None and not transfer.starved and transfer.silence(now) >= SILENT_SECONDS
                if is_stalled and not self._silence_reported:
                    self._silence_reported = True
                    self.on_silence(self)
            self._settle()
        except Exception as error:
            self._fail(error)

    def _readable(self, sock: socket.socket) -> None:
        """Receive one packet. The event loop calls again while there are more."""
        if self._pending_datagram is not None:
            return
        try:
            datagram = self._take(sock)
            if datagram is None:
                self._settle()
            elif self.scheduler.active > MAX_UNQUEUED:
                # Received before this session's turn: epoll would list the socket in every turn until then.
                self._pending_datagram = datagram
                self.scheduler.schedule(self)
            else:
                self.receive(datagram)
        except Exception as error:
            self._fail(error)

    def _take(self, sock: socket.socket) -> bytes | None:
        """Return the next packet of the client, or None."""
        try:
            datagram, source = sock.recvfrom(_MAX_RECEIVED_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:  # an ICMP error about a packet to the client, or about an answer to a stranger
            if is_port_closed(sock, self.client):
                self.transfer.unreachable(self._loop.time())
            else:
                # uvloop stops watching a socket after an error.
                self._loop.remove_reader(sock)
                self._loop.add_reader(sock, self._readable, sock)
            return None
        if source == self._source:
            return datagram
        stranger = sender(source)
        if stranger == self.client:
            self._source = source
            return datagram
        # RFC 1350 section 4: another client that uses this port gets an error, but not for garbage and errors.
        if len(datagram) >= 4 and not datagram[0] and datagram[1] in (Opcode.DATA, Opcode.ACK) and self._answers_left:
            self._answers_left -= 1
            with suppress(OSError):
                sock.sendto(packets.error(ErrorCode.UNKNOWN_TRANSFER, "this transfer is another client's"), stranger)
        return None

    def _timed_out(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._due = True
        self.scheduler.schedule(self)

    async def _follow(self, filled: Callable[[int], Awaitable[int]]) -> None:
        """Continue the transfer whenever more of the file arrives, until the client is the one to wait for."""
        try:
            while self.transfer.starved and self._filled < self.file.size:
                self._filled = await filled(self._filled)
                self._grown = True
                self.scheduler.schedule(self)
        except Exception as error:
            self._follower = None
            reason = f"{self.file.label} did not arrive: {error}"
            self._send(self.transfer.source_failed(reason, self._loop.time()))
            self._settle()
        finally:
            self._follower = None

    def _fail(self, error: Exception) -> None:
        """Log an internal error and end this transfer. Other transfers go on."""
        log.error("TFTP to %s: internal error", self.client[0], exc_info=error)
        self.abandon("internal error")

    # --- sending and ending ------------------------------------------------------------------------------------------

    def _send(self, burst: Burst) -> None:
        if not burst:
            return
        try:
            left = self.transport.send(burst)
        except OSError as error:
            if self.own_socket is not None and is_port_closed(self.own_socket, self.client):
                self.transfer.unreachable(self._loop.time())
            else:
                # A link that went down, or an ICMP error about a stranger: a lost packet, which is sent again.
                log.debug("TFTP to %s: %s", self.client[0], error.strerror)
            return
        if left:
            self.transfer.not_taken(left, self._loop.time(), _PAUSE_SECONDS)

    def _settle(self) -> None:
        """Close the session if the transfer has ended; otherwise make sure that a timer and the follower run."""
        # One timer serves many acknowledgements: it is replaced only if the deadline moves forward.
        transfer = self.transfer
        if transfer.ended is not None:
            self.drop()
            return
        if transfer.deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = transfer.deadline
            self._timer = self._loop.call_at(self._timer_at, self._timed_out)
        if transfer.starved and self._follower is None and self.file.filled is not None:
            self._follower = self._loop.create_task(self._follow(self.file.filled))


def close(file: TftpFile) -> None:
    """Close a file. An error there is an internal error that concerns no client."""
    try:
        file.close()
    except Exception:
        log.exception("TFTP: closing %s", file.label)


@dataclass(eq=False)
class ActiveTransfers:
    """The sessions under way, by the client's address and port.

    The limits: `limit` in all (0: the usual one), `limit_half_open` for strangers and again for machines.
    """

    limit: int = 0
    limit_half_open: int = MAX_HALF_OPEN
    limit_per_client: int = MAX_TRANSFERS_PER_CLIENT

    def __post_init__(self) -> None:
        # A quarter of the files that this process may have open.
        self.limit = self.limit or min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, MAX_TRANSFERS)
        self._sessions: dict[Address, Session] = {}
        self._of_client: dict[str, dict[Session, None]] = {}
        # By whether the client is a machine, oldest first. Sessions that were acknowledged since are removed lazily.
        self._half_open: dict[bool, dict[Session, None]] = {False: {}, True: {}}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client: Address) -> Session | None:
        """Return the session of a client."""
        return self._sessions.get(client)

    def add(self, session: Session) -> None:
        """Add a session, after `make_room` returned True."""
        self._sessions[session.client] = session
        self._of_client.setdefault(session.client[0], {})[session] = None
        self._half_open[session.is_machine][session] = None

    def remove(self, session: Session) -> None:
        """Remove a session that has ended."""
        del self._sessions[session.client]
        self._half_open[session.is_machine].pop(session, None)
        of_client = self._of_client[session.client[0]]
        del of_client[session]
        if not of_client:
            del self._of_client[session.client[0]]

    def make_room(self, client_ip: str, *, is_machine: bool) -> bool:
        """Return True if the client may have one more transfer; another transfer may end for it, even in its middle."""
        of_client = self._of_client.get(client_ip, {})
        if len(of_client) >= self.limit_per_client:
            return self._drop_half_open(of_client)
        alike = self._half_open[is_machine]
        if len(alike) >= self.limit_half_open:
            self._drop_half_open(alike)
        if len(self) < self.limit:
            return True
        if self._drop_half_open(self._half_open[False]):
            return True
        if not is_machine:
            return False
        stranger = next((session for session in self._sessions.values() if not session.is_machine), None)
        if stranger is None:
            return self._drop_half_open(alike)
        log.debug("TFTP: ended the transfer of %s, which is not registered, for a machine", stranger.client[0])
        stranger.abandon("the server is full, and machines that are registered come first")
        return True

    def _drop_half_open(self, sessions: Iterable[Session]) -> bool:
        """Drop the oldest half-open session of `sessions`. Return False if there is none."""
        for session in list(sessions):
            if not session.transfer.answered:
                log.debug("TFTP: gave up on %s, which never answered, for another client", session.client[0])
                session.drop()
                return True
            self._half_open[session.is_machine].pop(session, None)
        return False
