"""Readers of the journey: polled sets of changed machines (`Changes`), and live streams of events (`Subscription`).

A change costs one insertion into a set, whatever the number of readers, and nothing without readers. A live reader gets
the events from its start on, at its own pace. If it is too slow, it loses the oldest ones and learns how many.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque

from edge.journey.events import JourneyEvent, Notice


class Changes:
    """The readers that poll for changed machines; `mark` records a change."""

    def __init__(self) -> None:
        self.subscribers: list[PendingChanges] = []
        """Always the same list object. If it is empty, changes need no `mark`."""
        self.marked: set[str] = set()
        """Always the same set object: the machines that changed since a reader last polled."""

    def mark(self, mac: str) -> None:
        """Record that this machine has changed."""
        if self.subscribers:
            self.marked.add(mac)

    def subscribe(self) -> PendingChanges:
        """Return a new reader of changes from now on. The caller closes it."""
        self.hand_out()
        pending = PendingChanges(self)
        self.subscribers.append(pending)
        return pending

    def hand_out(self) -> None:
        """Move the marked machines to all readers."""
        for pending in self.subscribers:
            pending.waiting |= self.marked
        self.marked.clear()


class PendingChanges:
    """One reader: the machines that have changed since it last called `take`, each of them once."""

    def __init__(self, changes: Changes) -> None:
        self.waiting: set[str] = set()
        self._changes = changes

    def take(self) -> set[str]:
        """Return the machines that changed since the last call."""
        self._changes.hand_out()
        taken, self.waiting = self.waiting, set()
        return taken

    def close(self) -> None:
        """Stop reading."""
        if self in self._changes.subscribers:
            self._changes.subscribers.remove(self)
        if not self._changes.subscribers:
            self._changes.marked.clear()


class Subscriptions:
    """The open subscriptions. One ends when the last reference to it goes."""

    def __init__(self) -> None:
        self.open: list[weakref.ref[Subscription]] = []
        """Always the same list object. It is usually empty: then no event objects are made."""

    def new(self, backlog: int) -> Subscription:
        """Return a subscription with at most `backlog` unread events."""
        subscription = Subscription(backlog, self)
        self.open.append(weakref.ref(subscription, self._gone))
        return subscription

    def push(self, event: JourneyEvent | Notice) -> None:
        """Append `event` to all subscriptions."""
        for reference in list(self.open):
            subscription = reference()
            if subscription is not None:
                subscription.push(event)

    def end(self, subscription: Subscription) -> None:
        """Close a subscription."""
        self.open[:] = [reference for reference in self.open if reference() is not subscription]

    def _gone(self, ended: weakref.ref[Subscription]) -> None:
        self.open[:] = [reference for reference in self.open if reference is not ended]


class Subscription:
    """An async iterator of events, made by `Journey.subscribe`; `close` it after use."""

    def __init__(self, backlog: int, subscriptions: Subscriptions) -> None:
        self.dropped = 0
        """Number of events that this reader has lost because it was too slow."""
        self._waiting: deque[JourneyEvent | Notice] = deque(maxlen=backlog)
        self._arrived = asyncio.Event()
        self._closed = False
        self._subscriptions = subscriptions

    def push(self, event: JourneyEvent | Notice) -> None:
        """Append an event; the oldest unread one is dropped if the backlog is full."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after the events that have arrived already."""
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
