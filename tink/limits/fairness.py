"""Queues and semaphores that serve their waiters in a fair order.

Each item belongs to a flow (the word of Kubernetes' API Priority and Fairness), mostly a namespace, and keeps its order
there. The flows are served round robin, one item of each. So a tenant with thousands of objects that change or fail all
the time delays its own objects, and an object of another tenant waits for one of them at most.

Pure asyncio, each object for one event loop; times come from the caller.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items in flows, served round robin. An empty flow takes no memory."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, deque[T]] = {}  # in the order in which they are served
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, flow: Hashable, item: T) -> None:
        """Append an item to a flow; a new flow is served after all others."""
        self._flows.setdefault(flow, deque()).append(item)
        self._length += 1

    def popleft(self) -> T:
        """Remove and return the first item of the next flow. Raises IndexError if there is none."""
        if not self._flows:
            raise IndexError("nothing waits")
        flow = next(iter(self._flows))
        items = self._flows.pop(flow)
        item = items.popleft()
        if items:
            self._flows[flow] = items  # after all others
        self._length -= 1
        return item

    def drop(self) -> None:
        """Drop the last item of the longest flow. Raises ValueError if there is none."""
        flow, items = max(self._flows.items(), key=lambda each: len(each[1]))
        items.pop()
        if not items:
            del self._flows[flow]
        self._length -= 1

    def clear(self) -> None:
        """Drop all items."""
        self._flows.clear()
        self._length = 0


class QueueSemaphore:
    """A semaphore of `limit` slots whose order is that of the caller's queue.

    `next_waiter` removes and returns the next waiter of the queue; it raises IndexError if the queue is empty.
    """

    def __init__(self, limit: int, next_waiter: Callable[[], asyncio.Future[None]]) -> None:
        self._free = limit
        self._next_waiter = next_waiter

    @asynccontextmanager
    async def slot(self, called: asyncio.Future[None], enqueue: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a slot until the end of the block. If none is free, `enqueue` must put `called` into the queue."""
        if self._free:
            self._free -= 1
            called.set_result(None)
        else:
            enqueue()
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():
                self._release()  # it got its slot at the moment of the cancellation
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
    """A waiter or holder of a slot; `time` is its deadline."""

    time: float
    called: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class PrioritySemaphore:
    """A semaphore of `limit` slots that serves the waiter with the earliest time first.

    An urgent waiter has an earlier time than one that can wait. No waiter waits without end, because later urgent ones
    have later times.
    """

    def __init__(self, limit: int) -> None:
        self._semaphore = QueueSemaphore(limit, lambda: heapq.heappop(self._heap)[2].called)
        self._heap: list[tuple[float, int, Waiter]] = []
        self._count = 0

    def slot(self, waiter: Waiter) -> AbstractAsyncContextManager[None]:
        """Wait for a slot with a new waiter, and hold it until the end of the block."""
        return self._semaphore.slot(waiter.called, partial(self._push, waiter))

    def expedite(self, waiter: Waiter, time: float) -> None:
        """Give a waiter an earlier time; a later one changes nothing."""
        if time < waiter.time and not waiter.called.done():
            waiter.time = time
            self._push(waiter)  # its earlier place is skipped

    def _push(self, waiter: Waiter) -> None:
        self._count += 1
        heapq.heappush(self._heap, (waiter.time, self._count, waiter))


class FairSemaphore:
    """A semaphore whose waiters are served round robin by their flows."""

    def __init__(self, value: int) -> None:
        """Create a semaphore with `value` slots."""
        self._waiters: FairQueue[asyncio.Future[None]] = FairQueue()
        self._semaphore = QueueSemaphore(value, self._waiters.popleft)

    def held(self, flow: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold a slot as a part of `flow` until the end of the block."""
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self._semaphore.slot(acquired, partial(self._waiters.append, flow, acquired))
