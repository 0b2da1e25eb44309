"""The events of one machine: their compact form in memory (`History`), and their form in files and messages (`plain`).

In memory an event is a time and an `Entry`. Times are numbers in an array. An entry is a prepared note, which many
events share, or a plain tuple of texts and numbers. The garbage collector untracks such tuples after their first
collection (CPython's gcmodule.c, "untrack"). It would visit millions of objects each time, which takes a tenth of a
second.

In a file, or for other edges, an event is a list:

    [time, mac, step, outcome, message, {detail}]

It may come from another release, a damaged disk or another host. `read` rejects invalid lists, and cuts long texts like
`edge.journey.events.Note`. Pure.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple

from edge.journey.events import (
    KINDS,
    MAX_DETAIL,
    MAX_MESSAGE,
    REPORTED_BY_API,
    JourneyEvent,
    Milestone,
    Note,
    Outcome,
    Step,
    Value,
)
from tink.mac import is_mac

Entry = Note | tuple[Any, ...]
"""A prepared note, or a tuple of `pack`: kind, bytes, message, milestone, then name and value of each detail."""

_PRINTED = frozenset(
    number
    for number, (step, outcome) in enumerate(KINDS)
    if step in (Step.ACTION, Step.LOG) and outcome is Outcome.INFO
)

# Memory of a packed event and of each detail in CPython 3.11 on 64 bits, without the characters of their texts.
_PACKED_BYTES = 150
_DETAIL_BYTES = 56


class Last(NamedTuple):
    """The last event of a machine, and the time of its first."""

    first_seen: float
    time: float
    entry: Entry


class History(list[Any]):
    """The entries of a machine, oldest first."""

    __slots__ = ("_keep", "first_seen", "length_seen", "limit", "times")

    def __init__(self, first_seen: float, keep: int) -> None:
        """`keep` is the number of events to show."""
        super().__init__()
        self.times = array("d")
        self.first_seen = first_seen
        self._keep = keep
        self.limit = keep + keep // 4
        """Length above which the caller calls `forget_oldest`, which drops many events at once."""
        self.length_seen = 0
        """Length at the last check for activity: if it differs now, the machine was active."""

    def events(self, mac: str) -> Iterator[JourneyEvent]:
        """Return the newest `keep` events at the time of the call; each is made when it is read."""
        return map(event, repeat(mac), self.times[-self._keep :], self[-self._keep :])

    def newest(self, mac: str, most: int) -> list[JourneyEvent]:
        """Return the newest `most` events that show the progress of a boot, oldest first.

        Of the output of actions, and of log lines, only the last event is included.
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
        """Insert an entry by its time. Return False if the same entry is there already."""
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
        """Return the newest `most` entries after `time`, oldest first."""
        times = self.times
        if len(times) > 1 and times[-2] <= time < times[-1]:
            return [(times[-1], self[-1])]
        begin = max(bisect_right(times, time), len(self) - most)
        return list(zip(self.times[begin:], self[begin:], strict=True))

    def last(self) -> Last:
        """Return the last event."""
        return Last(self.first_seen, self.times[-1], self[-1])

    def last_sign(self) -> Last | None:
        """Return the last event that shows the machine's progress, or None if it was never heard (`is_heard`).

        A Workflow that runs or ends shows the progress of a machine that was heard. A Workflow that was only created or
        scheduled does not, and neither does a diagnosis or a report of BMC control or discovery.
        """
        ended: Last | None = None
        for index in range(len(self) - 1, -1, -1):
            entry = self[index]
            if is_finding(entry) or step_of(entry) in REPORTED_BY_API:
                continue
            if step_of(entry) is not Step.WORKFLOW:
                return ended or Last(self.first_seen, self.times[index], entry)
            if ended is None and milestone_number(entry):
                ended = Last(self.first_seen, self.times[index], entry)
        return None

    def forget_oldest(self, keep: int | None = None) -> int:
        """Drop all but the newest `keep` events (default: the number to show) and return the freed bytes."""
        end = len(self) - (self._keep if keep is None else keep)
        freed = sum(map(kept_bytes, self[:end]))
        del self[:end], self.times[:end]
        return freed


def pack(note: Note) -> Entry:
    """Return the compact form of a note that is used by one event only."""
    # A plain number, because the garbage collector visits members of enumerations.
    packed: list[Any] = [note.kind, note.kept_bytes, note.message, int(note.milestone or 0)]
    for detail in note.detail.items():
        packed += detail
    return tuple(packed)


def packed_bytes(message: str, detail: dict[str, Value]) -> int:
    """Return the approximate memory of a packed event."""
    texts = sum(min(len(value), MAX_DETAIL) for value in detail.values() if isinstance(value, str))
    return _PACKED_BYTES + _DETAIL_BYTES * len(detail) + min(len(message), MAX_MESSAGE) + texts


def is_finding(entry: Entry) -> bool:
    """Return True if an entry is a diagnosis of an edge, and not an action of the machine."""
    return outcome_of(entry) is Outcome.WARNING or RULE in (entry.detail if isinstance(entry, Note) else entry[4::2])


def is_heard(entry: Entry) -> bool:
    """Return True if the machine itself caused the entry.

    Other components change its Workflow and its power and approve it, and the edge makes its diagnoses.
    """
    return step_of(entry) not in _OF_OTHERS and not is_finding(entry)


def kept_bytes(entry: Entry) -> int:
    """Return the approximate memory of an entry."""
    if isinstance(entry, Note):
        return entry.kept_bytes
    size: int = entry[1]
    return size


def milestone(entry: Entry) -> Milestone | None:
    """Return the milestone that an entry reaches, or None."""
    if isinstance(entry, Note):
        return entry.milestone
    return Milestone(entry[3]) if entry[3] else None


def is_printed(entry: Entry) -> bool:
    """Return True for output of an action or a log line of the machine, of which there may be many."""
    is_output = (entry.kind if isinstance(entry, Note) else entry[0]) in _PRINTED
    return is_output and not milestone_number(entry) and not is_finding(entry)


def milestone_number(entry: Entry) -> int:
    """Return the milestone as a number, or 0."""
    if isinstance(entry, Note):
        return int(entry.milestone or 0)
    number: int = entry[3]
    return number


def outcome_of(entry: Entry) -> Outcome:
    """Return the outcome of an entry."""
    return entry.outcome if isinstance(entry, Note) else KINDS[entry[0]][1]


def step_of(entry: Entry) -> Step:
    """Return the step of an entry."""
    return entry.step if isinstance(entry, Note) else KINDS[entry[0]][0]


def message_of(entry: Entry) -> str:
    """Return the message of an entry."""
    if isinstance(entry, Note):
        return entry.message
    message: str = entry[2]
    return message


def detail_of(entry: Entry) -> Iterable[tuple[str, Value]]:
    """Return the details of an entry."""
    if isinstance(entry, Note):
        return entry.detail.items()
    return zip(entry[4::2], entry[5::2], strict=True)


RULE: Final = "rule"
"""The detail of a diagnosis that names its rule (`edge.journey.expectations`)."""
SEEN_BY: Final = "seen_by"
"""The detail that names the other process of the site which recorded the event."""
PLACE: Final = "seen_by_kind"
"""The detail with the kind of that process: EDGE or SERVER."""
EDGE: Final[Literal["edge"]] = "edge"
SERVER: Final[Literal["server"]] = "server"
_OF_OTHERS: Final = REPORTED_BY_API | {Step.WORKFLOW}
_NOT_WITH_AN_EDGE: Final = _OF_OTHERS | {Step.AGENT, Step.ACTION}


def is_elsewhere(newest_first: Iterable[Entry]) -> bool:
    """Return True if the machine's last step at an edge was at another edge.

    Steps of agents and Workflows belong to no edge, and diagnoses are not steps of the machine.
    """
    for entry in newest_first:
        if step_of(entry) not in _NOT_WITH_AN_EDGE and not is_finding(entry):
            return dict(detail_of(entry)).get(PLACE) == EDGE
    return False


def is_from_elsewhere(entry: Entry) -> bool:
    """Return True if another process of the site recorded the entry."""
    return SEEN_BY in (entry.detail if isinstance(entry, Note) else entry[4::2])


def is_same(one: Entry, other: Entry) -> bool:
    """Return True if two entries of the same time have the same step, outcome and message."""
    alike = step_of(one) is step_of(other) and outcome_of(one) is outcome_of(other)
    return alike and message_of(one) == message_of(other)


def event(mac: str, time: float, entry: Entry) -> JourneyEvent:
    """Return the event of an entry."""
    if isinstance(entry, Note):
        return JourneyEvent(time, mac, entry.step, entry.outcome, entry.message, entry.detail)
    step, outcome = KINDS[entry[0]]
    return JourneyEvent(time, mac, step, outcome, entry[2], dict(zip(entry[4::2], entry[5::2], strict=True)))


MAX_DETAILS: Final = 40
"""Maximum number of details of an event."""
MAX_NAME: Final = 64


class Happened(NamedTuple):
    """An event of a machine; `time` is in seconds since the epoch."""

    time: float
    mac: str
    entry: Entry


def plain(happened: Happened) -> list[Any]:
    """Return the event as a list to write or send."""
    time, mac, entry = happened
    detail = dict(detail_of(entry))
    return [time, mac, step_of(entry).value, outcome_of(entry).value, message_of(entry), detail]


def read(found: object) -> tuple[float, str, Note] | None:
    """Parse a list of `plain` into time, MAC and note, or return None if it is not valid."""
    if not isinstance(found, list) or len(found) != 6:
        return None
    time, mac, step, outcome, message, detail = found
    if not _is_number(time) or not 0 <= time < 1e11 or not isinstance(mac, str) or not is_mac(mac):
        return None
    if not isinstance(message, str) or not isinstance(detail, dict):
        return None
    try:
        kind = Step(step), Outcome(outcome)
    except ValueError:
        return None
    details = _details(detail)
    return float(time), mac, Note(*kind, message, details, kept_bytes=packed_bytes(message[:MAX_MESSAGE], details))


def _details(found: dict[Any, Any]) -> dict[str, Value]:
    kept: dict[str, Value] = {}
    for name, value in found.items():
        if len(kept) >= MAX_DETAILS:
            break
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_NAME:
            continue
        if isinstance(value, str):
            kept[name] = value[:MAX_DETAIL]
        elif _is_number(value):
            kept[name] = value
    return kept


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63
