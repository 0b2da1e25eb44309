"""The events of one machine in little memory: there may be millions, and the garbage collector is to pass them by.

An event is a time and an `Entry`. Times are numbers in an array. An entry is a prepared note, which many events have in
common, or a plain tuple of texts and numbers: such tuples the collector gives up after its first look (CPython's
gcmodule.c, "untrack"), while it would visit objects each time, which takes a tenth of a second when there are many.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple

from edge.journey.events import KINDS, MAX_DETAIL, MAX_MESSAGE, JourneyEvent, Note, Value
from edge.journey.steps import Milestone, Outcome, Step

Entry = Note | tuple[Any, ...]
"""A prepared note; or what `pack` made: kind, bytes, message, milestone, then name and value of each detail."""

_PRINTED = frozenset(
    number
    for number, (step, outcome) in enumerate(KINDS)
    if step in (Step.ACTION, Step.LOG) and outcome is Outcome.INFO
)

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

    def newest(self, mac: str, most: int) -> list[JourneyEvent]:
        """Return the newest `most` events that tell how far a boot is, oldest first.

        Of what actions print, and of what the machine logs, only the last event is among them.
        """
        found: list[JourneyEvent] = []
        printed: set[Step] = set()
        for time, entry in zip(reversed(self.times), reversed(self), strict=True):
            if is_printed(entry):
                if step_of(entry) in printed:
                    continue
                printed.add(step_of(entry))
            found.append(event(mac, time, entry))
            if len(found) >= most:
                break
        found.reverse()
        return found

    def put(self, time: float, entry: Entry) -> bool:
        """Take in what happened at this time, maybe before others; False: it is there already."""
        at = bisect_right(self.times, time)
        while at and self.times[at - 1] == time:
            if is_same(self[at - 1], entry):
                return False
            at -= 1
        at = bisect_right(self.times, time)
        self.times.insert(at, time)
        self.insert(at, entry)
        self.first_seen = min(self.first_seen, time)
        return True

    def after(self, time: float, most: int) -> list[tuple[float, Entry]]:
        """The newest `most` entries that are younger than `time`, oldest first."""
        times = self.times
        if len(times) > 1 and times[-2] <= time < times[-1]:
            return [(times[-1], self[-1])]
        begin = max(bisect_right(times, time), len(self) - most)
        return list(zip(self.times[begin:], self[begin:], strict=True))

    def last(self) -> Last:
        """Its last event."""
        return Last(self.first_seen, self.times[-1], self[-1])

    def last_sign(self) -> Last | None:
        """Return the last event that tells where the machine is, or None if the machine was never heard (`is_heard`).

        A Workflow that runs or ends tells that of a machine that was heard; one that was only created or scheduled
        does not, and neither does a finding.
        """
        ended: Last | None = None
        for index in range(len(self) - 1, -1, -1):
            entry = self[index]
            if is_finding(entry):
                continue
            if step_of(entry) is not Step.WORKFLOW:
                return ended or Last(self.first_seen, self.times[index], entry)
            if ended is None and milestone_number(entry):
                ended = Last(self.first_seen, self.times[index], entry)
        return None

    def forget_oldest(self, keep: int | None = None) -> int:
        """Keep the newest `keep` events (default: those that are shown); gives the bytes of the others."""
        end = len(self) - (self._keep if keep is None else keep)
        freed = sum(map(kept_bytes, self[:end]))
        del self[:end], self.times[:end]
        return freed


def pack(note: Note) -> Entry:
    """`note`, that is kept for one event only, in little memory."""
    # A plain number: a member of an enumeration is an object that the collector visits.
    packed: list[Any] = [note.kind, note.kept_bytes, note.message, int(note.milestone or 0)]
    for detail in note.detail.items():
        packed += detail
    return tuple(packed)


def packed_bytes(message: str, detail: dict[str, Value]) -> int:
    """How much memory it will take, about."""
    texts = sum(min(len(value), MAX_DETAIL) for value in detail.values() if isinstance(value, str))
    return _PACKED_BYTES + _DETAIL_BYTES * len(detail) + min(len(message), MAX_MESSAGE) + texts


def is_finding(entry: Entry) -> bool:
    """Return whether an entry is what an edge found out about the machine's silence: nothing that the machine did."""
    return outcome_of(entry) is Outcome.WARNING or RULE in (entry.detail if isinstance(entry, Note) else entry[4::2])


def is_heard(entry: Entry) -> bool:
    """Return whether the machine did something by this entry.

    What happens to a Workflow for it, others do, and findings about its silence are the edge's.
    """
    return step_of(entry) is not Step.WORKFLOW and not is_finding(entry)


def kept_bytes(entry: Entry) -> int:
    """How much memory an entry takes, about."""
    if isinstance(entry, Note):
        return entry.kept_bytes
    size: int = entry[1]
    return size


def milestone(entry: Entry) -> Milestone | None:
    """How far a boot has come by this entry, if it says so."""
    if isinstance(entry, Note):
        return entry.milestone
    return Milestone(entry[3]) if entry[3] else None


def is_printed(entry: Entry) -> bool:
    """Whether it is what an action printed, or a machine logged: there may be much of it."""
    is_output = (entry.kind if isinstance(entry, Note) else entry[0]) in _PRINTED
    return is_output and not milestone_number(entry) and not is_finding(entry)


def milestone_number(entry: Entry) -> int:
    """The same as a number; 0: none."""
    if isinstance(entry, Note):
        return int(entry.milestone or 0)
    number: int = entry[3]
    return number


def outcome_of(entry: Entry) -> Outcome:
    """How it went."""
    return entry.outcome if isinstance(entry, Note) else KINDS[entry[0]][1]


def step_of(entry: Entry) -> Step:
    """Which step it was."""
    return entry.step if isinstance(entry, Note) else KINDS[entry[0]][0]


def message_of(entry: Entry) -> str:
    """What is said of it."""
    if isinstance(entry, Note):
        return entry.message
    message: str = entry[2]
    return message


def detail_of(entry: Entry) -> Iterable[tuple[str, Value]]:
    """The facts behind it."""
    if isinstance(entry, Note):
        return entry.detail.items()
    return zip(entry[4::2], entry[5::2], strict=True)


RULE: Final = "rule"
"""The detail of a finding: which rule it is of (`edge.journey.expectations`)."""
SEEN_BY: Final = "seen_by"
"""The detail that says which other process of the site has seen it: no event of this process has it."""
PLACE: Final = "seen_by_kind"
"""And what that is: EDGE or SERVER."""
EDGE: Final[Literal["edge"]] = "edge"
SERVER: Final[Literal["server"]] = "server"
_NOT_WITH_AN_EDGE: Final = frozenset({Step.AGENT, Step.WORKFLOW, Step.ACTION})


def is_elsewhere(newest_first: Iterable[Entry]) -> bool:
    """Whether the last that a machine did with an edge, it did with another one. Agents and Workflows are everybody's,
    and what was said of its silence the machine did not do."""
    for entry in newest_first:
        if step_of(entry) not in _NOT_WITH_AN_EDGE and not is_finding(entry):
            return dict(detail_of(entry)).get(PLACE) == EDGE
    return False


def is_from_elsewhere(entry: Entry) -> bool:
    """Whether another process of the site has seen it."""
    return SEEN_BY in (entry.detail if isinstance(entry, Note) else entry[4::2])


def is_same(one: Entry, other: Entry) -> bool:
    """Whether two entries of one moment tell the same."""
    alike = step_of(one) is step_of(other) and outcome_of(one) is outcome_of(other)
    return alike and message_of(one) == message_of(other)


def event(mac: str, time: float, entry: Entry) -> JourneyEvent:
    """An entry as it is shown."""
    if isinstance(entry, Note):
        return JourneyEvent(time, mac, entry.step, entry.outcome, entry.message, entry.detail)
    step, outcome = KINDS[entry[0]]
    return JourneyEvent(time, mac, step, outcome, entry[2], dict(zip(entry[4::2], entry[5::2], strict=True)))
