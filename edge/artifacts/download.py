"""A file that is being filled, and the room that the cache gives it.

`Download` is the file, its checksum so far, and the machines that read it meanwhile. `edge.artifacts.flight` writes
the bytes that the upstream sends; readers wait for the file to grow. They get the last bytes only after `release`, when
the checksum is known to be right: sent bytes can't be taken back, but a file without its end does not boot.

`Allocator` makes room before the bytes arrive. `edge.artifacts.eviction` decides which files are deleted, and which
download ends if other downloads hold the room.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts.artifact import (
    Artifact,
    ArtifactError,
    Counts,
    GrowingFile,
    NoRoomError,
    Source,
    StorageError,
    TooLargeError,
    in_thread,
)
from edge.artifacts.eviction import ShortageError, files_to_evict
from edge.artifacts.store import ArtifactStore, Unfinished
from edge.artifacts.upstream import UpstreamResponse

log = logging.getLogger(__name__)

TAIL_BYTES = 1 << 16
"""Bytes at the end of a file that are withheld until the checksum was verified."""


class Download(GrowingFile):
    """A file that is being filled from an upstream or a peer.

    hashed: number of bytes in the checksum, which may lag behind by a chunk.
    resumed: number of bytes that an earlier download had brought.
    etag, last_modified, validator: identify the upstream's version.
    source: the origin of the bytes.
    digest: that of the hashed bytes. Must not be read while `hash` is running.
    """

    def __init__(self, url: str, pin: str, version: str, part: Path, fd: int) -> None:
        """Take over `fd`, the open file `part`."""
        super().__init__(url, fd)
        self.pin = pin
        self.version = version
        self.part = part
        self.etag = self.last_modified = self.validator = ""
        self.hashed = self.resumed = 0
        self.source = Source.UPSTREAM
        self.digest = hashlib.sha256()
        self._end_allowed = False

    # --- filling ---

    def describe(self, answer: UpstreamResponse) -> None:
        """Copy size and validators from the upstream's headers."""
        self.size = answer.size
        self.etag, self.last_modified, self.validator = answer.etag, answer.last_modified, answer.validator

    def go_on_from(self, unfinished: Unfinished, digest: hashlib._Hash) -> None:
        """Continue an unfinished download. `digest` is that of its bytes."""
        self.size, self.validator = unfinished.size, unfinished.validator
        self.etag, self.last_modified = unfinished.etag, unfinished.last_modified
        self.written = self.hashed = self.resumed = unfinished.received
        self.digest = digest

    def hash(self, chunk: bytes) -> None:
        """Add a written chunk to the checksum. Takes long: call it in a thread, in the order of the chunks."""
        self.digest.update(chunk)
        self.hashed += len(chunk)

    def release(self) -> None:
        """Let readers read the end of the file: its checksum is right, or there is none."""
        self._end_allowed = True
        self.notify()

    def withhold(self) -> None:
        """Withhold the end of the file again: another edge sends it and has not signed it yet."""
        self._end_allowed = False

    @property
    def readable(self) -> int:
        """The number of bytes that readers may have."""
        if self._end_allowed:
            return self.written
        return max(0, min(self.written, self.size - TAIL_BYTES)) if self.size is not None else 0

    def end(self, failure: ArtifactError | None) -> None:
        """Close the file after the last byte or a failure. Readers keep their own descriptors."""
        self.ended = True
        self.failure = failure
        os.close(self.fd)
        self.fd = -1
        self.notify()

    def unfinished(self) -> Unfinished | None:
        """Return the state from which the download could continue, or None. Must not be called during `hash`."""
        # A download with all bytes can't continue: a range request needs at least one byte.
        if not self.validator or self.size is None or not 0 < self.hashed < self.size:
            return None
        validators = self.etag, self.last_modified, self.validator
        digest = self.digest.hexdigest()
        return Unfinished(self.url, self.part.name, self.size, self.hashed, digest, *validators, pin=self.pin)

    # --- reading ---

    def reader(self) -> Artifact:
        """Return a reader with its own descriptor. The download must have a known size and must not have ended."""
        size = self.size if self.size is not None else self.written
        self.readers += 1

        def released() -> None:
            self.readers -= 1

        return Artifact(self.url, os.dup(self.fd), size, self.version, self.source, self, released=released)


MAX_FILE_BYTES = 16 << 30
"""Size of one artifact. It has to fit into a machine's memory, and an upstream may announce any size."""


STEP_BYTES = 4 << 20
"""Bytes by which the reservation of a download of unknown size grows."""


GiveRoom = Callable[[Download, int, int], Awaitable[bool]]
"""`await give_room(download, size, capacity)` ends another upstream's download for one that needs `size` bytes in a
cache of `capacity` bytes. It returns after the room is free, or False if no download has to end."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """Keeps the cache within `budget` bytes (None: within its disk)."""

    store: ArtifactStore
    budget: int | None
    pool: Executor
    counts: Counts
    give_room: GiveRoom

    async def shrink(self) -> None:
        """Evict files beyond the budget, which may have changed since the last start. Raises OSError."""
        try:
            names = files_to_evict(self.store.occupants(), 0, self.store.room(self.budget))
        except ShortageError:  # the disk is full with other files
            return
        await self._evict(names)

    async def allocate(self, download: Download) -> None:
        """Allocate the whole file, if its size is known. Raises NoRoomError, StorageError, TooLargeError."""
        size = download.size
        if size is None:
            return
        # So a full disk is found now and not in the middle, and readers may map the whole file.
        await self._claim(download, size)
        for once_more in (True, False):
            try:
                await in_thread(self.pool, os.posix_fallocate, download.fd, 0, size)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise StorageError(download.url, f"can't be written to the cache: {error.strerror}") from error
                # The file system needs more room than it reports: evict everything else.
                if not once_more or not await self._evict(
                    each.name for each in self.store.occupants() if not each.held
                ):
                    raise NoRoomError(download.url, f"no room on the cache's disk for {size} bytes") from error
        self.store.claim(download.part, size, given=size)

    async def extend(self, download: Download, count: int) -> None:
        """Reserve `count` more bytes for a file of unknown size. Raises the same errors as `allocate`."""
        needed = download.written + count
        if download.size is None and needed > self.store.claimed(download.part):
            await self._claim(download, needed + STEP_BYTES - needed % STEP_BYTES)

    async def _claim(self, download: Download, size: int) -> None:
        if size > MAX_FILE_BYTES:
            raise TooLargeError(
                download.url, f"it has {size} bytes or more, and {MAX_FILE_BYTES} is the most that is kept"
            )
        while True:
            need = size - self.store.claimed(download.part)
            try:
                room = self.store.room(self.budget)
            except OSError as error:
                raise StorageError(download.url, f"can't be written to the cache: {error.strerror}") from error
            try:
                names = files_to_evict(self.store.occupants(), need, room)
                break
            except ShortageError as error:
                # One more download ends in each turn of this loop.
                if not await self.give_room(download, size, room.capacity):
                    raise NoRoomError(download.url, str(error)) from None
        self.store.claim(download.part, size, given=download.written)
        await self._evict(names)

    async def _evict(self, names: Iterable[str]) -> bool:
        """Delete files, and return True if there were any."""
        paths: list[Path] = []
        for name in list(names):
            log.info("artifact cache: %s is evicted", self.store.label(name))
            paths += self.store.evict(name)
            self.counts.evictions += 1

        def unlink_all() -> None:
            for path in paths:
                path.unlink(missing_ok=True)

        await in_thread(self.pool, unlink_all)
        return bool(paths)
