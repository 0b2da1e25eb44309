"""A transfer under way: `transfer.ReadTransfer` with its transport, its timer, and a file that may still come.

    the client's packets  --+
    the timer             --+--> transfer.ReadTransfer --> transport.UdpTransport
    more of the file      --+

`edge.tftp.server` starts sessions and is told when one has ended. However it ends, its file is closed once.

The transfers under way: who may join them, and who gives way.

Requests with forged addresses leave half-open transfers behind, which nobody will ever acknowledge. A real client
acknowledges within milliseconds. So where it becomes crowded, the oldest that is still half-open goes; one that is
being taken stays until it ends. Registered machines and strangers are kept apart: whatever strangers do, and in however
many names, machines give way to machines only, and a stranger's transfer gives way to a machine's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress

from edge.tftp import packets
from edge.tftp.blocks import Burst
from edge.tftp.packets import ErrorCode, Opcode, ReadRequest
from edge.tftp.source import TftpFile
from edge.tftp.transfer import ReadTransfer
from edge.tftp.transport import Address, UdpTransport, refused, sender

log = logging.getLogger(__name__)


TURN_SECONDS = 0.0005
"""What all transfers together may take of one turn of the event loop, before DHCP and the others have theirs."""

SILENT_SECONDS = 4.0
"""After so long a silence it is said that a transfer does not get on; it may go on."""

LATE_COPY_SECONDS = 1.0
"""A request that is repeated so soon after an acknowledgement is a late copy; later, the client has restarted."""

FEW = 4
"""So many transfers, with a window each, can't take a turn's time: they need not stand in line."""

_LARGEST_HEARD_BYTES = 256  # an acknowledgement has 4 bytes, an ERROR a line of text
_PAUSE_SECONDS = 0.005  # until what the kernel had no room for is sent
_ANSWERS_TO_STRANGERS = 16


class TransferScheduler:
    """Shares out the event loop's turns: where many transfers have something to do they stand in line for it.

    A transfer's turn is one window at most. Without the line, those that the kernel names first would have it all: the
    client's answer to a window is often there before the last transfer has had its turn.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        self.active = 0
        """How many transfers there are."""
        self._clock = clock
        self._queue: deque[Session] = deque()

    def schedule(self, session: Session) -> None:
        """Have its `step` called, as soon as the others before it had theirs."""
        if session.scheduled:
            return
        session.scheduled = True
        self._queue.append(session)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A turn of the event loop, as far as it is ours."""
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


class Session:
    """One client's transfer. `start` it once; `on_end` is called once, when it has ended and let go of everything."""

    def __init__(
        self,
        request: ReadRequest,
        file: TftpFile,
        transfer: ReadTransfer,
        transport: UdpTransport,
        scheduler: TransferScheduler,
        on_end: Callable[[Session], None],
        on_silence: Callable[[Session], None] = lambda _: None,
        *,
        sock: socket.socket | None,
    ) -> None:
        """`sock` is the session's own; None: packets come through `receive`.

        `on_silence` is called once, when the client has acknowledged nothing for SILENT_SECONDS.
        """
        self.request = request
        self.file = file
        self.transfer = transfer
        self.client = transport.client
        self.is_machine = file.mac is not None
        """Whether the client is known to be a registered machine."""
        self._transport = transport
        self._scheduler = scheduler
        self._on_end = on_end
        self._on_silence = on_silence
        self._silence_told = False
        self._socket = sock
        self._source: tuple[object, ...] = self.client  # as the socket says it
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._heard: bytes | None = None  # what the client sent, until it is our turn
        self._due = False  # the timer has fired
        self._follower: asyncio.Task[None] | None = None
        self._filled = 0
        self._grown = False  # more of the file is there
        self._answers_left = _ANSWERS_TO_STRANGERS
        self._let_go = False
        self.scheduled = False
        """Whether it waits for its turn; kept by `TransferScheduler`."""

    def start(self) -> None:
        """Send the first packets."""
        self._scheduler.active += 1
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._readable, self._socket)
        self._send(self.transfer.start(self._loop.time()))
        self._settle()

    def receive(self, datagram: bytes) -> None:
        """A packet of the client."""
        transfer = self.transfer
        burst = transfer.receive(datagram, self._time())
        if burst:
            self._send(burst)
        if transfer.ended is not None or transfer.starved or transfer.deadline < self._timer_at:
            self._settle()

    def requested_again(self) -> bool:
        """Whether this session is the answer to the client's repeated request.

        It is if the client has not had an answer yet: then it gets it again. It is too if the client was heard a moment
        ago: then the request is a copy that was late. Otherwise the client has begun anew.
        """
        now = self._loop.time()
        if self.transfer.answered:
            return now - self.transfer.last_heard < LATE_COPY_SECONDS
        self._send(self.transfer.requested_again(now))
        self._settle()
        return True

    def replace(self) -> None:
        """End it, for the client has asked for something else."""
        self.transfer.replaced(self._loop.time())
        self._settle()

    def bind_to_device(self, device: bytes) -> None:
        """Go on over another interface of that name, encoded with its zero. Raises OSError."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)

    def abandon(self, reason: str) -> None:
        """End it from our side, and say so to the client."""
        with suppress(OSError):
            self._transport.send([packets.error(ErrorCode.UNDEFINED, reason), b""])
        self.drop()

    def drop(self) -> None:
        """End it without a word to the client."""
        if self._let_go:
            return
        self._let_go = True
        self._scheduler.active -= 1
        if self._timer is not None:
            self._timer.cancel()
        if self._follower is not None:
            self._follower.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        close(self.file)
        self._on_end(self)

    # --- what happens ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do what there is to do."""
        if self._let_go:
            return
        try:
            datagram, self._heard = self._heard, None
            if datagram is None and self._socket is not None:
                datagram = self._take(self._socket)
            if datagram is not None:
                self.receive(datagram)
                if not (self._grown or self._due):
                    return
            if self._grown:
                self._grown = False
                self._send(self.transfer.arrived(self._filled, self._loop.time()))
            if self._due:  # unless what was heard just now has put it off
                self._due = False
                self._send(self.transfer.expire(self._loop.time()))
                self._tell_silence()
            self._settle()
        except Exception as error:
            self._fail(error)

    def _readable(self, sock: socket.socket) -> None:
        """One packet at a time: the event loop comes back while there are more."""
        if self._heard is not None:
            return
        try:
            datagram = self._take(sock)
            if datagram is None:
                self._settle()
            elif self._scheduler.active > FEW:
                # It is taken before it is our turn, for the kernel would name this socket in each turn until it is.
                self._heard = datagram
                self._scheduler.schedule(self)
            else:
                self.receive(datagram)
        except Exception as error:
            self._fail(error)

    def _take(self, sock: socket.socket) -> bytes | None:
        """The next packet of the client; None: there is none."""
        try:
            datagram, source = sock.recvfrom(_LARGEST_HEARD_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            self._complained(sock)
            return None
        if source == self._source:
            return datagram
        stranger = sender(source)
        if stranger == self.client:
            self._source = source
            return datagram
        self._answer_stranger(sock, datagram, stranger)
        return None

    def _tell_silence(self) -> None:
        if self.transfer.ended is None and not self._silence_told and not self.transfer.starved:
            self._silence_told = self.transfer.silence(self._loop.time()) >= SILENT_SECONDS
            if self._silence_told:
                self._on_silence(self)

    def _timed_out(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._due = True
        self._scheduler.schedule(self)

    async def _follow(self, filled: Callable[[int], Awaitable[int]]) -> None:
        """Go on with the transfer as more of the file arrives here, until the client is the one to wait for."""
        try:
            while self.transfer.starved and self._filled < self.file.size:
                self._filled = await filled(self._filled)
                self._grown = True
                self._scheduler.schedule(self)
        except Exception as error:
            self._follower = None
            reason = f"{self.file.label} did not arrive: {error}"
            self._send(self.transfer.source_failed(reason, self._loop.time()))
            self._settle()
        finally:
            self._follower = None

    def _fail(self, error: Exception) -> None:
        """A fault of ours on one transfer ends that one, and is told once."""
        log.error("TFTP to %s: internal error", self.client[0], exc_info=error)
        self.abandon("internal error")

    def _complained(self, sock: socket.socket) -> None:
        """ICMP complained of a packet of ours: one to the client, or an answer to a stranger."""
        if refused(sock, self.client):
            self.transfer.unreachable(self._loop.time())
            return
        # uvloop hears no more of a socket that had an error.
        self._loop.remove_reader(sock)
        self._loop.add_reader(sock, self._readable, sock)

    def _answer_stranger(self, sock: socket.socket, datagram: bytes, stranger: Address) -> None:
        """RFC 1350 section 4: told that it is wrong here, the transfer goes on. Garbage and errors get no answer."""
        if len(datagram) < 4 or datagram[0] or datagram[1] not in (Opcode.DATA, Opcode.ACK) or not self._answers_left:
            return
        self._answers_left -= 1
        with suppress(OSError):
            sock.sendto(packets.error(ErrorCode.UNKNOWN_TRANSFER, "this transfer is another client's"), stranger)

    # --- what is done about it ---------------------------------------------------------------------------------------

    def _send(self, burst: Burst) -> None:
        if not burst:
            return
        try:
            left = self._transport.send(burst)
        except OSError as error:
            if self._socket is not None and refused(self._socket, self.client):
                self.transfer.unreachable(self._loop.time())
            else:
                # A link that went down, or what ICMP said of a stranger: a lost packet, which the protocol mends.
                log.debug("TFTP to %s: %s", self.client[0], error.strerror)
            return
        if left:
            self.transfer.not_taken(left, self._loop.time(), _PAUSE_SECONDS)

    def _settle(self) -> None:
        """Let go of what has ended; see that a timer runs for what has not. One timer serves many acknowledgements."""
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
    """Let go of a file. What goes wrong there is a fault of ours, and no client's concern."""
    try:
        file.close()
    except Exception:
        log.exception("TFTP: closing %s", file.label)


MAX_TRANSFERS_PER_CLIENT = 16
MAX_HALF_OPEN = 512


class ActiveTransfers:
    """Sessions by their client's address and port."""

    def __init__(self, most: int, most_half_open: int, most_of_client: int) -> None:
        """`most` of all; `most_half_open` of strangers, and as many of machines; `most_of_client` of one address."""
        self._most = most
        self._most_half_open = most_half_open
        self._most_of_client = most_of_client
        self._sessions: dict[Address, Session] = {}
        self._of_client: dict[str, dict[Session, None]] = {}
        # In the order of their start. Who has been heard meanwhile is taken out when somebody looks.
        self._half_open: dict[bool, dict[Session, None]] = {False: {}, True: {}}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client: Address) -> Session | None:
        """The session of that client."""
        return self._sessions.get(client)

    def add(self, session: Session) -> None:
        """One more; see `make_room`."""
        self._sessions[session.client] = session
        self._of_client.setdefault(session.client[0], {})[session] = None
        self._half_open[session.is_machine][session] = None

    def remove(self, session: Session) -> None:
        """It has ended."""
        del self._sessions[session.client]
        self._half_open[session.is_machine].pop(session, None)
        of_client = self._of_client[session.client[0]]
        del of_client[session]
        if not of_client:
            del self._of_client[session.client[0]]

    def make_room(self, client_ip: str, *, is_machine: bool) -> bool:
        """Whether one more transfer of that client fits, if need be in the place of another.

        `is_machine`: it is a registered one.
        """
        of_client = self._of_client.get(client_ip, {})
        if len(of_client) >= self._most_of_client:
            return self._drop_half_open(of_client)
        alike = self._half_open[is_machine]
        if len(alike) >= self._most_half_open:
            self._drop_half_open(alike)
        if len(self) < self._most:
            return True
        if self._drop_half_open(self._half_open[False]):
            return True
        return is_machine and (self._drop_stranger() or self._drop_half_open(alike))

    def _drop_half_open(self, sessions: Iterable[Session]) -> bool:
        """Whether there was one in `sessions`; the oldest goes."""
        for session in list(sessions):
            if not session.transfer.answered:
                log.debug("TFTP: gave up on %s, which never answered, for another client", session.client[0])
                session.drop()
                return True
            self._half_open[session.is_machine].pop(session, None)
        return False

    def _drop_stranger(self) -> bool:
        """Whether there was one, be it in the middle of its transfer; the oldest goes, and is told."""
        stranger = next((session for session in self._sessions.values() if not session.is_machine), None)
        if stranger is None:
            return False
        log.debug("TFTP: ended the transfer of %s, which is not registered, for a machine", stranger.client[0])
        stranger.abandon("the server is full, and machines that are registered come first")
        return True
