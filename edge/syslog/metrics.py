"""How many log lines machines have sent, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.syslog.receiver import MachineLogs


class SyslogMetrics(Collector):
    """A counter by what became of them."""

    def __init__(self, logs: MachineLogs) -> None:
        self._logs = logs

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        lines = CounterMetricFamily(
            "tinkedge_syslog_lines", "Log lines that were received, by what became of them.", labels=["outcome"]
        )
        lines.add_metric(["kept"], self._logs.kept)
        lines.add_metric(["dropped"], self._logs.dropped)
        lines.add_metric(["stranger"], self._logs.of_strangers)
        yield lines
