"""Which download gives way when there are as many as there may be, or when the cache is full. Pure decisions.

**Their number**, when one more is to begin. Each download takes a connection, a file and some memory, for an hour if
its upstream is slow enough. A download of the upstream with the most of them ends, and of these the slowest. So an
upstream that holds many open, or the same one under many names, is in its own way only.

**Room**, when the cache is full of downloads in progress, which can't be evicted. Each upstream has a share of the
cache: a half, or less if more than two upstreams download at once. Above its share an upstream holds room only while no
other upstream needs room within its own. So an upstream whose files have no end can't keep the files of others away.

What leaves the cache when there is no room: a pure decision, made before a download begins.

Least recently used first, and never what a machine is being sent or a download writes to: deleting a file that is open
frees nothing, and the next machine would have to wait for it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

MAX_DOWNLOADS = 256

_HEAD_START_BYTES = 1 << 20
"""Bytes that each is taken to have brought in its first second, when it may still be waiting for an answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A download: of which URL, how many bytes it has brought, in how many seconds."""

    url: str
    received: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return (self.received + _HEAD_START_BYTES) / (self.seconds + 1)


def preempted(candidates: Iterable[tuple[T, Candidate]]) -> T | None:
    """Which of them; None if there are none."""
    known = list(candidates)
    busy = Counter(host_of(candidate.url) for _, candidate in known)
    order = {each: (-busy[host_of(candidate.url)], candidate.rate) for each, candidate in known}
    return min(order, key=order.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class Claim:
    """The room that a download holds, in bytes. `is_bounded`: its size is known."""

    url: str
    size: int
    is_bounded: bool


def giving_room(claims: Iterable[tuple[T, Claim]], wanted: Claim, capacity: int) -> T | None:
    """Return the download that has to end so that the one that wants `wanted` in all gets room; None if there is none.

    `claims` are those of the other downloads, `capacity` the bytes that the cache may hold. A download of unknown size
    takes room from others of unknown size only: its own may have no end.
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
    """The name or address in a URL."""
    return urlsplit(url).hostname or ""


FLOOR_BYTES = 1 << 30
"""Bytes that stay free on the disk whatever the budget is, or `FLOOR_SHARE` of the disk if that is less."""

FLOOR_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Occupant:
    """A file of the cache: a whole artifact, or a download that was broken off. `size` in bytes on disk."""

    name: str
    size: int
    held: bool


@dataclass(frozen=True, slots=True)
class Room:
    """What there is, in bytes: the cache's budget (None: none) and what is used of it, the disk's free space and size.

    `promised`: of downloads that have begun, and that the disk has not given them yet.
    """

    budget: int | None
    used: int
    free: int
    disk: int
    promised: int = 0

    @property
    def floor(self) -> int:
        """What is to stay free on the disk."""
        return min(FLOOR_BYTES, int(self.disk * FLOOR_SHARE))

    @property
    def capacity(self) -> int:
        """Bytes that the cache may hold in all."""
        of_disk = self.used - self.promised + self.free - self.floor
        return max(of_disk if self.budget is None else min(of_disk, self.budget), 0)

    def short(self, need: int) -> int:
        """How many bytes must go before `need` bytes have room; 0 if they have."""
        of_disk = need + self.promised + self.floor - self.free
        of_budget = self.used + need - self.budget if self.budget is not None else 0
        return max(of_disk, of_budget, 0)


class ShortageError(Exception):
    """There is not enough that may go. The message says what is full and what to do."""


def leaving(occupants: Iterable[Occupant], need: int, room: Room) -> list[str]:
    """The names of what must go, of `occupants` (least recently used first), for `need` more bytes. Raises
    ShortageError, and nothing need go then.
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
