"""The words of a run: where a machine is, what a server is asked, and how a machine ended."""

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


class Step(StrEnum):
    """Where a machine is. Of those in `MEASURED` it is known how long they took."""

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
    Step.FIRMWARE_DHCP, Step.BOOT_PROGRAM, Step.IPXE_DHCP, Step.SCRIPT, Step.KERNEL, Step.INITRD, Step.OSIE_DHCP,
    Step.AGENT, Step.WORKFLOW, Step.ACTIONS, Step.DISK_BOOT, Step.SYSTEM_DHCP, Step.CLOUD_INIT,
)  # fmt: skip
"""Those whose time is the server's, or has a part of it; the rest is drawn from the profile."""


class Question(StrEnum):
    """What a server is asked, from the moment that it is sent last to the whole answer."""

    DHCP_OFFER = "dhcp-offer"
    DHCP_ACK = "dhcp-ack"
    TFTP = "tftp-first-answer"
    SCRIPT_GET = "script-get"
    METADATA_GET = "metadata-get"
    EVENT = "event"


class Whole(StrEnum):
    """From power-on (of the first time) until something is reached."""

    PROVISIONED = "provisioned"
    """The Workflow has Succeeded."""
    INSTALLED = "installed"
    """The installed system's cloud-init has its data."""


MAX_ERRORS: Final = 1000
"""Different errors that are counted apart; they have texts of servers in them."""
_OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a machine failed: the first thing that went wrong and was not mended. `injected`: the fleet itself did it."""

    machine: str
    step: str
    cause: str
    injected: bool


class Recorder:
    """Counts."""

    def __init__(self, machines: int) -> None:
        self.machines = machines
        self.at: Counter[str] = Counter({Step.OFF: machines})
        """Machines by step."""
        self.seconds: dict[StrEnum, array[float]] = {key: array("d") for key in (*MEASURED, *Question, *Whole)}
        self.errors: Counter[str] = Counter()
        """What went wrong and was tried again."""
        self.failures: list[Failure] = []
        self.faults: Counter[str] = Counter()
        """What the fleet did to machines."""
        self.bytes_received: Counter[str] = Counter()
        self.packets = 0
        self.events = 0
        self.actions = 0
        self.twice: list[str] = []
        """Actions that were run again: the machine and the action."""
        self._runs: set[int] = set()

    def moved(self, before: Step, after: Step, seconds: float, *, completed: bool) -> None:
        """A machine goes from one step to another; `completed`: the first did what it is for."""
        self.at[before] -= 1
        self.at[after] += 1
        if completed and before in self.seconds:
            self.seconds[before].append(seconds)

    def took(self, what: Question | Whole, seconds: float) -> None:
        """How long it took."""
        self.seconds[what].append(seconds)

    def error(self, step: str, text: str) -> None:
        """Something went wrong, and is tried again."""
        key = f"{step}: {text}"
        self.errors[key if key in self.errors or len(self.errors) < MAX_ERRORS else _OTHERS] += 1

    def action_begins(self, machine: str, workflow: str, action: str) -> None:
        """An action is run; the same one a second time is what must not be."""
        self.actions += 1
        key = hash((workflow, action))
        if key in self._runs:
            self.twice.append(f"{machine}: action {action} of workflow {workflow}")
        self._runs.add(key)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so great a share of them does not exceed (nearest rank); 0 of none."""
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


class BarError(ValueError):
    """A bar that can't be read, or of something that is not measured."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `text` is as it was given."""

    text: str
    name: str
    comparison: str
    value: float

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Whether the numbers of a run reach it. Raises BarError for a name that there is not."""
        if self.name not in numbers:
            raise BarError(f"{self.text}: there is no {self.name}; there are {', '.join(numbers)}")
        return _OPERATORS[self.comparison](numbers[self.name], self.value)


DEFAULT_BARS: Final = ("failed-without-fault=0", "twice=0")


def parse(text: str) -> Bar:
    """A bar of its text. Raises BarError."""
    match = _BAR.fullmatch(text.strip())
    if match is None:
        raise BarError(f"{text!r} is no bar: NAME<VALUE, such as dhcp-offer.p99<1s, failed=0, succeeded>=99%")
    name, comparison, value, unit = match.groups()
    return Bar(text.strip(), name, comparison, float(value) * _FACTORS[unit])


_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_SHOWN_CAUSES: Final = 20
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Process:
    """What a process of the stack, or the fleet itself, took: seconds of processor time, MB of resident memory."""

    name: str
    cpu_seconds: float
    memory_mb: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. `numbers` are what bars can name; `conditions` say what was run, and how, in words."""

    conditions: Mapping[str, str]
    numbers: Mapping[str, float]
    failures: Sequence[Failure]
    errors: Mapping[str, int]
    faults: Mapping[str, int]
    twice: Sequence[str]
    processes: Sequence[Process] = ()
    broken: Sequence[str] = field(default=())
    """Bars that were not reached, with the number."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`. Times are seconds, memory MB."""
        return {"version": VERSION, "passed": not self.broken, **asdict(self)}


def numbers(recorder: Recorder, seconds: float) -> dict[str, float]:
    """All that bars can name."""
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
    """The bars that are not reached. Raises BarError."""
    return [f"{bar.text}: it is {found[bar.name]:g}" for bar in bars if not bar.holds(found)]


def lines(report: Report, counts: Mapping[StrEnum, int]) -> list[str]:
    """For people; `counts`: how many values each measured thing has."""
    found = report.numbers
    told = [f"{name}: {value}" for name, value in report.conditions.items()]
    told += [
        "",
        f"machines {found['machines']:.0f}   provisioned {found['provisioned']:.0f}   "
        f"installed {found['installed']:.0f}   failed {found['failed']:.0f} "
        f"(without a fault of ours {found['failed-without-fault']:.0f})   "
        f"actions {found['actions']:.0f}, run twice {found['twice']:.0f}   in {found['seconds']:.1f} s",
        "",
    ]
    for title, keys in (("from power-on", tuple(Whole)), ("steps", MEASURED), ("answers", tuple(Question))):
        told.append(f"{title + ' (s)':<20}{'count':>8}" + "".join(f"{name:>11}" for name in _PERCENTILES))
        for key in keys:
            values = "".join(f"{found[f'{key}.{name}']:>11.3f}" for name in _PERCENTILES)
            told.append(f"  {key:<18}{counts[key]:>8}{values}")
        told.append("")
    if report.processes:
        told.append(f"{'processes':<20}{'CPU s':>9}{'ms each':>10}{'MB':>9}{'peak MB':>10}")
        machines = max(found["machines"], 1)
        for each in report.processes:
            told.append(
                f"  {each.name:<18}{each.cpu_seconds:>9.1f}{1000 * each.cpu_seconds / machines:>10.2f}"
                f"{each.memory_mb:>9.0f}{each.peak_mb:>10.0f}"
            )
        told.append("")
    told += _counted("faults of ours", report.faults)
    told += _counted("went wrong and was tried again", report.errors)
    told += _causes(report.failures)
    told += [f"run twice: {each}" for each in report.twice[:_SHOWN_CAUSES]]
    told += [f"bar not reached: {each}" for each in report.broken]
    return told


def _counted(title: str, counted: Mapping[str, int]) -> list[str]:
    if not counted:
        return []
    most = sorted(counted.items(), key=lambda item: -item[1])
    rest = sum(count for _, count in most[_SHOWN_CAUSES:])
    shown = [f"  {count:>7}  {what}" for what, count in most[:_SHOWN_CAUSES]]
    return [f"{title}:", *shown, *([f"  {rest:>7}  others"] if rest else []), ""]


def _causes(failures: Sequence[Failure]) -> list[str]:
    """Failures by their cause, the most frequent first, with a machine to look at."""
    if not failures:
        return []
    counted = Counter((failure.step, failure.cause, failure.injected) for failure in failures)
    examples = {(failure.step, failure.cause, failure.injected): failure.machine for failure in reversed(failures)}
    told = ["failed, by first cause:"]
    for key, count in counted.most_common(_SHOWN_CAUSES):
        step, cause, injected = key
        told.append(f"  {count:>7}  {step}: {cause}{' (a fault of ours)' if injected else ''}, e.g. {examples[key]}")
    if len(counted) > _SHOWN_CAUSES:
        told.append(f"  {len(counted) - _SHOWN_CAUSES} more causes: see --json")
    return [*told, ""]
