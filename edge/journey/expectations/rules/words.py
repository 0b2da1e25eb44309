"""How rules put numbers and names into sentences."""

from __future__ import annotations

from typing import Final

from edge.journey.expectations.facts import Facts
from edge.journey.expectations.story import Boot

API_CHECKS: Final = ("is the Kubernetes API up, and does this host reach it ('tinkedge doctor')?",)
"""Checks for a Kubernetes API that does not answer."""
_DAY = 86_400
_NTH = {2: "second", 3: "third"}


def seconds(since: float, now: float) -> str:
    """A duration, such as "8 s", "3 min" or "9 years"."""
    took = max(0.0, now - since)
    for unit, length, most in ((" s", 1, 120), (" min", 60, 7200), (" h", 3600, 2 * _DAY), (" days", _DAY, 730 * _DAY)):
        if took < most:
            return f"{took / length:.0f}{unit}"
    return f"{took / _DAY / 365.25:.0f} years"


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def nth(count: int) -> str:
    """The second, the third, the 4th."""
    return _NTH.get(count, f"{count}th")


def address(facts: Facts) -> str:
    """The machine's, or words for one that is not known."""
    return facts.registered.ip if facts.registered is not None and facts.registered.ip else "an address"


def overdue(boot: Boot, facts: Facts) -> bool:
    """Whether the next milestone is late: by the clock."""
    limit = facts.limit(boot.at) if boot.at is not None else 0.0
    return limit > 0 and facts.now - boot.since >= limit


def size(count: float) -> str:
    """Bytes, for people."""
    return (
        f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:.0f} bytes"
    )
