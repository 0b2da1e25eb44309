"""Lines of many that one after the other are served from: whoever has much waiting holds up nobody but itself.

Each item stands in the line of somebody, a namespace mostly, in the order in which it came. The lines are served in
rounds, one item of each; so a tenant with thousands of objects, all of which change or fail all the time, waits for
them itself, and another's object waits for one of them at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Rounds(Generic[T]):
    """Items by whose they are. A line that is empty takes no room."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[T]] = {}  # in the order of the round
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, whose: Hashable, item: T) -> None:
        """Put an item at the end of a line; a new line comes last in the round."""
        self._lines.setdefault(whose, deque()).append(item)
        self._length += 1

    def popleft(self) -> T:
        """The first item of the line whose turn it is. Raises IndexError if there is none."""
        if not self._lines:
            raise IndexError("nobody waits")
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        item = line.popleft()
        if line:
            self._lines[whose] = line  # behind all others
        self._length -= 1
        return item

    def drop(self) -> None:
        """Drop the last item of the longest line. Raises ValueError if there is none."""
        whose, line = max(self._lines.items(), key=lambda each: len(each[1]))
        line.pop()
        if not line:
            del self._lines[whose]
        self._length -= 1

    def clear(self) -> None:
        """Drop everything."""
        self._lines.clear()
        self._length = 0


class FairSemaphore:
    """Lets so many in at once; those that wait come in by rounds. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: Rounds[asyncio.Future[None]] = Rounds()

    @asynccontextmanager
    async def entered(self, whose: Hashable) -> AsyncIterator[None]:
        """Wait until there is room, and take it until the end of the block."""
        if self._free:
            self._free -= 1
        else:
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(whose, called)
            try:
                await called
            except asyncio.CancelledError:
                if not called.cancelled():
                    self._next()  # it was called in the same moment
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            called = self._waiting.popleft()
            if not called.done():
                called.set_result(None)
                return
        self._free += 1
