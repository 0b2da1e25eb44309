"""Saying the same thing once in a while: what keeps a flood of packets from becoming a flood of log lines.

Anybody on the network can send a server a thousand bad packets a second. Each should be heard of, none may fill the
disk or push other machines' history out of memory.
"""

from __future__ import annotations

from collections.abc import Hashable


class OncePer:
    """Lets each key pass once per `interval` seconds, and no more than `capacity` keys in that time.

    `capacity` bounds the memory and the number of lines alike. The clock is the caller's.
    """

    def __init__(self, interval: float, capacity: int) -> None:
        self._interval = interval
        self._capacity = capacity
        # A key is put in when it passes and taken out when its time is up, so the order is that of time.
        self._passed: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._passed)

    def due(self, key: Hashable, now: float) -> bool:
        """Whether `key` may pass at `now` (seconds)."""
        while self._passed:
            oldest = next(iter(self._passed))
            # A clock that was set back makes every entry look young for ever; such entries go too.
            if 0 <= now - self._passed[oldest] < self._interval:
                break
            del self._passed[oldest]
        if key in self._passed or len(self._passed) >= self._capacity:
            return False
        self._passed[key] = now
        return True
