"""The watch broadcaster: hands every change that is on the disk to the watches that are open.

Fed by the store, on the event loop, in the order of versions. A watch that reads too slowly is ended rather than
letting its backlog grow; the client then resumes from its last resourceVersion, out of the history (`store`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from tink.kubeapi.apiserver.store import Event

BACKLOG = 5_000
BACKLOG_BYTES = 32 << 20
"""A watch that has more waiting than either of these is ended."""


class Subscription:
    """The changes of one resource (in one namespace, or in all: None) since the subscription was made."""

    def __init__(self, broadcaster: Broadcaster, resource: str, namespace: str | None) -> None:
        self._broadcaster = broadcaster
        self.resource = resource
        self.namespace = namespace
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self.ended = False

    def offer(self, event: Event) -> None:
        """Take a change, or end when the backlog is full."""
        if self.ended or (self.namespace is not None and event.key.namespace != self.namespace):
            return
        self._events.append(event)
        self._bytes += len(event.body)
        if len(self._events) > BACKLOG or self._bytes > BACKLOG_BYTES:
            self.end()
        self._rouse()

    def end(self) -> None:
        """Stop: no further changes are taken, and those that wait are dropped."""
        self.ended = True
        self._events.clear()
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next(self, timeout_s: float) -> list[Event]:
        """Wait at most `timeout_s` seconds for changes, and take all that are there. Empty: none, or ended."""
        if not self._events and not self.ended:
            # Once for each change and watch: a future and a timer cost a third of asyncio.Event and asyncio.timeout.
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = loop.call_later(timeout_s, self._rouse)
            try:
                await self._wake
            finally:
                timer.cancel()
        events = list(self._events)
        self._events.clear()
        self._bytes = 0
        return events

    def close(self) -> None:
        """Leave the broadcaster."""
        self._broadcaster.remove(self)


class Broadcaster:
    """All open watches."""

    def __init__(self) -> None:
        self._subscriptions: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._closed = False
        self.version = 0
        """The newest version that was handed out."""

    def publish(self, event: Event) -> None:
        """Hand a change to the watches of its resource."""
        self.version = event.version
        for subscription in tuple(self._subscriptions.get(event.key.resource, ())):
            subscription.offer(event)

    def subscribe(self, resource: str, namespace: str | None) -> Subscription:
        """Begin to collect changes. The caller closes the subscription."""
        subscription = Subscription(self, resource, namespace)
        if self._closed:
            subscription.end()
        else:
            self._subscriptions[resource].add(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        found = self._subscriptions.get(subscription.resource)
        if found is not None:
            found.discard(subscription)
            if not found:
                del self._subscriptions[subscription.resource]

    def end(self, resource: str) -> None:
        """End the watches of a resource that is no longer served."""
        for subscription in tuple(self._subscriptions.get(resource, ())):
            subscription.end()

    def close(self) -> None:
        """End every watch, and every one that comes later."""
        self._closed = True
        for resource in tuple(self._subscriptions):
            self.end(resource)
