"""An agent's connection to its server: made, made again when it is lost, and whom it trusts."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from edge.fleet.machines.surroundings import BootError
from edge.fleet.protocols import http
from edge.fleet.protocols.grpc import UNAVAILABLE, Call, Connection, Field
from tink.agent import AgentSettings
from tink.limits.backoff import Backoff

if TYPE_CHECKING:
    from edge.fleet.machines.machine import Machine

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_HTTP2: Final = "h2"


class Channel:
    """Calls `connected()` each time that there is a connection."""

    __slots__ = (
        "_backoff", "_connected", "_connecting", "_connection", "_context", "_loop", "_machine", "_open", "_retry",
        "_settings",
    )  # fmt: skip

    def __init__(self, machine: Machine, settings: AgentSettings, connected: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._settings = settings
        self._connected = connected
        self._context: ssl.SSLContext | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._open = False
        self._backoff: Backoff | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._open

    async def open(self) -> None:
        """Begin. Raises BootError, HttpError for a server that the agent is not to speak to, or can't trust."""
        self._machine.around.check(self._settings.server.rpartition(":")[0])
        if self._settings.tls:
            self._context = await self._trusted()
        self._connect()

    def call(self, method: bytes, messages: tuple[bytes, ...], fields: tuple[Field, ...], call: Call) -> None:
        """Make a call, which ends with UNAVAILABLE if there is no connection."""
        if self._connection is None or not self._open:
            call.ended(UNAVAILABLE, "there is no connection")
        else:
            self._connection.call(method, messages, fields, call)

    def close(self) -> None:
        """Close."""
        self._open = False
        if self._retry is not None:
            self._retry.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    # --- the connection ---

    def connected(self) -> None:
        """There is one: called by it."""
        self._open = True
        self._backoff = None
        self._connected()

    def lost(self, why: str) -> None:
        """It is gone: called by it."""
        self._open = False
        self._connection = None
        self._machine.error(f"the connection to the gRPC server is lost: {why}")
        self._again()

    def _again(self) -> None:
        if self._backoff is None:
            self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._retry = self._loop.call_later(self._backoff.next(), self._connect)

    def _connect(self) -> None:
        self._retry = None
        self._connecting = self._loop.create_task(self._try())

    async def _try(self) -> None:
        host, _, port = self._settings.server.rpartition(":")
        self._connection = Connection(self, self._settings.server, self._clock_check if self._context else None)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind((self._machine.identity.address, 0))
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._loop.sock_connect(sock, (host, int(port)))
                connection = self._connection
                await self._loop.create_connection(
                    lambda: connection, sock=sock, ssl=self._context, server_hostname=host if self._context else None
                )
        except (OSError, TimeoutError) as error:
            sock.close()
            self._connection = None
            told = http.why(error) if isinstance(error, OSError) and str(error) else "it does not answer"
            self._machine.error(f"the gRPC server can't be reached: {told}")
            self._again()
        except BaseException:
            sock.close()
            raise
        finally:
            self._connecting = None

    # --- whom it trusts ---

    async def _trusted(self) -> ssl.SSLContext:
        """The TLS of the authority that the kernel command line names. Raises BootError, HttpError."""
        contexts = self._machine.around.contexts
        url, _, digest = self._settings.tls_ca_url.partition("#sha256=")
        if not url:
            return contexts.setdefault("", _context(None))
        self._machine.around.check(http.Url.of(url).host)
        found = await http.get(self._machine.identity.address, url)
        if hashlib.sha256(found.body).hexdigest() != digest.lower():
            raise BootError(f"{url} is not the authority that the kernel command line names")
        if digest not in contexts:
            contexts[digest] = _context(found.body.decode("ascii", "replace"))
        return contexts[digest]

    def _clock_check(self, certificate: dict[str, Any]) -> str:
        """Why the machine's clock does not take the certificate (RFC 5280 section 4.1.2.5); empty if it does."""
        now = time.time() + self._machine.traits.clock_error
        try:
            early = now < ssl.cert_time_to_seconds(certificate["notBefore"])
            late = now > ssl.cert_time_to_seconds(certificate["notAfter"])
        except (KeyError, ValueError):
            return "the server's certificate has no dates"
        if not early and not late:
            return ""
        if self._machine.traits.clock_error:
            self._machine.blame_fleet()
        return f"by the machine's clock the server's certificate is not valid {'yet' if early else 'any more'}"


def _context(authority: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority)
    context.set_alpn_protocols([_HTTP2])
    return context
