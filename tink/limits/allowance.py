"""A limit for each key and for all keys together, in an interval.

Any host on the network can send requests with the source address of another host, which then gets the answers. Where a
protocol does not authenticate the sender, the number of answers is limited. Pure; the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable


class Allowance:
    """Allows `each` passes of a key in an interval, and `in_all` passes of all keys together.

    A refused key may pass in the next interval. At most `in_all` keys are stored.
    """

    def __init__(self, each: int, in_all: int, seconds: float = 1.0) -> None:
        self._each = each
        self._in_all = in_all
        self._seconds = seconds
        self._since = float("-inf")
        self._passed: dict[Hashable, int] = {}
        self._total = 0

    def take(self, key: Hashable, now: float) -> bool:
        """Return True if a key may pass at `now` (seconds), and count the pass."""
        if not 0 <= now - self._since < self._seconds:  # a clock that was set back starts an interval, too
            self._since = now
            self._passed.clear()
            self._total = 0
        passed = self._passed.get(key, 0)
        if passed >= self._each or self._total >= self._in_all:
            return False
        self._passed[key] = passed + 1
        self._total += 1
        return True

    def give_back(self, key: Hashable) -> None:
        """Cancel the last pass of a key in this interval."""
        passed = self._passed.get(key, 0)
        if passed > 1:
            self._passed[key] = passed - 1
        elif passed:
            del self._passed[key]
        self._total -= 1 if passed else 0
