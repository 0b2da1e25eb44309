"""Find leaks in the samples of a soak. Pure.

In the first half, journeys, caches and the allocator's arenas fill up by design. The verdict fits a straight line
through each figure of the second half; the line's rise from the half's beginning to its end is the growth. A line
through hundreds of samples ignores a peak at the end, and shows a leak under noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

MEGABYTE: Final = 1_000_000


@dataclass(frozen=True)
class Sample:
    """The process's figures at one moment."""

    seconds: float
    """Since the beginning."""
    memory: int
    """Bytes of private memory that no file backs."""
    journey_bytes: int
    """The part of `memory` that the journeys of machines take, about; by design up to 128 MiB."""
    descriptors: int
    threads: int
    files: int
    """In the data directory."""
    disk_bytes: int
    blocks: int
    """Memory blocks that Python has allocated, for objects of any kind."""
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
    """Connections stay open for a while after their last use; a busier machine opens more at once."""
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


FIGURES: dict[str, tuple[Callable[[Sample], float], Callable[[Bounds], float]]] = {
    "bytes of memory beside the journeys": (lambda one: one.memory - one.journey_bytes, lambda most: most.memory),
    "descriptors": (lambda one: one.descriptors, lambda most: most.descriptors),
    "threads": (lambda one: one.threads, lambda most: most.threads),
    "files": (lambda one: one.files, lambda most: most.files),
    "tasks": (lambda one: one.tasks, lambda most: most.tasks),
    # Not bounded:
    "bytes of journeys": (lambda one: one.journey_bytes, lambda _: math.inf),
    "bytes in the data directory": (lambda one: one.disk_bytes, lambda _: math.inf),
    "allocated blocks": (lambda one: one.blocks, lambda _: math.inf),
}


def complaints(samples: Sequence[Sample], bounds: Bounds) -> list[str]:
    """Return a sentence for each figure that has grown; empty if all are flat."""
    half = second_half(samples)
    found = []
    for name, (figure, bound) in FIGURES.items():
        more = growth(half, figure)
        if more > bound(bounds):
            found.append(f"{name}: {more:,.0f} more in the second half, at most {bound(bounds):,.0f} may be")
    for kind, (least, at_last) in grown_kinds(half, bounds).items():
        found.append(f"objects of {kind}: {least:,} at least, then {at_last:,}")
    before, after = (cpu_of_a_life(quarter(samples, number)) for number in (1, 3))
    if after > bounds.cpu_ratio * before:
        found.append(f"processor time for a life: {1000 * before:.1f} ms, then {1000 * after:.1f} ms")
    return found


def table(samples: Sequence[Sample]) -> str:
    """Format the figures: at the middle and at the end (means of a twentieth), and the growth by the fitted line."""
    half = second_half(samples)
    some = max(1, len(half) // 10)
    lines = [f"{'':36}{'middle':>14}{'end':>14}{'fitted':>14}"]
    for name, (figure, _) in FIGURES.items():
        values = fmean(map(figure, half[:some])), fmean(map(figure, half[-some:])), growth(half, figure)
        lines.append(f"{name:36}" + "".join(f"{value:>14,.1f}" for value in values))
    costs = [1000 * cpu_of_a_life(quarter(samples, number)) for number in (1, 3)]
    lines.append(f"{'CPU for a life, ms':36}" + "".join(f"{cost:>14.2f}" for cost in costs))
    last = samples[-1]
    lines.append(f"{last.lives:,} machines in {last.seconds:,.0f} s; {last.cpu:,.0f} s of processor time")
    return "\n".join(lines)
