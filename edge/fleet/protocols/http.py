"""HTTP/1.1 as boot programs and cloud-init use it, from a machine's own address. Large bodies are counted, not kept.

A kernel or an initrd is read with MSG_TRUNC (tcp(7)): the kernel counts and frees the bytes without copying them to
this process. So a fleet does not compete with a server on the same host. `length` is for runs that even the loopback
can't carry: it requests the length with HEAD, and the last byte, so that the server opens the file as for a download.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tink.errors import TinkedgeError

MAX_KEPT_BYTES: Final = 4 << 20
"""Maximum size of a kept body: scripts and metadata."""
STALL_SECONDS: Final = 60.0
"""Seconds of silence after which a client gives up."""
_MAX_HEAD_BYTES: Final = 65_536
_CHUNK_BYTES: Final = 4 << 20
_SCRATCH: Final = bytearray(_CHUNK_BYTES)
"""A buffer that stays empty: MSG_TRUNC needs one of the requested size."""

_Received = TypeVar("_Received")


class HttpError(TinkedgeError):
    """A request failed."""


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of an http:// URL. `target`: path and query."""

    host: str
    port: int
    target: str

    @classmethod
    def of(cls, text: str) -> Url:
        """Parse a URL. Raises HttpError."""
        parts = urlsplit(text)
        try:
            port = parts.port or 80
        except ValueError as error:
            raise HttpError(f"{text}: {error}") from error
        if parts.scheme != "http" or not parts.hostname:
            raise HttpError(f"{text}: not an http:// URL")
        return cls(parts.hostname, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `length`: bytes of its body (HEAD: of the body it describes). `body` is empty if it was not kept."""

    status: int
    length: int
    body: bytes = b""


async def connected_socket(source: str, host: str, port: int) -> socket.socket:
    """Connect by TCP from the address `source`. Raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock


class HttpConnection:
    """A connection for one request at a time."""

    __slots__ = ("_loop", "_readable", "_socket", "_url")

    def __init__(self, sock: socket.socket, url: Url) -> None:
        """Use `connect` instead."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._url = url
        self._readable = asyncio.Event()
        self._loop.add_reader(sock, self._readable.set)

    @classmethod
    async def connect(cls, source: str, url: Url) -> HttpConnection:
        """Connect from the address `source`. Raises HttpError."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                return cls(await connected_socket(source, url.host, url.port), url)
        except TimeoutError:
            raise HttpError(f"{url.host}:{url.port} does not answer") from None
        except OSError as error:
            raise HttpError(f"{url.host}:{url.port}: {why(error)}") from error

    def close(self) -> None:
        """Close."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def request(self, method: str, target: str, headers: tuple[str, ...] = (), *, keep: bool = True) -> Response:
        """Send a request and wait for the whole answer. Raises HttpError."""
        try:
            # A request fits into an empty send buffer.
            lines = [f"{method} {target} HTTP/1.1", *headers, "", ""]
            self._socket.send("\r\n".join(lines).encode("latin-1", "replace"))
            return await self._answer(only_head=method == "HEAD", keep=keep)
        except TimeoutError:
            raise HttpError(f"{self._url.target}: no data for {STALL_SECONDS:.0f} s") from None
        except OSError as error:
            raise HttpError(f"{method} {target}: {why(error)}") from error
        except (IndexError, ValueError) as error:
            raise HttpError(f"{self._url.target}: {error}") from error

    async def _answer(self, *, only_head: bool, keep: bool) -> Response:
        """Read an answer. Raises HttpError, TimeoutError, OSError, ValueError."""
        head, end, rest = b"", b"", b""
        while not end:
            piece = await self._receive(self._socket.recv, _MAX_HEAD_BYTES)
            if not piece:
                raise HttpError(f"{self._url.target}: the server closed the connection without an answer")
            head, end, rest = (head + piece).partition(b"\r\n\r\n")
            if not end and len(head) > _MAX_HEAD_BYTES:
                raise HttpError(f"{self._url.target}: headers without an end")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if "chunked" in fields.get("transfer-encoding", ""):
            raise HttpError(f"{self._url.target}: no Content-Length, which firmware needs")
        length = int(fields.get("content-length", "0"))
        if only_head or status in (204, 304):
            return Response(status, length)
        if keep and length > MAX_KEPT_BYTES:
            raise HttpError(f"{self._url.target}: {length} bytes, where a script or a document was expected")
        return Response(status, length, await self._body(rest, length, keep=keep or status >= 300))

    async def _body(self, rest: bytes, length: int, *, keep: bool) -> bytes:
        """Read a body, of which `rest` came with the head; return it, or nothing if it is only counted."""
        left, pieces = length - len(rest), [rest] if keep else []
        while left > 0:
            if keep:
                pieces.append(await self._receive(self._socket.recv, min(left, 65_536)))
                size = len(pieces[-1])
            else:
                size = await self._receive(self._socket.recv_into, _SCRATCH, min(left, _CHUNK_BYTES), socket.MSG_TRUNC)
            if not size:
                raise HttpError(f"{self._url.target}: broken off, {left} bytes before the end")
            left -= size
        return b"".join(pieces)

    async def _receive(self, receive: Callable[..., _Received], *arguments: Any) -> _Received:
        """Call `receive` when the socket has data. Raises TimeoutError after a silence of STALL_SECONDS, OSError."""
        while True:
            with contextlib.suppress(BlockingIOError):
                return receive(*arguments)
            self._readable.clear()
            async with asyncio.timeout(STALL_SECONDS):
                await self._readable.wait()


def why(error: OSError) -> str:
    """Return an error's text as the system has it, without the event loop's additions."""
    return os.strerror(error.errno) if error.errno else str(error)


async def get(source: str, text: str, headers: tuple[str, ...] = (), *, keep: bool = True) -> Response:
    """Send one GET on a new connection. Raises HttpError."""
    url = Url.of(text)
    with contextlib.closing(await HttpConnection.connect(source, url)) as connection:
        return await connection.request("GET", url.target, (f"Host: {url.host}:{url.port}", *headers), keep=keep)


async def length(source: str, text: str, headers: tuple[str, ...] = ()) -> Response:
    """Return a file's length and last byte as one answer. Raises HttpError."""
    url = Url.of(text)
    headers = (f"Host: {url.host}:{url.port}", *headers)
    with contextlib.closing(await HttpConnection.connect(source, url)) as connection:
        head = await connection.request("HEAD", url.target, headers)
        if head.status != 200 or not head.length:
            return head
        last = await connection.request("GET", url.target, (*headers, f"Range: bytes={head.length - 1}-"))
        return Response(200 if last.status == 206 else last.status, head.length, last.body)
