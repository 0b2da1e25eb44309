"""Sprig's functions of durations. Those of dates are not here: `sprig.LEFT_OUT`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from tink.golang import strconv
from tink.golang.values import Value
from tink.template.signatures import ANY, Function, Functions, table
from tink.template.sprig.conversions import wrap64

_SECOND: Final = 10**9
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_PIECE: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_DURATION: Final = re.compile(rf"([+-]?)(0|(?:{_PIECE.pattern})+)", re.ASCII)
_STEPS: Final = (("y", 365 * 24 * 3600), ("mo", 30 * 24 * 3600), ("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1))


def _seconds(value: Value) -> str:
    """A number of seconds as Go shows a duration: 1h0m5s."""
    count = value if type(value) is int else 0
    if type(value) is str and re.fullmatch("[+-]?[0-9]{1,30}", value):
        count = max(strconv.INT64_MIN, min(strconv.INT64_MAX, int(value)))
    nanoseconds = wrap64(count * _SECOND)
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), _SECOND)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    shown = f"{seconds}" + (f".{rest:09d}".rstrip("0") if rest else "")
    if hours:
        return f"{sign}{hours}h{minutes}m{shown}s"
    return f"{sign}{minutes}m{shown}s" if minutes else f"{sign}{shown}s"


def _nanoseconds(text: str) -> int:
    """Go's time.ParseDuration; 0 for what is none."""
    if len(text) > 200 or not _DURATION.fullmatch(text):
        return 0
    total = sum(int(Decimal(number) * _UNITS[unit]) for number, unit in _PIECE.findall(text))
    if total > strconv.INT64_MAX:
        return 0
    return -total if text[0] == "-" else total


def _rounded(value: Value) -> str:
    """A duration to the largest unit of which it is more than one: 2h10m -> 2h."""
    duration = value if type(value) is int else _nanoseconds(value) if type(value) is str else 0
    for unit, seconds in _STEPS:
        if abs(duration) > seconds * _SECOND:
            return f"{abs(duration) // (seconds * _SECOND)}{unit}"
    return "0s"


DURATIONS: Final[Functions] = table(
    Function("duration", _seconds, (ANY,)),
    Function("durationRound", _rounded, (ANY,)),
)
