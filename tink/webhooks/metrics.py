"""What API servers ask us, as metrics: the names are controller-runtime's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

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
        yield histogram("controller_runtime_webhook_latency_seconds", "How long one took.", ["webhook"], self._seconds)
