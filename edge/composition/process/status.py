"""Tells the service manager how it goes, while it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from edge.composition.process.notify import Notifier

_EVERY_SECONDS: Final = 1.0


async def report(notifier: Notifier, not_ready: Callable[[], str], status: Callable[[], str]) -> None:
    """Tell the manager that we are ready as soon as we are, and then each change of the status; until cancelled."""
    said, ready = "", False
    while notifier.address:
        text = status()
        if not ready and not not_ready():
            notifier.ready(text)
            ready = True
        elif text != said:
            notifier.status(text)
        said = text
        await asyncio.sleep(_EVERY_SECONDS)
