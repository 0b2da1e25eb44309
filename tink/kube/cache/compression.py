"""Objects in as few bytes as they can be kept in, for the caches that hold a whole site.

A Hardware of 2.4 kB as JSON is 10 kB as dictionaries, and less than 300 bytes here: without what nobody reads of it,
and compressed (RFC 1951) with the first object as the dictionary, because objects of one kind resemble each other.
To compress one takes some 30 us, to decompress it 10.
"""

from __future__ import annotations

import zlib

import orjson

from tink.api.v1alpha2 import Raw

_LEVEL = 1
_WINDOW = -13  # raw deflate with 8 kB of history: set up in less time than a larger one, for hardly more bytes
_EFFORT = 5

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def strip(obj: Raw) -> Raw:
    """Take out of `obj`, in place, what only API servers and kubectl read, and which is more than half of it:
    `managedFields`, and the copy of the manifest that kubectl keeps in an annotation."""
    metadata = obj["metadata"]
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and annotations.pop(_LAST_APPLIED, None) is not None and not annotations:
        del metadata["annotations"]
    return obj


class ObjectCompressor:
    """Compresses objects of one kind. What one of these made, only those with the same `dictionary` can read."""

    def __init__(self, dictionary: bytes = b"") -> None:
        """Without a dictionary, the first object is it."""
        self.dictionary = dictionary
        self._last: tuple[Raw, bytes] | None = None

    def compress(self, obj: Raw) -> bytes:
        """The bytes of `obj`, which must not be changed any more.

        The same bytes again for the object that came last, or was read: whoever keeps a copy and whoever hears of the
        change share one.
        """
        if self._last is not None and self._last[0] is obj:
            return self._last[1]
        text = orjson.dumps(obj)
        if not self.dictionary:
            self.dictionary = text
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _EFFORT, zdict=self.dictionary)
        compressed = deflate.compress(text) + deflate.flush()
        self._last = obj, compressed
        return compressed

    def decompress(self, compressed: bytes) -> Raw:
        """A new copy of what was compressed."""
        obj: Raw = orjson.loads(zlib.decompressobj(_WINDOW, zdict=self.dictionary).decompress(compressed))
        self.remember(obj, compressed)
        return obj

    def remember(self, obj: Raw, compressed: bytes) -> None:
        """The object that is compressed next may be this one, which is kept as that already."""
        self._last = obj, compressed
