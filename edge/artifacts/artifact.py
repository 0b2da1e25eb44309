"""Why a kernel or initrd could not be had. Each error names the URL and the reason, in words for an operator.

Blocking file work in a thread, on a file descriptor that its owner is going to close.

A cancelled `await loop.run_in_executor(...)` leaves the thread running. If the owner closed the descriptor then, the
thread would write to whatever file or socket got the number next.

What a machine's request holds while it is being sent a kernel or initrd.

`file://` URLs: files of the edge's own machine, served as they are, never copied.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import ClassVar, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import unquote, urlsplit

from tink.files.data_directory import first_unreadable, give, user_name
from tink.net.urls import shown
from tink.printable import printable

MAX_FOREIGN = 100
"""Characters of what an upstream says (a reason phrase, a location) that get into a message."""


class ArtifactError(Exception):
    """An artifact is not available. `str()` is `<url>: <reason>`, without the URL's secrets."""

    kind: ClassVar[str] = "other"
    """What sort of trouble, as metrics count it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)}: {reason}")
        self.url = url
        self.reason = reason

    def again(self) -> Self:
        """The same error for another who asks: an exception that is raised twice drags its first trace along."""
        return type(self)(self.url, self.reason)


class BadUrlError(ArtifactError):
    """The URL is not one that can be fetched. Mended in the OSIE object."""

    kind = "url"


class RefusedUpstreamError(ArtifactError):
    """The URL, or a redirect, leads to an address that the edge does not fetch from."""

    kind = "refused"


class NotFoundError(ArtifactError):
    """The upstream answered that it has no such file (404, 410), or the local file is missing."""

    kind = "not found"


class ChecksumError(ArtifactError):
    """The bytes are not those that the OSIE, or the file with the checksum beside them, says they are."""

    kind = "checksum"


class UpstreamError(ArtifactError):
    """The upstream is not reachable, or its answer can't be used."""

    kind = "upstream"


class UpstreamTimeoutError(UpstreamError):
    """The upstream does not answer, or stopped sending, or sends too slowly."""

    kind = "timeout"


class WrongContentError(UpstreamError):
    """The upstream answered something that is no kernel or initrd: a web page, nothing, a compressed form."""

    kind = "content"


class TooLargeError(WrongContentError):
    """It is larger than any file that is kept."""


class ChangedError(UpstreamError):
    """The file became another one while it was being fetched, so what came before can't be gone on with."""

    kind = "changed"


class PeerError(UpstreamError):
    """Another edge did not give what it offered; `peer` is which."""

    kind = "peer"

    def __init__(self, url: str, reason: str, peer: str = "") -> None:
        super().__init__(url, reason)
        self.peer = peer


class StorageError(ArtifactError):
    """The edge's own disk: an artifact could not be read or written."""

    kind = "storage"


class NoRoomError(StorageError):
    """The cache or its disk is too small for the artifact."""

    kind = "no room"


KINDS = tuple(
    error.kind
    for error in (
        BadUrlError,
        RefusedUpstreamError,
        NotFoundError,
        ChecksumError,
        UpstreamError,
        UpstreamTimeoutError,
        WrongContentError,
        ChangedError,
        PeerError,
        StorageError,
        NoRoomError,
    )
)


def foreign(text: str) -> str:
    """What somebody else wrote, fit for one log line: short, and without control characters."""
    clean = printable(text[:MAX_FOREIGN])
    return clean if len(text) <= MAX_FOREIGN else f"{clean}…"


P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(pool: Executor, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `call` in a thread of `pool`. When cancelled, the thread has ended before CancelledError is raised here."""
    work = asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            await asyncio.wait([work])
        raise


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is, at one moment. Bytes; `size` is None if the upstream did not say it.

    `waiting` counts the machines that have the artifact open or wait for it to open.
    """

    url: str
    received: int
    size: int | None
    waiting: int


class Source(StrEnum):
    """Where the bytes of an artifact come from."""

    CACHE = "cache"
    STALE = "stale cache"
    UPSTREAM = "upstream"
    PEER = "another edge"
    UPSTREAM_EDGE = "upstream edge"
    FILE = "file"


def _nothing() -> None:
    """For artifacts of which nobody keeps count."""


class Filling(Protocol):
    """What fills a file: `edge.artifacts.flight` or `passing`, or what is known of it in another process."""

    @property
    def is_paced(self) -> bool:
        """Whether it goes on only as its one reader does, by what that asks of `filled`, and forgets what was read."""

    def progress(self) -> Progress:
        """How far it is now."""

    async def filled(self, offset: int) -> int:
        """Bytes that can be read, as soon as they are more than `offset`. Raises ArtifactError."""

    async def whole_sha256(self) -> str:
        """Wait for the end, and give the checksum. Raises ArtifactError."""


class Artifact:
    """One reader's hold of an artifact: a context manager that owns the open file `fd` (use offsets, not its position).

    `size` in bytes; the file has that size from the beginning, so it can be mapped. `version` names these bytes and no
    others. Bytes below `await filled(offset)` can be read from `fd`.
    """

    def __init__(
        self,
        url: str,
        fd: int,
        size: int,
        version: str,
        source: Source,
        download: Filling | None,
        *,
        sha256: str = "",
        released: Callable[[], None] = _nothing,
    ) -> None:
        """`sha256` is that of a whole file, if it is known. `released` is called once, when the reader closes it."""
        self.url = url
        self.fd = fd
        self.size = size
        self.version = version
        self.source = source
        self._download = download
        self._sha256 = sha256
        self._released = released

    @property
    def progress(self) -> Progress | None:
        """How far the download has come that fills the file; None if the file was whole when it was opened."""
        return self._download.progress() if self._download is not None else None

    @property
    def is_paced(self) -> bool:
        """Whether the file is there only around the offset that `filled` was asked for last: see `Filling`."""
        return self._download is not None and self._download.is_paced

    async def filled(self, offset: int) -> int:
        """Up to which offset the file can be read now; waits until that is beyond `offset` (or all there is).

        Raises ArtifactError if the upstream fails before. Where a checksum is to be checked, the end of the file is
        withheld until it was found right.
        """
        if self._download is None:
            return self.size
        return await self._download.filled(offset)

    async def sha256(self) -> str:
        """The checksum of the whole, when that is there and has been checked; empty if nobody computed it.

        Raises ArtifactError if the upstream fails before.
        """
        return await self._download.whole_sha256() if self._download is not None else self._sha256

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._released()

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_file(url: str, root: Path | None) -> Artifact:
    """The file below `root` (None: no file at all) that a file:// URL names (RFC 8089). Raises ArtifactError."""
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
        raise StorageError(url, _refused(unquote(parts.path), root)) from error
    except (OSError, ValueError) as error:
        raise StorageError(url, f"can't be opened: {getattr(error, 'strerror', None) or error}") from error
    status = os.fstat(fd)
    if status.st_size == 0:
        os.close(fd)
        raise BadUrlError(url, "an empty file")
    return Artifact(url, fd, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}", Source.FILE, None)


def _refused(path: str, root: Path) -> str:
    """Say which directory or file this process can't read, and the command that lets it."""
    user = os.geteuid()
    shut = first_unreadable(Path(os.path.realpath(path)), Path(os.path.realpath(root))) or root
    return f"{user_name(user)} can't read {shut}: as root: '{give(root, user)}'"


def _open_below(url: str, path: str, root: Path) -> int:
    """Open a regular file. Raises BadUrlError, OSError, ValueError.

    What is found is held first, without opening it (O_PATH): only then it is certain where it is and what it is. Links
    may change between a look and the opening, and to open a device does something to it.
    """
    below = os.path.realpath(root) + "/"
    outside = BadUrlError(url, f"a file URL must name a file below {root} (see --osie-dir)")
    if not path.startswith(below):
        raise outside
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
    """What changes when the file `fd` is written to or replaced, as far as the file system tells."""
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
