"""The local copy of a collection that an informer keeps: client-go's Store, for a site of 100,000 objects.

Objects are kept compressed (`compression`). Those that changed or were asked for last are there as they are, too, in
the place of the one that has not for longest.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView
from typing import Generic, TypeVar

from tink.api.v1alpha2 import Raw
from tink.kube.cache.compression import ObjectCompressor
from tink.kube.objects import NamespacedName

_RECENT_SHARED = 256
"""Objects that are kept as they are, too, where event handlers keep compressed ones."""
_RECENT = 1024
"""The same elsewhere. They are compressed when others take their place, so that what changes all the time is not
compressed all the time."""


class Store:
    """Belongs to one event loop. What it gives must not be changed, it is shared."""

    def __init__(self, compressor: ObjectCompressor | None = None) -> None:
        """`compressor` is given where an event handler keeps compressed objects as well, so that there is one copy of
        each."""
        self._compress_at_once = compressor is not None
        self._compressor = compressor or ObjectCompressor()
        self._most_recent = _RECENT_SHARED if self._compress_at_once else _RECENT
        self._objects: dict[NamespacedName, bytes] = {}
        """All of them; empty bytes for those that are recent and have not been compressed since they changed."""
        self._recent: dict[NamespacedName, Raw] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: NamespacedName) -> Raw | None:
        """The object; None if there is none."""
        obj = self._recent.get(key)
        if obj is None:
            compressed = self._objects.get(key)
            if compressed is None:
                return None
            obj = self._compressor.decompress(compressed)
            self._keep(key, obj)
        return obj

    def keys(self) -> KeysView[NamespacedName]:
        """The keys of all objects."""
        return self._objects.keys()

    def list(self) -> Iterator[Raw]:
        """All objects that are there now; one after the other, for together they take much memory."""
        for obj in [compressed or self._recent[key] for key, compressed in self._objects.items()]:
            yield self._compressor.decompress(obj) if isinstance(obj, bytes) else obj

    def put(self, key: NamespacedName, obj: Raw) -> None:
        """Add an object, or put it in the place of what it was."""
        self._objects[key] = self._compressor.compress(obj) if self._compress_at_once else b""
        self._keep(key, obj)

    def delete(self, key: NamespacedName) -> None:
        """Take an object out that is there."""
        del self._objects[key]
        self._recent.pop(key, None)

    def _keep(self, key: NamespacedName, obj: Raw) -> None:
        self._recent.pop(key, None)
        self._recent[key] = obj
        if len(self._recent) > self._most_recent:
            oldest = next(iter(self._recent))
            unused = self._recent.pop(oldest)
            if not self._objects[oldest]:
                self._objects[oldest] = self._compressor.compress(unused)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Index(Generic[K, V]):
    """Keys by value. A question is a dictionary access, however many keys there are."""

    def __init__(self) -> None:
        self._values: dict[K, frozenset[V]] = {}
        self._keys: dict[V, dict[K, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: K, values: Iterable[V]) -> frozenset[V]:
        """Note what values a key has from now on, which may be none; give those that it had and has no more."""
        before, now = self._values.pop(key, frozenset()), frozenset(values)
        gone = before - now
        for value in gone:
            keys = self._keys[value]
            del keys[key]
            if not keys:
                del self._keys[value]
        if now:
            self._values[key] = now
        for value in now:
            self._keys.setdefault(value, {})[key] = None
        return gone

    def keys(self, value: V) -> Collection[K]:
        """The keys that have a value, those first that have had it for longest."""
        return self._keys.get(value, {}).keys()
