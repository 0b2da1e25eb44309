"""Events on their way to the server: in order, kept until the server has taken them.

The agent appends as actions begin and end; the transport's publisher takes the oldest, sends it until it is
acknowledged (or refused for good) and settles it. Executing never waits for it, so a workflow goes on through a
broken connection. `journal` keeps what waits here on disk: the agent writes it there in the same step, before the
publisher can see the event, and a new agent's spool begins with it.

An event may have to wait for something else to be told first; those behind it wait with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from tink.agent.model import Event, WorkflowRejected

log = logging.getLogger(__name__)

REJECTION_LIMIT = 256
"""A server that repeats commands and takes no answers must not fill the machine's memory."""


class Spool:
    """A first-in first-out queue whose head stays until it is settled. For one event loop, one publisher.

    `pending`: what an earlier agent has left, with its numbers.
    """

    def __init__(self, pending: Sequence[tuple[int, Event]] = ()) -> None:
        loop = asyncio.get_running_loop()
        self._events = deque(pending)
        self._count = pending[-1][0] if pending else 0
        self._arrived = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[bool]] = {number: loop.create_future() for number, _ in pending}
        self._after: dict[int, asyncio.Future[None]] = {}
        self._settled: Callable[[], None] = lambda: None
        self._appended: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._events)

    @property
    def pending(self) -> tuple[tuple[int, Event], ...]:
        """All events that wait, oldest first, with their numbers."""
        return tuple(self._events)

    def on_settle(self, settled: Callable[[], None]) -> None:
        """Have `settled` called whenever an event has left the spool."""
        self._settled = settled

    def on_append(self, appended: Callable[[], None]) -> None:
        """Have `appended` called whenever an event has come, or may be sent now."""
        self._appended = appended

    def last_of(self, workflow_id: str) -> asyncio.Future[bool]:
        """What `append` gave for the workflow's newest event that waits; if none does, the server has them all."""
        for number, event in reversed(self._events):
            if event.workflow_id == workflow_id:
                return self._waiting[number]
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        taken.set_result(True)
        return taken

    def append(self, event: Event, *, after: asyncio.Future[None] | None = None) -> asyncio.Future[bool]:
        """Queue `event`. The future ends when it is settled: True, the server has it; False, it will never take it.

        The publisher does not see it before `after` is done. A rejection that is already queued is not queued again.
        """
        if isinstance(event, WorkflowRejected):
            rejections = [(number, queued) for number, queued in self._events if isinstance(queued, WorkflowRejected)]
            for number, queued in rejections:
                if (queued.workflow_id, queued.reason) == (event.workflow_id, event.reason):
                    return self._waiting[number]
            if len(rejections) >= REJECTION_LIMIT:
                log.warning("%d rejections wait for the server; dropped one more: %s", REJECTION_LIMIT, event.message)
                return self._waiting[rejections[-1][0]]
        self._count += 1
        self._events.append((self._count, event))
        self._waiting[self._count] = asyncio.get_running_loop().create_future()
        if after is not None:
            self._after[self._count] = after
            after.add_done_callback(lambda _: self._news())
        self._news()
        return self._waiting[self._count]

    async def head(self) -> tuple[int, Event]:
        """The oldest event that is not settled, and its number; waits for one that may be sent."""
        while not self.first(1):
            self._arrived.clear()
            await self._arrived.wait()
        return self._events[0]

    def first(self, count: int) -> list[tuple[int, Event]]:
        """The oldest events that may be sent, at most `count`, with their numbers."""
        return list(takewhile(lambda each: self._may_be_sent(each[0]), islice(self._events, count)))

    def _may_be_sent(self, number: int) -> bool:
        after = self._after.get(number)
        return after is None or after.done()

    def _news(self) -> None:
        if self.first(1):
            self._arrived.set()
            self._appended()

    def settle(self, number: int, *, delivered: bool) -> None:
        """The head, `number`, has been acknowledged, or will never be taken (`delivered` False)."""
        head, _ = self._events.popleft()
        if head != number:
            raise RuntimeError(f"event {number} is settled while {head} is the oldest")
        future = self._waiting.pop(number)
        self._after.pop(number, None)
        self._settled()
        if not future.done():
            future.set_result(delivered)
