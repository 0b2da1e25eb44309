"""Connections, and what strangers can do with them: how many there may be, how long, and saying what.

The machines' server and the operators' are both one of these.

A connection begins on the fast path (`edge.http.transport.fast_path`), and becomes aiohttp's at the first request that
is not plain; all of them are counted here. aiohttp bounds the size of a request's head and the time that it may take to
arrive; here is what it leaves open. A new connection is never refused while an old one only waits: the one that has
waited longest goes, so neither a flood nor a machine that was reset in the middle of its last boot keeps anybody out. A
connection whose buffered answer nobody takes is closed. What is no HTTP is answered with one line, and heard of in the
log now and then.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import HttpVersion10, web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong
from yarl import URL

from edge.callers import Networks, inside, other_end
from edge.http.context import text
from edge.http.transport.fast_path import FastPathConnection, HandedOnConnection, HandOn, KnownHeads, ResponseLookup
from tink.limits.once_per import OncePer
from tink.net.addresses import is_link_local
from tink.printable import printable

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_NOWHERE = URL("/")
_WELL_FORMED = re.compile(r"""^  b['"][!#$%&*+.^_`|~0-9A-Za-z-]+ \S+ HTTP/1\.[01]""", re.MULTILINE)
"""A request line, as aiohttp's parser quotes it in what it says of a method that it does not know."""

DESCRIPTORS_EACH = 5
"""File descriptors that a connection may take: its socket, three times while a body is sent, and the file, twice."""

_SHOWS_REQUESTS = {"_request_count", "_messages", "_current_request"} <= set(web.RequestHandler.__slots__)
"""Whether aiohttp keeps count of its requests where it did in 3.14. If not, it does what it does when a machine closes
its side of a connection: it ends that, with no answer to what was asked before."""


def nothing_is_plain(_address: str) -> None:
    """No request is plain."""


def _affordable() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(4096, soft // (2 * DESCRIPTORS_EACH)))


@dataclass(frozen=True, slots=True)
class Limits:
    """What strangers may take. `connections` in all and `per_address`; times in seconds; sizes in bytes.

    `idle`: for a whole request head, and between two requests. `unread`: for an answer of which nothing is taken.
    `proxies`: from there come the connections of many machines, which only `connections` bounds. `line` and `header`
    differ, for by them it is told which of the two was too long.
    """

    connections: int = field(default_factory=_affordable)
    per_address: int = 64
    idle: float = 30.0
    unread: float = 30.0
    line: int = 2048
    header: int = 4096
    headers: int = 64
    body: int = 64 * 1024  # only cloud-init's report has one; it holds three public keys
    proxies: Networks = ()


class BoundedServer(web.Server):
    """aiohttp's server of one `handler`, with `Limits`, and the fast path in front of it."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        clock: Callable[[], float],
        responses: ResponseLookup = nothing_is_plain,
        hand_on: HandOn | None = None,
    ) -> None:
        """`clock` gives monotonic seconds; `responses(address)` what needs no aiohttp; `hand_on` takes connections of
        other edges (None: they are served here). Needs a running loop."""
        super().__init__(self._handle, request_factory=self._request)  # type: ignore[arg-type]  # Request, not its base
        self._respond = handler
        self._limits = limits
        self._clock = clock
        self._said = OncePer(60.0, 256)
        self._running = asyncio.get_running_loop()
        self._heads: dict[str, Any] = {
            "max_line_size": limits.line,
            "max_field_size": limits.header,
            "max_headers": limits.headers,
        }
        self.responses = responses
        self.hand_on = hand_on
        self.heads = KnownHeads(self._running, self._heads)
        self._open: dict[FastPathConnection, None] = {}
        # Both in this order: the one that has been idle for longest first.
        self._idle: dict[FastPathConnection, None] = {}
        self._by_address: dict[str, dict[FastPathConnection, None]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._aging: asyncio.TimerHandle | None = None

    def __call__(self) -> FastPathConnection:  # type: ignore[override]  # the fast path's at first
        """The protocol of a new connection."""
        return FastPathConnection(self)

    @property
    def open(self) -> Collection[FastPathConnection]:
        """The connections that are served now."""
        return self._open.keys()

    async def take_over(self, sock: socket.socket, received: bytes) -> None:
        """Go on with a connection that began in another process, and has sent this. Raises OSError."""
        await self._running.connect_accepted_socket(lambda: HandedOnConnection(self, received), sock)

    def handler(self, connection: FastPathConnection) -> asyncio.Protocol:
        """aiohttp's protocol, for what is left of a connection."""
        return _Protocol(
            self,
            connection,
            loop=self._running,
            access_log=None,  # the journey says it better
            keepalive_timeout=self._limits.idle,
            lingering_time=2.0,
            auto_decompress=False,
            **self._heads,
        )

    # --- places: who may stay ----------------------------------------------------------------------------------------

    @staticmethod
    def _may_come_from(transport: asyncio.Transport, address: str) -> bool:
        """Return True if the connection arrived on the link of the peer's address.

        A connection to a link-local address is answered on its link, even if the route to the peer uses another link.
        RFC 6724 section 5, rule 2, makes hosts connect there from a link-local address.
        """
        if ":" not in address or is_link_local(address):
            return True
        local = transport.get_extra_info("sockname")
        return not (isinstance(local, tuple) and is_link_local(str(local[0])))

    def admit(self, connection: FastPathConnection) -> bool:
        """A connection begins; where it is one too many, an idle one is closed for it, or it is itself."""
        name = connection.transport.get_extra_info("peername")
        if not isinstance(name, tuple):
            return False  # it was reset before we could look
        # As the inventory spells it; that of an IPv4 socket is.
        connection.address = address = other_end(name) if ":" in name[0] else name[0]
        if not self._may_come_from(connection.transport, address):
            self.warn(
                address, "asks at a link-local address and has none itself, so that no link is known to be its own"
            )
            return False
        neighbours = self._by_address.get(address, {})
        fits = True
        if len(neighbours) >= self._limits.per_address and not inside(address, self._limits.proxies):
            fits = self._close_idle([other for other in neighbours if other in self._idle], address)
        elif len(self._open) >= self._limits.connections:
            fits = self._close_idle(self._idle, "many addresses")
        if not fits:
            self.warn(address, "too many connections, none of them idle: a new one is closed")
            return False
        self._open[connection] = self._idle[connection] = None
        self._by_address.setdefault(address, {})[connection] = None
        connection.since = self._running.time()
        if self._sweep is None:
            self._sweep = self._running.call_later(self._limits.unread / 2, self._close_unread)
        if self._aging is None:
            self._aging = self._running.call_later(self._limits.idle, self._close_aged)
        return True

    def idle(self, connection: FastPathConnection) -> None:
        """From now on it is idle, the youngest of all."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = None
            neighbours = self._by_address[connection.address]
            if len(neighbours) > 1:
                del neighbours[connection]
                neighbours[connection] = None
            connection.since = self._running.time()

    def release(self, connection: FastPathConnection) -> None:
        """A connection has ended."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._idle.pop(connection, None)
        neighbours = self._by_address[connection.address]
        del neighbours[connection]
        if not neighbours:
            del self._by_address[connection.address]

    def warn(self, address: str, what: str) -> None:
        """A line about a sender, once in a while for each."""
        if self._said.due(address, self._clock()):
            log.warning("%s: %s", address, what)

    def _close_idle(self, among: Iterable[FastPathConnection], whose: str) -> bool:
        """Close the first of these that does not even have an answer to send, if there is one."""
        for connection in among:
            if connection.transport.get_write_buffer_size() == 0:
                self.warn(whose, "too many connections: idle ones are closed for new ones")
                self.release(connection)
                connection.transport.abort()
                return True
        return False

    def _close_aged(self) -> None:
        """Close connections on the fast path that have been idle for too long; aiohttp does so with its own."""
        self._aging = None
        now, limit = self._running.time(), self._limits.idle
        for connection in [*self._idle]:
            if not connection.on_fast_path:
                continue
            if now - connection.since < limit:
                # Not for each of them at its own instant: a sixteenth later is soon enough.
                wait = max(connection.since + limit - now, limit / 16)
                self._aging = self._running.call_later(wait, self._close_aged)
                return
            connection.transport.close()

    def _close_unread(self) -> None:
        """Close connections with an answer in their buffer that nobody takes."""
        for connection in [*self._open]:
            unread = connection.transport.get_write_buffer_size()
            if unread and unread == connection.unread:
                self.warn(connection.address, f"took no byte of an answer for {self._limits.unread / 2:g} s")
                connection.transport.abort()
            connection.unread = unread
        again = bool(self._open)
        self._sweep = self._running.call_later(self._limits.unread / 2, self._close_unread) if again else None

    # --- what aiohttp calls ------------------------------------------------------------------------------------------

    def pre_shutdown(self) -> None:
        """No further requests on connections that are open."""
        super().pre_shutdown()
        for connection in [*self._open]:
            if connection.on_fast_path:
                connection.transport.close()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's own
        """End all connections; requests that run have `timeout` seconds, twice."""
        for timer in (self._sweep, self._aging):
            if timer is not None:
                timer.cancel()
        await super().shutdown(timeout)
        for connection in [*self._open]:
            if connection.on_fast_path:
                connection.transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        connection = cast(_Protocol, request.protocol).connection
        self._idle.pop(connection, None)
        try:
            return await self._respond(request)
        finally:
            self.idle(connection)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.Request:
        # aiohttp's parser lets a request without a target through, and would answer in versions that it does not speak.
        if message.url is None:
            message = message._replace(url=_NOWHERE)
        if message.version.major != 1:
            message = message._replace(version=HttpVersion10, should_close=True)
        size = self._limits.body
        return web.Request(message, payload, protocol, writer, task, self._running, client_max_size=size)


class Runner(web.ServerRunner):
    """Runs a server on any number of sites; `close` breaks off what nobody can wait for when the edge is to stop."""

    def __init__(self, server: BoundedServer, close: Callable[[], None]) -> None:
        super().__init__(server, shutdown_timeout=0.5)
        self._close = close
        self.bounded = server

    async def shutdown(self) -> None:
        self._close()


def has_ended(request: web.Request) -> bool:
    """Whether whoever asks has closed the connection, or at least its side of it."""
    return cast(_Protocol, request.protocol).ended


class _Protocol(web.RequestHandler):
    """aiohttp's protocol, with one line for what is no HTTP and for what goes wrong.

    `ended`: the machine has closed its side, or all of the connection; that looks the same.
    """

    __slots__ = ("_answered", "_server", "connection", "ended")

    def __init__(self, server: BoundedServer, connection: FastPathConnection, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._server = server
        self._answered = 0
        self.ended = False
        self.connection = connection

    async def start(self) -> None:
        """Answer requests; none if the machine has gone before this task began, which aiohttp takes for a mistake."""
        if self.transport is not None:
            await super().start()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's own: true keeps it open
        """The machine sends no more: what it has asked for is answered, as on the fast path, and aiohttp would not.

        `printf ... | nc` closes its side when it has sent its request. Of a request without its end nothing is owed.
        """
        self.ended = True
        return _SHOWS_REQUESTS and self._answered < self._request_count and self._is_whole()

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[Any, bool]:
        """An answer is sent."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            if self.ended and _SHOWS_REQUESTS and self._answered == self._request_count:
                self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        self._server.release(self.connection)

    def _is_whole(self) -> bool:
        """Whether the request that came last has come with all of its body."""
        if self._messages:
            return bool(self._messages[-1][1].is_eof())
        request = self._current_request
        return request is None or request.content.is_eof()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that can't be read (400), or that a handler failed at (500)."""
        if isinstance(exc, web.RequestPayloadError):
            status, message = 400, "its body is not what its headers say"
        if status == 500:
            self.log_exception("a request failed", exc_info=exc)
            message = "internal error: see the log of the edge"
        line = message or ""
        if status == 400:
            status, line = self._refusal(exc, line)
            self._server.warn(self.connection.address, f"a bad request: {line}")
            line = line if status != 400 else f"bad request: {line}"
        response = text(line, status=status)
        response.force_close()
        if request.writer.output_size > 0:
            raise ConnectionResetError  # the answer has begun: only a broken connection tells
        return response

    def _refusal(self, exc: BaseException | None, message: str) -> tuple[int, str]:
        """Status and line for what aiohttp's parser does not take (RFC 9110 section 15.5 and 15.6.2, RFC 6585)."""
        if isinstance(exc, LineTooLong):
            if exc.args[1] == self.max_line_size:
                return 414, f"the request line is longer than {self.max_line_size} bytes"
            return 431, f"a header is longer than {exc.args[1]} bytes"
        if message.startswith("Too many headers"):
            return 431, f"more than {self.max_headers} headers"
        if isinstance(exc, BadHttpMethod) and _WELL_FORMED.search(message):
            return 501, "no such method"
        first_line = message.strip().partition("\n")[0].rstrip(":")
        return 400, printable(first_line, ascii_only=True)[:120]

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """What is our own mistake, with its traceback; what is the sender's, in a line."""
        error = kwargs.get("exc_info")
        if isinstance(error, (web.RequestPayloadError, web.PayloadAccessError, ConnectionError)):
            return
        log.error(*args, exc_info=error)
