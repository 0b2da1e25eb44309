"""What was learnt and is in use: for what strangers can have learnt too, so that it has to be bounded."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Usable(Protocol):
    """An entry: whoever uses it sets `used`."""

    used: bool


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Usable)


class InUse(Generic[K, V]):
    """Entries in lists by key. Where a list is full its oldest entry goes; when all are too many, those that were not
    used since that was last so."""

    def __init__(self, most: int, most_of_a_key: int) -> None:
        self.lists: dict[K, list[V]] = {}
        """To be read; always the same dictionary."""
        self._most = most
        self._most_of_a_key = most_of_a_key
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: K, entry: V) -> None:
        """Keep one more."""
        alike = self.lists.setdefault(key, [])
        if len(alike) >= self._most_of_a_key:
            del alike[0]
            self._count -= 1
        alike.append(entry)
        self._count += 1
        if self._count > self._most:
            self._forget()

    def _forget(self) -> None:
        self._count = 0
        for key, alike in list(self.lists.items()):
            alike[:] = [entry for entry in alike if entry.used]
            if not alike:
                del self.lists[key]
            self._count += len(alike)
            for entry in alike:
                entry.used = False
