"""Saying the same thing once in a while: what keeps a flood of packets from becoming a flood of log lines.

Anybody on the network can send a server a thousand bad packets a second. Each should be heard of, none may fill the
disk or push other machines' history out of memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable


class OncePer:
    """Lets each key pass once per `interval` seconds, and no more than `capacity` keys in that time, `share` of them of
    one owner (None: as many as of all).

    `capacity` bounds the memory and the number of lines alike. The clock is the caller's.
    """

    def __init__(self, interval: float, capacity: int, share: int | None = None) -> None:
        self._interval = interval
        self._capacity = capacity
        self._share = capacity if share is None else share
        self._passed: set[Hashable] = set()
        # When each of them passed, in the order of time. A dictionary has that order, too, but from one that many keys
        # were taken out of at its front, the first takes as long to find as there were keys.
        self._order: deque[tuple[float, Hashable, Hashable]] = deque()
        self._of_owner: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._passed)

    def __contains__(self, key: Hashable) -> bool:
        """Whether `key` has passed in the interval that ended when `due` was asked last."""
        return key in self._passed

    def due(self, key: Hashable, now: float, owner: Hashable = None) -> bool:
        """Whether `key` may pass at `now` (seconds), as one of `owner` (None: of nobody)."""
        order = self._order
        while order:
            since, oldest, whose = order[0]
            # A clock that was set back makes every entry look young for ever; such entries go too.
            if 0 <= now - since < self._interval:
                break
            order.popleft()
            self._passed.remove(oldest)
            if whose is not None:
                self._of_owner[whose] -= 1
                if not self._of_owner[whose]:
                    del self._of_owner[whose]
        if key in self._passed or len(order) >= self._capacity:
            return False
        if owner is not None:
            if self._of_owner[owner] >= self._share:
                return False
            self._of_owner[owner] += 1
        self._passed.add(key)
        order.append((now, key, owner))
        return True


class Tally:
    """As OncePer, and says of each key how often it was held back since it passed last."""

    def __init__(self, interval: float, capacity: int) -> None:
        self._once = OncePer(interval, capacity)
        self._capacity = capacity
        self._held_back: dict[Hashable, int] = {}

    def due(self, key: Hashable, now: float) -> int | None:
        """How often `key` was held back before, if it may pass at `now` (seconds); None if it may not."""
        if self._once.due(key, now):
            return self._held_back.pop(key, 0)
        count = self._held_back.pop(key, 0)  # and it goes behind the others
        if len(self._held_back) >= self._capacity:
            del self._held_back[next(iter(self._held_back))]
        self._held_back[key] = count + 1
        return None


def times(held_back: int) -> str:
    """What a line says of those of its kind that were held back; empty if none were."""
    return f" ({held_back} more times since this was last said)" if held_back else ""
