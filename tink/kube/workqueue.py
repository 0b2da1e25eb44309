"""A queue of keys that says which object is to be looked at next.

Each key waits at most once, however often it is added, and is never handed to two workers at a time: a key that is
added while it is being worked on waits until that is done. (The semantics of client-go's workqueue.) A key can be
added for later, with a growing delay after failures.

There are two lines. A key that something has happened to stands in the first; one whose timer has run out, such as
that of an object that waits for others or that the API refuses, in the second. Workers take from both in turn, but for
those that are reserved for the first. So thousands of objects in trouble don't hold up those that are fine, nor the
other way. In each line it is the turn of one owner after the other (`rounds`): those of one namespace, say, don't hold
up those of another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tink.kube.rounds import Rounds
from tink.limits.backoff import Backoff

K = TypeVar("K", bound=Hashable)

_LONGEST_TIMER = 3600.0
"""Seconds. Deadlines are in wall-clock time, timers are not: look again every hour whatever the clock did."""


class WorkQueue(Generic[K]):
    """Belongs to one event loop. `retry_first` and `retry_longest` are seconds; `whose` gives the owner of a key, all
    are one's without it."""

    def __init__(
        self,
        retry_first: float,
        retry_longest: float,
        uniform: Callable[[float, float], float] = random.uniform,
        *,
        whose: Callable[[K], Hashable] = lambda _: None,
    ) -> None:
        self._retry = (retry_first, retry_longest)
        self._uniform = uniform
        self._whose = whose
        self._first: Rounds[K] = Rounds()
        self._second: Rounds[K] = Rounds()
        self._turn = False
        self._waiting: dict[K, bool] = {}  # and whether it stands in the first line
        self._working: dict[K, bool] = {}  # and whether it stood in the first line
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: K) -> None:
        """Have `key` looked at as soon as a worker is free: something has happened to it."""
        self._add(key, first=True)

    def add_behind(self, key: K) -> None:
        """The same in the second line: something has happened to it that can wait for what can't."""
        self._add(key, first=False)

    def _add(self, key: K, *, first: bool) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._waiting and (self._waiting[key] or not first):
            return
        # One that moves from the second line into the first is passed over when its turn in the second comes.
        self._waiting[key] = first
        if key not in self._working:
            self._stand(key, first=first)

    def _stand(self, key: K, *, first: bool) -> None:
        (self._first if first else self._second).append(self._whose(key), key)
        self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have `key` looked at in `seconds`; replaces an earlier timer of it."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(min(max(seconds, 0.0), _LONGEST_TIMER), self._due, key)

    def _due(self, key: K) -> None:
        self._add(key, first=False)

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

    async def take(self, *, reserved: bool = False) -> K:
        """The next key, when there is one; with `reserved` of the first line. `done` must be called with it."""
        while (key := self._next(reserved)) is None:
            self._wakeup.clear()
            await self._wakeup.wait()
        self._working[key] = self._waiting.pop(key)
        return key

    def postpone(self, key: K) -> bool:
        """Have a key that is being worked on looked at again from the second line, if it was not taken from there; what
        is to be done about it can wait. Whether that is so."""
        if not self._working[key]:
            return False
        self._add(key, first=False)
        return True

    def _next(self, reserved: bool) -> K | None:
        lines = [(self._first, True)]
        if not reserved:
            lines.append((self._second, False))
            self._turn = not self._turn
            if self._turn:
                lines.reverse()
        for line, first in lines:
            while line:
                key = line.popleft()
                if key not in self._working and self._waiting.get(key) is first:
                    return key
        return None

    def done(self, key: K) -> None:
        """A worker is through with `key`."""
        del self._working[key]
        if key in self._waiting:
            self._stand(key, first=self._waiting[key])

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
