"""CEL's equality, which is deep, and what looks for equal elements in lists.

Each comparison says what it walks through: `[a, a]` that is put into itself n times is small in memory and has 2**n
parts for who goes through it. `Traversal` counts them; `equal` here is for what is as large as it looks, such as data.
"""

import itertools
from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel.values import NUMBERS, MapList, Optional, SetList, hashable, numbers_equal

CHUNK = 64
"""Elements of lists that are compared between two counts."""
TEXT = 64
"""Characters that count as one node: comparing, or copying, many is quick, but not for nothing."""

_PLAIN = frozenset((str, bool, int, float, bytes, type(None)))


class Comparison:
    """The comparisons. `visit` hears of the nodes that are about to be looked at."""

    __slots__ = ()

    def visit(self, nodes: int) -> None:
        """Counts nodes; here, does nothing."""

    def equal(self, a: Any, b: Any) -> bool:
        """CEL's equality: numbers by value, lists and maps by their content, different types are different."""
        kind = type(a)
        other = type(b)
        if kind is other and kind in _PLAIN:
            if (kind is str or kind is bytes) and len(a) > TEXT and len(a) == len(b):
                self.visit(len(a) // TEXT)
            return bool(a == b)
        if kind in NUMBERS:
            return other in NUMBERS and numbers_equal(a, b)
        if isinstance(a, list):
            return isinstance(b, list) and self.lists_equal(a, b)
        if kind is dict:
            return other is dict and self.maps_equal(a, b)
        if kind is Optional:
            return other is Optional and a.present is b.present and (not a.present or self.equal(a.value, b.value))
        return kind is other and bool(a == b)

    def lists_equal(self, a: list[Any], b: list[Any], same: Callable[[Any, Any], bool] | None = None) -> bool:
        """Equality of lists by the kind of the left one; `same` compares elements, `equal` unless given."""
        size = len(a)
        if size != len(b):
            return False
        if type(a) is SetList:
            self.visit(size + 1)
            members = set(map(hashable, a))
            return all(hashable(item) in members for item in b)
        same = same or self.equal
        if type(a) is MapList:
            keyed = {a.key(item): item for item in a}
            keys = list(map(a.key, b))
            if not all(key in keyed for key in keys):
                return False
            a = [keyed[key] for key in keys]
        if size <= CHUNK:
            self.visit(size + 1)
            return all(map(same, a, b))
        for at in range(0, size, CHUNK):
            self.visit(CHUNK)
            if not all(map(same, a[at : at + CHUNK], b[at : at + CHUNK])):
                return False
        return True

    def maps_equal(self, a: dict[Any, Any], b: dict[Any, Any]) -> bool:
        """Equality of maps."""
        if len(a) != len(b):
            return False
        self.visit(len(a) + 1)
        return all(key in b and self.equal(value, b[key]) for key, value in a.items())

    def contains(self, items: list[Any], value: Any) -> bool:
        """Whether a list has an element equal to the value."""
        if type(value) is str:
            if len(value) > TEXT:
                alike = sum(type(item) is str and len(item) == len(value) for item in items)
                self.visit(len(value) // TEXT * alike)
            return value in items
        return any(map(self.equal, items, itertools.repeat(value)))


_UNCOUNTED = Comparison()
equal = _UNCOUNTED.equal
lists_equal = _UNCOUNTED.lists_equal
contains = _UNCOUNTED.contains
