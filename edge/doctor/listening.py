"""A machine's conversation beside its journey: the lines of a capture and those of the edge, in the order of time.

The two come on different ways, packets at once and events after a moment, so each line is held for a blink before it
is given, and what belongs before it takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from edge.doctor.capture import Capture, in_words
from edge.doctor.conversation import Conversation

HOLD_SECONDS = 0.3
_MOST_WAITING = 10_000

E = TypeVar("E")


class Heard(NamedTuple):
    """A packet in words; `time` in seconds since the epoch."""

    time: float
    text: str


class Listening:
    """The packets of one machine, from entering it as a context manager to leaving it."""

    def __init__(self, interface: str, mac: str, write: Path | None = None) -> None:
        self._conversation = Conversation(in_words)
        self._capture = Capture(interface, mac, self._frame, write)
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Heard | None] = asyncio.Queue(_MOST_WAITING)
        self._ending: asyncio.Task[None] | None = None
        self.lost = 0
        """How many packets are missing here, because this was too slow; whole only after the end."""

    @property
    def seen(self) -> int:
        """How many packets were heard."""
        return self._capture.seen

    async def __aenter__(self) -> Listening:
        """Begin. Raises DiagnoseError."""
        # Loading scapy and opening its sockets takes a second, in which the journey goes on.
        await asyncio.to_thread(self._capture.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        await self._stop()

    def end(self) -> None:
        """No more: what has come until now is the last that `heard` gives."""
        self._ending = asyncio.ensure_future(self._end())

    async def heard(self) -> AsyncGenerator[Heard, None]:
        """What is heard, until the `end`."""
        while (line := await self._waiting.get()) is not None:
            yield line

    async def _end(self) -> None:
        await self._stop()  # its threads have handed over all that they have heard
        await self._waiting.put(None)

    async def _stop(self) -> None:
        self.lost += await asyncio.to_thread(self._capture.stop)

    def _frame(self, at: float, frame: bytes) -> None:
        """In scapy's thread."""
        for line in self._conversation.lines(at, frame):
            self._loop.call_soon_threadsafe(self._put, Heard(at, line))

    def _put(self, line: Heard) -> None:
        try:
            self._waiting.put_nowait(line)
        except asyncio.QueueFull:
            self.lost += 1


class Timed(NamedTuple, Generic[E]):
    """Something that happened at `time` (seconds since the epoch)."""

    time: float
    what: E


async def in_order(leading: AsyncIterator[Timed[E]], *others: AsyncIterator[Timed[E]]) -> AsyncGenerator[E, None]:
    """What all sources give, by time as far as it came within HOLD_SECONDS; ends when the `leading` one has."""
    heap: list[tuple[float, int, float, E]] = []
    number = count()
    clock = asyncio.get_running_loop().time
    came = asyncio.Event()

    async def take(source: AsyncIterator[Timed[E]]) -> None:
        async for item in source:
            heapq.heappush(heap, (item.time, next(number), clock() + HOLD_SECONDS, item.what))
            came.set()

    tasks = [asyncio.ensure_future(take(source)) for source in (leading, *others)]
    tasks[0].add_done_callback(lambda _: came.set())
    try:
        while heap or not tasks[0].done():
            now = clock()
            while heap and (heap[0][2] <= now or tasks[0].done()):
                yield heapq.heappop(heap)[3]
            came.clear()
            wait = heap[0][2] - now if heap else HOLD_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await came.wait()
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
