"""The metrics of Kubernetes clients, informers and controllers, under the names of client-go and controller-runtime.

They are collected from the objects that count, because their histograms have bounds as Go's programs write them
(`tink.metrics.families`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.runtime import Controller, LeaderElector, WorkQueue
from tink.metrics.families import counter, gauge, histogram


class ClientMetrics(Collector):
    """The requests of one client."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        yield counter(
            "rest_client_requests",
            "Requests to the Kubernetes API, by status code; <error>: there was no answer.",
            ["code", "method", "host"],
            self._client.requests,
        )
        yield counter(
            "rest_client_request_retries",
            "Requests that were repeated because the Kubernetes API said when to come again.",
            ["code", "verb", "host"],
            self._client.retries,
        )
        yield histogram(
            "rest_client_request_duration_seconds",
            "Time until the Kubernetes API began to answer.",
            ["verb", "host"],
            self._client.durations,
        )


class InformerMetrics(Collector):
    """The state of informers."""

    def __init__(self, informers: Iterable[Informer]) -> None:
        """Create a collector of the informers that `informers` has at the time of a scrape."""
        self._informers = informers

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        by_name = {(informer.resource.plural,): informer for informer in self._informers}
        for name, text, value in (
            ("objects", "Objects that are known here.", len),
            ("synced", "Whether the collection has been listed.", lambda one: one.has_synced),
            ("behind_seconds", "For how long the API has not let us follow; 0: it does.", lambda one: one.failing_for),
        ):  # type: str, str, Callable[[Informer], float]
            values = {labels: value(informer) for labels, informer in by_name.items()}
            yield gauge(f"tinkedge_informer_{name}", text, ["resource"], values)


class QueueMetrics(Collector):
    """The work queues, by name."""

    def __init__(self, queues: Mapping[str, WorkQueue[Any]], clock: Callable[[], float] = time.monotonic) -> None:
        """Create a collector; `clock` is the clock of the queues."""
        self._queues = queues
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        queues = {(name,): queue for name, queue in self._queues.items()}
        label, now = ["name"], self._clock()
        adds = {name: queue.counts.adds for name, queue in queues.items()}
        retries = {name: queue.counts.retries for name, queue in queues.items()}
        waited = {name: queue.counts.queue_seconds for name, queue in queues.items()}
        worked = {name: queue.counts.work_seconds for name, queue in queues.items()}
        running = {name: [now - begun for begun in queue.begun()] for name, queue in queues.items()}
        yield gauge("workqueue_depth", "Keys that wait.", label, {name: len(queue) for name, queue in queues.items()})
        yield counter("workqueue_adds", "Keys that were added.", label, adds)
        yield counter("workqueue_retries", "Keys that were added again after a failure.", label, retries)
        yield histogram("workqueue_queue_duration_seconds", "How long a key waited for a worker.", label, waited)
        yield histogram("workqueue_work_duration_seconds", "How long a worker took for a key.", label, worked)
        yield gauge(
            "workqueue_unfinished_work_seconds",
            "How long the keys that are worked on have been, together: what grows on and on hangs.",
            label,
            {name: sum(each) for name, each in running.items()},
        )
        yield gauge(
            "workqueue_longest_running_processor_seconds",
            "How long the longest of them has been.",
            label,
            {name: max(each, default=0.0) for name, each in running.items()},
        )


class ControllerMetrics(Collector):
    """The controllers, by name, with their queues."""

    def __init__(self, controllers: Mapping[str, Controller]) -> None:
        """Create a collector of the controllers that `controllers` has at the time of a scrape."""
        self._controllers = controllers

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        controllers, label = self._controllers, ["controller"]
        results = {(name, result): count for name, one in controllers.items() for result, count in one.results.items()}
        errors = {(name,): one.results["error"] for name, one in controllers.items()}
        yield counter("controller_runtime_reconcile", "Looks at an object.", ["controller", "result"], results)
        yield counter("controller_runtime_reconcile_errors", "Looks that failed.", label, errors)
        yield histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long a look took.",
            label,
            {(name,): one.seconds for name, one in controllers.items()},
        )
        yield gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Objects that are looked at at once, at most.",
            label,
            {(name,): one.workers for name, one in controllers.items()},
        )
        yield gauge(
            "controller_runtime_active_workers",
            "Objects that are looked at now.",
            label,
            {(name,): sum(1 for _ in one.queue.begun()) for name, one in controllers.items()},
        )
        yield from QueueMetrics({name: one.queue for name, one in controllers.items()}).collect()


class LeaderMetrics(Collector):
    """The state of the leader election."""

    def __init__(self, elector: LeaderElector) -> None:
        self._elector = elector

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        yield gauge(
            "leader_election_master_status",
            "1: this replica leads; 0: another does, or none.",
            ["name"],
            {(self._elector.name,): self._elector.is_leader},
        )
