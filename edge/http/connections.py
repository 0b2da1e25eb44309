"""Connections of machines, and what strangers can do with them: how many there may be, how long, and saying what.

aiohttp bounds the size of a request's head and the time that it may take to arrive; here is what it leaves open. A new
connection is never refused while an old one only waits: the one that has waited longest is closed for it, so neither a
flood nor a machine that was reset in the middle of its last boot keeps anybody out. A connection whose buffered answer
nobody takes is closed. What is no HTTP is answered with one line, and heard of in the log once in a while.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import HttpVersion10, web
from yarl import URL

from edge.http.context import dotted, text
from tink.once_per import OncePer

log = logging.getLogger(__name__)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

_NOWHERE = URL("/")

DESCRIPTORS_EACH = 5
"""File descriptors that a connection may take: its socket, three times while a body is sent, and the file, twice."""


def _affordable() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(4096, soft // (2 * DESCRIPTORS_EACH)))


@dataclass(frozen=True, slots=True)
class Limits:
    """What strangers may take. `connections` in all and `per_address`; times in seconds; sizes in bytes.

    `idle`: for a whole request head, and between two requests. `unread`: for an answer of which nothing is taken.
    """

    connections: int = field(default_factory=_affordable)
    per_address: int = 64
    idle: float = 30.0
    unread: float = 30.0
    line: int = 4096
    header: int = 4096
    headers: int = 64
    body: int = 64 * 1024  # only cloud-init's report has one; it holds three public keys


@dataclass(slots=True)
class _Connection:
    """One that is open. `unread`: bytes that were in its buffer when it was looked at last."""

    address: str
    transport: asyncio.Transport
    unread: int = 0


class MachineServer(web.Server):
    """aiohttp's server of one `answer`, with `Limits`."""

    def __init__(self, answer: Answer, limits: Limits, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds. Needs a running loop."""
        super().__init__(self._handle, request_factory=self._request)  # type: ignore[arg-type]  # Request, not its base
        self._answer = answer
        self._limits = limits
        self._clock = clock
        self._said = OncePer(60.0, 256)
        self._running = asyncio.get_running_loop()
        self._open: dict[web.RequestHandler, _Connection] = {}
        # Both in this order: the one that has been idle for longest first.
        self._idle: dict[web.RequestHandler, None] = {}
        self._by_address: dict[str, dict[web.RequestHandler, None]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        limits = self._limits
        return _Protocol(
            self,
            loop=self._running,
            access_log=None,  # the journey says it better
            keepalive_timeout=limits.idle,
            max_line_size=limits.line,
            max_field_size=limits.header,
            max_headers=limits.headers,
            lingering_time=2.0,
            auto_decompress=False,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """A connection begins; where it is one too many, an idle one is closed for it, or it is itself."""
        super().connection_made(handler, transport)
        name = transport.get_extra_info("peername")
        address = dotted(str(name[0])) if isinstance(name, tuple) else ""
        neighbours = self._by_address.get(address, {})
        fits = True
        if len(neighbours) >= self._limits.per_address:
            fits = self._close_idle([other for other in neighbours if other in self._idle], address)
        elif len(self._open) >= self._limits.connections:
            fits = self._close_idle(self._idle, "many addresses")
        if not fits:
            self.say(address, "too many connections, none of them idle: a new one is closed")
            transport.abort()
            return
        self._open[handler] = _Connection(address, transport)
        self._idle[handler] = None
        self._by_address.setdefault(address, {})[handler] = None
        if self._sweep is None:
            self._sweep = self._running.call_later(self._limits.unread / 2, self._close_unread)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """A connection has ended."""
        super().connection_lost(handler, exc)
        self._forget(handler)

    def say(self, address: str, what: str) -> None:
        """A line about a sender, once in a while for each."""
        if self._said.due(address, self._clock()):
            log.warning("%s: %s", address, what)

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's own
        """End all connections; requests that run have `timeout` seconds, twice."""
        if self._sweep is not None:
            self._sweep.cancel()
        await super().shutdown(timeout)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        handler = request.protocol
        self._idle.pop(handler, None)
        try:
            return await self._answer(request)
        finally:
            self._rest(handler)

    def _rest(self, handler: web.RequestHandler) -> None:
        """From now on it is idle, the youngest of all."""
        connection = self._open.get(handler)
        if connection is not None:
            self._idle[handler] = None
            neighbours = self._by_address[connection.address]
            del neighbours[handler]
            neighbours[handler] = None

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.Request:
        # aiohttp's parser lets a request without a target through, and would answer in versions that it does not speak.
        if message.url is None:
            message = message._replace(url=_NOWHERE)
        if message.version.major != 1:
            message = message._replace(version=HttpVersion10, should_close=True)
        size = self._limits.body
        return web.Request(message, payload, protocol, writer, task, self._running, client_max_size=size)

    def _forget(self, handler: web.RequestHandler) -> None:
        connection = self._open.pop(handler, None)
        if connection is None:
            return
        self._idle.pop(handler, None)
        neighbours = self._by_address[connection.address]
        del neighbours[handler]
        if not neighbours:
            del self._by_address[connection.address]

    def _close_idle(self, among: Iterable[web.RequestHandler], whose: str) -> bool:
        """Close the first of these that does not even have an answer to send, if there is one."""
        for handler in among:
            transport = self._open[handler].transport
            if transport.get_write_buffer_size() == 0:
                self.say(whose, "too many connections: idle ones are closed for new ones")
                self._forget(handler)
                transport.abort()
                return True
        return False

    def _close_unread(self) -> None:
        """Close connections with an answer in their buffer that nobody takes."""
        for connection in [*self._open.values()]:
            unread = connection.transport.get_write_buffer_size()
            if unread and unread == connection.unread:
                self.say(connection.address, f"took no byte of an answer for {self._limits.unread / 2:g} s")
                connection.transport.abort()
            connection.unread = unread
        again = bool(self._open)
        self._sweep = self._running.call_later(self._limits.unread / 2, self._close_unread) if again else None


class _Protocol(web.RequestHandler):
    """aiohttp's protocol, with one line for what is no HTTP and for what goes wrong."""

    __slots__ = ("_server",)

    def __init__(self, server: MachineServer, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._server = server

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that can't be read (400), or that a handler failed at (500)."""
        if isinstance(exc, web.RequestPayloadError):
            status, message = 400, "its body is not what its headers say"
        if status == 500:
            self.log_exception("a request failed", exc_info=exc)
            message = "internal error: see the log of the edge"
        first_line = (message or "").strip().partition("\n")[0].rstrip(":")
        line = "".join(c if c.isascii() and c.isprintable() else "?" for c in first_line)[:120]
        if status == 400:
            self._server.say(dotted(request.remote or ""), f"a bad request: {line}")
            line = f"bad request: {line}"
        response = text(line, status=status)
        response.force_close()
        if request.writer.output_size > 0:
            raise ConnectionResetError  # the answer has begun: only a broken connection tells
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """What is our own mistake, with its traceback; what is the sender's, in a line."""
        error = kwargs.get("exc_info")
        if isinstance(error, (web.RequestPayloadError, web.PayloadAccessError, ConnectionError)):
            return
        log.error(*args, exc_info=error)
