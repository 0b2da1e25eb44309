"""Everything that is shown of one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from edge.journey.events import JourneyEvent
from edge.journey.expectations import Awaited, Expectations, Limits, read
from edge.journey.recorder import Journey
from edge.journey.steps import Outcome, Step
from edge.machines import Inventory, Machine
from edge.page.rows import Row, as_it_was, named, row
from edge.page.timeline import Chain, Timeline, chains, events_of, timeline
from tink.api.v1alpha2 import Raw, as_mapping
from tink.workflow.status import parse_timestamp, status_of

EVENTS: Final = 150
"""So many events of a machine tell its boots."""
SHOWN_EVENTS: Final = 100
OUTPUT_LINES: Final = 200
OUTPUT_CHARACTERS: Final = 24_000
MAX_ACTIONS: Final = 100
EARLIER: Final = 8


@dataclass(frozen=True, slots=True)
class Action:
    """One of a Workflow. Times are in seconds since the epoch, 0: not yet; `seconds` None: it has not begun."""

    number: int
    name: str
    image: str
    state: str
    began: float
    seconds: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class WorkflowShown:
    """The one that the machine is at, or the last one."""

    name: str
    template: str
    state: str
    message: str
    began: float
    actions: tuple[Action, ...]
    more: int
    """Actions that are not shown."""


@dataclass(frozen=True, slots=True)
class MachineShown:
    """One machine. `output` is what its actions and its system printed last, oldest line first."""

    row: Row
    machine: Machine | None
    facts: tuple[tuple[str, str], ...]
    timeline: Timeline | None
    number: int
    """Of the boot that is shown, 0: the one that is under way, or was the last."""
    earlier: tuple[tuple[int, Timeline], ...]
    workflow: WorkflowShown | None
    output: str
    output_cut: bool
    events: tuple[JourneyEvent, ...]
    more_events: int
    manifest: str
    claimants: tuple[str, ...]


WorkflowLookup = Callable[[str, str], Raw | None]
"""(namespace, name of a Hardware): the Workflow that it is at, or the last one."""


class Machines:
    """Makes them."""

    def __init__(
        self,
        journey: Journey,
        inventory: Inventory,
        expectations: Expectations,
        workflow: WorkflowLookup,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is the journey's."""
        self._journey = journey
        self._inventory = inventory
        self._expectations = expectations
        self._workflow = workflow
        self._clock = clock

    def state(self, mac: str) -> object:
        """Another one when there is something new to be shown of this machine."""
        awaited, machine = self._expectations.of(mac), self._inventory.by_mac(mac)
        last = self._journey.last_sign(mac)
        workflow = self._workflow(machine.namespace, machine.name) if machine is not None else None
        version = as_mapping(workflow.get("metadata")).get("resourceVersion") if workflow is not None else None
        return last, awaited.finding if awaited is not None else None, version, machine

    def shown(self, mac: str, number: int = 0) -> MachineShown | None:
        """The machine with this MAC and its boot `number`, counted back from the last; None: nobody knows it."""
        machine = self._inventory.by_mac(mac)
        claimants = () if machine is not None else self._inventory.claimants(mac)
        last = self._journey.last_sign(mac)
        if machine is None and not claimants and last is None:
            return None
        awaited = self._expectations.of(mac) or as_it_was(self._journey, mac)
        limits, now = self._expectations.limits, self._clock()
        events = self._journey.events(mac)
        found = chains(read(mac, self._journey.newest(mac, EVENTS, earlier=True))) if events else []
        found.reverse()
        number = min(max(number, 0), max(len(found) - 1, 0))
        of_boot = events_of(found[number], found[number - 1] if number else None, events) if found else events
        lines, cut = _output(of_boot)
        return MachineShown(
            row=row(named(mac, machine), last, awaited, limits, claimed=bool(claimants)),
            machine=machine,
            facts=tuple(_facts(machine, events)),
            timeline=_drawn(found, number, now, limits, awaited) if found else None,
            number=number,
            earlier=tuple(
                (at, timeline(chain, now, limits, None))
                for at, chain in islice(enumerate(found), EARLIER)
                if len(found) > 1 and chain.began
            ),
            workflow=self._workflow_of(machine, now),
            output=lines,
            output_cut=cut,
            events=tuple(events[: -SHOWN_EVENTS - 1 : -1]),
            more_events=max(0, len(events) - SHOWN_EVENTS),
            manifest=_manifest(events) if machine is None else "",
            claimants=tuple(sorted(f"{each.namespace}/{each.name}" for each in claimants)),
        )

    def _workflow_of(self, machine: Machine | None, now: float) -> WorkflowShown | None:
        raw = self._workflow(machine.namespace, machine.name) if machine is not None else None
        return _workflow(raw, now) if raw is not None else None


def _drawn(found: list[Chain], number: int, now: float, limits: Limits, awaited: Awaited | None) -> Timeline:
    """Of the boots, the newest first, that of this number."""
    return timeline(
        found[number],
        now,
        limits,
        awaited if number == 0 and awaited and awaited.deadline else None,
        found[number + 1 :][:EARLIER],
    )


def _workflow(raw: Raw, now: float) -> WorkflowShown:
    """Of whatever stands in it: somebody's hand may have written it."""
    status, spec, metadata = status_of(raw), as_mapping(raw.get("spec")), as_mapping(raw.get("metadata"))
    actions = status.get("actions")
    listed = [as_mapping(each) for each in actions] if isinstance(actions, list) else []
    return WorkflowShown(
        name=f"{metadata.get('namespace', '')}/{metadata.get('name', '')}",
        template=str(as_mapping(spec.get("templateRef")).get("name") or ""),
        state=str(status.get("state") or "Pending"),
        message=str(status.get("message") or ""),
        began=parse_timestamp(status.get("startedAt")) or 0.0,
        actions=tuple(_action(at, each, now) for at, each in enumerate(listed[:MAX_ACTIONS], start=1)),
        more=max(0, len(listed) - MAX_ACTIONS),
    )


def _action(number: int, raw: Mapping[str, Any], now: float) -> Action:
    rendered, state = as_mapping(raw.get("rendered")), str(raw.get("state") or "Pending")
    began, ended = parse_timestamp(raw.get("startedAt")), parse_timestamp(raw.get("lastTransitioned"))
    seconds = None
    if began is not None:
        seconds = max(0.0, (now if state == "Running" or ended is None else ended) - began)
    failure = ": ".join(str(raw[name]) for name in ("failureReason", "failureMessage") if raw.get(name))
    name = str(rendered.get("name") or raw.get("id") or number)
    return Action(number, name, str(rendered.get("image") or ""), state, began or 0.0, seconds, failure)


def _facts(machine: Machine | None, events: list[JourneyEvent]) -> Iterator[tuple[str, str]]:
    """What it is, as far as is known."""
    if machine is not None:
        hardware = machine.hardware
        yield "Hardware", f"{machine.namespace}/{machine.name}"
        yield "Address", ", ".join(machine.addresses) or "none reserved"
        yield "OSIE", hardware.spec.osie.name if hardware.spec.osie is not None else "the default one"
        labels = ", ".join(f"{name}={value}" for name, value in sorted(hardware.metadata.labels.items()))
        if labels:
            yield "Labels", labels
        off = [word for word, is_so in (("DHCP", machine.disable_dhcp), ("netboot", machine.disable_netboot)) if is_so]
        if off:
            yield "Switched off", " and ".join(off)
    for name, words in (("model", "Model"), ("client", "Firmware"), ("uuid", "UUID")):
        known = next((str(event.detail[name]) for event in reversed(events) if event.detail.get(name)), "")
        if known:
            yield words, known


def _output(events: list[JourneyEvent]) -> tuple[str, bool]:
    """The last lines of what was printed and logged; whether there was more."""
    lines: list[str] = []
    room = OUTPUT_CHARACTERS
    for event in reversed(events):
        if event.outcome is not Outcome.INFO or event.step not in (Step.ACTION, Step.LOG):
            continue
        printed = event.detail.get("output", event.detail.get("lines"))
        if printed is None:
            continue
        source = str(event.detail.get("action", "")) or "log"
        for line in reversed(str(printed).splitlines()):
            whole = f"{source}: {line}"
            room -= len(whole) + 1
            if room < 0 or len(lines) >= OUTPUT_LINES:
                return "\n".join(reversed(lines)), True
            lines.append(whole)
    return "\n".join(reversed(lines)), False


def _manifest(events: list[JourneyEvent]) -> str:
    """The Hardware manifest that whoever heard the machine has proposed."""
    return next((str(event.detail["manifest"]) for event in reversed(events) if event.detail.get("manifest")), "")
