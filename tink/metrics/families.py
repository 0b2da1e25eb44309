"""Conversion of numbers to Prometheus' metric families at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tink.metrics.counts import Histogram

L = TypeVar("L", bound=tuple[str, ...])


class Scraped(Collector):
    """A collector for a registry that returns `families()` at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metrics for one scrape."""
        return self._families()


def counter(name: str, text: str, labels: Sequence[str], counts: Mapping[L, float]) -> CounterMetricFamily:
    """Return a counter. `name` has no `_total`; without labels, the only key of `counts` is the empty tuple."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[L, float]) -> GaugeMetricFamily:
    """Return a gauge, with arguments as for `counter`."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def histogram(name: str, text: str, labels: Sequence[str], found: Mapping[L, Histogram]) -> HistogramMetricFamily:
    """Return a histogram with cumulative buckets, with arguments as for `counter`."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, each in found.items():
        buckets, so_far = [], 0
        for bound, count in zip((*each.bounds, float("inf")), each.counts, strict=True):
            so_far += count
            buckets.append((_spelled(bound), so_far))
        family.add_metric(values, buckets, each.sum)
    return family


def _spelled(bound: float) -> str:
    """Return a bound as Go's programs write it, because dashboards use these labels: 0.5, 1, +Inf."""
    return "+Inf" if bound == float("inf") else f"{bound:.17g}" if bound == int(bound) else repr(bound)
