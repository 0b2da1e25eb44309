"""Counts and logs of requests: metrics with kube-apiserver's names, and a limited log of refused requests."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.kubeapi.apiserver.options import Target
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.limits import LimitedLog
from tink.metrics import Histograms
from tink.metrics.families import counter, gauge, histogram
from tink.net.addresses import block_of

_BUCKETS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5),
    *(2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0),
)
"""Bounds in seconds, those of kube-apiserver."""

MetricLabels = tuple[str, str, str, str, str, str]
"""Verb, group, version, resource, subresource and scope. Only defined resources have a name."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def metric_labels(method: str, resource: Resource, target: Target, *, watch: bool, apply: bool) -> MetricLabels:
    """Return the metric labels of a request, in Kubernetes' terms."""
    verb = _known(method)
    if method in ("GET", "HEAD"):
        verb = "WATCH" if watch and not target.name else "GET" if target.name else "LIST"
    elif apply:
        verb = "APPLY"
    elif method == "DELETE" and not target.name:
        verb = "DELETECOLLECTION"
    scope = "resource" if target.name else "namespace" if target.namespace else "cluster"
    return verb, resource.group, resource.version, resource.plural, target.subresource, scope


class RequestCounts:
    """Counts of requests and the duration of their answers. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ended: Counter[tuple[str, ...]] = Counter()  # Answered requests by labels and status code
        self.aborted: Counter[MetricLabels] = Counter()  # Requests whose client left before the answer
        self.seconds = Histograms(_BUCKETS)  # Duration of requests, without watches
        self.watches: Counter[MetricLabels] = Counter()  # Open watches
        self.in_flight = 0  # Requests that are being answered now, without watches

    def end(self, method: str, about: MetricLabels | None, status: int, seconds: float) -> None:
        """Count the end of a request. `status` 0: the client did not wait for the answer."""
        if about is None:  # documents, probes and unknown paths: no label may contain a client's text
            about = (_known(method), "", "", "", "", "")
        if about[0] == "WATCH":
            status = status or 200
        elif status:
            self.seconds[about].observe(seconds)
        else:
            self.aborted[about] += 1
            return
        self.ended[(*about, str(status))] += 1


def _known(method: str) -> str:
    return method if method in _METHODS else "OTHER"


_ABOUT = ["verb", "group", "version", "resource", "subresource", "scope"]


class ApiServerMetrics(Collector):
    """The metrics of the embedded API, with kube-apiserver's names, so that its dashboards fit.

    `state` is the database. `refusal()` returns why it can't be written, or "".
    """

    def __init__(self, requests: RequestCounts, state: Path, refusal: Callable[[], str]) -> None:
        self._requests = requests
        self._state = state
        self._refusal = refusal

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called for each scrape."""
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
            with suppress(FileNotFoundError):  # the log exists only while it is written
                found += self._state.with_name(name).stat().st_size
        return found


INTERVAL_SECONDS = 60.0  # Interval in which the same line is logged once
MAX_LINES = 200  # Maximum number of different lines in an interval. Further lines are only counted.
MAX_USER_LINES = 50  # Maximum number of these lines about requests of one user
MAX_UNAUTHENTICATED_LINES = 20
MAX_ADDRESS_LINES = 5
"""Maximum number of lines about requests without a valid token: in all, and from one address (IPv6: a /64 network)."""
MAX_FAULT_LINES = 10
"""Maximum number of stack traces of this server's own faults, which a client could cause again and again."""
MAX_PATH = 500  # Maximum number of logged characters of a path


class RequestLog:
    """Logs refused requests, each different one once a minute. `clock` returns seconds.

    A controller that repeats a bad request every second, or a port scanner, is visible and does not fill the disk.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = LimitedLog(log, clock, capacity=MAX_LINES, interval=INTERVAL_SECONDS, share=MAX_USER_LINES)
        # A separate budget: unauthenticated clients must not suppress the lines about users.
        self._unauthenticated = LimitedLog(
            log, clock, capacity=MAX_UNAUTHENTICATED_LINES, interval=INTERVAL_SECONDS, share=MAX_ADDRESS_LINES
        )
        self._faults = LimitedLog(log, clock, capacity=MAX_FAULT_LINES, interval=INTERVAL_SECONDS)

    def refused(self, method: str, path: str, what: str, user: str = "") -> None:
        """Log a request of `user`, unless the same line was logged within the last minute."""
        path = path[:MAX_PATH]
        self._log.log(logging.INFO, "%s %s: %s", method, path, what, key=(method, path, what), owner=user or None)

    def failed(self, method: str, path: str) -> None:
        """Log the stack trace of the exception that is being handled: a fault of this server."""
        self._faults.log(logging.ERROR, "%s %s: a fault of this server", method, path[:MAX_PATH], exc_info=True)

    def unauthorized(self, address: str, message: str) -> None:
        """Log a request without a valid token, now and then for each address."""
        what = message.removeprefix("Unauthorized").removeprefix(": ") or "no token, or one that is not known"
        # One client may have all addresses of an IPv6 /64 network.
        owner = address
        with suppress(ValueError):
            owner = str(block_of(address)).removesuffix("/32")
        line = "%s: 401 Unauthorized: %s"
        self._unauthenticated.log(logging.INFO, line, address, what, key=(address, what), owner=owner)


class NotHttp(logging.Filter):
    """Replaces aiohttp's stack traces about clients that send no HTTP by a limited number of lines."""

    def __init__(self, requests: RequestLog) -> None:
        super().__init__()
        self._requests = requests

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for faults of the server, which are logged unchanged."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__ != "aiohttp.http_exceptions":
            return True
        self._requests.refused("?", "?", f"a client does not speak HTTP: {type(error).__name__}")
        return False


def http_logger(requests: RequestLog) -> logging.Logger:
    """Return the logger for aiohttp's server."""
    logger = logging.getLogger("tink.kubeapi.apiserver.http")
    for old in [one for one in logger.filters if isinstance(one, NotHttp)]:
        logger.removeFilter(old)
    logger.addFilter(NotHttp(requests))
    return logger
