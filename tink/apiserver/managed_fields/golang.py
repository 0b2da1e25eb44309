"""Values as Go prints them: error messages of the real server show them in this form (package fmt, %T, %v, %#v)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

MAX_SHOWN = 1024
"""Longest text of a value in a message, in characters."""


def type_name(value: Any) -> str:
    """Name the type of a decoded JSON value (%T). Apply configurations come as YAML, whose numbers are all floats."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "float64"
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "map[string]interface {}"
    return "[]interface {}" if isinstance(value, list) else "<nil>"


def plain(value: Any) -> str:
    """Write a value as %v does."""
    return _cut(_plain(value))


def syntax(value: Any) -> str:
    """Write a value as %#v does."""
    return _cut(_syntax(value))


def quoted(text: str) -> str:
    """Write a text as %q does."""
    return orjson.dumps(text).decode()


def quoted_list(texts: Sequence[str]) -> str:
    """Write a list of texts as %q does."""
    return "[" + " ".join(map(quoted, texts)) + "]"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def _number(value: float) -> str:
    return str(int(value)) if abs(value) < 1e21 and value == int(value) else repr(value)


def _plain(value: Any) -> str:
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_plain(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(_plain, value)) + "]"
    return str(value)


def _syntax(value: Any) -> str:
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "map[string]interface {}{" + ", ".join(f"{quoted(k)}:{_syntax(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(map(_syntax, value)) + "}"
    return _plain(value)
