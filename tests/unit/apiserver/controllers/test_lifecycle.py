"""The clean-up must not miss the change that it waits for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.virtual_time import turns
from tests.unit.apiserver.conftest import Client
from tests.waiting import until
from tink.apiserver.controllers.lifecycle import Lifecycle
from tink.apiserver.errors import StatusError
from tink.apiserver.store import Event, Key, Stored


@pytest.mark.parametrize("error", [StatusError(500, "InternalError", "a webhook says no"), RuntimeError("unforeseen")])
async def test_what_goes_wrong_about_one_namespace_does_not_stop_the_others(
    bare: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    real = Lifecycle._delete_contents
    failing = True

    async def delete_contents(self: Lifecycle, stored: Stored) -> bool:
        if stored.name == "a" and failing:
            raise error
        return await real(self, stored)

    monkeypatch.setattr(Lifecycle, "_delete_contents", delete_contents)
    for name in ("a", "b"):
        await bare("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await bare("DELETE", f"/api/v1/namespaces/{name}")

    async def is_gone(name: str) -> bool:
        return (await bare("GET", f"/api/v1/namespaces/{name}")).status == 404

    await until(lambda: is_gone("b"))
    assert not await is_gone("a")
    assert any(line.startswith("namespace a: ") and "trying again in 60 s" in line for line in caplog.messages)
    failing = False
    await bare("POST", "/api/v1/namespaces", {"metadata": {"name": "c"}})  # wakes it before the minute has gone
    await until(lambda: is_gone("a"))


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
    await turns()
    lifecycle.on_event(Event(2, Key("/namespaces", "", "x"), "MODIFIED", b"{}", b"{}"))
    try:
        await third.wait()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
