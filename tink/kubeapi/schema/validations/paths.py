"""Paths of fields within a schema, as `fieldPath` of a rule and selectable fields name them: `.spec.ports['http']`.

Only fields and map keys; the path is checked against the schema. Source: ValidFieldPath in
k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/validation.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*?'", re.DOTALL)
_WORD = re.compile(r"[^.\[\]]+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


class FieldPathError(ValueError):
    """The path cannot be read, or leads to nothing; the message is Kubernetes'."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A path that a schema has: its steps, its text, and the schema that it leads to."""

    steps: tuple[str, ...]
    text: str
    schema: Mapping[str, Any]


def field_path(source: str, schema: Mapping[str, Any], *, brackets: bool = True) -> FieldPath:
    """Read a path. Raises FieldPathError."""
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
        if found[1] not in _ESCAPES:
            raise FieldPathError(f"invalid string literal: invalid escape char {found[0]}")
        return _ESCAPES[found[1]]

    return _ESCAPE.sub(replace, mark[1:-1])


def _below(schema: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], bool]:
    """Give the schema of a field or map entry, and whether it is a field."""
    if schema.get("properties"):
        found = schema["properties"].get(name)
        if found is None:
            raise FieldPathError("does not refer to a valid field")
        return found, True
    extra = schema.get("additionalProperties")
    if extra is None:
        raise FieldPathError("does not refer to a valid field")
    return (extra if isinstance(extra, Mapping) else {}), False
