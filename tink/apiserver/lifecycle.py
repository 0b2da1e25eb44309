"""What a cluster's controllers do by themselves, as far as one machine needs it.

Namespaces and CustomResourceDefinitions that were deleted go when everything in them is gone; Events go after an hour.
Level-triggered: each round looks at the state as it is and does what can be done; a change of anything that may matter
wakes it, and so does the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import orjson

from tink.apiserver import definitions
from tink.apiserver.options import DeleteOptions
from tink.apiserver.registry import Raw, Registry, Resource
from tink.apiserver.request import Target
from tink.apiserver.storage import Event, MismatchError, StorageError, Store, Stored
from tink.apiserver.verbs import Verbs

log = logging.getLogger(__name__)

EVENT_LIFE = timedelta(hours=1)
"""How long Events are kept (kube-apiserver: --event-ttl)."""
ROUND_S = 60.0
"""Longest time between two rounds, in seconds."""

_NAMESPACES = "/namespaces"


class Lifecycle:
    """Removes what is to go. Told of every change by `notice`; works in `run`."""

    def __init__(self, store: Store, registry: Registry, verbs: Verbs, now: Callable[[], datetime]) -> None:
        self._store = store
        self._registry = registry
        self._verbs = verbs
        self._now = now
        self._wake = asyncio.Event()
        self._waiting = True

    def notice(self, event: Event) -> None:
        """Take note of a change: something may be ready to go."""
        if event.key.resource in (_NAMESPACES, definitions.KEY) or (self._waiting and event.type == "DELETED"):
            self._wake.set()

    async def run(self) -> None:
        """Do rounds until cancelled."""
        while True:
            self._wake.clear()
            # Until this round has looked at everything, any object that goes may be the one that something waits for.
            self._waiting = True
            try:
                self._waiting = await self._round()
            except StorageError as error:
                log.error("cleaning up: %s; trying again in %d s", error, ROUND_S)
            try:
                async with asyncio.timeout(ROUND_S):
                    await self._wake.wait()
            except TimeoutError:
                continue  # the clock says that it is time for a round

    async def _round(self) -> bool:
        """Do what can be done; True when something still waits for its objects to go."""
        waiting = False
        for namespace in await self._going(_NAMESPACES):
            held = [resource for resource in self._stored_resources() if resource.namespaced]
            waiting |= not await self._empty(_NAMESPACES, namespace, held, namespace.name)
        for definition in await self._going(definitions.KEY):
            spec = orjson.loads(definition.body)["spec"]
            held = [
                r for r in self._stored_resources() if (r.group, r.plural) == (spec["group"], spec["names"]["plural"])
            ]
            waiting |= not await self._empty(definitions.KEY, definition, held, None)
        await self._expire_events()
        return waiting

    def _stored_resources(self) -> Iterable[Resource]:
        return {resource.key: resource for resource in self._registry.all()}.values()

    async def _going(self, key: str) -> list[Stored]:
        return [
            item for item in await self._all(key, None) if "deletionTimestamp" in orjson.loads(item.body)["metadata"]
        ]

    async def _all(self, key: str, namespace: str | None) -> list[Stored]:
        page = await self._store.page(key, namespace)
        items = page.items
        while page.more:
            last = page.items[-1]
            page = await self._store.page(key, namespace, after=(last.namespace, last.name))
            items += page.items
        return items

    async def _empty(self, key: str, holder: Stored, held: list[Resource], namespace: str | None) -> bool:
        """Delete what a namespace or definition holds, and it itself when nothing is left. True when it is gone."""
        left = 0
        for resource in held:
            for item in await self._all(resource.key, namespace):
                left += not await self._delete(resource, item)
        if left:
            return False
        own = self._registry.of_key(key)
        try:
            if own is not None:
                await self._verbs.release(own, holder)
        except MismatchError:
            return False  # changed meanwhile; the change wakes the next round
        log.info("%s %s is gone with all its objects", key.strip("/"), holder.name)
        return True

    async def _delete(self, resource: Resource, item: Stored) -> bool:
        """Delete one object; True when it is gone, False when its finalizers keep it."""
        fields: Raw = orjson.loads(item.body)["metadata"]
        if "deletionTimestamp" in fields:
            return False
        target = Target(resource.group, resource.version, resource.plural, item.namespace, item.name)
        try:
            await self._verbs.delete_stored(resource, target, item, DeleteOptions())
        except MismatchError:
            self._wake.set()
            return False
        return not fields.get("finalizers")

    async def _expire_events(self) -> None:
        resource = self._registry.of_key("/events")
        if resource is None:
            return
        before = (self._now() - EVENT_LIFE).strftime("%Y-%m-%dT%H:%M:%SZ")
        for item in await self._all(resource.key, None):
            event: Raw = orjson.loads(item.body)
            seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
            if max(seen, event["metadata"]["creationTimestamp"]) < before:
                await self._delete(resource, item)
