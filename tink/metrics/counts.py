"""Histograms as plain numbers, for one event loop, without the Prometheus library.

Its own histograms write bounds as `1.0`, where Go's programs, and so the dashboards for them, have `1`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Labels = tuple[str, ...]


class Histogram:
    """The counts of values by bucket, and their sum. `bounds` are the upper bounds of the buckets, ascending."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The count of each bucket, not cumulative; the last is for values above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it (`le`)."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Histograms(dict[Labels, Histogram]):
    """Histograms by their labels, created at the first use."""

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        self._bounds = tuple(bounds)

    def __missing__(self, labels: Labels) -> Histogram:
        made = self[labels] = Histogram(self._bounds)
        return made
