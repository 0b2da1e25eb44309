"""Who of the edges may fetch a file that nobody has: kept by the one edge that decides about it. Pure.

The first who asks may. Others are told who, and wait for that one's copy, for a while. A claim ends with its time, or
when its edge does: nobody has to give one back, for a file that is there is not claimed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tink.limits.newest import Newest

CLAIM_SECONDS: Final = 15.0
"""Longer than anybody waits for another (`edge.peers.caches.PATIENCE_SECONDS`)."""
MAX_CLAIMS: Final = 1024


class Claims:
    """By artifact key."""

    def __init__(self, clock: Callable[[], float], lives: Callable[[str], bool]) -> None:
        """`clock` gives seconds of any epoch; `lives(edge)` whether that edge is there."""
        self._clock = clock
        self._lives = lives
        self._claims: Newest[str, tuple[str, float]] = Newest(MAX_CLAIMS)

    def claim(self, key: str, edge: str) -> str:
        """Which edge may fetch it: `edge`, unless another one is at it already."""
        now = self._clock()
        holder, until = self._claims.get(key, ("", now))
        if holder and holder != edge and now < until and self._lives(holder):
            return holder
        self._claims[key] = (edge, now + CLAIM_SECONDS)
        return edge
