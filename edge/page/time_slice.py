"""Long work in short turns of the event loop, which serves DHCP, too; less of it while that has much to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TURN_SECONDS: Final = 0.002
"""Seconds of work between two turns of the event loop."""
BUSY_SECONDS: Final = 0.005
"""Seconds of work after which the rest is postponed, if the event loop is busy otherwise."""
BUSY_SHARE: Final = 0.6
"""The share of a processor from which on other work counts as busy."""
LOOK_SECONDS: Final = 0.02
"""Seconds of work between two looks at how busy the event loop is."""
PAUSE_SECONDS: Final = 0.003
"""How long such a look takes, in seconds: other work has the event loop meanwhile."""


class TimeSlice:
    """One piece of work: how long it took (`spent`), in seconds of the processor."""

    def __init__(
        self,
        *,
        busy: bool = False,
        elapsed: Callable[[], float] = time.thread_time,
        look_seconds: float | None = None,
    ) -> None:
        """`busy`: others have much to do. `look_seconds`: whether they have is looked at after so much work each time;
        None: never. `elapsed` gives seconds, of any epoch."""
        self._elapsed = elapsed
        self._began = elapsed()
        self._spent = 0.0
        self.is_busy = busy
        self._look_seconds = look_seconds
        self._looked = 0.0

    @property
    def spent(self) -> float:
        """Up to now."""
        return self._spent + self._elapsed() - self._began

    @property
    def may_wait(self) -> bool:
        """True if the rest of the work should be postponed."""
        return self.is_busy and self.spent > BUSY_SECONDS

    async def rest(self) -> None:
        """Let others have their turn, if this one has been long enough."""
        now = self._elapsed()
        if now - self._began < TURN_SECONDS:
            return
        self.leave()
        if self._look_seconds is not None and self._spent - self._looked >= self._look_seconds and not self.is_busy:
            self._looked = self._spent
            others = LoopLoad(elapsed=self._elapsed)
            await asyncio.sleep(PAUSE_SECONDS)
            self.is_busy = others.is_high(0.0)
        else:
            await asyncio.sleep(0)
        self.go_on()

    def leave(self) -> None:
        """Stop the clock: what follows is waiting."""
        self._spent = self.spent

    def go_on(self) -> None:
        """Start the clock again after `leave`."""
        self._began = self._elapsed()


class LoopLoad:
    """Measures how busy the event loop's thread is with other work."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, elapsed: Callable[[], float] = time.thread_time
    ) -> None:
        """`clock` gives seconds, `elapsed` those in which this thread had a processor; both of any epoch."""
        self._clock = clock
        self._elapsed = elapsed
        self._since = clock(), elapsed()

    def is_high(self, ours: float) -> bool:
        """Since the last look, in which this work took `ours` seconds."""
        (began, spent), (now, taken) = self._since, (self._clock(), self._elapsed())
        self._since = now, taken
        return taken - spent - ours > BUSY_SHARE * (now - began)
