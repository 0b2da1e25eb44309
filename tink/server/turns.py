"""Whose turn it is: so many may do something at once, and of those that wait the one whose time comes first is next.

Who is in a hurry names an earlier time than who can wait a while, but nobody waits for ever: late comers that are in a
hurry have times that are later still. Pure asyncio; the times are the caller's.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Ticket:
    """One that waits for its turn, or has it; `time` is when it should come."""

    time: float
    called: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Gives `most` turns at once, for one event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._line: list[tuple[float, int, Ticket]] = []
        self._count = 0

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait for the turn of a new ticket, and have it until the end of the block."""
        if self._free:
            self._free -= 1
            ticket.called.set_result(None)
        else:
            self._stand(ticket)
        try:
            await ticket.called
        except asyncio.CancelledError:
            if not ticket.called.cancelled():
                self._next()  # it was called in the same moment
            raise
        try:
            yield
        finally:
            self._next()

    def hurry(self, ticket: Ticket, time: float) -> None:
        """Have a ticket's turn come at an earlier time; a later one changes nothing."""
        if time < ticket.time and not ticket.called.done():
            ticket.time = time
            self._stand(ticket)  # where it stood before, it is passed over

    def _stand(self, ticket: Ticket) -> None:
        self._count += 1
        heapq.heappush(self._line, (ticket.time, self._count, ticket))

    def _next(self) -> None:
        while self._line:
            _, _, ticket = heapq.heappop(self._line)
            if not ticket.called.done():
                ticket.called.set_result(None)
                return
        self._free += 1
