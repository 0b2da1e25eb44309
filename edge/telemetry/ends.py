"""Boots that have ended: their Workflow has ended, or the machine has restarted before that.

    the journey's changes --once a second--> machines whose Workflow ended, or that restarted --> their boots, once each

If a site has several edges, the last one that the machine used reports the boot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from edge.journey.events import REPORTED_BY_API, STAGES, JourneyEvent, Milestone, Outcome, Step
from edge.journey.expectations import StepLimits, read
from edge.journey.history import milestone
from edge.journey.recorder import Journey, News
from edge.page import Bar, BootChain, Phase, chains, timeline_of
from tink.limits import Newest

EVENTS: Final = 250  # number of a machine's last events that are read
MAX_KNOWN: Final = 100_000
ABANDONED: Final = "Abandoned"  # the outcome of a boot without an ended Workflow, after which the machine restarted
_MAX_WARNINGS: Final = 20


@dataclass(frozen=True, slots=True)
class EndedStep:
    """A step of an ended boot; `action` is the action's name, if it was one. Times are Unix seconds."""

    label: str
    action: str
    phase: str
    began: float
    ended: float
    failed: bool


@dataclass(frozen=True, slots=True)
class EndedBoot:
    """A boot from the first DHCP packet to the end of its Workflow, whose state is the `outcome`; or ABANDONED.

    `facts` are details of the machine and the boot. `warnings` are the diagnoses during the boot: time, rule, message.
    """

    mac: str
    began: float
    ended: float
    outcome: str
    message: str
    steps: tuple[EndedStep, ...]
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[float, str, str], ...]


class BootEnds:
    """Finds the boots that have ended since the last call. Belongs to one event loop."""

    def __init__(self, journey: Journey, clock: Callable[[], float]) -> None:
        """`clock` is the journey's."""
        self._journey = journey
        self._limits = StepLimits()
        self._news = News(journey, lambda entry: milestone(entry) in STAGES, clock, asker=journey.stages())
        self._reported_until: Newest[str, float] = Newest(MAX_KNOWN)
        """The time up to which each machine's boots are reported."""

    def take(self) -> Iterator[EndedBoot | None]:
        """Yield the boots that have ended since the last call, and None where other tasks may have their turn."""
        for number, happened in enumerate(self._news.take(), start=1):
            mac = happened[0].mac
            if not self._journey.is_elsewhere(mac):
                yield from self._ended(mac)
            if number % 20 == 0:
                yield None

    def close(self) -> None:
        """Stop reading the journey."""
        self._news.close()

    def _ended(self, mac: str) -> Iterator[EndedBoot]:
        since = self._reported_until.get(mac, self._journey.began)
        events = self._journey.newest(mac, EVENTS, earlier=True)
        found = chains(read(mac, events))
        for chain, after in zip(found, [*found[1:], None], strict=True):
            for event in _ends(chain):
                if event.time > since:
                    since = self._reported_until[mac] = event.time
                    before = [each.time for each in _ends(chain) if each.time < event.time]
                    state = str(event.detail.get("state", ""))
                    yield self._boot(
                        mac, chain, before[-1] if before else chain.began, event.time, state, event.message
                    )
            last = chain.boots[-1].latest
            reached = {each for boot in chain.boots for each in boot.reached}
            got_script_only = Milestone.SCRIPT_SENT in reached and Milestone.WORKFLOW_ENDED not in reached
            if after is not None and last > since and got_script_only:
                self._reported_until[mac] = since = last
                yield self._boot(mac, chain, chain.began, last, ABANDONED, "the machine has restarted")

    def _boot(self, mac: str, chain: BootChain, began: float, ended: float, outcome: str, message: str) -> EndedBoot:
        events = [event for boot in chain.boots for event in boot.events if began <= event.time <= ended]
        diagnoses = (event for event in events if event.step not in REPORTED_BY_API)
        warned = [event for event in diagnoses if event.outcome is Outcome.WARNING][:_MAX_WARNINGS]
        bars = timeline_of(chain, ended, self._limits, None).bars
        facts = {name: str(value) for event in events for name in _FACTS if (value := event.detail.get(name))}
        return EndedBoot(
            mac,
            began,
            ended,
            outcome,
            message,
            tuple(_step(bar) for bar in bars if began <= bar.begin < ended and bar.phase is not Phase.POWER),
            tuple(facts.items()),
            tuple((each.time, str(each.detail.get("rule", each.step.value)), each.message) for each in warned),
        )


_FACTS: Final = ("client", "model", "uuid", "osie", "workflow")


def _ends(chain: BootChain) -> list[JourneyEvent]:
    """Return the events that end Workflows."""
    ended = Milestone.WORKFLOW_ENDED
    found = (zip(boot.events, boot.marks, strict=True) for boot in chain.boots)
    return [event for pairs in found for event, reached in pairs if reached is ended and event.step is Step.WORKFLOW]


def _step(bar: Bar) -> EndedStep:
    action = bar.label.removeprefix("action ") if bar.label.startswith("action ") else ""
    label = "action" if action else bar.label
    return EndedStep(label, action, bar.phase.value, bar.begin, bar.begin + bar.seconds, bar.failed)
