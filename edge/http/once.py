"""Saying a thing once: keeps a flood of equal requests from becoming a flood of log lines and journey entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable


class OncePer:
    """`first(key)` is true once in `window` seconds for each key. Remembers at most `capacity` keys, the latest."""

    def __init__(self, window: float, clock: Callable[[], float], *, capacity: int = 4096) -> None:
        self._window = window
        self._clock = clock
        self._capacity = capacity
        self._said: OrderedDict[Hashable, float] = OrderedDict()

    def first(self, *key: Hashable) -> bool:
        """Whether `key` is worth saying now; if so, it is taken as said."""
        now = self._clock()
        said = self._said.get(key)
        if said is not None and now - said < self._window:
            return False
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > self._capacity:
            self._said.popitem(last=False)
        return True
