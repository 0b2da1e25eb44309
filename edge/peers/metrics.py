"""How Prometheus gets what is counted of the other edges.

registry.register(PeerMetrics(peers))
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.peers.signatures import Refusal
from edge.peers.site import Peers


class PeerMetrics(Collector):
    """The other edges as metrics."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def collect(self) -> Iterator[Metric]:
        """All families; called at each scrape."""
        counts = self._peers.counts
        yield GaugeMetricFamily(
            "tinkedge_peer_living", "Other edges of this site that answer.", value=len(self._peers.living)
        )
        lookups = CounterMetricFamily(
            "tinkedge_peer_lookups",
            "Files that other edges were asked for, by whether one had them.",
            labels=["result"],
        )
        for result, count in (("hit", counts.hits), ("miss", counts.misses), ("damaged", counts.damaged)):
            lookups.add_metric([result], count)
        yield lookups
        yield CounterMetricFamily("tinkedge_peer_served", "Files that other edges were sent.", value=counts.served)
        yield CounterMetricFamily(
            "tinkedge_peer_served_bytes", "Bytes of files that other edges were sent.", value=counts.served_bytes
        )
        refused = CounterMetricFamily(
            "tinkedge_peer_refused", "Requests that were not taken for those of an edge, by reason.", labels=["reason"]
        )
        for refusal in Refusal:
            refused.add_metric([refusal.value], counts.refused[refusal])
        yield refused
