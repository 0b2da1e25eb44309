"""Memory-saving containers for Kubernetes objects: the store of an informer, an archive and an index.

A site may have 100,000 Hardware. A Hardware of 2.4 kB as JSON takes 10 kB as dictionaries, and less than 300 bytes
compressed (RFC 1951) with the first object as the dictionary, because objects of one kind resemble each other.
Compressing one takes about 30 us, decompressing it 10 us.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

import orjson

from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName

_LEVEL: Final = 1
_WINDOW: Final = -13  # raw deflate with 8 kB of history: faster to set up than a larger one, for hardly more bytes
_MEMORY_LEVEL: Final = 5

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_RECENT_SHARED: Final = 256
"""Number of uncompressed objects in a store that shares its compressor."""
_RECENT: Final = 1024
"""Number of uncompressed objects in any other store."""


def strip(obj: Raw) -> Raw:
    """Remove `managedFields` and kubectl's last-applied annotation from `obj`, in place, and return it.

    They are more than half of an object, and only API servers and kubectl read them.
    """
    metadata = obj["metadata"]
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and annotations.pop(_LAST_APPLIED, None) is not None and not annotations:
        del metadata["annotations"]
    return obj


class ObjectCompressor:
    """Compresses objects of one kind. Its output can only be read by a compressor with the same `dictionary`."""

    def __init__(self) -> None:
        self.dictionary = b""
        """The JSON of the first object; empty before there is one."""
        self._last: tuple[Raw, bytes] | None = None

    def compress(self, obj: Raw) -> bytes:
        """Return the compressed bytes of `obj`, which must not be changed afterwards.

        The last object that was compressed or decompressed gets the same bytes again, so that the store and an event
        handler share one copy.
        """
        if self._last is not None and self._last[0] is obj:
            return self._last[1]
        text = orjson.dumps(obj)
        if not self.dictionary:
            self.dictionary = text
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY_LEVEL, zdict=self.dictionary)
        compressed = deflate.compress(text) + deflate.flush()
        self._last = obj, compressed
        return compressed

    def decompress(self, compressed: bytes) -> Raw:
        """Return a new copy of the object that was compressed."""
        obj: Raw = orjson.loads(zlib.decompressobj(_WINDOW, zdict=self.dictionary).decompress(compressed))
        self.remember(obj, compressed)
        return obj

    def remember(self, obj: Raw, compressed: bytes) -> None:
        """Let the next `compress` return these bytes if it is called with this very object."""
        self._last = obj, compressed


# --- the archive ------------------------------------------------------------------------------------------------------

_RECORDS_PER_BLOCK: Final = 8
_FIRST_BLOCKS: Final = 8
_LENGTH_BYTES: Final = 2  # each record starts with the lengths of its key and its value
MAX_LENGTH: Final = (1 << 8 * _LENGTH_BYTES) - 1
"""Maximum length of a key and of a value in an archive, in bytes."""


class Archive:
    """A mapping from bytes to bytes that takes hardly more memory than the bytes themselves.

    A dict of 100,000 keys and values takes 25 MB before it holds anything. Here the records lie one after the other in
    blocks of about eight, and the hash of a key selects the block. The table grows by one block at a time (linear
    hashing, W. Litwin 1980), so that no call takes long.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = [b""] * _FIRST_BLOCKS
        self._round = _FIRST_BLOCKS
        """Number of blocks when this round of growing began; the first `len(blocks) - round` of them are split."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        block = self._blocks[self._place(key)]
        found = _find(block, key)
        return None if found is None else block[found[1] : found[2]]

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key. Raises OverflowError if key or value is longer than `MAX_LENGTH`."""
        record = len(key).to_bytes(_LENGTH_BYTES, "big") + len(value).to_bytes(_LENGTH_BYTES, "big") + key + value
        self.pop(key)
        place = self._place(key)
        self._blocks[place] += record
        self._length += 1
        if self._length > len(self._blocks) * _RECORDS_PER_BLOCK:
            # Split the next block in two.
            split = len(self._blocks) - self._round
            block = self._blocks[split]
            self._blocks.append(b"")
            stays, goes = bytearray(), bytearray()
            for begin, middle, end in _records(block):
                moved = self._place(block[begin + 2 * _LENGTH_BYTES : middle]) != split
                (goes if moved else stays).extend(block[begin:end])
            self._blocks[split], self._blocks[-1] = bytes(stays), bytes(goes)
            if len(self._blocks) == 2 * self._round:
                self._round *= 2

    def pop(self, key: bytes) -> bytes | None:
        """Remove a key and return its value, or None."""
        place = self._place(key)
        block = self._blocks[place]
        found = _find(block, key)
        if found is None:
            return None
        begin, value, end = found
        self._blocks[place] = block[:begin] + block[end:]
        self._length -= 1
        return block[value:end]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and values. Changes during the iteration may or may not be seen."""
        for block in tuple(self._blocks):
            for begin, value, end in _records(block):
                yield block[begin + 2 * _LENGTH_BYTES : value], block[value:end]

    def _place(self, key: bytes) -> int:
        spread = hash(key)
        place = spread % self._round
        return spread % (2 * self._round) if place < len(self._blocks) - self._round else place


def _records(block: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the start of each record, the start of its value, and its end."""
    at = 0
    while at < len(block):
        value = at + 2 * _LENGTH_BYTES + int.from_bytes(block[at : at + _LENGTH_BYTES], "big")
        end = value + int.from_bytes(block[at + _LENGTH_BYTES : at + 2 * _LENGTH_BYTES], "big")
        yield at, value, end
        at = end


def _find(block: bytes, key: bytes) -> tuple[int, int, int] | None:
    """Return the record of a key, as in `_records`, or None."""
    if key not in block:
        return None
    header, at = len(key).to_bytes(_LENGTH_BYTES, "big"), 0
    while at < len(block):  # a copy of `_records`, because every look-up passes here
        value = at + 2 * _LENGTH_BYTES + int.from_bytes(block[at : at + _LENGTH_BYTES], "big")
        end = value + int.from_bytes(block[at + _LENGTH_BYTES : at + 2 * _LENGTH_BYTES], "big")
        if block.startswith(key, at + 2 * _LENGTH_BYTES) and block.startswith(header, at):
            return at, value, end
        at = end
    return None


# --- the store --------------------------------------------------------------------------------------------------------


class ArchiveFormat(Protocol):
    """Selects the objects that a store archives, such as Workflows that have ended, and the part of them it keeps."""

    def pack(self, obj: Raw, /) -> bytes | None:
        """Return the part to archive; None if the store keeps the whole object."""

    def unpack(self, key: NamespacedName, packed: bytes, /) -> Raw:
        """Return the object with what was archived of it, which includes uid and resourceVersion."""


class InformerStore:
    """The local copy of a collection: client-go's Store.

    Objects are kept compressed. The most recently changed or requested ones are kept as dictionaries as well. The store
    belongs to one event loop. Callers must not change the objects that it returns.
    """

    def __init__(self, compressor: ObjectCompressor | None = None, archive_format: ArchiveFormat | None = None) -> None:
        """Create an empty store.

        With a shared `compressor`, objects are compressed at once, so that an event handler that uses the same
        compressor shares the bytes. With an `archive_format`, archived objects are returned as the format unpacks them.
        """
        self._format = archive_format
        self._archive = Archive()
        self._compress_at_once = compressor is not None
        self._compressor = compressor or ObjectCompressor()
        self._most_recent = _RECENT_SHARED if self._compress_at_once else _RECENT
        self._objects: dict[NamespacedName, bytes] = {}
        """All objects that are not archived; empty bytes for recent ones that were not compressed since they changed,
        because an object that changes all the time should not be compressed all the time."""
        self._recent: dict[NamespacedName, Raw] = {}

    def __len__(self) -> int:
        return len(self._objects) + len(self._archive)

    def __contains__(self, key: NamespacedName) -> bool:
        return key in self._objects or self._archive.get(_bytes(key)) is not None

    def get(self, key: NamespacedName) -> Raw | None:
        """Return an object, or None."""
        obj = self._recent.get(key)
        if obj is None:
            compressed = self._objects.get(key)
            if compressed is None:
                packed = self._archive.get(_bytes(key)) if self._format is not None else None
                return None if packed is None or self._format is None else self._format.unpack(key, packed)
            obj = self._compressor.decompress(compressed)
            self._keep(key, obj)
        elif compressed := self._objects[key]:
            self._compressor.remember(obj, compressed)
        return obj

    def __iter__(self) -> Iterator[NamespacedName]:
        """Yield the keys of all objects."""
        yield from self._objects
        for key, _ in self._archive.items():
            yield _key(key)

    def list(self) -> Iterator[Raw]:
        """Yield all objects, one at a time, because together they take much memory."""
        for obj in [compressed or self._recent[key] for key, compressed in self._objects.items()]:
            yield self._compressor.decompress(obj) if isinstance(obj, bytes) else obj
        if self._format is not None:
            for key, packed in self._archive.items():
                yield self._format.unpack(_key(key), packed)

    def put(self, key: NamespacedName, obj: Raw) -> None:
        """Add or replace an object."""
        if self._put_into_archive(key, obj):
            return
        self._objects[key] = self._compressor.compress(obj) if self._compress_at_once else b""
        self._keep(key, obj)

    def delete(self, key: NamespacedName) -> None:
        """Remove an object of the store."""
        if self._objects.pop(key, None) is None:
            self._archive.pop(_bytes(key))
        self._recent.pop(key, None)

    def _put_into_archive(self, key: NamespacedName, obj: Raw) -> bool:
        """Archive the object if the format says so; return True if it did."""
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


# --- the index --------------------------------------------------------------------------------------------------------

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Index(Generic[K, V]):
    """Maps values to the keys that have them. A look-up is a dictionary access, whatever the number of keys."""

    def __init__(self) -> None:
        self._values: dict[K, frozenset[V]] = {}
        self._keys: dict[V, dict[K, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: K, values: Iterable[V]) -> frozenset[V]:
        """Replace the values of a key, maybe by none; return the values that the key lost."""
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
        """Return the keys that have a value, in the order in which they got it."""
        return self._keys.get(value, {}).keys()
