"""Growing, jittered delays between attempts at something that fails."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from `first` to `longest` (seconds), each shortened at random by up to a half.

    Without this jitter, all clients of a server that was away would come back at the same moment.
    """

    def __init__(self, first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._first = first
        self._longest = longest
        self._uniform = uniform
        self._next = first

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        delay = self._next
        self._next = min(self._next * 2, self._longest)
        return delay * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the first delay, after a successful attempt."""
        self._next = self._first
