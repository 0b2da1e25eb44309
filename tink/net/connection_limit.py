"""Limits for connections: how many, from which addresses, how often, and which one is closed for a new one.

`OpenConnections` counts the connections of one server and is shared by all our HTTP servers. A new connection is never
refused while another one is idle: the server closes an idle one for it. So neither a flood of connections nor a machine
that was reset during its last boot can lock out others.

`LimitedSite` is the HTTPS listener of the embedded API and of the webhooks. It counts a connection when it arrives,
before TLS. A handshake costs processor time before anything is known about the client, so the number of new connections
in a second is limited for each IPv4 address and each IPv6 /64 network. A connection that sends no request in time is
closed. Loopback has no share of its own, because all local clients have the same address.

`edge.http.connections` is the shell for machines, on plain HTTP. `tink.server.connections` limits gRPC in another way,
because gRPC accepts its connections itself.
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
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from aiohttp import web

from tink.limits import LimitedLog, TokenBuckets
from tink.net.addresses import block_of, is_loopback
from tink.net.aiohttp_requests import current_request, received_requests
from tink.net.bytes_received import bytes_received

log = logging.getLogger(__name__)

_ACCEPTED_PER_TURN: Final = 64
_PAUSE_SECONDS: Final = 1.0
_BACKLOG: Final = 128
_MAX_BEGINNING: Final = 8
"""Number of silent connections that may have arrived just now and are about to send their first bytes."""
_MAX_EXAMINED: Final = 64
"""Number of connections without a request that are checked for received bytes; each check takes a microsecond."""
_MAX_BLOCKS: Final = 4096
"""Number of networks whose recent connections are counted. One network can open more than that in a second."""
_FREEBIND: Final = {socket.AF_INET: (socket.IPPROTO_IP, 15), socket.AF_INET6: (socket.IPPROTO_IPV6, 78)}
"""IP_FREEBIND and IPV6_FREEBIND (linux/in.h, linux/in6.h). Python has no names for them."""


class Abortable(Protocol):
    """A connection of any server."""

    address: str

    def abort(self) -> None:
        """Close the connection at once, and remove it from `OpenConnections`."""


C = TypeVar("C", bound=Abortable)


class OpenConnections(Generic[C]):
    """The open connections of a server, and which one is closed when a new one finds no place.

    `all` has every connection, `idle` those without a request, both with the longest idle one first.
    """

    def __init__(
        self,
        limit: int,
        limit_per_address: int,
        has_share: Callable[[str], bool],
        choose: Callable[[Iterable[C]], C | None],
        warn: Callable[[str, str], None],
    ) -> None:
        """Create the count.

        limit: maximum number of connections in all.
        limit_per_address: maximum number from one address, if `has_share(address)` is True.
        choose: returns the idle connection to close, or None if all have to stay.
        warn: called with an address and a message for the log.
        """
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._has_share = has_share
        self._choose = choose
        self._warn = warn
        self.all: dict[C, None] = {}
        self.idle: dict[C, None] = {}
        self._by_address: dict[str, dict[C, None]] = {}

    def count_of(self, address: str) -> int:
        """Return the number of connections from an address."""
        return len(self._by_address.get(address, ()))

    def admit(self, new: C) -> bool:
        """Count `new`, whose `address` is set; abort an idle connection for it if necessary.

        Return False if all connections are busy: then the caller closes `new`.
        """
        address = new.address
        neighbours = self._by_address.get(address)
        if neighbours is not None and len(neighbours) >= self._limit_per_address and self._has_share(address):
            if not self._abort_one([each for each in neighbours if each in self.idle], address, new):
                return False
        elif len(self.all) >= self._limit:
            whose = "many addresses" if self._has_share(address) else address
            if not self._abort_one(self.idle, whose, new):
                return False
        self.all[new] = self.idle[new] = None
        # `_abort_one` may have removed the last connection of this address, and its dictionary with it.
        self._by_address.setdefault(address, {})[new] = None
        return True

    def set_idle(self, connection: C) -> None:
        """Record that the connection has no request from now on. Ignored if it was removed."""
        if connection not in self.all:
            return
        idle = self.idle
        idle.pop(connection, None)
        idle[connection] = None
        neighbours = self._by_address[connection.address]
        if len(neighbours) > 1:  # most machines have one connection, whose order does not matter
            del neighbours[connection]
            neighbours[connection] = None

    def set_busy(self, connection: C) -> None:
        """Record that the connection has a request."""
        self.idle.pop(connection, None)

    def remove(self, connection: C) -> None:
        """Stop counting a connection that has ended. Ignored if it was never admitted."""
        if connection not in self.all:
            return
        del self.all[connection]
        self.idle.pop(connection, None)
        neighbours = self._by_address[connection.address]
        del neighbours[connection]
        if not neighbours:
            del self._by_address[connection.address]

    def _abort_one(self, candidates: Iterable[C], whose: str, new: C) -> bool:
        chosen = self._choose(candidates)
        if chosen is None:
            self._warn(new.address, "too many connections, none of them idle: a new one is closed")
            return False
        self._warn(whose, "too many connections: idle ones are closed for new ones")
        chosen.abort()
        return True


# --- the HTTPS listener -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of an HTTPS listener: numbers of connections, times in seconds.

    `handshake` is the time for TLS, `first` the time until the first request. A network may open `at_once` connections,
    and `per_second` after that.
    """

    # The limit of open files must leave room for them.
    connections: int = field(
        default_factory=lambda: max(64, min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
    )
    per_address: int = 128
    handshake: float = 10.0
    first: float = 15.0
    at_once: int = 256
    per_second: float = 16.0


class LimitedSite(web.BaseSite):
    """Listens for HTTPS at one or several hosts, and limits the connections. Used in place of aiohttp's TCPSite.

    `what` names the listener in the log. With `free`, the site also listens at addresses that this host does not have
    yet (IP_FREEBIND), and is reachable as soon as the host has them.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        hosts: str | Sequence[str],
        port: int,
        context: ssl.SSLContext,
        what: str,
        limits: ConnectionLimits | None = None,
        *,
        free: bool = False,
    ) -> None:
        super().__init__(runner)
        if runner.server is None:
            raise RuntimeError("the runner is not set up")
        self._hosts = [hosts] if isinstance(hosts, str) else list(hosts)
        self._free = free
        self._limiter = ConnectionLimiter(runner.server, context, what, limits or ConnectionLimits())
        self._sockets: list[socket.socket] = []
        self._pauses: set[asyncio.TimerHandle] = set()
        self.port = port
        """The port to listen on; after `start`, the port that was chosen for 0."""

    @property
    def name(self) -> str:
        """The URL of the site."""
        return f"https://{self._hosts[0]}:{self.port}"

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        loop = asyncio.get_running_loop()
        wanted: dict[tuple[socket.AddressFamily, Any], None] = {}
        for host in self._hosts:
            found = await loop.getaddrinfo(host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            wanted |= dict.fromkeys((family, address) for family, _, _, _, address in found)
        try:
            for family, address in wanted:
                self._sockets.append(_listening(family, address, free=self._free))
        except OSError:
            for each in self._sockets:
                each.close()
            raise
        self.port = self._sockets[0].getsockname()[1]
        for each in self._sockets:
            each.setblocking(False)
            loop.add_reader(each, self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections, and ask the limiter before anything is spent on them."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors, or of memory
                self._limiter.warn("accept", f"{error.strerror}: no connections for {_PAUSE_SECONDS:g} s")
                loop.remove_reader(listening)
                self._pauses = {timer for timer in self._pauses if timer.when() > loop.time()}
                self._pauses.add(loop.call_later(_PAUSE_SECONDS, loop.add_reader, listening, self._accept, listening))
                return
            sock.setblocking(False)
            Connection(self._limiter, str(address[0])).begin(sock)

    async def stop(self) -> None:
        """Stop listening. Open connections stay open."""
        for timer in self._pauses:
            timer.cancel()
        for each in self._sockets:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        self._sockets = []
        await super().stop()


def _listening(family: socket.AddressFamily, address: Any, *, free: bool) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if free:
            sock.setsockopt(*_FREEBIND[family], 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


class ConnectionLimiter:
    """Decides which connections of an HTTPS listener may stay. `serve` creates the protocol of a connection."""

    def __init__(
        self,
        serve: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        what: str,
        limits: ConnectionLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.serve = serve
        self.context = context
        self.limits = limits
        self._what = what
        self._clock = clock
        self._log = LimitedLog(log, clock, capacity=256)
        self._arrivals = TokenBuckets(limits.at_once, limits.per_second, capacity=_MAX_BLOCKS)
        self.open: OpenConnections[Connection] = OpenConnections(
            limits.connections,
            limits.per_address,
            has_share=lambda address: not is_loopback(address),
            choose=_idlest,
            warn=self.warn,
        )

    def admit(self, new: Connection) -> bool:
        """Return True if a new connection may stay."""
        address = new.address
        if not is_loopback(address) and not self._arrivals.allows(block_of(address), self._clock()):
            limits = self.limits
            self.warn(
                address, f"more than {limits.at_once} connections, and then {limits.per_second:g} a second: closed"
            )
            return False
        return self.open.admit(new)

    def warn(self, whose: str, what: str) -> None:
        """Log a warning about a client, at most once a minute for each."""
        self._log.warning("%s: %s: %s", self._what, whose, what, key=whose)


def _idlest(among: Iterable[Connection]) -> Connection | None:
    """Return the connection whose client loses least if it is closed, the oldest first; None if all have requests."""
    unasked: list[Connection] = []
    silent: list[Connection] = []
    waits = None
    for connection in among:
        if not connection.asked:
            unasked.append(connection)
            if connection.silent:
                silent.append(connection)
                if len(silent) > _MAX_BEGINNING:
                    return silent[0]
            if len(unasked) == _MAX_EXAMINED:
                break
        elif waits is None and not connection.busy:
            waits = connection
    return unasked[0] if unasked else waits


class Connection(asyncio.Protocol):
    """One connection. It does the TLS handshake, then passes everything to aiohttp's protocol."""

    def __init__(self, limiter: ConnectionLimiter, address: str) -> None:
        self._limiter = limiter
        self._handler: web.RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._securing: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None
        self.address = address

    @property
    def silent(self) -> bool:
        """True if the client has sent no byte yet, not even of TLS."""
        if self._socket is None:
            return True
        try:
            return bytes_received(self._socket) == 0
        except OSError:  # closed
            return True

    @property
    def asked(self) -> bool:
        """True if the client has sent a request since it connected."""
        return self._handler is not None and received_requests(self._handler) > 0

    @property
    def busy(self) -> bool:
        """True while a request is being answered. A watch is such a request."""
        return self._handler is not None and current_request(self._handler) is not None

    def begin(self, sock: socket.socket) -> None:
        """Ask the limiter, then start the TLS handshake or close the socket."""
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
        except (OSError, asyncio.CancelledError):  # no TLS, or too late
            self._leave()

    def _leave(self) -> None:
        self._socket = None  # asyncio owns and closes it
        self._limiter.open.remove(self)

    def abort(self) -> None:
        """Close the connection at once."""
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
        """The TLS handshake is complete."""
        self._transport = cast(asyncio.Transport, transport)
        self._handler = cast(web.RequestHandler, self._limiter.serve())
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the decrypted bytes."""
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> None:
        """The client has closed its side."""
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._leave()
        if self._handler is not None:
            self._handler.connection_lost(exc)
