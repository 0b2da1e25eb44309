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
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from tink.kube.client import ApiError, ConflictError
from tink.kube.objects import NamespacedName
from tink.kube.runtime.leaderelection import LeadershipLostError
from tink.limits import Backoff, FairQueue, LimitedLog
from tink.metrics import Histogram

log = logging.getLogger(__name__)

# --- the work queue --------------------------------------------------------------------------------------------------
#
# A queue of the keys of objects to reconcile: client-go's rate limiting work queue, with two priorities as in
# controller-runtime's, and fair among namespaces.
#
# Each key waits at most once, however often it is added, and only one worker has it at a time: a key that is added
# while a worker has it waits until `done`. A key can be added for later (`add_after`), or after a failure with a
# growing delay (`add_rate_limited`), which `forget` resets.
#
# A key whose object changed has high priority. A key whose timer expired has low priority, such as that of an object
# that waits for others or that the API refuses. Workers take from both in turn, except those that take only high
# priority. So thousands of failing objects don't delay the others, nor the other way. In each priority the flows take
# turns (`tink.limits`): the keys of one namespace don't delay those of another.

K = TypeVar("K", bound=Hashable)

_MAX_TIMER_SECONDS = 3600.0
"""Deadlines are in wall-clock time and timers are not, so a key is reconciled after an hour if the clock jumped."""

_QUEUE_BUCKETS = tuple(10.0**power for power in range(-8, 4))
"""Histogram bounds in seconds, those of controller-runtime."""


@dataclass(slots=True)
class QueueCounts:
    """Counts since the start; times in seconds."""

    adds: int = 0
    retries: int = 0
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(_QUEUE_BUCKETS))
    work_seconds: Histogram = field(default_factory=lambda: Histogram(_QUEUE_BUCKETS))


class WorkQueue(Generic[K]):
    """A work queue. It belongs to one event loop."""

    def __init__(
        self,
        retry_first: float,
        retry_longest: float,
        uniform: Callable[[float, float], float] = random.uniform,
        *,
        flow_of: Callable[[K], Hashable] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a queue with a backoff from `retry_first` to `retry_longest` seconds.

        `flow_of` returns the flow of a key; by default there is one flow. `clock` (monotonic seconds) measures how long
        keys wait and how long workers have them.
        """
        self._clock = clock
        self.counts = QueueCounts()
        self._added_at: dict[K, float] = {}
        self._begun_at: dict[K, float] = {}
        self._retry = (retry_first, retry_longest)
        self._uniform = uniform
        self._flow_of = flow_of
        self._high: FairQueue[K] = FairQueue()
        self._low: FairQueue[K] = FairQueue()
        self._low_is_next = False
        self._dirty: dict[K, bool] = {}
        """The keys that wait or that a worker has now. The value is True for high priority."""
        self._processing: dict[K, bool] = {}
        """The keys that workers have; True: with high priority."""
        self._timers: dict[K, tuple[float, asyncio.Handle]] = {}
        """The time of the event loop's clock at which a key is queued, and its timer."""
        self._backoffs: dict[K, Backoff] = {}
        self._requeues: dict[K, int] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: K, *, low_priority: bool = False) -> None:
        """Queue a key for the next free worker, and cancel its timer.

        A key that waits with low priority gets high priority if it is added again with that.
        """
        self._cancel_timer(key)
        high = not low_priority
        if key in self._dirty and (self._dirty[key] or not high):
            return
        if key not in self._dirty:
            self.counts.adds += 1
            self._added_at[key] = self._clock()
        # A key that moves from low to high is skipped when its turn in the low queue comes.
        self._dirty[key] = high
        if key not in self._processing:
            self._enqueue(key, high=high)

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key in `seconds`, or earlier if an earlier time was set before."""
        loop = asyncio.get_running_loop()
        when = loop.time() + min(max(seconds, 0.0), _MAX_TIMER_SECONDS)
        if key in self._timers:
            earlier, timer = self._timers[key]
            if earlier <= when:
                return
            timer.cancel()
        # uvloop returns a plain Handle, without `when`, for a delay below half a millisecond.
        self._timers[key] = when, loop.call_at(when, partial(self.add, key, low_priority=True))

    def add_rate_limited(self, key: K) -> float:
        """Queue a key again after a failure; return the delay in seconds."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(*self._retry, self._uniform)
        self._requeues[key] = self.num_requeues(key) + 1
        self.counts.retries += 1
        delay = backoff.next()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the failures of a key, so that its next delay is the first again."""
        self._backoffs.pop(key, None)
        self._requeues.pop(key, None)

    def num_requeues(self, key: K) -> int:
        """Return the number of failures of a key since the last `forget`."""
        return self._requeues.get(key, 0)

    async def get(self, *, high_priority_only: bool = False) -> K:
        """Wait for the next key and return it; call `done` with it afterwards. Its timer is cancelled."""
        while (key := self._next(high_priority_only)) is None:
            self._wakeup.clear()
            await self._wakeup.wait()
        self._processing[key] = self._dirty.pop(key)
        now = self._begun_at[key] = self._clock()
        self.counts.queue_seconds.observe(now - self._added_at.pop(key))
        self._cancel_timer(key)
        return key

    def lower_priority(self, key: K) -> bool:
        """Queue a key that a worker has again with low priority; return False if it has low priority already."""
        if not self._processing[key]:
            return False
        self.add(key, low_priority=True)
        return True

    def done(self, key: K) -> None:
        """Note that a worker has finished with a key."""
        del self._processing[key]
        self.counts.work_seconds.observe(self._clock() - self._begun_at.pop(key))
        if key in self._dirty:
            self._enqueue(key, high=self._dirty[key])

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker. A key that a worker has does not count."""
        return len(self._dirty) - sum(1 for key in self._processing if key in self._dirty)

    def begun(self) -> Iterable[float]:
        """Return the times, by the clock, at which workers got the keys that they have."""
        return self._begun_at.values()

    def shut_down(self) -> None:
        """Cancel all timers."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _enqueue(self, key: K, *, high: bool) -> None:
        (self._high if high else self._low).append(self._flow_of(key), key)
        self._wakeup.set()

    def _cancel_timer(self, key: K) -> None:
        if key in self._timers:
            self._timers.pop(key)[1].cancel()

    def _next(self, high_only: bool) -> K | None:
        queues = [(self._high, True)]
        if not high_only:
            queues.append((self._low, False))
            self._low_is_next = not self._low_is_next
            if self._low_is_next:
                queues.reverse()
        for queue, high in queues:
            while queue:
                key = queue.popleft()
                if key not in self._processing and self._dirty.get(key) is high:
                    return key
        return None


# --- the controller --------------------------------------------------------------------------------------------------


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
