"""Long work in short turns of the event loop, which serves DHCP, too; and pages that are live, by Server-Sent Events.

An open page asks its source for news now and then, and sends it in one message (HTML Living Standard, section 9.2). No
message follows while a browser has not taken the last one. So an open page costs a bounded share of the event loop, and
the memory of its content, however many events machines have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

TURN_SECONDS: Final = 0.002  # seconds of work between two turns of the event loop
BUSY_SECONDS: Final = 0.005  # seconds of work after which the rest is postponed, if the event loop is busy otherwise
BUSY_SHARE: Final = 0.6  # the share of a processor from which on other work counts as busy
LOOK_SECONDS: Final = 0.02  # seconds of work between two measurements of the event loop's load
PAUSE_SECONDS: Final = 0.003  # duration of such a measurement: other work has the event loop meanwhile

MAX_STREAMS: Final = 32  # pages that are live at one time; others are shown as they were when they were loaded
INTERVAL_SECONDS: Final = 0.3  # the shortest time between two messages of a page
REST: Final = 4.0
"""Pause as a multiple of the work, times the number of open pages: all of them take a fifth of a processor."""
BUSY_REST: Final = 99.0  # the same while the event loop is busy otherwise: each page takes a hundredth
MAX_REST_SECONDS: Final = 10.0
HEARTBEAT_SECONDS: Final = 15.0
_RETRY = b"retry: 2000\n\n"


class TimeSlice:
    """Divides work into turns of the event loop, and measures its processor time (`spent`, in seconds)."""

    def __init__(
        self,
        *,
        busy: bool = False,
        elapsed: Callable[[], float] = time.thread_time,
        look_seconds: float | None = None,
    ) -> None:
        """`busy`: the event loop has much other work. Measured again after each `look_seconds` (None: never)."""
        self._elapsed = elapsed
        self._began = elapsed()
        self._spent = 0.0
        self.is_busy = busy
        self._look_seconds = look_seconds
        self._looked = 0.0

    @property
    def spent(self) -> float:
        """The processor time until now."""
        return self._spent + self._elapsed() - self._began

    @property
    def may_wait(self) -> bool:
        """True if the rest of the work should be postponed."""
        return self.is_busy and self.spent > BUSY_SECONDS

    async def rest(self) -> None:
        """Give other tasks a turn, if this one has been long enough."""
        if self._elapsed() - self._began < TURN_SECONDS:
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
        """Stop the clock before waiting."""
        self._spent = self.spent

    def go_on(self) -> None:
        """Start the clock again after `leave`."""
        self._began = self._elapsed()


class LoopLoad:
    """Measures how busy the event loop's thread is with other work."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, elapsed: Callable[[], float] = time.thread_time
    ) -> None:
        """`clock` gives seconds, and `elapsed` the processor time of this thread; both of any epoch."""
        self._clock = clock
        self._elapsed = elapsed
        self._since = clock(), elapsed()

    def is_high(self, ours: float) -> bool:
        """Return True if other work was busy since the last call. This work took `ours` seconds."""
        (began, spent), (now, taken) = self._since, (self._clock(), self._elapsed())
        self._since = now, taken
        return taken - spent - ours > BUSY_SHARE * (now - began)


News = Callable[[TimeSlice], Awaitable[dict[str, object]]]
"""Returns what has changed on one page since the last call; empty if nothing has."""


@dataclass(eq=False)
class Live:
    """The streams of all live pages. Belongs to one event loop. `spent` gives the processor time of this thread."""

    interval: float = INTERVAL_SECONDS
    heartbeat: float = HEARTBEAT_SECONDS
    most: int = MAX_STREAMS
    elapsed: Callable[[], float] = time.perf_counter
    spent: Callable[[], float] = time.thread_time

    def __post_init__(self) -> None:
        self._open: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """True if no more pages can be live."""
        return len(self._open) >= self.most

    def close(self) -> None:
        """End all streams."""
        for ended in self._open:
            ended.set()

    async def follow(
        self, news_of: News, write: Callable[[bytes], Awaitable[None]], may_go_on: Callable[[], bool]
    ) -> None:
        """Send news until the reader has gone (`write` raises ConnectionError), or may have no more."""
        ended = asyncio.Event()
        self._open.add(ended)
        try:
            await write(_RETRY)
            sent, spent, others = self.elapsed(), 0.0, LoopLoad(self.elapsed, self.spent)
            while not ended.is_set() and may_go_on():
                busy = others.is_high(spent)
                turns = TimeSlice(busy=busy, elapsed=self.spent, look_seconds=LOOK_SECONDS)
                news = await news_of(turns)
                spent, rest = turns.spent, BUSY_REST if busy else REST
                if news or self.elapsed() - sent >= self.heartbeat:
                    await write(b"data: " + orjson.dumps(news) + b"\n\n" if news else b": heartbeat\n\n")
                    sent = self.elapsed()
                with suppress(TimeoutError):
                    pause = min(max(self.interval, rest * spent * len(self._open)), MAX_REST_SECONDS)
                    async with asyncio.timeout(pause):
                        await ended.wait()
        except ConnectionError:
            pass  # the reader went away, which is how streams end
        finally:
            self._open.discard(ended)
