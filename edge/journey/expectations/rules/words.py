"""How rules put numbers and names into sentences."""

from __future__ import annotations

from edge.journey.expectations.facts import Facts
from edge.journey.expectations.story import Boot

_NTH = {2: "second", 3: "third"}


def seconds(since: float, now: float) -> str:
    """A duration, such as "8 s" or "3 min"."""
    took = max(0.0, now - since)
    return f"{took:.0f} s" if took < 120 else f"{took / 60:.0f} min" if took < 7200 else f"{took / 3600:.0f} h"


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
