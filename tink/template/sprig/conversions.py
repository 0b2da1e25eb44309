"""What Sprig's functions of all kinds stand on: values as text, integers and floats; what is equal, what is too big."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from tink.golang import fmt, strconv
from tink.golang.strconv import from_bytes
from tink.golang.values import NIL, CallError, Struct, Uint8, Value, kind
from tink.template.signatures import STRING, Function, Type

Spend = Callable[[int], None]
"""Takes steps from the budget of the running template; ends it when there are none left."""

NIL_POINTER: Final = "runtime error: invalid memory address or nil pointer dereference"


def bounded(size: int) -> None:
    """Raises CallError for results that are too large, before they are made."""
    if size > fmt.MAX_CHARACTERS:
        raise CallError(f"the result is larger than {fmt.MAX_CHARACTERS}")


def text_of(value: Value) -> str:
    """Any value as text."""
    return "<nil>" if value is None else fmt.text_of(value)


def texts_of(value: Value) -> list[str]:
    """A list's elements as text, without nils; anything else is a list of one."""
    if value is None:
        return []
    if type(value) is list:
        return [text_of(item) for item in value if item is not None]
    return [text_of(value)]


def joined(separator: str, parts: list[str]) -> str:
    """The parts as one text."""
    bounded(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def wrap64(value: int) -> int:
    """What is left of a result in an int64."""
    return (value + 2**63) % 2**64 - 2**63


def to_int(value: Value) -> int:
    """The value as an int64: zero for what is no number."""
    if type(value) in (int, Uint8, bool):
        return wrap64(int(value))
    if type(value) is float:
        # What does not fit is what the processor makes of it (Go: "implementation-dependent").
        return int(value) if math.isfinite(value) and -(2.0**63) <= value < 2.0**63 else strconv.INT64_MIN
    if type(value) is str:
        number = strconv.parse_integer(re.sub(r"\.0+$", "", value))
        return number if number is not None and strconv.INT64_MIN <= number <= strconv.INT64_MAX else 0
    return 0


def to_float(value: Value) -> float:
    """The value as a float64: zero for what is no number."""
    if type(value) in (int, Uint8, bool, float):
        return float(value)
    if type(value) is str:
        return strconv.parse_float(value) or 0.0
    return 0.0


def sequence(complaint: str, value: Value) -> list[Value]:
    """The value, if it is a list. Raises CallError with the complaint and the kind of the value."""
    if type(value) is list:
        return value
    found = kind(value)
    raise CallError(NIL_POINTER if found == NIL else f"{complaint} {found}")


def deep_equal(spend: Spend, one: Value, other: Value, depth: int = 0) -> bool:
    """Go's reflect.DeepEqual: also the types must be the same. Values may share parts, or hold themselves."""
    spend(1)
    if type(one) is not type(other):
        return False
    if type(one) is list:
        _not_too_deep(depth)
        return one is other or (
            len(one) == len(other)
            and all(deep_equal(spend, item, its, depth + 1) for item, its in zip(one, other, strict=True))
        )
    if type(one) is dict:
        _not_too_deep(depth)
        return one is other or (
            len(one) == len(other)
            and all(key in other and deep_equal(spend, one[key], other[key], depth + 1) for key in one)
        )
    if type(one) is Struct:
        return one.type_name == other.type_name and deep_equal(spend, one.fields, other.fields, depth + 1)
    return bool(one == other)


def deep_copy(spend: Spend, value: Value, depth: int = 0) -> Value:
    """A copy that shares no list or map with the value."""
    spend(1)
    if type(value) is list:
        _not_too_deep(depth)
        return [deep_copy(spend, item, depth + 1) for item in value]
    if type(value) is dict:
        _not_too_deep(depth)
        return {key: deep_copy(spend, item, depth + 1) for key, item in value.items()}
    if type(value) is Struct:
        members = {name: deep_copy(spend, item, depth + 1) for name, item in value.members.items()}
        return Struct(value.type_name, {name: members[name] for name in value.fields}, members, value.text)
    return value


def _not_too_deep(depth: int) -> None:
    if depth > fmt.MAX_DEPTH:
        raise CallError(f"the value is nested deeper than {fmt.MAX_DEPTH}")


def by_bytes(change: Callable[[bytes], bytes], text: str) -> str:
    """For what Go does to the bytes of a string."""
    return from_bytes(change(strconv.to_bytes(text)))


def on_text(name: str, call: Callable[..., Any], *before: Type) -> Function:
    """A function whose last parameter is the text it works on."""
    return Function(name, call, (*before, STRING))


def aliases(function: Function, *names: str) -> tuple[Function, ...]:
    """The function under more names."""
    return tuple(
        Function(name, function.call, function.parameters, function.variadic, function.metered, function.changing)
        for name in (function.name, *names)
    )
