"""A queue of keys that says which object is to be looked at next.

Each key waits at most once, however often it is added, and is never handed to two workers at a time: a key that is
added while it is being worked on waits until that is done. (The semantics of client-go's workqueue.) A key can be
added for later, with a growing delay after failures.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tink.kube.backoff import Backoff

K = TypeVar("K", bound=Hashable)

_LONGEST_TIMER = 3600.0
"""Seconds. Deadlines are in wall-clock time, timers are not: look again every hour whatever the clock did."""


class WorkQueue(Generic[K]):
    """Belongs to one event loop. `retry_first` and `retry_longest` are seconds."""

    def __init__(
        self,
        retry_first: float,
        retry_longest: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._retry = (retry_first, retry_longest)
        self._uniform = uniform
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: K) -> None:
        """Have `key` looked at as soon as a worker is free."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have `key` looked at in `seconds`; replaces an earlier timer of it."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(min(max(seconds, 0.0), _LONGEST_TIMER), self.add, key)

    def retry(self, key: K) -> float:
        """Have `key` looked at again after a failure; the delay in seconds."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(*self._retry, self._uniform)
        delay = backoff.next()
        self.add_after(key, delay)
        return delay

    def settle(self, key: K) -> None:
        """Forget the failures of `key`."""
        self._backoffs.pop(key, None)

    def forget(self, key: K) -> None:
        """The object is gone: drop its timer and its failures. A key that waits is still handed out."""
        self.settle(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def take(self) -> K:
        """The next key, when there is one. `done` must be called with it."""
        while not self._ready:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """A worker is through with `key`."""
        self._working.discard(key)
        if key in self._waiting:
            self._ready.append(key)
            self._wakeup.set()

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
