"""The local copy of a collection that an informer keeps: client-go's Store, for a site of 100,000 objects.

Objects are kept compressed (`compression`). Those that changed or were asked for last are there as they are, too, in
the place of the one that has not for longest. Of objects that are history, if there are such, only what an
`ArchiveFormat` keeps is here.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tink.api.v1alpha2 import Raw
from tink.kube.cache.archive import MAX_LENGTH, Archive
from tink.kube.cache.compression import ObjectCompressor
from tink.kube.objects import NamespacedName

_RECENT_SHARED = 256
"""Objects that are kept as they are, too, where event handlers keep compressed ones."""
_RECENT = 1024
"""The same elsewhere. They are compressed when others take their place, so that what changes all the time is not
compressed all the time."""


class ArchiveFormat(Protocol):
    """What is kept of objects that are history."""

    def pack(self, obj: Raw, /) -> bytes | None:
        """What is kept of this one; None: all of it."""

    def unpack(self, key: NamespacedName, packed: bytes, /) -> Raw:
        """The object, with what was kept of it, its uid and its resourceVersion among that."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Objects as they are kept: compressed with `dictionary`, or, of late, as they are. Nobody changes any of it."""

    dictionary: bytes
    objects: dict[NamespacedName, bytes | Raw]


class Store:
    """Belongs to one event loop. What it gives must not be changed, it is shared."""

    def __init__(self, compressor: ObjectCompressor | None = None, archive_format: ArchiveFormat | None = None) -> None:
        """`compressor` is given where an event handler keeps compressed objects as well, so that there is one copy of
        each; with an `archive_format`, objects that are history are given with what that keeps of them."""
        self._format = archive_format
        self._archive = Archive()
        self._compress_at_once = compressor is not None
        self._compressor = compressor or ObjectCompressor()
        self._most_recent = _RECENT_SHARED if self._compress_at_once else _RECENT
        self._objects: dict[NamespacedName, bytes] = {}
        """All of them; empty bytes for those that are recent and have not been compressed since they changed."""
        self._recent: dict[NamespacedName, Raw] = {}

    def __len__(self) -> int:
        return len(self._objects) + len(self._archive)

    def __contains__(self, key: NamespacedName) -> bool:
        return key in self._objects or self._archive.get(_bytes(key)) is not None

    def get(self, key: NamespacedName) -> Raw | None:
        """The object; None if there is none."""
        obj = self._recent.get(key)
        if obj is None:
            compressed = self._objects.get(key)
            if compressed is None:
                return self._archived(key)
            obj = self._compressor.decompress(compressed)
            self._keep(key, obj)
        elif compressed := self._objects[key]:
            self._compressor.remember(obj, compressed)
        return obj

    def keys(self) -> Iterator[NamespacedName]:
        """The keys of all objects."""
        yield from self._objects
        for key, _ in self._archive.items():
            yield _key(key)

    def list(self) -> Iterator[Raw]:
        """All objects that are there now; one after the other, for together they take much memory."""
        for obj in [compressed or self._recent[key] for key, compressed in self._objects.items()]:
            yield self._compressor.decompress(obj) if isinstance(obj, bytes) else obj
        if self._format is not None:
            for key, packed in self._archive.items():
                yield self._format.unpack(_key(key), packed)

    def packed(self, keys: Iterable[NamespacedName] | None = None) -> Packed:
        """All objects, or those of these keys that are there, as they are kept: nothing is compressed for it. Without
        those that are history."""
        kept = self._objects
        wanted = kept if keys is None else [key for key in keys if key in kept]
        return Packed(self._compressor.dictionary, {key: kept[key] or self._recent[key] for key in wanted})

    def put(self, key: NamespacedName, obj: Raw) -> None:
        """Add an object, or put it in the place of what it was."""
        if self._put_into_archive(key, obj):
            return
        self._objects[key] = self._compressor.compress(obj) if self._compress_at_once else b""
        self._keep(key, obj)

    def adopt(self, key: NamespacedName, packed: bytes, dictionary: bytes) -> bool:
        """Add an object that is not there, as another store of this kind had it, if this one can read that; whether it
        can."""
        if not self._compressor.dictionary:
            self._compressor.dictionary = dictionary
        if not packed or self._compressor.dictionary != dictionary or self._format is not None:
            return False
        self._objects[key] = packed
        return True

    def delete(self, key: NamespacedName) -> None:
        """Take an object out that is there."""
        if self._objects.pop(key, None) is None:
            self._archive.pop(_bytes(key))
        self._recent.pop(key, None)

    def _archived(self, key: NamespacedName) -> Raw | None:
        packed = self._archive.get(_bytes(key)) if self._format is not None else None
        return None if packed is None or self._format is None else self._format.unpack(key, packed)

    def _put_into_archive(self, key: NamespacedName, obj: Raw) -> bool:
        """Whether the object is history, and belongs there."""
        if self._format is None:
            return False
        packed = self._format.pack(obj)
        if packed is None or len(packed) > MAX_LENGTH:
            self._archive.pop(_bytes(key))
            return False
        self._archive.put(_bytes(key), packed)
        self._objects.pop(key, None)
        self._recent.pop(key, None)
        return True

    def _keep(self, key: NamespacedName, obj: Raw) -> None:
        self._recent.pop(key, None)
        self._recent[key] = obj
        if len(self._recent) > self._most_recent:
            oldest = next(iter(self._recent))
            unused = self._recent.pop(oldest)
            if not self._objects[oldest]:
                self._objects[oldest] = self._compressor.compress(unused)


def _bytes(key: NamespacedName) -> bytes:
    return "/".join(key).encode()


def _key(packed: bytes) -> NamespacedName:
    return NamespacedName(*packed.decode().split("/", 1))


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
