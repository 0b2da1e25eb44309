"""The embedded API as metrics: the names are kube-apiserver's, so that its dashboards fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.kubeapi.apiserver.http import RequestCounts
from tink.metrics.families import counter, gauge, histogram

_ABOUT = ["verb", "group", "version", "resource", "subresource", "scope"]


class ApiServerMetrics(Collector):
    """`state` is the database; `refusal()` says why it can't be written, or is empty."""

    def __init__(self, requests: RequestCounts, state: Path, refusal: Callable[[], str]) -> None:
        self._requests = requests
        self._state = state
        self._refusal = refusal

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        requests = self._requests
        yield counter("apiserver_request", "Requests, by status code.", [*_ABOUT, "code"], requests.ended)
        yield counter("apiserver_request_aborts", "Requests whose client did not wait.", _ABOUT, requests.aborted)
        yield histogram(
            "apiserver_request_duration_seconds", "How long requests took, but for watches.", _ABOUT, requests.seconds
        )
        yield gauge("apiserver_longrunning_requests", "Watches that are open.", _ABOUT, requests.watches)
        yield gauge(
            "apiserver_current_inflight_requests", "Requests that are answered now.", [], {(): requests.in_flight}
        )
        yield gauge("tinkedge_apiserver_state_bytes", "Size of the database, with its log.", [], {(): self._size()})
        yield gauge(
            "tinkedge_apiserver_read_only", "1: the disk can't be written, only read.", [], {(): bool(self._refusal())}
        )

    def _size(self) -> int:
        found = 0
        for name in (self._state.name, f"{self._state.name}-wal"):
            try:
                found += self._state.with_name(name).stat().st_size
            except FileNotFoundError:
                continue  # the log is there only while it is written
        return found
