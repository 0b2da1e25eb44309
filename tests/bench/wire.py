"""A client of the Kubernetes API with minimal cost, so that the server limits the speed.

HTTP/1.1 over TLS with prepared bytes. It reads the answers of kube-apiserver and ours: bodies with a length, and
chunked ones. It parses only the parts that the caller needs.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import yaml

_END = b"\r\n\r\n"


class WireError(Exception):
    """The server did not answer as it should."""


@dataclass(frozen=True)
class Account:
    """The address of a server and our credentials, from a kubeconfig."""

    host: str
    port: int
    token: str
    context: ssl.SSLContext

    @staticmethod
    def of(kubeconfig: Path) -> Account:
        """Read a kubeconfig with a token and the authority as data."""
        content = yaml.safe_load(kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        where = urlsplit(cluster["server"])
        with tempfile.NamedTemporaryFile() as authority:
            authority.write(base64.b64decode(cluster["certificate-authority-data"]))
            authority.flush()
            context = ssl.create_default_context(cafile=authority.name)
        return Account(str(where.hostname), where.port or 443, user["token"], context)

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        """Return the bytes of a request."""
        head = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", f"Authorization: Bearer {self.token}"]
        head += ["Accept: application/json"]
        if body:
            head += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        return "\r\n".join([*head, "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """One connection: one request at a time, or one watch."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._line: Callable[[bytes], None] | None = None

    @classmethod
    async def open(cls, account: Account) -> Connection:
        """Open a connection."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, account.host, account.port, ssl=account.context)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport only has the same methods

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of the protocol."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or WireError("the server closed the connection"))

    def close(self) -> None:
        """Close."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and wait for its answer: the status and the body. Raises WireError."""
        if self._transport is None:
            raise WireError("not connected")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    async def must(self, request: bytes) -> bytes:
        """Send a request and return the body of an answer with status 200 or 201. Raises WireError."""
        status, body = await self.ask(request)
        if status not in (200, 201):
            raise WireError(f"{request[:120]!r}: {status} {body[:500]!r}")
        return body

    def watch(self, request: bytes, line: Callable[[bytes], None]) -> None:
        """Send a watch; `line` receives the data in pieces of any size."""
        if self._transport is None:
            raise WireError("not connected")
        self._line = line
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Part of the protocol."""
        if self._line is not None:
            self._line(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(_END)
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length:")
        if at >= 0:
            length = int(head[at + 15 : (head.find(b"\r", at) + 1 or len(head) + 1) - 1])
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 :]
        elif b"transfer-encoding: chunked" in head:
            if not self._buffer.endswith(b"0\r\n\r\n"):
                return
            body = _joined(self._buffer[end + 4 :])
        else:
            body = b""
        status = int(head[9:12])
        self._buffer = b""
        self._answer.set_result((status, body))


def _joined(chunks: bytes) -> bytes:
    parts = []
    at = 0
    while True:
        end = chunks.index(b"\r\n", at)
        size = int(chunks[at:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(chunks[end + 2 : end + 2 + size])
        at = end + 4 + size
