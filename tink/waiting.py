"""Wait for tasks that may be cancelled, and log errors of background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any


async def done_before(work: asyncio.Future[Any], event: asyncio.Event, seconds: float | None = None) -> bool:
    """Wait for `work`, but only until `event` is set, or for so many seconds (None: any); whether it is done.

    The work goes on, and what it raises is not raised here.
    """
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({work, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return work.done()


def failure_is_said(
    work: asyncio.Task[Any], log: logging.Logger, text: str, then: Callable[[], None] = lambda: None
) -> None:
    """If `work` ends by an exception, log it with `text`, as an error, and call `then`.

    For background tasks that no code awaits: their errors would be lost.
    """

    def ended(work: asyncio.Task[Any]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("%s", text, exc_info=error)
            then()

    work.add_done_callback(ended)
