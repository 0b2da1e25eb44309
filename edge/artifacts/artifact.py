"""What a machine's request holds while it is being sent a kernel or initrd."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol


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
    """What fills a file: `edge.artifacts.fetch.download` or `passing`."""

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
