"""Semaphores that know who is next: so many may do something at once, and those that wait have an order.

`QueueSemaphore` takes the order from a queue of the caller's. `PrioritySemaphore` calls the one whose time comes
first: who is in a hurry names an earlier time than who can wait a while, but nobody waits for ever, for late comers
in a hurry have times that are later still. Pure asyncio, each for one event loop; the times are the caller's.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial


class QueueSemaphore:
    """Lets `limit` in at once. Those that wait stand in a queue: `next_waiter` takes the next out of it, and raises
    IndexError when it is empty."""

    def __init__(self, limit: int, next_waiter: Callable[[], asyncio.Future[None]]) -> None:
        self._free = limit
        self._next_waiter = next_waiter

    @asynccontextmanager
    async def slot(self, called: asyncio.Future[None], enqueue: Callable[[], None]) -> AsyncIterator[None]:
        """Have a slot until the end of the block. When none is free, `enqueue` is to put `called` into the queue."""
        if self._free:
            self._free -= 1
            called.set_result(None)
        else:
            enqueue()
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():
                self._release()  # it was called in the same moment
            raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while True:
            try:
                called = self._next_waiter()
            except IndexError:
                self._free += 1
                return
            if not called.done():
                called.set_result(None)
                return


@dataclass(slots=True, eq=False)
class Waiter:
    """One that waits for a slot, or has it; `time` is when it should come."""

    time: float
    called: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class PrioritySemaphore:
    """Lets `limit` in at once, of those that wait the one with the earliest time."""

    def __init__(self, limit: int) -> None:
        self._semaphore = QueueSemaphore(limit, lambda: heapq.heappop(self._heap)[2].called)
        self._heap: list[tuple[float, int, Waiter]] = []
        self._count = 0

    def slot(self, waiter: Waiter) -> AbstractAsyncContextManager[None]:
        """Wait for a slot with a new waiter, and have it until the end of the block."""
        return self._semaphore.slot(waiter.called, partial(self._push, waiter))

    def expedite(self, waiter: Waiter, time: float) -> None:
        """Have a waiter's slot come at an earlier time; a later one changes nothing."""
        if time < waiter.time and not waiter.called.done():
            waiter.time = time
            self._push(waiter)  # where it stood before, it is passed over

    def _push(self, waiter: Waiter) -> None:
        self._count += 1
        heapq.heappush(self._heap, (waiter.time, self._count, waiter))
