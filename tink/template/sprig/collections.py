"""Sprig's functions of lists and maps.

`set`, `unset` and `merge` change their map, as in Sprig; templates that call them run on a copy of the data. Maps are
in the order of their keys; Go's have no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tink.golang.values import NIL, CallError, Value, kind, type_name
from tink.template.signatures import ANY, INT, MAP, STRING, Function, Functions, ParameterType, table
from tink.template.sprig.numbers import (
    NIL_POINTER,
    Spend,
    aliases,
    bounded,
    deep_copy,
    deep_equal,
    not_too_deep,
    sequence,
    text_of,
    texts_of,
    to_int,
)

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _concat(*lists: Value) -> Value:
    for value in lists:
        if type(value) is not list:
            found = kind(value)
            raise CallError(NIL_POINTER if found == NIL else f"Cannot concat type {found} as list")
    bounded(sum(map(len, lists)))
    return [item for items in lists for item in items]


class _Seen:
    """A set of values for membership tests: scalars by hash, other values one after the other."""

    def __init__(self, spend: Spend, values: Iterable[Value] = ()) -> None:
        self._spend = spend
        self._plain: set[tuple[type, Value]] = set()
        self._others: list[Value] = []
        for value in values:
            self.add(value)

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
    seen = _Seen(spend, omitted)
    return [item for item in sequence("Cannot find without on type", value) if item not in seen]


def _has(spend: Spend, needle: Value, haystack: Value) -> bool:
    return haystack is not None and needle in _Seen(spend, sequence("Cannot find has on type", haystack))


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


def _of_list(
    name: str, doing: str, call: Callable[..., Value], *more: ParameterType, also: tuple[str, ...] = ()
) -> tuple[Function, ...]:
    """Return a function of a list and of `more`. `doing` is the verb in Sprig's error for other values."""

    def checked(value: Value, *arguments: Value) -> Value:
        return call(sequence(f"Cannot {doing} on type", value), *arguments)

    return aliases(Function(name, checked, (ANY, *more)), f"must{name.capitalize()}", *also)


LISTS: Final[Functions] = table(
    *aliases(Function("list", lambda *items: list(items), (), ANY), "tuple"),
    *_of_list("first", "find first", lambda items: items[0] if items else None),
    *_of_list("last", "find last", lambda items: items[-1] if items else None),
    *_of_list("rest", "find rest", lambda items: items[1:]),
    *_of_list("initial", "find initial", lambda items: items[:-1]),
    *_of_list("append", "push", lambda items, item: [*items, item], ANY, also=("push", "mustPush")),
    *_of_list("prepend", "prepend", lambda items, item: [item, *items], ANY),
    *_of_list("reverse", "find reverse", lambda items: items[::-1]),
    *_of_list("compact", "compact", lambda items: [item for item in items if item]),
    *aliases(Function("uniq", _uniq, (ANY,), metered=True), "mustUniq"),
    *aliases(Function("without", _without, (ANY,), ANY, metered=True), "mustWithout"),
    *aliases(Function("has", _has, (ANY, ANY), metered=True), "mustHas"),
    *aliases(Function("chunk", _chunk, (INT, ANY)), "mustChunk"),
    Function("mustSlice", _slice, (ANY,), ANY),
    Function("concat", _concat, (), ANY),
    Function("sortAlpha", lambda value: sorted(texts_of(value)) if type(value) is list else [text_of(value)], (ANY,)),
    Function("toStrings", texts_of, (ANY,)),
)


Mapping = dict[str, Value]


def _dict(*arguments: Value) -> Value:
    pairs = [*arguments, ""] if len(arguments) % 2 else arguments
    return {text_of(pairs[index]): pairs[index + 1] for index in range(0, len(pairs), 2)}


def _set(mapping: Mapping, key: str, value: Value) -> Value:
    mapping[key] = value
    return mapping


def _unset(mapping: Mapping, key: str) -> Value:
    mapping.pop(key, None)
    return mapping


def _merge(overwrite: bool, spend: Spend, target: Mapping, *sources: Mapping) -> Value:
    for source in sources:
        _merge_into(spend, target, source, overwrite, 0)
    return target


def _merge_into(spend: Spend, target: Mapping, source: Mapping, overwrite: bool, depth: int) -> None:
    """Merge maps as mergo does: fill missing or empty values, or overwrite them. Nested maps are merged."""
    not_too_deep(depth)
    for key, new in list(source.items()):
        spend(1)
        old = target.get(key)
        if new is None:
            if overwrite:
                target[key] = None
        elif type(new) is dict and type(old) is dict and (old or new):
            _merge_into(spend, old, new, overwrite, depth + 1)
        elif overwrite or not old:
            target[key] = new


def _dig(*arguments: Value) -> Value:
    """Return map.a.b for `dig "a" "b" default map`, or the default if a key is missing."""
    if len(arguments) < 3:
        raise CallError("dig needs at least three arguments")
    *keys, default, value = arguments
    for key in keys:
        if type(key) is not str:
            raise CallError(f"interface conversion: interface {{}} is {_known(key)}, not string")
    for key in keys:
        if type(value) is not dict:
            raise CallError(f"interface conversion: interface {{}} is {_known(value)}, not map[string]interface {{}}")
        if key not in value:
            return default
        value = value[key]
    return value


def _known(value: Value) -> str:
    return "nil" if value is None else type_name(value)


def _copied(spend: Spend, value: Value) -> Value:
    if value is None:
        raise CallError("reflect: call of reflect.Value.Type on zero Value")
    return deep_copy(spend, value)


MAPS: Final[Functions] = table(
    Function("dict", _dict, (), ANY),
    Function("get", lambda mapping, key: mapping.get(key, ""), (MAP, STRING)),
    Function("set", _set, (MAP, STRING, ANY), changing=True),
    Function("unset", _unset, (MAP, STRING), changing=True),
    Function("hasKey", lambda mapping, key: key in mapping, (MAP, STRING)),
    Function("keys", lambda *mappings: [key for mapping in mappings for key in sorted(mapping)], (), MAP),
    Function("values", lambda mapping: [mapping[key] for key in sorted(mapping)], (MAP,)),
    Function("pluck", lambda key, *mappings: [mapping[key] for mapping in mappings if key in mapping], (STRING,), MAP),
    Function("pick", lambda mapping, *keys: {key: mapping[key] for key in keys if key in mapping}, (MAP,), STRING),
    Function("omit", lambda mapping, *keys: {k: mapping[k] for k in mapping if k not in keys}, (MAP,), STRING),
    Function("dig", _dig, (), ANY),
    *aliases(Function("merge", partial(_merge, False), (MAP,), MAP, metered=True, changing=True), "mustMerge"),
    *aliases(
        Function("mergeOverwrite", partial(_merge, True), (MAP,), MAP, metered=True, changing=True),
        "mustMergeOverwrite",
    ),
    *aliases(Function("deepCopy", _copied, (ANY,), metered=True), "mustDeepCopy"),
)
