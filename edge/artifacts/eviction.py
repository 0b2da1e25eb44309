"""Decides which download or file gives way when there are too many downloads, or when the cache is full. Pure.

**Number of downloads.** Each download takes a connection, a file and some memory, for an hour if its upstream is slow
enough. When one more is to begin, a download of the upstream with the most downloads ends, the slowest of these. So an
upstream that holds many open, or one file under many names, only harms itself.

**Room for downloads.** Downloads in progress can't be evicted. Each upstream has a share of the cache: a half, or less
if more than two upstreams download at once. An upstream holds more than its share only while no other upstream needs
room within its own share. So an upstream whose files have no end can't keep out the files of others.

**Files on disk.** Before a download begins, the least recently used files are deleted. A file that is being sent or
written is never deleted: deleting an open file frees no room, and the next machine would have to wait for it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from tink.errors import TinkedgeError

MAX_DOWNLOADS = 256

_HEAD_START_BYTES = 1 << 20
"""Bytes credited to each download for its first second, in which it may still wait for an answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A download that may give way: its URL, the received bytes, and its age in seconds."""

    url: str
    received: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return (self.received + _HEAD_START_BYTES) / (self.seconds + 1)


def download_to_preempt(candidates: Iterable[tuple[T, Candidate]]) -> T | None:
    """Return the download that ends so that another may begin; None if there are none."""
    known = list(candidates)
    busy = Counter(host_of(candidate.url) for _, candidate in known)
    order = {each: (-busy[host_of(candidate.url)], candidate.rate) for each, candidate in known}
    return min(order, key=order.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class RoomClaim:
    """The room that a download holds, in bytes. `is_bounded` is True if its size is known."""

    url: str
    size: int
    is_bounded: bool


def download_to_end(claims: Iterable[tuple[T, RoomClaim]], wanted: RoomClaim, capacity: int) -> T | None:
    """Return the download that ends so that another gets the room `wanted`; None if there is none.

    `claims` are those of the other downloads, `capacity` is the size of the cache in bytes. A download of unknown size,
    which may have no end, takes room only from others of unknown size.
    """
    known = [(each, claim, host_of(claim.url)) for each, claim in claims if claim.size > 0]
    host, held = host_of(wanted.url), Counter[str]()
    for _, claim, other in known:
        held[other] += claim.size
    share = capacity // max(2, len(held.keys() | {host}))
    if held[host] + wanted.size > share:
        return None
    candidates = {
        each: (held[other], not claim.is_bounded, claim.size)
        for each, claim, other in known
        if held[other] > share and (wanted.is_bounded or not claim.is_bounded)
    }
    return max(candidates, key=candidates.__getitem__, default=None)


def host_of(url: str) -> str:
    """Return the host of a URL."""
    return urlsplit(url).hostname or ""


FLOOR_BYTES = 1 << 30
"""Bytes of the disk that always stay free; on a small disk `FLOOR_SHARE` of it."""

FLOOR_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Occupant:
    """A file of the cache: a complete artifact or an unfinished download. `size` in bytes; `held` if it has readers."""

    name: str
    size: int
    held: bool


@dataclass(frozen=True, slots=True)
class Room:
    """The room of the cache, in bytes.

    budget: of the cache; None means no limit but the disk.
    used: by the cache.
    free, disk: free space and size of the disk.
    promised: reserved for downloads, but not yet allocated on the disk.
    """

    budget: int | None
    used: int
    free: int
    disk: int
    promised: int = 0

    @property
    def floor(self) -> int:
        """Bytes of the disk that stay free."""
        return min(FLOOR_BYTES, int(self.disk * FLOOR_SHARE))

    @property
    def capacity(self) -> int:
        """Bytes that the cache may have in all."""
        of_disk = self.used - self.promised + self.free - self.floor
        return max(of_disk if self.budget is None else min(of_disk, self.budget), 0)

    def short(self, need: int) -> int:
        """Return the number of bytes that must be freed for `need` more bytes."""
        of_disk = need + self.promised + self.floor - self.free
        of_budget = self.used + need - self.budget if self.budget is not None else 0
        return max(of_disk, of_budget, 0)


class ShortageError(TinkedgeError):
    """Not enough files may be deleted. The message names the limit and the remedy."""


def files_to_evict(occupants: Iterable[Occupant], need: int, room: Room) -> list[str]:
    """Return the names of the files to delete for `need` more bytes. `occupants`: the least recently used first.

    Raises ShortageError if deleting all of them would not be enough.
    """
    if room.budget is not None and need > room.budget:
        raise ShortageError(f"{need} bytes are more than the whole cache may hold, {room.budget} (see --cache-size)")
    short = room.short(need)
    names = []
    for occupant in occupants:
        if short <= 0:
            break
        if not occupant.held and occupant.size:
            names.append(occupant.name)
            short -= occupant.size
    if short <= 0:
        return names
    if room.budget is not None and room.used + need - room.budget > 0:
        limit = f"the cache may hold {room.budget} bytes (see --cache-size)"
    else:
        limit = f"its disk has {max(room.free - room.promised, 0)} bytes free, of which {room.floor} are to stay free"
    raise ShortageError(
        f"no room for {need} bytes: {limit}, and too little of what is there is not in use by machines and downloads"
    )
