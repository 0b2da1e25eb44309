"""So much for each and so much for all: what keeps one sender from taking everybody's share, and all from taking ours.

Anybody on the network can ask in the name of others, and have the answers sent to them. Where a protocol has no proof
of who asks, the number of answers is the bound. Pure; the clock is the caller's.
"""

from __future__ import annotations

from collections.abc import Hashable


class Allowance:
    """Lets each key pass `each` times in an interval, and all together `in_all` times.

    Intervals follow each other; a key that was refused may pass in the next one. No more than `in_all` keys are kept.
    """

    def __init__(self, each: int, in_all: int, seconds: float = 1.0) -> None:
        self._each = each
        self._in_all = in_all
        self._seconds = seconds
        self._since = float("-inf")
        self._passed: dict[Hashable, int] = {}
        self._total = 0

    def take(self, key: Hashable, now: float) -> bool:
        """Whether `key` may pass at `now` (seconds)."""
        if not 0 <= now - self._since < self._seconds:  # a clock that was set back begins an interval, too
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
        """What `key` has taken last in this interval does not count."""
        passed = self._passed.get(key, 0)
        if passed > 1:
            self._passed[key] = passed - 1
        elif passed:
            del self._passed[key]
        self._total -= 1 if passed else 0
