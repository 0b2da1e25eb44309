"""Numbers that are kept while things happen. They belong to one event loop, and nothing of Prometheus is imported."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Labels = tuple[str, ...]


class Histogram:
    """How often a value was within each bucket, and the sum of all. `bounds`: the buckets' upper ends, ascending."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last has what is above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value: it is in the first bucket whose bound is not below it (`le`)."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Histograms(dict[Labels, Histogram]):
    """A histogram for each combination of labels, made when it is first needed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        self._bounds = tuple(bounds)

    def __missing__(self, labels: Labels) -> Histogram:
        made = self[labels] = Histogram(self._bounds)
        return made
