"""The skeleton of every controller, as in controller-runtime: what is left to write is what to do about one object.

    informers -> event handlers -> work queue -> workers -> reconcile(key) -> Result, or an error
                                      ^                                            |
                                      +---- at once, in a while, after a backoff --+

Level-based: an event handler adds a key and says nothing of what happened; `reconcile` looks at what there is now and
does what brings it forward. It says in a `Result` when to look again though nothing happens; if it raises, it is called
again after a delay that grows. An object that is gone is reconciled once more: there is nothing to be done about it.
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
from tink.limits.log import LimitedLog
from tink.metrics import Histogram

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """What comes of a look that went well. `requeue_after`: seconds until the next; None: when something happens."""

    requeue_after: float | None = None


DONE = Result()

_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5),
    *(1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)
"""Bounds in seconds, those of controller-runtime: what reads its metrics counts on them."""

Reconcile = Callable[[NamespacedName], Awaitable[Result]]
"""Brings one object forward. What it raises is logged, and it is called again."""
OnError = Callable[[NamespacedName, Exception, float], bool]
"""`on_error(key, error, delay)`: whether it has said what went wrong; the next look comes after `delay` seconds."""


def controller_log(log: logging.Logger, clock: Callable[[], float]) -> LimitedLog:
    """A log for what fails in the work on many objects: 20 lines in 10 s of `clock`, 5 of them of one namespace."""
    return LimitedLog(log, clock, capacity=20, interval=10.0, share=5)


class Controller:
    """Has the keys in `queue` reconciled. `run` it as one task, or, with leader election, while this replica leads."""

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
        """`kind` is what the log calls the objects. The delays after failures grow from `retry_first` to
        `retry_longest` seconds; what went wrong is said through `limited_log`, but for what `on_error` has said. Of the
        `workers` so many take keys of low priority, too; None: all do. `clock`, in seconds, says how long looks take.
        """
        self._kind = kind
        self._reconcile = reconcile
        self._limited_log = limited_log or controller_log(log, time.monotonic)
        self.workers = workers
        self.results: Counter[str] = Counter(success=0, error=0, requeue_after=0)
        """Looks, by what came of them."""
        self.seconds = Histogram(_BUCKETS)
        self._clock = clock
        self._low_priority_workers = workers if low_priority_workers is None else low_priority_workers
        self._on_error = on_error
        self.queue: WorkQueue[NamespacedName] = WorkQueue(retry_first, retry_longest, flow_of=lambda key: key.namespace)

    async def run(self) -> None:
        """Work until cancelled. What is under way then is done when this is run again."""
        async with asyncio.TaskGroup() as group:
            for index in range(self.workers):
                group.create_task(self._work(high_priority_only=index >= self._low_priority_workers))

    async def process(self, key: NamespacedName) -> bool:
        """Reconcile one, and have it looked at again when that is due; whether it went well."""
        begun = self._clock()
        try:
            return await self._process(key)
        finally:
            self.seconds.observe(self._clock() - begun)

    async def _process(self, key: NamespacedName) -> bool:
        try:
            result = await self._reconcile(key)
        except LeadershipLostError:
            self.queue.add_rate_limited(key)  # for the next time that this replica leads
            return False
        except Exception as error:
            # Whatever goes wrong about one object must not stop the work on all others.
            self.results["error"] += 1
            delay = self.queue.add_rate_limited(key)
            if self._on_error is None or not self._on_error(key, error, delay):
                self._complain(key, error, delay)
            return False
        self.queue.forget(key)
        if result.requeue_after is None:
            self.results["success"] += 1
        else:
            self.results["requeue_after"] += 1
            self.queue.add_after(key, result.requeue_after)
        return True

    async def _work(self, *, high_priority_only: bool) -> None:
        while True:
            key = await self.queue.get(high_priority_only=high_priority_only)
            try:
                await self.process(key)
            except asyncio.CancelledError:
                self.queue.add(key)  # for the next time that this replica leads
                raise
            finally:
                self.queue.done(key)

    def _complain(self, key: NamespacedName, error: Exception, delay: float) -> None:
        if isinstance(error, ConflictError):
            log.debug("%s %s changed meanwhile, looking again within %.2f s", self._kind, key, delay)
        elif isinstance(error, ApiError):
            text = "%s %s: %s; trying again in %.1f s"
            self._limited_log.warning(text, self._kind, key, error, delay, owner=key.namespace)
        else:
            text = "%s %s: trying again in %.1f s"
            self._limited_log.log(logging.ERROR, text, self._kind, key, delay, exc_info=True, owner=key.namespace)
