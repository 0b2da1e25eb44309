"""Boots that have ended: their Workflow has, or the machine began anew before it could.

    the journey's changes --once a second--> machines whose Workflow ended, or that boot anew --> their boots, told once

Of several edges of a site the one tells a boot that the machine was with last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from edge.journey.events import STAGES, JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations import Limits, read
from edge.journey.history import Entry, milestone
from edge.journey.recorder import Journey, News
from edge.page import Bar, Chain, chains, timeline_of
from tink.limits.newest import Newest

EVENTS: Final = 250
"""So many events of a machine are looked at."""
MAX_KNOWN: Final = 100_000
ABANDONED: Final = "Abandoned"
"""The outcome of a boot after which the machine began anew, and no Workflow had ended."""
_MAX_WARNINGS: Final = 20


@dataclass(frozen=True, slots=True)
class EndedStep:
    """What it was at. `label` is in words; `action` is the name of the action that it was, if it was one. Times are in
    seconds since the epoch."""

    label: str
    action: str
    phase: str
    began: float
    ended: float
    failed: bool


@dataclass(frozen=True, slots=True)
class EndedBoot:
    """From the first DHCP packet to the end of the Workflow, whose state is the `outcome`; or ABANDONED. `facts` are
    what was told of machine and boot; `warnings` what was found wrong meanwhile: when, which, in words."""

    mac: str
    began: float
    ended: float
    outcome: str
    message: str
    steps: tuple[EndedStep, ...]
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[float, str, str], ...]


class BootEnds:
    """Belongs to one event loop."""

    def __init__(self, journey: Journey, clock: Callable[[], float]) -> None:
        """`clock` is the journey's."""
        self._journey = journey
        self._limits = Limits()
        self._news = News(journey, _is_end, clock, asker=journey.stages())
        self._told: Newest[str, float] = Newest(MAX_KNOWN)
        """Until when each machine's boots are told."""

    def take(self) -> Iterator[EndedBoot | None]:
        """Those that have ended since the last time; None where others may have their turn."""
        for number, happened in enumerate(self._news.take(), start=1):
            mac = happened[0].mac
            if not self._journey.is_elsewhere(mac):
                yield from self._ended(mac)
            if number % 20 == 0:
                yield None

    def close(self) -> None:
        """Look no more."""
        self._news.close()

    def _ended(self, mac: str) -> Iterator[EndedBoot]:
        since = self._told.get(mac, self._journey.began)
        events = self._journey.newest(mac, EVENTS, earlier=True)
        found = chains(read(mac, events))
        for chain, after in zip(found, [*found[1:], None], strict=True):
            for event in _ends(chain):
                if event.time > since:
                    since = self._told[mac] = event.time
                    before = [each.time for each in _ends(chain) if each.time < event.time]
                    state = str(event.detail.get("state", ""))
                    yield self._boot(
                        mac, chain, before[-1] if before else chain.began, event.time, state, event.message
                    )
            last = chain.boots[-1].latest
            if after is not None and last > since and _was_a_boot(chain):
                self._told[mac] = since = last
                yield self._boot(mac, chain, chain.began, last, ABANDONED, "the machine began anew")

    def _boot(self, mac: str, chain: Chain, began: float, ended: float, outcome: str, message: str) -> EndedBoot:
        events = [event for boot in chain.boots for event in boot.events if began <= event.time <= ended]
        bars = timeline_of(chain, ended, self._limits, None).bars
        facts = {name: str(value) for event in events for name in _FACTS if (value := event.detail.get(name))}
        return EndedBoot(
            mac,
            began,
            ended,
            outcome,
            message,
            tuple(_step(bar) for bar in bars if bar.begin >= began and bar.begin < ended),
            tuple(facts.items()),
            tuple(_warnings(events)),
        )


_FACTS: Final = ("client", "model", "uuid", "osie", "workflow")


def _is_end(entry: Entry) -> bool:
    return milestone(entry) in STAGES


def _ends(chain: Chain) -> list[JourneyEvent]:
    """The ends of Workflows."""
    ended = Milestone.WORKFLOW_ENDED
    found = (zip(boot.events, boot.marks, strict=True) for boot in chain.boots)
    return [event for pairs in found for event, reached in pairs if reached is ended and event.step is Step.WORKFLOW]


def _was_a_boot(chain: Chain) -> bool:
    """Whether it got anything from here, and no Workflow ended in it."""
    reached = {each for boot in chain.boots for each in boot.reached}
    return Milestone.SCRIPT_SENT in reached and Milestone.WORKFLOW_ENDED not in reached


def _step(bar: Bar) -> EndedStep:
    action = bar.label.removeprefix("action ") if bar.label.startswith("action ") else ""
    label = "action" if action else bar.label
    return EndedStep(label, action, bar.phase.value, bar.begin, bar.begin + bar.seconds, bar.failed)


def _warnings(events: list[JourneyEvent]) -> Iterator[tuple[float, str, str]]:
    warned = [event for event in events if event.outcome is Outcome.WARNING]
    for event in warned[:_MAX_WARNINGS]:
        yield event.time, str(event.detail.get("rule", event.step.value)), event.message
