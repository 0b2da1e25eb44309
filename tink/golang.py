"""Values as Go writes them: people and tools compare messages with those of Kubernetes. Imports nothing of ours.

Sources: Go's packages fmt (%q, %v, %#v, %T), strconv and encoding/json. Values are JSON's.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_SHOWN = 1024
"""Longest text of a value in a message, in characters."""

_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPED_IN_JSON = re.compile("[<>&\u2028\u2029]")


def quote(text: str) -> str:
    """Write a text as %q does: in double quotes, with escapes for what cannot be printed."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{"".join(map(_quoted_char, text))}"'


def _quoted_char(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def number(value: float, exponent_from: int = 21) -> str:
    """Write a number with as few digits as tell it; from 10 to the power of `exponent_from` on with an exponent.

    That is 21 for encoding/json, and 6 for %g.
    """
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if value < 0 else ""
    if not digits:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if not -4 <= point - 1 < exponent_from:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1:+03d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"


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
