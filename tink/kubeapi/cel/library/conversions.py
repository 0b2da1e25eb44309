"""Timestamps, durations, and the conversions between types: `int(x)`, `string(x)` and so on.

Timestamps are RFC 3339, durations are Go's (`1h30m`, `1.5s`). Limits and texts are those of CEL in Go.
"""

import datetime
import re
import zoneinfo
from collections.abc import Callable
from typing import Any

from tink.golang import durations, strconv
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import MAX_INT, MAX_UINT, MIN_INT, Duration, Timestamp, UInt, double_text

NANO = 10**9
_MIN_SECONDS = -62135596800
_MAX_SECONDS = 253402300799
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,40}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_LOOSE = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII)
_WORDY = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-zµμ]{1,12})")
_WORDS = {
    **dict.fromkeys(("ns", "nano", "nanosecond"), 1),
    **dict.fromkeys(("us", "µs", "μs", "micro", "microsecond"), 10**3),
    **dict.fromkeys(("ms", "milli", "millisecond"), 10**6),
    **dict.fromkeys(("s", "sec", "second"), NANO),
    **dict.fromkeys(("m", "min", "minute"), 60 * NANO),
    **dict.fromkeys(("h", "hr", "hour"), 3600 * NANO),
    **dict.fromkeys(("d", "day"), 86400 * NANO),
    **dict.fromkeys(("w", "week", "wk"), 604800 * NANO),
}


def _instant(match: re.Match[str]) -> Timestamp | None:
    year, month, day, hour, minute, second = (int(match.group(at)) for at in range(1, 7))
    zone = match.group(8) or "Z"
    offset = 0
    if zone not in ("Z", "z"):
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        if hours > 24 or minutes > 59:
            return None
        offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
    try:
        at = datetime.datetime(year or 4, month, day, hour, minute, second, tzinfo=datetime.UTC)
    except ValueError:
        return None
    if year == 0:  # before CEL's first year; a leap year as year 4 is
        return Timestamp((_MIN_SECONDS - 366 * 86400 - offset * 60) * NANO, offset)
    since = at - _EPOCH
    fraction = int((match.group(7) or "").ljust(9, "0")[:9])
    return Timestamp((since.days * 86400 + since.seconds - offset * 60) * NANO + fraction, offset)


def parse_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339. Raises EvaluationError for other text, and outside the years 1 to 9999."""
    match = _RFC3339.fullmatch(text)
    found = _instant(match) if match else None
    if found is None:
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Timestamp'")
    return checked(found.ns, found.offset)


def checked(ns: int, offset: int = 0) -> Timestamp:
    """Return a timestamp. Raises EvaluationError outside the years 1 to 9999."""
    if not _MIN_SECONDS <= ns // NANO <= _MAX_SECONDS:
        raise EvaluationError("timestamp overflow")
    return Timestamp(ns, offset)


def span(ns: int) -> Duration:
    """Return a duration. Raises EvaluationError if it exceeds 64 bits."""
    if not MIN_INT <= ns <= MAX_INT:
        raise EvaluationError("integer overflow")
    return Duration(ns)


def parse_duration(text: str) -> Duration:
    """Parse Go's duration text. Raises EvaluationError for other text."""
    ns = durations.parse_duration(text)
    if ns is None:
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Duration'")
    return Duration(ns)


def json_duration(text: Any) -> Any:
    """Convert a string of format duration. Kubernetes also accepts words there ('2 days')."""
    if type(text) is not str:
        return text
    ns = durations.parse_duration(text)
    if ns is None:
        match = _WORDY.fullmatch(text)
        unit = match and (_WORDS.get(match.group(2).lower()) or _WORDS.get(match.group(2).lower().removesuffix("s")))
        if not match or not unit:
            raise EvaluationError(f"Invalid duration {text}: unable to parse {text} as duration")
        ns = int(float(match.group(1)) * unit)
    return Duration(ns)


def json_timestamp(text: Any) -> Any:
    """Convert a string of format date-time or date."""
    if type(text) is not str:
        return text
    match = _LOOSE.fullmatch(text) or _LOOSE.fullmatch(f"{text}T00:00:00Z")
    found = _instant(match) if match else None
    if found is None:
        raise EvaluationError(f"Invalid date-time formatted string {text}")
    return found


def duration_text(value: Duration) -> str:
    """Return the seconds with as many decimals as needed: `3601.5s`."""
    sign, ns = ("-", -value.ns) if value.ns < 0 else ("", value.ns)
    seconds = repr(ns // NANO + (ns % NANO) / NANO)
    if "e" in seconds:
        whole, fraction = divmod(ns, NANO)
        seconds = f"{whole}.{fraction:09d}"
    return f"{sign}{seconds.rstrip('0').rstrip('.') if '.' in seconds else seconds}s"


def _moment(value: Timestamp, offset: int) -> datetime.datetime:
    seconds = value.ns // NANO + offset * 60
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)  # noqa: DTZ001 - already shifted


def timestamp_text(value: Timestamp) -> str:
    """Return RFC 3339 with the original time zone."""
    try:
        at = _moment(value, value.offset)
    except OverflowError:
        raise EvaluationError("timestamp overflow") from None
    fraction = f".{value.ns % NANO:09d}".rstrip("0").rstrip(".")
    if not value.offset:
        zone = "Z"
    else:
        minutes = abs(value.offset)
        zone = f"{'-' if value.offset < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{at.year:04d}-{at.month:02d}-{at.day:02d}T{at:%H:%M:%S}{fraction}{zone}"


def _number(text: str) -> int:
    """Parse an integer of an offset like Go."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        shown = text.replace("\\", "\\\\").replace('"', '\\"')
        raise EvaluationError(f'strconv.Atoi: parsing "{shown}": invalid syntax')
    return int(text)


_CYCLE = 146097 * 86400 * NANO
"""400 years, after which the calendar repeats."""


def _year_of(value: Timestamp, zone: str) -> tuple[datetime.datetime, int]:
    """Return the local time, and the years to add to it where Python's calendar ends before CEL's."""
    try:
        return _in_zone(value, zone), 0
    except OverflowError:
        years = 400 if value.ns < 0 else -400
        shifted = Timestamp(value.ns + (_CYCLE if value.ns < 0 else -_CYCLE))
        return _in_zone(shifted, zone), -years


def _in_zone(value: Timestamp, zone: str) -> datetime.datetime:
    """Return the local time in a named zone or at an offset like +02:00."""
    head, colon, tail = zone.partition(":")
    try:
        if colon:
            hours, minutes = _number(head), _number(tail)
            offset = hours * 60 - minutes if zone[0] == "-" else hours * 60 + minutes
            return _moment(value, offset)
        if zone in ("", "UTC"):
            return _moment(value, 0)
        seconds = value.ns // NANO
        utc = _EPOCH + datetime.timedelta(seconds=seconds)
        return utc.astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {zone}") from None


_PARTS: dict[str, Callable[[datetime.datetime], int]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDate": lambda at: at.day,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
}
_SPANS = {"getHours": 3600 * NANO, "getMinutes": 60 * NANO, "getSeconds": NANO, "getMilliseconds": 10**6}


def part(function: str, value: Any, zone: str = "UTC") -> int:
    """Return a part of a timestamp in a time zone, or a whole duration in a unit.

    Raises EvaluationError for other types and unknown zones.
    """
    if type(value) is Duration:
        if function not in _SPANS:
            raise EvaluationError("no such overload")
        whole = abs(value.ns) // _SPANS[function]
        return whole if value.ns >= 0 else -whole
    if type(value) is not Timestamp or type(zone) is not str:
        raise EvaluationError("no such overload")
    if function == "getMilliseconds":
        return value.ns % NANO // 10**6
    at, years = _year_of(value, zone)
    return _PARTS[function](at) + (years if function == "getFullYear" else 0)


def add(a: Any, b: Any) -> Timestamp | Duration:
    """Add a duration to a duration or a timestamp."""
    if type(a) is Duration and type(b) is Duration:
        return span(a.ns + b.ns)
    if type(a) is Duration and type(b) is Timestamp:
        return checked(a.ns + b.ns, b.offset)
    if type(a) is Timestamp and type(b) is Duration:
        return checked(a.ns + b.ns, a.offset)
    raise EvaluationError("no such overload")


def subtract(a: Any, b: Any) -> Timestamp | Duration:
    """Subtract two timestamps, two durations, or a duration from a timestamp."""
    if type(a) is type(b) and type(a) in (Duration, Timestamp):
        return span(a.ns - b.ns)
    if type(a) is Timestamp and type(b) is Duration:
        return checked(a.ns - b.ns, a.offset)
    raise EvaluationError("no such overload")


_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_UNSIGNED = re.compile(r"[0-9]{1,40}", re.ASCII)
_INFINITE = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE)
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE = frozenset(("0", "f", "F", "false", "FALSE", "False"))


def _no_conversion(to: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from 'string' to '{to}'")


def signed(value: int) -> int:
    """Return a signed number. Raises EvaluationError if it exceeds 64 bits."""
    if not MIN_INT <= value <= MAX_INT:
        raise EvaluationError("integer overflow")
    return value


def unsigned(value: int) -> UInt:
    """Return an unsigned number. Raises EvaluationError if it exceeds 64 bits."""
    if not 0 <= value <= MAX_UINT:
        raise EvaluationError("unsigned integer overflow")
    return UInt(value)


def double_to_int(value: float) -> int:
    """Round towards zero. Raises EvaluationError outside the signed 64-bit integers."""
    if not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def double_to_uint(value: float) -> UInt:
    """Round towards zero. Raises EvaluationError if negative or too large."""
    if not 0.0 <= value < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return UInt(int(value))


def string_to_int(text: str) -> int:
    """Parse a decimal number with an optional sign."""
    if len(text) < 19 and text.isdigit() and text.isascii():
        return int(text)
    if not _INTEGER.fullmatch(text) or not MIN_INT <= int(text) <= MAX_INT:
        raise _no_conversion("int")
    return int(text)


def string_to_uint(text: str) -> UInt:
    """Parse a decimal number without a sign."""
    if not _UNSIGNED.fullmatch(text) or int(text) > MAX_UINT:
        raise _no_conversion("uint")
    return UInt(int(text))


def string_to_double(text: str) -> float:
    """Parse a number like Go. Raises EvaluationError if it is out of range."""
    value = float(text) if _INFINITE.fullmatch(text) else strconv.parse_float(text)
    if value is None:
        raise _no_conversion("double")
    return value


def string_to_bool(text: str) -> bool:
    """Parse the words for true and false that Go accepts."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _no_conversion("bool")


def bytes_to_string(data: bytes) -> str:
    """Decode UTF-8. Raises EvaluationError if it is invalid."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def to_text(value: Any) -> str:
    """Return a scalar as `string()` writes it."""
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
