"""Wait for tasks that may be cancelled, and log errors of background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any


async def done_before(work: asyncio.Future[Any], event: asyncio.Event, seconds: float | None = None) -> bool:
    """Wait until `work` is done, `event` is set or `seconds` have passed. Return True if `work` is done.

    The work continues, and its exception is not raised here.
    """
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({work, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return work.done()


def cancel_once(work: asyncio.Future[Any]) -> None:
    """Cancel a task, unless it was cancelled before: a second time would interrupt what it does at its end."""
    if not isinstance(work, asyncio.Task) or not work.cancelling():
        work.cancel()


def log_failure(
    work: asyncio.Task[Any], log: logging.Logger, text: str, then: Callable[[], None] = lambda: None
) -> None:
    """Log `text` and the exception if `work`, a background task that no code awaits, fails. Then call `then`."""

    def ended(work: asyncio.Task[Any]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("%s", text, exc_info=error)
            then()

    work.add_done_callback(ended)
