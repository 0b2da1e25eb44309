"""A queue of keys that says which object is to be reconciled next: client-go's rate limiting work queue, with two
priorities as in controller-runtime's, and fair among namespaces.

Each key waits at most once, however often it is added, and is never handed to two workers at a time: a key that is
added while it is being worked on waits until that is `done`. A key can be added for later (`add_after`), with a delay
that grows with its failures (`add_rate_limited`) until it is told to `forget` them.

A key that something has happened to has high priority; low is that of one whose timer has run out, such as that of an
object that waits for others or that the API refuses. Workers take of both in turn, but for those that take of high
priority only. So thousands of objects in trouble don't hold up those that are fine, nor the other way. In each priority
the flows take turns (`fairness`): the keys of one namespace, say, don't hold up those of another.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from tink.limits.backoff import Backoff
from tink.limits.fairness import FairQueue
from tink.metrics import Histogram

K = TypeVar("K", bound=Hashable)

_LONGEST_TIMER_SECONDS = 3600.0
"""Deadlines are in wall-clock time, timers are not: look again every hour whatever the clock did."""

_BUCKETS = tuple(10.0**power for power in range(-8, 4))
"""Bounds in seconds, those of controller-runtime."""


@dataclass(slots=True)
class QueueCounts:
    """What has happened since the start; times in seconds."""

    adds: int = 0
    retries: int = 0
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(_BUCKETS))
    work_seconds: Histogram = field(default_factory=lambda: Histogram(_BUCKETS))


class WorkQueue(Generic[K]):
    """Belongs to one event loop. `retry_first` and `retry_longest` are the seconds of the backoff; `flow_of` gives the
    flow of a key, without it there is one only."""

    def __init__(
        self,
        retry_first: float,
        retry_longest: float,
        uniform: Callable[[float, float], float] = random.uniform,
        *,
        flow_of: Callable[[K], Hashable] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives monotonic seconds; by it is measured how long keys wait and work on them takes."""
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
        """Keys that wait, also those that wait for their worker; and whether with high priority."""
        self._processing: dict[K, bool] = {}
        """Keys that were handed out; and whether with high priority."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._requeues: dict[K, int] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: K, *, low_priority: bool = False) -> None:
        """Have `key` handed out as soon as a worker is free: something has happened to it. Its timer is void; what has
        low priority already and is added without, has high priority from now on."""
        self._cancel_timer(key)
        high = not low_priority
        if key in self._dirty and (self._dirty[key] or not high):
            return
        if key not in self._dirty:
            self.counts.adds += 1
            self._added_at[key] = self._clock()
        # One that moves from low to high is passed over when its turn in the low queue comes.
        self._dirty[key] = high
        if key not in self._processing:
            self._enqueue(key, high=high)

    def add_after(self, key: K, seconds: float) -> None:
        """Have `key` handed out in `seconds`, or earlier if that was asked for before."""
        loop = asyncio.get_running_loop()
        when = loop.time() + min(max(seconds, 0.0), _LONGEST_TIMER_SECONDS)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, partial(self.add, key, low_priority=True))

    def add_rate_limited(self, key: K) -> float:
        """Have `key` handed out again after a failure; the delay in seconds."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(*self._retry, self._uniform)
        self._requeues[key] = self.num_requeues(key) + 1
        self.counts.retries += 1
        delay = backoff.next()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Forget the failures of `key`: the next delay is the first again."""
        self._backoffs.pop(key, None)
        self._requeues.pop(key, None)

    def num_requeues(self, key: K) -> int:
        """How often `key` has failed since that was forgotten."""
        return self._requeues.get(key, 0)

    async def get(self, *, high_priority_only: bool = False) -> K:
        """The next key, when there is one; `done` must be called with it. Its timer is void: who looks at it knows
        better when to look again."""
        while (key := self._next(high_priority_only)) is None:
            self._wakeup.clear()
            await self._wakeup.wait()
        self._processing[key] = self._dirty.pop(key)
        now = self._begun_at[key] = self._clock()
        self.counts.queue_seconds.observe(now - self._added_at.pop(key))
        self._cancel_timer(key)
        return key

    def lower_priority(self, key: K) -> bool:
        """Have a key that is being worked on handed out again with low priority, if it was not this time; what is to be
        done about it can wait. Whether that is so."""
        if not self._processing[key]:
            return False
        self.add(key, low_priority=True)
        return True

    def done(self, key: K) -> None:
        """A worker is through with `key`."""
        del self._processing[key]
        self.counts.work_seconds.observe(self._clock() - self._begun_at.pop(key))
        if key in self._dirty:
            self._enqueue(key, high=self._dirty[key])

    def __len__(self) -> int:
        """Keys that wait for a worker; not those that wait for their own to be done."""
        return len(self._dirty) - sum(1 for key in self._processing if key in self._dirty)

    def begun(self) -> Iterable[float]:
        """When work began on each of the keys that are worked on, by the clock."""
        return self._begun_at.values()

    def shut_down(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _enqueue(self, key: K, *, high: bool) -> None:
        (self._high if high else self._low).append(self._flow_of(key), key)
        self._wakeup.set()

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

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
