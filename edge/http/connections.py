"""Connections of HTTP clients: the server, its limits, and the two protocols that a connection goes through.

The machines' server and the operators' server are both a `BoundedServer`. A connection begins as a
`FastPathConnection`, which answers plain requests from tables (`edge.http.fast_path`). With the first request that is
not plain, aiohttp's protocol takes over for the rest of the connection. Both kinds are counted here.

aiohttp limits the size of a request's head and the time until it has arrived. This module adds:

- the number of connections, in all and for each address (`tink.net.connection_limit`);
- a time limit for an answer that the client does not read;
- one line of answer, and now and then one line in the log, for input that is not HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from aiohttp import HttpVersion10, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong
from yarl import URL

from edge.callers import Networks, dotted, inside, other_end
from edge.http.answers import text
from edge.http.fast_path import KnownHeads, LiveResponse, PreparedResponse, ResponseLookup, rest_of_head
from tink.limits import OncePer
from tink.net.addresses import is_link_local
from tink.net.aiohttp_requests import has_whole_request, received_requests
from tink.net.connection_limit import OpenConnections
from tink.printable import printable

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DESCRIPTORS_EACH = 5
"""Number of file descriptors that a connection may use: its socket once, and three times while a body is sent, the file
twice."""
MAX_AT_ONCE_BYTES: Final = 64 * 1024
"""Size of all bodies that are written for requests that arrive together. aiohttp paces the rest."""
_MAX_COPIED_BYTES: Final = 16 * 1024
"""Size of a body that is copied to send it together with its head. Larger bodies are not copied for each machine."""

_NOWHERE = URL("/")
_END_OF_HEAD: Final = b"\r\n\r\n"
_WELL_FORMED = re.compile(r"""^  b['"][!#$%&*+.^_`|~0-9A-Za-z-]+ \S+ HTTP/1\.[01]""", re.MULTILINE)
"""A request line, as aiohttp's parser quotes it in its error about an unknown method."""


def nothing_is_plain(_address: str) -> None:
    """Return None: no request is answered on the fast path."""


def _affordable() -> int:
    """Return the number of connections that the limit of open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(4096, soft // (2 * DESCRIPTORS_EACH)))


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of an HTTP server: numbers of connections, times in seconds, sizes in bytes.

    `per_address` does not apply to the networks in `proxies`, whose connections carry the requests of many machines.
    `idle` is the time for a whole request head, and between two requests. `unread` is the time for an answer of which
    the client reads nothing.
    """

    connections: int = field(default_factory=_affordable)
    per_address: int = 64
    idle: float = 30.0
    unread: float = 30.0
    line: int = 2048
    header: int = 4096  # must differ from `line`: aiohttp's error only says which number was exceeded
    headers: int = 64
    body: int = 64 * 1024  # only cloud-init's report has a body; it holds three public keys
    proxies: Networks = ()


class BoundedServer(web.Server):
    """aiohttp's server with `HttpLimits`, and with the fast path in front of it."""

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        clock: Callable[[], float],
        responses: ResponseLookup = nothing_is_plain,
    ) -> None:
        """`clock` returns monotonic seconds, `responses(address)` the answers that need no aiohttp."""
        super().__init__(self._handle, request_factory=self._request)  # type: ignore[arg-type]  # Request, not its base
        self._respond = handler
        self._limits = limits
        self._clock = clock
        self._logged = OncePer(60.0, 256)
        self._loop = asyncio.get_running_loop()
        self._parser_limits: dict[str, Any] = {
            "max_line_size": limits.line,
            "max_field_size": limits.header,
            "max_headers": limits.headers,
        }
        self.responses = responses
        self.heads = KnownHeads(self._loop, self._parser_limits)
        self._open: OpenConnections[FastPathConnection] = OpenConnections(
            limits.connections,
            limits.per_address,
            has_share=lambda address: not inside(address, limits.proxies),
            choose=_first_without_answer,
            warn=self.warn,
        )
        self.release = self._open.remove
        """Stop counting a connection that has ended."""
        self._unread_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def __call__(self) -> FastPathConnection:  # type: ignore[override]  # aiohttp's own protocol comes later
        """Return the protocol of a new connection."""
        return FastPathConnection(self)

    @property
    def open(self) -> Collection[FastPathConnection]:
        """The open connections."""
        return self._open.all.keys()

    def handler(self, connection: FastPathConnection) -> asyncio.Protocol:
        """Return aiohttp's protocol for the rest of a connection."""
        return _Protocol(
            self,
            connection,
            loop=self._loop,
            access_log=None,  # the journey has it in better words
            keepalive_timeout=self._limits.idle,
            lingering_time=2.0,
            auto_decompress=False,
            **self._parser_limits,
        )

    # --- admission ----------------------------------------------------------------------------------------------------

    def admit(self, connection: FastPathConnection) -> bool:
        """Count a new connection, and close an idle one for it if necessary. Return False if it has to be closed."""
        name = connection.transport.get_extra_info("peername")
        if not isinstance(name, tuple):
            return False  # the client has reset it already
        # The address as the inventory spells it. That of an IPv4 socket has this form already.
        connection.address = address = other_end(name) if ":" in name[0] else name[0]
        if not _may_come_from(connection.transport, address):
            self.warn(
                address, "sent a request to a link-local address from another kind of address, so its link is unknown"
            )
            return False
        if not self._open.admit(connection):
            return False
        connection.since = self._loop.time()
        if self._unread_timer is None:
            self._unread_timer = self._loop.call_later(self._limits.unread / 2, self._close_unread)
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._limits.idle, self._close_idle)
        return True

    def set_idle(self, connection: FastPathConnection) -> None:
        """Record that a connection has no request from now on."""
        self._open.set_idle(connection)
        connection.since = self._loop.time()

    def warn(self, address: str, what: str) -> None:
        """Log a line about a client, at most once a minute for each."""
        if self._logged.due(address, self._clock()):
            log.warning("%s: %s", address, what)

    def _close_idle(self) -> None:
        """Close connections on the fast path that have been idle for too long. aiohttp does so with its own."""
        self._idle_timer = None
        now, limit = self._loop.time(), self._limits.idle
        for connection in [*self._open.idle]:
            if not connection.on_fast_path:
                continue
            if now - connection.since < limit:
                # One timer for many connections: each may be closed up to a sixteenth of the limit later.
                wait = max(connection.since + limit - now, limit / 16)
                self._idle_timer = self._loop.call_later(wait, self._close_idle)
                return
            connection.transport.close()

    def _close_unread(self) -> None:
        """Close connections whose client has read nothing of a buffered answer since the last call."""
        for connection in [*self._open.all]:
            unread = connection.transport.get_write_buffer_size()
            if unread and unread == connection.unread:
                self.warn(connection.address, f"took no byte of an answer for {self._limits.unread / 2:g} s")
                connection.transport.abort()
            connection.unread = unread
        again = bool(self._open.all)
        self._unread_timer = self._loop.call_later(self._limits.unread / 2, self._close_unread) if again else None

    # --- called by aiohttp --------------------------------------------------------------------------------------------

    def pre_shutdown(self) -> None:
        """Accept no further requests on open connections."""
        super().pre_shutdown()
        for connection in [*self._open.all]:
            if connection.on_fast_path:
                connection.transport.close()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's own
        """Close all connections. aiohttp waits up to `timeout` seconds twice: for handlers, then for their tasks."""
        for timer in (self._unread_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        await super().shutdown(timeout)
        for connection in [*self._open.all]:
            if connection.on_fast_path:
                connection.transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        connection = cast(_Protocol, request.protocol).connection
        self._open.set_busy(connection)
        try:
            return await self._respond(request)
        finally:
            self.set_idle(connection)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.Request:
        # aiohttp's parser accepts a request without a target, and answers in HTTP versions that it does not speak.
        if message.url is None:
            message = message._replace(url=_NOWHERE)
        if message.version.major != 1:
            message = message._replace(version=HttpVersion10, should_close=True)
        size = self._limits.body
        return web.Request(message, payload, protocol, writer, task, self._loop, client_max_size=size)


def _first_without_answer(connections: Iterable[FastPathConnection]) -> FastPathConnection | None:
    """Return the first idle connection that has no answer in its buffer."""
    return next((each for each in connections if each.transport.get_write_buffer_size() == 0), None)


def _may_come_from(transport: asyncio.Transport, address: str) -> bool:
    """Return True if the connection arrived on the link of the peer's address (RFC 6724 section 5, rule 2)."""
    if ":" not in address or is_link_local(address):
        return True
    # A connection to a link-local address is answered on its link, even if the route to the peer uses another one.
    local = transport.get_extra_info("sockname")
    return not (isinstance(local, tuple) and is_link_local(str(local[0])))


class Runner(web.ServerRunner):
    """Runs a server on any number of sites. It calls `close` first when the edge stops, to end long answers."""

    def __init__(self, server: BoundedServer, close: Callable[[], None]) -> None:
        super().__init__(server, shutdown_timeout=0.5)
        self._close = close
        self.bounded = server

    async def shutdown(self) -> None:
        self._close()


# --- the fast path ----------------------------------------------------------------------------------------------------


class FastPathConnection(asyncio.Protocol):
    """A connection on the fast path. The server counts the connection under this object even after aiohttp took over.

    `address` is the peer's. `since` is the time at which the connection became idle, in seconds of the loop's clock.
    `unread` is the number of bytes in its write buffer when the server last looked.
    """

    __slots__ = ("_local", "_paused", "_server", "address", "on_fast_path", "since", "transport", "unread")

    def __init__(self, server: BoundedServer) -> None:
        self._server = server
        self._paused = False
        self._local: str | None = None  # our own address, looked up when it is needed
        self.address = ""
        self.on_fast_path = True
        self.since = 0.0
        self.unread = 0
        self.transport: asyncio.Transport

    def abort(self) -> None:
        """Close the connection at once."""
        self._server.release(self)
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self.transport = transport
        if not self._server.admit(self):
            transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        """The connection has ended before aiohttp took over."""
        self._server.release(self)

    def pause_writing(self) -> None:
        """The machine reads its answers more slowly than it asks."""
        self._paused = True

    def resume_writing(self) -> None:
        """The machine has read its answers."""
        self._paused = False

    def data_received(self, data: bytes) -> None:
        """Answer `data` if it consists of plain requests only. Otherwise leave all of it to aiohttp."""
        try:
            answers = self._plain(data)
            for response, client in answers:
                if isinstance(response, LiveResponse):
                    self._send(response.make(client, self._local_address()))
                    continue
                self._send(response)
                if response.on_sent is not None:
                    response.on_sent(client)
        except Exception:
            log.exception("an answer from a table failed")
            self.transport.abort()
            return
        if answers:
            self._server.set_idle(self)
            return
        self.on_fast_path = False
        handler = self._server.handler(self)
        self.transport.set_protocol(handler)
        handler.connection_made(self.transport)
        if self._paused:
            handler.pause_writing()
        handler.data_received(data)

    def _plain(self, data: bytes) -> list[tuple[PreparedResponse | LiveResponse, str]]:
        """Return the answers to all requests in `data`, each with the client's name; [] if one of them is not plain."""
        # All or none: aiohttp does not answer a good request either if the bytes after it can't be parsed.
        found: list[tuple[PreparedResponse | LiveResponse, str]] = []
        prepared = self._server.responses(self.address)
        if prepared is None or self._paused:
            return found
        # The common case: one request, and everything after its target is a known head.
        space = data.find(b" ", 4)
        client = self._server.heads.known.get(data[space:])
        if client is not None and data.startswith(b"GET "):
            response = prepared.get(data[4:space])
            if isinstance(response, PreparedResponse):
                return [(response, client)]
        start = size = 0
        while start < len(data):
            space = data.find(b" ", start + 4)
            end = data.find(_END_OF_HEAD, space) + 4
            if space < 0 or end < 4 or not data.startswith(b"GET ", start):
                return []
            response = prepared.get(data[start + 4 : space])
            if response is None or (client := self._server.heads.client(data[space:end])) is None:
                return []
            found.append((response, client))
            if isinstance(response, LiveResponse):
                # A live response names our address, and a link-local one is of no use in a script.
                alone = len(found) == 1 and end == len(data)
                return found if alone and not is_link_local(self._local_address()) else []
            size += len(response.body)
            if size > MAX_AT_ONCE_BYTES and len(found) > 1:
                return []
            start = end
        return found

    def _send(self, response: PreparedResponse) -> None:
        if len(response.body) < _MAX_COPIED_BYTES:
            self.transport.write(b"".join((response.head, rest_of_head(rfc822_formatted_time()), response.body)))
        else:
            self.transport.write(response.head + rest_of_head(rfc822_formatted_time()))
            self.transport.write(response.body)

    def _local_address(self) -> str:
        if self._local is None:
            name = self.transport.get_extra_info("sockname")
            self._local = dotted(str(name[0])) if isinstance(name, tuple) else ""
        return self._local


# --- aiohttp's protocol -----------------------------------------------------------------------------------------------


def has_ended(request: web.Request) -> bool:
    """Return True if the client has closed the connection, or at least its side of it."""
    return cast(_Protocol, request.protocol).ended


class _Protocol(web.RequestHandler):
    """aiohttp's protocol, with one line of answer for input that is not HTTP, and for failures.

    `ended` is True if the client has closed its side, or all of the connection: both look the same from here.
    """

    __slots__ = ("_answered", "_server", "connection", "ended")

    def __init__(self, server: BoundedServer, connection: FastPathConnection, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._server = server
        self._answered = 0
        self.ended = False
        self.connection = connection

    async def start(self) -> None:
        """Answer requests, unless the client left before this task began. aiohttp would fail in that case."""
        if self.transport is not None:
            await super().start()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's own: True keeps the connection open
        """Keep the connection open until all whole requests are answered."""
        # `printf ... | nc` closes its side as soon as it has sent its request. aiohttp would not answer it.
        self.ended = True
        return self._answered < received_requests(self) and has_whole_request(self)

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[Any, bool]:
        """Send an answer, and close the connection after the last one if the client has closed its side."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            if self.ended and self._answered == received_requests(self):
                self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        self._server.release(self.connection)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to a request that can't be parsed (400), or whose handler failed (500)."""
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
            raise ConnectionResetError  # the answer has begun: the client only notices a broken connection
        return response

    def _refusal(self, exc: BaseException | None, message: str) -> tuple[int, str]:
        """Return status and line for an error of aiohttp's parser (RFC 9110 sections 15.5 and 15.6.2, RFC 6585)."""
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
        """Log an error of ours with its traceback. Errors of the client's are logged in one line elsewhere."""
        error = kwargs.get("exc_info")
        if isinstance(error, (web.RequestPayloadError, web.PayloadAccessError, ConnectionError)):
            return
        log.error(*args, exc_info=error)
