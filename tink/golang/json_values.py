"""JSON values as Go writes them in messages, because people and tools compare messages with those of Kubernetes.

Source: Go's package encoding/json.
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
    """Return a number with the fewest digits that identify it, and with an exponent from 1e+21 on (encoding/json)."""
    if isinstance(value, int):
        return str(value)
    usual = not value or 1e-4 <= abs(value) < 1e21
    return format_float(value, "f" if usual else "e")


def to_json(value: Any) -> str:
    """Write a value as encoding/json does: no spaces, and <, > and & escaped.

    Dictionaries are written in their order, because Go's structures have a fixed one. Sort the keys of maps before.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def marshal(value: Any) -> str:
    """Write a value as json.Marshal does: as `to_json`, with keys in order, and numbers as short as they can be."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(key)}:{marshal(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(marshal, value)) + "]"
    if not isinstance(value, float):
        return to_json(value)
    usual = not value or 1e-6 <= abs(value) < 1e21
    # encode.go, floatEncoder: 1e-07 is written as 1e-7.
    return re.sub(r"e([+-])0", r"e\1", format_float(value, "f" if usual else "e"))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def bad_value(value: Any) -> str:
    """Write a value as a field error repeats it (k8s.io/apimachinery, pkg/util/validation/field, Error.ErrorBody)."""
    if isinstance(value, str):
        return quote(value)
    return number(value) if isinstance(value, float) else to_json(_sorted(value))


def cut(text: str, limit: int = MAX_SHOWN) -> str:
    """Cut a text that is longer than a message should repeat, in characters."""
    return text if len(text) <= limit else text[:limit] + "..."


def json_kind(value: Any) -> str:
    """Name the kind of a JSON value as the decoder of encoding/json does: `cannot unmarshal <kind> into`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
