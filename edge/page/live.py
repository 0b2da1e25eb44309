"""Pages that follow what happens, by Server-Sent Events (HTML Living Standard, section 9.2).

Nothing is sent for each event: now and then it is looked at what a page shows, and what of that is another one goes
there in one message. While a browser does not take a message, there is no next one. So a page that is open costs a
bounded share of the event loop, and the memory of what it shows, whatever machines do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import orjson

from edge.page.time_slice import LOOK_SECONDS, LoopLoad, TimeSlice

MAX_STREAMS: Final = 32
"""Pages that are live at one time; others are shown as they were when they were loaded."""
INTERVAL_SECONDS: Final = 0.3
"""A page is looked at so often at most."""
REST: Final = 4.0
"""Pause as a multiple of the work, times the number of open pages: all of them take a fifth of a processor."""
BUSY_REST: Final = 99.0
"""The same while the event loop is busy otherwise: each page takes a hundredth."""
LONGEST_SECONDS: Final = 10.0
HEARTBEAT_SECONDS: Final = 15.0
_RETRY = b"retry: 2000\n\n"


class Source(Protocol):
    """One page that is open."""

    async def news(self, turns: TimeSlice) -> dict[str, object]:
        """Return what has changed since the last call; empty if nothing has."""


class Live:
    """The streams. Belongs to one event loop."""

    def __init__(
        self,
        *,
        interval: float = INTERVAL_SECONDS,
        heartbeat: float = HEARTBEAT_SECONDS,
        most: int = MAX_STREAMS,
        elapsed: Callable[[], float] = time.perf_counter,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """Times in seconds; `spent` counts those in which this thread had a processor."""
        self._spent = spent
        self._interval = interval
        self._heartbeat = heartbeat
        self._most = most
        self._elapsed = elapsed
        self._open: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """True if no more pages can be live."""
        return len(self._open) >= self._most

    def close(self) -> None:
        """End all of them."""
        for ended in self._open:
            ended.set()

    async def follow(
        self, source: Source, write: Callable[[bytes], Awaitable[None]], may_go_on: Callable[[], bool]
    ) -> None:
        """Send the source's news until the reader has gone (`write` raises ConnectionError), or may have no more."""
        ended = asyncio.Event()
        self._open.add(ended)
        try:
            await write(_RETRY)
            sent, spent, others = self._elapsed(), 0.0, LoopLoad(self._elapsed, self._spent)
            while not ended.is_set() and may_go_on():
                busy = others.is_high(spent)
                turns = TimeSlice(busy=busy, elapsed=self._spent, look_seconds=LOOK_SECONDS)
                news = await source.news(turns)
                spent, rest = turns.spent, BUSY_REST if busy else REST
                if news:
                    await write(b"data: " + orjson.dumps(news) + b"\n\n")
                    sent = self._elapsed()
                elif self._elapsed() - sent >= self._heartbeat:
                    await write(b": heartbeat\n\n")
                    sent = self._elapsed()
                await _either(ended, min(max(self._interval, rest * spent * len(self._open)), LONGEST_SECONDS))
        except ConnectionError:
            pass  # the reader went away, which is how streams end
        finally:
            self._open.discard(ended)


async def _either(ended: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        pass
