"""The artifact cache: kernels and initrds named by OSIE objects, fetched once whoever asks, however many ask.

`ArtifactCache.open(url)` gives an `Artifact`: its size, an open file, and how far that file is filled. A download is
written to a file that all who ask read from while it grows, so a machine starts to receive with the first bytes, and
fifty machines cost the upstream one request. `edge.artifacts.store` says when a file counts as whole and survives a
restart; `edge.artifacts.upstream` does the asking.

An artifact that is on disk is served from there. After `revalidate_after` seconds the next machine makes the cache
ask the upstream whether it has changed (ETag, Last-Modified); an upstream that is down or broken costs nothing but a
log line then, the stored bytes are served as `STALE`. `file://` URLs are served from the file itself, never copied.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

from edge.artifacts.errors import (
    ArtifactError,
    BadUrlError,
    NotFoundError,
    StorageError,
    UpstreamError,
    UpstreamTimeoutError,
)
from edge.artifacts.store import Store, Stored
from edge.artifacts.threads import in_thread
from edge.artifacts.upstream import Answer, Timeouts, Upstream

__all__ = [
    "Artifact",
    "ArtifactCache",
    "ArtifactError",
    "BadUrlError",
    "NotFoundError",
    "Source",
    "StorageError",
    "Timeouts",
    "UpstreamError",
    "UpstreamTimeoutError",
]

log = logging.getLogger(__name__)

CHUNK = 1 << 18
"""Bytes that `Artifact.chunks` reads at a time."""


class Source(StrEnum):
    """Where the bytes of an artifact come from."""

    CACHE = "cache"
    STALE = "stale cache"
    UPSTREAM = "upstream"
    FILE = "file"


class Artifact:
    """One reader's hold of an artifact: a context manager that owns the open file `fd` (use offsets, not its position).

    `size` in bytes. `version` names these bytes and no others. Bytes below `await filled(offset)` can be read from
    `fd`.
    """

    def __init__(self, url: str, fd: int, size: int, version: str, source: Source, download: _Download | None) -> None:
        self.url = url
        self.fd = fd
        self.size = size
        self.version = version
        self.source = source
        self._download = download

    async def filled(self, offset: int) -> int:
        """Up to which offset the file can be read now; waits until that is beyond `offset` (or all there is).

        Raises ArtifactError if the upstream fails before.
        """
        if self._download is None:
            return self.size
        return await self._download.filled(offset)

    async def chunks(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`, as they arrive. Raises ArtifactError."""
        end = self.size if end is None else min(end, self.size)
        while start < end:
            ready = min(await self.filled(start), end)
            while start < ready:
                chunk = await asyncio.to_thread(os.pread, self.fd, min(CHUNK, ready - start), start)
                if not chunk:
                    raise StorageError(self.url, f"the file ends at {start} of {self.size} bytes")
                start += len(chunk)
                yield chunk

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ArtifactCache:
    """Artifacts by URL, kept in `directory`. `start` before use, `stop` after."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        timeouts: Timeouts | None = None,
        revalidate_after: float = 10.0,
        file_root: Path | None = None,
        new_version: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """`clock` gives monotonic seconds; `new_version` a hexadecimal name that no other download had.

        file:// URLs may name files below `file_root` only (None: none at all): who may write an OSIE object must not be
        able to have this host's other files served.
        """
        self._store = Store(directory)
        self._file_root = file_root
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._revalidate_after = revalidate_after
        self._new_version = new_version
        self._upstream: Upstream | None = None
        self._writers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="artifact-writer")
        self._checked: dict[str, _Check] = {}
        self._flights: dict[str, _Flight] = {}

    async def start(self) -> None:
        """Take the directory and sweep what an earlier process left half done.

        Raises DirectoryInUseError, OSError.
        """
        self._store.open()
        self._upstream = Upstream(self._timeouts)

    async def stop(self) -> None:
        """Give up downloads; whoever reads from one gets an error."""
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._upstream is not None:
            await self._upstream.close()
            self._upstream = None
        self._writers.shutdown(wait=True)
        self._store.close()

    async def open(self, url: str) -> Artifact:
        """Get hold of the artifact of `url`: at once if it is on disk, else when the upstream's headers are there.

        The caller closes it. Raises ArtifactError.
        """
        if url.startswith("file:"):
            return _open_file(url, self._file_root)
        if not url.startswith(("http://", "https://")):
            raise BadUrlError(url, "the scheme must be http, https or file")
        flight = self._flights.get(url)
        if flight is None:
            stored = self._store.get(url)
            check = self._checked.get(url)
            if stored is not None and check is not None and self._clock() - check.time < self._revalidate_after:
                return self._open_stored(stored)
            flight = self._take_off(url)
        download = await asyncio.shield(flight.answered)
        if download is not None and download.size is None:
            # The upstream did not say how long the file is, but a machine must be told: iPXE and UEFI firmware
            # hang at the end of a body without Content-Length.
            await download.whole()
        if download is None or download.ended:
            if download is not None and download.failure is not None:
                raise download.failure
            return self._open_known(url)
        return download.reader()

    # --- opening what is on disk ---

    def _open_known(self, url: str) -> Artifact:
        stored = self._store.get(url)
        if stored is None:
            raise StorageError(url, "it was in the cache a moment ago, and is gone")
        return self._open_stored(stored)

    def _open_stored(self, stored: Stored) -> Artifact:
        try:
            fd = os.open(self._store.path(stored), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._store.forget(stored)
            reason = f"can't be read from the cache and will be fetched anew: {error.strerror}"
            raise StorageError(stored.url, reason) from error
        check = self._checked.get(stored.url)
        source = Source.STALE if check is not None and check.stale else Source.CACHE
        return Artifact(stored.url, fd, stored.size, stored.version, source, None)

    # --- one flight to the upstream, for all who ask ---

    def _take_off(self, url: str) -> _Flight:
        flight = _Flight(url, asyncio.get_running_loop().create_future())
        self._flights[url] = flight
        flight.task = asyncio.create_task(self._fly(flight), name=f"artifact {url}")
        return flight

    async def _fly(self, flight: _Flight) -> None:
        """Ask the upstream, tell those who wait, and take the body in. Never raises an ArtifactError."""
        url = flight.url
        stored = self._store.get(url)
        try:
            await self._fetch(flight, stored)
        except UpstreamError as error:
            if stored is None:
                flight.fail(error)
            else:
                log.warning("artifact cache: the stored file is served, for its upstream can't be asked: %s", error)
                self._checked[url] = _Check(self._clock(), stale=True)
                flight.answer(None)
        except ArtifactError as error:
            flight.fail(error)
        finally:
            del self._flights[url]
            flight.fail(UpstreamError(url, "the edge is stopping"))

    async def _fetch(self, flight: _Flight, stored: Stored | None) -> None:
        """Raises ArtifactError if there is no answer; what happens to the body is the download's own affair."""
        if self._upstream is None:
            raise UpstreamError(flight.url, "the artifact cache is not running")
        etag, last_modified = (stored.etag, stored.last_modified) if stored is not None else ("", "")
        async with self._upstream.get(flight.url, etag=etag, last_modified=last_modified) as answer:
            if answer.not_modified:
                self._checked[flight.url] = _Check(self._clock(), stale=False)
                flight.answer(None)
                return
            download = self._begin(flight.url, answer)
            flight.answer(download)
            await self._fill(download, answer)

    def _begin(self, url: str, answer: Answer) -> _Download:
        version = self._new_version()
        part = self._store.part_path(url, version)
        try:
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(url, f"can't be written to the cache: {error.strerror}") from error
        return _Download(url, version, part, fd, answer.size)

    async def _fill(self, download: _Download, answer: Answer) -> None:
        url = download.url
        failure: ArtifactError = UpstreamError(url, "the edge is stopping")
        try:
            async for chunk in answer.body():
                await in_thread(self._writers, _write, download.fd, chunk, download.received)
                download.advance(len(chunk))
            stored = await in_thread(
                self._writers,
                self._store.commit,
                *(download.part, download.fd, url, download.received, answer.etag, answer.last_modified),
            )
        except ArtifactError as error:
            failure = error
        except OSError as error:
            failure = StorageError(url, f"can't be written to the cache: {error.strerror}")
        else:
            self._store.adopt(stored)
            self._checked[url] = _Check(self._clock(), stale=False)
            download.end(None)
            log.info("artifact cache: stored %s, %d bytes", url, stored.size)
            return
        finally:
            if not download.ended:
                log.error("artifact cache: %s", failure)
                download.end(failure)
                download.part.unlink(missing_ok=True)
                if self._store.get(url) is not None:  # the machine that tries again gets what there is
                    self._checked[url] = _Check(self._clock(), stale=True)


@dataclass(frozen=True, slots=True)
class _Check:
    """When (monotonic seconds) the upstream was asked about a stored artifact, and whether it could not answer."""

    time: float
    stale: bool


@dataclass(slots=True)
class _Flight:
    """One question to an upstream. The answer is a download that has begun, or None: serve what is stored."""

    url: str
    answered: asyncio.Future[_Download | None]
    task: asyncio.Task[None] | None = None

    def answer(self, download: _Download | None) -> None:
        self.answered.set_result(download)

    def fail(self, error: ArtifactError) -> None:
        """Tell those who still wait; there may be none."""
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # seen: whoever asked may have gone, and nobody is to be told then


class _Download:
    """A file that is being filled, and those who wait for it to fill further."""

    def __init__(self, url: str, version: str, part: Path, fd: int, size: int | None) -> None:
        self.url = url
        self.version = version
        self.part = part
        self.fd = fd
        self.size = size
        self.received = 0
        self.ended = False
        self.failure: ArtifactError | None = None
        self._news = asyncio.Event()

    def reader(self) -> Artifact:
        """A reader with a descriptor of its own. Only while the download has a known size and has not ended."""
        size = self.size if self.size is not None else self.received
        return Artifact(self.url, os.dup(self.fd), size, self.version, Source.UPSTREAM, self)

    def advance(self, count: int) -> None:
        """`count` more bytes are in the file."""
        self.received += count
        self._tell()

    def end(self, failure: ArtifactError | None) -> None:
        """Nothing more will come. Readers keep their own descriptors."""
        self.ended = True
        self.failure = failure
        os.close(self.fd)
        self._tell()

    async def filled(self, offset: int) -> int:
        """Bytes in the file, as soon as they are more than `offset`. Raises the failure, if they will never be."""
        while self.received <= offset and not self.ended:
            await self._news.wait()
        if self.received <= offset and self.failure is not None:
            raise self.failure
        return self.received

    async def whole(self) -> None:
        """Wait for the end. A failure is in `failure`."""
        while not self.ended:
            await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _write(fd: int, chunk: bytes, offset: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def _open_file(url: str, root: Path | None) -> Artifact:
    """The file below `root` that a file:// URL names (RFC 8089). Raises ArtifactError."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise BadUrlError(url, "a file URL must be file:///path, of a file on the edge's own machine")
    if root is None:
        raise BadUrlError(url, "this edge serves no files of its own machine (see --osie-dir)")
    try:
        path = os.path.realpath(unquote(parts.path))
        if not path.startswith(os.path.realpath(root) + "/"):
            raise BadUrlError(url, f"a file URL must name a file below {root} (see --osie-dir)")
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise NotFoundError(url, "no such file on the edge's machine") from error
    except (OSError, ValueError) as error:
        raise StorageError(url, f"can't be opened: {getattr(error, 'strerror', None) or error}") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        os.close(fd)
        raise BadUrlError(url, "an empty file" if stat.S_ISREG(status.st_mode) else "not a regular file")
    return Artifact(url, fd, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}", Source.FILE, None)
