"""What samples of a soak say: is anything growing that should not? Pure.

The first half is for what fills up by design (journeys, caches, the allocator's arenas). Of the second half a straight
line is fitted through each figure: how much it rises from the half's beginning to its end is the growth that is judged.
A line through hundreds of samples is not fooled by a peak at the end, and not by a leak hidden under noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

MEGABYTE: Final = 1_000_000


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment."""

    seconds: float
    """Since the beginning."""
    memory: int
    """Bytes of private memory, without what files stand behind."""
    journey_bytes: int
    """Of these, about what the journeys of machines take, which may fill 128 MiB by design."""
    descriptors: int
    threads: int
    files: int
    """In the data directory."""
    disk_bytes: int
    blocks: int
    """What Python has allocated, in objects of any kind."""
    tasks: int
    cpu: float
    """Processor seconds so far."""
    lives: int
    """Machines that have come and gone so far."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Objects by kind; in some samples only."""


@dataclass(frozen=True)
class Bounds:
    """The most that may be there at the second half's end beyond what was there at its beginning."""

    memory: float = 10 * MEGABYTE
    """Three kilobytes a machine, two machines a second; the allocator's own swings are about as large."""
    descriptors: float = 15
    """As many connections as are open at once stay open for a while; a busier machine has more at once."""
    threads: float = 2
    files: float = 3
    tasks: float = 20
    kind: float = 1000
    """Objects of one kind, if it is a tenth more than there were, too."""
    cpu_ratio: float = 1.3
    """Processor time for a life, in the last quarter to that of the second."""


def growth(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> float:
    """How much a line through this figure (least squares) rises from the first sample to the last."""
    times = [sample.seconds for sample in samples]
    values = [figure(sample) for sample in samples]
    time, value = fmean(times), fmean(values)
    spread = sum((each - time) ** 2 for each in times)
    if not spread:
        return 0.0
    slope = sum((at - time) * (each - value) for at, each in zip(times, values, strict=True)) / spread
    return slope * (times[-1] - times[0])


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    middle = (samples[0].seconds + samples[-1].seconds) / 2
    return [sample for sample in samples if sample.seconds >= middle]


def quarter(samples: Sequence[Sample], number: int) -> Sequence[Sample]:
    """The first is 0."""
    begin, length = samples[0].seconds, (samples[-1].seconds - samples[0].seconds) / 4
    end = begin + (number + 1) * length
    return [sample for sample in samples if begin + number * length <= sample.seconds <= end]


def cpu_of_a_life(samples: Sequence[Sample]) -> float:
    """Processor seconds for each machine that came and went meanwhile."""
    return (samples[-1].cpu - samples[0].cpu) / max(1, samples[-1].lives - samples[0].lives)


def grown_kinds(samples: Sequence[Sample], bounds: Bounds) -> dict[str, tuple[int, int]]:
    """Kinds of objects that have become more: how many there were at least in the first third, and in the last.

    At least: what is in cycles stays until the collector comes by, which is seldom, so most counts are too high.
    """
    counted = [sample.kinds for sample in samples if sample.kinds]
    some = len(counted) // 3
    if not some:
        return {}
    found = {}
    for kind in {name for kinds in counted for name in kinds}:
        before, after = (min(kinds.get(kind, 0) for kinds in part) for part in (counted[:some], counted[-some:]))
        if after - before > max(bounds.kind, before / 10):
            found[kind] = (before, after)
    return found


def complaints(samples: Sequence[Sample], bounds: Bounds) -> list[str]:
    """What has grown, in words; empty if all is flat."""
    half = second_half(samples)
    figures: dict[str, tuple[Callable[[Sample], float], float]] = {
        "bytes of memory beside the journeys": (lambda sample: sample.memory - sample.journey_bytes, bounds.memory),
        "descriptors": (lambda sample: sample.descriptors, bounds.descriptors),
        "threads": (lambda sample: sample.threads, bounds.threads),
        "files": (lambda sample: sample.files, bounds.files),
        "tasks": (lambda sample: sample.tasks, bounds.tasks),
    }
    said = []
    for name, (figure, bound) in figures.items():
        more = growth(half, figure)
        if more > bound:
            said.append(f"{name}: {more:,.0f} more in the second half, at most {bound:,.0f} may be")
    for kind, (least, at_last) in grown_kinds(half, bounds).items():
        said.append(f"objects of {kind}: {least:,} at least, then {at_last:,}")
    before, after = (quarter(samples, number) for number in (1, 3))
    costs = cpu_of_a_life(before), cpu_of_a_life(after)
    if costs[1] > bounds.cpu_ratio * costs[0]:
        said.append(f"processor time for a life: {1000 * costs[0]:.1f} ms, then {1000 * costs[1]:.1f} ms")
    return said


def table(samples: Sequence[Sample]) -> str:
    """The figures for people: at the middle and at the end (means of a twentieth), and what the fitted line says."""
    half = second_half(samples)
    some = max(1, len(half) // 10)
    rows: list[tuple[str, Callable[[Sample], float], str]] = [
        ("memory, MB", lambda sample: sample.memory / MEGABYTE, ".1f"),
        ("of these journeys, MB", lambda sample: sample.journey_bytes / MEGABYTE, ".1f"),
        ("descriptors", lambda sample: sample.descriptors, ".1f"),
        ("threads", lambda sample: sample.threads, ".1f"),
        ("files in the data directory", lambda sample: sample.files, ".1f"),
        ("bytes there, MB", lambda sample: sample.disk_bytes / MEGABYTE, ".1f"),
        ("tasks", lambda sample: sample.tasks, ".1f"),
        ("allocated blocks", lambda sample: sample.blocks, ",.0f"),
    ]
    lines = [f"{'':30}{'middle':>12}{'end':>12}{'fitted':>12}"]
    for name, figure, form in rows:
        values = fmean(map(figure, half[:some])), fmean(map(figure, half[-some:])), growth(half, figure)
        lines.append(f"{name:30}" + "".join(f"{format(value, form):>12}" for value in values))
    costs = [1000 * cpu_of_a_life(quarter(samples, number)) for number in (1, 3)]
    lines.append(f"{'CPU for a life, ms':30}" + "".join(f"{cost:>12.2f}" for cost in costs))
    last = samples[-1]
    lines.append(f"{last.lives:,} machines in {last.seconds:,.0f} s; {last.cpu:,.0f} s of processor time")
    return "\n".join(lines)
