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
from dataclasses import dataclass
from typing import Final
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
    closes: bool = False


class HttpConnection:
    """A connection for one request at a time."""

    __slots__ = (
        "_body", "_closes", "_counted", "_done", "_head", "_keep", "_left", "_loop", "_only_head", "_socket", "_status",
        "_url",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, url: Url) -> None:
        """Use `connect` instead."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._url = url
        self._done: asyncio.Future[Response] | None = None
        self._reset(only_head=False, keep=False)

    @classmethod
    async def connect(cls, source: str, url: Url) -> HttpConnection:
        """Connect from the address `source`. Raises HttpError."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind((source, 0))
            async with asyncio.timeout(STALL_SECONDS):
                await asyncio.get_running_loop().sock_connect(sock, (url.host, url.port))
        except TimeoutError:
            sock.close()
            raise HttpError(f"{url.host}:{url.port} does not answer") from None
        except OSError as error:
            sock.close()
            raise HttpError(f"{url.host}:{url.port}: {why(error)}") from error
        except BaseException:
            sock.close()
            raise
        return cls(sock, url)

    def close(self) -> None:
        """Close."""
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_reader(self._socket)
        self._socket.close()

    async def request(
        self, method: str, target: str, headers: tuple[str, ...] = (), body: bytes = b"", *, keep: bool = True
    ) -> Response:
        """Send a request and wait for the whole answer. Raises HttpError."""
        self._reset(only_head=method == "HEAD", keep=keep)
        lines = [f"{method} {target} HTTP/1.1", *headers]
        if body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        done = self._done = self._loop.create_future()
        try:
            # A request fits into an empty send buffer.
            self._socket.send("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body)
            self._loop.add_reader(self._socket, self._readable)
            return await self._answer(done)
        except OSError as error:
            raise HttpError(f"{method} {target}: {why(error)}") from error
        finally:
            self._done = None
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._socket)

    async def _answer(self, done: asyncio.Future[Response]) -> Response:
        """Wait for the answer as long as the server sends."""
        counted = -1
        while True:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    return await asyncio.shield(done)
            except TimeoutError:
                if counted == self._counted:
                    raise HttpError(f"{self._url.target}: nothing came for {STALL_SECONDS:.0f} s") from None
                counted = self._counted

    # --- received bytes ---

    def _reset(self, *, only_head: bool, keep: bool) -> None:
        self._head = b""
        self._body: list[bytes] = []
        self._status = 0
        self._left = -1
        self._counted = 0
        self._only_head = only_head
        self._keep = keep
        self._closes = False

    def _readable(self) -> None:
        done = self._done
        if done is None or done.done():
            return
        try:
            if self._status:
                self._read_body(done)
            else:
                self._read_head(done)
        except BlockingIOError:
            pass
        except (OSError, HttpError, ValueError) as error:
            done.set_exception(error if isinstance(error, HttpError) else HttpError(f"{self._url.target}: {error}"))

    def _read_head(self, done: asyncio.Future[Response]) -> None:
        piece = self._socket.recv(_MAX_HEAD_BYTES)
        if not piece:
            raise HttpError(f"{self._url.target}: the server closed the connection without an answer")
        self._head += piece
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > _MAX_HEAD_BYTES:
                raise HttpError(f"{self._url.target}: headers without an end")
            return
        lines = head.decode("latin-1").split("\r\n")
        self._status = int(lines[0].split(" ", 2)[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if "chunked" in fields.get("transfer-encoding", ""):
            raise HttpError(f"{self._url.target}: no Content-Length, which firmware needs")
        length = int(fields.get("content-length", "0"))
        self._closes = fields.get("connection", "").lower() == "close"
        if self._only_head or self._status in (204, 304):
            done.set_result(Response(self._status, length, closes=self._closes))
            return
        if self._keep and length > MAX_KEPT_BYTES:
            raise HttpError(f"{self._url.target}: {length} bytes, where a script or a document was expected")
        self._head = b""
        self._left = length
        self._took(rest, len(rest), done)

    def _read_body(self, done: asyncio.Future[Response]) -> None:
        if self._keep or self._status >= 300:
            piece = self._socket.recv(min(self._left, 65_536))
            size = len(piece)
        else:
            piece = b""
            size = self._socket.recv_into(_SCRATCH, min(self._left, _CHUNK_BYTES), socket.MSG_TRUNC)
        if not size:
            raise HttpError(f"{self._url.target}: broken off, {self._left} bytes before the end")
        self._took(piece, size, done)

    def _took(self, piece: bytes, size: int, done: asyncio.Future[Response]) -> None:
        self._left -= size
        self._counted += size
        if piece and (self._keep or self._status >= 300):
            self._body.append(piece)
        if self._left <= 0:
            done.set_result(Response(self._status, self._counted, b"".join(self._body), self._closes))


def why(error: OSError) -> str:
    """Return an error's text as the system has it, without the event loop's additions."""
    return os.strerror(error.errno) if error.errno else str(error)


async def get(source: str, text: str, headers: tuple[str, ...] = (), *, keep: bool = True) -> Response:
    """Send one GET on a new connection. Raises HttpError."""
    url = Url.of(text)
    connection = await HttpConnection.connect(source, url)
    try:
        return await connection.request("GET", url.target, (f"Host: {url.host}:{url.port}", *headers), keep=keep)
    finally:
        connection.close()


async def length(source: str, text: str, headers: tuple[str, ...] = ()) -> Response:
    """Return a file's length and last byte as one answer. Raises HttpError."""
    url = Url.of(text)
    said = (f"Host: {url.host}:{url.port}", *headers)
    connection = await HttpConnection.connect(source, url)
    try:
        head = await connection.request("HEAD", url.target, said)
        if head.status != 200 or not head.length:
            return head
        last = await connection.request("GET", url.target, (*said, f"Range: bytes={head.length - 1}-"))
        return Response(200 if last.status == 206 else last.status, head.length, last.body)
    finally:
        connection.close()
