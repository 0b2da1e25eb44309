"""An open artifact (a kernel, an initrd), and the errors if there is none.

`Artifact` is the handle that a machine's request holds while the file is sent. `ArtifactError` and its subclasses name
the URL and the reason in words for an operator. `open_file` opens files of the edge's own machine (`file://` URLs),
which are served as they are and never copied.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, ParamSpec, Self, TypeVar
from urllib.parse import unquote, urlsplit

from tink.errors import TinkedgeError
from tink.files.data_directory import first_unreadable, give, user_name
from tink.net.urls import shown
from tink.printable import printable

MAX_FOREIGN = 100
"""Number of characters of an upstream's text (a reason phrase, a location) in a message."""


class ArtifactError(TinkedgeError):
    """An artifact is not available. `str()` is `<url>: <reason>`, without the URL's secrets."""

    kind: ClassVar[str] = "other"
    """The kind of problem, as metrics count it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)}: {reason}")
        self.url = url
        self.reason = reason

    def again(self) -> Self:
        """Return a copy for another reader. Raising the same object twice would keep its first traceback."""
        return type(self)(self.url, self.reason)


class BadUrlError(ArtifactError):
    """The URL can't be fetched. The remedy is a change of the OSIE object."""

    kind = "url"


class RefusedUpstreamError(ArtifactError):
    """The URL or a redirect leads to an address that the edge does not connect to."""

    kind = "refused"


class NotFoundError(ArtifactError):
    """The upstream has no such file (404, 410), or the local file is missing."""

    kind = "not found"


class ChecksumError(ArtifactError):
    """The bytes do not have the checksum that the OSIE or the sidecar file names."""

    kind = "checksum"


class UpstreamError(ArtifactError):
    """The upstream is unreachable, or its answer is unusable."""

    kind = "upstream"


class UpstreamTimeoutError(UpstreamError):
    """The upstream does not answer, stopped sending, or sends too slowly."""

    kind = "timeout"


class WrongContentError(UpstreamError):
    """The upstream's answer is not a kernel or initrd: a web page, an empty file, a compressed form."""

    kind = "content"


class TooLargeError(WrongContentError):
    """The file is larger than the cache's maximum."""


class ChangedError(UpstreamError):
    """The upstream replaced the file during the download, so the download can't resume."""

    kind = "changed"


class PeerError(UpstreamError):
    """Another edge, `peer`, did not send what it had offered."""

    kind = "peer"

    def __init__(self, url: str, reason: str, peer: str = "") -> None:
        super().__init__(url, reason)
        self.peer = peer


class StorageError(ArtifactError):
    """An artifact could not be read from or written to the edge's own disk."""

    kind = "storage"


class NoRoomError(StorageError):
    """The cache or its disk is too small for the artifact."""

    kind = "no room"


KINDS = tuple(
    error.kind
    for error in (
        BadUrlError, RefusedUpstreamError, NotFoundError, ChecksumError, UpstreamError, UpstreamTimeoutError,
        WrongContentError, ChangedError, PeerError, StorageError, NoRoomError,
    )
)  # fmt: skip


def foreign(text: str) -> str:
    """Return another host's text for a log line: short, and without control characters."""
    clean = printable(text[:MAX_FOREIGN])
    return clean if len(text) <= MAX_FOREIGN else f"{clean}…"


P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(pool: Executor, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `call` in a thread of `pool`. If this is cancelled, wait for the thread before raising CancelledError."""
    work = asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # The owner of a file descriptor could close it while the thread still uses it, and the thread would write to
        # the next file or socket with that number.
        while not work.done():
            await asyncio.wait([work])
        raise


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of a download at one moment, in bytes. `size` is None if the upstream did not send it.

    `waiting` is the number of machines that have the artifact open or wait for it to open.
    """

    url: str
    received: int
    size: int | None
    waiting: int


class Source(StrEnum):
    """The origin of an artifact's bytes."""

    CACHE = "cache"
    STALE = "stale cache"
    UPSTREAM = "upstream"
    PEER = "another edge"
    UPSTREAM_EDGE = "upstream edge"
    FILE = "file"


class GrowingFile:
    """A file that is being filled, for readers that wait for it to grow.

    fd: the open file; -1 after the end.
    size: in bytes; None if it is not known yet.
    written: number of bytes in the file.
    ended: no more bytes will come. `failure` says why if bytes are missing.
    sha256: the checksum of the whole file, set at the end.
    """

    def __init__(self, url: str, fd: int, size: int | None = None) -> None:
        self.url = url
        self.fd = fd
        self.size = size
        self.written = 0
        self.readers = 0
        self.ended = False
        self.failure: ArtifactError | None = None
        self.sha256 = ""
        self._changed = asyncio.Event()

    @property
    def readable(self) -> int:
        """The number of bytes that readers may have."""
        return self.written

    def write(self, chunk: bytes | memoryview) -> None:
        """Append to the file. Blocks: call it in a thread, one call at a time. Raises OSError."""
        view, offset = memoryview(chunk), self.written
        while view:
            count = os.pwrite(self.fd, view, offset)
            view, offset = view[count:], offset + count
        self.written = offset

    def notify(self) -> None:
        """Wake the waiting readers."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def progress(self) -> DownloadProgress:
        """Return the progress."""
        return DownloadProgress(self.url, self.written, self.size, self.readers)

    async def filled(self, offset: int) -> int:
        """Return the number of readable bytes as soon as it exceeds `offset`. Raises the failure."""
        while self.readable <= offset and not self.ended:
            await self._changed.wait()
        if self.readable <= offset and self.failure is not None:
            raise self.failure.again()
        return self.readable

    async def whole(self) -> None:
        """Wait for the end. Does not raise: see `failure`."""
        while not self.ended:
            await self._changed.wait()

    async def whole_sha256(self) -> str:
        """Wait for the end, and return the checksum. Raises the failure."""
        await self.whole()
        if self.failure is not None:
            raise self.failure.again()
        return self.sha256


@dataclass(eq=False)
class Artifact:
    """A reader's handle of an artifact: a context manager that owns the open file `fd`.

    Read with offsets, since several readers may share the position. Bytes below `await filled(offset)` are available.
    The file has its `size` (bytes) from the beginning, so it can be mapped. `version` identifies exactly these bytes.
    `download` fills the file; None if it is complete. `known_sha256` is the checksum of the whole file, if it is known.
    `released` is called once, by `close`.
    """

    url: str
    fd: int
    size: int
    version: str
    source: Source
    download: GrowingFile | None = None
    _: KW_ONLY
    known_sha256: str = ""
    released: Callable[[], None] = lambda: None

    @property
    def progress(self) -> DownloadProgress | None:
        """The progress of the download that fills the file; None if the file was complete when it was opened."""
        return self.download.progress() if self.download is not None else None

    async def filled(self, offset: int) -> int:
        """Wait until more than `offset` bytes are available, or all. Return their number.

        Raises ArtifactError if the upstream fails before. If there is a checksum, the end of the file becomes available
        only after it was verified.
        """
        return await self.download.filled(offset) if self.download is not None else self.size

    async def sha256(self) -> str:
        """Wait for the whole file, and return its verified checksum; empty if there is none. Raises ArtifactError."""
        return await self.download.whole_sha256() if self.download is not None else self.known_sha256

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.released()

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_file(url: str, root: Path | None) -> Artifact:
    """Open the file that a file:// URL names (RFC 8089), below `root` (None: no files). Raises ArtifactError."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise BadUrlError(url, "a file URL must be file:///path, of a file on the edge's own machine")
    if root is None:
        raise BadUrlError(url, "this edge serves no files of its own machine (see --osie-dir)")
    try:
        fd = _open_below(url, os.path.realpath(unquote(parts.path)), root)
    except FileNotFoundError as error:
        raise NotFoundError(url, "no such file on the edge's machine") from error
    except PermissionError as error:
        user, base = os.geteuid(), Path(os.path.realpath(root))
        shut = first_unreadable(Path(os.path.realpath(unquote(parts.path))), base) or root
        why = f"{user_name(user)} can't read {shut}: as root: '{give(root, user)}'"
        raise StorageError(url, why) from error
    except (OSError, ValueError) as error:
        raise StorageError(url, f"can't be opened: {getattr(error, 'strerror', None) or error}") from error
    status = os.fstat(fd)
    if status.st_size == 0:
        os.close(fd)
        raise BadUrlError(url, "an empty file")
    return Artifact(url, fd, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}", Source.FILE)


def _open_below(url: str, path: str, root: Path) -> int:
    """Open a regular file. Raises BadUrlError, OSError, ValueError."""
    below = os.path.realpath(root) + "/"
    outside = BadUrlError(url, f"a file URL must name a file below {root} (see --osie-dir)")
    if not path.startswith(below):
        raise outside
    # Open with O_PATH first, to check real path and type: a link may change between a check and the opening, and
    # opening a device has side effects.
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        itself = Path(f"/proc/self/fd/{held}")
        if not str(itself.readlink()).startswith(below):
            raise outside
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise BadUrlError(url, "not a regular file")
        return os.open(itself, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(held)


def identity(fd: int) -> tuple[int, int, int, int, int]:
    """Return values that change if the file `fd` is written to or replaced."""
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(slots=True)
class Counts:
    """Counts since the start: `opened` by source; `failures` by `ArtifactError.kind`.

    A failure is a question to an upstream or a download that failed, however many machines waited for it. For a `file:`
    URL it is a request.
    """

    opened: Counter[Source] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    downloads: int = 0
    resumptions: int = 0
    revalidations: int = 0
    evictions: int = 0
    fetched_bytes: int = 0
    from_peers: int = 0
    peer_bytes: int = 0
