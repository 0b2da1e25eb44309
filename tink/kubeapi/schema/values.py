"""JSON values: their types as Kubernetes names them, and copies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

Raw = dict[str, Any]
"""An object, or a schema, as JSON has it."""

_LOW, _HIGH = -(1 << 63), (1 << 63) - 1


def deep_copy(value: Any) -> Any:
    """Copy a JSON value deeply; faster than copy.deepcopy by an order of magnitude."""
    return orjson.loads(orjson.dumps(value))


def is_integer(value: object) -> bool:
    """Whether a JSON number is an integer of 64 bits; Kubernetes takes 1.0 for one."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 1 << 53
    return isinstance(value, int) and not isinstance(value, bool) and _LOW <= value <= _HIGH


TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
"""Whether a value is of a schema's `type`."""


def type_name(value: object) -> str:
    """Name the JSON type of a value."""
    if value is None:
        return "null"
    if is_integer(value):
        return "integer"
    return next((name for name, holds in TYPES.items() if holds(value)), "unknown")
