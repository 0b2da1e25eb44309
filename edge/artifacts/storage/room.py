"""Room for downloads: `eviction` decides what must go, it is deleted here, and the room kept for the download.

Where downloads in progress hold the room, `fetch.preemption` decides which of them has to end.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path

from edge.artifacts.errors import NoRoomError, StorageError, TooLargeError
from edge.artifacts.fetch.download import Download
from edge.artifacts.metrics import Counts
from edge.artifacts.storage.eviction import ShortageError, leaving
from edge.artifacts.storage.store import Store
from edge.artifacts.threads import in_thread

MAX_FILE_BYTES = 16 << 30
"""Bytes of one artifact: it has to fit into a machine's memory, and an upstream may announce what it likes."""

log = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
"""Bytes by which the share of a download of unknown length grows."""


GiveRoom = Callable[[Download, int, int], Awaitable[bool]]
"""Ends a download of another upstream for one that wants so many bytes, in a cache of a capacity in bytes; False if no
download has to end. Returns when the room of the ended download is free."""


class Allocator:
    """Keeps the cache within `budget` bytes (None: only within its disk)."""

    def __init__(self, store: Store, budget: int | None, pool: Executor, counts: Counts, give_room: GiveRoom) -> None:
        self._store = store
        self._budget = budget
        self._pool = pool
        self._counts = counts
        self._give_room = give_room

    async def shrink(self) -> None:
        """Bring what is there within the budget, which may be another than it was. Raises OSError."""
        try:
            names = leaving(self._store.occupants(), 0, self._store.room(self._budget))
        except ShortageError:  # the disk is full, and not with ours
            return
        await self._evict(names)

    async def allocate(self, download: Download) -> None:
        """Take the room for all of the file, of which the size is known. Raises NoRoomError, StorageError,
        TooLargeError.

        A full disk is found out here and not in the middle, and readers may map the whole file from now on.
        """
        size = download.size
        if size is None:
            return
        await self._claim(download, size)
        for once_more in (True, False):
            try:
                await in_thread(self._pool, os.posix_fallocate, download.fd, 0, size)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise StorageError(download.url, f"can't be written to the cache: {error.strerror}") from error
                # The file system keeps more for itself than it says; what else there is must go.
                if not once_more or not await self._evict_for(size):
                    raise NoRoomError(download.url, f"no room on the cache's disk for {size} bytes") from error
        self._store.claim(download.part, size, given=size)

    async def extend(self, download: Download, count: int) -> None:
        """Take the room for `count` more bytes of a file of unknown size. Raises as `allocate`."""
        needed = download.written + count
        if download.size is None and needed > self._store.claimed(download.part):
            await self._claim(download, needed + STEP_BYTES - needed % STEP_BYTES)

    async def _claim(self, download: Download, size: int) -> None:
        if size > MAX_FILE_BYTES:
            raise TooLargeError(
                download.url, f"it has {size} bytes or more, and {MAX_FILE_BYTES} is the most that is kept"
            )
        while True:
            need = size - self._store.claimed(download.part)
            try:
                room = self._store.room(self._budget)
            except OSError as error:
                raise StorageError(download.url, f"can't be written to the cache: {error.strerror}") from error
            try:
                names = leaving(self._store.occupants(), need, room)
                break
            except ShortageError as error:
                # Each turn one more download has ended.
                if not await self._give_room(download, size, room.capacity):
                    raise NoRoomError(download.url, str(error)) from None
        self._store.claim(download.part, size, given=download.written)
        await self._evict(names)

    async def _evict_for(self, need: int) -> bool:
        names = []
        for occupant in self._store.occupants():
            if need > 0 and not occupant.held:
                names.append(occupant.name)
                need -= occupant.size
        await self._evict(names)
        return bool(names)

    async def _evict(self, names: Iterable[str]) -> None:
        paths: list[Path] = []
        for name in names:
            log.info("artifact cache: %s makes room", self._store.label(name))
            paths += self._store.evict(name)
            self._counts.evictions += 1
        if paths:
            await in_thread(self._pool, _unlink_all, paths)


def _unlink_all(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
