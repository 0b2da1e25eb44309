"""The journeys of all machines, in memory: `Journey` stores the events and passes them on.

Every server records into one `Journey`: its bound method `record` is the `Recorder`, `note` the `NoteTaker`. Each event
goes to the machine's history (`edge.journey.history`), to the log (`Lines`), into the counts for the metrics
(`edge.http.admin`), and to subscribers (`edge.journey.subscription`: `tinkedge watch`, the admin HTTP API's stream, the
lab's live view). `News` yields the new events for the archive, other edges and telemetry.

DHCP calls `note` for each packet, so `note` does little: it appends the time and the note to the machine's history. A
`JourneyEvent` is made of them when the journey is read.

The number of events of a machine, of machines, and of bytes are bounded, because unauthenticated clients cause many
events. When the bytes are used up, quiet machines keep only their last event. When there are too many machines, quiet
ones are forgotten. Unregistered machines have a limit of their own, so that a flood of made-up addresses can't replace
the journeys of real machines. Not thread-safe: record from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from edge.journey.events import KINDS, JourneyEvent, Note, Notice, Outcome, Step, Value
from edge.journey.history import (
    Entry,
    Happened,
    History,
    Last,
    event,
    is_elsewhere,
    is_heard,
    kept_bytes,
    pack,
    packed_bytes,
)
from edge.journey.subscription import Changes, PendingChanges, Subscription, Subscriptions

log = logging.getLogger("edge.journey")

PERIOD_SECONDS: Final = 1.0

ROUTINE_LINES: Final = 500
"""Maximum number of lines of one kind (step and outcome) in a period, if they are OK or INFO."""

WARNING_LINES: Final = 200
"""The same for warnings, refusals and failures."""

_LEVELS: Final = [logging.INFO if outcome in (Outcome.OK, Outcome.INFO) else logging.WARNING for _, outcome in KINDS]
_LINES: Final = [ROUTINE_LINES if level == logging.INFO else WARNING_LINES for level in _LEVELS]

_NOT_BEGUN: Final = -1.0


class Lines:
    """Writes a log line for each event, and in a storm one line a second with the number of further events.

    When a rack is powered on, each step of each machine deserves a line. When ten thousand machines send DHCP at the
    same moment, writing the lines would take longer than answering the packets. So the lines of each kind of event
    (step and outcome) are limited per second. The journey has all events.
    """

    def __init__(self, counts: list[int], clock: Callable[[], float]) -> None:
        """`counts` is the journey's own list of the number of events by kind."""
        self.until = list(_LINES)
        """By kind: events up to this count have their own line. The caller of `write` and `suppress` compares."""
        self._counts = counts
        self._clock = clock
        self._began = _NOT_BEGUN  # with the first line of the period
        self._suppressed: list[set[str]] = [set() for _ in KINDS]  # the machines whose events had no line
        self._timer: asyncio.TimerHandle | None = None

    def write(self, mac: str, note: Note, now: float) -> None:
        """Write a line for this event."""
        if self._began == _NOT_BEGUN:
            self._began = now
        level = _LEVELS[note.kind]
        if log.isEnabledFor(level):
            step, outcome = note.step.value, note.outcome.value
            fields = {"mac": mac, "step": step, "outcome": outcome, "detail": note.detail}
            log.log(level, "%s %s %s: %s", mac, step, outcome, note.message, extra={"fields": fields})

    def suppress(self, mac: str, note: Note, now: float) -> None:
        """Process an event beyond `until`, which is not counted yet: it gets no line, unless a new period has begun."""
        if 0 <= now - self._began < PERIOD_SECONDS:  # below 0: the clock was set back
            macs = self._suppressed[note.kind]
            if not macs:
                self._schedule_end()
            macs.add(mac)
        else:
            self.end_period()
            self.write(mac, note, now)

    def end_period(self) -> None:
        """Log how many events had no line, and begin a new period."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = self._clock() - self._began
        self._began = _NOT_BEGUN
        for kind, macs in enumerate(self._suppressed):
            if macs:
                (step, outcome), count = KINDS[kind], self._counts[kind] - self.until[kind]
                text = "%s more %s events (%s) of %s machines in %.1f s are in the journey, but not in this log"
                numbers = (f"{count:,}", step.value, outcome.value, f"{len(macs):,}", seconds)
                fields = {"step": step.value, "outcome": outcome.value, "events": count, "machines": len(macs)}
                log.log(_LEVELS[kind], text, *numbers, extra={"fields": fields})
                macs.clear()
            self.until[kind] = self._counts[kind] + _LINES[kind]

    def _schedule_end(self) -> None:
        """Schedule the end of the period, in case no event comes to end it."""
        if self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # no event loop: `flush` logs it
            self._timer = loop.call_later(PERIOD_SECONDS, self.end_period)


MEMORY_BYTES: Final = 128 * 1024 * 1024
"""Default memory for all events: 4 million prepared notes, or the installations of some 6,000 machines."""

_STRANGER_EVENTS = 20  # Each of them has a whole manifest, and they are all alike.

# Maximum number of machines that one event may check to find a quiet one; then the next machine is taken.
_LOOKS = 16

_LOOKED_AT = 100
"""Number of a machine's last events that are checked to find the edge that it uses."""


@dataclass(frozen=True, slots=True)
class MachineSummary:
    """A machine's first and last sign of life (seconds since the epoch) and its last event."""

    mac: str
    first_seen: float
    last_seen: float
    last: JourneyEvent
    only_heard: bool
    """True if the machine only has events of `Step.SEEN`: it is not registered."""


class Journey:
    """The last `per_machine` events of the last `machines` machines, and of the last `strangers` unregistered ones."""

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
        """`clock` returns seconds since the epoch; `memory_bytes` bounds the events of all machines together.

        `began` is the start of this run: older events come from an earlier run.
        """
        self._clock = clock
        self.began = began
        """When this run began, in seconds since the epoch."""
        self.hears_others = False
        """True if other processes of the site have published events here."""
        self._per_machine = per_machine
        self._machines = machines
        self._strangers_limit = strangers
        self._histories: dict[str, History] = {}
        self._order: deque[str] = deque()  # the machines of _histories in the order of their checks, see _quietest
        self._quiet: dict[str, Last] = {}  # machines with only their last event, the longest quiet one first
        self._strangers: dict[str, History] = {}  # the last heard one is last
        self._memory_bytes = memory_bytes
        self.kept_bytes = 0
        """Approximate memory of the events. Each machine takes some hundred bytes more."""
        self._counts = [0] * len(KINDS)
        self._sent_bytes = dict.fromkeys(Step, 0.0)
        self._lines = Lines(self._counts, clock)
        self._lines_until = self._lines.until
        self._subscriptions = Subscriptions()
        self._readers = self._subscriptions.open
        self._changes, self._stages = Changes(), Changes()
        self._subscribers, self._marked = self._changes.subscribers, self._changes.marked

    # --- recording ---------------------------------------------------------------------------------------------------

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None:
        """Record an event (`edge.journey.events.Recorder`). Never raises, never blocks."""
        note = Note(step, outcome, message, detail, kept_bytes=packed_bytes(message, detail))
        self.note(mac, note, pack(note))

    def note(self, mac: str, note: Note, entry: Entry | None = None) -> None:
        """Record a prepared event (`edge.journey.events.NoteTaker`). Never raises, never blocks.

        `entry` is the form to store, by default the note itself.
        """
        now = self._clock()
        history = self._histories.get(mac)
        if history is None:
            history = self._admit(mac, note, now)
        history.times.append(now)
        history.append(entry or note)
        self.kept_bytes += note.kept_bytes
        if len(history) > history.limit:
            self.kept_bytes -= history.forget_oldest()
        if self.kept_bytes > self._memory_bytes:
            self._make_room()

        kind = note.kind
        count = self._counts[kind]
        if count < self._lines_until[kind]:
            self._lines.write(mac, note, now)
        else:
            self._lines.suppress(mac, note, now)
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
        """Add an event of another process of the site, or of an earlier run. Return False if it is known already.

        It is not logged or counted: the process that recorded it did that. `now`: readers of changes are notified.
        """
        history = self._histories.get(mac)
        if history is None:
            history = self._admit(mac, note, time)
        if not history.put(time, pack(note)):
            return False
        self.kept_bytes += note.kept_bytes
        if len(history) > history.limit:
            self.kept_bytes -= history.forget_oldest()
        if self.kept_bytes > self._memory_bytes:
            self._make_room()
        self.hears_others = self.hears_others or now
        if now:
            self._changes.mark(mac)
            if self._readers:
                self._subscriptions.push(event(mac, time, note))
        return True

    def announce(self, notice: Notice) -> None:
        """Send a notice about the edge itself to the subscribers. The journey does not store it."""
        if self._readers:
            self._subscriptions.push(notice)

    def flush(self) -> None:
        """Log the number of events without a line now; called at the end of the program."""
        self._lines.end_period()

    # --- reading -----------------------------------------------------------------------------------------------------

    def subscribe(self, *, backlog: int = 1000) -> Subscription:
        """Return a stream of events from now on. If more than `backlog` are unread, the oldest are dropped.

        The subscription ends when it is closed, or when the last reference to it goes.
        """
        return self._subscriptions.new(backlog)

    def changes(self) -> PendingChanges:
        """Collect from now on the MACs of machines with new events, for a reader that polls.

        The cost of an event is one insertion into a set.
        """
        return self._changes.subscribe()

    def stages(self) -> PendingChanges:
        """Collect only the machines whose boots have begun or ended (`edge.journey.events.STAGES`)."""
        return self._stages.subscribe()

    def last_entry(self, mac: str) -> Last | None:
        """Return the last entry of a machine (`edge.journey.history`), or None without events."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        return history.last() if history is not None else self._quiet.get(mac)

    def last_sign(self, mac: str) -> Last | None:
        """Return the last sign of life of a machine, or None if it was never heard.

        A diagnosis is no sign of life, and neither is a Workflow that was created for the machine.
        """
        history = self._histories.get(mac) or self._strangers.get(mac)
        return history.last_sign() if history is not None else self._quiet.get(mac)

    def events(self, mac: str) -> list[JourneyEvent]:
        """Return the events of a machine, oldest first."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        if history is not None:
            return list(history.events(mac))
        quiet = self._quiet.get(mac)
        return [event(mac, quiet.time, quiet.entry)] if quiet is not None else []

    def newest(self, mac: str, most: int, *, earlier: bool = False) -> list[JourneyEvent]:
        """Return the newest `most` events of a machine that show its progress, oldest first.

        Of printed and logged lines only the last is included. Events of an earlier run are included only with
        `earlier`, because the events between the two runs are missing.
        """
        history = self._histories.get(mac) or self._strangers.get(mac)
        found = history.newest(mac, most) if history is not None else self.events(mac)
        return found if earlier else [event for event in found if event.time >= self.began]

    def after(self, mac: str, time: float, most: int) -> list[tuple[float, Entry]]:
        """Return the newest `most` entries of a machine after `time`, oldest first."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        if history is not None:
            return history.after(time, most)
        quiet = self._quiet.get(mac)
        return [(quiet.time, quiet.entry)] if quiet is not None and quiet.time > time else []

    def is_elsewhere(self, mac: str) -> bool:
        """Return True if the machine's last events are from another edge."""
        return self.hears_others and is_elsewhere(entry for _, entry in reversed(self.after(mac, 0.0, _LOOKED_AT)))

    def earlier(self, mac: str, most: int) -> list[tuple[float, Entry]]:
        """Return the entries of an earlier run among the newest `most` of a machine, oldest first."""
        return [(time, entry) for time, entry in self.after(mac, 0.0, most) if time < self.began]

    def past(self) -> Iterator[JourneyEvent]:
        """Return the events of all machines at the time of the call, by time; each is made when it is read."""
        histories = (*self._histories.items(), *self._strangers.items())
        events = [history.events(mac) for mac, history in histories]
        events += [iter([event(mac, quiet.time, quiet.entry)]) for mac, quiet in self._quiet.items()]
        return heapq.merge(*events, key=lambda event: event.time)

    def macs(self) -> list[str]:
        """Return the MACs of all machines, the last heard one first."""
        seen = {mac: history.times[-1] for mac, history in (*self._histories.items(), *self._strangers.items())}
        seen |= {mac: quiet.time for mac, quiet in self._quiet.items()}
        return sorted(seen, key=seen.__getitem__, reverse=True)

    def summary(self, mac: str) -> MachineSummary | None:
        """Return the summary of a machine, or None without events."""
        last = self.last_entry(mac)
        if last is None:
            return None
        shown = event(mac, last.time, last.entry)
        return MachineSummary(mac, last.first_seen, last.time, shown, mac in self._strangers)

    def machines(self) -> list[MachineSummary]:
        """Return all machines, the last heard one first. If there are many, use `macs` and `summary`."""
        return [summary for mac in self.macs() if (summary := self.summary(mac)) is not None]

    def last_seen(self, mac: str) -> float | None:
        """Return the time of a machine's last event in seconds since the epoch, or None without events."""
        last = self.last_entry(mac)
        return last.time if last is not None else None

    def was_heard(self, mac: str) -> bool:
        """Return True if the machine itself caused an event. Workflow events and diagnoses do not count."""
        history = self._histories.get(mac) or self._strangers.get(mac)
        if history is None:
            return mac in self._quiet
        return any(is_heard(entry) for entry in reversed(history))

    def counts(self) -> dict[tuple[Step, Outcome], int]:
        """Return the number of events by step and outcome."""
        return dict(zip(KINDS, self._counts, strict=True))

    def sent_bytes(self) -> dict[Step, float]:
        """Return the bytes of files sent to machines, by step."""
        return dict(self._sent_bytes)

    # --- storage ------------------------------------------------------------------------------------------------

    def _admit(self, mac: str, note: Note, now: float) -> History:
        """Return the history for an event of a machine without one: it is new, was quiet, or is unregistered."""
        quiet = self._quiet.pop(mac, None)
        stranger = self._strangers.pop(mac, None)
        if note.step is Step.SEEN and quiet is None:
            return self._admit_stranger(mac, stranger or History(now, min(self._per_machine, _STRANGER_EVENTS)))
        history = History(now, self._per_machine)
        if quiet is not None:
            history.first_seen = quiet.first_seen
            history.times.append(quiet.time)
            history.append(quiet.entry)
        elif stranger is not None:  # now it does more than being heard
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
            self.kept_bytes -= self._strangers.pop(next(iter(self._strangers))).forget_oldest(keep=0)
        return history

    def _make_room(self) -> None:
        """Cut quiet machines down to their last event until there is room."""
        while self.kept_bytes > self._memory_bytes:
            if self._order:
                mac = self._quietest()
                history = self._histories.pop(mac)
                self.kept_bytes -= history.forget_oldest(keep=1)
                self._quiet[mac] = history.last()
            elif self._quiet:
                self._forget_machine()
            else:
                return

    def _forget_machine(self) -> None:
        if self._quiet:
            self.kept_bytes -= kept_bytes(self._quiet.pop(next(iter(self._quiet))).entry)
        else:
            self.kept_bytes -= self._histories.pop(self._quietest()).forget_oldest(keep=0)

    def _quietest(self) -> str:
        """Remove and return a machine that has been quiet for long, though perhaps not the longest.

        Machines are checked in turn. One that was active since its last check gets another turn ("second chance" page
        replacement), so the order need not be updated for each packet.
        """
        for _ in range(_LOOKS):
            history = self._histories[self._order[0]]
            if history.length_seen == len(history):
                break
            history.length_seen = len(history)
            self._order.rotate(-1)
        return self._order.popleft()


MAX_AT_ONCE: Final = 200
"""Maximum number of new events of a machine in one `take`; older ones are skipped."""


class News:
    """The new events of all machines since the last call of `take`; `close` it after use. Belongs to one event loop.

    The journey only adds a MAC to a set for each event (`edge.journey.subscription`); `take` finds the new entries of
    these machines.
    """

    def __init__(
        self,
        journey: Journey,
        wanted: Callable[[Entry], bool],
        clock: Callable[[], float],
        *,
        since: float | None = None,
        at_once: int = MAX_AT_ONCE,
        asker: PendingChanges | None = None,
    ) -> None:
        """Select the entries that `wanted` returns True for, after `since` (seconds since the epoch; default: now).

        `clock` is the journey's. `asker` yields the machines to read, by default all that change.
        """
        self._journey = journey
        self._wanted = wanted
        self._clock = clock
        self._at_once = at_once
        self._since = clock()
        self._pending = asker or journey.changes()
        self._waiting: OrderedDict[str, float] = OrderedDict()
        """The machines with new entries, and the time after which these are new."""
        if since is not None:
            self._waiting.update(dict.fromkeys(reversed(journey.macs()), since))

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> Iterator[list[Happened]]:
        """Yield the new entries, one machine at a time. If the caller stops early, the next call continues."""
        now = self._clock()
        since, self._since = min(self._since, now), now
        for mac in self._pending.take():
            self._waiting.setdefault(mac, since)
        while self._waiting:
            mac, begin = self._waiting.popitem(last=False)
            found = self._journey.after(mac, begin, self._at_once)
            happened = [Happened(time, mac, entry) for time, entry in found if self._wanted(entry)]
            if happened:
                yield happened

    def close(self) -> None:
        """Stop collecting changes."""
        self._pending.close()
        self._waiting.clear()
