"""Waiting for work that may be called off."""

from __future__ import annotations

import asyncio
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
