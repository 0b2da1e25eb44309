"""The journeys of all machines, in memory: what `edge.journey.events` describes is kept here and handed on.

Every server records into one `Journey`: its bound method `record` is the `Recorder`, `note` the `NoteTaker`. From here
each event goes to the machine's own history, to the log (`edge.journey.lines`), into the counts that metrics are made
of (`edge.journey.metrics`), and to subscribers (`edge.journey.subscription`: `tinkedge watch`, the admin HTTP API's
stream, the lab's live view).

DHCP calls `note` for each packet, so what is done at once is little: the time and the note are put at the end of the
machine's `edge.journey.history`. They become a `JourneyEvent` when somebody reads them.

Everything is bounded, for much of what is recorded was said by strangers on the wire: so many events a machine, so many
machines, so many bytes in all. When the bytes are used up, machines that were quiet for long keep their last event
only; when the machines are too many, those are forgotten. The unregistered ones (heard, but nothing more) have a place
of their own, so that a flood of made-up addresses cannot push the journey of a real machine out. Not thread-safe:
record from the event loop's thread.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from edge.journey.changes import Changes, PendingChanges
from edge.journey.events import KINDS, JourneyEvent, Note, Notice, Outcome, Step, Value
from edge.journey.history import (
    Entry,
    History,
    Last,
    event,
    is_elsewhere,
    is_heard,
    kept_bytes,
    pack,
    packed_bytes,
)
from edge.journey.lines import Lines
from edge.journey.subscription import Subscription, Subscriptions

MEMORY_BYTES: Final = 128 * 1024 * 1024
"""What all events may take by default: 4 million prepared notes, or the installations of some 6,000 machines."""

_STRANGER_EVENTS = 20  # that it was heard once more is no news, and each time carries a manifest

# So many machines are looked at for a quiet one; then the next has to do. It bounds what one event may cost.
_LOOKS = 16

_LOOKED_AT = 100
"""So many of the last events of a machine say which edge it is with."""


@dataclass(frozen=True, slots=True)
class MachineSummary:
    """Where one machine is: its first and last sign of life (seconds since the epoch) and its last event."""

    mac: str
    first_seen: float
    last_seen: float
    last: JourneyEvent
    only_heard: bool
    """Whether nothing but `Step.SEEN` ever happened: the machine is not registered."""


class Journey:
    """Keeps the last `per_machine` events of the last `machines` machines, and of the last `strangers` unregistered."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        per_machine: int = 500,
        machines: int = 100_000,
        strangers: int = 256,
        memory_bytes: int = MEMORY_BYTES,
        began: float = 0.0,
    ) -> None:
        """`clock` gives seconds since the epoch; `memory_bytes` bounds the events of all machines together; `began` is
        when this run did: what is older was seen by an earlier one."""
        self._clock = clock
        self.began = began
        """When this run began, in seconds since the epoch."""
        self.hears_others = False
        """Whether other processes of the site have told what they saw."""
        self._per_machine = per_machine
        self._machines = machines
        self._strangers_limit = strangers
        self._histories: dict[str, History] = {}
        self._order: deque[str] = deque()  # the machines of _histories: whose turn it is to be looked at, see _quietest
        self._quiet: dict[str, Last] = {}  # those that keep their last event only, quiet for longest first
        self._strangers: dict[str, History] = {}  # heard last comes last
        self._memory_bytes = memory_bytes
        self._kept_bytes = 0
        self._counts = [0] * len(KINDS)
        self._sent_bytes = dict.fromkeys(Step, 0.0)
        self._lines = Lines(self._counts, clock)
        self._lines_until = self._lines.until
        self._subscriptions = Subscriptions()
        self._readers = self._subscriptions.open
        self._changes, self._stages = Changes(), Changes()
        self._subscribers, self._marked = self._changes.subscribers, self._changes.marked

    # --- taking in ---------------------------------------------------------------------------------------------------

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None:
        """Take in one event (`edge.journey.events.Recorder`). Never raises, never blocks."""
        note = Note(step, outcome, message, detail, kept_bytes=packed_bytes(message, detail))
        self.note(mac, note, pack(note))

    def note(self, mac: str, note: Note, entry: Entry | None = None) -> None:
        """Take in a prepared event (`edge.journey.events.NoteTaker`). Never raises, never blocks.

        `entry` is the form to keep it in, if it is not to be kept as it is.
        """
        now = self._clock()
        history = self._histories.get(mac)
        if history is None:
            history = self._admit(mac, note, now)
        history.times.append(now)
        history.append(entry or note)
        self._kept_bytes += note.kept_bytes
        if len(history) > history.limit:
            self._kept_bytes -= history.forget_oldest()
        if self._kept_bytes > self._memory_bytes:
            self._make_room()

        kind = note.kind
        count = self._counts[kind]
        if count < self._lines_until[kind]:
            self._lines.say(mac, note, now)
        else:
            self._lines.beyond(mac, note, now)
        self._counts[kind] = count + 1
        if note.size_bytes:
            self._sent_bytes[note.step] += note.size_bytes
        if self._subscribers:
            self._marked.add(mac)
        if note.is_stage:
            self._stages.mark(mac)
        if self._readers:
            self._subscriptions.push(event(mac, now, note))

    def take_in(self, mac: str, time: float, note: Note, *, now: bool = True) -> bool:
        """Take in what this process did not see happen: another one of the site did, or an earlier run.

        It has no line in the log and is counted nowhere: who has seen it says and counts it. `now`: it happens now, so
        that whoever asks for changes hears of it. False: it is known already.
        """
        history = self._histories.get(mac)
        if history is None:
            history = self._admit(mac, note, time)
        if not history.put(time, pack(note)):
            return False
        self._kept_bytes += note.kept_bytes
        if len(history) > history.limit:
            self._kept_bytes -= history.forget_oldest()
        if self._kept_bytes > self._memory_bytes:
            self._make_room()
        self.hears_others = self.hears_others or now
        if now:
            self._changes.mark(mac)
            if self._readers:
                self._subscriptions.push(event(mac, time, note))
        return True

    def announce(self, notice: Notice) -> None:
        """Hand on what concerns the edge itself; it is kept by whoever announces it."""
        if self._readers:
            self._subscriptions.push(notice)

    def flush(self) -> None:
        """Say now what the log is still owed: called when the program ends."""
        self._lines.end_period()

    # --- reading -----------------------------------------------------------------------------------------------------

    def subscribe(self, *, backlog: int = 1000) -> Subscription:
        """Events from now on, in order. At most `backlog` wait for the reader; then the oldest are dropped.

        The subscription ends when it is closed, or when the last reference to it goes.
        """
        return self._subscriptions.new(backlog)

    def changes(self) -> PendingChanges:
        """Hears from now on to which machines something happened, when it asks: for who looks at them once in a while.

        What is done for each event is to put the MAC into a set.
        """
        return self._changes.subscribe()

    def stages(self) -> PendingChanges:
        """The same, but only of machines whose boots have ended, or begun: `edge.journey.steps.STAGES`."""
        return self._stages.subscribe()

    def last_entry(self, mac: str) -> Last | None:
        """The last event of a machine as it is kept (`edge.journey.history`); None if nothing is known."""
        return self._last(mac)

    def last_sign(self, mac: str) -> Last | None:
        """Return the last sign of life of a machine as it is kept, or None if it was never heard.

        A finding about its silence is no sign, and neither is a Workflow that was created for it.
        """
        history = self._histories.get(mac) or self._strangers.get(mac)
        return history.last_sign() if history is not None else self._quiet.get(mac)

    def events(self, mac: str) -> list[JourneyEvent]:
        """What is known of one machine, oldest first; empty if nothing is."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        if history is not None:
            return list(history.events(mac))
        quiet = self._quiet.get(mac)
        return [event(mac, quiet.time, quiet.entry)] if quiet is not None else []

    def newest(self, mac: str, most: int, *, earlier: bool = False) -> list[JourneyEvent]:
        """The newest `most` events of a machine that tell how far its boots came, oldest first; without what it only
        printed or logged, but for the last of that.

        Without those of an earlier run, unless `earlier`: what happened between the two nobody has seen.
        """
        history = self._histories.get(mac) or self._strangers.get(mac)
        found = history.newest(mac, most) if history is not None else self.events(mac)
        return found if earlier else [event for event in found if event.time >= self.began]

    def after(self, mac: str, time: float, most: int) -> list[tuple[float, Entry]]:
        """The newest `most` entries of a machine that are younger than `time`, oldest first."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        if history is not None:
            return history.after(time, most)
        quiet = self._quiet.get(mac)
        return [(quiet.time, quiet.entry)] if quiet is not None and quiet.time > time else []

    def is_elsewhere(self, mac: str) -> bool:
        """Whether this machine is with another edge, by the last that is known of it."""
        return self.hears_others and is_elsewhere(entry for _, entry in reversed(self.after(mac, 0.0, _LOOKED_AT)))

    def earlier(self, mac: str, most: int) -> list[tuple[float, Entry]]:
        """Of the newest `most` entries of a machine those of an earlier run, oldest first."""
        return [(time, entry) for time, entry in self.after(mac, 0.0, most) if time < self.began]

    def past(self) -> Iterator[JourneyEvent]:
        """The events of all machines that are kept at the moment of the call, by time; made while they are read."""
        histories = (*self._histories.items(), *self._strangers.items())
        events = [history.events(mac) for mac, history in histories]
        events += [iter([event(mac, quiet.time, quiet.entry)]) for mac, quiet in self._quiet.items()]
        return heapq.merge(*events, key=lambda event: event.time)

    def macs(self) -> list[str]:
        """Of all machines heard of, the one heard last first."""
        seen = {mac: history.times[-1] for mac, history in (*self._histories.items(), *self._strangers.items())}
        seen |= {mac: quiet.time for mac, quiet in self._quiet.items()}
        return sorted(seen, key=seen.__getitem__, reverse=True)

    def summary(self, mac: str) -> MachineSummary | None:
        """Where this machine is; None if nothing is known of it."""
        last = self._last(mac)
        if last is None:
            return None
        shown = event(mac, last.time, last.entry)
        return MachineSummary(mac, last.first_seen, last.time, shown, mac in self._strangers)

    def machines(self) -> list[MachineSummary]:
        """All machines heard of, the one heard last first. Of many, ask `macs`, then `summary` for some at a time."""
        return [summary for mac in self.macs() if (summary := self.summary(mac)) is not None]

    def last_seen(self, mac: str) -> float | None:
        """When something happened to this machine last, in seconds since the epoch; None if nothing is known."""
        last = self._last(mac)
        return last.time if last is not None else None

    def was_heard(self, mac: str) -> bool:
        """Whether the machine itself has done something: what becomes of a Workflow for it, others do."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        if history is None:
            return mac in self._quiet
        return any(is_heard(entry) for entry in reversed(history))

    def counts(self) -> dict[tuple[Step, Outcome], int]:
        """How many events there were, by step and outcome."""
        return dict(zip(KINDS, self._counts, strict=True))

    def sent_bytes(self) -> dict[Step, float]:
        """How many bytes of files were sent to machines, by step."""
        return dict(self._sent_bytes)

    @property
    def kept_bytes(self) -> int:
        """About how much memory the events take now; machines take some hundred bytes each beside."""
        return self._kept_bytes

    # --- what is kept ------------------------------------------------------------------------------------------------

    def _last(self, mac: str) -> Last | None:
        history = self._histories.get(mac) or self._strangers.get(mac)
        return history.last() if history is not None else self._quiet.get(mac)

    def _admit(self, mac: str, note: Note, now: float) -> History:
        """Where an event goes whose machine is not among the histories: it is new, or was quiet, or is a stranger."""
        quiet = self._quiet.pop(mac, None)
        stranger = self._strangers.pop(mac, None)
        if note.step is Step.SEEN and quiet is None:
            return self._admit_stranger(mac, stranger or History(now, min(self._per_machine, _STRANGER_EVENTS)))
        history = History(now, self._per_machine)
        if quiet is not None:
            history.first_seen = quiet.first_seen
            history.times.append(quiet.time)
            history.append(quiet.entry)
        elif stranger is not None:  # with whom more happens now than being heard
            history.first_seen = stranger.first_seen
            history.times.extend(stranger.times)
            history.extend(stranger)
        while len(self._histories) + len(self._quiet) >= self._machines:
            self._forget_machine()
        history.length_seen = len(history) + 1  # when this event is in it
        self._histories[mac] = history
        self._order.append(mac)
        return history

    def _admit_stranger(self, mac: str, history: History) -> History:
        self._strangers[mac] = history
        while len(self._strangers) > self._strangers_limit:
            self._kept_bytes -= self._strangers.pop(next(iter(self._strangers))).forget_oldest(keep=0)
        return history

    def _make_room(self) -> None:
        """Cut quiet machines down to their last event until there is room."""
        while self._kept_bytes > self._memory_bytes:
            if self._order:
                mac = self._quietest()
                history = self._histories.pop(mac)
                self._kept_bytes -= history.forget_oldest(keep=1)
                self._quiet[mac] = history.last()
            elif self._quiet:
                self._forget_machine()
            else:
                return

    def _forget_machine(self) -> None:
        if self._quiet:
            self._kept_bytes -= kept_bytes(self._quiet.pop(next(iter(self._quiet))).entry)
        else:
            self._kept_bytes -= self._histories.pop(self._quietest()).forget_oldest(keep=0)

    def _quietest(self) -> str:
        """Take a machine out of the order that was quiet for long, though perhaps not for longest.

        They are asked in turn, and those that were active since they were asked last have another turn ("second
        chance"): so nothing has to be kept in order of activity while packets arrive.
        """
        for _ in range(_LOOKS):
            history = self._histories[self._order[0]]
            if history.length_seen == len(history):
                break
            history.length_seen = len(history)
            self._order.rotate(-1)
        return self._order.popleft()
