"""Which keys have a value, such as which Workflows wait for a Hardware: client-go's Indexer, for values of any kind."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

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
