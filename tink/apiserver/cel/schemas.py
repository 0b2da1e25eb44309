"""From an OpenAPI v3 schema, as CustomResourceDefinitions have it, to the types that its rules see
(k8s.io/apiserver, pkg/cel/common/schemas.go)."""

import re
from collections.abc import Mapping
from typing import Any

from .types import (
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

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED = re.compile(r"__|[./-]")


def escaped(name: str) -> str | None:
    """The name under which expressions know a JSON key; None if they cannot know it."""
    if not _NAME.fullmatch(name):
        return None
    if name in KEYWORDS:
        return f"__{name}__"
    return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], name)


def _root(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with what every resource has."""
    string = {"type": "string"}
    meta = {"type": "object", "properties": {"name": string, "generateName": string}}
    given = schema.get("properties") or {}
    own = given.get("metadata", {})
    if own.get("type") == "object" and {"name", "generateName"} <= set(own.get("properties") or {}):
        meta = own
    return {**schema, "properties": {**given, "kind": string, "apiVersion": string, "metadata": meta}}


def _string(schema: Mapping[str, Any]) -> Type:
    limit = schema.get("maxLength")
    form = schema.get("format")
    if form == "byte":
        return BytesType(limit)
    if form in ("date", "date-time", "duration"):
        return {"date": DATE, "date-time": TIMESTAMP, "duration": DURATION}[form]
    if limit is not None:
        return StringType(max(limit, 0) * 4)
    words = [word for word in schema.get("enum") or () if isinstance(word, str)]
    return StringType(max(map(len, map(str.encode, words)), default=0)) if schema.get("enum") else STRING


def _object(schema: Mapping[str, Any], name: str) -> Type | None:
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        value = schema_type(more, name=f"{name}.@elem", root=bool(more.get("x-kubernetes-embedded-resource")))
        return MapType(STRING, value, schema.get("maxProperties")) if value else None
    required = set(schema.get("required") or ())
    fields: dict[str, Field] = {}
    for key, child in (schema.get("properties") or {}).items():
        known = escaped(key)
        embedded = bool(child.get("x-kubernetes-embedded-resource"))
        t = schema_type(child, name=f"{name}.{known}", root=embedded) if known else None
        if known and t:
            needed = key in required and child.get("default") is None
            fields[known] = Field(t, key, needed)
    return ObjectType(name, fields)


def schema_type(schema: Mapping[str, Any], *, name: str, root: bool = False) -> Type | None:
    """The type of values of a schema, named `name` if they are objects; None if rules cannot see them.

    `root` adds `kind`, `apiVersion` and `metadata.name`, as for a resource.
    """
    if schema.get("x-kubernetes-int-or-string"):
        limit = schema.get("maxLength")
        return DynType(max(limit, 0) * 4 if limit is not None else MAX_REQUEST_BYTES - 2)
    if root:
        schema = _root(schema)
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        if not isinstance(items, Mapping):
            return None
        element = schema_type(items, name=f"{name}.@idx", root=bool(items.get("x-kubernetes-embedded-resource")))
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        of_kind = schema.get("x-kubernetes-list-type") or "atomic"
        return ListType(element, schema.get("maxItems"), of_kind, keys) if element else None
    if kind == "object":
        return _object(schema, name)
    if kind == "string":
        return _string(schema)
    return {"boolean": BOOL, "integer": INT, "number": DOUBLE}.get(str(kind))
