"""Files as bodies of HTTP answers: conditions and ranges, the head of the answer, and the threads that send the body.

Conditions and ranges are pure functions (RFC 9110 sections 13 and 14). UEFI firmware resumes a broken HTTP Boot
download with `Range: bytes=N-` and `If-Match` (EDK2, HttpBootClient.c); it expects 206, the same total, and the same
ETag. Files have no modification date here, so conditions with a date are ignored, as section 13.1 demands. An entity
tag is more precise.

`BodySender` sends the head through aiohttp and the body by `os.sendfile`, straight from the page cache to the network.
TCP_CORK (tcp(7)) holds the head back until the first bytes of the body, and keeps the segments full. A file that is
still arriving is sent as far as it goes, and the rest later.

    event loop -> Part -> SendThread: epoll waits for writable sockets, each gets a piece in turn -> event loop

uvloop has no sendfile, and asyncio's blocks on the disk. One thread serves thousands of machines: each writable socket
gets up to `PIECE_BYTES` bytes and then waits for its next turn, so all machines get their share, and one that reads
nothing costs nothing. Python needs a few microseconds for a piece; the kernel works without the interpreter's lock. If
a file is not in memory, its thread waits for the disk, but only for one piece.

The threads have a lower priority than the event loop, so that small requests do not wait for kernels and initrds on a
shared processor.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from aiohttp import web
from multidict import CIMultiDictProxy

from edge.artifacts.artifact import Artifact, ArtifactError, StorageError
from edge.http.answers import text
from edge.http.connections import has_ended
from tink.errors import TinkedgeError

_SINGLE = re.compile(r"bytes=\s*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` to before `end` of a file of `size` bytes. `partial` is True for a range request."""

    start: int
    end: int
    size: int
    partial: bool

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.end - self.start

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def select_span(method: str, headers: CIMultiDictProxy[str], etag: str, size: int) -> Span | HTTPStatus:
    """Return the bytes that a request wants of a file of `size` bytes with the (strong, quoted) `etag`.

    If the request wants none, return the status of the answer. Conditions are evaluated in the order of section 13.2.2.
    """
    if "If-Match" in headers and not matches(headers, "If-Match", etag, weakly=False):
        return HTTPStatus.PRECONDITION_FAILED
    if "If-None-Match" in headers and matches(headers, "If-None-Match", etag, weakly=True):
        return HTTPStatus.NOT_MODIFIED
    ranges = headers.getall("Range", [])
    # Range is for GET only (section 14.2). If-Range with another tag or a date means the whole file (section 13.1.5).
    if method != "GET" or len(ranges) != 1 or headers.get("If-Range", etag).strip() != etag:
        return Span(0, size, size, partial=False)
    return span(ranges[0], size) or HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def span(header: str, size: int) -> Span | None:
    """Return the bytes that a Range header selects, or None if the range lies beyond the end."""
    match = _SINGLE.fullmatch(header.strip().lower())
    whole = Span(0, size, size, partial=False)
    # A header that is not a single byte range selects the whole file, as section 14.2 allows.
    if match is None:
        return whole
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last is not None else size)
        if last is not None and int(last) < start:
            return whole
    return Span(start, end, size, partial=True) if start < end else None


def matches(headers: CIMultiDictProxy[str], name: str, etag: str, *, weakly: bool) -> bool:
    """Return True if an If-Match or If-None-Match header has `etag` (strong, quoted) (section 8.8.3.2)."""
    tags = [tag.strip() for header in headers.getall(name) for tag in header.split(",")]  # several lines: section 5.3
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return "*" in tags or etag in tags


async def begin_response(
    request: web.Request, headers: dict[str, str], size: int
) -> tuple[web.StreamResponse, Span] | web.StreamResponse:
    """Return the answer for a file of `size` bytes with the bytes to send, or a complete answer (HEAD, 304, 412, 416).

    `headers` must have the ETag.
    """
    part = requested_span(request, headers, size)
    if isinstance(part, web.Response):
        return part
    response = web.StreamResponse(status=206 if part.partial else 200, headers=headers)
    response.content_length = part.length
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    return response, part


def bytes_response(request: web.Request, headers: dict[str, str], content: bytes) -> web.Response:
    """Return the answer for a file in memory, or for the wanted part of it. `headers` must have the ETag."""
    part = requested_span(request, headers, len(content))
    if isinstance(part, web.Response):
        return part
    return web.Response(body=content[part.start : part.end], status=206 if part.partial else 200, headers=headers)


def break_off(request: web.Request) -> None:
    """Abort the connection: the rest of the promised length will not follow, and HTTP has no other way to say so."""
    if request.transport is not None:
        request.transport.abort()


def requested_span(request: web.Request, headers: dict[str, str], size: int) -> Span | web.Response:
    """Return the bytes of a file that a request wants, or the answer if it wants none. `headers` has the ETag."""
    headers["Accept-Ranges"] = "bytes"
    part = select_span(request.method, request.headers, headers["ETag"], size)
    if part is HTTPStatus.PRECONDITION_FAILED:
        return text("the file has changed", status=412)
    if part is HTTPStatus.NOT_MODIFIED:
        return web.Response(status=304, headers={"ETag": headers["ETag"]})
    if not isinstance(part, Span):
        return text(f"the file has {size} bytes", status=416, headers={"Content-Range": f"bytes */{size}"})
    if part.partial:
        headers["Content-Range"] = part.content_range
    return part


PIECE_BYTES = 8 << 20
"""Bytes that a machine gets in one turn. The overhead of a turn costs as much as sending 40 KiB."""

NICENESS = 10
"""Increment of the process's nice value for the threads (setpriority(2); the maximum is 19)."""

_SWEEP_SECONDS = 0.5


class AbortedError(TinkedgeError):
    """A thread gave up on a machine, because it read no byte for too long, or because the edge is stopping."""


class FileEndsError(TinkedgeError):
    """The file was shortened while it was sent."""


@dataclass(eq=False, slots=True)
class Part:
    """The bytes from `offset` to before `end` of a file, on their way to a non-blocking socket.

    It duplicates both descriptors, and its thread closes the duplicates: the owners may close theirs at any time, and
    the kernel reuses the numbers. `offset` grows while bytes are sent. `done` ends with None or one of ConnectionError,
    AbortedError, FileEndsError, OSError.
    """

    sock: int
    file: int
    offset: int
    end: int
    moved: float = 0.0
    waiting: bool = False
    dropped: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    done: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.loop.create_future()
        self.sock = os.dup(self.sock)
        try:
            self.file = os.dup(self.file)
        except OSError:
            os.close(self.sock)
            raise

    def settle(self, error: Exception | None) -> None:
        """Complete `done`. Called in the event loop."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class SendThread:
    """A thread and the parts that it sends. `send` and `stop` are called in the event loop."""

    def __init__(self, name: str, *, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._arrived: deque[Part] = deque()
        self._dropped: deque[Part] = deque()
        self._waiting: dict[int, Part] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """The number of parts."""
        return len(self._waiting) + len(self._arrived)

    async def send(self, part: Part) -> None:
        """Send a part. Raises the exceptions of `Part`. If this is cancelled, the thread drops the part at once."""
        self._arrived.append(part)
        self._awake()
        try:
            await part.done
        except asyncio.CancelledError:
            part.dropped = True
            self._dropped.append(part)
            self._awake()
            raise

    def stop(self) -> None:
        """Abort every part, and wait for the thread to end."""
        if not self._stopping:
            self._stopping = True
            self._awake()
            self._thread.join()
            self._epoll.close()
            os.close(self._wake)
        # The thread does not close the parts that arrived after its end.
        self._give_up_all()

    def _awake(self) -> None:
        if self._thread.is_alive():
            os.eventfd_write(self._wake, 1)
        else:
            self._give_up_all()

    # --- in the thread ---

    def _run(self) -> None:
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
        sweep = time.monotonic() + _SWEEP_SECONDS
        while not self._stopping:
            ready = self._epoll.poll(_SWEEP_SECONDS if self._waiting else None)
            now = time.monotonic()
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    self._welcome(now)
                elif (part := self._waiting.get(descriptor)) is not None:
                    self._push(part, now)
            if now >= sweep:
                for part in [part for part in self._waiting.values() if now - part.moved > self._idle_seconds]:
                    self._end(part, AbortedError(f"it took no byte for {self._idle_seconds:g} s"))
                sweep = now + _SWEEP_SECONDS
        self._give_up_all()

    def _welcome(self, now: float) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._arrived:
            part = self._arrived.popleft()
            part.moved = now
            if not part.dropped:
                self._push(part, now)
            else:
                self._close(part)
        while self._dropped:
            part = self._dropped.popleft()
            if part.waiting:
                self._close(part)

    def _push(self, part: Part, now: float) -> None:
        """Send a piece to one machine."""
        try:
            sent = os.sendfile(part.sock, part.file, part.offset, min(PIECE_BYTES, part.end - part.offset))
        except BlockingIOError:
            sent = -1
        except OSError as error:
            self._end(part, error)
            return
        if sent == 0:
            self._end(part, FileEndsError())
            return
        if sent > 0:
            part.offset += sent
            part.moved = now
            if part.offset == part.end:
                self._end(part, None)
                return
        if not part.waiting:
            part.waiting = True
            self._waiting[part.sock] = part
            self._epoll.register(part.sock, select.EPOLLOUT)

    def _end(self, part: Part, error: Exception | None) -> None:
        self._close(part)
        with suppress(RuntimeError):  # the loop is closed
            part.loop.call_soon_threadsafe(part.settle, error)

    def _close(self, part: Part) -> None:
        if part.waiting:
            part.waiting = False
            self._epoll.unregister(part.sock)
            del self._waiting[part.sock]
        os.close(part.sock)
        os.close(part.file)

    def _give_up_all(self) -> None:
        for part in [*self._waiting.values()]:
            self._end(part, AbortedError("the edge is stopping"))
        while self._arrived:
            self._end(self._arrived.popleft(), AbortedError("the edge is stopping"))


MAX_THREADS = 4
"""One processor fills a 25 Gbit/s network. More threads than processors would only delay small requests."""

GONE_SECONDS = 1.0
"""Interval of checks for a closed connection while the machine waits for the upstream."""


class MachineGoneError(TinkedgeError):
    """The machine closed the connection, or read no byte for too long.

    `sent` is the number of bytes that it got. `waited` is the time in seconds for which it had waited for the upstream.
    """

    def __init__(self, reason: str, sent: int, waited: float = 0.0) -> None:
        super().__init__(reason)
        self.sent = sent
        self.waited = waited


class BodySender:
    """Sends file bodies, and gives up on a machine that reads nothing for `idle_seconds`."""

    def __init__(self, *, threads: int | None = None, idle_seconds: float = 30.0) -> None:
        """`threads` None: one for each processor of this process, up to MAX_THREADS."""
        count = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._idle_seconds = idle_seconds
        self._threads = [SendThread(f"http-body-{n}", idle_seconds=idle_seconds) for n in range(count)]

    def close(self) -> None:
        """Abort all bodies, and wait for the threads to end."""
        for thread in self._threads:
            thread.stop()

    async def answer(
        self,
        request: web.Request,
        headers: dict[str, str],
        artifact: Artifact,
        ended: Callable[[Span, MachineGoneError | ArtifactError | None], None],
    ) -> web.StreamResponse:
        """Answer a request for a file. `ended(part, error)` is called if a body was sent, whole or not."""
        begin = await begin_response(request, headers, artifact.size)
        if isinstance(begin, web.StreamResponse):
            return begin
        response, part = begin
        try:
            await self.send(request, response, artifact, part.start)
        except (MachineGoneError, ArtifactError) as error:
            ended(part, error)
            break_off(request)
        else:
            ended(part, None)
        return response

    async def send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        artifact: Artifact,
        start: int,
        *,
        trailer: tuple[int, Callable[[], Awaitable[bytes]]] | None = None,
    ) -> None:
        """Send `response` with bytes of `artifact` from `start` on, as many as its Content-Length says.

        A `trailer` (length in bytes, and a function that returns it) replaces the last bytes; it is called at the end.
        Works for plain TCP only, not for TLS. Raises MachineGoneError; ArtifactError if the upstream fails.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise MachineGoneError("it closed the connection", 0)
        offset, end = start, start + (response.content_length or 0) - (trailer[0] if trailer is not None else 0)
        thread = min(self._threads, key=lambda thread: thread.load)
        try:
            # Duplicate the socket: the transport may close its own at any time.
            sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # too many open files
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        waiting_since = 0.0
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            await response.prepare(request)
            # The body must not overtake the headers in the transport's buffer.
            give_up, pause = time.monotonic() + self._idle_seconds, 0.0
            while transport.get_write_buffer_size():
                if time.monotonic() > give_up or transport.is_closing():
                    raise MachineGoneError("it did not take the headers", 0)
                await asyncio.sleep(pause)
                pause = min(pause + 0.001, 0.05)
            while offset < end:
                waiting_since = time.monotonic()
                ready = min(await _filled(artifact, offset, transport, request), end)
                waiting_since = 0.0
                part = Part(sock.fileno(), artifact.fd, offset, ready)
                try:
                    await thread.send(part)
                finally:
                    offset = part.offset
            if trailer is not None:
                await response.write(await trailer[1]())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        except AbortedError as error:
            raise MachineGoneError(str(error), offset - start) from None
        except FileEndsError:
            reason = f"the file ends before byte {offset}: it was changed while it was sent"
            raise StorageError(artifact.url, reason) from None
        except ConnectionError:
            waited = time.monotonic() - waiting_since if waiting_since else 0.0
            raise MachineGoneError("it closed the connection", offset - start, waited) from None
        except OSError as error:
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        finally:
            sock.close()


async def _filled(artifact: Artifact, offset: int, transport: asyncio.Transport, request: web.Request) -> int:
    """Return the offset up to which the file can be sent. Raises ConnectionResetError, ArtifactError."""
    if transport.is_closing():
        raise ConnectionResetError
    if artifact.progress is None:
        return await artifact.filled(offset)
    waiting = asyncio.ensure_future(artifact.filled(offset))
    try:
        while not (await asyncio.wait([waiting], timeout=GONE_SECONDS))[0]:
            # A client that has closed its side can still receive a complete file, but it would hardly wait for one.
            if transport.is_closing() or has_ended(request):
                raise ConnectionResetError
        return waiting.result()
    finally:
        waiting.cancel()
