"""JSON values, and helpers to write the schemas of Kubernetes' own types (OpenAPI 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

Raw = dict[str, Any]
"""An object or a schema as JSON."""

_LOW, _HIGH = -(1 << 63), (1 << 63) - 1


def deep_copy(value: Any) -> Any:
    """Copy a JSON value deeply; faster than copy.deepcopy by an order of magnitude."""
    return orjson.loads(orjson.dumps(value))


def child_schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the schemas directly below a schema."""
    items = schema.get("items")
    yield from items if isinstance(items, list) else [items] if items else []
    for key in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(key) or ()
    if schema.get("not"):
        yield schema["not"]
    yield from (schema.get("properties") or {}).values()
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield schema["additionalProperties"]


def json_text(value: Any) -> bytes | None:
    """Return a value as JSON, or None if orjson cannot write it: integers beyond 64 bits, text that is not Unicode."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None


def is_integer(value: object) -> bool:
    """Return True if a JSON number is a 64-bit integer. 1.0 is one in Kubernetes."""
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
"""The test of each `type` of a schema."""


def type_name(value: object) -> str:
    """Return the JSON type of a value."""
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
    """Return the schema of an object with these fields. `required` are names of required fields."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {}), **more}


def same(kind: Raw, *names: str) -> Raw:
    """Return fields that have the same schema."""
    return dict.fromkeys(names, kind)


def texts(*names: str) -> Raw:
    """Return string fields."""
    return same(TEXT, *names)


def mapping(values: Raw) -> Raw:
    """Return the schema of a map."""
    return {"type": "object", "additionalProperties": values}


def array(items: Raw) -> Raw:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def atomic(items: Raw) -> Raw:
    """Return the schema of a list that is replaced as a whole."""
    return {**array(items), "x-kubernetes-list-type": "atomic"}


def keyed(items: Raw, *keys: str) -> Raw:
    """Return the schema of a list whose items are identified by their `keys`."""
    return {**array(items), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
