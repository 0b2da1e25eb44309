"""Prometheus counter of datagrams that the kernel dropped because a socket buffer was full."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from edge.listener.turns import TurnBudget
from tink.metrics.families import counter


def listener_metrics(budget: TurnBudget) -> Iterator[Metric]:
    """Yield the counter, by service."""
    text = "Datagrams that the kernel dropped because a service's socket was full."
    yield counter("tinkedge_datagrams_lost", text, ["service"], {(what,): lost for what, lost in budget.lost().items()})
