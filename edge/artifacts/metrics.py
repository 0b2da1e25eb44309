"""What the artifact cache counts, and how Prometheus gets it.

    registry.register(CacheMetrics(cache))

No label has a URL: OSIEs come and go, and series would add up. How far each download is, is on the machines' journeys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.artifacts.artifact import Source
from edge.artifacts.errors import KINDS

if TYPE_CHECKING:
    from edge.artifacts.cache import ArtifactCache


@dataclass(slots=True)
class Counts:
    """What has happened since the start. `opened` by source; `failures` by `ArtifactError.kind`, one for each question
    to an upstream or download that failed, not for each machine that heard of it.
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


class CacheMetrics(Collector):
    """The cache as metrics."""

    def __init__(self, cache: ArtifactCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        """All families; called at each scrape."""
        yield from self._events()
        yield from self._state()

    def _events(self) -> Iterator[Metric]:
        counts = self._cache.counts
        opened = CounterMetricFamily(
            "tinkedge_artifact_opens",
            "Kernels and initrds that machines were given, by where the bytes came from.",
            labels=["source"],
        )
        for source in Source:
            opened.add_metric([source.value.replace(" ", "_")], counts.opened[source])
        yield opened
        failures = CounterMetricFamily(
            "tinkedge_artifact_failures", "Fetches of kernels and initrds that failed, by reason.", labels=["kind"]
        )
        for kind in KINDS:
            failures.add_metric([kind.replace(" ", "_")], counts.failures[kind])
        yield failures
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
            yield CounterMetricFamily(f"tinkedge_artifact_{name}", text, value=value)

    def _state(self) -> Iterator[Metric]:
        downloads = self._cache.downloads()
        received = sum(download.received for download in downloads)
        expected = sum(download.size for download in downloads if download.size is not None)
        waiting = sum(download.waiting for download in downloads)
        for name, text, value in (
            ("stored_bytes", "Size of the kernels and initrds that are on disk.", self._cache.stored_bytes),
            ("stored_files", "Kernels and initrds that are on disk.", self._cache.stored_files),
            ("downloads_in_progress", "Downloads that are going on.", len(downloads)),
            ("downloads_received_bytes", "Bytes that are there of downloads that are going on.", received),
            ("downloads_expected_bytes", "Bytes that these will have, where it is known.", expected),
            ("machines_waiting", "Machines that are sent a file while it is downloaded.", waiting),
        ):
            yield GaugeMetricFamily(f"tinkedge_artifact_{name}", text, value=value)
