"""The controllers of one machine: garbage collection, and the end of namespaces, definitions and Events.

Both are level-triggered: each look starts from the present state and does the one next thing, and the change that
follows causes the next look. Failures are retried with growing delays. Neither keeps state that could be lost: after a
restart they look at everything once.
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

from tink.kube.runtime import WorkQueue
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import MERGE_PATCH, Body
from tink.kubeapi.apiserver.options import DeleteOptions, Target, WriteOptions
from tink.kubeapi.apiserver.resources import builtin, definitions
from tink.kubeapi.apiserver.resources.registry import Registry, Resource
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, Key, MismatchError, OwnedObject, StorageError, StoredObject
from tink.kubeapi.apiserver.write.verbs import FOREGROUND, ORPHAN, Verbs
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.definition import is_true
from tink.kubeapi.schema.field_errors import quote
from tink.kubeapi.schema.shapes import Raw
from tink.limits import Newest, TokenBuckets

log = logging.getLogger(__name__)

WORKERS = 16  # Number of concurrent deletes. They share commits.
RETRY_FIRST_SECONDS, RETRY_LONGEST_SECONDS = 0.5, 60.0
PATCH_OPTIONS = WriteOptions(kind="PatchOptions", manager="kube-controller-manager")
CREATE_OPTIONS = WriteOptions(kind="CreateOptions", manager="kube-controller-manager")
MAX_REMEMBERED = 500
"""Maximum number of remembered absent owners (the same as in Kubernetes), and of reported references."""
REPORTS_AT_ONCE, REPORTS_PER_SECOND = 100, 1.0
"""Limits of Events about wrong owner references, for all objects together."""

_COMPONENT = "garbage-collector-controller"
_EVERYTHING = ""
"""In the queue: look at all objects once, after a start."""
_OWNERS = b'"ownerReferences"'
_FINALIZERS = tuple(f'"{name}"'.encode() for name in (ORPHAN, FOREGROUND))


@dataclass(frozen=True, slots=True)
class _Owners:
    """The owner references of an object, by the state of the owners."""

    solid: list[Raw]
    gone: list[Raw]
    waiting: list[Raw]


class GarbageCollector:
    """Deletes objects without owners (Kubernetes documentation, "Garbage Collection").

    An object names its owners in `metadata.ownerReferences`. It is deleted when no owner exists any more; while some
    exist, references to the others are removed. An owner that is deleted in the foreground stays until the dependents
    that block it are gone. An owner whose dependents are to be orphaned stays until their references are removed. The
    store keeps the index from owner to dependents.

    An owner is looked up in the object's own namespace. If it is in another namespace, a Warning Event reports it
    (OwnerRefInvalidNamespace), and the object is treated as if the owner did not exist. An object without a namespace
    that names such an owner is left alone.
    """

    def __init__(self, store: ObjectStore, registry: Registry, verbs: Verbs, now: Callable[[], datetime]) -> None:
        self._now = now
        self._absent: Newest[tuple[str, str], None] = Newest(MAX_REMEMBERED)
        """UIDs and names of owners that do not exist in any namespace."""
        self._reported: Newest[tuple[str, str], None] = Newest(MAX_REMEMBERED)
        """UIDs of objects and of their owners in other namespaces."""
        self._reports = TokenBuckets(REPORTS_AT_ONCE, REPORTS_PER_SECOND)
        self._store = store
        self._registry = registry
        self._verbs = verbs
        self._queue: WorkQueue[Key | str] = WorkQueue(RETRY_FIRST_SECONDS, RETRY_LONGEST_SECONDS)
        """Objects to look at, and uids of deleted objects, whose dependents are to be queued."""
        self._resources_by_kind: tuple[int, dict[tuple[str, str], Resource]] = (-1, {})

    def on_event(self, event: Event) -> None:
        """Process a change: an object may have lost its owner, or the dependents that it waited for."""
        if event.type == "DELETED":
            self._queue.add(event.object["metadata"]["uid"])
            self._absent[event.object["metadata"]["uid"], event.key.name] = None
            if _OWNERS in event.body:
                self._queue_owners(event.object)
            return
        owned = _OWNERS in event.body
        if owned or _has_work(event.body):
            self._queue.add(event.key)
        # An owner deleted in the foreground waits only for dependents that block it, which this change may have ended.
        if event.prior is not None and _OWNERS in event.prior and event.before is not None:
            self._queue_owners(event.before)

    def _queue_owners(self, obj: Raw) -> None:
        for owner in obj["metadata"].get("ownerReferences") or ():
            resource = self._resource_of(owner)
            if resource is not None:
                namespace = obj["metadata"].get("namespace", "") if resource.namespaced else ""
                self._queue.add(Key(resource.key, namespace, owner["name"]))

    async def run(self) -> None:
        """Collect until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._queue.add(_EVERYTHING)
                for _ in range(WORKERS):
                    tasks.create_task(self._work())
        finally:
            self._queue.shut_down()

    async def _queue_everything(self) -> None:
        """Queue all objects with owners, and all that wait for their dependents. Runs once after a start."""
        after: OwnedObject | None = None
        while owned := await self._store.owned(after):
            for item in owned:
                self._queue.add(item.key)
            after = owned[-1]
        for key in {resource.key for resource in self._registry.all() if not resource.virtual}:
            async for stored in self._store.scan(key):
                if _has_work(stored.body):
                    self._queue.add(Key(key, stored.namespace, stored.name))

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                if isinstance(key, Key):
                    await self._reconcile(key)
                elif key == _EVERYTHING:
                    await self._queue_everything()
                else:
                    for dependent in await self._store.dependents(key):
                        self._queue.add(dependent)
                self._queue.forget(key)
            except MismatchError:
                self._queue.add(key)  # changed since it was read
            except StatusError as error:
                if error.code == 404:
                    self._queue.forget(key)
                elif error.code == 409:
                    self._queue.add_rate_limited(key)
                else:
                    _log_failure(_describe(key), error, self._queue.add_rate_limited(key))
            except Exception as error:
                # A failure about one object must not stop the work on others.
                _log_failure(_describe(key), error, self._queue.add_rate_limited(key))
            finally:
                self._queue.done(key)

    # --- one object ---

    async def _reconcile(self, key: Key) -> None:
        resource, stored = self._registry.of_key(key.resource), await self._store.get(key)
        if resource is None or stored is None:
            return
        obj: Raw = orjson.loads(stored.body)
        fields = obj["metadata"]
        if "deletionTimestamp" in fields:
            finalizers = fields.get("finalizers") or []
            if ORPHAN in finalizers:
                await self._orphan(resource, key, fields)
            elif FOREGROUND in finalizers:
                await self._wait_for_dependents(resource, key, fields)
            return
        if fields.get("ownerReferences"):
            await self._collect(resource, key, stored, fields)

    async def _collect(self, resource: Resource, key: Key, stored: StoredObject, fields: Raw) -> None:
        """Delete an object without owners, or remove the references to missing owners."""
        owners = await self._classify(resource, key, fields)
        if owners is None:
            return
        if owners.solid:
            if owners.gone or owners.waiting:
                await self._change(resource, key, fields, {"ownerReferences": owners.solid})
            return
        policy = "Background"
        finalizers = fields.get("finalizers") or []
        if ORPHAN in finalizers:
            policy = "Orphan"
        elif FOREGROUND in finalizers:
            policy = "Foreground"
        if owners.waiting and (dependents := await self._store.dependents(fields["uid"])):
            references = fields["ownerReferences"]
            if any(owner.get("blockOwnerDeletion") for owner in references) and await self._is_cycle(dependents):
                free = [{**owner, "blockOwnerDeletion": False} for owner in references]
                await self._change(resource, key, fields, {"ownerReferences": free})
                return  # the change causes the next look, without blocking references
            policy = "Foreground"
        log.debug("collecting %s %s/%s, %s", key.resource, key.namespace, key.name, policy)
        options = DeleteOptions(uid=fields["uid"], version=fields["resourceVersion"], policy=policy)
        await self._verbs.delete_stored(resource, _target(resource, key), stored, options)

    async def _classify(self, resource: Resource, key: Key, fields: Raw) -> _Owners | None:
        """Sort the owner references of an object. An owner whose kind is not served counts as existing. Return None if
        the object has no namespace, but an owner that has one. Kubernetes does nothing about such an object."""
        found, invalid = _Owners([], [], []), False
        for owner in fields["ownerReferences"]:
            kind = self._resource_of(owner)
            if kind is None:
                found.solid.append(owner)
                continue
            if kind.namespaced and not resource.namespaced:
                invalid = True
                await self._report_elsewhere(resource, key, fields, owner, kind)
                continue
            stored = await self._store.get(Key(kind.key, key.namespace if kind.namespaced else "", owner["name"]))
            theirs: Raw = orjson.loads(stored.body)["metadata"] if stored is not None else {}
            if theirs.get("uid") != owner["uid"]:
                found.gone.append(owner)
                if kind.namespaced:
                    await self._report_elsewhere(resource, key, fields, owner, kind)
            elif "deletionTimestamp" in theirs and FOREGROUND in (theirs.get("finalizers") or ()):
                found.waiting.append(owner)
            else:
                found.solid.append(owner)
        return None if invalid else found

    async def _report_elsewhere(self, resource: Resource, key: Key, fields: Raw, owner: Raw, kind: Resource) -> None:
        """Record an Event if the owner exists in another namespace. Source: k8s.io/kubernetes,
        pkg/controller/garbagecollector/graph_builder.go, reportInvalidNamespaceOwnerRef."""
        identity, pair = (owner["uid"], owner["name"]), (fields["uid"], owner["uid"])
        if identity in self._absent or pair in self._reported:
            return
        namesakes = await self._store.namesakes(kind.key, owner["name"], owner["uid"])
        if all(orjson.loads(stored.body)["metadata"]["uid"] != owner["uid"] for stored in namesakes):
            self._absent[identity] = None
            return
        self._reported[pair] = None
        if not self._reports.allows("", asyncio.get_running_loop().time()):
            log.warning("%s: an owner is in another namespace; no Event, because there are too many", _describe(key))
            return
        now = self._now()
        coordinates = f"{owner['apiVersion']}/{owner['kind']}, namespace: {key.namespace}, name: {owner['name']}"
        about = {"kind": resource.kind, "apiVersion": resource.api_version, "name": key.name, "uid": fields["uid"]}
        stamp = meta.timestamp(now)
        event = {
            # client-go's names: the object's name, and the time in nanoseconds.
            "metadata": {"name": f"{key.name[:220]}.{int(now.timestamp() * 1e6) * 1000:x}"},
            "involvedObject": about | ({"namespace": key.namespace} if key.namespace else {}),
            "type": "Warning",
            "reason": "OwnerRefInvalidNamespace",
            "message": f"ownerRef [{coordinates}, uid: {owner['uid']}] does not exist in namespace "
            f"{quote(key.namespace)}",
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        target = Target("", "v1", "events", key.namespace or "default")
        events = self._registry.stored("/events")
        try:
            await self._verbs.create(events, target, Body(event), CREATE_OPTIONS)
        except StatusError as error:  # its namespace is being deleted
            log.info("%s: no Event about its owner in another namespace: %s", _describe(key), error)

    async def _is_cycle(self, dependents: list[Key]) -> bool:
        """Return True if a dependent waits for its own dependents. It and its owner may then wait for each other."""
        for key in dependents:
            stored = await self._store.get(key)
            if stored is not None and _has_work(stored.body):
                fields = orjson.loads(stored.body)["metadata"]
                if "deletionTimestamp" in fields and FOREGROUND in (fields.get("finalizers") or ()):
                    return True
        return False

    async def _wait_for_dependents(self, resource: Resource, key: Key, fields: Raw) -> None:
        """Queue the dependents of an owner, and release the owner if none of them blocks it."""
        blocked = False
        for dependent in await self._store.dependents(fields["uid"]):
            stored = await self._store.get(dependent)
            if stored is None:
                continue
            theirs = orjson.loads(stored.body)["metadata"]
            mine = [owner for owner in theirs.get("ownerReferences") or () if owner.get("uid") == fields["uid"]]
            if "deletionTimestamp" not in theirs:
                self._queue.add(dependent)
            blocked = blocked or any(owner.get("blockOwnerDeletion") for owner in mine)
        if not blocked:
            await self._release(resource, key, fields, FOREGROUND)

    async def _orphan(self, resource: Resource, key: Key, fields: Raw) -> None:
        """Remove the references of the dependents, then release the owner."""
        for dependent in await self._store.dependents(fields["uid"]):
            theirs, stored = self._registry.of_key(dependent.resource), await self._store.get(dependent)
            if theirs is None or stored is None:
                continue
            metadata = orjson.loads(stored.body)["metadata"]
            others = [owner for owner in metadata.get("ownerReferences") or () if owner.get("uid") != fields["uid"]]
            await self._change(theirs, dependent, metadata, {"ownerReferences": others or None})
        await self._release(resource, key, fields, ORPHAN)

    async def _release(self, resource: Resource, key: Key, fields: Raw, finalizer: str) -> None:
        rest = [item for item in fields["finalizers"] if item != finalizer]
        await self._change(resource, key, fields, {"finalizers": rest or None})

    async def _change(self, resource: Resource, key: Key, fields: Raw, change: Raw) -> None:
        """Patch metadata, if the object has not changed since it was read."""
        guard = {"uid": fields["uid"], "resourceVersion": fields["resourceVersion"]}
        body = Body({"metadata": guard | change})
        await self._verbs.patch(resource, _target(resource, key), MERGE_PATCH, body, PATCH_OPTIONS)

    def _resource_of(self, owner: Raw) -> Resource | None:
        """Return the resource that an owner reference names; None if it is not served."""
        if self._resources_by_kind[0] != self._registry.revision:
            served = {(one.api_version, one.kind): one for one in self._registry.all() if not one.virtual}
            self._resources_by_kind = (self._registry.revision, served)
        return self._resources_by_kind[1].get((owner.get("apiVersion", ""), owner.get("kind", "")))


def _describe(key: Key | str) -> str:
    if key == _EVERYTHING:
        return "garbage collection: the scan after the start is incomplete"
    if isinstance(key, str):
        return f"garbage collection of what {key} owned"
    return f"garbage collection of {key.resource} {f'{key.namespace}/{key.name}'.lstrip('/')}"


def _log_failure(what: str, error: Exception, delay: float) -> None:
    if isinstance(error, StatusError):
        log.warning("%s: %s; trying again in %.0f s", what, error, delay)
    elif isinstance(error, StorageError):
        log.error("%s: %s; trying again in %.0f s", what, error, delay)
    else:
        log.error("%s: trying again in %.0f s", what, delay, exc_info=error)


def _has_work(body: bytes) -> bool:
    """Return True if an object may wait for its dependents. The check is rough; `_reconcile` decides."""
    return any(name in body for name in _FINALIZERS) and b'"deletionTimestamp"' in body


def _target(resource: Resource, key: Key) -> Target:
    return Target(resource.group, resource.version, resource.plural, key.namespace, key.name)


T = TypeVar("T")

EVENT_LIFE = timedelta(hours=1)  # How long Events are stored (kube-apiserver: --event-ttl)
ROUND_SECONDS = 60.0  # Maximum time between two rounds, in seconds
UPDATE_OPTIONS = WriteOptions(kind="UpdateOptions", manager="kube-controller-manager")

_NAMESPACES = "/namespaces"
_FINALIZER = "kubernetes"
"""The entry in a namespace's spec.finalizers until its objects are gone (k8s.io/api/core/v1, FinalizerKubernetes)."""


@dataclass
class _Remaining:
    """The contents of a deleted namespace or definition: objects by resource, finalizers by name, failed deletes."""

    objects: Counter[str] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Lifecycle:
    """Completes the deletion of namespaces and CustomResourceDefinitions, and deletes Events after an hour.

    A deleted namespace or definition goes when everything in it is gone. The conditions of a namespace say what is
    left.
    """

    def __init__(self, store: ObjectStore, registry: Registry, verbs: Verbs, now: Callable[[], datetime]) -> None:
        self._store = store
        self._registry = registry
        self._verbs = verbs
        self._now = now
        self._wake = asyncio.Event()
        self._waiting = True

    def on_event(self, event: Event) -> None:
        """Process a change: it may allow the next step of a deletion."""
        if event.key.resource in (_NAMESPACES, definitions.KEY) or (self._waiting and event.type == "DELETED"):
            self._wake.set()

    async def run(self) -> None:
        """Do rounds until cancelled."""
        while True:
            self._wake.clear()
            # Until this round is complete, any deleted object may be one that a namespace waits for.
            self._waiting = True
            self._waiting = await _try(self._round(), "cleaning up") is not False
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue  # time for a round

    async def _round(self) -> bool:
        """Do every possible step. Return True if a deletion still waits for its objects. A failure about one object
        does not stop the others."""
        waiting = False
        for namespace in await self._terminating(_NAMESPACES):
            waiting |= not await _try(self._delete_contents(namespace), f"namespace {namespace.name}")
        for definition in await self._terminating(definitions.KEY):
            waiting |= not await _try(self._delete_instances(definition), f"definition {definition.name}")
        await _try(self._retry_names(), "names of definitions")
        await _try(self._expire_events(), "old Events")
        return waiting

    def _stored_resources(self) -> Iterable[Resource]:
        found: dict[str, Resource] = {}
        for resource in self._registry.all():
            if not resource.virtual:
                found.setdefault(resource.key, resource)
        return found.values()

    async def _terminating(self, key: str) -> list[StoredObject]:
        return [
            item async for item in self._store.scan(key) if "deletionTimestamp" in orjson.loads(item.body)["metadata"]
        ]

    # --- namespaces ---

    async def _delete_contents(self, stored: StoredObject) -> bool:
        """Delete the objects of a namespace, and release it when none is left. Return True if it waits for nothing."""
        namespace: Raw = orjson.loads(stored.body)
        finalizers = namespace["spec"].get("finalizers") or []
        if _FINALIZER not in finalizers:
            return True  # other finalizers belong to other controllers
        left = await self._delete_all([one for one in self._stored_resources() if one.namespaced], stored.name)
        if not left.objects:
            spec = {**namespace["spec"], "finalizers": [item for item in finalizers if item != _FINALIZER]}
            if done := await self._update_namespace({**namespace, "spec": spec}, "finalize"):
                log.info("namespace %s has no objects left", stored.name)
            return done
        before = namespace["status"].get("conditions")
        conditions = _conditions(left, before or [], meta.timestamp(self._now()))
        if conditions != before:
            status = {**namespace["status"], "conditions": conditions}
            await self._update_namespace({**namespace, "status": status}, "status")
        return False

    async def _update_namespace(self, new: Raw, subresource: str) -> bool:
        target = Target("", "v1", "namespaces", "", new["metadata"]["name"], subresource)
        return await _is_current(
            self._verbs.update(self._registry.stored(_NAMESPACES), target, Body(new), UPDATE_OPTIONS)
        )

    # --- definitions ---

    async def _delete_instances(self, stored: StoredObject) -> bool:
        """Delete the objects of a definition, and release it when none is left. Return True if it waits for nothing."""
        definition: Raw = orjson.loads(stored.body)
        fields, spec = definition["metadata"], definition["spec"]
        finalizers = fields.get("finalizers") or []
        if definitions.FINALIZER not in finalizers:
            return True
        names = (spec["group"], spec["names"]["plural"])
        left = await self._delete_all([one for one in self._stored_resources() if (one.group, one.plural) == names])
        if left.objects:
            return False
        rest = [item for item in finalizers if item != definitions.FINALIZER]
        guard = {name: fields[name] for name in ("uid", "resourceVersion")}
        change = {"metadata": {**guard, "finalizers": rest or None}}
        if done := await _is_current(self._patch_definition(stored.name, change)):
            log.info("definition %s has no objects left", stored.name)
        return done

    async def _retry_names(self) -> None:
        """Rewrite definitions whose names were taken: the other definition may be gone."""
        async for stored in self._store.scan(definitions.KEY):
            if not is_true(orjson.loads(stored.body), "NamesAccepted"):
                try:
                    await self._patch_definition(stored.name, {})
                except StatusError as error:
                    log.info("definition %s: %s", stored.name, error)

    async def _patch_definition(self, name: str, change: Raw) -> None:
        target = Target(definitions.GROUP, "v1", definitions.PLURAL, "", name)
        own = self._registry.stored(definitions.KEY)
        await self._verbs.patch(own, target, MERGE_PATCH, Body(change), UPDATE_OPTIONS)

    # --- objects ---

    async def _delete_all(self, resources: Iterable[Resource], namespace: str | None = None) -> _Remaining:
        left = _Remaining()
        for resource in resources:
            async for item in self._store.scan(resource.key, namespace):
                await self._delete(resource, item, left)
        return left

    async def _delete(self, resource: Resource, item: StoredObject, left: _Remaining) -> None:
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
        resource = self._registry.stored("/events")
        before = meta.timestamp(self._now() - EVENT_LIFE)
        async for item in self._store.scan(resource.key):
            event: Raw = orjson.loads(item.body)
            if max(builtin.last_seen(event), event["metadata"]["creationTimestamp"]) < before:
                await self._delete(resource, item, _Remaining())


async def _is_current(write: Awaitable[object]) -> bool:
    """Write an object, or find that it is gone. Return False if it has changed since it was read; the change causes
    the next round."""
    try:
        await write
    except StatusError as error:
        if error.code not in (404, 409):
            raise
        return error.code == 404
    return True


async def _try(work: Awaitable[T], what: str) -> T | None:
    """Return the result of the work. Return None if it failed; the failure is logged and the next round retries."""
    try:
        return await work
    except (StorageError, StatusError) as error:
        log.error("%s: %s; trying again in %d s", what, error, ROUND_SECONDS)
    except Exception:
        log.exception("%s: trying again in %d s", what, ROUND_SECONDS)
    return None


def _conditions(left: _Remaining, before: list[Raw], now: str) -> list[Raw]:
    """Return the conditions of a deleted namespace (k8s.io/kubernetes, pkg/controller/namespace/deletion)."""

    def counted(counts: Counter[str], before: str, words: str) -> str:
        listed = ", ".join(f"{name} {words.format(count)}" for name, count in sorted(counts.items()))
        return f"{before}: {listed}" if listed else ""

    objects = counted(left.objects, "Some resources are remaining", "has {} resource instances")
    held = "Some content in the namespace has finalizers remaining"
    finalizers = counted(left.finalizers, held, "in {} resource instances")
    failed = f"Failed to delete all resource types, {len(left.failures)} remaining: {', '.join(sorted(left.failures))}"
    states = (
        ("DeletionContentFailure", "ContentDeletionFailed", failed if left.failures else "", "ContentDeleted"),
        ("ContentRemaining", "SomeResourcesRemain", objects, "ContentRemoved"),
        ("FinalizersRemaining", "SomeFinalizersRemain", finalizers, "ContentHasNoFinalizers"),
    )
    known = {item["type"]: item for item in before}
    made = []
    for what, reason, message, fine in states:
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
