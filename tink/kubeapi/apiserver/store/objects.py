"""What goes into the store and comes out of it: objects by key, changes, pages of lists, errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from tink.shrink import shrink_to_fit


class StorageError(Exception):
    """SQLite could not do it: disk full, input/output error."""


class ExpiredError(Exception):
    """The version asked for is older than the history."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"history begins after {oldest}")
        self.oldest = oldest


class MismatchError(Exception):
    """The object is not at the version that the writer expected; `actual` is 0 when it does not exist."""

    def __init__(self, actual: int) -> None:
        super().__init__(f"object is at version {actual}")
        self.actual = actual


class Key(NamedTuple):
    """Where an object is: `resource` is "group/plural"; namespace is "" for cluster-scoped objects."""

    resource: str
    namespace: str
    name: str


class Stored(NamedTuple):
    """An object as it is kept."""

    namespace: str
    name: str
    version: int
    body: bytes


@dataclass(frozen=True)
class Event:
    """One change that is on the disk: type ADDED, MODIFIED or DELETED. `prior` is the state before.

    `origin` is that of the `Write`; an event that is read from the history has none.
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


class Owned(NamedTuple):
    """An object that names an owner, whose `uid` is the first field."""

    uid: str
    resource: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """Where the object is that has this owner."""
        return Key(self.resource, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, as of `version`; `more` when objects follow after the last of it."""

    items: list[Stored]
    version: int
    more: bool


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
