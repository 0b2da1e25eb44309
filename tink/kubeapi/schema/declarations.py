"""The CEL types of structural schemas, and paths of fields within a schema.

`declare` returns the type of `self` for the rules at a schema. Rules cannot see fields whose schema has no type
(x-kubernetes-preserve-unknown-fields). Names that are not CEL identifiers are escaped. The types contain sizes because
the estimated cost of a rule depends on them (k8s.io/apiserver, pkg/cel/common/schemas.go).

`field_path` reads the paths in `fieldPath` of a rule and in selectable fields, such as `.spec.ports['http']`: fields
and map keys only, checked against the schema (ValidFieldPath in k8s.io/apiextensions-apiserver,
pkg/apiserver/schema/cel/validation.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tink.errors import TinkedgeError
from tink.kubeapi.cel import types

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*?'", re.DOTALL)
_WORD = re.compile(r"[^.\[\]]+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class FieldPathError(TinkedgeError, ValueError):
    """The path is malformed or not in the schema. The message is Kubernetes'."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A path in a schema: its steps, its text, and the schema at its end."""

    steps: tuple[str, ...]
    text: str
    schema: Mapping[str, Any]


def field_path(source: str, schema: Mapping[str, Any], *, brackets: bool = True) -> FieldPath:
    """Read a path and check it against a schema. Raises FieldPathError."""
    steps: list[str] = []
    text = ""
    marks = _marks(source)
    for mark in marks:
        if mark == "[":
            if not brackets:
                raise FieldPathError("array notation is not allowed")
            name = _unquoted(_next(marks))
            schema, named = _below(schema, name)
            closing = _next(marks)
            if closing != "]":
                raise FieldPathError(f"expected ] but got {closing}")
        elif mark == ".":
            name = _next(marks)
            schema, named = _below(schema, name)
        else:
            raise FieldPathError(f"expected [ or . but got: {mark}")
        steps.append(name)
        text += (f".{name}" if text else name) if named else f"[{name}]"
    return FieldPath(tuple(steps), text, schema)


def _marks(source: str) -> Iterator[str]:
    at = 0
    while at < len(source):
        found = _QUOTED.match(source, at) if source[at] == "'" else _WORD.match(source, at)
        mark = found[0] if found else source[at:] if source[at] == "'" else source[at]
        at += len(mark)
        yield mark


def _next(marks: Iterator[str]) -> str:
    mark = next(marks, None)
    if mark is None:
        raise FieldPathError("unexpected end of JSON path")
    return mark


def _unquoted(mark: str) -> str:
    if len(mark) < 2 or not mark.startswith("'") or not mark.endswith("'"):
        raise FieldPathError(f"expected single quoted string but got {mark}")

    def replace(found: re.Match[str]) -> str:
        if found[1] not in _STRING_ESCAPES:
            raise FieldPathError(f"invalid string literal: invalid escape char {found[0]}")
        return _STRING_ESCAPES[found[1]]

    return _ESCAPE.sub(replace, mark[1:-1])


def _below(schema: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], bool]:
    """Return the schema of a field or map entry, and True if it is a field."""
    fields = schema.get("properties")
    found = fields.get(name) if fields else schema.get("additionalProperties")
    if found is None:
        raise FieldPathError("does not refer to a valid field")
    return (found if isinstance(found, Mapping) else {}), bool(fields)


Schema = Mapping[str, Any]

_SPECIAL = re.compile(r"__|[-./]")
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_IDENTIFIER = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*")

_MAX_RUNE = 4
"""Bytes of the longest character: maxLength counts characters, sizes count bytes."""


def escaped(name: str) -> str | None:
    """Return a property's name as rules write it, or None if no rule can write it.

    Source: k8s.io/apiserver, pkg/cel/escaping.go.
    """
    if name in types.KEYWORDS:
        return f"__{name}__"
    if not _IDENTIFIER.fullmatch(name):
        return None
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], name)


def declare(schema: Schema, *, root: bool, name: str = "self") -> types.CelType | None:
    """Return the CEL type of a schema, or None if rules cannot see its values.

    `root` is True for whole objects, also embedded ones: rules can always read their apiVersion, kind, metadata.name
    and metadata.generateName. `name` makes the names of object types unique.
    """
    if schema.get("x-kubernetes-int-or-string"):
        limit = _max_bytes(schema)
        return types.DynType(types.MAX_REQUEST_BYTES - 2 if limit is None else limit)
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
            return types.BOOL
        case "number":
            return types.DOUBLE
        case "integer":
            return types.INT
    return None


def part_type(kind: types.CelType | None, step: str) -> types.CelType | None:
    """Return the type of a field (`step` is `.name`), of items (`[]`) or map values (`{}`), or None if it has none."""
    if isinstance(kind, types.ObjectType) and step.startswith("."):
        found = kind.fields.get(escaped(step[1:]) or "")
        return None if found is None else found.type
    if isinstance(kind, types.ListType) and step == "[]":
        return kind.element
    return kind.value if isinstance(kind, types.MapType) and step == "{}" else None


def embedded(schema: Schema) -> bool:
    """Return True if the values of a schema are whole objects."""
    return bool(schema.get("x-kubernetes-embedded-resource"))


def _limit(schema: Schema, key: str) -> int | None:
    limit = schema.get(key)
    return None if limit is None else max(int(limit), 0)


def _max_bytes(schema: Schema) -> int | None:
    limit = _limit(schema, "maxLength")
    return None if limit is None else limit * _MAX_RUNE


def _list(schema: Schema, name: str) -> types.CelType | None:
    items = schema.get("items")
    element = None if items is None else declare(items, root=embedded(items), name=f"{name}.@idx")
    if element is None:
        return None
    kind = schema.get("x-kubernetes-list-type") or "atomic"
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    return types.ListType(element, _limit(schema, "maxItems"), kind, keys)


def _object(schema: Schema, name: str) -> types.CelType | None:
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        value = declare(extra, root=embedded(extra), name=f"{name}.@elem")
        return None if value is None else types.MapType(types.STRING, value, _limit(schema, "maxProperties"))
    required = set(schema.get("required") or ())
    fields: dict[str, types.ObjectField] = {}
    for key, child in (schema.get("properties") or {}).items():
        known = escaped(key)
        if known is None:
            continue
        kind = declare(child, root=embedded(child), name=f"{name}.{known}")
        if kind is not None:
            fields[known] = types.ObjectField(kind, key, required=key in required and child.get("default") is None)
    return types.ObjectType(name, fields)


def _string(schema: Schema) -> types.CelType:
    match schema.get("format"):
        case "byte":
            return types.BytesType(_limit(schema, "maxLength"))
        case "duration":
            return types.DURATION
        case "date":
            return types.DATE
        case "date-time":
            return types.TIMESTAMP
    if "maxLength" in schema:
        return types.StringType(_max_bytes(schema))
    if schema.get("enum"):
        return types.StringType(
            max((len(item.encode()) for item in schema["enum"] if isinstance(item, str)), default=0)
        )
    return types.STRING


_TEXT = {"type": "string"}
_METADATA = {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}}


def _with_metadata(schema: Schema) -> Schema:
    """Add the fields that every object has, unless the schema declares all of them."""
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
