"""Limits of repetition: each key passes once in an interval, so that a flood of packets causes few log lines.

Any host on the network can send a thousand bad packets a second. Each kind should be reported, but must not fill the
disk or push the history of other machines out of memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable


class OncePer:
    """Allows one pass of each key in `interval` seconds, and of at most `capacity` keys, `share` of them of one owner.

    Without a `share`, one owner may have all. `capacity` limits the memory and the number of passes. The caller passes
    the time.
    """

    def __init__(self, interval: float, capacity: int, share: int | None = None) -> None:
        self._interval = interval
        self._capacity = capacity
        self._share = capacity if share is None else share
        self._passed: set[Hashable] = set()
        # The time, key and owner of each pass, in the order of time. A dict would keep the order, too, but finding its
        # first key is slow after many keys were removed at its front.
        self._order: deque[tuple[float, Hashable, Hashable]] = deque()
        self._of_owner: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._passed)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if the key has passed in the interval that ended with the last call of `due`."""
        return key in self._passed

    def due(self, key: Hashable, now: float, owner: Hashable = None) -> bool:
        """Return True if a key of `owner` (None: no owner) may pass at `now` (seconds), and count the pass."""
        order = self._order
        while order:
            since, oldest, its_owner = order[0]
            # After a clock was set back, entries seem to be from the future; they are removed, too.
            if 0 <= now - since < self._interval:
                break
            order.popleft()
            self._passed.remove(oldest)
            if its_owner is not None:
                self._of_owner[its_owner] -= 1
                if not self._of_owner[its_owner]:
                    del self._of_owner[its_owner]
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
    """Like OncePer, and counts how often each key was refused since its last pass."""

    def __init__(self, interval: float, capacity: int) -> None:
        self._once = OncePer(interval, capacity)
        self._capacity = capacity
        self._refused: dict[Hashable, int] = {}

    def due(self, key: Hashable, now: float) -> int | None:
        """Return how often a key was refused before, if it may pass at `now` (seconds); None if it may not."""
        if self._once.due(key, now):
            return self._refused.pop(key, 0)
        count = self._refused.pop(key, 0)  # it moves behind the others
        if len(self._refused) >= self._capacity:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = count + 1
        return None


def times(refused: int) -> str:
    """Return the part of a log line about the omitted lines of its kind; empty if there are none."""
    return f" ({refused} more times since this was last said)" if refused else ""
