"""From counts to what Prometheus is given; called at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tink.metrics.counts import Histogram

L = TypeVar("L", bound=tuple[str, ...])


class Scraped(Collector):
    """For a registry: what `families()` gives at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Called for each scrape."""
        return self._families()


def counter(name: str, text: str, labels: Sequence[str], counts: Mapping[L, float]) -> CounterMetricFamily:
    """`name` without `_total`. Without labels, `counts` has one entry: that of the empty tuple."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[L, float]) -> GaugeMetricFamily:
    """As `counter`, of what goes up and down."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def histogram(name: str, text: str, labels: Sequence[str], found: Mapping[L, Histogram]) -> HistogramMetricFamily:
    """Buckets as Prometheus has them: each with all that is in those before."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, each in found.items():
        buckets, so_far = [], 0
        for bound, count in zip((*each.bounds, float("inf")), each.counts, strict=True):
            so_far += count
            buckets.append((_spelled(bound), so_far))
        family.add_metric(values, buckets, each.sum)
    return family


def _spelled(bound: float) -> str:
    """As Go's clients spell bounds, whose series are asked for by them: 0.5, 1, +Inf."""
    return "+Inf" if bound == float("inf") else f"{bound:.17g}" if bound == int(bound) else repr(bound)
