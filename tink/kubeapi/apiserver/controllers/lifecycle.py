"""What a cluster's controllers do by themselves, as far as one machine needs it (`garbage_collector`: owners).

Namespaces and CustomResourceDefinitions that were deleted go when everything in them is gone; what holds them up stands
in their conditions. Events go after an hour. Level-triggered: each round looks at the state as it is and does what can
be done; a change of anything that may matter wakes it, and so does the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

import orjson

from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.requests import MERGE_PATCH, Body, DeleteOptions, Target, WriteOptions
from tink.kubeapi.apiserver.resources import Registry, Resource, builtin, definitions
from tink.kubeapi.apiserver.store import Event, MismatchError, StorageError, Store, Stored
from tink.kubeapi.apiserver.write import Verbs
from tink.kubeapi.schema import Raw, meta

log = logging.getLogger(__name__)

T = TypeVar("T")

EVENT_LIFE = timedelta(hours=1)
"""How long Events are kept (kube-apiserver: --event-ttl)."""
ROUND_SECONDS = 60.0
"""Longest time between two rounds, in seconds."""
MANAGER = WriteOptions(kind="UpdateOptions", manager="kube-controller-manager")

_NAMESPACES = "/namespaces"
_FINALIZER = "kubernetes"
"""What a namespace has in spec.finalizers until its objects are gone (k8s.io/api/core/v1, FinalizerKubernetes)."""


@dataclass
class _Remaining:
    """What is still in a namespace: objects by resource, finalizers by name, and deletes that failed."""

    objects: Counter[str] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Lifecycle:
    """Removes what is to go. Told of every change by `on_event`; works in `run`."""

    def __init__(self, store: Store, registry: Registry, verbs: Verbs, now: Callable[[], datetime]) -> None:
        self._store = store
        self._registry = registry
        self._verbs = verbs
        self._now = now
        self._wake = asyncio.Event()
        self._waiting = True

    def on_event(self, event: Event) -> None:
        """Take note of a change: something may be ready to go."""
        if event.key.resource in (_NAMESPACES, definitions.KEY) or (self._waiting and event.type == "DELETED"):
            self._wake.set()

    async def run(self) -> None:
        """Do rounds until cancelled."""
        while True:
            self._wake.clear()
            # Until this round has looked at everything, any object that goes may be the one that something waits for.
            self._waiting = True
            self._waiting = await _tried(self._round(), "cleaning up") is not False
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue  # the clock says that it is time for a round

    async def _round(self) -> bool:
        """Do what can be done; True when something still waits for its objects to go.

        What goes wrong about one thing does not stop the others.
        """
        waiting = False
        for namespace in await self._terminating(_NAMESPACES):
            waiting |= not await _tried(self._delete_contents(namespace), f"namespace {namespace.name}")
        for definition in await self._terminating(definitions.KEY):
            waiting |= not await _tried(self._delete_instances(definition), f"definition {definition.name}")
        await _tried(self._retry_names(), "names of definitions")
        await _tried(self._expire_events(), "old Events")
        return waiting

    def _stored_resources(self) -> Iterable[Resource]:
        found: dict[str, Resource] = {}
        for resource in self._registry.all():
            if not resource.virtual:
                found.setdefault(resource.key, resource)
        return found.values()

    async def _terminating(self, key: str) -> list[Stored]:
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

    # --- namespaces ---

    async def _delete_contents(self, stored: Stored) -> bool:
        """Delete what a namespace holds, and let it go when nothing is left. True when it has nothing to wait for."""
        namespace: Raw = orjson.loads(stored.body)
        finalizers = namespace["spec"].get("finalizers") or []
        if _FINALIZER not in finalizers:
            return True  # what else holds it up is somebody else's
        left = _Remaining()
        for resource in self._stored_resources():
            if resource.namespaced:
                for item in await self._all(resource.key, stored.name):
                    await self._delete(resource, item, left)
        resource, target = self._namespaces(stored.name)
        if left.objects:
            conditions = _conditions(left, namespace["status"].get("conditions") or [], self._timestamp())
            if conditions != namespace["status"].get("conditions"):
                status = {**namespace["status"], "conditions": conditions}
                await self._update(resource, target, {**namespace, "status": status}, "status")
            return False
        spec = {**namespace["spec"], "finalizers": [item for item in finalizers if item != _FINALIZER]}
        if not await self._update(resource, target, {**namespace, "spec": spec}, "finalize"):
            return False
        log.info("namespace %s has no objects left", stored.name)
        return True

    def _namespaces(self, name: str) -> tuple[Resource, Target]:
        resource = self._registry.find("", "v1", "namespaces")
        if resource is None:
            raise StorageError("namespaces are not built in")
        return resource, Target("", "v1", "namespaces", "", name)

    async def _update(self, resource: Resource, target: Target, new: Raw, subresource: str) -> bool:
        """Write a namespace; False when it has changed since it was read. The change wakes the next round."""
        where = Target(target.group, target.version, target.plural, target.namespace, target.name, subresource)
        try:
            await self._verbs.update(resource, where, Body(new), MANAGER)
        except StatusError as error:
            if error.code not in (404, 409):
                raise
            return error.code == 404
        return True

    # --- definitions ---

    async def _delete_instances(self, stored: Stored) -> bool:
        """Delete the objects of a definition, and let it go when nothing is left. True when it waits for nothing."""
        definition: Raw = orjson.loads(stored.body)
        finalizers = definition["metadata"].get("finalizers") or []
        if definitions.FINALIZER not in finalizers:
            return True
        spec = definition["spec"]
        left = _Remaining()
        for resource in self._stored_resources():
            if (resource.group, resource.plural) == (spec["group"], spec["names"]["plural"]):
                for item in await self._all(resource.key, None):
                    await self._delete(resource, item, left)
        if left.objects:
            return False
        own = self._registry.find(definitions.GROUP, "v1", definitions.PLURAL)
        if own is None:
            raise StorageError("definitions are not built in")
        rest = [item for item in finalizers if item != definitions.FINALIZER]
        guard = {name: definition["metadata"][name] for name in ("uid", "resourceVersion")}
        target = Target(definitions.GROUP, "v1", definitions.PLURAL, "", stored.name)
        try:
            body = Body({"metadata": {**guard, "finalizers": rest or None}})
            await self._verbs.patch(own, target, MERGE_PATCH, body, MANAGER)
        except StatusError as error:
            if error.code not in (404, 409):
                raise
            return error.code == 404
        log.info("definition %s has no objects left", stored.name)
        return True

    async def _retry_names(self) -> None:
        """Write definitions again whose names were taken: what had them may have gone."""
        own = self._registry.find(definitions.GROUP, "v1", definitions.PLURAL)
        for stored in await self._all(definitions.KEY, None):
            if own is not None and definitions.lacks_names(orjson.loads(stored.body)):
                target = Target(definitions.GROUP, "v1", definitions.PLURAL, "", stored.name)
                try:
                    await self._verbs.patch(own, target, MERGE_PATCH, Body({}), MANAGER)
                except StatusError as error:
                    log.info("definition %s: %s", stored.name, error)

    # --- objects ---

    async def _delete(self, resource: Resource, item: Stored, left: _Remaining) -> None:
        """Delete one object, and count it when it stays."""
        fields: Raw = orjson.loads(item.body)["metadata"]
        target = Target(resource.group, resource.version, resource.plural, item.namespace, item.name)
        gone = False
        if "deletionTimestamp" not in fields:
            try:
                await self._verbs.delete_stored(resource, target, item, DeleteOptions())
                gone = not fields.get("finalizers")
            except MismatchError:
                self._wake.set()
            except StatusError as error:
                left.failures.append(str(error))
        if not gone:
            left.objects[resource.crd_name if resource.group else f"{resource.plural}."] += 1
            left.finalizers.update(fields.get("finalizers") or ())

    async def _expire_events(self) -> None:
        resource = self._registry.of_key("/events")
        if resource is None:
            return
        before = meta.timestamp(self._now() - EVENT_LIFE)
        for item in await self._all(resource.key, None):
            event: Raw = orjson.loads(item.body)
            if max(builtin.events.last_seen(event), event["metadata"]["creationTimestamp"]) < before:
                await self._delete(resource, item, _Remaining())

    def _timestamp(self) -> str:
        return meta.timestamp(self._now())


async def _tried(work: Awaitable[T], what: str) -> T | None:
    """What it gives; None where it failed, which is said: the next round tries again."""
    try:
        return await work
    except (StorageError, StatusError) as error:
        log.error("%s: %s; trying again in %d s", what, error, ROUND_SECONDS)
    except Exception:
        log.exception("%s: trying again in %d s", what, ROUND_SECONDS)
    return None


def _conditions(left: _Remaining, before: list[Raw], now: str) -> list[Raw]:
    """Say on a namespace what it waits for (k8s.io/kubernetes, pkg/controller/namespace/deletion)."""

    def counted(counts: Counter[str], words: str) -> str:
        return ", ".join(f"{name} {words.format(count)}" for name, count in sorted(counts.items()))

    objects = counted(left.objects, "has {} resource instances")
    finalizers = counted(left.finalizers, "in {} resource instances")
    failed = f"Failed to delete all resource types, {len(left.failures)} remaining: {', '.join(sorted(left.failures))}"
    told = (
        ("DeletionContentFailure", "ContentDeletionFailed", failed if left.failures else "", "ContentDeleted"),
        (
            "ContentRemaining",
            "SomeResourcesRemain",
            f"Some resources are remaining: {objects}" if objects else "",
            "ContentRemoved",
        ),
        (
            "FinalizersRemaining",
            "SomeFinalizersRemain",
            f"Some content in the namespace has finalizers remaining: {finalizers}" if finalizers else "",
            "ContentHasNoFinalizers",
        ),
    )
    known = {item["type"]: item for item in before}
    made = []
    for what, reason, message, fine in told:
        kind, status = f"Namespace{what}", "True" if message else "False"
        old = known.get(kind, {})
        made.append(
            {
                "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == status else now,
                "message": message,
                "reason": reason if message else fine,
                "status": status,
                "type": kind,
            }
        )
    return made
