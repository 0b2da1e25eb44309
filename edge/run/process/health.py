"""`--health-address` and `--metrics-address`: HTTP for probes and Prometheus, which any service can have.

    /healthz, /livez    ok while the process answers
    /readyz             ok with notes if the process can do its work, else the problem
    /metrics            for Prometheus, at --metrics-address only

A connection has one short request, as probes and scrapers make them. No answer names a machine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from edge.run.errors import HealthError
from edge.run.readiness import Readiness
from tink.net.addresses import join_host_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger(__name__)

_SECONDS: Final = 5.0
MAX_REQUEST_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 16
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class OperatorAddresses:
    """Address and port of the probes and of the metrics; None stands for no port.

    `wanted`: the operator has set the address of the metrics. If not, and the port is taken, such as by a second
    replica on this host, the process runs without metrics.
    """

    health: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None
    wanted: bool = False


class HealthServer:
    """Answers requests with `readiness()` and with the metrics of `registry`."""

    def __init__(self, readiness: Callable[[], Readiness], registry: CollectorRegistry) -> None:
        self._readiness = readiness
        self._registry = registry
        self._open = 0

    @asynccontextmanager
    async def listening(self, addresses: OperatorAddresses) -> AsyncIterator[None]:
        """Listen at these addresses within the context. Raises HealthError."""
        async with AsyncExitStack() as exit_stack:
            if addresses.health is not None and addresses.health != addresses.metrics:
                await self._listen(exit_stack, addresses.health, "--health-address", metrics=False)
            if addresses.metrics is not None:
                try:
                    await self._listen(exit_stack, addresses.metrics, "--metrics-address", metrics=True)
                except HealthError as error:
                    if addresses.wanted or addresses.health == addresses.metrics:
                        raise
                    log.warning("no metrics: %s; choose another, or --metrics-address none", error)
            yield

    async def _listen(self, exit_stack: AsyncExitStack, address: tuple[str, int], flag: str, *, metrics: bool) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, metrics=metrics)

        try:
            host = address[0]
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            # `::` stands for every address of this host, IPv4 too.
            sock = socket.create_server(address, family=family, dualstack_ipv6=host == "::")
            server = await asyncio.start_server(serve, sock=sock, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            where = join_host_port(*address)
            raise HealthError(f"{flag} {where}: can't listen there: {error.strerror or error}") from error
        exit_stack.callback(server.close)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, metrics: bool) -> None:
        self._open += 1
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if self._open <= MAX_CONNECTIONS:
                    async with asyncio.timeout(_SECONDS):
                        writer.write(self._answer(await reader.readuntil(b"\r\n\r\n"), metrics=metrics))
                        await writer.drain()
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, request: bytes, *, metrics: bool) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "the method must be GET or HEAD")
        body = method == b"GET"
        if path in (b"/healthz", b"/livez"):
            return _response("200 OK", "ok", body=body)
        if path == b"/readyz":
            found = self._readiness()
            return _response("503 Service Unavailable" if found.problem else "200 OK", found.text, body=body)
        if path == b"/metrics" and metrics:
            return _response("200 OK", generate_latest(self._registry), CONTENT_TYPE_LATEST, body=body)
        there = "/healthz, /livez, /readyz and /metrics" if metrics else "/healthz, /livez and /readyz"
        return _response("404 Not Found", f"there are {there}", body=body)


def _response(status: str, content: str | bytes, kind: str = _TEXT, *, body: bool = True) -> bytes:
    sent = content if isinstance(content, bytes) else f"{content}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(sent)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (sent if body else b"")
