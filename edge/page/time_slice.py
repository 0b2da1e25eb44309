"""Long work in short turns of the event loop, which serves DHCP, too; less of it while that has much to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TURN_SECONDS: Final = 0.002
"""How long one works between two turns of the event loop."""
BUSY_SECONDS: Final = 0.005
"""What may wait is put off after so much work, where others have much to do."""
BUSY_SHARE: Final = 0.6
"""So much of a processor that others take is much."""
LOOK_SECONDS: Final = 0.02
"""After so much work it is looked whether others have much to do by now: they may have begun a moment ago."""
PAUSE_SECONDS: Final = 0.003
"""So long: they have the event loop for themselves meanwhile."""


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
        """Whether what is left had better be done another time."""
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
        """What comes now is waiting, in which others work."""
        self._spent = self.spent

    def go_on(self) -> None:
        """After `leave`: the waiting is over."""
        self._began = self._elapsed()


class LoopLoad:
    """How busy the others of this event loop's thread are."""

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
