"""How many Events a controller writes, and which of them are warnings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.controller.events import COMPONENT
from tink.kube.resources import WORKFLOW
from tink.kube.runtime import Event, EventRecorder
from tink.kube.runtime.events import manifest

Make = Callable[..., Raw]


class Api:
    """Takes Events; with `hold`, not yet."""

    def __init__(self) -> None:
        self.taken = 0
        self.names: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def create(self, _: Any, body: Raw) -> Raw:
        await self.hold.wait()
        self.taken += 1
        self.names.append(body["metadata"]["name"])
        return body


@pytest.mark.parametrize(("warning", "kind"), [(True, "Warning"), (False, "Normal")])
def test_what_an_operator_has_to_look_after_is_a_warning_and_nothing_else_is(
    make_workflow: Make, warning: bool, kind: str
) -> None:
    event = Event("R", "m", warning)
    assert manifest(make_workflow("Failed"), WORKFLOW, event, component="c", host="host", now=1.0)["type"] == kind


async def test_twenty_a_second_may_follow_the_first_hundred(make_workflow: Make) -> None:
    now, api = 0.0, Api()
    recorder = EventRecorder(api, COMPONENT, clock=lambda: now, settle=0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    for index in range(300):
        recorder.event(make_workflow(name=f"w{index}"), WORKFLOW, Event("R", "m"))
    await _settled(api)
    assert api.taken == 100
    now = 2.0
    await _settled(api)
    assert api.taken == 140
    now = 1000.0
    await _settled(api)
    assert api.taken == 240, "however long nothing happened, it is a hundred at once"
    task.cancel()


async def test_they_wait_until_nothing_happens_for_a_moment(make_workflow: Make) -> None:
    now, api = 100.0, Api()
    recorder = EventRecorder(api, COMPONENT, clock=lambda: now, settle=0.05)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    for index in range(3):
        recorder.event(make_workflow(name=f"w{index}"), WORKFLOW, Event("R", "m"))
        now += 0.04
        await _settled(api)
        assert api.taken == 0, "another may come"
    now += 0.01
    await until(lambda: api.taken == 3)
    task.cancel()


async def test_they_do_not_wait_for_ever_where_something_happens_all_the_time(make_workflow: Make) -> None:
    now, api = 100.0, Api()
    recorder = EventRecorder(api, COMPONENT, clock=lambda: now, settle=0.05)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    recorder.event(make_workflow(name="first"), WORKFLOW, Event("R", "m"))
    now += 9.99
    recorder.event(make_workflow(name="next"), WORKFLOW, Event("R", "m"))
    await _settled(api)
    assert api.taken == 0
    now += 0.01
    await until(lambda: api.taken == 2)
    task.cancel()


async def test_thousand_that_wait_are_kept_and_the_next_is_dropped_and_said(
    make_workflow: Make, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    recorder = EventRecorder(api, COMPONENT, clock=lambda: 0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    for index in range(1000):
        recorder.event(make_workflow(name=f"w{index}"), WORKFLOW, Event("R", "m"))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    recorder.event(make_workflow(name="more"), WORKFLOW, Event("R", "m"))
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "not written, 1 so far" in said
    task.cancel()


async def test_events_of_one_tenant_are_dropped_before_those_of_others(make_workflow: Make) -> None:
    now, api = 0.0, Api()
    recorder = EventRecorder(api, COMPONENT, clock=lambda: now, settle=0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    for index in range(3000):
        recorder.event(make_workflow(name=f"w{index}"), WORKFLOW, Event("R", "m"))
    victim = make_workflow(name="victim")
    victim["metadata"]["namespace"] = "other"
    recorder.event(victim, WORKFLOW, Event("R", "m"))
    await _settled(api)
    assert "victim" in [name.partition(".")[0] for name in api.names[:3]]
    task.cancel()


async def _settled(api: Api) -> None:
    """Wait until nothing more is written; it looks at its clock every 50 ms."""
    taken = -1
    while taken != api.taken:
        taken = api.taken
        await asyncio.sleep(0.15)
