"""The deadline of each machine's next step, checked once a second apart from the servers, so that packets cost nothing.

    journey.changes() -> the last event of each machine -> its milestone, and the deadline of the next one
    the deadline has passed, or the event needs a diagnosis -> the story and the facts -> the rules -> `say`

Each machine has one expectation. The next step usually replaces it, at the cost of reading one entry. Whole journeys
are read a few at a time, so that ten thousand machines that fail together do not delay the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from edge.journey.events import REPORTED_BY_API, Milestone, Outcome, Step
from edge.journey.expectations.facts import Diagnosis, Facts
from edge.journey.expectations.limits import LIMITS, OVER_IPV6, SOONER, SOONER_AGAIN_SECONDS, StepLimits
from edge.journey.expectations.rules import SILENCE, diagnose
from edge.journey.expectations.story import ENDS, TAKES_TURNS, MachineBoot, Story, read
from edge.journey.history import (
    SEEN_BY,
    Entry,
    Last,
    detail_of,
    is_finding,
    is_printed,
    message_of,
    milestone,
    outcome_of,
    step_of,
)
from edge.journey.recorder import Journey
from edge.journey.subscription import Changes, PendingChanges
from tink.limits import Newest

TURN_SECONDS: Final = 0.002
"""Seconds of diagnosis between two turns of the event loop."""
SWEEP_SECONDS: Final = 0.015
"""Seconds of diagnosis in one sweep while the event loop is busy; the other machines follow in the next sweep."""
IDLE_SECONDS: Final = 0.015
"""The same while the event loop spends less time on other work than on diagnosis."""
EVENTS: Final = 150
"""Number of events that are read for a diagnosis: about five boots."""
PORTION: Final = 200
LOOK_SECONDS: Final = 3.0
"""Minimum interval between two diagnoses that reports between milestones cause."""
MACHINES: Final = 100_000

_AGAIN_SECONDS: Final = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Intervals between the diagnoses of a machine that is late."""


@dataclass(slots=True)
class Awaited:
    """The expectation for one machine. All times are seconds since the epoch, or 0 for none.

    at, since: the milestone that it has reached, and when.
    due: when the next step is due.
    deadline: equal to `due` until that has passed, then the time of the next diagnosis.
    early: a diagnosis before the deadline.
    kind: the OSIE and the model, as far as they are known.
    finding: the last diagnosis, or None.
    heard: when another edge published that diagnosis.
    gone: when the Hardware was deleted; events before that are not diagnosed.
    """

    at: Milestone | None = None
    since: float = 0.0
    deadline: float = 0.0
    kind: str = ""
    looks: int = 0
    looked: float = 0.0
    finding: Diagnosis | None = None
    heard: float = 0.0
    due: float = 0.0
    early: float = 0.0
    gone: float = 0.0

    @property
    def next(self) -> str:
        """The next step, in words; empty if none is expected."""
        limit = LIMITS.get(self.at) if self.at is not None else None
        return limit.awaited if limit is not None else ""


Say = Callable[[str, Diagnosis | None], None]
"""`say(mac, finding)` is called with each new diagnosis of a machine, and with None when the problem is over."""


class Expectations:
    """The expectations of all machines. Belongs to one event loop; call `sweep` once a second."""

    def __init__(
        self,
        journey: Journey,
        facts: Callable[[Story, float, Callable[[Milestone], float]], Facts],
        say: Say,
        clock: Callable[[], float],
        limits: StepLimits | None = None,
        elapsed: Callable[[], float] = time.thread_time,
    ) -> None:
        """`facts(story, now, limit)` returns the facts of the story's machine; `clock` is the journey's.

        `elapsed` returns seconds of any epoch, which bound the cost of a sweep. By default it counts processor time, so
        that machines are diagnosed as often on a busy host.
        """
        self._journey = journey
        self._facts = facts
        self._say = say
        self._clock = clock
        self._elapsed = elapsed
        self.limits = limits or StepLimits()
        self._awaited: Newest[str, Awaited] = Newest(MACHINES)
        self._due: dict[str, None] = {}
        self.knocks_count = False
        """True while a packet of some machine to a port of this host is expected, so that a capture is useful."""
        self._happened = journey.changes()
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._awaited)

    def of(self, mac: str) -> Awaited | None:
        """Return the expectation for a machine, or None if it has not been heard since this run began."""
        return self._awaited.get(mac)

    def changes(self) -> PendingChanges:
        """Collect from now on the machines whose expectation or diagnosis changes."""
        return self._changes.subscribe()

    def look_at(self, mac: str) -> None:
        """Diagnose this machine in the next sweep: facts outside its journey have changed."""
        if mac in self._awaited:
            self._due[mac] = None

    def forget(self, mac: str) -> None:
        """Drop the expectation and the diagnosis of a machine whose Hardware was deleted.

        Its journey up to now is never diagnosed again, even if it is registered again.
        """
        awaited = self._awaited.get(mac)
        if awaited is None and self._journey.last_entry(mac) is None:
            return
        now = self._clock()
        self._awaited[mac] = Awaited(gone=now, looked=now)
        self._due.pop(mac, None)
        self._changes.mark(mac)
        if awaited is not None and awaited.finding is not None and not awaited.heard:
            self._say(mac, None)

    def sweep(self) -> Iterator[None]:
        """Process new events and passed deadlines. The caller iterates, and yields to the event loop at each step."""
        now = self._clock()
        for number, mac in enumerate(self._happened.take(), start=1):
            self._take(mac)
            if number % PORTION == 0:
                yield
        knocks_count = False
        for mac, awaited in self._awaited.items():
            if awaited.deadline:
                if now >= awaited.deadline or (awaited.early and now >= awaited.early):
                    self._due[mac] = None
                if awaited.at in _TO_KNOCK and KNOCKS_FROM <= now - awaited.since <= KNOCKS_UNTIL:
                    knocks_count = True
        self.knocks_count = knocks_count
        yield from self._look_at_due(now)

    def _look_at_due(self, now: float) -> Iterator[None]:
        turn = self._elapsed()
        spent = others = 0.0
        for mac in list(self._due):
            del self._due[mac]
            self._look(mac, now)
            at = self._elapsed()
            if at - turn > TURN_SECONDS:
                spent += at - turn
                if spent > (SWEEP_SECONDS if others > spent else IDLE_SECONDS):
                    return
                yield
                turn = self._elapsed()
                others += turn - at

    # --- what has happened ----------------------------------------------------------------------------------------

    def _take(self, mac: str) -> None:
        last = self._journey.last_entry(mac)
        if last is None:
            return
        awaited = self._awaited.get(mac)
        if awaited is not None and last.time <= awaited.gone:
            return
        if awaited is None:
            awaited = self._awaited[mac] = Awaited()
            if milestone(last.entry) is Milestone.OFFERED and last.first_seen < last.time:
                self._due[mac] = None  # A new boot: only the story knows the one before.
        reached, outcome = milestone(last.entry), outcome_of(last.entry)
        if self._journey.hears_others and (said := said_elsewhere(last.entry)):
            awaited.finding, awaited.heard = said, last.time
            self._changes.mark(mac)
            return
        if step_of(last.entry) in REPORTED_BY_API:
            self._due[mac] = None
            self._changes.mark(mac)
            return
        if is_finding(last.entry):
            return  # a diagnosis of this edge
        if reached is None:
            self._take_other(mac, awaited, outcome, last)
        elif reached in ENDS and awaited.at is not None and reached < awaited.at:
            self._due[mac] = None  # Another file, or a late report: the story decides.
        elif awaited.at is None or reached > awaited.at or reached in _CYCLE:
            self._progress(mac, awaited, reached, last.time)
            if outcome is Outcome.FAILED:
                self._due[mac] = None
        elif last.time >= awaited.looked + LOOK_SECONDS:
            # The same milestone again, or an earlier one: a new boot, or the machine has given up.
            self._due[mac] = None
        else:
            again = awaited.looked + LOOK_SECONDS
            awaited.deadline = min(awaited.deadline or again, again)

    def _progress(self, mac: str, awaited: Awaited, reached: Milestone, at: float) -> None:
        if awaited.at is not None and reached > awaited.at:
            self.limits.learn(awaited.kind, awaited.at, at - awaited.since)
        awaited.at, awaited.since, awaited.looks = reached, at, 0
        after = self.limits.after(reached, awaited.kind)
        awaited.due = awaited.deadline = at + after if after is not None else 0.0
        awaited.early = at + SOONER[reached] if reached in SOONER else 0.0
        self._changes.mark(mac)
        if awaited.finding is not None or reached in _LOOKED_AT:
            self._due[mac] = None

    def _take_other(self, mac: str, awaited: Awaited, outcome: Outcome, last: Last) -> None:
        if awaited.at is Milestone.ACTION_BEGUN and is_printed(last.entry):
            awaited.due = awaited.deadline = last.time + (self.limits.after(Milestone.ACTION_BEGUN) or 0.0)
            if awaited.finding is None and SILENCE not in message_of(last.entry):
                return
        again = awaited.looked + LOOK_SECONDS
        if outcome is not Outcome.INFO or not awaited.looked or last.time >= again:
            self._due[mac] = None
        else:  # Logs of the machine, for example: many, and of little importance.
            awaited.deadline = min(awaited.deadline or again, again)

    # --- what has not ---------------------------------------------------------------------------------------------

    def _look(self, mac: str, now: float) -> None:
        awaited = self._awaited.get(mac)
        if awaited is None:
            return
        awaited.looked = now
        events = self._journey.newest(mac, EVENTS)
        story = read(mac, (event for event in events if event.time > awaited.gone))
        self._follow(awaited, story, now)
        if self._journey.is_elsewhere(mac):
            self._leave_to_others(mac, awaited)
            return
        awaited.heard = 0.0
        limit = partial(self._limit, kind=awaited.kind, boot=story.boot)
        finding = diagnose(story, self._facts(story, now, limit))
        was, awaited.finding = awaited.finding, finding
        self._changes.mark(mac)
        if finding is None:
            self._say(mac, None)
            return
        if was is None or (was.rule, was.why) != (finding.rule, finding.why) or (finding.reported and was != finding):
            self._say(mac, finding)
            is_new = was is None or was.rule != finding.rule or set(finding.why) - set(was.why)
            if is_new and not finding.reported:  # The journey gets no event if a cause has merely become unlikely.
                self._journey.record(mac, finding.step, finding.outcome, finding.message, rule=finding.rule)

    def _leave_to_others(self, mac: str, awaited: Awaited) -> None:
        """Withdraw this edge's diagnosis: the machine has gone on with another edge, which diagnoses it."""
        if awaited.finding is not None and not awaited.heard:
            self._say(mac, None)
            awaited.finding = None
        sign = self._journey.last_sign(mac)
        if awaited.heard and (sign is None or sign.time > awaited.heard):
            awaited.finding, awaited.heard = None, 0.0
        self._changes.mark(mac)

    def _follow(self, awaited: Awaited, story: Story, now: float) -> None:
        """Update the expectation from the story, which is right after a repeated step or a new boot."""
        boot = story.boot
        if boot.at is not awaited.at or boot.since != awaited.since:
            awaited.at, awaited.since, awaited.looks = boot.at, boot.since, 0
        awaited.kind = f"{boot.detail_of('osie')} {story.model}".strip()
        after = self._limit(boot.at, awaited.kind, boot) if boot.at is not None else 0.0
        # An action that prints is not late, however long it runs.
        printed = boot.last(Step.ACTION) if boot.at is Milestone.ACTION_BEGUN else None
        waited_since = max(boot.since, printed.time) if printed is not None else boot.since
        awaited.due = waited_since + after if after else 0.0
        awaited.early = 0.0
        if not after:
            awaited.deadline = 0.0
        elif awaited.due > now:
            awaited.deadline = awaited.due
            if boot.at in SOONER:
                awaited.early = max(awaited.since + SOONER[boot.at], now + SOONER_AGAIN_SECONDS)
            if boot.times > 1:  # A repeated step is diagnosed before the deadline.
                awaited.deadline = min(awaited.deadline, now + 1.0)
        else:
            awaited.deadline = now + _AGAIN_SECONDS[min(awaited.looks, len(_AGAIN_SECONDS) - 1)]
            awaited.looks += 1

    def _limit(self, reached: Milestone, kind: str, boot: MachineBoot) -> float:
        limit = self.limits.after(reached, kind) or 0.0
        over_ipv6 = reached is boot.at and boot.detail.get("dhcp") == "reply"
        return limit + OVER_IPV6.get(reached, 0.0) if over_ipv6 else limit


def said_elsewhere(entry: Entry) -> Diagnosis | None:
    """Return the diagnosis of another edge if the entry is one, or None."""
    detail = dict(detail_of(entry))
    rule = detail.get("rule")
    if not rule or SEEN_BY not in detail:
        return None
    return Diagnosis(str(rule), step_of(entry), message_of(entry), outcome=outcome_of(entry))


KNOCKS_FROM: Final = 2.0
KNOCKS_UNTIL: Final = 120.0
"""Seconds after a lease between which packets of the machine are expected."""
_TO_KNOCK: Final = frozenset({Milestone.LEASED, Milestone.IPXE_LEASED, Milestone.OS_LEASED, Milestone.OSIE_UP})
_CYCLE: Final = TAKES_TURNS - {Milestone.SCRIPT_SENT}
"""Milestones that may be repeated in a healthy boot."""
_LOOKED_AT: Final = frozenset(
    {Milestone.SCRIPT_SENT, Milestone.KERNEL_STARTED, Milestone.WORKFLOW_ENDED, Milestone.METADATA_READ}
)
"""Milestones whose event has new facts: OSIE, model, end of the Workflow, user-data."""
