"""Token buckets: a rate and a burst for each key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

_ROUNDING_SECONDS = 1e-6


class TokenBuckets:
    """A bucket for each key: it may pass `burst` times at once, and then `per_second` times a second.

    Full buckets are dropped. If there are more than `capacity` (None: no limit), the one that was unused for longest is
    dropped.
    """

    def __init__(self, burst: float, per_second: float, capacity: int | None = None) -> None:
        self._burst = burst
        self._per_second = per_second
        self._capacity = capacity
        # The time at which a key's whole burst is available again. The order is that of the last pass. A dict would
        # keep the order, too, but finding its first key is slow after many keys were removed at its front.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def allows(self, key: Hashable, now: float) -> bool:
        """Return True if a key may pass at `now` (monotonic seconds), and count the pass."""
        while self._full_at and self._full_at[first := next(iter(self._full_at))] <= now:
            del self._full_at[first]
        full_at = max(self._full_at.get(key, now), now) + 1 / self._per_second
        if full_at - now > self._burst / self._per_second + _ROUNDING_SECONDS:
            return False
        self._full_at.pop(key, None)
        self._full_at[key] = full_at
        if self._capacity is not None and len(self._full_at) > self._capacity:
            del self._full_at[next(iter(self._full_at))]
        return True
