"""Metrics of reviews: the API servers' requests, by controller-runtime's names, and the decisions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.metrics import Histograms
from tink.metrics.families import counter, histogram

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Handler = Callable[[web.Request], Awaitable[web.Response]]


class WebhookMetrics(Collector):
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds = Histograms(_BUCKETS)
        self._rejections: Counter[tuple[str]] = Counter()

    def rejected(self, alert: str) -> None:
        """Count a client that rejected the certificate by this alert of TLS."""
        self._rejections[alert,] += 1

    def counted(self, path: str, answer: Handler) -> Handler:
        """The same handler; its requests are counted."""

        async def counting(request: web.Request) -> web.Response:
            begun, code = self._clock(), "500"
            try:
                response = await answer(request)
                code = str(response.status)
                return response
            finally:
                self._requests[path, code] += 1
                self._seconds[path,].observe(self._clock() - begun)

        return counting

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        yield counter("controller_runtime_webhook_requests", "Reviews.", ["webhook", "code"], self._requests)
        text = "Handshakes in which a client rejected the certificate of the webhooks."
        yield counter("tinkedge_webhook_rejected_certificates", text, ["alert"], self._rejections)
        yield histogram("controller_runtime_webhook_latency_seconds", "How long one took.", ["webhook"], self._seconds)


class ReviewMetrics(Collector):
    """Counts reviewed writes by kind and outcome, and those that were stored without a review."""

    def __init__(self) -> None:
        self._reviewed: Counter[tuple[str, str]] = Counter()
        self._unreviewed: Counter[tuple[str, str]] = Counter({("Hardware", "failed"): 0, ("Hardware", "late"): 0})

    @property
    def unreviewed(self) -> int:
        """The number of writes that were stored unreviewed since the start, as far as this process knows."""
        return self._unreviewed.total()

    def decided(self, request: Mapping[str, Any], outcome: str) -> None:
        """Count a review. `outcome` is `allowed`, `warned`, `refused`, `busy` or `failed`."""
        self._reviewed[_kind(request), outcome] += 1

    def let_in(self, request: Mapping[str, Any], reason: str) -> None:
        """Count a write that its API server stores although the review has `failed`, or came `late`."""
        self._unreviewed[_kind(request), reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Called for each scrape."""
        labels = ["kind", "outcome"]
        yield counter("tinkedge_reviewed_writes", "Writes that were reviewed, by the outcome.", labels, self._reviewed)
        text = "Writes that were let in unreviewed because the review failed or came too late."
        yield counter("tinkedge_unreviewed_writes", text, ["kind", "reason"], self._unreviewed)


_KINDS = frozenset({"Hardware", "OSIE", "Template", "Workflow"})


def _kind(request: Mapping[str, Any]) -> str:
    kind = request.get("kind")
    name = kind.get("kind") if isinstance(kind, dict) else None
    return name if name in _KINDS else "other"
