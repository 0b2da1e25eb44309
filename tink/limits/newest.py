"""Mappings of bounded size, for content that unknown or many machines cause."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Newest(OrderedDict[T, S]):
    """A dictionary of at most `most` entries. Setting a key makes it the newest, and drops the oldest if it is full."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: T, value: S) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class Usable(Protocol):
    """An entry with a mark that its user sets."""

    used: bool


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Usable)


class UsedLists(Generic[K, V]):
    """Lists of entries by key. A full list drops its oldest entry. If there are more than `most` entries in all, those
    are dropped that were not used since the last time that this happened."""

    def __init__(self, most: int, most_of_a_key: int) -> None:
        self.lists: dict[K, list[V]] = {}
        """The lists, for reading; always the same dictionary."""
        self._most = most
        self._most_of_a_key = most_of_a_key
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: K, entry: V) -> None:
        """Add an entry."""
        alike = self.lists.setdefault(key, [])
        if len(alike) >= self._most_of_a_key:
            del alike[0]
            self._count -= 1
        alike.append(entry)
        self._count += 1
        if self._count > self._most:
            self._count = 0
            for key, alike in list(self.lists.items()):
                alike[:] = [entry for entry in alike if entry.used]
                if not alike:
                    del self.lists[key]
                self._count += len(alike)
                for entry in alike:
                    entry.used = False
