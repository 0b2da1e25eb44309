"""How Prometheus gets what is counted of the other edges."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from edge.peers.counts import Counts
from edge.peers.signatures import Refusal
from edge.peers.site import Peers
from tink.metrics.families import counter, gauge


def event_batch_metrics(counts: Counts) -> Iterator[Metric]:
    """What is told among edges and servers, as metrics."""
    text = "Events of machines that other edges of the site were told, and that they told."
    yield counter("tinkedge_peer_events", text, ["direction"], {("sent",): counts.sent, ("received",): counts.received})
    text = "Times that an edge could not be told what machines do."
    yield counter("tinkedge_peer_event_batch_failures", text, [], {(): counts.failed_batches})


def peer_metrics(peers: Peers) -> Iterator[Metric]:
    """The other edges as metrics."""
    counts = peers.counts
    yield from event_batch_metrics(counts)
    yield gauge("tinkedge_peer_living", "Other edges of this site that answer.", [], {(): len(peers.living)})
    text = "Files that other edges were asked for, by whether one had them."
    lookups = {("hit",): counts.hits, ("miss",): counts.misses, ("damaged",): counts.damaged}
    yield counter("tinkedge_peer_lookups", text, ["result"], lookups)
    if peers.upstream is not None:
        text = "Whether files are fetched through the upstream edge: 0 while it is away or leads in a circle."
        yield gauge("tinkedge_upstream_edge_used", text, [], {(): int(peers.upstream.is_used)})
        text = "Files that the upstream edge was asked for, by whether it had them or could get them."
        lookups = {("hit",): counts.parent_hits, ("miss",): counts.parent_misses}
        yield counter("tinkedge_upstream_edge_lookups", text, ["result"], lookups)
    yield counter("tinkedge_peer_served", "Files that other edges were sent.", [], {(): counts.served})
    text = "Bytes of files that other edges were sent."
    yield counter("tinkedge_peer_served_bytes", text, [], {(): counts.served_bytes})
    text = "Requests that were not taken for those of an edge, by reason."
    refused = {(refusal.value,): counts.refused[refusal] for refusal in Refusal}
    yield counter("tinkedge_peer_refused", text, ["reason"], refused)
