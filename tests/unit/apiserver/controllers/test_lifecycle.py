"""The clean-up must not miss the change that it waits for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tink.apiserver.controllers.lifecycle import Lifecycle
from tink.apiserver.store import Event, Key


async def test_object_that_goes_during_a_round_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace whose last object went while the round looked at it would otherwise stay for a minute."""
    nothing: Any = None
    lifecycle = Lifecycle(nothing, nothing, nothing, lambda: datetime.now(UTC))
    rounds = 0
    third = asyncio.Event()

    async def look() -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            lifecycle.on_event(Event(3, Key("/configmaps", "x", "held"), "DELETED", b"{}", b"{}"))
            return True
        if rounds == 3:
            third.set()
        return False

    monkeypatch.setattr(lifecycle, "_round", look)
    task = asyncio.create_task(lifecycle.run())
    await asyncio.sleep(0)
    lifecycle.on_event(Event(2, Key("/namespaces", "", "x"), "MODIFIED", b"{}", b"{}"))
    try:
        await asyncio.wait_for(third.wait(), 20)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
