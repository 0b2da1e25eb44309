"""The list functions: Kubernetes' own (sum, min, max, isSorted, indexOf) and cel-go's lists and sets extensions.

The functions that compare elements take a `Traversal`, which counts the nodes that they visit.
"""

import functools
import itertools
from typing import Any

from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.frame import Traversal
from tink.kubeapi.cel.library import conversions
from tink.kubeapi.cel.library.conversions import signed, unsigned
from tink.kubeapi.cel.values import (
    COMPARABLE,
    NUMBERS,
    Duration,
    MapList,
    Optional,
    SetList,
    Timestamp,
    compare,
    no_overload,
    shown,
    type_name,
)

MAX_LENGTH = 1_000_000
"""Maximum length of a list that a function creates from a number or by addition."""
MAX_COMPARED = 10_000_000
"""Maximum number of comparisons for one union of sets."""


def add_lists(traversal: Traversal, a: list[Any], b: list[Any]) -> list[Any]:
    """Add lists by the kind of the left list: append, unite sets, or merge by keys.

    Raises EvaluationError if the result is too long or too much work.
    """
    if len(a) + len(b) > MAX_LENGTH:
        raise EvaluationError("operation cancelled: result is too large")
    if type(a) is SetList:
        return _united(traversal, a, b)
    if type(a) is MapList:
        places = {a.key(item): at for at, item in enumerate(a)}
        items = list(a)
        for item in b:
            place = places.get(a.key(item))
            if place is None:
                items.append(item)
            else:
                items[place] = item
        return MapList(items, a.keys)
    return [*a, *b]


def _united(traversal: Traversal, a: SetList, b: list[Any]) -> SetList:
    merged = SetList(a)
    texts = {item for item in a if type(item) is str}
    others = [item for item in a if type(item) is not str]
    for item in b:
        if type(item) is str:
            if item in texts:
                continue
            texts.add(item)
        elif len(others) * len(b) > MAX_COMPARED:
            raise EvaluationError("operation cancelled: result is too large")
        elif traversal.contains(others, item):
            continue
        else:
            others.append(item)
        merged.append(item)
    return merged


def add(a: Any, b: Any) -> Any:
    """Add two numbers of one type, or times. Raises EvaluationError on overflow."""
    kind = type(a)
    if kind is Duration or kind is Timestamp:
        return conversions.add(a, b)
    if kind not in NUMBERS:
        raise EvaluationError("no such overload: _+_")
    if kind is not type(b):
        raise no_overload()
    return a + b if kind is float else signed(a + b) if kind is int else unsigned(int(a) + int(b))


def total(items: list[Any], zero: Any) -> Any:
    """Return the sum of a list plus `zero`."""
    return functools.reduce(add, items, zero)


def _comparable(traversal: Traversal, items: list[Any]) -> None:
    if any(type(item) not in COMPARABLE for item in items):
        raise no_overload()
    traversal.texts(items)


def _compared(a: Any, b: Any) -> int | None:
    """Return the order of two elements, or None if they have no order. The callers ignore such pairs."""
    try:
        return compare(a, b)
    except EvaluationError:
        return None


def is_sorted(traversal: Traversal, items: list[Any]) -> bool:
    """Return True if no element is greater than the next."""
    _comparable(traversal, items)
    return not any(_compared(a, b) == 1 for a, b in itertools.pairwise(items))


def extreme(name: str, wanted: int, traversal: Traversal, items: list[Any]) -> Any:
    """Return the greatest element (`wanted` is 1) or the smallest (-1).

    Raises EvaluationError if the list is empty or contains elements that have no order.
    """
    if not items:
        raise EvaluationError(f"{name} called on empty list")
    _comparable(traversal, items)
    best = items[0]
    for item in items[1:]:
        if _compared(best, item) == -wanted:
            best = item
    return best


def index_of(traversal: Traversal, items: list[Any], value: Any) -> int:
    """Return the index of the first element equal to the value, or -1."""
    traversal.through(items)  # Kubernetes' cost counts the same
    if type(value) is str:
        return items.index(value) if traversal.contains(items, value) else -1
    for at, item in enumerate(items):
        if traversal.equal(item, value):
            return at
    return -1


def last_index_of(traversal: Traversal, items: list[Any], value: Any) -> int:
    """Return the index of the last element equal to the value, or -1."""
    at = index_of(traversal, items[::-1], value)
    return len(items) - 1 - at if at >= 0 else -1


def slice_of(items: list[Any], start: int, end: int) -> list[Any]:
    """Return the elements from `start` up to, but without, `end`."""
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(items) < end:
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def flatten(traversal: Traversal, items: list[Any], depth: int = 1) -> list[Any]:
    """Replace lists within the list by their elements, `depth` levels deep."""
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    traversal.visit(len(items) + 1)
    flat: list[Any] = []
    for item in items:
        if isinstance(item, list) and depth:
            flat += flatten(traversal, item, depth - 1)
        else:
            flat.append(item)
    return flat


def sort_by(traversal: Traversal, items: list[Any], keys: list[Any]) -> list[Any]:
    """Return the elements in the order of their keys.

    Raises EvaluationError for keys of several types or without order.
    """
    if len(items) != len(keys):
        raise EvaluationError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got"
            f" {len(items)} and {len(keys)} elements respectively"
        )
    if not items:
        return items
    kind = type_name(keys[0])
    if kind in ("list", "map", "null_type", "optional_type", "type"):
        raise EvaluationError("list elements must be comparable")
    if any(type_name(key) != kind for key in keys):
        raise EvaluationError("list elements must have the same type")
    traversal.texts(keys, len(keys).bit_length())

    def order_of(a: int, b: int) -> int:
        return compare(keys[a], keys[b])

    order = sorted(range(len(items)), key=functools.cmp_to_key(order_of))
    return [items[at] for at in order]


def numbers(size: int) -> list[int]:
    """Return 0, 1, ... below `size`."""
    if size > MAX_LENGTH:
        raise EvaluationError("operation cancelled: result is too large")
    return list(range(size))


def distinct(traversal: Traversal, items: list[Any]) -> list[Any]:
    """Return each different element once, at its first place."""
    if all(type(item) is str for item in items):
        return list(dict.fromkeys(items))
    unique: list[Any] = []
    for item in items:
        if not traversal.contains(unique, item):
            unique.append(item)
    return unique


def sets_contain(traversal: Traversal, items: list[Any], part: list[Any]) -> bool:
    """Return True if every element of `part` is in `items`."""
    return all(traversal.contains(items, item) for item in part)


def sets_equivalent(traversal: Traversal, a: list[Any], b: list[Any]) -> bool:
    """Return True if each list contains all elements of the other."""
    return sets_contain(traversal, a, b) and sets_contain(traversal, b, a)


def sets_intersect(traversal: Traversal, a: list[Any], b: list[Any]) -> bool:
    """Return True if the lists share an element."""
    return any(traversal.contains(b, item) for item in a)


def unwrapped(items: list[Any]) -> list[Any]:
    """Return the values of the optionals that have one."""
    for item in items:
        if type(item) is not Optional:
            raise EvaluationError(f"value {shown(item)} is not optional")
    return [item.value for item in items if item.present]
