"""Connections to our HTTPS listeners (the embedded API, the webhooks): how many, from whom, how long unused.

A place is taken when a connection arrives, before TLS, whose handshake has a time of its own. A new connection is never
refused while another only waits: where more than a few have sent nothing, not even for TLS, the first of these goes,
then one that has never asked anything, then the one that came first. A client takes no more than its share of the
places, except on loopback, where all clients have one address. A handshake costs processor time before anything is
known of who begins it, and places say nothing of those that come and go: so how often an address, or 64 bits of IPv6,
may begin one is bounded, too. What is in a request and what it costs is bounded by whoever answers it.

`edge.http.transport.connections` is the same for machines, on plain HTTP and by the ten thousand.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from tink.limits.log import LimitedLog
from tink.limits.token_bucket import TokenBuckets
from tink.net.addresses import block_of, is_loopback
from tink.net.bytes_received import bytes_received

log = logging.getLogger(__name__)

_PER_TURN = 64
_REQUESTS_ARE_SEEN = {"_request_count", "_current_request"} <= {*RequestHandler.__slots__}
"""Whether this aiohttp says what its connections do; it has no public word for that."""
_PAUSE_SECONDS = 1.0
_ABOUT_TO_BEGIN = 8
"""So many connections that have sent nothing may have come just now, and mean it."""
_MOST_LOOKED_AT = 64
"""Of so many that have asked nothing it is seen whether they have sent anything: each costs a microsecond."""
_MOST_BLOCKS = 4096
"""Of so many it is remembered how often they came: in a second they have made more than one of ours can take."""
_FREEBIND = {socket.AF_INET: (socket.IPPROTO_IP, 15), socket.AF_INET6: (socket.IPPROTO_IPV6, 78)}
"""IP_FREEBIND, IPV6_FREEBIND (linux/in.h, linux/in6.h), which Python has no names for."""


def _affordable() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(2048, soft // 8))


@dataclass(frozen=True, slots=True)
class Limits:
    """Connections in all and `per_address`; seconds for the `handshake` of TLS, and `first` until the first request.

    Of one block of addresses, so many may begin `at_once`, and then `per_second`.
    """

    connections: int = field(default_factory=_affordable)
    per_address: int = 128
    handshake: float = 10.0
    first: float = 15.0
    at_once: int = 256
    per_second: float = 16.0


class LimitedSite(web.TCPSite):
    """aiohttp's TCPSite with a limiter in front of TLS, at one host or several. `what` names the listener in the log.

    `free`: it also listens at addresses that this host does not have yet, and is there as soon as it has them.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        hosts: str | Sequence[str],
        port: int,
        context: ssl.SSLContext,
        what: str,
        limits: Limits,
        *,
        free: bool = False,
    ) -> None:
        self._hosts = [hosts] if isinstance(hosts, str) else list(hosts)
        super().__init__(runner, self._hosts[0], port)
        self._free = free
        self._tls = context
        self._what = what
        self._limits = limits

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super(web.TCPSite, self).start()
        serve = self._runner.server
        if serve is None:
            raise RuntimeError("the runner is not set up")
        loop = asyncio.get_running_loop()
        wanted: dict[tuple[socket.AddressFamily, Any], None] = {}
        for host in self._hosts:
            found = await loop.getaddrinfo(host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            wanted |= dict.fromkeys((family, address) for family, _, _, _, address in found)
        sockets: list[socket.socket] = []
        try:
            for family, address in wanted:
                sockets.append(_listening(family, address, self._backlog, free=self._free))
        except OSError:
            for each in sockets:
                each.close()
            raise
        limiter = ConnectionLimiter(serve, self._tls, self._what, self._limits)
        self._server = cast(asyncio.AbstractServer, Listener(sockets, limiter))  # as much of one as aiohttp wants


def _listening(family: socket.AddressFamily, address: Any, backlog: int, *, free: bool) -> socket.socket:
    """A listening socket. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if free:
            sock.setsockopt(*_FREEBIND[family], 1)
        sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


class Listener:
    """Accepts connections, and has the limiter decide before anything is spent on them. Owns the `sockets`."""

    def __init__(self, sockets: list[socket.socket], limiter: ConnectionLimiter) -> None:
        self.sockets = sockets
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._pauses: set[asyncio.TimerHandle] = set()
        for each in sockets:
            each.setblocking(False)
            self._listen(each)

    def _listen(self, sock: socket.socket) -> None:
        self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors, no memory
                self._limiter.say("accept", f"{error.strerror}: no connections for {_PAUSE_SECONDS:g} s")
                self._loop.remove_reader(listening)
                self._pauses = {timer for timer in self._pauses if timer.when() > self._loop.time()}
                self._pauses.add(self._loop.call_later(_PAUSE_SECONDS, self._listen, listening))
                return
            sock.setblocking(False)
            Connection(self._limiter, str(address[0])).begin(sock)

    def close(self) -> None:
        """Listen no more; connections go on."""
        for timer in self._pauses:
            timer.cancel()
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()
        self.sockets = []

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


class ConnectionLimiter:
    """Who may stay. `serve` makes the protocol of a connection that has come through TLS."""

    def __init__(
        self,
        serve: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        what: str,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.serve = serve
        self.context = context
        self.limits = limits
        self._what = what
        self._clock = clock
        self._log = LimitedLog(log, clock, capacity=256)
        self._arrivals = TokenBuckets(limits.at_once, limits.per_second, capacity=_MOST_BLOCKS)
        self._open: dict[Connection, None] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}

    def open_of(self, address: str) -> int:
        """How many connections an address has."""
        return len(self._by_address.get(address, ()))

    def admit(self, new: Connection) -> bool:
        """A connection begins; where it is one too many, an idle one is closed for it, or it is itself."""
        address = new.address
        if not is_loopback(address) and not self._arrivals.allows(block_of(address), self._clock()):
            limits = self.limits
            self.say(
                address, f"more than {limits.at_once} connections, and then {limits.per_second:g} a second: closed"
            )
            return False
        neighbours = self._by_address.get(address, {})
        fits = True
        if len(neighbours) >= self.limits.per_address and not is_loopback(address):
            fits = self._close_idle(neighbours, address)
        elif len(self._open) >= self.limits.connections:
            fits = self._close_idle(self._open, "many addresses" if not is_loopback(address) else address)
        if not fits:
            self.say(address, "too many connections, all of them with requests under way: a new one is closed")
            return False
        self._open[new] = None
        self._by_address.setdefault(address, {})[new] = None
        return True

    def leave(self, gone: Connection) -> None:
        """A connection has ended. Harmless when it was never admitted."""
        if self._open.pop(gone, self) is self:
            return
        neighbours = self._by_address[gone.address]
        del neighbours[gone]
        if not neighbours:
            del self._by_address[gone.address]

    def _close_idle(self, among: Iterable[Connection], whose: str) -> bool:
        idle = _idlest(among)
        if idle is None:
            return False
        self.say(whose, "too many connections: idle ones are closed for new ones")
        idle.abort()
        return True

    def say(self, whose: str, what: str) -> None:
        """A line in the log, once in a while for each."""
        self._log.warning("%s: %s: %s", self._what, whose, what, key=whose)


def _idlest(among: Iterable[Connection]) -> Connection | None:
    """The one of those, the oldest first, that can be closed at the least cost to somebody who means it."""
    unasked: list[Connection] = []
    silent: list[Connection] = []
    waits = None
    for connection in among:
        if not connection.asked:
            unasked.append(connection)
            if connection.silent:
                silent.append(connection)
                if len(silent) > _ABOUT_TO_BEGIN:
                    return silent[0]
            if len(unasked) == _MOST_LOOKED_AT:
                break
        elif waits is None and not connection.busy:
            waits = connection
    return unasked[0] if unasked else waits


class Connection(asyncio.Protocol):
    """One connection: through TLS, then handed on to the protocol that answers requests."""

    def __init__(self, limiter: ConnectionLimiter, address: str) -> None:
        self._limiter = limiter
        self._handler: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._securing: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._received = False
        self._socket: socket.socket | None = None
        self.address = address

    @property
    def silent(self) -> bool:
        """Whether the client has sent nothing yet, not even to begin with TLS."""
        if self._socket is None:
            return True
        try:
            return bytes_received(self._socket) == 0
        except OSError:  # it is closed already
            return True

    @property
    def asked(self) -> bool:
        """Whether a request has ever come; where that is not seen, whether anything has."""
        return bool(getattr(self._handler, "_request_count", 0)) if _REQUESTS_ARE_SEEN else self._received

    @property
    def busy(self) -> bool:
        """Whether a request is under way; a watch is one. Where that is not seen, it may always be."""
        if not _REQUESTS_ARE_SEEN:
            return self._received
        return getattr(self._handler, "_current_request", None) is not None

    def begin(self, sock: socket.socket) -> None:
        """Take a place, and begin with TLS; or end at once."""
        if not self._limiter.admit(self):
            sock.close()
            return
        loop = asyncio.get_running_loop()
        self._socket = sock
        self._securing = loop.create_task(self._secure(sock))
        self._deadline = loop.call_later(self._limiter.limits.first, self._late)

    async def _secure(self, sock: socket.socket) -> None:
        loop, limiter = asyncio.get_running_loop(), self._limiter
        try:
            await loop.connect_accepted_socket(
                lambda: self, sock, ssl=limiter.context, ssl_handshake_timeout=limiter.limits.handshake
            )
        except (OSError, asyncio.CancelledError):  # no TLS, or too late: nobody to tell
            self._leave()

    def _leave(self) -> None:
        self._socket = None  # who else has it closes it
        self._limiter.leave(self)

    def abort(self) -> None:
        """End it now."""
        self._leave()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif self._securing is not None:
            self._securing.cancel()

    def _late(self) -> None:
        if not self.asked and not self.busy:
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has come through TLS."""
        self._transport = cast(asyncio.Transport, transport)
        self._handler = self._limiter.serve()
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """What came out of TLS."""
        self._received = True
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """It takes it again."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._leave()
        if self._handler is not None:
            self._handler.connection_lost(exc)
