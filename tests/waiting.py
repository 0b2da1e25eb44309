"""Wait for a state instead of a time, so that tests pass on a slow machine, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""Limit for reaching a state. A state that is not reached by then is never reached, however busy the machine is."""
Why = str | Callable[[], object]
"""The message of a failed wait, or a function that returns it."""


async def until(
    holds: Callable[[], T | Awaitable[T | None] | None],
    why: Why = "it did not happen",
    *,
    within: float = PATIENCE_SECONDS,
    every: float = 0.005,
) -> T:
    """Call `holds` until its result is true, and return the result. It may be awaitable.

    `within` and `every` are in seconds.
    """
    try:
        async with asyncio.timeout(within):
            while True:
                result = holds()
                value = await result if isinstance(result, Awaitable) else result
                if value:
                    return value
                await asyncio.sleep(every)
    except TimeoutError as error:
        raise AssertionError(_message(why)) from error


def wait_until(
    holds: Callable[[], T | None],
    why: Why = "it did not happen",
    *,
    within: float = PATIENCE_SECONDS,
    every: float = 0.02,
) -> T:
    """`until` for tests that have no event loop."""
    give_up = time.monotonic() + within
    while not (value := holds()):
        assert time.monotonic() < give_up, _message(why)
        time.sleep(every)
    return value


def _message(why: Why) -> object:
    return why if isinstance(why, str) else why()
