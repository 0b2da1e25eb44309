"""What is wrong with requests, in the log: each once a minute, however often it is repeated.

A controller that repeats a bad request every second, or a scanner that sends what is no HTTP, should be heard of, and
should not fill the disk.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from ipaddress import IPv6Network, ip_address
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.kubeapi.apiserver.requests import Target
from tink.kubeapi.apiserver.resources import Resource
from tink.limits.log import LimitedLog
from tink.metrics import Histograms
from tink.metrics.families import counter, gauge, histogram

_BUCKETS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5),
    *(2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0),
)
"""Bounds in seconds, those of kube-apiserver."""

Routed = tuple[str, str, str, str, str, str]
"""Verb, group, version, resource, subresource and scope. Only what is defined has a name."""

_NOWHERE = ("", "", "", "", "")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def routed(method: str, resource: Resource, target: Target, *, watch: bool, apply: bool) -> Routed:
    """What a request is about, in Kubernetes' words."""
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
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ended: Counter[tuple[str, ...]] = Counter()
        """By what they were about, and code."""
        self.aborted: Counter[Routed] = Counter()
        """Of these, the client went before the answer came."""
        self.seconds = Histograms(_BUCKETS)
        """Of those that are not watches."""
        self.watches: Counter[Routed] = Counter()
        """That are open now."""
        self.in_flight = 0
        """All others that are being answered."""

    def end(self, method: str, about: Routed | None, status: int, seconds: float) -> None:
        """A request has ended. `status` 0: nobody waited for the answer."""
        if about is None:  # documents, probes, and what is nowhere: by nothing that the client could choose
            about = (_known(method), *_NOWHERE)
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


INTERVAL_SECONDS = 60.0
"""How long the same is not told again."""
CAPACITY = 200
"""Most different lines in that time; of more it only says how many there were."""
SHARE = 50
"""Maximum number of these lines about requests of one user."""
STRANGERS = 20
STRANGERS_SHARE = 5
"""Maximum number of lines about requests without a valid token: in all, and from one address (IPv6: a /64 network)."""
FAULTS = 10
"""Maximum number of stack traces of this server's own faults, which a client could cause again and again."""
MAX_PATH = 500
"""Maximum number of logged characters of a path."""


class RequestLog:
    """Writes what is wrong with requests to a log. `clock` gives seconds."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = LimitedLog(log, clock, capacity=CAPACITY, interval=INTERVAL_SECONDS, share=SHARE)
        # A separate budget: unauthenticated clients must not suppress the lines about users.
        self._strangers = LimitedLog(log, clock, capacity=STRANGERS, interval=INTERVAL_SECONDS, share=STRANGERS_SHARE)
        self._faults = LimitedLog(log, clock, capacity=FAULTS, interval=INTERVAL_SECONDS)

    def refused(self, method: str, path: str, what: str, user: str = "") -> None:
        """Log a request of `user`, unless the same line was logged within the last minute."""
        path = path[:MAX_PATH]
        self._log.log(logging.INFO, "%s %s: %s", method, path, what, key=(method, path, what), owner=user or None)

    def failed(self, method: str, path: str) -> None:
        """Log the stack trace of the exception that is being handled: a fault of this server."""
        self._faults.log(logging.ERROR, "%s %s: a fault of this server", method, path[:MAX_PATH], exc_info=True)

    def unauthorized(self, address: str, message: str) -> None:
        """Somebody has no token, or a wrong one: a line for each address now and then."""
        what = message.removeprefix("Unauthorized").removeprefix(": ") or "no token, or one that is not known"
        line = "%s: 401 Unauthorized: %s"
        self._strangers.log(logging.INFO, line, address, what, key=(address, what), owner=_network(address))


def _network(address: str) -> str:
    """Return the unit that one unauthenticated client controls: an IPv4 address, or an IPv6 /64 network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(IPv6Network((int(found) >> 64 << 64, 64)))


class NotHttp(logging.Filter):
    """Turns the stack traces of aiohttp about what is no HTTP into one line now and then."""

    def __init__(self, requests: RequestLog) -> None:
        super().__init__()
        self._requests = requests

    def filter(self, record: logging.LogRecord) -> bool:
        """Let faults of the server pass, and nothing else."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__ != "aiohttp.http_exceptions":
            return True
        self._requests.refused("?", "?", f"a client sends what is no HTTP: {type(error).__name__}")
        return False


def http_logger(requests: RequestLog) -> logging.Logger:
    """Give the logger that aiohttp's server is to write to."""
    logger = logging.getLogger("tink.kubeapi.apiserver.http")
    for old in [one for one in logger.filters if isinstance(one, NotHttp)]:
        logger.removeFilter(old)
    logger.addFilter(NotHttp(requests))
    return logger
