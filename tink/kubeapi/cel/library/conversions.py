"""Conversions between types: `int(x)`, `string(x)` and so on, with the texts and limits of CEL in Go."""

import re
from typing import Any

from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.library.times import NANO, checked, duration_text, timestamp_text
from tink.kubeapi.cel.values import MAX_INT, MAX_UINT, MIN_INT, Duration, Timestamp, UInt, double_text

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_UNSIGNED = re.compile(r"[0-9]{1,40}", re.ASCII)
_DOUBLE = re.compile(
    r"[+-]?(?:inf(?:inity)?|nan|[0-9]{1,400}(?:\.[0-9]{0,400})?(?:e[+-]?[0-9]{1,9})?|\.[0-9]{1,400}(?:e[+-]?[0-9]{1,9})?)",
    re.ASCII | re.IGNORECASE,
)
_HEX_DOUBLE = re.compile(r"[+-]?0x[0-9a-f]{0,40}(?:\.[0-9a-f]{0,40})?p[+-]?[0-9]{1,5}", re.ASCII | re.IGNORECASE)
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])_(?=[0-9])")
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE = frozenset(("0", "f", "F", "false", "FALSE", "False"))


def _no_conversion(to: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from 'string' to '{to}'")


def signed(value: int) -> int:
    """The number, within 64 bits. Raises EvaluationError: outside of them."""
    if not MIN_INT <= value <= MAX_INT:
        raise EvaluationError("integer overflow")
    return value


def unsigned(value: int) -> UInt:
    """The number, unsigned. Raises EvaluationError: outside of 64 bits."""
    if not 0 <= value <= MAX_UINT:
        raise EvaluationError("unsigned integer overflow")
    return UInt(value)


def double_to_int(value: float) -> int:
    """Towards zero. Raises EvaluationError: outside the numbers that a double can tell apart from 64-bit integers."""
    if not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def double_to_uint(value: float) -> UInt:
    """Towards zero. Raises EvaluationError: negative or too large."""
    if not 0.0 <= value < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return UInt(int(value))


def string_to_int(text: str) -> int:
    """A decimal number with an optional sign."""
    if len(text) < 19 and text.isdigit() and text.isascii():
        return int(text)
    if not _INTEGER.fullmatch(text) or not MIN_INT <= int(text) <= MAX_INT:
        raise _no_conversion("int")
    return int(text)


def string_to_uint(text: str) -> UInt:
    """A decimal number without a sign."""
    if not _UNSIGNED.fullmatch(text) or int(text) > MAX_UINT:
        raise _no_conversion("uint")
    return UInt(int(text))


def string_to_double(text: str) -> float:
    """A number as Go reads it; out of range is an error."""
    if _HEX_DOUBLE.fullmatch(text):
        try:
            return float.fromhex(text)
        except (ValueError, OverflowError):
            raise _no_conversion("double") from None
    text = _BETWEEN_DIGITS.sub("", text)
    if not _DOUBLE.fullmatch(text):
        raise _no_conversion("double")
    value = float(text)
    if value in (float("inf"), float("-inf")) and "n" not in text.lower():
        raise _no_conversion("double")
    return value


def string_to_bool(text: str) -> bool:
    """The words for true and false that Go takes."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _no_conversion("bool")


def bytes_to_string(data: bytes) -> str:
    """UTF-8 to a string."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def int_to_timestamp(seconds: int) -> Timestamp:
    """Seconds since 1970."""
    return checked(seconds * NANO)


def to_text(value: Any) -> str:
    """A scalar as `string()` writes it."""
    kind = type(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return double_text(value)
    if kind is Timestamp:
        return timestamp_text(value)
    if kind is Duration:
        return duration_text(value)
    return str(int(value)) if kind is UInt else str(value)
