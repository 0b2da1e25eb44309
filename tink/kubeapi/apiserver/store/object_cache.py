"""The object cache: what was written or read lately, in memory. Most reads need no other thread."""

from __future__ import annotations

from tink.kubeapi.apiserver.store.objects import Event, Key, Stored
from tink.shrink import shrink_to_fit

CACHE_BYTES = 16 << 20
"""So much text of recent objects is kept in memory."""
_ENTRY_BYTES = 500
"""What an entry costs beside its text, roughly."""


class ObjectCache:
    """Objects that were written or read lately, by key; None for those that were deleted lately. Bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: dict[Key, Stored | None] = {}
        self._reads: dict[Key, object] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Stored | None:
        """Give an object that is here, and keep it longer than those that nobody asks for."""
        found = self._entries[key] = self._entries.pop(key)
        return found

    def begin_read(self, key: Key) -> object:
        """Note that a read of an object from the disk begins; give the token to end it with."""
        return self._reads.setdefault(key, object())

    def end_read(self, key: Key, token: object, found: Stored | None) -> None:
        """Keep what a read brought, unless the object was written meanwhile: then it may be what was there before."""
        if self._reads.get(key) is token:
            del self._reads[key]
            if found is not None:
                self._put(key, found)

    def abort_read(self, key: Key, token: object) -> None:
        """End a read that failed."""
        if self._reads.get(key) is token:
            del self._reads[key]

    def apply(self, event: Event) -> None:
        """Take a change that is on the disk."""
        key = event.key
        self._reads.pop(key, None)
        gone = event.type == "DELETED"
        self._put(key, None if gone else Stored(key.namespace, key.name, event.version, shrink_to_fit(event.body)))

    def _put(self, key: Key, found: Stored | None) -> None:
        entries = self._entries
        if key in entries:
            self._size -= _weight(entries.pop(key))
        entries[key] = found
        self._size += _weight(found)
        while self._size > self._limit:
            oldest = next(iter(entries))
            self._size -= _weight(entries.pop(oldest))


def _weight(found: Stored | None) -> int:
    return _ENTRY_BYTES + (len(found.body) if found is not None else 0)
