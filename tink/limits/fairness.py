"""Fair queuing: whoever has much waiting holds up nobody but itself.

Each item belongs to a flow (Kubernetes' word, of API Priority and Fairness), which is a namespace mostly, and keeps its
order there. The flows are served round robin, one item of each; so a tenant with thousands of objects, all of which
change or fail all the time, waits for them itself, and another's object waits for one of them at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Generic, TypeVar

from tink.limits.semaphore import QueueSemaphore

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by their flows. A flow that is empty takes no room."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, deque[T]] = {}  # in the order in which they are served
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, flow: Hashable, item: T) -> None:
        """Put an item at the end of a flow; a new flow is served after all others."""
        self._flows.setdefault(flow, deque()).append(item)
        self._length += 1

    def popleft(self) -> T:
        """The first item of the flow whose turn it is. Raises IndexError if there is none."""
        if not self._flows:
            raise IndexError("nothing waits")
        flow = next(iter(self._flows))
        items = self._flows.pop(flow)
        item = items.popleft()
        if items:
            self._flows[flow] = items  # behind all others
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
        """Drop everything."""
        self._flows.clear()
        self._length = 0


class FairSemaphore:
    """A semaphore whose waiters are served fairly. Belongs to one event loop."""

    def __init__(self, value: int) -> None:
        """`value`: how many may hold it at once."""
        self._waiters: FairQueue[asyncio.Future[None]] = FairQueue()
        self._semaphore = QueueSemaphore(value, self._waiters.popleft)

    def held(self, flow: Hashable) -> AbstractAsyncContextManager[None]:
        """Acquire it as a part of `flow`, and release it at the end of the block."""
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self._semaphore.slot(acquired, partial(self._waiters.append, flow, acquired))
