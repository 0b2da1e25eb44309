"""What Kubernetes says when JSON does not fit one of its own Go types (encoding/json: UnmarshalTypeError). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tink.apiserver.errors import FieldError

_SEEN = {"integer": "number", "number": "number", "boolean": "bool", "null": "null"}
_BAD = re.compile(r'Invalid value: "((?:[^"\\]|\\.)*)"')
_FORMATS = {"int32": "int32", "int64": "int64", "date-time": "v1.Time", "byte": "[]uint8"}


def mistyped(kind: str, openapi: Mapping[str, Any], error: FieldError) -> str:
    """Say of a wrong type what Go's decoder says of it. `openapi` is the schema of the kind."""
    schema: Mapping[str, Any] = openapi
    steps = [step for step in re.split(r"[.\[\]]+", error.field) if step]
    for step in steps:
        if step.isdigit() and "items" in schema:
            schema = schema["items"]
        else:
            schema = (schema.get("properties") or {}).get(step) or schema.get("additionalProperties") or {}
    found = _BAD.match(error.message)
    value = found.group(1) if found is not None else ""
    wanted = schema.get("format", "")
    if "body must be of type date-time" in error.message:
        return f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
    if wanted == "byte" and "body must be of type byte" in error.message:
        return f"illegal base64 data at input byte {_first_bad(value)}"
    path = ".".join(step for step in steps if not step.isdigit())
    return (
        f"json: cannot unmarshal {_SEEN.get(value, value)} into Go struct field {kind}.{path} of type {go_type(schema)}"
    )


def go_type(schema: Any) -> str:
    """Name the Go type that a schema of one of Kubernetes' own types stands for."""
    if not isinstance(schema, Mapping):
        return "interface {}"
    match schema.get("type"):
        case "array":
            return f"[]{go_type(schema.get('items'))}"
        case "object":
            values = schema.get("additionalProperties")
            return f"map[string]{go_type(values)}" if values is not None else "struct"
        case "boolean":
            return "bool"
        case "integer":
            return _FORMATS.get(schema.get("format", ""), "int64")
        case "number":
            return "float64"
    return _FORMATS.get(schema.get("format", ""), "string")


def _first_bad(text: str) -> int:
    """Where base64 text stops making sense, in bytes."""
    for index, letter in enumerate(text):
        if not (letter.isascii() and (letter.isalnum() or letter in "+/")):
            return index
    return len(text) - len(text) % 4
