"""The TFTP server: receives requests on port 69, decides who gets an answer, and reports transfers.

    port 69 -> packets.parse_request -> open_file (which file, and may the machine have it) -> packets.negotiate
            -> session.Session (transfer.ReadTransfer over a transport.UdpTransport) until it has ended -> the journey

Each transfer has a port of its own (RFC 1350 section 4). With `single_port`, all transfers share port 69 and are
distinguished by the client's address and port, for networks whose firewalls do not understand TFTP.

Any host can send requests with a forged source address. So transfers without an acknowledgement are limited in number
and are dropped for later ones (`edge.tftp.session`). A request from a forged address costs a task or a file for a few
seconds only. Answers that are larger than their question are limited, for each address and in all, so that the server
can't be used to flood a third host.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import KW_ONLY, dataclass, field

from edge.journey.events import BEGUN, PROGRESS, Outcome, Recorder, Step
from edge.listener import DatagramListener, advice, enlarge_buffer, udp_socket
from edge.tftp import packets, transport
from edge.tftp.blocks import Blocks, FramedFiles, NetasciiBlocks, OctetBlocks
from edge.tftp.packets import Agreed, ErrorCode, Garbage, Opcode, ReadRequest, RequestError, shown_name
from edge.tftp.session import ActiveTransfers, Session, TransferScheduler, close
from edge.tftp.source import Opened, OpenFile, TftpFile, TftpRefusal, TftpRequest
from edge.tftp.transfer import STRANGERS_PATIENCE_SECONDS, WRAP_BLOCKS, Ended, Ending, ReadTransfer
from edge.tftp.transport import Address, UdpTransport
from tink.errors import TinkedgeError
from tink.limits import Allowance, OncePer, Tally, TokenBuckets, times
from tink.net.addresses import is_link_local

log = logging.getLogger(__name__)

TFTP_PORT = 69
MAX_WAITING = 1024
"""Number of requests that wait for their file to be opened."""
MAX_WAITING_OF_CLIENT = 8
"""Number of such requests from one address."""
OPEN_SECONDS = 60.0
"""Time for opening a file."""

UNPROVEN_SECONDS = STRANGERS_PATIENCE_SECONDS
UNPROVEN_FIRST_BLOCKS, UNPROVEN_FIRST_BLOCKS_IN_ALL = 16, 4096
"""Number of first blocks that one address, and all addresses, get in UNPROVEN_SECONDS without having acknowledged one.

A first block without options has 516 bytes, its request twenty. An OACK is no larger than its request.
"""
ERRORS_A_SECOND, ERRORS_A_SECOND_IN_ALL = 100, 5000
"""Number of errors sent to one address, and to all. A Raspberry Pi asks for dozens of files that do not exist."""
REQUESTS_AT_ONCE, REQUESTS_A_SECOND = 1000.0, 100.0
"""Number of requests from one address that are parsed. GRUB requests a hundred files in seconds."""
_MAX_SENDERS = 4096
# Requests from addresses on the link whose MAC the kernel does not know: of one address, and of all. A client resolves
# our MAC by ARP before it sends, which enters the client in the kernel's neighbour table (RFC 826). An answer to an
# invented address adds a useless entry. Above gc_thresh2 (512) the kernel drops such entries every 5 s; at gc_thresh3
# (1,024) it searches the table with every packet (neigh_alloc in net/core/neighbour.c).
UNRESOLVED, UNRESOLVED_IN_ALL, UNRESOLVED_SECONDS = 8, 50, 1.0

_LOG_INTERVAL_SECONDS, _MAX_LINES = 60.0, 600
BEGUN_SECONDS = 3.0  # UEFI asks for the size, then for the file; a machine that restarts needs longer
MAX_BEGUN = 65536  # the journey derives the next expected step from each start, so few may be left out
_BUFFER_BYTES = 4 << 20
_REQUESTS_PER_TURN = 8
_COUNTED_TEXT_BYTES = 1 << 20  # the netascii length of a larger text is not computed in advance

_Arrived = tuple[bytes, Address, str | None]
"""A datagram, its sender, and our address that it was sent to (None: a broadcast)."""


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A request, its sender, our address that it was sent to, and the socket that received it."""

    request: ReadRequest
    client: Address
    local: str
    socket: socket.socket

    @property
    def name(self) -> str:
        """The name of the file, for people."""
        return shown_name(self.request.name)


class TftpServerError(TinkedgeError):
    """The server can't start. The message names the port and the remedy."""


@dataclass(eq=False)
class TftpServer:
    """Serves files, read-only.

    port: 0 takes any free port; after `start` it is the number of the port.
    interface: None receives from all interfaces.
    active: the transfers, with their limits.
    is_unresolved: `is_unresolved(ip)` returns True if an answer to `ip` goes to a host on the link whose MAC the kernel
        does not know.
    """

    open_file: OpenFile
    record: Recorder
    _: KW_ONLY
    host: str = "0.0.0.0"  # noqa: S104 - machines come over the network; `interface` narrows it
    port: int = TFTP_PORT
    interface: str | None = None
    single_port: bool = False
    active: ActiveTransfers = field(default_factory=ActiveTransfers)
    is_unresolved: Callable[[str], bool] = lambda _ip: False

    def __post_init__(self) -> None:
        self._scheduler = TransferScheduler()
        self._framed = FramedFiles()
        self._listener: DatagramListener[_Arrived] | None = None
        self._waiting: dict[Address, tuple[ReadRequest, asyncio.Task[None]]] = {}
        """The requests whose file is being opened."""
        # By whether the client is registered: any number of strangers can't suppress the lines about machines.
        self._once = {known: OncePer(_LOG_INTERVAL_SECONDS, _MAX_LINES) for known in (False, True)}
        self._bounds = Tally(_LOG_INTERVAL_SECONDS, _MAX_LINES)
        self._begun_once = OncePer(BEGUN_SECONDS, MAX_BEGUN)
        self._first_blocks = {
            known: Allowance(UNPROVEN_FIRST_BLOCKS, UNPROVEN_FIRST_BLOCKS_IN_ALL, UNPROVEN_SECONDS)
            for known in (False, True)
        }
        self._requests = TokenBuckets(REQUESTS_AT_ONCE, REQUESTS_A_SECOND, _MAX_SENDERS)
        self._errors = {known: Allowance(ERRORS_A_SECOND, ERRORS_A_SECOND_IN_ALL) for known in (False, True)}
        self._unresolved = Allowance(UNRESOLVED, UNRESOLVED_IN_ALL, UNRESOLVED_SECONDS)

    @property
    def transfers(self) -> int:
        """The number of transfers under way."""
        return len(self.active)

    async def start(self) -> None:
        """Open the socket and serve. Raises TftpServerError."""
        try:
            sock = udp_socket(self.host, self.port, self.interface, _prepare)
        except OSError as error:
            where = f"TFTP can't open UDP port {self.port} on {self.interface or self.host}"
            raise TftpServerError(advice(where, error, port=self.port, without="--disable tftp")) from error
        self.port = sock.getsockname()[1]
        log.info("TFTP on %s port %d", self.interface or self.host, self.port)
        what = f"TFTP on port {self.port}"
        self._listener = DatagramListener(sock, what, _receive, self._arrived, per_turn=_REQUESTS_PER_TURN)
        self._listener.start()

    def move_to_interface(self) -> bool:
        """Bind all sockets to the interface that was created again. Return False if that needs new sockets."""
        # Without CAP_NET_RAW a bound socket can't be moved.
        if self.interface is None or self._listener is None:
            return self.interface is None
        device = self.interface.encode() + b"\0"
        try:
            self._listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            for session in list(self.active):
                session.bind_to_device(device)
        except OSError as error:
            log.debug("TFTP on %s: sockets can't be moved to it: %s", self.interface, error.strerror)
            return False
        return True

    async def stop(self) -> None:
        """End every transfer with an error to its client, and close the socket."""
        waiting = [task for _, task in self._waiting.values()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for session in list(self.active):
            session.abandon("the server is stopping")
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    # --- packets that arrive on port 69 ------------------------------------------------------------------------------

    def _arrived(self, sock: socket.socket, arrived: _Arrived) -> None:
        datagram, client, local = arrived
        if self.single_port and datagram[:2] in (b"\0\4", b"\0\5"):
            session = self.active.get(client)
            if session is not None:
                session.receive(datagram)
            elif datagram[1] == Opcode.ACK and len(datagram) == 4 and self._due(client[0], "unknown transfer"):
                _send_error(sock, client, ErrorCode.UNKNOWN_TRANSFER, "there is no such transfer")
            return
        if local is None:
            return  # RFC 1123 section 4.2.3.5: broadcast requests are ignored
        if not self._requests.allows(client[0], self._now()):
            text = "TFTP: %s sends more than %d requests a second; the rest is dropped"
            self._warn((client[0], "requests"), text, client[0], REQUESTS_A_SECOND)
            return
        if self.is_unresolved(self._with_zone(client[0])) and not self._unresolved.take(client[0], self._now()):
            text = (
                "TFTP: more than %d requests a second of addresses on the link that the kernel knows no MAC of, now "
                "%s; they are invented, and the rest is dropped"
            )
            self._warn("unresolved", text, UNRESOLVED_IN_ALL, client[0])
            return
        try:
            request = packets.parse_request(datagram)
        except Garbage as garbage:
            if self._due(client[0], "garbage"):
                log.warning("TFTP: a packet from %s port %d is ignored: %s", *client, garbage)
            return
        except RequestError as error:
            self._refuse(sock, client, TftpRefusal(error.code, str(error)))
            return
        if not self._is_repeated(request, client):
            self._open(_Incoming(request, client, local, sock))

    def _is_repeated(self, request: ReadRequest, client: Address) -> bool:
        """Return True if the request repeats one that is being answered. End the transfer that it replaces."""
        if client in self._waiting:
            waiting, task = self._waiting[client]
            if waiting == request:
                return True
            task.cancel()
            del self._waiting[client]
        session = self.active.get(client)
        if session is not None:
            session.step()  # the last acknowledgement may wait on the session's own socket
            session = self.active.get(client)
        if session is None:
            return False
        if session.request == request:
            if not session.transfer.answered and not self._may_begin(session.transfer.agreed, session.file, client):
                return True
            if session.requested_again():
                return True
        session.replace()
        return False

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open(self, incoming: _Incoming) -> None:
        client_ip = incoming.client[0]
        found = self.open_file(TftpRequest(incoming.request.name, self._with_zone(client_ip)))
        if isinstance(found, TftpFile | TftpRefusal):
            self._opened(incoming, found)
            return
        of_client = sum(ip == client_ip for ip, _ in self._waiting)
        if len(self._waiting) < MAX_WAITING and of_client < MAX_WAITING_OF_CLIENT:
            task = asyncio.get_running_loop().create_task(self._wait(incoming, found))
            self._waiting[incoming.client] = incoming.request, task
            if isinstance(found, Coroutine):
                task.add_done_callback(lambda _: found.close())  # a task may be cancelled before it starts
        else:
            if isinstance(found, Coroutine):
                found.close()
            self._log_ignored(incoming)

    async def _wait(self, incoming: _Incoming, found: Awaitable[Opened]) -> None:
        name, client = incoming.name, incoming.client
        opened: Opened
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                opened = await found
        except TimeoutError:
            opened = TftpRefusal(ErrorCode.UNDEFINED, f"{name} is not there after {OPEN_SECONDS:.0f} s")
        except Exception:
            log.exception("TFTP: opening %s for %s", name, client[0])
            opened = TftpRefusal(ErrorCode.UNDEFINED, f"{name} can't be opened: internal error")
        finally:
            # A request that replaced this one has a task of its own.
            if self._waiting.get(client, (None, None))[1] is asyncio.current_task():
                del self._waiting[client]
        self._opened(incoming, opened)

    def _with_zone(self, ip: str) -> str:
        """Return the client's address, with the interface as zone if it is link-local."""
        ip = ip.partition("%")[0]
        return f"{ip}%{self.interface}" if self.interface and is_link_local(ip) else ip

    def _opened(self, incoming: _Incoming, opened: Opened) -> None:
        client = incoming.client
        if isinstance(opened, TftpRefusal):
            self._refuse(incoming.socket, client, opened)
        elif not self.active.make_room(client[0], is_machine=opened.mac is not None):
            close(opened)
            self._log_ignored(incoming)
            self._record_begun(opened, client, " and has to wait: too many transfers")
        else:
            self._begin(incoming, opened)

    def _begin(self, incoming: _Incoming, file: TftpFile) -> None:
        request, client, local, own = incoming.request, incoming.client, incoming.local, None
        try:
            largest = transport.max_block_bytes(client, local, self.interface)
            if not self.single_port:
                own = transport.transfer_socket(local, self.interface)
        except OSError as error:
            close(file)
            if self._due(client[0], "connect"):
                log.warning("TFTP: no transfer to %s port %d: %s", *client, error.strerror)
            return
        agreed = packets.negotiate(request, _size_on_the_wire(request, file), largest)
        if not self._may_begin(agreed, file, client):
            if own is not None:
                own.close()
            close(file)
            return
        transfer = ReadTransfer(
            self._blocks(request, file, agreed), agreed, self._now(), request_bytes=request.size_bytes
        )
        channel = UdpTransport(own or incoming.socket, client, agreed.block_bytes, None if own is not None else local)
        session = Session(request, file, transfer, channel, self._scheduler, self._ended, self._silent, own_socket=own)
        self.active.add(session)
        session.start()
        self._record_begun(file, client)

    def _blocks(self, request: ReadRequest, file: TftpFile, agreed: Agreed) -> Blocks:
        if file.filled is None and not request.netascii:
            return self._framed.blocks(file.content, agreed.block_bytes)
        kind = NetasciiBlocks if request.netascii else OctetBlocks
        return kind(file.content, agreed.block_bytes, None if file.filled is None else 0)

    def _may_begin(self, agreed: Agreed, file: TftpFile, client: Address) -> bool:
        """Return True if the first packet may be sent. If not, send nothing: a real client asks again."""
        known = file.mac is not None
        if agreed.accepted or self._first_blocks[known].take(client[0], self._now()):
            return True
        text = (
            "TFTP: %s asks for more files than it acknowledges, more than %d in %.0f s, or too many such do; the "
            "rest is not answered"
        )
        self._warn((client[0], "first blocks"), text, client[0], UNPROVEN_FIRST_BLOCKS, UNPROVEN_SECONDS)
        return False

    # --- errors, log and journey -------------------------------------------------------------------------------------

    def _warn(self, key: Hashable, text: str, *values: object) -> None:
        """Log a line once a minute for each key, with the number of lines that were held back before it."""
        held_back = self._bounds.due(key, self._now())
        if held_back is not None:
            log.warning(f"{text}%s", *values, times(held_back))

    def _log_ignored(self, incoming: _Incoming) -> None:
        """Send nothing: the client asks again in a second or two, and an error would end its boot."""
        client_ip = incoming.client[0]
        self._warn((client_ip, "room"), "TFTP: %s has to wait for %s: too many transfers", client_ip, incoming.name)

    def _refuse(self, sock: socket.socket, client: Address, refusal: TftpRefusal) -> None:
        if not self._errors[refusal.mac is not None].take(client[0], self._now()):
            text = "TFTP: %s is refused more than %d files a second, or too many such are; the rest is not answered"
            self._warn((client[0], "errors"), text, client[0], ERRORS_A_SECOND)
            return
        _send_error(sock, client, refusal.code, refusal.message)
        if refusal.about is not None:  # the machine whose MAC a stranger used
            held_back = self._bounds.due((refusal.about, "about"), self._now())
            if held_back is not None:
                who = f"{client[0]}, which is not known to be this machine,"
                message = f"TFTP {who} was refused what is made for it: {refusal.message}{times(held_back)}"
                self.record(refusal.about, Step.TFTP, Outcome.INFO, message, client_ip=client[0])
        if not self._due(client[0], refusal.message, known=refusal.mac is not None):
            return
        if refusal.expected:
            outcome = Outcome.INFO
        elif refusal.code == ErrorCode.ACCESS_VIOLATION:
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.FAILED
        self._record_event(refusal.mac, Step.TFTP, client[0], outcome, f"TFTP {refusal.message}")

    def _record_begun(self, file: TftpFile, client: Address, how: str = "") -> None:
        """Record that a machine has requested a file. For strangers, only the end is logged."""
        client_ip = client[0]
        if file.mac is not None and self._begun_once.due((client_ip, file.label), self._now()):
            message, facts = f"TFTP {file.label} requested{how}", {"name": file.label, "phase": BEGUN}
            self._record_event(file.mac, file.step, client_ip, Outcome.INFO, message, file_bytes=file.size, **facts)

    def _silent(self, session: Session) -> None:
        """Record that a machine has acknowledged nothing for a while."""
        file, transfer = session.file, session.transfer
        if file.mac is None:
            return
        silent = transfer.silence(self._now())
        message = f"TFTP {file.label}: no acknowledgement for {silent:.0f} s at {transfer.position}"
        facts = {"name": file.label, "phase": PROGRESS, "position": transfer.position}
        numbers = {"silent_seconds": round(silent, 1), "acknowledged": int(transfer.answered)}
        self._record_event(file.mac, file.step, session.client[0], Outcome.INFO, message, **facts, **numbers)

    def _ended(self, session: Session) -> None:
        self.active.remove(session)
        file, transfer, client_ip = session.file, session.transfer, session.client[0]
        if transfer.answered and not transfer.agreed.accepted:
            self._first_blocks[session.is_machine].give_back(client_ip)
        ended = transfer.ended
        if ended is None:
            return  # dropped for another client, or the server stops
        outcome, message = report(file, transfer, ended)
        # Forged addresses cause any number of transfers that are never answered.
        if outcome is None or not (transfer.answered or self._due(client_ip, "never answered")):
            log.debug("%s (%s)", message, client_ip)
            return
        agreed = transfer.agreed
        self._record_event(
            file.mac, file.step, client_ip, outcome, message, name=file.label, size_bytes=file.size,
            duration_seconds=round(ended.duration, 4), block_bytes=agreed.block_bytes,
            window_blocks=agreed.window_blocks, resent_blocks=transfer.resent_blocks,
        )  # fmt: skip

    def _record_event(
        self, mac: str | None, step: Step, client_ip: str, outcome: Outcome, message: str, **detail: str | int | float
    ) -> None:
        if mac is not None:
            self.record(mac, step, outcome, message, client_ip=client_ip, **detail)
        else:
            log.info("%s (%s, not a registered machine)", message, client_ip)

    def _due(self, *key: str, known: bool = False) -> bool:
        return self._once[known].due(key, self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def report(file: TftpFile, transfer: ReadTransfer, ended: Ended) -> tuple[Outcome | None, str]:
    """Return outcome and message of an ended transfer for the journey; no outcome if it is of no interest."""
    what, warning = f"{file.label}, {file.size} bytes", ""
    if transfer.wrapped:
        warning = f"; block numbers went beyond {WRAP_BLOCKS}, where some firmware stops: use HTTP, or larger blocks"
    match ended.ending:
        case Ending.SENT:
            rate = file.size / 1e6 / ended.duration if ended.duration else 0.0
            speed = f" ({rate:.1f} MB/s)" if rate else ""
            resent = f", {transfer.resent_blocks} blocks sent again" if transfer.resent_blocks else ""
            return Outcome.OK, f"TFTP sent {what} in {ended.duration:.2f} s{speed}{resent}{warning}"
        case Ending.PROBED:
            return Outcome.INFO, f"TFTP told the size of {what}"
        case Ending.UNCONFIRMED if transfer.answered:
            return Outcome.INFO, f"TFTP sent {what}, not confirmed: {ended.detail}"
        case Ending.DUPLICATE:
            return None, f"second request for {file.label} dropped"
        case Ending.REPLACED:
            return Outcome.INFO if transfer.answered else None, f"TFTP transfer of {file.label}: {ended.detail}"
    return Outcome.FAILED, f"TFTP transfer of {file.label} failed, {ended.ending.value}: {ended.detail}{warning}"


def _receive(sock: socket.socket) -> _Arrived:
    datagram, ancillary, _flags, client = sock.recvmsg(packets.MAX_REQUEST_BYTES + 1, 64)
    return datagram, transport.sender(client), transport.destination_address(ancillary)


def _send_error(sock: socket.socket, client: Address, code: ErrorCode, message: str) -> None:
    try:
        sock.sendto(packets.error(code, message), client)
    except OSError as error:
        log.debug("TFTP: error packet to %s port %d was not sent: %s", *client, error.strerror)


def _size_on_the_wire(request: ReadRequest, file: TftpFile) -> int | None:
    """Return the number of bytes that are transferred, or None if it is unknown before the end."""
    if not request.netascii:
        return file.size
    if file.filled is not None or file.size > _COUNTED_TEXT_BYTES:
        return None
    return len(packets.to_netascii(bytes(file.content)))


def _prepare(sock: socket.socket) -> None:
    transport.report_destinations(sock)
    transport.allow_fragments(sock)
    # Room for the requests of a rack that powers on, and for windows if all transfers share the socket.
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        enlarge_buffer(sock, option, _BUFFER_BYTES)
