"""Which bytes of a file a request asks for: ranges and preconditions, as pure functions (RFC 9110 sections 13 and 14).

UEFI firmware resumes a broken HTTP Boot download with `Range: bytes=N-` and `If-Match` (EDK2, HttpBootClient.c); it
expects 206, the same total, and the same ETag. Files have no modification date here, so the conditions that name one
are not considered, as section 13.1 wants it: an entity tag says the same more strictly.

The head of an answer that has a file's bytes, or the answer in place of it (HEAD, 304, 412, 416).

Threads that send parts of files to sockets: `os.sendfile`, straight from the page cache to the network.

    event loop -> Part -> SendThread: epoll waits for machines that take bytes, each gets a piece in turn -> event loop

Neither uvloop's missing sendfile nor asyncio's blocking one will do. One thread serves thousands of machines: whoever
is ready gets up to `PIECE_BYTES` bytes, then it is the next one's turn, so all get their share, and one that takes
nothing costs nothing. Python's own work is a few microseconds for a piece; the kernel's part is done with the
interpreter's lock released. A file that is not in memory makes its thread wait for the disk, but for a piece only, then
the others have theirs.

The threads run at a lower priority than the event loop, so that small requests do not wait for kernels and initrds
where they share a processor.

Sending an artifact to a machine, as the body of a response: as far as the file goes, then the rest when it has come.

`edge.http.files` does the sending, in threads. The response's head goes through aiohttp; TCP_CORK (tcp(7))
keeps it back for the first bytes of the body, and keeps the body in full segments.
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
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDictProxy

from edge.artifacts import Artifact, StorageError
from edge.http.connections import has_ended
from edge.http.context import text

_SINGLE = re.compile(r"bytes=\s*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


class NotModifiedError(Exception):
    """The client has these bytes: 304."""


class ChangedError(Exception):
    """The client wants the rest of other bytes than these: 412."""


class UnsatisfiableError(Exception):
    """The range lies beyond the end: 416."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to before `end` of a whole of `size`; `partial` if that was asked for by a range."""

    start: int
    end: int
    size: int
    partial: bool

    @property
    def length(self) -> int:
        """How many bytes."""
        return self.end - self.start

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def select_span(method: str, headers: CIMultiDictProxy[str], etag: str, size: int) -> Span:
    """What a request for a file of `size` bytes with the (strong, quoted) `etag` asks for.

    Conditions are evaluated in the order of section 13.2.2. Raises ChangedError, NotModifiedError, UnsatisfiableError.
    """
    if "If-Match" in headers and not matches(_joined(headers, "If-Match"), etag, weakly=False):
        raise ChangedError
    if "If-None-Match" in headers and matches(_joined(headers, "If-None-Match"), etag, weakly=True):
        raise NotModifiedError
    ranges = headers.getall("Range", [])
    # Range is for GET only (section 14.2); with another If-Range than our tag, a date too, the whole (section 13.1.5).
    if method != "GET" or len(ranges) != 1 or headers.get("If-Range", etag).strip() != etag:
        return Span(0, size, size, partial=False)
    return span(ranges[0], size)


def span(header: str, size: int) -> Span:
    """What to send for a Range header. Raises UnsatisfiableError.

    What is not a single byte range is ignored and the whole is sent, as section 14.2 allows.
    """
    match = _SINGLE.fullmatch(header.strip().lower())
    whole = Span(0, size, size, partial=False)
    if match is None:
        return whole
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last is not None else size)
        if last is not None and int(last) < start:
            return whole
    if start >= end:
        raise UnsatisfiableError
    return Span(start, end, size, partial=True)


def matches(header: str, etag: str, *, weakly: bool) -> bool:
    """Whether `etag` (strong, quoted) is among the tags of an If-Match or If-None-Match header (section 8.8.3.2)."""
    tags = [tag.strip() for tag in header.split(",")]
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return "*" in tags or etag in tags


def _joined(headers: CIMultiDictProxy[str], name: str) -> str:
    """A list header that came in several lines, as one (section 5.3)."""
    return ",".join(headers.getall(name))


async def begun(
    request: web.Request, headers: dict[str, str], size: int
) -> tuple[web.StreamResponse, Span] | web.StreamResponse:
    """The answer for a file of `size` bytes, and which of them are to follow; or an answer that is whole.

    `headers` must hold the ETag.
    """
    part = requested(request, headers, size)
    if isinstance(part, web.Response):
        return part
    response = web.StreamResponse(status=206 if part.partial else 200, headers=headers)
    response.content_length = part.length
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    return response, part


def break_off(request: web.Request) -> None:
    """The promised length can't be kept any more; only a broken connection tells the machine so."""
    if request.transport is not None:
        request.transport.abort()


def requested(request: web.Request, headers: dict[str, str], size: int) -> Span | web.Response:
    """The bytes of a file of `size` bytes that a request asks for, or the answer if it asks for none of them.

    `headers` must hold the ETag; Accept-Ranges, and Content-Range where it belongs, are put into it.
    """
    headers["Accept-Ranges"] = "bytes"
    try:
        part = select_span(request.method, request.headers, headers["ETag"], size)
    except ChangedError:
        return text("the file has changed", status=412)
    except NotModifiedError:
        return web.Response(status=304, headers={"ETag": headers["ETag"]})
    except UnsatisfiableError:
        response = text(f"the file has {size} bytes", status=416)
        response.headers["Content-Range"] = f"bytes */{size}"
        return response
    if part.partial:
        headers["Content-Range"] = part.content_range
    return part


PIECE_BYTES = 8 << 20
"""Bytes that a machine gets before it is the next one's turn: what comes between two pieces costs as much as 40 KiB."""

NICENESS = 10
"""Added to the nice value that the process has (setpriority(2), which ends at 19)."""

_SWEEP_SECONDS = 0.5


class IdleError(Exception):
    """The machine took no byte for too long."""


class FileEndsError(Exception):
    """The file is shorter than it was."""


class StoppedError(Exception):
    """The threads were stopped."""


class Part:
    """Bytes `offset` to before `end` of the file `file`, on their way to the non-blocking socket `sock`.

    It has descriptors of its own, which its thread closes: the connection and the file may be closed by their owners
    at any time, and the numbers be used for others. `offset` grows as bytes are taken. `done` gets no result, or the
    exception: ConnectionError, IdleError, FileEndsError, StoppedError, OSError.
    """

    __slots__ = ("done", "dropped", "end", "file", "loop", "moved", "offset", "sock", "waiting")

    def __init__(self, sock: int, file: int, offset: int, end: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.sock = os.dup(sock)
        try:
            self.file = os.dup(file)
        except OSError:
            os.close(self.sock)
            raise
        self.offset = offset
        self.end = end
        self.moved = 0.0
        self.waiting = False
        self.dropped = False

    def settle(self, error: Exception | None) -> None:
        """Tell whoever waits for it. In the event loop."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class SendThread:
    """One thread and the parts that it sends. `send` and `stop` are called in the event loop."""

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
        """How many parts it has."""
        return len(self._waiting) + len(self._arrived)

    async def send(self, part: Part) -> None:
        """Send it all. Raises what `Part` says; when cancelled, the thread lets go of it at once."""
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
        """Give up every part, and wait for the thread to end."""
        if not self._stopping:
            self._stopping = True
            self._awake()
            self._thread.join()
            self._epoll.close()
            os.close(self._wake)
        # What came since: nobody else will close it.
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
                self._sweep(now)
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
        """A piece for this machine."""
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

    def _sweep(self, now: float) -> None:
        late = [part for part in self._waiting.values() if now - part.moved > self._idle_seconds]
        for part in late:
            self._end(part, IdleError())

    def _end(self, part: Part, error: Exception | None) -> None:
        self._close(part)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
            self._end(part, StoppedError())
        while self._arrived:
            self._end(self._arrived.popleft(), StoppedError())


MAX_THREADS = 4
"""A processor sends more than a 25 Gbit/s network takes. A second thread on the same one only costs small requests."""

GONE_SECONDS = 1.0
"""How often it is looked whether a machine is still there, while it waits for the upstream."""


class MachineGoneError(Exception):
    """The machine closed the connection, or took no byte for too long. `sent` is how many it has taken.

    `waited` is for how many seconds it had waited then for bytes that the upstream did not send; 0: for none.
    """

    def __init__(self, reason: str, sent: int, waited: float = 0.0) -> None:
        super().__init__(reason)
        self.sent = sent
        self.waited = waited


class BodySender:
    """Sends file bodies; gives a machine up that takes nothing for `idle_seconds`."""

    def __init__(self, *, threads: int | None = None, idle_seconds: float = 30.0) -> None:
        """`threads` None: one for each processor that this process may use, up to MAX_THREADS."""
        count = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._idle_seconds = idle_seconds
        self._threads = [SendThread(f"http-body-{n}", idle_seconds=idle_seconds) for n in range(count)]

    def close(self) -> None:
        """Give up what is being sent, and wait for the threads to end."""
        for thread in self._threads:
            thread.stop()

    async def send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        artifact: Artifact,
        start: int,
        *,
        trailer: tuple[int, Callable[[], Awaitable[bytes]]] | None = None,
    ) -> None:
        """Send `response`, whose body is its Content-Length bytes of `artifact` from `start` on; of these, the last may
        be a `trailer`: how many bytes, and what gives them in the end.

        Raises MachineGoneError, and ArtifactError if the upstream fails meanwhile. Plain TCP only, no TLS.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise MachineGoneError("it closed the connection", 0)
        offset, end = start, start + (response.content_length or 0) - (trailer[0] if trailer is not None else 0)
        thread = min(self._threads, key=lambda thread: thread.load)
        try:
            # A socket of our own: the transport may close its one at any time.
            sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # too many open files
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        waiting_since = 0.0
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            await response.prepare(request)
            await self._headers_gone(transport)
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
        except IdleError:
            raise MachineGoneError(f"it took no byte for {self._idle_seconds:g} s", offset - start) from None
        except StoppedError:
            raise MachineGoneError("the edge is stopping", offset - start) from None
        except FileEndsError:
            reason = f"the file ends before byte {offset}: it was changed while it was sent"
            raise StorageError(artifact.url, reason) from None
        except (ConnectionError, _ClosedError):
            waited = time.monotonic() - waiting_since if waiting_since else 0.0
            raise MachineGoneError("it closed the connection", offset - start, waited) from None
        except OSError as error:
            raise StorageError(artifact.url, f"can't be sent: {error.strerror}") from error
        finally:
            sock.close()

    async def _headers_gone(self, transport: asyncio.Transport) -> None:
        """Wait until the transport has written what it holds: the body must not overtake the headers."""
        give_up = time.monotonic() + self._idle_seconds
        pause = 0.0
        while transport.get_write_buffer_size():
            if time.monotonic() > give_up or transport.is_closing():
                raise MachineGoneError("it did not take the headers", 0)
            await asyncio.sleep(pause)
            pause = min(pause + 0.001, 0.05)


class _ClosedError(Exception):
    """The connection is closed."""


async def _filled(artifact: Artifact, offset: int, transport: asyncio.Transport, request: web.Request) -> int:
    """Up to where the file can be sent. Raises _ClosedError, ArtifactError."""
    if transport.is_closing():
        raise _ClosedError
    if artifact.progress is None:
        return await artifact.filled(offset)
    waiting = asyncio.ensure_future(artifact.filled(offset))
    try:
        while not (await asyncio.wait([waiting], timeout=GONE_SECONDS))[0]:
            # Whoever has closed its side can still take a file that is there, but is rather gone than waiting for one.
            if transport.is_closing() or has_ended(request):
                raise _ClosedError
        return waiting.result()
    finally:
        waiting.cancel()
