"""A local copy of a collection of Kubernetes objects, and a call for each of its changes: client-go's shared informer.

A `Reflector` follows the collection, the objects are in a `Store`. Event handlers are synchronous and run on the event
loop, one change at a time, in the order of the API's history. The store already holds the change when they are called.
An object that was deleted and made anew is reported as a deletion followed by an addition, even if the deletion itself
was never seen.

Handlers that can wait (`defer`) hear of a large list later, one object at a time, and of one that somebody looks for
before he does.

Objects come without `managedFields` and kubectl's last-applied annotation. Of those that are history (`ArchiveFormat`)
handlers get all when it changes, and later, as what it was, what is kept; `get` and `list` give that, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from tink.api.v1alpha2 import Raw
from tink.kube.cache.compression import ObjectCompressor, strip
from tink.kube.cache.reflector import Reflector
from tink.kube.cache.store import ArchiveFormat, Packed, Store
from tink.kube.cache.untold import Untold, Values
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


_LISTING_SECONDS = 0.05
"""How often it is looked whether a list has come to its end."""
_PATIENCE_SECONDS = 10.0
"""For how long at most."""

START_JITTER_SECONDS = 2.0
"""What replicas in pods wait at most before they ask for their first lists: many may start in the same moment."""


def _backoff() -> Backoff:
    return Backoff(0.2, 10.0)


class Informer:
    """Keeps the objects of `resource`, of some namespaces or of all. `run` it as one task; read it from its loop."""

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
        """`namespaces`: none for all; `label_selector` in the words of Kubernetes, such as `site=berlin`. Before the
        first list it waits for a random time of at most `start_jitter` seconds.

        `compressor` is given where a handler keeps compressed objects as well, `archive_format` where most objects are
        history (`Store`).
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
        self._restored = False
        self._on_change: list[ChangeHandler] = []
        self._on_delete: list[DeleteHandler] = []
        self._values: Values | None = None
        self._untold = Untold()
        self._waiting_on_change: list[ChangeHandler] = []
        self._waiting_on_delete: list[DeleteHandler] = []
        self._asked: deque[NamespacedName] = deque()
        self._is_telling = False
        self._listeners: list[Callable[[], object]] = []

    def _known(self, namespace: str | None) -> Iterable[NamespacedName]:
        keys = self._store.keys()
        return (key for key in keys if namespace is None or key.namespace == namespace)

    def covers(self, obj: Raw) -> bool:
        """Whether an object of its resource is certain to be kept, once it is there."""
        namespace = obj["metadata"].get("namespace", "")
        return not self._label_selector and (not self._namespaces or namespace in self._namespaces)

    @property
    def resource(self) -> ResourceType:
        """What this informer keeps."""
        return self._resource

    def add_event_handler(
        self,
        on_change: ChangeHandler | None = None,
        on_delete: DeleteHandler | None = None,
        *,
        can_wait: bool = False,
    ) -> None:
        """Call `on_change(new, old)` for each object added or updated from now on, and at once for those already here;
        `on_delete(old)` for each that is gone.

        One that `can_wait` hears later of what is new, while it is told to wait (`defer`), and is not told of what is
        gone before it has heard of it.
        """
        if on_delete is not None:
            (self._waiting_on_delete if can_wait else self._on_delete).append(on_delete)
        if on_change is not None:
            (self._waiting_on_change if can_wait else self._on_change).append(on_change)
            for obj in self.list():
                if not can_wait or NamespacedName.of(obj) not in self._untold:
                    self._notify(on_change, obj, None)

    def add_change_listener(self, listener: Callable[[], object]) -> None:
        """Call `listener()` for each change from now on: it need not know of what, and hears even of what is not read
        yet."""
        self._listeners.append(listener)

    def _changes(self) -> None:
        for listener in self._listeners:
            listener()

    # --- who can wait ---------------------------------------------------------------------------------------------

    def defer(self, values: Values) -> None:
        """Until `catch_up` has come to the end of what was listed, handlers that can wait are told of new objects by
        that, and by `tell` alone. `values(object)` is all that an object is looked for by.
        """
        self._values = values

    @property
    def untold(self) -> int:
        """Of how many objects handlers that can wait have not heard."""
        return len(self._untold)

    def told(self) -> list[NamespacedName]:
        """Of which they have heard."""
        keys = self._store.keys()
        return [key for key in keys if key not in self._untold]

    def tell(self, value: str) -> None:
        """Have handlers that can wait hear of all objects that are looked for by `value`: before they are looked for.

        Within such a handler they hear of them behind it.
        """
        self._tell(self._untold.having(value))

    def tell_of(self, key: NamespacedName) -> None:
        """The same of one object."""
        if key in self._untold:
            self._tell((key,))

    def tell_all(self) -> None:
        """The same of all, at once."""
        while (key := self._untold.next()) is not None:
            self._tell((key,))

    def _tell(self, keys: Sequence[NamespacedName]) -> None:
        self._asked.extend(keys)
        if self._is_telling:  # no deeper: objects may name each other in chains
            return
        self._is_telling = True
        try:
            while self._asked:
                key = self._asked.popleft()
                obj = self._store.get(key) if self._untold.discard(key) else None
                if obj is not None:
                    for handler in self._waiting_on_change:
                        self._notify(handler, obj, None)
        finally:
            self._is_telling = False

    async def catch_up(self, turn_seconds: float = 0.002) -> None:
        """Tell handlers that can wait of what they have not heard of, in turns of the event loop no longer than that.
        Returns when the collection has been listed and they have heard of all; from then on they wait no more.

        The processor is left to a list that still comes, for some seconds, unless the API is away.
        """
        patience = time.monotonic() + _PATIENCE_SECONDS
        while not self.has_synced or self._untold:
            if self._untold and (self.has_synced or self.failing_for or time.monotonic() > patience):
                until = time.perf_counter() + turn_seconds
                while time.perf_counter() < until and (key := self._untold.next()) is not None:
                    self._tell((key,))
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(_LISTING_SECONDS)
        self._values = None

    def __len__(self) -> int:
        return len(self._store)

    def get(self, namespace: str, name: str) -> Raw | None:
        """The object as last seen; never change it, it is shared."""
        return self._store.get(NamespacedName(namespace, name))

    def list(self) -> Iterator[Raw]:
        """All objects as last seen, of those that are there now; one after the other, for together they take much
        memory."""
        return self._store.list()

    def packed(self, keys: Iterable[NamespacedName] | None = None) -> Packed:
        """All objects, or those of these keys, as they are kept: to be written down by another thread."""
        return self._store.packed(keys)

    def restore(self, key: NamespacedName, packed: bytes, packer: ObjectCompressor, values: Iterable[str]) -> None:
        """Take in an object as it was known before this process began, if nothing newer is known of it. While nobody
        does `run` it: a list that begins later has the last word on what there is.

        `packer` made `packed`; `values` are what it is looked for by (`defer`): it is not read before it is needed.
        """
        if self._namespaces and key.namespace not in self._namespaces:
            return
        if self._has_listed(key.namespace) or key in self._store:
            return
        self._restored = True
        if self._values is not None and not self._on_change and self._store.adopt(key, packed, packer.dictionary):
            self._changes()
            self._untold.add(key, values)
        else:
            self._changed(packer.decompress(packed))

    def _has_listed(self, namespace: str) -> bool:
        return any(one.synced.is_set() for one in self._reflectors if one.namespace in (None, namespace))

    @property
    def _is_current(self) -> bool:
        """Whether what is here is of the API's own history: it may have lost the one that was restored here, and have
        given a version of that to something else since."""
        return self.has_synced or not self._restored

    @property
    def has_synced(self) -> bool:
        """Whether the collection has been listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def denied(self) -> str:
        """Why the API does not let this program read the collection (401, 403); empty when that is not so."""
        return next(filter(None, (reflector.denied for reflector in self._reflectors)), "")

    @property
    def unreachable(self) -> bool:
        """Whether the API was asked and does not answer, or is not able to: it may be away, or about to come."""
        return any(reflector.unreachable for reflector in self._reflectors)

    @property
    def failing_for(self) -> float:
        """For how many seconds the API does not answer or does not let us follow: what is here is as old as that. 0: it
        is as the API has it."""
        return max(reflector.failing_for for reflector in self._reflectors)

    async def wait_for_cache_sync(self) -> None:
        """Return when the collection has been listed once and the handlers have seen all of it."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def run(self) -> None:
        """Follow the collection for ever. An API that is away, or answers with errors, is asked again and again with
        growing delays; the first failure and the recovery are logged."""
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
            elif before.get("resourceVersion") == now.get("resourceVersion") and (self._is_current or old == obj):
                return
        self._changes()
        self._store.put(key, obj)
        for handler in self._on_change:
            self._notify(handler, obj, old)
        if self._values is not None and (old is None or key in self._untold):
            self._untold.add(key, self._values(obj))
            return
        for handler in self._waiting_on_change:
            self._notify(handler, obj, old)

    def _gone(self, key: NamespacedName, last: Raw | None) -> None:
        """Forget an object; `last` is what it was when it went, or else it is what was seen last."""
        known = self._store.get(key)
        if known is None:
            return
        self._changes()
        self._store.delete(key)
        waiting = () if self._untold.discard(key) else self._waiting_on_delete
        for handler in (*self._on_delete, *waiting):
            self._notify(handler, strip(last) if last is not None else known)

    def _notify(self, handler: Callable[..., object], obj: Raw, *old: Raw | None) -> None:
        try:
            handler(obj, *old)
        except Exception:
            # One consumer's mistake about one object must not keep all others from hearing of all objects.
            log.exception("a handler failed for %s %s", self._resource.kind, NamespacedName.of(obj))
