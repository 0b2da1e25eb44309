"""Values that go into the store and come out of it, and the cache of recent objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from tink.errors import TinkedgeError
from tink.limits import shrink_to_fit


class StorageError(TinkedgeError):
    """SQLite failed: disk full, input/output error."""


class ExpiredError(TinkedgeError):
    """The requested version is older than the history."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"history begins after {oldest}")
        self.oldest = oldest


class MismatchError(TinkedgeError):
    """The object is not at the version that the writer expected; `actual` is 0 if it does not exist."""

    def __init__(self, actual: int) -> None:
        super().__init__(f"object is at version {actual}")
        self.actual = actual


class Key(NamedTuple):
    """The place of an object: `resource` is "group/plural"; namespace is "" for cluster-scoped objects."""

    resource: str
    namespace: str
    name: str


class StoredObject(NamedTuple):
    """A stored object."""

    namespace: str
    name: str
    version: int
    body: bytes


@dataclass(frozen=True)
class Event:
    """One stored change: type ADDED, MODIFIED or DELETED. `prior` is the state before.

    `origin` is that of the `Write`; an event from the history has none.
    """

    version: int
    key: Key
    type: str
    body: bytes
    prior: bytes | None
    origin: object = field(default=None, compare=False, repr=False)

    @cached_property
    def object(self) -> dict[str, Any]:
        """The object after the change (for DELETED: its last state). Shared: do not change it."""
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed

    @cached_property
    def before(self) -> dict[str, Any] | None:
        """The object before the change. Shared: do not change it."""
        return None if self.prior is None else orjson.loads(self.prior)


@dataclass(frozen=True, slots=True)
class Write:
    """A change to make: `expected` is the required version of the object, 0 if it must not exist.

    `origin` is passed on to the `Event`: it identifies the caller, and the store does not interpret it.
    """

    key: Key
    version: int
    body: bytes
    expected: int
    delete: bool = False
    origin: object = None


class OwnedObject(NamedTuple):
    """An object with an owner, whose `uid` is the first field."""

    uid: str
    resource: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """The place of the object."""
        return Key(self.resource, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list as of `version`; `more` is True if objects follow."""

    items: list[StoredObject]
    version: int
    more: bool


MAX_CACHE_BYTES = 16 << 20  # Maximum size of the cached objects' texts
_ENTRY_BYTES = 500  # Approximate memory of an entry besides its text


class ObjectCache:
    """Recently written or read objects by key, None for deleted ones. Bounded in bytes. Most reads need no thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: dict[Key, StoredObject | None] = {}
        self._reads: dict[Key, object] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> StoredObject | None:
        """Return a cached object, and mark it as recently used."""
        found = self._entries[key] = self._entries.pop(key)
        return found

    def begin_read(self, key: Key) -> object:
        """Note the begin of a read from the disk, and return the token to end it with."""
        return self._reads.setdefault(key, object())

    def end_read(self, key: Key, token: object, found: StoredObject | None) -> None:
        """Cache the result of a read (None: nothing, or it failed), unless the object was written meanwhile: the result
        may then be outdated."""
        if self._reads.get(key) is token:
            del self._reads[key]
            if found is not None:
                self._put(key, found)

    def apply(self, event: Event) -> None:
        """Update the cache with a stored change."""
        key = event.key
        self._reads.pop(key, None)
        gone = event.type == "DELETED"
        self._put(
            key, None if gone else StoredObject(key.namespace, key.name, event.version, shrink_to_fit(event.body))
        )

    def _put(self, key: Key, found: StoredObject | None) -> None:
        entries = self._entries
        if key in entries:
            self._size -= _weight(entries.pop(key))
        entries[key] = found
        self._size += _weight(found)
        while self._size > self._limit:
            oldest = next(iter(entries))
            self._size -= _weight(entries.pop(oldest))


def _weight(found: StoredObject | None) -> int:
    return _ENTRY_BYTES + (len(found.body) if found is not None else 0)
