"""Live readers of the journey: each has the events from its start on, at its own pace, and a bounded backlog.

A reader that is too slow loses the oldest events, and is told how many.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from types import TracebackType

from edge.journey.events import JourneyEvent, Notice


class Subscriptions:
    """All that are open. Who drops the last reference to a subscription has ended it."""

    def __init__(self) -> None:
        self.open: list[weakref.ref[Subscription]] = []
        """Always the same list. Empty, most of the time: then no event has to be made."""

    def new(self, backlog: int) -> Subscription:
        """At most `backlog` events wait for the reader."""
        subscription = Subscription(backlog, self)
        self.open.append(weakref.ref(subscription, self._gone))
        return subscription

    def push(self, event: JourneyEvent | Notice) -> None:
        """Hand `event` to all."""
        for reference in list(self.open):
            subscription = reference()
            if subscription is not None:
                subscription.push(event)

    def end(self, subscription: Subscription) -> None:
        """It gets no more events."""
        self.open[:] = [reference for reference in self.open if reference() is not subscription]

    def _gone(self, ended: weakref.ref[Subscription]) -> None:
        self.open[:] = [reference for reference in self.open if reference is not ended]


class Subscription:
    """An async iterator of events, made by `Journey.subscribe`; also a context manager that closes itself."""

    def __init__(self, backlog: int, subscriptions: Subscriptions) -> None:
        self.dropped = 0
        """How many events this reader has lost because it was too slow."""
        self._waiting: deque[JourneyEvent | Notice] = deque(maxlen=backlog)
        self._arrived = asyncio.Event()
        self._closed = False
        self._subscriptions = subscriptions

    def push(self, event: JourneyEvent | Notice) -> None:
        """Called for each event."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after what has arrived already."""
        self._closed = True
        self._subscriptions.end(self)
        self._arrived.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> JourneyEvent | Notice:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
