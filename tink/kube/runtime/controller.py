"""The skeleton of every controller, as in controller-runtime: a controller only has to write `reconcile`.

    informers -> event handlers -> work queue -> workers -> reconcile(key) -> Result, or an error
                                      ^                                            |
                                      +---- at once, in a while, after a backoff --+

Level-based: an event handler only adds a key. `reconcile` looks at the object as it is now, does the next thing, and
returns in a `Result` when to be called again. If it raises, it is called again after a growing delay. It is also called
once for an object that was deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tink.kube.client import ApiError, ConflictError
from tink.kube.objects import NamespacedName
from tink.kube.runtime.leaderelection import LeadershipLostError
from tink.kube.runtime.workqueue import WorkQueue
from tink.limits import LimitedLog
from tink.metrics import Histogram

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a successful reconcile. `requeue_after` is the number of seconds until the next; None: no timer."""

    requeue_after: float | None = None


DONE = Result()

_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5),
    *(1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)
"""Histogram bounds in seconds: those of controller-runtime, which dashboards expect."""

Reconcile = Callable[[NamespacedName], Awaitable[Result]]
"""Reconciles one object. An exception is logged, and it is called again."""
OnError = Callable[[NamespacedName, Exception, float], bool]
"""`on_error(key, error, delay)` returns True if it has reported the error; the next attempt is in `delay` seconds."""


def controller_log(log: logging.Logger, clock: Callable[[], float]) -> LimitedLog:
    """Return a log for failures of many objects: at most 20 lines in 10 s of `clock`, 5 of them for one namespace."""
    return LimitedLog(log, clock, capacity=20, interval=10.0, share=5)


class Controller:
    """Reconciles the keys in `queue`. Start `run` as one task, or, with leader election, while this replica leads."""

    def __init__(
        self,
        kind: str,
        reconcile: Reconcile,
        *,
        retry_first: float,
        retry_longest: float,
        limited_log: LimitedLog | None = None,
        workers: int = 1,
        low_priority_workers: int | None = None,
        on_error: OnError | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a controller of objects that the log calls `kind`.

        The delays after failures grow from `retry_first` to `retry_longest` seconds. Errors are logged to `limited_log`
        unless `on_error` has reported them. `low_priority_workers` of the `workers` also take keys of low priority;
        None: all do. `clock` (seconds) measures durations.
        """
        self._kind = kind
        self._reconcile = reconcile
        self._limited_log = limited_log or controller_log(log, time.monotonic)
        self.workers = workers
        self.results: Counter[str] = Counter(success=0, error=0, requeue_after=0)
        """Number of reconciles by result."""
        self.seconds = Histogram(_BUCKETS)
        self._clock = clock
        self._low_priority_workers = workers if low_priority_workers is None else low_priority_workers
        self._on_error = on_error
        self.queue: WorkQueue[NamespacedName] = WorkQueue(retry_first, retry_longest, flow_of=lambda key: key.namespace)

    async def run(self) -> None:
        """Work until cancelled. A key whose reconcile is cancelled is reconciled when this runs again."""
        async with asyncio.TaskGroup() as group:
            for index in range(self.workers):
                group.create_task(self._work(high_priority_only=index >= self._low_priority_workers))

    async def process(self, key: NamespacedName) -> bool:
        """Reconcile one key and schedule its next reconcile; return True if it succeeded."""
        begun = self._clock()
        try:
            try:
                result = await self._reconcile(key)
            except LeadershipLostError:
                self.queue.add_rate_limited(key)  # reconciled when this replica leads again
                return False
            except Exception as error:
                # An error about one object must not stop the work on all others.
                self.results["error"] += 1
                delay = self.queue.add_rate_limited(key)
                if self._on_error is None or not self._on_error(key, error, delay):
                    if isinstance(error, ConflictError):
                        log.debug("%s %s changed meanwhile, trying again within %.2f s", self._kind, key, delay)
                    elif isinstance(error, ApiError):
                        text = "%s %s: %s; trying again in %.1f s"
                        self._limited_log.warning(text, self._kind, key, error, delay, owner=key.namespace)
                    else:
                        text = "%s %s: trying again in %.1f s"
                        self._limited_log.log(
                            logging.ERROR, text, self._kind, key, delay, exc_info=True, owner=key.namespace
                        )
                return False
            self.queue.forget(key)
            if result.requeue_after is None:
                self.results["success"] += 1
            else:
                self.results["requeue_after"] += 1
                self.queue.add_after(key, result.requeue_after)
            return True
        finally:
            self.seconds.observe(self._clock() - begun)

    async def _work(self, *, high_priority_only: bool) -> None:
        while True:
            key = await self.queue.get(high_priority_only=high_priority_only)
            try:
                await self.process(key)
            except asyncio.CancelledError:
                self.queue.add(key)  # reconciled when this replica leads again
                raise
            finally:
                self.queue.done(key)
