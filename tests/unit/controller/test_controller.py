"""The controller's shell: what wakes a Workflow up, and what happens when the API says no."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tink.api.v1alpha2 import FINALIZER, Raw
from tink.controller.controller import Controller
from tink.controller.settings import ControllerSettings
from tink.kube.client import ApiError, ConflictError, UnreachableError

NOW = 1_800_000_001.0
Make = Callable[..., Raw]


class Rig:
    """A controller over an API in memory."""

    def __init__(self, store: Any, fake_api: Any, render: Any, settings: ControllerSettings) -> None:
        self.workflows, self.hardware, self.templates = store(), store(), store()
        self.api = fake_api(self.workflows)
        self.now = NOW
        self.controller = Controller(
            self.api,
            workflows=self.workflows,
            hardware=self.hardware,
            templates=self.templates,
            settings=settings,
            render=render,
            clock=lambda: self.now,
        )

    def state(self, name: str = "w") -> str | None:
        workflow = self.workflows.get("d", name)
        return workflow.get("status", {}).get("state") if workflow is not None else "gone"

    async def until(self, state: str | None, name: str = "w") -> None:
        async with asyncio.timeout(3):
            while self.state(name) != state:
                await asyncio.sleep(0.002)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.controller.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def rig(store: Any, fake_api: Any, render: Any) -> Rig:
    return Rig(store, fake_api, render, ControllerSettings(retry_first=0.005, retry_longest=0.02))


async def test_a_workflow_is_prepared_with_two_writes(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    async with rig.running():
        rig.workflows.put(make_workflow())
        await rig.until("Pending")
        await asyncio.sleep(0.01)
    assert [subresource for subresource, _ in rig.api.patches] == [None, "status"]
    workflow = rig.workflows.get("d", "w")
    assert workflow is not None
    assert workflow["metadata"]["finalizers"] == [FINALIZER]


@pytest.mark.parametrize("last", ["hardware", "template"])
async def test_the_missing_reference_wakes_the_workflow_up_when_it_comes(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, last: str
) -> None:
    puts = {"hardware": lambda: rig.hardware.put(hardware), "template": lambda: rig.templates.put(template)}
    puts[({"hardware", "template"} - {last}).pop()]()
    async with rig.running():
        rig.workflows.put(make_workflow())
        await asyncio.sleep(0.03)
        assert rig.state() is None
        puts[last]()
        await rig.until("Pending")


async def test_a_change_of_hardware_touches_only_workflows_that_wait_for_it(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    async with rig.running():
        rig.workflows.put(make_workflow())
        await rig.until("Pending")
        rig.api.patches.clear()
        rig.hardware.put(hardware)
        rig.templates.put(template)
        await asyncio.sleep(0.02)
    assert rig.api.patches == []


@pytest.mark.parametrize(
    "faults",
    [
        [ConflictError(409, "Conflict", "changed")],
        [UnreachableError("away"), ApiError(500, "InternalError", "oh")],
        [RuntimeError("a mistake of ours")],
    ],
)
async def test_a_write_that_fails_is_tried_again(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, faults: list[Exception]
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    rig.api.faults = list(faults)
    async with rig.running():
        rig.workflows.put(make_workflow())
        await rig.until("Pending")


async def test_a_finalizer_without_status_is_completed_after_a_crash_between_the_writes(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    rig.workflows.put(make_workflow(None, finalizer=True))
    async with rig.running():
        await rig.until("Pending")
    assert [subresource for subresource, _ in rig.api.patches] == ["status"]


async def test_deadlines_come_without_any_change(store: Any, fake_api: Any, render: Any, make_workflow: Make) -> None:
    rig = Rig(store, fake_api, render, ControllerSettings(scheduled_timeout=1.05))
    async with rig.running():
        rig.workflows.put(make_workflow("Scheduled"))
        await asyncio.sleep(0.01)
        assert rig.state() == "Scheduled"
        rig.now += 0.06
        await rig.until("Failed")


async def test_a_deleted_pending_workflow_goes(rig: Rig, make_workflow: Make) -> None:
    workflow = make_workflow("Pending", deleted=True)
    workflow["metadata"]["finalizers"] = [FINALIZER]
    async with rig.running():
        rig.workflows.put(workflow)
        await rig.until("gone")
        await asyncio.sleep(0.01)
    assert rig.api.patches[0][1]["status"]["state"] == "Canceled"


async def test_a_status_edited_by_hand_is_reported_and_others_are_served(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    rig.workflows.put(make_workflow("Paused", name="odd"))
    rig.workflows.put(make_workflow(name="w"))
    async with rig.running():
        await rig.until("Pending")
    assert any("d/odd: status.state is 'Paused'" in r.getMessage() for r in caplog.records)
    assert rig.state("odd") == "Paused"


async def test_transitions_are_logged_with_their_reason(
    rig: Rig, make_workflow: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.now += 3600
    async with rig.running():
        rig.workflows.put(make_workflow())
        await rig.until("Failed")
    lines = [r.getMessage() for r in caplog.records]
    assert any(line.startswith("Workflow d/w: (new) -> Failed: HardwareNotFound: ") for line in lines)


async def test_nothing_is_remembered_of_workflows_that_went(rig: Rig, make_workflow: Make) -> None:
    async with rig.running():
        rig.workflows.put(make_workflow())
        await asyncio.sleep(0.02)
        rig.workflows.remove("d", "w")
        await asyncio.sleep(0.02)
        assert rig.controller._waiters == {}
        assert rig.controller._waits_for == {}
