"""A local copy of a collection of Kubernetes objects with a call for each change: client-go's shared informer.

Event handlers are synchronous and run on the event loop, one change at a time, in the order of the API's history. The
store already holds the change when they are called. An object that was deleted and created again is reported as a
deletion followed by an addition, even if the watch missed the deletion.

Objects have no `managedFields` and no last-applied annotation of kubectl. Archived objects (`ArchiveFormat`) are whole
when a handler gets them as new; as old objects, and from `get` and `list`, they are what the archive keeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from tink.api.v1alpha2 import Raw
from tink.kube.cache.reflector import Reflector
from tink.kube.cache.store import ArchiveFormat, ObjectCompressor, Store, strip
from tink.kube.client import KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType
from tink.limits.backoff import Backoff

log = logging.getLogger(__name__)

ChangeHandler = Callable[[Raw, Raw | None], object]
"""Called with a new or changed object and its previous state, which is None for a new one."""
DeleteHandler = Callable[[Raw], object]
"""Called with the last known state of a deleted object."""

AWAY_SECONDS: Final = 15.0
"""An API that could not be followed for this long is away, and not just restarting."""

START_JITTER_SECONDS: Final = 2.0
"""Maximum delay of the first lists of replicas in pods, because many may start at the same moment."""


def _backoff() -> Backoff:
    return Backoff(0.2, 10.0)


class Informer:
    """Keeps a copy of the objects of one resource, in some namespaces or in all.

    Start `run` as one task. Read the objects from the same event loop.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: ResourceType,
        namespaces: Sequence[str] = (),
        *,
        label_selector: str = "",
        start_jitter: float = 0.0,
        backoff: Callable[[], Backoff] = _backoff,
        compressor: ObjectCompressor | None = None,
        archive_format: ArchiveFormat | None = None,
    ) -> None:
        """Create an informer of `namespaces` (empty: all) and a Kubernetes label selector such as `site=berlin`.

        It waits a random time of at most `start_jitter` seconds before the first list. Pass a `compressor` if an event
        handler keeps compressed objects, and an `archive_format` if most objects are history (`Store`).
        """
        self._resource = resource
        self._namespaces = frozenset(namespaces)
        self._label_selector = label_selector
        self._store = Store(compressor, archive_format)
        self._reflectors = [
            Reflector(
                client,
                resource,
                namespace,
                label_selector=label_selector,
                start_jitter=start_jitter,
                known=partial(self._known, namespace),
                on_object=self._changed,
                on_gone=self._gone,
                backoff=backoff(),
            )
            for namespace in dict.fromkeys(namespaces or (None,))
        ]
        self._has_restored = False
        self._on_change: list[ChangeHandler] = []
        self._on_delete: list[DeleteHandler] = []

    def _known(self, namespace: str | None) -> Iterable[NamespacedName]:
        return [key for key in self._store if namespace is None or key.namespace == namespace]

    def covers(self, obj: Raw) -> bool:
        """Return True if an object of the resource is sure to be in this copy once the API has it."""
        namespace = obj["metadata"].get("namespace", "")
        return not self._label_selector and (not self._namespaces or namespace in self._namespaces)

    @property
    def resource(self) -> ResourceType:
        """The resource of the objects."""
        return self._resource

    def add_event_handler(self, on_change: ChangeHandler | None = None, on_delete: DeleteHandler | None = None) -> None:
        """Call `on_change(new, old)` for each object that is here, now, and for each that is added or changed later.

        `on_delete(old)` is called for each object that is deleted.
        """
        if on_delete is not None:
            self._on_delete.append(on_delete)
        if on_change is not None:
            self._on_change.append(on_change)
            for obj in self.list():
                self._notify(on_change, obj, None)

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, key: NamespacedName) -> bool:
        return key in self._store

    def __iter__(self) -> Iterator[NamespacedName]:
        """Yield the keys of all objects."""
        return iter(self._store)

    def get(self, namespace: str, name: str) -> Raw | None:
        """Return an object as last seen, or None. The object is shared: never change it."""
        return self._store.get(NamespacedName(namespace, name))

    def list(self) -> Iterator[Raw]:
        """Yield all objects as last seen, one at a time, because together they take much memory."""
        return self._store.list()

    def restore(self, obj: Raw) -> None:
        """Add an object as it was known before this process began, unless the API has reported it or its absence.

        The list of the API replaces restored objects, also those that are restored while it comes.
        """
        key = NamespacedName.of(obj)
        is_wanted = not self._namespaces or key.namespace in self._namespaces
        if is_wanted and not self._has_listed(key.namespace) and key not in self._store:
            self._has_restored = True
            self._changed(obj)

    def _has_listed(self, namespace: str) -> bool:
        return any(one.synced.is_set() for one in self._reflectors if one.namespace in (None, namespace))

    @property
    def has_synced(self) -> bool:
        """True if the collection has been listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def denied(self) -> str:
        """The reason why the API does not let this program read the collection (401, 403); empty if it does."""
        return next(filter(None, (reflector.denied for reflector in self._reflectors)), "")

    @property
    def is_unreachable(self) -> bool:
        """True if the API did not answer the last request, or answered that it is not able to."""
        return any(reflector.is_unreachable for reflector in self._reflectors)

    @property
    def failing_for(self) -> float:
        """The number of seconds since when the collection can't be followed, which is the age of the copy; 0: it is
        current."""
        return max(reflector.failing_for for reflector in self._reflectors)

    async def wait_for_cache_sync(self) -> None:
        """Return when the collection has been listed once and the handlers have seen all of it."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def run(self) -> None:
        """Follow the collection until cancelled.

        While the API is away or answers with errors, retry with growing delays. The first failure and the recovery are
        logged.
        """
        if len(self._reflectors) == 1:
            await self._reflectors[0].run()
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    def _changed(self, obj: Raw) -> None:
        key = NamespacedName.of(strip(obj))
        old = self._store.get(key)
        if old is not None:
            before, now = old["metadata"], obj["metadata"]
            if before.get("uid") != now.get("uid"):
                self._gone(key, None)
                old = None
            elif before.get("resourceVersion") == now.get("resourceVersion") and (self._trusts_versions or old == obj):
                return
        self._store.put(key, obj)
        for handler in self._on_change:
            self._notify(handler, obj, old)

    @property
    def _trusts_versions(self) -> bool:
        """True if one resourceVersion means one state of an object.

        An API that was restored from a backup may have given the version of a restored object to another state.
        """
        return self.has_synced or not self._has_restored

    def _gone(self, key: NamespacedName, last: Raw | None) -> None:
        """Forget an object; `last` is its state at the deletion, or None if the API has not reported one."""
        known = self._store.get(key)
        if known is None:
            return
        self._store.delete(key)
        for handler in self._on_delete:
            self._notify(handler, strip(last) if last is not None else known)

    def _notify(self, handler: Callable[..., object], obj: Raw, *old: Raw | None) -> None:
        try:
            handler(obj, *old)
        except Exception:
            # One handler's error about one object must not hide other objects, or this one from other handlers.
            log.exception("a handler failed for %s %s", self._resource.kind, NamespacedName.of(obj))
