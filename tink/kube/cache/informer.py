"""A local copy of a collection of Kubernetes objects, and a call for each of its changes: client-go's shared informer.

A `Reflector` follows the collection, the objects are in a `Store`. Event handlers are synchronous and run on the event
loop, one change at a time, in the order of the API's history. The store already holds the change when they are called.
An object that was deleted and made anew is reported as a deletion followed by an addition, even if the deletion itself
was never seen.

Objects come without `managedFields` and kubectl's last-applied annotation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tink.api.v1alpha2 import Raw
from tink.kube.cache.compression import ObjectCompressor, strip
from tink.kube.cache.reflector import Reflector
from tink.kube.cache.store import Store
from tink.kube.client import KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType
from tink.limits.backoff import Backoff

log = logging.getLogger(__name__)

ChangeHandler = Callable[[Raw, Raw | None], object]
"""Called with an object that is new or changed, and what it was (None: it is new)."""
DeleteHandler = Callable[[Raw], object]
"""Called with the last known state of an object that is gone."""


AWAY_SECONDS = 15.0
"""An API that could not be followed for so long is away, and not just being restarted."""


class Informer:
    """Keeps the objects of `resource`, of one namespace or of all. `run` it as one task; read it from its loop."""

    def __init__(
        self,
        client: KubeClient,
        resource: ResourceType,
        namespace: str | None = None,
        *,
        backoff: Backoff | None = None,
        compressor: ObjectCompressor | None = None,
    ) -> None:
        """`compressor` is given where a handler keeps compressed objects as well (`Store`)."""
        self._resource = resource
        self._store = Store(compressor)
        self._reflector = Reflector(
            client,
            resource,
            namespace,
            known=self._store.keys,
            on_object=self._changed,
            on_gone=self._gone,
            backoff=backoff,
        )
        self._on_change: list[ChangeHandler] = []
        self._on_delete: list[DeleteHandler] = []

    @property
    def resource(self) -> ResourceType:
        """What this informer keeps."""
        return self._resource

    def add_event_handler(self, on_change: ChangeHandler | None = None, on_delete: DeleteHandler | None = None) -> None:
        """Call `on_change(new, old)` for each object added or updated from now on, and at once for those already here;
        `on_delete(old)` for each that is gone."""
        if on_delete is not None:
            self._on_delete.append(on_delete)
        if on_change is not None:
            self._on_change.append(on_change)
            for obj in self.list():
                self._notify(on_change, obj, None)

    def __len__(self) -> int:
        return len(self._store)

    def get(self, namespace: str, name: str) -> Raw | None:
        """The object as last seen; never change it, it is shared."""
        return self._store.get(NamespacedName(namespace, name))

    def list(self) -> Iterator[Raw]:
        """All objects as last seen, of those that are there now; one after the other, for together they take much
        memory."""
        return self._store.list()

    @property
    def has_synced(self) -> bool:
        """Whether the collection has been listed once."""
        return self._reflector.synced.is_set()

    @property
    def denied(self) -> str:
        """Why the API does not let this program read the collection (401, 403); empty when that is not so."""
        return self._reflector.denied

    @property
    def failing_for(self) -> float:
        """For how many seconds the API does not answer or does not let us follow: what is here is as old as that. 0: it
        is as the API has it."""
        return self._reflector.failing_for

    async def wait_for_cache_sync(self) -> None:
        """Return when the collection has been listed once and the handlers have seen all of it."""
        await self._reflector.synced.wait()

    async def run(self) -> None:
        """Follow the collection for ever. An API that is away, or answers with errors, is asked again and again with
        growing delays; the first failure and the recovery are logged."""
        await self._reflector.run()

    def _changed(self, obj: Raw) -> None:
        key = NamespacedName.of(strip(obj))
        old = self._store.get(key)
        if old is not None:
            before, now = old["metadata"], obj["metadata"]
            if before.get("uid") != now.get("uid"):
                self._gone(key, None)
                old = None
            elif before.get("resourceVersion") == now.get("resourceVersion"):
                return
        self._store.put(key, obj)
        for handler in self._on_change:
            self._notify(handler, obj, old)

    def _gone(self, key: NamespacedName, last: Raw | None) -> None:
        """Forget an object; `last` is what it was when it went, or else it is what was seen last."""
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
            # One consumer's mistake about one object must not keep all others from hearing of all objects.
            log.exception("a handler failed for %s %s", self._resource.kind, NamespacedName.of(obj))
