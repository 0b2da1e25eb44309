"""The boots of a machine, drawn to scale: the duration of each step, beside the usual one here. Pure.

A machine that was installed restarts from its disk: that boot belongs to the installation before, up to cloud-init. A
boot by BMC control begins with the first report of BMC control, before the first packet of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Final

from edge.journey.events import WAITING_FOR_DISCOVER, JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations import Awaited, MachineBoot, StepLimits, Story, workflow_of
from edge.page.words import AFTER, POWER_STEPS, STATES, Phase, phase

RESTART_SECONDS: Final = 900.0  # a system that comes up so soon after a Workflow is what that has installed
MAX_BARS: Final = 80  # maximum number of bars; the newest are drawn
SHORTEST_SECONDS: Final = 0.05  # a step that took less has no row: everywhere it would be shown as 0 s
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
    """One step of a boot, from `begin` on, for `seconds`; `open`: the step goes on.

    `usual` is the longest duration in the last boots of such machines, and `limit` the maximum, both in seconds or
    None. `x` and `width` are in percent of the whole.
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
    dropped: int = 0  # number of older bars that are not shown


@dataclass(slots=True)
class _Stretch:
    """A step from `begin` to `end`. `reached` is the milestone before it; None: a step of BMC control."""

    label: str
    reached: Milestone | None
    begin: float
    end: float
    open: bool = False
    failed: bool = False

    @property
    def shortest(self) -> float:
        is_action = self.reached is Milestone.ACTION_BEGUN
        return _SHORTEST_ACTION_SECONDS if is_action else SHORTEST_SECONDS


@dataclass(slots=True)
class _Mark:
    reached: Milestone
    time: float
    action: str = ""
    failed: bool = False
    state: str = ""


@dataclass(slots=True)
class BootChain:
    """Boots that belong together, oldest first. `power`: the reports of BMC control before the first packet."""

    boots: list[MachineBoot] = field(default_factory=list)
    power: list[JourneyEvent] = field(default_factory=list)

    @property
    def began(self) -> float:
        """In seconds since the epoch."""
        return self.boots[0].began

    @property
    def workflows(self) -> frozenset[str]:
        """The Workflows that ran in the boots, NAMESPACE/NAME."""
        return frozenset(boot.workflow for boot in self.boots if boot.workflow)


def chains(story: Story) -> list[BootChain]:
    """Return the boots of a machine, oldest first. The boot of an installed system belongs to its installation.

    The last one has no event but `power` if BMC control boots the machine, and the machine has sent no packet yet.
    """
    found: list[BootChain] = []
    for boot in story.boots:
        before = found[-1].boots[-1] if found else None
        unread = [] if before is None or boot.continues else before.events[before.after :]
        first = takewhile(lambda pair: pair[1] is None, zip(boot.events, boot.marks, strict=True))
        power = _reports([*unread, *(event for event, _ in first)])
        joins = (
            before is not None
            and not power
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
            found.append(BootChain([boot], power))
    last = story.boot
    power = _reports(last.events[last.after :]) if last.at is not None else []
    if power:
        found.append(BootChain([MachineBoot(power[0].time)], power))
    return found


def _reports(events: Iterable[JourneyEvent]) -> list[JourneyEvent]:
    """Return the reports of BMC control about the last boot that it has begun in these events, and that of its end."""
    found: list[JourneyEvent] = []
    for event in events:
        if _is_switching(event):
            if found and not _is_switching(found[-1]):
                found.clear()
            # A step is reported again with its progress. A report that the DISCOVER is awaited may come after the
            # DISCOVER: it begins no boot.
            before = found[-1].detail["reason"] if found else WAITING_FOR_DISCOVER
            if event.detail["reason"] != before:
                found.append(event)
        elif found and _is_switching(found[-1]) and _ends_switching(event, found[-1]):
            found.append(event)
    return found


def _is_switching(event: JourneyEvent) -> bool:
    return event.step is Step.POWER and event.detail.get("reason") in POWER_STEPS


def _ends_switching(event: JourneyEvent, last: JourneyEvent) -> bool:
    """Return True if BMC control has ended its work without a packet of the machine, or its Workflow is over."""
    if event.step is Step.POWER and "reason" in event.detail:
        return event.outcome in (Outcome.OK, Outcome.FAILED)
    is_over = event.step is Step.WORKFLOW and event.detail.get("state") not in ("Pending", "Scheduled")
    return is_over and event.detail.get("workflow") == last.detail.get("workflow")


def events_of(chain: BootChain, after: BootChain | None, events: Iterable[JourneyEvent]) -> list[JourneyEvent]:
    """Return the events of a chain, without those of other Workflows. `after` is the chain that follows, if any."""
    until = after.began if after is not None else math.inf
    own = chain.workflows | {""}
    return [event for event in events if chain.began <= event.time < until and workflow_of(event) in own]


def timeline(
    chain: BootChain, now: float, limits: StepLimits, awaited: Awaited | None, before: Iterable[BootChain] = ()
) -> Timeline:
    """Draw a boot. `awaited` is the next step of the machine; None if this boot is over.

    The usual durations are those of such machines, or else those of this machine in the boots `before`.
    """
    marks = list(_marks(chain))
    stretches = [*_power_stretches(chain, marks, now), *_stretches(marks)]
    if not marks and not stretches:
        return Timeline(chain.began, 0.0, "heard")
    boot = chain.boots[0]
    # the durations of its OSIE on its model
    kind = f"{boot.detail_of('osie')} {boot.detail_of('model')}".strip() if awaited is None else awaited.kind
    if marks and awaited is not None and limits.after((last := marks[-1]).reached, kind) is not None:
        stretches.append(_Stretch(_label(last), last.reached, last.time, max(now, last.time), open=True))
    state = _state(marks[-1]) if marks else stretches[-1].label
    began = stretches[0].begin if stretches else marks[0].time
    end = stretches[-1].end if stretches else marks[-1].time
    stretches = [each for each in stretches if each.open or each.failed or each.end - each.begin >= each.shortest]
    dropped = max(0, len(stretches) - MAX_BARS)
    stretches = stretches[dropped:]
    began = stretches[0].begin if dropped else began
    whole = max(end - began, 0.001)
    known: dict[str, float] = {}  # the longest time of each step in the earlier boots
    for earlier in before:
        earlier_marks = list(_marks(earlier))
        for each in (*_power_stretches(earlier, earlier_marks, now), *_stretches(earlier_marks)):
            known[each.label] = max(known.get(each.label, 0.0), each.end - each.begin)
    bars = tuple(
        Bar(
            label=each.label,
            phase=Phase.POWER if each.reached is None else phase(each.reached),
            begin=each.begin,
            seconds=each.end - each.begin,
            open=each.open,
            usual=known.get(each.label) if (usual := _usual(each, limits, kind)) is None else usual,
            limit=None if each.reached in (None, Milestone.ACTION_BEGUN) else limits.after(each.reached, kind),
            failed=each.failed,
            x=round(100 * (each.begin - began) / whole, 3),
            width=round(100 * (each.end - each.begin) / whole, 3),
        )
        for each in stretches
    )
    step = next((step for step in _STEPS if whole / step <= _TICKS), whole / _TICKS)
    ticks = tuple(Tick(round(100 * at * step / whole, 3), at * step) for at in range(int(whole / step) + 1))
    return Timeline(began, end - began, state, bars, ticks, dropped)


def _usual(stretch: _Stretch, limits: StepLimits, kind: str) -> float | None:
    return None if stretch.reached is None else limits.usual(stretch.reached, kind)


def _marks(chain: BootChain) -> Iterator[_Mark]:
    """Yield the milestones of the boots: each for the first time, and again where that is progress."""
    last: Milestone | None = None
    for boot in chain.boots:
        for event, reached in zip(boot.events, boot.marks, strict=True):
            if reached is None or event.outcome is Outcome.WARNING:
                continue
            if reached is last or (last is not None and reached < last and reached not in _TAKES_TURNS
                                   and reached is not Milestone.OS_OFFERED):  # fmt: skip
                continue
            action = str(event.detail.get("action", "")) if event.step is Step.ACTION else ""
            state = str(event.detail.get("state", ""))
            yield _Mark(reached, event.time, action, event.outcome is Outcome.FAILED, state)
            last = reached


def _power_stretches(chain: BootChain, marks: Sequence[_Mark], now: float) -> Iterator[_Stretch]:
    """Yield the steps of BMC control, up to the first packet of the machine."""
    for at, report in enumerate(chain.power):
        if not _is_switching(report):
            return
        after = chain.power[at + 1] if at + 1 < len(chain.power) else None
        end = after.time if after is not None else marks[0].time if marks else max(now, report.time)
        yield _Stretch(
            POWER_STEPS[str(report.detail["reason"])],
            None,
            report.time,
            end,
            open=after is None and not marks,
            failed=after is not None and after.outcome is Outcome.FAILED,
        )


def _stretches(marks: Sequence[_Mark]) -> list[_Stretch]:
    found = []
    for mark, after in pairwise(marks):
        failed = after.failed and mark.reached is Milestone.ACTION_BEGUN
        ends = mark.reached is Milestone.ACTION_ENDED and after.reached is Milestone.WORKFLOW_ENDED
        label = "Workflow ends" if ends else _label(mark)
        found.append(_Stretch(label, mark.reached, mark.time, after.time, failed=failed))
    return found


def _label(mark: _Mark) -> str:
    if mark.reached is Milestone.ACTION_BEGUN and mark.action:
        return f"action {mark.action}"
    return AFTER[mark.reached]


def _state(mark: _Mark) -> str:
    if mark.reached is Milestone.WORKFLOW_ENDED and mark.state:
        return f"Workflow {mark.state.lower()}"
    if mark.reached is Milestone.ACTION_BEGUN and mark.action:
        return f"action {mark.action}"
    return STATES[mark.reached]
