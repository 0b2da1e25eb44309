"""What the artifact cache counts, and how Prometheus gets it.

No label has a URL: OSIEs come and go, and series would add up. How far each download is, is on the machines' journeys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from edge.artifacts.artifact import Source
from edge.artifacts.errors import KINDS
from tink.metrics.families import counter, gauge

if TYPE_CHECKING:
    from edge.artifacts.cache import ArtifactCache


@dataclass(slots=True)
class Counts:
    """Counts since the start: `opened` by source; `failures` by `ArtifactError.kind`.

    A failure is a question to an upstream or a download that failed, however many machines waited for it. For a `file:`
    URL it is a request.
    """

    opened: Counter[Source] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    downloads: int = 0
    resumptions: int = 0
    revalidations: int = 0
    evictions: int = 0
    fetched_bytes: int = 0
    from_peers: int = 0
    peer_bytes: int = 0


def cache_metrics(cache: ArtifactCache) -> Iterator[Metric]:
    """The cache as metrics."""
    counts = cache.counts
    text = "Kernels and initrds that machines were given, by where the bytes came from."
    opened = {(source.value.replace(" ", "_"),): counts.opened[source] for source in Source}
    yield counter("tinkedge_artifact_opens", text, ["source"], opened)
    failures = {(kind.replace(" ", "_"),): counts.failures[kind] for kind in KINDS}
    text = "Fetches of kernels and initrds that failed, by reason."
    yield counter("tinkedge_artifact_failures", text, ["kind"], failures)
    for name, text, value in (
        ("downloads", "Downloads of kernels and initrds that have begun.", counts.downloads),
        ("resumptions", "Downloads that went on where they had broken off.", counts.resumptions),
        ("revalidations", "Times that an upstream said that the stored file is still the right one.",
         counts.revalidations),
        ("evictions", "Files that made room for others.", counts.evictions),
        ("fetched_bytes", "Bytes of kernels and initrds that came from upstreams.", counts.fetched_bytes),
        ("peer_downloads", "Kernels and initrds that came from other edges.", counts.from_peers),
        ("peer_bytes", "Bytes of kernels and initrds that came from other edges.", counts.peer_bytes),
    ):  # fmt: skip
        yield counter(f"tinkedge_artifact_{name}", text, [], {(): value})
    downloads = cache.downloads()
    received = sum(download.received for download in downloads)
    expected = sum(download.size for download in downloads if download.size is not None)
    waiting = sum(download.waiting for download in downloads)
    for name, text, value in (
        ("stored_bytes", "Size of the kernels and initrds that are on disk.", cache.stored_bytes),
        ("stored_files", "Kernels and initrds that are on disk.", cache.stored_files),
        ("downloads_in_progress", "Downloads that are going on.", len(downloads)),
        ("downloads_received_bytes", "Bytes that are there of downloads that are going on.", received),
        ("downloads_expected_bytes", "Bytes that these will have, where it is known.", expected),
        ("machines_waiting", "Machines that are sent a file while it is downloaded.", waiting),
    ):
        yield gauge(f"tinkedge_artifact_{name}", text, [], {(): value})
