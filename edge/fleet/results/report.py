"""What a run has found: numbers by name, for bars; JSON; and text for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from edge.fleet.results.bars import Bar
from edge.fleet.results.recorder import Failure, Recorder, percentile
from edge.fleet.results.steps import MEASURED, Question, Whole

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
