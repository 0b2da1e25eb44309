"""What a machine's request holds while it is being sent a kernel or initrd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from types import TracebackType
from typing import Protocol

from edge.artifacts.errors import StorageError
from edge.artifacts.progress import Progress

CHUNK_BYTES = 1 << 18
"""Bytes that `Artifact.chunks` reads at a time."""


class Source(StrEnum):
    """Where the bytes of an artifact come from."""

    CACHE = "cache"
    STALE = "stale cache"
    UPSTREAM = "upstream"
    FILE = "file"


class Filling(Protocol):
    """A download, as its readers see it."""

    async def filled(self, offset: int) -> int:
        """See `Artifact.filled`."""

    def progress(self) -> Progress:
        """See `Artifact.progress`."""


def _nothing() -> None:
    """For artifacts of which nobody keeps count."""


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
        released: Callable[[], None] = _nothing,
    ) -> None:
        """`released` is called once, when the reader closes it."""
        self.url = url
        self.fd = fd
        self.size = size
        self.version = version
        self.source = source
        self._download = download
        self._released = released

    @property
    def progress(self) -> Progress | None:
        """How far the download has come that fills the file; None if the file was whole when it was opened."""
        return self._download.progress() if self._download is not None else None

    async def filled(self, offset: int) -> int:
        """Up to which offset the file can be read now; waits until that is beyond `offset` (or all there is).

        Raises ArtifactError if the upstream fails before. Where a checksum is to be checked, the end of the file is
        withheld until it was found right.
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
                chunk = await asyncio.to_thread(os.pread, self.fd, min(CHUNK_BYTES, ready - start), start)
                if not chunk:
                    raise StorageError(self.url, f"the file ends at {start} of {self.size} bytes")
                start += len(chunk)
                yield chunk

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
