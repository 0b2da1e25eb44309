"""The sockets of the TFTP server: requests on port 69, and one socket per transfer.

    port 69 -> packets.parse_request -> open_file (who has it, may the machine have it) -> packets.negotiate
            -> a socket of its own, connected to the client -> transfer.ReadTransfer until it has ended -> the journey

A transfer's own port is its identity (RFC 1350 section 4); connecting the socket makes the kernel drop strangers'
packets, and tells at once when the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from edge.journey.events import Outcome, Recorder, Step
from edge.listener import Listener, advice
from edge.once_per import OncePer
from edge.tftp import packets
from edge.tftp.files import printable
from edge.tftp.packets import ErrorCode, Garbage, ReadRequest, RequestError
from edge.tftp.source import OpenFile, Refusal, TftpFile, TftpRequest
from edge.tftp.transfer import Datagram, Ended, Ending, ReadTransfer

log = logging.getLogger(__name__)

TFTP_PORT = 69
MAX_TRANSFERS = 512
MAX_TRANSFERS_PER_CLIENT = 16
MAX_NETASCII_BYTES = 16 * 1024 * 1024

_DATAGRAMS_PER_TURN = 64
_HEADERS_BYTES = 20 + 8 + 4  # IPv4, UDP, TFTP

# linux/in.h; the socket module does not name them all.
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DONT = 0
_IP_MTU = 14


# A datagram, the client's address and port, and the address of ours that it was sent to.
_Arrived = tuple[bytes, tuple[str, int], str]


class TftpServerError(Exception):
    """The server can't start; says which port and what to do."""


class TftpServer:
    """Serves files, read-only."""

    def __init__(
        self,
        open_file: OpenFile,
        record: Recorder,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - machines come over the network; `interface` narrows it
        port: int = TFTP_PORT,
        interface: str | None = None,
        max_transfers: int = MAX_TRANSFERS,
        max_transfers_per_client: int = MAX_TRANSFERS_PER_CLIENT,
    ) -> None:
        """`port` 0 takes any free one (see `port` after `start`); `interface` None hears all of them."""
        self.port = port
        self._open_file = open_file
        self._record = record
        self._host = host
        self._interface = interface
        self._max_transfers = max_transfers
        self._max_per_client = max_transfers_per_client
        self._listener: Listener[_Arrived] | None = None
        self._sessions: dict[_Session, None] = {}  # in the order of their start
        self._once = OncePer(60.0, 600)

    @property
    def transfers(self) -> int:
        """How many transfers are under way."""
        return len(self._sessions)

    async def start(self) -> None:
        """Open the socket and serve. Raises TftpServerError."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            if self._interface is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
            sock.bind((self._host, self.port))
        except OSError as error:
            sock.close()
            where = f"TFTP can't open UDP port {self.port} on {self._interface or self._host}"
            raise TftpServerError(advice(where, error, port=self.port, disable="tftp")) from error
        self.port = sock.getsockname()[1]
        self._listener = Listener(sock, f"TFTP on port {self.port}", self._receive, self._requested)
        self._listener.start()
        log.info("TFTP on %s port %d", self._interface or self._host, self.port)

    async def stop(self) -> None:
        """Close the socket and end every transfer, telling the clients."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        for session in list(self._sessions):
            session.abandon("the server is stopping")

    @staticmethod
    def _receive(sock: socket.socket) -> _Arrived:
        datagram, ancillary, _flags, client = sock.recvmsg(packets.MAX_REQUEST_BYTES + 1, 64)
        return datagram, client, _local_address(ancillary)

    def _requested(self, sock: socket.socket, arrived: _Arrived) -> None:
        datagram, client, local = arrived
        try:
            request = packets.parse_request(datagram)
        except Garbage as garbage:
            if self._due(client[0], "garbage"):
                log.warning("TFTP: a packet from %s port %d is ignored: %s", *client, garbage)
            return
        except RequestError as error:
            self._refuse(sock, client, Refusal(error.code, str(error)))
            return
        found = self._open_file(TftpRequest(request.name, client[0]))
        if isinstance(found, TftpFile) and request.netascii and found.size > MAX_NETASCII_BYTES:
            found = Refusal(ErrorCode.UNDEFINED, f"{found.label} is too large for netascii; use octet", found.mac)
        if isinstance(found, Refusal):
            self._refuse(sock, client, found)
            return
        if not self._make_room(client[0]):
            # Silence, not an error: the client asks again in a second or two, and an error would end its boot.
            if self._due(client[0], "room"):
                log.warning("TFTP: %s has to wait for %s: too many transfers", client[0], printable(request.name))
            return
        self._begin(request, found, client, local)

    def _begin(self, request: ReadRequest, file: TftpFile, client: tuple[str, int], local: str) -> None:
        content = packets.to_netascii(bytes(file.content)) if request.netascii else file.content
        try:
            sock, max_block_bytes = _connect(client, local, self._interface)
        except OSError as error:
            if self._due(client[0], "connect"):
                log.warning("TFTP: no transfer to %s port %d: %s", *client, error.strerror)
            return
        agreed = packets.negotiate(request, memoryview(content).nbytes, max_block_bytes)
        now = asyncio.get_running_loop().time()
        session = _Session(sock, client[0], file, ReadTransfer(content, agreed, now), self._ended)
        self._sessions[session] = None
        session.start()

    def _make_room(self, client_ip: str) -> bool:
        """Whether one more transfer fits, if need be in the place of one that nobody has ever acknowledged.

        Requests with forged addresses leave such transfers behind; a real client acknowledges within milliseconds.
        """
        of_client = [session for session in self._sessions if session.client_ip == client_ip]
        if len(of_client) >= self._max_per_client:
            crowd: list[_Session] = of_client
        elif len(self._sessions) >= self._max_transfers:
            crowd = list(self._sessions)
        else:
            return True
        idle = next((session for session in crowd if not session.transfer.answered), None)
        if idle is None:
            return False
        log.debug("TFTP: gave up on %s, which never answered, for another client", idle.client_ip)
        idle.drop()
        return True

    def _refuse(self, sock: socket.socket, client: tuple[str, int], refusal: Refusal) -> None:
        try:
            sock.sendto(packets.error(refusal.code, refusal.message), client)
        except OSError as error:
            log.debug("TFTP: error packet to %s port %d was not sent: %s", *client, error.strerror)
        if not self._due(client[0], refusal.message):
            return
        if refusal.expected:
            outcome = Outcome.INFO
        elif refusal.code == ErrorCode.ACCESS_VIOLATION:
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.FAILED
        self._tell(refusal.mac, client[0], outcome, f"TFTP {refusal.message}")

    def _ended(self, session: _Session) -> None:
        self._sessions.pop(session, None)
        ended = session.transfer.ended
        if ended is None:
            return  # dropped for another client, or by our stop
        outcome, message = _report(session.file, ended)
        if outcome is None:
            log.debug("TFTP to %s: %s", session.client_ip, message)
            return
        agreed = session.transfer.agreed
        self._tell(
            session.file.mac,
            session.client_ip,
            outcome,
            message,
            name=session.file.label,
            size_bytes=session.file.size,
            duration_seconds=round(ended.duration, 4),
            block_bytes=agreed.block_bytes,
            window_blocks=agreed.window_blocks,
            resent_blocks=session.transfer.resent_blocks,
        )

    def _tell(
        self, mac: str | None, client_ip: str, outcome: Outcome, message: str, **detail: str | int | float
    ) -> None:
        if mac is not None:
            self._record(mac, Step.TFTP, outcome, message, client_ip=client_ip, **detail)
        else:
            log.info("%s (%s, not a registered machine)", message, client_ip)

    def _due(self, *key: str) -> bool:
        return self._once.due(key, asyncio.get_running_loop().time())


class _Session:
    """A transfer with its socket and its timer."""

    def __init__(
        self,
        sock: socket.socket,
        client_ip: str,
        file: TftpFile,
        transfer: ReadTransfer,
        on_end: Callable[[_Session], None],
    ) -> None:
        self.client_ip = client_ip
        self.file = file
        self.transfer = transfer
        self._socket = sock
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop.add_reader(self._socket, self._readable)
        self._send(self.transfer.start(self._loop.time()))
        self._settle()

    def abandon(self, reason: str) -> None:
        """End it from our side, and say so to the client."""
        self._send([(packets.error(ErrorCode.UNDEFINED, reason), memoryview(b""))])
        self.drop()

    def drop(self) -> None:
        """End it without a word."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._on_end(self)

    def _readable(self) -> None:
        for _ in range(_DATAGRAMS_PER_TURN):
            try:
                datagram = self._socket.recv(packets.MAX_REQUEST_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.transfer.unreachable(self._loop.time())  # what ICMP said; it becomes the transfer's ending
                break
            self._send(self.transfer.receive(datagram, self._loop.time()))
            if self.transfer.ended is not None:
                break
        self._settle()

    def _timed_out(self) -> None:
        self._timer = None
        self._send(self.transfer.expire(self._loop.time()))
        self._settle()

    def _send(self, datagrams: list[Datagram]) -> None:
        for header, payload in datagrams:
            try:
                self._socket.sendmsg((header, payload))
            except ConnectionRefusedError:
                self.transfer.unreachable(self._loop.time())
                return
            except OSError as error:
                # A full send buffer or a link that went down is a lost packet, which the protocol mends.
                log.debug("TFTP to %s: %s", self.client_ip, error.strerror)
                return

    def _settle(self) -> None:
        """Close what has ended; see that a timer runs for what has not. One timer serves many acknowledgements."""
        if self.transfer.ended is not None:
            self.drop()
            return
        if self._timer is not None and self._timer.when() > self.transfer.deadline:
            self._timer.cancel()  # set while the client was silent; now that it answers, a loss is mended sooner
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self.transfer.deadline, self._timed_out)


def _report(file: TftpFile, ended: Ended) -> tuple[Outcome | None, str]:
    """How the end of a transfer is told; no outcome where it concerns nobody."""
    match ended.ending:
        case Ending.SENT:
            return Outcome.OK, f"TFTP sent {file.label}, {file.size} bytes in {ended.duration:.2f} s"
        case Ending.PROBED:
            return Outcome.INFO, f"TFTP told the size of {file.label}, {file.size} bytes"
        case Ending.UNCONFIRMED:
            return Outcome.INFO, f"TFTP sent {file.label}, {file.size} bytes, not confirmed: {ended.detail}"
        case Ending.DUPLICATE:
            return None, f"second request for {file.label} dropped"
        case _:
            return Outcome.FAILED, f"TFTP transfer of {file.label} failed, {ended.ending.value}: {ended.detail}"


def _connect(client: tuple[str, int], local: str, interface: str | None) -> tuple[socket.socket, int]:
    """A socket from a new port of the address that was asked, to the client; and the largest block for that way."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if interface is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        # Without the don't-fragment bit: on a way with a smaller MTU behind a router, blocks are to arrive in pieces
        # and not be lost, for PXE ROMs know nothing of path MTU discovery.
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DONT)
        # From the address that was asked, which routing alone would not see to on a host with several: clients drop
        # answers of others.
        sock.bind((local, 0))
        sock.connect(client)
        mtu = sock.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        sock.close()
        raise
    return sock, max(mtu - _HEADERS_BYTES, packets.DEFAULT_BLOCK_BYTES)


def _local_address(ancillary: list[tuple[int, int, bytes]]) -> str:
    """Our address that a datagram was sent to, from IP_PKTINFO (`ipi_spec_dst`, man 7 ip)."""
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO and len(value) >= 8:
            return socket.inet_ntoa(value[4:8])
    return "0.0.0.0"  # noqa: S104 - the kernel chooses
