"""The parts that run beside each other until the stop, each under its name: one that ends by itself ends all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from tink.errors import TinkedgeError

log = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 10.0


class StackError(TinkedgeError):
    """The stack can't start, or a part of it ended; the message says which and why."""


class Tasks:
    """Each is cancelled by `exit_stack`, the newest first."""

    def __init__(self, exit_stack: AsyncExitStack) -> None:
        self._exit = exit_stack
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.failure = ""
        """Which part has ended by itself, and why; empty: none has."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, ends: bool = False) -> asyncio.Task[None]:
        """Run it until the stop; when it `ends` by itself before, but well, so much the better."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, ends=ends))

        async def cancel() -> None:
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_SECONDS)

        self._exit.push_async_callback(cancel)
        return task

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set. Raises StackError if a part ends by itself."""
        waiting = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._ended.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if self.failure:
            raise StackError(self.failure)

    def _done(self, task: asyncio.Task[None], *, ends: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if ends and error is None:
            return
        self.failure = f"{task.get_name()} ended: {error!r}" if error is not None else f"{task.get_name()} ended"
        log.error("%s", self.failure, exc_info=error)
        self._ended.set()
