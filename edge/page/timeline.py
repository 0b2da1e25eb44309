"""The boots of a machine, drawn to scale: how long each step took, beside what is usual here. Pure.

A machine that was installed restarts from its disk: that boot belongs to the installation before, up to cloud-init.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from edge.journey.events import JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations import Awaited, MachineBoot, StepLimits, Story, workflow_of
from edge.page.words import AFTER, STATES, Phase, phase

RESTART_SECONDS: Final = 900.0
"""A system that comes up so soon after a Workflow is what that has installed."""
MAX_BARS: Final = 80
"""Maximum number of bars; the newest are drawn."""
SHORTEST_SECONDS: Final = 0.05
"""A step that took less has no row: everywhere it would be shown as 0 s."""
_SHORTEST_ACTION_SECONDS: Final = 0.0005
_TICKS: Final = 6
_STEPS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_TAKES_TURNS: Final = frozenset(
    {
        Milestone.PROGRAM_BEGUN,
        Milestone.PROGRAM_SENT,
        Milestone.SCRIPT_SENT,
        Milestone.KERNEL_BEGUN,
        Milestone.KERNEL_SENT,
        Milestone.INITRD_BEGUN,
        Milestone.INITRD_SENT,
        Milestone.ACTION_BEGUN,
        Milestone.ACTION_ENDED,
    }
)


_NETBOOTED: Final = frozenset(each for each in Milestone if each < Milestone.OS_OFFERED)
"""A boot with one of these came by the network: with iPXE in the card's ROM there is no offer to firmware before it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One step of a boot, from `begin` on, for `seconds`; `open`: the machine is still at it.

    `usual` is how long the step took at most in the last boots of such a machine, `limit` how long it may take; both in
    seconds, None where nothing is known. `x` and `width` are in percent of the whole.
    """

    label: str
    phase: Phase
    begin: float
    seconds: float
    open: bool
    usual: float | None
    limit: float | None
    failed: bool
    x: float
    width: float

    @property
    def late(self) -> bool:
        """True if the step took longer than its limit."""
        return self.limit is not None and self.seconds > self.limit


@dataclass(frozen=True, slots=True)
class Tick:
    """A line across the bars, `seconds` after the beginning; `x` in percent."""

    x: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One boot, or one installation."""

    began: float
    seconds: float
    reached: str
    bars: tuple[Bar, ...] = ()
    ticks: tuple[Tick, ...] = ()
    dropped: int = 0
    """Bars before those that are shown."""


@dataclass(slots=True)
class _Stretch:
    label: str
    reached: Milestone
    begin: float
    end: float
    open: bool = False
    failed: bool = False


@dataclass(slots=True)
class _Mark:
    reached: Milestone
    time: float
    action: str = ""
    failed: bool = False
    said: str = ""


@dataclass(slots=True)
class Chain:
    """Boots that belong together, oldest first."""

    boots: list[MachineBoot] = field(default_factory=list)

    @property
    def began(self) -> float:
        """In seconds since the epoch."""
        return self.boots[0].began

    @property
    def workflows(self) -> frozenset[str]:
        """The Workflows that ran in it, NAMESPACE/NAME; more than one only where nothing tells them apart."""
        return frozenset(boot.workflow for boot in self.boots if boot.workflow)


def chains(story: Story) -> list[Chain]:
    """The boots of a machine, oldest first, what belongs together as one."""
    found: list[Chain] = []
    for boot in story.boots:
        before = found[-1].boots[-1] if found else None
        joins = (
            before is not None
            and before.at is not None
            and before.at >= Milestone.WORKFLOW_ENDED
            and not boot.continues
            and Milestone.OS_OFFERED in boot.reached
            and _NETBOOTED.isdisjoint(boot.reached)
            and boot.began - before.latest < RESTART_SECONDS
        )
        if joins:
            found[-1].boots.append(boot)
        else:
            found.append(Chain([boot]))
    return found


def events_of(chain: Chain, after: Chain | None, events: Iterable[JourneyEvent]) -> list[JourneyEvent]:
    """Return the events of a chain, of all `events` of the machine; `after` is the chain that follows it, if one does.

    What an action of another Workflow printed is none of them.
    """
    until = after.began if after is not None else math.inf
    own = chain.workflows | {""}
    return [event for event in events if chain.began <= event.time < until and workflow_of(event) in own]


def timeline(
    chain: Chain, now: float, limits: StepLimits, awaited: Awaited | None, before: Iterable[Chain] = ()
) -> Timeline:
    """`awaited` is what is awaited of the machine, if this is what it is at; None: this boot is over.

    What is usual is what was learned of such machines; where that is nothing, what `before` says of this one.
    """
    marks = list(_marks(chain))
    if not marks:
        return Timeline(chain.began, 0.0, "heard")
    kind = awaited.kind if awaited is not None else _kind(chain)
    stretches = _stretches(marks)
    last = marks[-1]
    if awaited is not None and limits.after(last.reached, kind) is not None:
        stretches.append(_Stretch(_label(last), last.reached, last.time, max(now, last.time), open=True))
    began = stretches[0].begin if stretches else marks[0].time
    end = stretches[-1].end if stretches else marks[-1].time
    stretches = [each for each in stretches if _is_worth_a_row(each)]
    dropped = max(0, len(stretches) - MAX_BARS)
    stretches = stretches[dropped:]
    began = stretches[0].begin if dropped else began
    whole = max(end - began, 0.001)
    known = _longest(before)
    bars = tuple(
        Bar(
            label=each.label,
            phase=phase(each.reached),
            begin=each.begin,
            seconds=each.end - each.begin,
            open=each.open,
            usual=_first(limits.usual(each.reached, kind), known.get(each.label)),
            limit=limits.after(each.reached, kind) if each.reached is not Milestone.ACTION_BEGUN else None,
            failed=each.failed,
            x=round(100 * (each.begin - began) / whole, 3),
            width=round(100 * (each.end - each.begin) / whole, 3),
        )
        for each in stretches
    )
    return Timeline(began, end - began, _state(last), bars, tuple(_ticks(whole)), dropped)


def _marks(chain: Chain) -> Iterator[_Mark]:
    """Where it came to something, each first time, and each time where that is progress."""
    last: Milestone | None = None
    for boot in chain.boots:
        for event, reached in zip(boot.events, boot.marks, strict=True):
            if reached is None or event.outcome is Outcome.WARNING:
                continue
            if reached is last or (last is not None and reached < last and reached not in _TAKES_TURNS
                                   and reached is not Milestone.OS_OFFERED):  # fmt: skip
                continue
            action = str(event.detail.get("action", "")) if event.step is Step.ACTION else ""
            said = str(event.detail.get("state", ""))
            yield _Mark(reached, event.time, action, event.outcome is Outcome.FAILED, said)
            last = reached


def _stretches(marks: Sequence[_Mark]) -> list[_Stretch]:
    found = []
    for mark, after in pairwise(marks):
        failed = after.failed and mark.reached is Milestone.ACTION_BEGUN
        ends = mark.reached is Milestone.ACTION_ENDED and after.reached is Milestone.WORKFLOW_ENDED
        label = "Workflow ends" if ends else _label(mark)
        found.append(_Stretch(label, mark.reached, mark.time, after.time, failed=failed))
    return found


def _is_worth_a_row(stretch: _Stretch) -> bool:
    is_action = stretch.reached is Milestone.ACTION_BEGUN
    shortest = _SHORTEST_ACTION_SECONDS if is_action else SHORTEST_SECONDS
    return stretch.open or stretch.failed or stretch.end - stretch.begin >= shortest


def _longest(chains: Iterable[Chain]) -> dict[str, float]:
    """How long each step took at most in these boots."""
    found: dict[str, float] = {}
    for chain in chains:
        for each in _stretches(list(_marks(chain))):
            found[each.label] = max(found.get(each.label, 0.0), each.end - each.begin)
    return found


def _first(one: float | None, other: float | None) -> float | None:
    return one if one is not None else other


def _label(mark: _Mark) -> str:
    if mark.reached is Milestone.ACTION_BEGUN and mark.action:
        return f"action {mark.action}"
    return AFTER[mark.reached]


def _state(mark: _Mark) -> str:
    if mark.reached is Milestone.WORKFLOW_ENDED and mark.said:
        return f"Workflow {mark.said.lower()}"
    if mark.reached is Milestone.ACTION_BEGUN and mark.action:
        return f"action {mark.action}"
    return STATES[mark.reached]


def _kind(chain: Chain) -> str:
    """Which durations are like it: those of its OSIE on its model."""
    boot = chain.boots[0]
    return f"{boot.detail_of('osie')} {boot.detail_of('model')}".strip()


def _ticks(whole: float) -> Iterator[Tick]:
    step = next((step for step in _STEPS if whole / step <= _TICKS), whole / _TICKS)
    at = 0.0
    while at <= whole:
        yield Tick(round(100 * at / whole, 3), at)
        at += step
