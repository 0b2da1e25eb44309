"""Sprig's functions of maps.

`set`, `unset` and `merge` change the map that they are given, as in Sprig; the engine lets templates that call them
work on a copy of the data. Maps are in the order of their keys; Go's have none.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tink.golang import fmt
from tink.golang.values import CallError, Value, type_name
from tink.template.signatures import ANY, MAP, STRING, Function, Functions, table
from tink.template.sprig.conversions import Spend, aliases, deep_copy, text_of

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


def _omit(mapping: Mapping, *keys: str) -> Value:
    return {key: value for key, value in mapping.items() if key not in keys}


def _merge(overwrite: bool, spend: Spend, target: Mapping, *sources: Mapping) -> Value:
    for source in sources:
        _merge_into(spend, target, source, overwrite, 0)
    return target


def _merge_into(spend: Spend, target: Mapping, source: Mapping, overwrite: bool, depth: int) -> None:
    """What mergo does for JSON-like maps: fill what is missing or empty, or overwrite; maps within are merged."""
    if depth > fmt.MAX_DEPTH:
        raise CallError(f"the value is nested deeper than {fmt.MAX_DEPTH}")
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
    """`dig "a" "b" default map`: map.a.b, or the default where a key is missing on the way."""
    if len(arguments) < 3:
        raise CallError("dig needs at least three arguments")
    *keys, default, value = arguments
    if any(type(key) is not str for key in keys):
        wrong = next(key for key in keys if type(key) is not str)
        raise CallError(f"interface conversion: interface {{}} is {_known(wrong)}, not string")
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
    Function("omit", _omit, (MAP,), STRING),
    Function("dig", _dig, (), ANY),
    *aliases(Function("merge", partial(_merge, False), (MAP,), MAP, metered=True, changing=True), "mustMerge"),
    *aliases(
        Function("mergeOverwrite", partial(_merge, True), (MAP,), MAP, metered=True, changing=True),
        "mustMergeOverwrite",
    ),
    *aliases(Function("deepCopy", _copied, (ANY,), metered=True), "mustDeepCopy"),
)
