"""`--health-address`: /healthz and /readyz of any service, for probes; those without HTTP of their own have it, too.

One short request a connection, as probes make them; nothing is told but whether, and why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 8192
_MOST_AT_ONCE: Final = 16


class HealthError(Exception):
    """The port can't be had; the message says which, and what to do."""


class HealthServer:
    """Answers `not_ready()`, which says why not, or is empty."""

    def __init__(self, not_ready: Callable[[], str]) -> None:
        self._not_ready = not_ready
        self._open = 0

    @asynccontextmanager
    async def listening(self, address: tuple[str, int] | None) -> AsyncIterator[None]:
        """Meanwhile, on this address; None: nowhere. Raises HealthError."""
        if address is None:
            yield
            return
        try:
            server = await asyncio.start_server(self._serve, *address, limit=_MOST_BYTES)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise HealthError(f"--health-address {where}: can't listen there: {error.strerror or error}") from error
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if self._open <= _MOST_AT_ONCE:
                    async with asyncio.timeout(_SECONDS):
                        writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                        await writer.drain()
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            status, text = "405 Method Not Allowed", "the method must be GET or HEAD"
        elif path in (b"/healthz", b"/livez"):
            status, text = "200 OK", "ok"
        elif path == b"/readyz":
            reason = self._not_ready()
            status, text = ("503 Service Unavailable", reason) if reason else ("200 OK", "ok")
        else:
            status, text = "404 Not Found", "there are /healthz and /readyz"
        body = f"{text}\n".encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + (body if method == b"GET" else b"")
