"""Which CEL type a structural schema is: what a rule at that schema sees as `self`.

Fields whose schema says nothing about their type (x-kubernetes-preserve-unknown-fields) do not exist for rules; names
that are no CEL identifiers are escaped. Sizes go into the types, because the estimate of what a rule may cost depends
on them (k8s.io/apiserver, pkg/cel/common/schemas.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tink.kubeapi.cel import (
    BOOL,
    DATE,
    DOUBLE,
    DURATION,
    INT,
    KEYWORDS,
    MAX_REQUEST_BYTES,
    STRING,
    TIMESTAMP,
    BytesType,
    DynType,
    Field,
    ListType,
    MapType,
    ObjectType,
    StringType,
    Type,
)

Schema = Mapping[str, Any]

_SPECIAL = re.compile(r"__|[-./]")
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_IDENTIFIER = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*")

_MAX_RUNE = 4
"""Bytes of the longest character: maxLength counts characters, sizes count bytes."""


def escaped(name: str) -> str | None:
    """Write a property's name as rules write it; None when it cannot be written.

    Source: k8s.io/apiserver, pkg/cel/escaping.go.
    """
    if name in KEYWORDS:
        return f"__{name}__"
    if not _IDENTIFIER.fullmatch(name):
        return None
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], name)


def declare(schema: Schema, *, root: bool, name: str = "self") -> Type | None:
    """Give the CEL type of a schema; None when rules cannot see its values.

    `root` is true for whole objects, embedded ones too: their apiVersion, kind, metadata.name and
    metadata.generateName can always be read. `name` makes the names of object types unique.
    """
    if schema.get("x-kubernetes-int-or-string"):
        limit = _bytes(schema)
        return DynType(MAX_REQUEST_BYTES - 2 if limit is None else limit)
    if root:
        schema = _with_metadata(schema)
    match schema.get("type"):
        case "array":
            return _list(schema, name)
        case "object":
            return _object(schema, name)
        case "string":
            return _string(schema)
        case "boolean":
            return BOOL
        case "number":
            return DOUBLE
        case "integer":
            return INT
    return None


def embedded(schema: Schema) -> bool:
    """Whether the values of a schema are whole objects."""
    return bool(schema.get("x-kubernetes-embedded-resource"))


def _bytes(schema: Schema) -> int | None:
    limit = schema.get("maxLength")
    return None if limit is None else max(int(limit), 0) * _MAX_RUNE


def _limit(schema: Schema, key: str) -> int | None:
    limit = schema.get(key)
    return None if limit is None else max(int(limit), 0)


def _list(schema: Schema, name: str) -> Type | None:
    items = schema.get("items")
    element = None if items is None else declare(items, root=embedded(items), name=f"{name}.@idx")
    if element is None:
        return None
    kind = schema.get("x-kubernetes-list-type") or "atomic"
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    return ListType(element, _limit(schema, "maxItems"), kind, keys)


def _object(schema: Schema, name: str) -> Type | None:
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        value = declare(extra, root=embedded(extra), name=f"{name}.@elem")
        return None if value is None else MapType(STRING, value, _limit(schema, "maxProperties"))
    required = set(schema.get("required") or ())
    fields: dict[str, Field] = {}
    for key, child in (schema.get("properties") or {}).items():
        known = escaped(key)
        if known is None:
            continue
        kind = declare(child, root=embedded(child), name=f"{name}.{known}")
        if kind is not None:
            fields[known] = Field(kind, key, required=key in required and child.get("default") is None)
    return ObjectType(name, fields)


def _string(schema: Schema) -> Type:
    match schema.get("format"):
        case "byte":
            return BytesType(_limit(schema, "maxLength"))
        case "duration":
            return DURATION
        case "date":
            return DATE
        case "date-time":
            return TIMESTAMP
    if "maxLength" in schema:
        return StringType(_bytes(schema))
    if schema.get("enum"):
        return StringType(max((len(item.encode()) for item in schema["enum"] if isinstance(item, str)), default=0))
    return STRING


_TEXT = {"type": "string"}
_METADATA = {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}}


def _with_metadata(schema: Schema) -> Schema:
    """Add what every object has; a schema that says all of it itself stays as it is."""
    own = schema.get("properties") or {}
    metadata = own.get("metadata") or {}
    inner = metadata.get("properties") or {}
    says_all = metadata.get("type") == "object" and all(
        (of.get(key) or {}).get("type") == "string"
        for of, key in ((own, "kind"), (own, "apiVersion"), (inner, "name"), (inner, "generateName"))
    )
    if says_all:
        return schema
    return {**schema, "properties": {**own, "kind": _TEXT, "apiVersion": _TEXT, "metadata": _METADATA}}
