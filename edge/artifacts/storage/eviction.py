"""What leaves the cache when there is no room: a pure decision, made before a download begins.

Least recently used first, and never what a machine is being sent or a download writes to: deleting a file that is open
frees nothing, and the next machine would have to wait for it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
