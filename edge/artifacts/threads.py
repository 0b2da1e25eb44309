"""Blocking file work in a thread, on a file descriptor that its owner is going to close.

A cancelled `await loop.run_in_executor(...)` leaves the thread running. If the owner closed the descriptor then, the
thread would write to whatever file or socket got the number next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(pool: Executor, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `call` in a thread of `pool`. When cancelled, the thread has ended before CancelledError is raised here."""
    work = asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            await asyncio.wait([work])
        raise
