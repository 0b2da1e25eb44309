"""Sprig's functions of durations. Those of dates are not here: `sprig.LEFT_OUT`."""

from __future__ import annotations

import re
from typing import Final

from tink.golang import strconv
from tink.golang.durations import SECOND, parse_duration
from tink.golang.values import Value
from tink.template.signatures import ANY, Function, Functions, table
from tink.template.sprig.conversions import wrap64

_STEPS: Final = (("y", 365 * 24 * 3600), ("mo", 30 * 24 * 3600), ("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1))


def _seconds(value: Value) -> str:
    """A number of seconds as Go shows a duration: 1h0m5s."""
    count = value if type(value) is int else 0
    if type(value) is str and re.fullmatch("[+-]?[0-9]{1,30}", value):
        count = max(strconv.INT64_MIN, min(strconv.INT64_MAX, int(value)))
    nanoseconds = wrap64(count * SECOND)
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), SECOND)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    shown = f"{seconds}" + (f".{rest:09d}".rstrip("0") if rest else "")
    if hours:
        return f"{sign}{hours}h{minutes}m{shown}s"
    return f"{sign}{minutes}m{shown}s" if minutes else f"{sign}{shown}s"


def _rounded(value: Value) -> str:
    """A duration to the largest unit of which it is more than one: 2h10m -> 2h."""
    duration = value if type(value) is int else (parse_duration(value) or 0) if type(value) is str else 0
    for unit, seconds in _STEPS:
        if abs(duration) > seconds * SECOND:
            return f"{abs(duration) // (seconds * SECOND)}{unit}"
    return "0s"


DURATIONS: Final[Functions] = table(
    Function("duration", _seconds, (ANY,)),
    Function("durationRound", _rounded, (ANY,)),
)
