"""The journey of a machine, divided into boots: how far each one came, and which steps were repeated since. Pure.

A repeated earlier step is stronger evidence than a clock: firmware that asks for an address again has given up its
last step. So a boot has its last milestone and the earlier milestones that came again after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from edge.journey.events import JourneyEvent, Milestone, Outcome, Step, Value, milestone, shows_power_off
from edge.journey.history import RULE

GAP_SECONDS = 300.0
"""Silence in seconds after which a DHCP request of the firmware starts another boot."""

TAKES_TURNS = frozenset(
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
"""Milestones that may follow later ones in the same boot and still be progress: a boot program loads another one, a
script is requested again in a VLAN, actions follow each other."""


ENDS = {
    Milestone.PROGRAM_SENT: Milestone.PROGRAM_BEGUN,
    Milestone.KERNEL_SENT: Milestone.KERNEL_BEGUN,
    Milestone.INITRD_SENT: Milestone.INITRD_BEGUN,
}


_WORK = frozenset(
    {Milestone.WORKFLOW_RUNNING, Milestone.ACTION_BEGUN, Milestone.ACTION_ENDED, Milestone.WORKFLOW_ENDED}
)
_DHCP = frozenset(
    {
        Milestone.OFFERED,
        Milestone.LEASED,
        Milestone.IPXE_OFFERED,
        Milestone.IPXE_LEASED,
        Milestone.OS_OFFERED,
        Milestone.OS_LEASED,
    }
)
_OF_THE_MACHINE = frozenset({"osie", "boots", "model", "client", "uuid", "memory_bytes", "clock_ahead_seconds"})
"""Details that stay true until the machine restarts."""


@dataclass(slots=True)
class MachineBoot:
    """One boot from the firmware's first packet on, with its events in order. All times are seconds since the epoch.

    `at` is the milestone that the machine has reached. `since` is when it first reached it without another step in
    between, `times` how often since then, and `latest` when last. `again` counts the earlier milestones that were
    repeated after that.
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
    """The details of the last event that reached the milestone `at`."""
    events: list[JourneyEvent] = field(default_factory=list)
    marks: list[Milestone | None] = field(default_factory=list)
    """The milestone of each event, or None."""
    after: int = 0
    """The number of events when `at` was last reached."""
    facts: dict[str, Value] = field(default_factory=dict)
    workflow: str = ""
    """NAMESPACE/NAME of the Workflow that runs, or ran, in this boot; empty: none has begun."""
    continues: bool = False
    """True if the machine did not restart: its agent got another Workflow in the OSIE of the boot before."""
    after_power_off: bool = False
    """True if the BMC has reported that the machine was off before this boot."""

    def take(self, event: JourneyEvent, reached: Milestone | None) -> None:
        """Add an event of this boot."""
        self.events.append(event)
        self.marks.append(reached)
        self.facts.update(event.detail)
        if reached is None:
            return
        if reached in _WORK and (name := workflow_of(event)):
            self.workflow = name
        self.reached[reached] = event.time
        if reached is self.at:
            self.times += 1
            self.latest = event.time
            if reached in TAKES_TURNS:
                self.since = event.time
        elif self.at is None or reached > self.at or reached in TAKES_TURNS:
            self.at, self.since, self.latest, self.times = reached, event.time, event.time, 1
            self.again.clear()
        else:
            self.again[reached] = self.again.get(reached, 0) + 1
            self.again_at = event.time
            return
        self.detail, self.after = event.detail, len(self.events)

    def take_late(self, event: JourneyEvent, reached: Milestone) -> None:
        """Add an event that reports a milestone from before `at`: it is no repetition."""
        is_next = self.after == len(self.events)
        self.take(event, None)
        self.reached[reached] = event.time
        self.after += is_next

    @property
    def boots_osie(self) -> bool:
        """True if the machine got a kernel from this edge: then its agent is expected."""
        return Milestone.KERNEL_SENT in self.reached or Milestone.INITRD_SENT in self.reached

    @property
    def ends_off(self) -> bool:
        """True if the BMC has reported after the last step that the machine is off."""
        return any(shows_power_off(event.step, event.detail) for event in self.events[self.after :])

    def last(self, *steps: Step) -> JourneyEvent | None:
        """Return the last event of these steps (default: any) that is no finding, or None."""
        chosen = (event for event in reversed(self.events) if not _is_finding(event))
        return next((event for event in chosen if not steps or event.step in steps), None)

    def detail_of(self, name: str) -> Value:
        """Return the last value of this name in the details of the events, or an empty string."""
        return self.facts.get(name, "")

    def heard_of(self, *steps: Step) -> bool:
        """Return True if an event of these steps came after `at` was reached: then the machine is not silent."""
        return any(event.step in steps for event in self.since_then())

    def since_then(self) -> Iterator[JourneyEvent]:
        """Yield the events after `at` was last reached, newest first, without findings."""
        for event in reversed(self.events[self.after :]):
            if not _is_finding(event):
                yield event


@dataclass(frozen=True, slots=True)
class Story:
    """The boots of one machine, oldest first; at least one."""

    mac: str
    boots: tuple[MachineBoot, ...]

    @property
    def boot(self) -> MachineBoot:
        """The current or last boot."""
        return self.boots[-1]

    @property
    def before(self) -> MachineBoot | None:
        """The boot before that, or None if it is not known."""
        return self.boots[-2] if len(self.boots) > 1 else None

    @property
    def model(self) -> str:
        """Maker and model as iPXE reported them in any of the boots; empty if it did not."""
        return next((str(model) for boot in reversed(self.boots) if (model := boot.detail_of("model"))), "")


def read(mac: str, events: Iterable[JourneyEvent]) -> Story:
    """Divide the events of a machine, oldest first, into boots."""
    boots: list[MachineBoot] = []
    for event in events:
        reached = milestone(event.step, event.outcome, event.detail)
        if not boots:
            boots.append(MachineBoot(event.time))
        elif _begins_work(boots[-1], event, reached):
            boots.append(_next_in_the_same_osie(boots[-1], event))
        elif _begins(boots[-1], event, reached):
            # The system that was installed, for no further Workflow.
            by_disk = reached in (Milestone.OS_OFFERED, Milestone.OS_LEASED)
            ends_off = boots[-1].ends_off
            boots.append(MachineBoot(event.time) if by_disk else _next(boots[-1], event))
            boots[-1].after_power_off = ends_off
        boot = boots[-1]
        if reached is not None and _is_late(boot, event, reached):
            boot.take_late(event, reached)
        else:
            boot.take(event, _counted(boot, event, reached))
    return Story(mac, tuple(boots) or (MachineBoot(0.0),))


def _is_finding(event: JourneyEvent) -> bool:
    """Return True if the event is a diagnosis of an edge (`edge.journey.history.is_finding`)."""
    return event.outcome is Outcome.WARNING or RULE in event.detail


def workflow_of(event: JourneyEvent) -> str:
    """Return NAMESPACE/NAME of the Workflow that an event is about, or "" if it is about none."""
    return str(event.detail.get("workflow", "")) if event.step in (Step.WORKFLOW, Step.ACTION) else ""


def _begins_work(boot: MachineBoot, event: JourneyEvent, reached: Milestone | None) -> bool:
    """Return whether the agent, which has stayed, begins another Workflow with this event, or the same one again."""
    name = workflow_of(event)
    if reached not in _WORK or boot.at is None or not boot.workflow or not name:
        return False
    if reached is Milestone.WORKFLOW_ENDED:  # one that never ran ends beside the one that does
        return name != boot.workflow and boot.at >= Milestone.WORKFLOW_ENDED
    begins = reached in (Milestone.WORKFLOW_RUNNING, Milestone.ACTION_BEGUN)
    return begins and (name != boot.workflow or boot.at >= Milestone.WORKFLOW_ENDED)


def _next(before: MachineBoot, event: JourneyEvent) -> MachineBoot:
    """Return the boot that begins with this event. It takes over what was reported of the Workflow that it is for."""
    boot = MachineBoot(event.time)
    for earlier in _of_the_next_workflow(before):
        boot.take(earlier, None)
    return boot


def _next_in_the_same_osie(before: MachineBoot, event: JourneyEvent) -> MachineBoot:
    """Return the second Workflow of an OSIE as a boot of its own, which knows what the first knew of the machine."""
    boot = _next(before, event)
    boot.continues = True
    boot.facts = {name: value for name, value in before.facts.items() if name in _OF_THE_MACHINE} | boot.facts
    return boot


def _of_the_next_workflow(before: MachineBoot) -> list[JourneyEvent]:
    """Take the last reports of another Workflow (Pending, Scheduled) out of the boot whose own Workflow has ended."""
    if not before.workflow or before.at is None or before.at < Milestone.WORKFLOW_ENDED:
        return []
    found: list[JourneyEvent] = []
    for at in range(len(before.events) - 1, before.after - 1, -1):
        event = before.events[at]
        if event.step is Step.WORKFLOW and workflow_of(event) not in ("", before.workflow):
            found.append(event)
            del before.events[at], before.marks[at]
    found.reverse()
    return found


def _begins(boot: MachineBoot, event: JourneyEvent, reached: Milestone | None) -> bool:
    """Return True if this event starts another boot."""
    at = boot.at
    if reached is None or at is None:
        return False
    if reached in _DHCP and boot.ends_off:
        return True
    # The first packet of a boot is from the firmware, from iPXE in the card's ROM, or from a medium without DHCP.
    from_ipxe = reached is Milestone.IPXE_OFFERED or (reached is Milestone.SCRIPT_SENT and "medium" in event.detail)
    if reached is Milestone.OFFERED or from_ipxe:
        passed = Milestone.KERNEL_BEGUN if from_ipxe else Milestone.PROGRAM_BEGUN
        return at >= passed or event.time - max(boot.latest, boot.again_at) > GAP_SECONDS
    # An installed system that comes up; a Linux that renews its lease while the agent works is no news.
    return reached is Milestone.OS_OFFERED and at >= Milestone.WORKFLOW_ENDED


def _is_late(boot: MachineBoot, event: JourneyEvent, reached: Milestone) -> bool:
    """Return True for the end of a transfer that was reported after the machine's next step."""
    begun, at = ENDS.get(reached), boot.at
    if begun is None or at is None or at <= reached:
        return False
    took = event.detail.get("duration_seconds")
    if isinstance(took, int | float):
        return event.time - took <= boot.reached[at]
    return boot.reached.get(reached, 0.0) < boot.reached.get(begun, 0.0) <= boot.reached[at]


def _counted(boot: MachineBoot, event: JourneyEvent, reached: Milestone | None) -> Milestone | None:
    """Return the milestone unless it is no progress here: a lease while the agent works, its second connection."""
    at = boot.at
    if reached is None or at is None:
        return reached
    if reached is Milestone.KERNEL_SENT and reached not in boot.reached and Milestone.INITRD_SENT in boot.reached:
        return Milestone.INITRD_SENT  # U-Boot until 2023 fetches the initrd first: it has both
    if reached in (Milestone.OS_OFFERED, Milestone.OS_LEASED, Milestone.OSIE_UP) and at > Milestone.OSIE_UP:
        return None
    if reached is Milestone.AGENT_CONNECTED and at > Milestone.AGENT_CONNECTED:
        return None
    if reached is Milestone.WORKFLOW_ENDED and _ends_beside(boot, event):
        return None
    return reached


def _ends_beside(boot: MachineBoot, event: JourneyEvent) -> bool:
    """Return whether a Workflow ends without having run, of its Template for example: the machine does not end by it.

    What it does goes on, whether that is a boot or another Workflow.
    """
    if event.outcome is Outcome.OK or Milestone.WORKFLOW_ENDED in boot.reached:
        return False
    if boot.workflow:
        return workflow_of(event) not in ("", boot.workflow)
    return boot.at is not None and boot.at < Milestone.WORKFLOW_RUNNING
