"""The content of the page of one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.expectations import Diagnosis, Expectations, read
from edge.journey.recorder import Journey
from edge.machines import Inventory, Machine
from edge.page.rows import Row, as_it_was, named, row, traits
from edge.page.timeline import Timeline, chains, events_of, timeline
from edge.page.words import RowKind
from tink.api.v1alpha2 import Raw, as_mapping
from tink.workflow.status import parse_timestamp, status_of

EVENTS: Final = 150  # events of a machine from which its boots are read
SHOWN_EVENTS: Final = 100
OUTPUT_LINES: Final = 200
OUTPUT_CHARACTERS: Final = 24_000
LAST_LINE_CHARACTERS: Final = 300
MAX_ACTIONS: Final = 100
EARLIER: Final = 8
_AT_WORK: Final = ("Running", "Cancelling")


@dataclass(frozen=True, slots=True)
class ActionShown:
    """An action of a Workflow. Times are in seconds since the epoch, or 0. `seconds` is None before its begin."""

    number: int
    name: str
    image: str
    state: str
    began: float
    seconds: float | None
    failure: str
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkflowShown:
    """The current Workflow of a machine, or the last one."""

    name: str
    template: str
    state: str
    message: str
    began: float
    actions: tuple[ActionShown, ...]
    more: int  # actions that are not shown

    @property
    def line(self) -> str:
        """The state in words: `Running action 2 of 3: write-disk`, `Failed at action 1 of 3: x`."""
        of = len(self.actions) + self.more
        failed = next((each for each in self.actions if each.state == "Failed"), None)
        if self.state == "Failed" and failed is not None:
            return f"Failed at action {failed.number} of {of}: {failed.name}"
        begun = [each for each in self.actions if each.state != "Pending"]
        if self.state in _AT_WORK and begun:
            return f"{self.state} action {begun[-1].number} of {of}: {begun[-1].name}"
        return f"{self.state}: {self.message}" if self.message else self.state

    @property
    def failure(self) -> str:
        """The reason why an action failed; empty if none did."""
        return next((each.failure for each in self.actions if each.state == "Failed"), "")


@dataclass(frozen=True, slots=True)
class Wrong:
    """The problem of a machine since `began` (Unix time), its causes and remedy. `warning` False: may be intended."""

    reason: str
    warning: bool
    facts: str
    began: float
    causes: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()


class Command(NamedTuple):
    """A command line to copy, with the identifier of its HTML element."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class PowerShown:
    """The power of a machine with a BMC, as the BMC reported it last, and the commands for its BMC."""

    words: str
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class DiscoveryShown:
    """A machine that waits for its approval, or differs from the expected one. `command` is empty without a wait."""

    difference: str
    command: str


@dataclass(frozen=True, slots=True)
class MachineShown:
    """One machine. `output` has the last lines of its actions and its system; `last_line` came at `printed`."""

    row: Row
    wrong: Wrong | None
    machine: Machine | None
    facts: tuple[tuple[str, str], ...]
    power: PowerShown | None
    discovery: DiscoveryShown | None
    timeline: Timeline | None
    number: int  # the boot that is shown, counted back from the last; 0: the one that is under way, or was the last
    earlier: tuple[tuple[int, Timeline], ...]
    workflow: WorkflowShown | None
    output: str
    output_cut: bool
    last_line: str
    printed: float
    is_over: bool
    events: tuple[JourneyEvent, ...]
    more_events: int
    manifest: str
    claimants: tuple[str, ...]


WorkflowLookup = Callable[[str, str], Raw | None]
"""Returns the current Workflow of a Hardware, by namespace and name, or the last one."""


@dataclass(frozen=True)
class Machines:
    """Collects the content of the pages of machines. `clock` is the journey's."""

    journey: Journey
    inventory: Inventory
    expectations: Expectations
    workflow: WorkflowLookup
    clock: Callable[[], float]

    def state(self, mac: str) -> object:
        """Return a value that changes when there is something new to show of this machine."""
        awaited, machine = self.expectations.of(mac), self.inventory.by_mac(mac)
        last = self.journey.last_sign(mac)
        workflow = self.workflow(machine.namespace, machine.name) if machine is not None else None
        version = as_mapping(workflow.get("metadata")).get("resourceVersion") if workflow is not None else None
        power = self.inventory.power(machine) if machine is not None else ""
        difference = self.inventory.difference(machine) if machine is not None else ""
        return last, awaited.finding if awaited is not None else None, version, machine, power, difference

    def shown(self, mac: str, number: int = 0) -> MachineShown | None:
        """Return the machine with this MAC and its boot `number`, counted back from the last; None if it is unknown."""
        machine = self.inventory.by_mac(mac)
        claimants = () if machine is not None else self.inventory.claimants(mac)
        last = self.journey.last_sign(mac)
        if machine is None and not claimants and last is None:
            return None
        raw = self.workflow(machine.namespace, machine.name) if machine is not None else None
        awaited = self.expectations.of(mac) or as_it_was(self.journey, mac)
        limits, now = self.expectations.limits, self.clock()
        events = self.journey.events(mac)
        found = chains(read(mac, self.journey.newest(mac, EVENTS, earlier=True))) if events else []
        found.reverse()
        number = min(max(number, 0), max(len(found) - 1, 0))
        of_boot = events_of(found[number], found[number - 1] if number else None, events) if found else events
        lines, cut, printed = _output(of_boot)
        next_step = awaited if number == 0 and awaited and awaited.deadline else None
        proposed = (str(each.detail["manifest"]) for each in reversed(events) if each.detail.get("manifest"))
        its_traits = traits(self.journey, mac, last, awaited, None)
        power = self.inventory.power(machine) if machine is not None else ""
        its_row = row(
            named(mac, machine), last, awaited, limits, claimed=bool(claimants), traits=its_traits, power=power
        )
        drawn = timeline(found[number], now, limits, next_step, found[number + 1 :][:EARLIER]) if found else None
        return MachineShown(
            row=its_row,
            wrong=_wrong(its_row, awaited.finding if awaited is not None else None),
            machine=machine,
            facts=tuple(_facts(machine, events, its_traits.osie)),
            power=_power(machine, power) if machine is not None else None,
            discovery=_discovery(machine, self.inventory.difference(machine)) if machine is not None else None,
            timeline=drawn,
            number=number,
            earlier=tuple(
                (at, timeline(chain, now, limits, None))
                for at, chain in islice(enumerate(found), EARLIER)
                if len(found) > 1 and chain.began
            ),
            workflow=_workflow(raw, now) if raw is not None else None,
            output=lines,
            output_cut=cut,
            last_line=lines.rpartition("\n")[2][:LAST_LINE_CHARACTERS],
            printed=printed,
            is_over=number > 0 or (its_row.kind in (RowKind.DONE, RowKind.UNREGISTERED) and not _goes_on(drawn)),
            events=tuple(events[: -SHOWN_EVENTS - 1 : -1]),
            more_events=max(0, len(events) - SHOWN_EVENTS),
            manifest=next(proposed, "") if machine is None else "",
            claimants=tuple(sorted(f"{each.namespace}/{each.name}" for each in claimants)),
        )


def _goes_on(drawn: Timeline | None) -> bool:
    """Return True if a step of a boot goes on."""
    return drawn is not None and bool(drawn.bars) and drawn.bars[-1].open


def _wrong(its_row: Row, finding: Diagnosis | None) -> Wrong | None:
    """Return what is wrong with a machine; None: nothing is known to be."""
    if not its_row.wrong:
        return None
    if finding is None:  # a failed step that was not looked into yet
        return Wrong(its_row.reason, its_row.warning, its_row.wrong, its_row.heard)
    facts = finding.facts[:1].upper() + finding.facts[1:]
    began = finding.began or its_row.since
    return Wrong(finding.rule, its_row.warning, facts, began, tuple(map(str, finding.causes)), finding.checks)


def _workflow(raw: Raw, now: float) -> WorkflowShown:
    """Read a Workflow. Its status may have any content: users can write it."""
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


def _action(number: int, raw: Mapping[str, Any], now: float) -> ActionShown:
    rendered, state = as_mapping(raw.get("rendered")), str(raw.get("state") or "Pending")
    began, ended = parse_timestamp(raw.get("startedAt")), parse_timestamp(raw.get("lastTransitioned"))
    seconds = None
    if began is not None:
        seconds = max(0.0, (now if state == "Running" or ended is None else ended) - began)
    failure = ": ".join(str(raw[name]) for name in ("failureReason", "failureMessage") if raw.get(name))
    name = str(rendered.get("name") or raw.get("id") or number)
    over = 0.0 if state in ("Pending", "Running") else ended or 0.0
    return ActionShown(number, name, str(rendered.get("image") or ""), state, began or 0.0, seconds, failure, over)


def _facts(machine: Machine | None, events: list[JourneyEvent], booted: str) -> Iterator[tuple[str, str]]:
    """Yield what is known of the machine. `booted`: the OSIE that it booted last; empty: none is known."""
    if machine is not None:
        hardware = machine.hardware
        yield "Hardware", f"{machine.namespace}/{machine.name}"
        yield "Address", ", ".join(machine.addresses) or "none reserved"
        yield "OSIE", _osie(hardware.spec.osie.name if hardware.spec.osie is not None else "", booted)
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


_POWER_WORDS: Final = {"": "not read yet", "unknown": "unknown, because its BMC could not be read"}


def _power(machine: Machine, power: str) -> PowerShown | None:
    """Return the power of a machine and the commands that change it; None without a BMC."""
    if not power and machine.hardware.spec.bmc_ref is None:
        return None
    where = f" -n {machine.namespace}" if machine.namespace != "default" else ""
    actions = [each for each in ("on", "off", "cycle") if each != power and (power != "off" or each == "on")]
    commands = [Command(each, f"tinkedge power {machine.name} {each}{where}") for each in actions]
    commands.append(Command("check", f"tinkedge bmc check {machine.name}{where}"))
    return PowerShown(_POWER_WORDS.get(power, power), tuple(commands))


def _discovery(machine: Machine, difference: str) -> DiscoveryShown | None:
    """Return what discovery shows of a machine; None if it is approved and as expected."""
    if not machine.is_discovered and not difference:
        return None
    where = f" -n {machine.namespace}" if machine.namespace != "default" else ""
    command = f"tinkedge discover approve {machine.name} NEW-NAME{where}" if machine.is_discovered else ""
    return DiscoveryShown(difference, command)


def _osie(wanted: str, booted: str) -> str:
    if not wanted:
        return f"the default one ({booted})" if booted else "the default one"
    return f"{wanted} (booted last: {booted})" if booted not in ("", wanted) else wanted


def _output(events: list[JourneyEvent]) -> tuple[str, bool, float]:
    """Return the last lines that were printed and logged, whether there were more, and when the last one came."""
    lines: list[str] = []
    newest = 0.0
    room = OUTPUT_CHARACTERS
    for event in reversed(events):
        if event.outcome is not Outcome.INFO or event.step not in (Step.ACTION, Step.LOG):
            continue
        printed = event.detail.get("output", event.detail.get("lines"))
        if printed is None:
            continue
        source, newest = str(event.detail.get("action", "")) or "log", newest or event.time
        for line in reversed(str(printed).splitlines()):
            whole = f"{source}: {line}"
            room -= len(whole) + 1
            if room < 0 or len(lines) >= OUTPUT_LINES:
                return "\n".join(reversed(lines)), True, newest
            lines.append(whole)
    return "\n".join(reversed(lines)), False, newest
