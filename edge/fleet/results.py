"""The results of a run: steps, counters, the report, and the bars that a run must reach. Pure."""

from __future__ import annotations

import math
import operator
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from tink.errors import TinkedgeError


class FleetStep(StrEnum):
    """The step of a machine's life. Durations are recorded for the steps in `MEASURED`."""

    OFF = "off"
    FIRMWARE = "firmware"
    FIRMWARE_DHCP = "firmware-dhcp"
    BOOT_PROGRAM = "boot-program"
    LOADER = "loader"
    IPXE_DHCP = "ipxe-dhcp"
    SCRIPT = "script"
    KERNEL = "kernel"
    INITRD = "initrd"
    STARTING = "starting"
    OSIE_DHCP = "osie-dhcp"
    OSIE = "osie"
    AGENT = "agent"
    WORKFLOW = "workflow"
    ACTIONS = "actions"
    REBOOT = "reboot"
    DISK_BOOT = "disk-boot"
    SYSTEM = "system"
    SYSTEM_DHCP = "system-dhcp"
    CLOUD_INIT = "cloud-init"
    DONE = "done"
    FAILED = "failed"


MEASURED = (
    FleetStep.FIRMWARE_DHCP, FleetStep.BOOT_PROGRAM, FleetStep.IPXE_DHCP, FleetStep.SCRIPT, FleetStep.KERNEL,
    FleetStep.INITRD, FleetStep.OSIE_DHCP, FleetStep.AGENT, FleetStep.WORKFLOW, FleetStep.ACTIONS, FleetStep.DISK_BOOT,
    FleetStep.SYSTEM_DHCP, FleetStep.CLOUD_INIT,
)  # fmt: skip
"""Steps whose duration depends on the server; the others are drawn from the profile."""


class Question(StrEnum):
    """A kind of request. It is measured from its last transmission to the complete answer."""

    DHCP_OFFER = "dhcp-offer"
    DHCP_ACK = "dhcp-ack"
    TFTP = "tftp-first-answer"
    SCRIPT_GET = "script-get"
    METADATA_GET = "metadata-get"
    EVENT = "event"
    POWER_ON = "bmc-power-on"
    """From the request to boot a machine by its BMC to the machine's first start."""


class Whole(StrEnum):
    """A milestone, measured from the first power-on."""

    PROVISIONED = "provisioned"
    """The Workflow has Succeeded."""
    INSTALLED = "installed"
    """The installed system's cloud-init has its data."""


MAX_ERRORS: Final = 1000
"""Maximum number of different error texts; servers have written some of them."""
_OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed machine with its first unrecovered error. `injected`: a fault of the profile is the cause."""

    machine: str
    step: str
    cause: str
    injected: bool


class Recorder:
    """The counters of a run."""

    def __init__(self, machines: int) -> None:
        self.machines = machines
        self.at: Counter[str] = Counter({FleetStep.OFF: machines})
        """Machines by step."""
        self.seconds: dict[StrEnum, array[float]] = {key: array("d") for key in (*MEASURED, *Question, *Whole)}
        self.errors: Counter[str] = Counter()
        """Errors after which a machine tried again."""
        self.failures: list[Failure] = []
        self.faults: Counter[str] = Counter()
        """Injected faults."""
        self.bytes_received: Counter[str] = Counter()
        self.packets = 0
        self.events = 0
        self.actions = 0
        self.twice: list[str] = []
        """Actions that ran twice: the machine and the action."""
        self._runs: set[int] = set()

    def moved(self, before: FleetStep, after: FleetStep, seconds: float, *, completed: bool) -> None:
        """Record a machine's step. `completed`: the step before reached its goal."""
        self.at[before] -= 1
        self.at[after] += 1
        if completed and before in self.seconds:
            self.seconds[before].append(seconds)

    def took(self, what: Question | Whole, seconds: float) -> None:
        """Record a duration in seconds."""
        self.seconds[what].append(seconds)

    def error(self, step: str, text: str) -> None:
        """Record an error after which the machine tries again."""
        key = f"{step}: {text}"
        self.errors[key if key in self.errors or len(self.errors) < MAX_ERRORS else _OTHERS] += 1

    def action_begins(self, machine: str, workflow: str, action: str) -> None:
        """Record the start of an action. An action must not run twice."""
        self.actions += 1
        key = hash((workflow, action))
        if key in self._runs:
            self.twice.append(f"{machine}: action {action} of workflow {workflow}")
        self._runs.add(key)


def percentile(values: Iterable[float], share: float) -> float:
    """Return a percentile by the nearest-rank method; 0 without values."""
    found = sorted(values)
    return found[max(math.ceil(len(found) * share), 1) - 1] if found else 0.0


_BAR: Final = re.compile(r"([a-z][a-z-]*(?:\.[a-z0-9]+)?)\s*(<=|>=|<|>|=)\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|%)?")
_FACTORS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "%": 0.01, None: 1.0}
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class BarError(TinkedgeError, ValueError):
    """A bar is malformed, or names a number that is not measured."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit for one number of the report. `text` is the user's input."""

    text: str
    name: str
    comparison: str
    value: float

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Return True if the numbers of a run reach the bar. Raises BarError for an unknown name."""
        if self.name not in numbers:
            raise BarError(f"{self.text}: there is no {self.name}; there are {', '.join(numbers)}")
        return _OPERATORS[self.comparison](numbers[self.name], self.value)


DEFAULT_BARS: Final = ("failed-without-fault=0", "twice=0")


def parse(text: str) -> Bar:
    """Parse a bar. Raises BarError."""
    match = _BAR.fullmatch(text.strip())
    if match is None:
        raise BarError(f"{text!r} is not a bar: NAME<VALUE, such as dhcp-offer.p99<1s, failed=0, succeeded>=99%")
    name, comparison, value, unit = match.groups()
    return Bar(text.strip(), name, comparison, float(value) * _FACTORS[unit])


_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_SHOWN_CAUSES: Final = 20
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Process:
    """The resources of a process: seconds of processor time, MB of resident memory."""

    name: str
    cpu_seconds: float
    memory_mb: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The report of a run. Bars can name `numbers`; `conditions` describe the run in words."""

    conditions: Mapping[str, str]
    numbers: Mapping[str, float]
    failures: Sequence[Failure]
    errors: Mapping[str, int]
    faults: Mapping[str, int]
    twice: Sequence[str]
    processes: Sequence[Process] = ()
    broken: Sequence[str] = field(default=())
    """Missed bars, with the measured number."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`. Times are seconds, memory MB."""
        return {"version": VERSION, "passed": not self.broken, **asdict(self)}


def numbers(recorder: Recorder, seconds: float) -> dict[str, float]:
    """Return the numbers that bars can name."""
    failed = len(recorder.failures)
    injected = sum(failure.injected for failure in recorder.failures)
    found = {
        "machines": float(recorder.machines),
        "succeeded": (len(recorder.seconds[Whole.PROVISIONED]) / recorder.machines) if recorder.machines else 0.0,
        "provisioned": float(len(recorder.seconds[Whole.PROVISIONED])),
        "installed": float(len(recorder.seconds[Whole.INSTALLED])),
        "failed": float(failed),
        "failed-without-fault": float(failed - injected),
        "twice": float(len(recorder.twice)),
        "powered-on": float(len(recorder.seconds[Question.POWER_ON])),
        "actions": float(recorder.actions),
        "errors": float(recorder.errors.total()),
        "seconds": seconds,
    }
    for key in (*Whole, *MEASURED, *Question):
        values = recorder.seconds[key]
        for name, share in _PERCENTILES.items():
            found[f"{key}.{name}"] = round(percentile(values, share), 6)
    return found


def judged(bars: Sequence[Bar], found: Mapping[str, float]) -> list[str]:
    """Return the missed bars. Raises BarError."""
    return [f"{bar.text}: it is {found[bar.name]:g}" for bar in bars if not bar.holds(found)]


def lines(report: FleetReport, counts: Mapping[StrEnum, int]) -> list[str]:
    """Return the report as text. `counts`: number of values of each measured thing."""
    found = report.numbers
    text = [f"{name}: {value}" for name, value in report.conditions.items()]
    text += [
        "",
        f"machines {found['machines']:.0f}   provisioned {found['provisioned']:.0f}   "
        f"installed {found['installed']:.0f}   failed {found['failed']:.0f} "
        f"(without an injected fault {found['failed-without-fault']:.0f})   "
        f"actions {found['actions']:.0f}, run twice {found['twice']:.0f}   in {found['seconds']:.1f} s",
        "",
    ]
    for title, keys in (("from power-on", tuple(Whole)), ("steps", MEASURED), ("answers", tuple(Question))):
        text.append(f"{title + ' (s)':<20}{'count':>8}" + "".join(f"{name:>11}" for name in _PERCENTILES))
        for key in keys:
            if key is Question.POWER_ON and not counts[key]:
                continue  # a fleet without BMCs
            values = "".join(f"{found[f'{key}.{name}']:>11.3f}" for name in _PERCENTILES)
            text.append(f"  {key:<18}{counts[key]:>8}{values}")
        text.append("")
    if report.processes:
        text.append(f"{'processes':<20}{'CPU s':>9}{'ms each':>10}{'MB':>9}{'peak MB':>10}")
        machines = max(found["machines"], 1)
        for each in report.processes:
            text.append(
                f"  {each.name:<18}{each.cpu_seconds:>9.1f}{1000 * each.cpu_seconds / machines:>10.2f}"
                f"{each.memory_mb:>9.0f}{each.peak_mb:>10.0f}"
            )
        text.append("")
    text += _counted("injected faults", report.faults)
    text += _counted("errors that were retried", report.errors)
    text += _causes(report.failures)
    text += [f"run twice: {each}" for each in report.twice[:_SHOWN_CAUSES]]
    text += [f"bar not reached: {each}" for each in report.broken]
    return text


def _counted(title: str, counted: Mapping[str, int]) -> list[str]:
    if not counted:
        return []
    most = sorted(counted.items(), key=lambda item: -item[1])
    rest = sum(count for _, count in most[_SHOWN_CAUSES:])
    shown = [f"  {count:>7}  {what}" for what, count in most[:_SHOWN_CAUSES]]
    return [f"{title}:", *shown, *([f"  {rest:>7}  others"] if rest else []), ""]


def _causes(failures: Sequence[Failure]) -> list[str]:
    """Group failures by cause, the most frequent first, with one machine as example."""
    if not failures:
        return []
    counted = Counter((failure.step, failure.cause, failure.injected) for failure in failures)
    examples = {(failure.step, failure.cause, failure.injected): failure.machine for failure in reversed(failures)}
    text = ["failed, by first cause:"]
    for key, count in counted.most_common(_SHOWN_CAUSES):
        step, cause, injected = key
        text.append(f"  {count:>7}  {step}: {cause}{' (injected fault)' if injected else ''}, e.g. {examples[key]}")
    if len(counted) > _SHOWN_CAUSES:
        text.append(f"  {len(counted) - _SHOWN_CAUSES} more causes: see --json")
    return [*text, ""]
