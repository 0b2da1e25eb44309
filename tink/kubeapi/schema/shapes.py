"""JSON values: their types as Kubernetes names them, and copies of them.

----
The words in which schemas of Kubernetes' own types are written here: texts, structs, lists, maps (OpenAPI 3)."""

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


TEXT: Raw = {"type": "string"}
FLAG: Raw = {"type": "boolean"}
INT32: Raw = {"type": "integer", "format": "int32"}
INT64: Raw = {"type": "integer", "format": "int64"}
BYTES: Raw = {"type": "string", "format": "byte"}
TIME: Raw = {"type": "string", "format": "date-time"}
ANY: Raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def struct(properties: Raw, *required: str, **more: Any) -> Raw:
    """Give the schema of an object with these fields, some of which are `required`."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {}), **more}


def same(kind: Raw, *names: str) -> Raw:
    """Give fields that have the same schema."""
    return dict.fromkeys(names, kind)


def texts(*names: str) -> Raw:
    """Give fields that are texts."""
    return same(TEXT, *names)


def mapping(values: Raw) -> Raw:
    """Give the schema of a map."""
    return {"type": "object", "additionalProperties": values}


def array(items: Raw) -> Raw:
    """Give the schema of a list."""
    return {"type": "array", "items": items}


def atomic(items: Raw) -> Raw:
    """Give the schema of a list that is replaced as a whole."""
    return {**array(items), "x-kubernetes-list-type": "atomic"}


def keyed(items: Raw, *keys: str) -> Raw:
    """Give the schema of a list whose items are told apart by their `keys`."""
    return {**array(items), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
