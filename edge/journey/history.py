"""The events of one machine in little memory: there may be millions, and the garbage collector is to pass them by.

An event is a time and an `Entry`. Times are numbers in an array. An entry is a prepared note, which many events have in
common, or a plain tuple of texts and numbers: such tuples the collector gives up after its first look (CPython's
gcmodule.c, "untrack"), while it would visit objects each time, which takes a tenth of a second when there are many.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple

from edge.journey.events import KINDS, MAX_DETAIL, MAX_MESSAGE, JourneyEvent, Note, Value

Entry = Note | tuple[Any, ...]
"""A prepared note; or what `pack` made: kind, bytes, message, then name and value of each detail."""

# What a packed event takes in CPython 3.11 on 64 bits, beside the characters of its texts: itself, and each detail.
_PACKED_BYTES = 150
_DETAIL_BYTES = 56


class Last(NamedTuple):
    """The last event of a machine, and when it was heard first."""

    first_seen: float
    time: float
    entry: Entry


class History(list[Any]):
    """The entries of a machine, oldest first."""

    __slots__ = ("_keep", "first_seen", "length_seen", "limit", "times")

    def __init__(self, first_seen: float, keep: int) -> None:
        """It shows the newest `keep` events."""
        super().__init__()
        self.times = array("d")
        self.first_seen = first_seen
        self._keep = keep
        self.limit = keep + keep // 4
        """Beyond it, `forget_oldest` is due: many go at once."""
        self.length_seen = 0
        """How long it was when it was looked at last: since then something has happened, or nothing."""

    def events(self, mac: str) -> Iterator[JourneyEvent]:
        """Those that are shown at the moment of the call; made one by one."""
        return map(event, repeat(mac), self.times[-self._keep :], self[-self._keep :])

    def last(self) -> Last:
        """Its last event."""
        return Last(self.first_seen, self.times[-1], self[-1])

    def forget_oldest(self, keep: int | None = None) -> int:
        """Keep the newest `keep` events (default: those that are shown); gives the bytes of the others."""
        end = len(self) - (self._keep if keep is None else keep)
        freed = sum(map(kept_bytes, self[:end]))
        del self[:end], self.times[:end]
        return freed


def pack(note: Note) -> Entry:
    """`note`, that is kept for one event only, in little memory."""
    packed: list[Any] = [note.kind, note.kept_bytes, note.message]
    for detail in note.detail.items():
        packed += detail
    return tuple(packed)


def packed_bytes(message: str, detail: dict[str, Value]) -> int:
    """How much memory it will take, about."""
    texts = sum(min(len(value), MAX_DETAIL) for value in detail.values() if isinstance(value, str))
    return _PACKED_BYTES + _DETAIL_BYTES * len(detail) + min(len(message), MAX_MESSAGE) + texts


def kept_bytes(entry: Entry) -> int:
    """How much memory an entry takes, about."""
    if isinstance(entry, Note):
        return entry.kept_bytes
    size: int = entry[1]
    return size


def event(mac: str, time: float, entry: Entry) -> JourneyEvent:
    """An entry as it is shown."""
    if isinstance(entry, Note):
        return JourneyEvent(time, mac, entry.step, entry.outcome, entry.message, entry.detail)
    step, outcome = KINDS[entry[0]]
    return JourneyEvent(time, mac, step, outcome, entry[2], dict(zip(entry[3::2], entry[4::2], strict=True)))
