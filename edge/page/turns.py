"""Long work in short turns of the event loop, which serves DHCP, too; and how much others want of it meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TURN_SECONDS: Final = 0.002
"""How long one works between two turns of the event loop."""
BUSY_SECONDS: Final = 0.005
"""What may wait is put off after so much work, where others have as much to do."""


class Turns:
    """One piece of work: how long it took (`spent`), and how long others did (`others`), in seconds."""

    def __init__(self, elapsed: Callable[[], float] = time.perf_counter) -> None:
        """`elapsed` gives seconds, of any epoch."""
        self._elapsed = elapsed
        self._began = elapsed()
        self._spent = 0.0
        self.others = 0.0

    @property
    def spent(self) -> float:
        """Up to now."""
        return self._spent + self._elapsed() - self._began

    @property
    def is_busy(self) -> bool:
        """Whether others have at least as much to do as we."""
        return self.others >= self.spent

    @property
    def may_wait(self) -> bool:
        """Whether what is left had better be done another time."""
        return self.spent > BUSY_SECONDS and self.is_busy

    async def rest(self) -> None:
        """Let others have their turn, if this one has been long enough."""
        now = self._elapsed()
        if now - self._began < TURN_SECONDS:
            return
        self._spent += now - self._began
        await asyncio.sleep(0)
        self._began = self._elapsed()
        self.others += self._began - now
