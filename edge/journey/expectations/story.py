"""The journey of a machine, read as boots: how far each one came, and what was repeated since. Pure.

A repeated earlier step is stronger evidence than a clock: firmware that asks for an address again has given up what it
was at. So a boot is not only how far it came, but also what came again after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from edge.journey.events import JourneyEvent
from edge.journey.steps import Milestone, Outcome, Step, Value, milestone

GAP_SECONDS = 300.0
"""Firmware that was silent for so long before it asks for an address has been switched on anew."""

_TAKES_TURNS = frozenset(
    {
        Milestone.PROGRAM_BEGUN,
        Milestone.PROGRAM_SENT,
        Milestone.SCRIPT_SENT,
        Milestone.KERNEL_BEGUN,
        Milestone.KERNEL_SENT,
        Milestone.INITRD_BEGUN,
        Milestone.INITRD_SENT,
        Milestone.WORKFLOW_RUNNING,
        Milestone.ACTION_BEGUN,
        Milestone.ACTION_ENDED,
    }
)
"""What may follow later milestones in one boot and still be progress: a boot program loads another one, a script is
asked for again in a VLAN, actions follow each other."""


ENDS = {
    Milestone.PROGRAM_SENT: Milestone.PROGRAM_BEGUN,
    Milestone.KERNEL_SENT: Milestone.KERNEL_BEGUN,
    Milestone.INITRD_SENT: Milestone.INITRD_BEGUN,
}


@dataclass(slots=True)
class Boot:
    """One way from the firmware's first packet on, in the order of the events. All times are seconds since the epoch.

    `at` is the milestone that the machine has come to, `since` when it came there first, without a step in between;
    `times` how often since; `latest` when last. `again` are earlier milestones that came again after that: how often.
    """

    began: float
    at: Milestone | None = None
    since: float = 0.0
    latest: float = 0.0
    times: int = 0
    reached: dict[Milestone, float] = field(default_factory=dict)
    again: dict[Milestone, int] = field(default_factory=dict)
    again_at: float = 0.0
    detail: Mapping[str, Value] = field(default_factory=dict)
    """Of the last event that made the milestone `at`."""
    events: list[JourneyEvent] = field(default_factory=list)
    marks: list[Milestone | None] = field(default_factory=list)
    """The milestone of each event, where it is one."""
    after: int = 0
    """How many of the events there were when `at` was reached last."""
    facts: dict[str, Value] = field(default_factory=dict)

    def take(self, event: JourneyEvent, reached: Milestone | None) -> None:
        """One more event of this boot."""
        self.events.append(event)
        self.marks.append(reached)
        self.facts.update(event.detail)
        if reached is None:
            return
        self.reached[reached] = event.time
        if reached is self.at:
            self.times += 1
            self.latest = event.time
            if reached in _TAKES_TURNS:
                self.since = event.time
        elif self.at is None or reached > self.at or reached in _TAKES_TURNS:
            self.at, self.since, self.latest, self.times = reached, event.time, event.time, 1
            self.again.clear()
        else:
            self.again[reached] = self.again.get(reached, 0) + 1
            self.again_at = event.time
            return
        self.detail, self.after = event.detail, len(self.events)

    def take_late(self, event: JourneyEvent, reached: Milestone) -> None:
        """The same of one that tells of a milestone before `at`: nothing that has happened since."""
        is_next = self.after == len(self.events)
        self.take(event, None)
        self.reached[reached] = event.time
        self.after += is_next

    @property
    def boots_osie(self) -> bool:
        """Whether it got a kernel from here: then the agent is to come."""
        return Milestone.KERNEL_SENT in self.reached or Milestone.INITRD_SENT in self.reached

    def last(self, *steps: Step) -> JourneyEvent | None:
        """The last event of these steps, but for findings; None: there is none."""
        chosen = (event for event in reversed(self.events) if not _is_finding(event))
        return next((event for event in chosen if not steps or event.step in steps), None)

    def detail_of(self, name: str) -> Value:
        """The last value of this name in the details of its events; an empty text if there is none."""
        return self.facts.get(name, "")

    def heard_of(self, *steps: Step) -> bool:
        """Whether anything of these steps happened after `at` was reached: what is missing has not been silent then."""
        return any(event.step in steps for event in self.since_then())

    def since_then(self) -> Iterator[JourneyEvent]:
        """The events after `at` was reached last, newest first, but for findings."""
        for event in reversed(self.events[self.after :]):
            if not _is_finding(event):
                yield event


def _is_finding(event: JourneyEvent) -> bool:
    """Return True if the edge itself has said this of the machine, be it no more than a note."""
    return event.outcome is Outcome.WARNING or "rule" in event.detail


@dataclass(frozen=True, slots=True)
class Story:
    """The boots of one machine, oldest first; at least one."""

    mac: str
    boots: tuple[Boot, ...]

    @property
    def boot(self) -> Boot:
        """The one that is under way, or was the last."""
        return self.boots[-1]

    @property
    def before(self) -> Boot | None:
        """The one before; None: it is not known."""
        return self.boots[-2] if len(self.boots) > 1 else None

    @property
    def model(self) -> str:
        """Maker and model, as iPXE told it in any of the boots; empty if it did not."""
        return next((str(model) for boot in reversed(self.boots) if (model := boot.detail_of("model"))), "")


def read(mac: str, events: Iterable[JourneyEvent]) -> Story:
    """The story of a machine, from its events, oldest first."""
    boots: list[Boot] = []
    for event in events:
        reached = milestone(event.step, event.outcome, event.detail)
        if not boots or _begins(boots[-1], event, reached):
            boots.append(Boot(event.time))
        boot = boots[-1]
        if reached is not None and _is_late(boot, event, reached):
            boot.take_late(event, reached)
        else:
            boot.take(event, _counted(boot, reached))
    return Story(mac, tuple(boots) or (Boot(0.0),))


def _begins(boot: Boot, event: JourneyEvent, reached: Milestone | None) -> bool:
    """Whether with this event another boot begins."""
    at = boot.at
    if reached is None or at is None:
        return False
    if reached is Milestone.OFFERED:
        return at >= Milestone.PROGRAM_BEGUN or event.time - max(boot.latest, boot.again_at) > GAP_SECONDS
    if reached is Milestone.IPXE_OFFERED:  # of iPXE in the card's ROM, before which there is nothing
        return at >= Milestone.KERNEL_BEGUN or event.time - max(boot.latest, boot.again_at) > GAP_SECONDS
    if reached is Milestone.SCRIPT_SENT and "medium" in event.detail:  # without DHCP, it is the first that is heard
        return at >= Milestone.KERNEL_BEGUN or event.time - max(boot.latest, boot.again_at) > GAP_SECONDS
    # An installed system that comes up; a Linux that renews its lease while the agent works is no news.
    return reached is Milestone.OS_OFFERED and at >= Milestone.WORKFLOW_ENDED


def _is_late(boot: Boot, event: JourneyEvent, reached: Milestone) -> bool:
    """Whether it is the end of a transfer, told when the machine was further already: it had all before we knew so."""
    begun, at = ENDS.get(reached), boot.at
    if begun is None or at is None or at <= reached:
        return False
    took = event.detail.get("duration_seconds")
    if isinstance(took, int | float):
        return event.time - took <= boot.reached[at]
    return boot.reached.get(reached, 0.0) < boot.reached.get(begun, 0.0) <= boot.reached[at]


def _counted(boot: Boot, reached: Milestone | None) -> Milestone | None:
    """The milestone, unless it says nothing here: leases while the agent works, the agent's second connection."""
    at = boot.at
    if reached is None or at is None:
        return reached
    if reached is Milestone.KERNEL_SENT and reached not in boot.reached and Milestone.INITRD_SENT in boot.reached:
        return Milestone.INITRD_SENT  # U-Boot until 2023 fetches the initrd first: it has both
    if reached in (Milestone.OS_OFFERED, Milestone.OS_LEASED, Milestone.OSIE_UP) and at > Milestone.OSIE_UP:
        return None
    if reached is Milestone.AGENT_CONNECTED and at > Milestone.AGENT_CONNECTED:
        return None
    return reached
