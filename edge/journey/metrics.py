"""The journey as Prometheus metrics: counted as events come in, put into this form when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.journey.recorder import Journey
from edge.machines import Inventory


class JourneyMetrics(Collector):
    """Reads the counts of a journey."""

    def __init__(self, journey: Journey, inventory: Inventory) -> None:
        self._journey = journey
        self._inventory = inventory

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        events = CounterMetricFamily(
            "tinkedge_journey_events", "Steps of machines' boots, by step and outcome.", labels=["step", "outcome"]
        )
        for (step, outcome), count in self._journey.counts().items():
            events.add_metric([step.value, outcome.value], count)
        yield events
        sent = CounterMetricFamily("tinkedge_sent_bytes", "Bytes of files sent to machines, by step.", labels=["step"])
        for step, size in self._journey.sent_bytes().items():
            sent.add_metric([step.value], size)
        yield sent
        yield GaugeMetricFamily(
            "tinkedge_machines", "Network interfaces of the Hardware known here.", value=len(self._inventory)
        )
        yield GaugeMetricFamily(
            "tinkedge_journey_kept_bytes",
            "Memory that the events of all machines take, about; bounded.",
            value=self._journey.kept_bytes,
        )
