"""Durations as Go writes them: `1h30m`, `1.5s`, `-2m`, `0` (package time, ParseDuration)."""

from __future__ import annotations

import re
from typing import Final

from tink.golang.strconv import INT64_MAX, INT64_MIN

SECOND: Final = 10**9
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PART: Final = re.compile(r"(\d{0,40})(?:\.(\d{0,60}))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> int | None:
    """Return the nanoseconds of a duration; None if the text is malformed, or the value has more than 64 bits."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total = at = 0
    while at < len(rest):
        match = _PART.match(rest, at)
        if match is None or not (match[1] or match[2]):
            return None
        unit, fraction = _UNITS[match[3]], match[2] or ""
        total += int(match[1] or 0) * unit
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        at = match.end()
    total *= sign
    return total if rest and INT64_MIN <= total <= INT64_MAX else None
