"""Sprig's functions of lists; none changes a list that it is given."""

from __future__ import annotations

from typing import Final

from tink.golang.values import NIL, CallError, Value, kind
from tink.template.signatures import ANY, INT, Function, Functions, table
from tink.template.sprig.conversions import (
    NIL_POINTER,
    Spend,
    aliases,
    bounded,
    deep_equal,
    sequence,
    text_of,
    texts_of,
    to_int,
)

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _first(value: Value) -> Value:
    items = sequence("Cannot find first on type", value)
    return items[0] if items else None


def _last(value: Value) -> Value:
    items = sequence("Cannot find last on type", value)
    return items[-1] if items else None


def _rest(value: Value) -> Value:
    return sequence("Cannot find rest on type", value)[1:]


def _initial(value: Value) -> Value:
    return sequence("Cannot find initial on type", value)[:-1]


def _append(value: Value, item: Value) -> Value:
    return [*sequence("Cannot push on type", value), item]


def _prepend(value: Value, item: Value) -> Value:
    return [item, *sequence("Cannot prepend on type", value)]


def _reverse(value: Value) -> Value:
    return sequence("Cannot find reverse on type", value)[::-1]


def _compact(value: Value) -> Value:
    return [item for item in sequence("Cannot compact on type", value) if item]


def _concat(*lists: Value) -> Value:
    for value in lists:
        if type(value) is not list:
            found = kind(value)
            raise CallError(NIL_POINTER if found == NIL else f"Cannot concat type {found} as list")
    bounded(sum(map(len, lists)))
    return [item for items in lists for item in items]


class _Seen:
    """Values, to be asked for their like: plain ones by their hash, others one after the other."""

    def __init__(self, spend: Spend) -> None:
        self._spend = spend
        self._plain: set[tuple[type, Value]] = set()
        self._others: list[Value] = []

    def add(self, value: Value) -> None:
        if type(value) in _SCALARS:
            self._plain.add((type(value), value))
        else:
            self._others.append(value)

    def __contains__(self, value: Value) -> bool:
        if type(value) in _SCALARS:
            return (type(value), value) in self._plain
        return any(deep_equal(self._spend, value, other) for other in self._others)


def _uniq(spend: Spend, value: Value) -> Value:
    seen = _Seen(spend)
    found = []
    for item in sequence("Cannot find uniq on type", value):
        if item not in seen:
            seen.add(item)
            found.append(item)
    return found


def _without(spend: Spend, value: Value, *omitted: Value) -> Value:
    seen = _Seen(spend)
    for item in omitted:
        seen.add(item)
    return [item for item in sequence("Cannot find without on type", value) if item not in seen]


def _has(spend: Spend, needle: Value, haystack: Value) -> bool:
    if haystack is None:
        return False
    items = sequence("Cannot find has on type", haystack)
    if type(needle) in _SCALARS:
        return any(type(item) is type(needle) and item == needle for item in items)
    return any(deep_equal(spend, needle, item) for item in items)


def _slice(value: Value, *indexes: Value) -> Value:
    items = sequence("list should be type of slice or array but", value)
    if not items:
        return None
    start = to_int(indexes[0]) if indexes else 0
    end = to_int(indexes[1]) if len(indexes) > 1 else len(items)
    if not 0 <= start <= end <= len(items):
        raise CallError("reflect.Value.Slice: slice index out of bounds")
    return items[start:end]


def _chunk(size: int, value: Value) -> Value:
    items = sequence("Cannot chunk type", value)
    if size < 1:
        raise CallError(f"a chunk of {size} items is none")
    return [items[start : start + size] for start in range(0, len(items), size)]


def _sort_alpha(value: Value) -> Value:
    return sorted(texts_of(value)) if type(value) is list else [text_of(value)]


LISTS: Final[Functions] = table(
    *aliases(Function("list", lambda *items: list(items), (), ANY), "tuple"),
    *aliases(Function("first", _first, (ANY,)), "mustFirst"),
    *aliases(Function("last", _last, (ANY,)), "mustLast"),
    *aliases(Function("rest", _rest, (ANY,)), "mustRest"),
    *aliases(Function("initial", _initial, (ANY,)), "mustInitial"),
    *aliases(Function("append", _append, (ANY, ANY)), "push", "mustAppend", "mustPush"),
    *aliases(Function("prepend", _prepend, (ANY, ANY)), "mustPrepend"),
    *aliases(Function("reverse", _reverse, (ANY,)), "mustReverse"),
    *aliases(Function("compact", _compact, (ANY,)), "mustCompact"),
    *aliases(Function("uniq", _uniq, (ANY,), metered=True), "mustUniq"),
    *aliases(Function("without", _without, (ANY,), ANY, metered=True), "mustWithout"),
    *aliases(Function("has", _has, (ANY, ANY), metered=True), "mustHas"),
    *aliases(Function("chunk", _chunk, (INT, ANY)), "mustChunk"),
    Function("mustSlice", _slice, (ANY,), ANY),
    Function("concat", _concat, (), ANY),
    Function("sortAlpha", _sort_alpha, (ANY,)),
    Function("toStrings", texts_of, (ANY,)),
)
