"""How many log lines machines have sent, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from edge.syslog.receiver import MachineLogs
from tink.metrics.families import counter


def syslog_metrics(logs: MachineLogs) -> Iterator[Metric]:
    """A counter by what became of them."""
    lines = {("kept",): logs.kept, ("dropped",): logs.dropped, ("stranger",): logs.of_strangers}
    text = "Log lines that were received, by what became of them."
    yield counter("tinkedge_syslog_lines", text, ["outcome"], lines)
