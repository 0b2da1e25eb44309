"""The journey as Prometheus metrics: counted as events come in, put into this form when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from edge.journey.recorder import Journey
from edge.machines import Inventory
from tink.metrics.families import counter, gauge


def journey_metrics(journey: Journey, inventory: Inventory) -> Iterator[Metric]:
    """The counts of a journey."""
    text = "Steps of machines' boots, by step and outcome."
    events = {(step.value, outcome.value): count for (step, outcome), count in journey.counts().items()}
    yield counter("tinkedge_journey_events", text, ["step", "outcome"], events)
    sent = {(step.value,): size for step, size in journey.sent_bytes().items()}
    yield counter("tinkedge_sent_bytes", "Bytes of files sent to machines, by step.", ["step"], sent)
    yield gauge("tinkedge_machines", "Network interfaces of the Hardware known here.", [], {(): len(inventory)})
    text = "Memory that the events of all machines take, about; bounded."
    yield gauge("tinkedge_journey_kept_bytes", text, [], {(): journey.kept_bytes})
