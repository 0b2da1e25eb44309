"""JSON values as Go writes them in messages, which people and tools compare with those of Kubernetes.

Sources: Go's packages fmt (%v, %#v, %T) and encoding/json.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tink.golang.strconv import format_float, quote

MAX_SHOWN = 1024
"""Longest text of a value in a message, in characters."""

_ESCAPED_IN_JSON = re.compile("[<>&\u2028\u2029]")


def number(value: float) -> str:
    """Write a number with as few digits as tell it, and with an exponent from 1e+21 on (encoding/json)."""
    if isinstance(value, int):
        return str(value)
    usual = not value or 1e-4 <= abs(value) < 1e21
    return format_float(value, "f" if usual else "e")


def to_json(value: Any) -> str:
    """Write a value as encoding/json does: no spaces, and <, > and & escaped.

    Dictionaries are written in their order: structures of Go have a fixed one; of maps the keys are to be sorted.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def bad_value(value: Any) -> str:
    """Write a value as a field error repeats it (k8s.io/apimachinery, pkg/util/validation/field, Error.ErrorBody)."""
    if isinstance(value, str):
        return quote(value)
    return number(value) if isinstance(value, float) else to_json(_sorted(value))


def plain(value: Any) -> str:
    """Write a value as %v does, cut when it is very long."""
    return cut(_plain(value))


def syntax(value: Any) -> str:
    """Write a value as %#v does, cut when it is very long."""
    return cut(_syntax(value))


def cut(text: str, limit: int = MAX_SHOWN) -> str:
    """Cut a text that is longer than a message should repeat, in characters."""
    return text if len(text) <= limit else text[:limit] + "..."


def _plain(value: Any) -> str:
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_plain(value[key])}" for key in sorted(value)) + "]"
    return "[" + " ".join(map(_plain, value)) + "]" if isinstance(value, list) else str(value)


def _syntax(value: Any) -> str:
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "map[string]interface {}{" + ", ".join(f"{quote(k)}:{_syntax(value[k])}" for k in sorted(value)) + "}"
    return "[]interface {}{" + ", ".join(map(_syntax, value)) + "}" if isinstance(value, list) else _plain(value)


_TYPES = ((bool, "bool"), (int, "int64"), (float, "float64"), (str, "string"), (list, "[]interface {}"))


def type_name(value: Any) -> str:
    """Name the type of a decoded JSON value as %T does."""
    if isinstance(value, dict):
        return "map[string]interface {}"
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "<nil>")


def json_kind(value: Any) -> str:
    """Name the kind of a JSON value as the decoder of encoding/json does: `cannot unmarshal <kind> into`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
