"""The metrics of Kubernetes clients, informers and controllers, under the names of client-go and controller-runtime.

Each function yields the metrics for one scrape (`tink.metrics.families.Scraped`) from the objects that count, because
their histograms have bounds as Go's programs write them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.runtime import Controller, LeaderElector, WorkQueue
from tink.metrics.families import counter, gauge, histogram


def client_metrics(client: KubeClient) -> Iterator[Metric]:
    """Yield the requests of a client."""
    text = "Requests to the Kubernetes API, by status code; <error>: there was no answer."
    yield counter("rest_client_requests", text, ["code", "method", "host"], client.requests)
    text = "Requests that were repeated because the Kubernetes API said when to come again."
    yield counter("rest_client_request_retries", text, ["code", "verb", "host"], client.retries)
    text = "Time until the Kubernetes API began to answer."
    yield histogram("rest_client_request_duration_seconds", text, ["verb", "host"], client.durations)


def informer_metrics(informers: Iterable[Informer]) -> Iterator[Metric]:
    """Yield the state of informers."""
    by_name = {(informer.resource.plural,): informer for informer in informers}
    for name, text, value in (
        ("objects", "Objects that are known here.", len),
        ("synced", "Whether the collection has been listed.", lambda one: one.has_synced),
        ("behind_seconds", "For how long the API has not let us follow; 0: it does.", lambda one: one.failing_for),
    ):  # type: str, str, Callable[[Informer], float]
        values = {labels: value(informer) for labels, informer in by_name.items()}
        yield gauge(f"tinkedge_informer_{name}", text, ["resource"], values)


def queue_metrics(
    queues: Mapping[str, WorkQueue[Any]], clock: Callable[[], float] = time.monotonic
) -> Iterator[Metric]:
    """Yield the state of work queues, by name. `clock` is the clock of the queues."""
    label, now = ["name"], clock()

    def of(value: Callable[[WorkQueue[Any]], Any]) -> dict[tuple[str], Any]:
        return {(name,): value(queue) for name, queue in queues.items()}

    running = of(lambda queue: [now - begun for begun in queue.begun()])
    yield gauge("workqueue_depth", "Keys that wait.", label, of(len))
    yield counter("workqueue_adds", "Keys that were added.", label, of(lambda queue: queue.counts.adds))
    text = "Keys that were added again after a failure."
    yield counter("workqueue_retries", text, label, of(lambda queue: queue.counts.retries))
    text = "How long a key waited for a worker."
    yield histogram("workqueue_queue_duration_seconds", text, label, of(lambda queue: queue.counts.queue_seconds))
    text = "How long a worker took for a key."
    yield histogram("workqueue_work_duration_seconds", text, label, of(lambda queue: queue.counts.work_seconds))
    text = "How long the keys that are worked on have been, together: what grows on and on hangs."
    yield gauge("workqueue_unfinished_work_seconds", text, label, {name: sum(each) for name, each in running.items()})
    text = "How long the longest of them has been."
    longest = {name: max(each, default=0.0) for name, each in running.items()}
    yield gauge("workqueue_longest_running_processor_seconds", text, label, longest)


def controller_metrics(controllers: Mapping[str, Controller]) -> Iterator[Metric]:
    """Yield the state of controllers, by name, with their queues."""
    label = ["controller"]

    def of(value: Callable[[Controller], Any]) -> dict[tuple[str], Any]:
        return {(name,): value(one) for name, one in controllers.items()}

    results = {(name, result): count for name, one in controllers.items() for result, count in one.results.items()}
    yield counter("controller_runtime_reconcile", "Looks at an object.", ["controller", "result"], results)
    errors = of(lambda one: one.results["error"])
    yield counter("controller_runtime_reconcile_errors", "Looks that failed.", label, errors)
    seconds = of(lambda one: one.seconds)
    yield histogram("controller_runtime_reconcile_time_seconds", "How long a look took.", label, seconds)
    text = "Objects that are looked at at once, at most."
    yield gauge("controller_runtime_max_concurrent_reconciles", text, label, of(lambda one: one.workers))
    active = of(lambda one: sum(1 for _ in one.queue.begun()))
    yield gauge("controller_runtime_active_workers", "Objects that are looked at now.", label, active)
    yield from queue_metrics({name: one.queue for name, one in controllers.items()})


def leader_metrics(*electors: LeaderElector) -> Iterator[Metric]:
    """Yield the states of the leader elections of a process."""
    text = "1: this replica leads; 0: another does, or none."
    states = {(elector.name,): elector.is_leader for elector in electors}
    if states:
        yield gauge("leader_election_master_status", text, ["name"], states)
