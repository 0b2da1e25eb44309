"""The controller's shell: what wakes a Workflow up, and what happens when the API says no."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.waiting import until
from tink.api.v1alpha2 import API_VERSION, FINALIZER, Raw
from tink.controller.controller import WorkflowController
from tink.controller.settings import ControllerSettings
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.workflow.protection import protect
from tink.workflow.status import status_of

NOW = 1_800_000_001.0
Make = Callable[..., Raw]


class Rig:
    """A controller over an API in memory."""

    def __init__(
        self, store: Any, fake_api: Any, render: Any, settings: ControllerSettings, elector: Any = None
    ) -> None:
        self.workflows, self.hardware, self.templates = store(), store(), store()
        self.api = fake_api(self.workflows)
        self.now = NOW
        self.elapsed = 0.0
        self.controller = WorkflowController(
            self.api,
            workflows=self.workflows,
            hardware=self.hardware,
            templates=self.templates,
            settings=replace(settings, event_settle=0.0),
            render=render,
            clock=lambda: self.now,
            elapsed=lambda: self.elapsed,
            elector=elector,
        )

    def state(self, name: str = "w") -> str | None:
        workflow = self.workflows.get("d", name)
        return workflow.get("status", {}).get("state") if workflow is not None else "gone"

    async def until(self, state: str | None, name: str = "w") -> None:
        await until(lambda: self.state(name) == state)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.controller.run())
        try:
            yield
        finally:
            assert not task.done(), task.exception()
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


async def test_one_write_is_enough_where_the_api_gives_new_workflows_the_finalizer(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    async with rig.running():
        new = make_workflow()
        new |= {"apiVersion": API_VERSION, "kind": "Workflow"}
        protect(new)
        rig.workflows.put(new)
        await rig.until("Pending")
        await asyncio.sleep(0.01)
    assert [subresource for subresource, _ in rig.api.patches] == ["status"]
    assert rig.workflows.get("d", "w")["metadata"]["finalizers"] == [FINALIZER]  # type: ignore[index]
    workflow = rig.workflows.get("d", "w")
    assert workflow is not None
    assert workflow["metadata"]["finalizers"] == [FINALIZER]


async def test_a_template_that_takes_its_time_keeps_nothing_else_of_the_process_waiting(
    store: Any, fake_api: Any, make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    others_went_on = threading.Event()
    in_time = []

    def render(_: Raw, _hardware: Raw, params: Mapping[str, str]) -> list[Raw]:
        if "slow" in params:
            in_time.append(others_went_on.wait(5))
        return [{"name": "a", "image": "i"}]

    rig = Rig(store, fake_api, render, ControllerSettings())
    rig.hardware.put(hardware)
    rig.templates.put(template)
    async with rig.running():
        rig.workflows.put(make_workflow(name="slow", spec={"templateParams": {"slow": "1"}}))
        rig.workflows.put(make_workflow())
        await rig.until("Pending")
        assert rig.state("slow") is None
        others_went_on.set()
        await rig.until("Pending", "slow")
    assert in_time == [True]


async def test_templates_of_one_tenant_that_take_long_do_not_hold_up_anothers_workflow(
    store: Any, fake_api: Any, make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    rendered: list[str] = []

    def render(_: Raw, _hardware: Raw, params: Mapping[str, str]) -> list[Raw]:
        rendered.append(params["of"])
        time.sleep(0.02)
        return [{"name": "a", "image": "i"}]

    rig = Rig(store, fake_api, render, ControllerSettings())
    rig.hardware.put(hardware)
    rig.templates.put(template)
    for namespace in ("d", "hostile"):
        rig.hardware.put({**hardware, "metadata": {**hardware["metadata"], "namespace": namespace}})
        rig.templates.put({**template, "metadata": {**template["metadata"], "namespace": namespace}})
    async with rig.running():
        for number in range(100):
            bomb = make_workflow(name=f"bomb{number}", spec={"templateParams": {"of": "hostile"}})
            bomb["metadata"]["namespace"] = "hostile"
            rig.workflows.put(bomb)
        await until(lambda: rendered)
        before = len(rendered)
        rig.workflows.put(make_workflow(spec={"templateParams": {"of": "victim"}}))
        await rig.until("Pending")
    assert rendered.index("victim") - before <= 8, "it waited for the others"


@pytest.mark.parametrize("last", ["hardware", "template"])
async def test_the_missing_reference_wakes_the_workflow_up_when_it_comes(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, last: str
) -> None:
    puts = {"hardware": lambda: rig.hardware.put(hardware), "template": lambda: rig.templates.put(template)}
    puts[({"hardware", "template"} - {last}).pop()]()
    async with rig.running():
        rig.workflows.put(make_workflow())
        await asyncio.sleep(0.03)
        assert not status_of(rig.workflows.get("d", "w") or {}).get("actions")
        puts[last]()
        await until(lambda: status_of(rig.workflows.get("d", "w") or {}).get("actions"))


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
        rig.elapsed += 0.06
        await rig.until("Failed")


@pytest.mark.parametrize("jump", [3e8, -3e8])
async def test_a_clock_that_jumps_ends_no_workflow(rig: Rig, make_workflow: Make, jump: float) -> None:
    rig.workflows.put(make_workflow("Scheduled"))
    async with rig.running():
        rig.now += jump
        rig.workflows.put(make_workflow("Scheduled", reason="looked at again"))
        await asyncio.sleep(0.02)
        assert rig.state() == "Scheduled"
        rig.elapsed += 300
        rig.workflows.put(make_workflow("Scheduled", reason="and again"))
        await rig.until("Failed")
        assert len(rig.controller._ages) == 0


async def test_a_status_written_by_a_late_clock_has_its_whole_time(rig: Rig, make_workflow: Make) -> None:
    async with rig.running():
        await asyncio.sleep(0.01)
        rig.workflows.put(make_workflow("Pending", actions=[{"id": "a"}]))
        rig.elapsed += 1
        rig.workflows.put(make_workflow("Scheduled", lastTransitioned="2027-01-15T07:00:00Z"))
        await asyncio.sleep(0.02)
        assert rig.state() == "Scheduled"


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
    assert [(e["involvedObject"]["name"], e["reason"]) for e in rig.api.events if e["type"] == "Warning"] == [
        ("odd", "InvalidStatus")
    ]


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


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_the_api_never_takes_fails_the_workflow_instead_of_being_tried_for_ever(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, status: int
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    workflow = make_workflow()
    workflow["metadata"]["finalizers"] = [FINALIZER]  # so that the first write is the one that is refused
    rig.api.faults = [ApiError(status, "Invalid", "status.actions: no")]
    async with rig.running():
        rig.workflows.put(workflow)
        await rig.until("Failed")
        await asyncio.sleep(0.01)
    failed = rig.workflows.get("d", "w")
    assert failed is not None
    assert failed["metadata"]["finalizers"] == []
    assert any("status.actions: no" in c.get("message", "") for c in failed["status"]["conditions"])


async def test_a_supervising_write_that_is_refused_is_tried_again(rig: Rig, make_workflow: Make) -> None:
    rig.now += 400
    rig.api.faults = [ApiError(422, "Invalid", "no")]
    async with rig.running():
        rig.workflows.put(make_workflow("Scheduled", lastTransitioned="2027-01-15T07:00:00Z"))
        rig.elapsed += 400
        await rig.until("Failed")
    failed = rig.workflows.get("d", "w")
    assert failed is not None
    assert [c["reason"] for c in failed["status"]["conditions"]] == ["StartTimeout"]


async def test_those_that_wait_for_others_do_not_hold_up_a_good_one(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = rig.api.patch

    async def slowly(*words: Any, **options: Any) -> Raw:
        await asyncio.sleep(0.005)
        written: Raw = await patch(*words, **options)
        return written

    monkeypatch.setattr(rig.api, "patch", slowly)
    rig.now += 30  # long enough to be worth a word in each one's conditions
    rig.templates.put(template)
    rig.hardware.put({**hardware, "metadata": {**hardware["metadata"], "name": "g"}})
    for index in range(200):
        rig.workflows.put(make_workflow(name=f"lost{index}"))
    rig.workflows.put(make_workflow(name="good", spec={"hardwareRef": {"name": "g"}}))
    async with rig.running():
        await rig.until("Pending", "good")
        assert len(rig.api.patches) < 60
        await until(lambda: all("status" in workflow for workflow in rig.workflows.objects.values()))


async def test_thousands_in_trouble_fill_no_log(
    rig: Rig, make_workflow: Make, hardware: Raw, template: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    rig.hardware.put(hardware)
    rig.templates.put(template)
    rig.api.faults = [ApiError(500, "InternalError", "oh") for _ in range(300)]
    async with rig.running():
        for index in range(300):
            rig.workflows.put(make_workflow(name=f"w{index}"))
        async with asyncio.timeout(20):
            while rig.api.faults:
                await asyncio.sleep(0.01)
    assert 1 <= len([r for r in caplog.records if "trying again" in r.getMessage()]) <= 20


async def test_a_thousand_looks_without_a_write_leave_others_their_turns(rig: Rig, make_workflow: Make) -> None:
    for index in range(1000):
        rig.workflows.put(make_workflow("Scheduled", name=f"w{index}"))
    turns = 0
    async with rig.running():
        while len(rig.controller._queue._timers) < 1000:
            await asyncio.sleep(0)
            turns += 1
    assert turns > 200


class Elected:
    """A leader by the test's word."""

    def __init__(self) -> None:
        self.is_leader = False
        self.write_timeout = 0.05
        self.elected = asyncio.Event()

    async def run(self, act: Callable[[], Any]) -> None:
        while True:
            await self.elected.wait()
            self.is_leader = True
            acting = asyncio.create_task(act())
            try:
                while self.elected.is_set():
                    await asyncio.sleep(0.001)
            finally:
                acting.cancel()
                await asyncio.wait([acting])
                self.is_leader = False


@pytest.fixture
def elected_rig(store: Any, fake_api: Any, render: Any, hardware: Raw, template: Raw) -> Rig:
    settings = ControllerSettings(retry_first=0.005, retry_longest=0.02)
    rig = Rig(store, fake_api, render, settings, elector=Elected())
    rig.hardware.put(hardware)
    rig.templates.put(template)
    return rig


async def test_who_does_not_lead_writes_nothing_and_begins_with_all_of_it_when_elected(
    elected_rig: Rig, make_workflow: Make
) -> None:
    rig = elected_rig
    elector: Any = rig.controller._elector
    async with rig.running():
        for name in ("a", "b", "c"):
            rig.workflows.put(make_workflow(name=name))
        await asyncio.sleep(0.03)
        assert rig.api.patches == []
        elector.elected.set()
        for name in ("a", "b", "c"):
            await rig.until("Pending", name)


async def test_what_was_cut_short_by_the_loss_of_the_lease_is_done_when_it_is_won_again(
    elected_rig: Rig, make_workflow: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = elected_rig
    elector: Any = rig.controller._elector
    elector.write_timeout = 60
    patch, stalled = rig.api.patch, asyncio.Event()

    async def stall(*_: Any, **__: Any) -> Raw:
        stalled.set()
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(rig.api, "patch", stall)
    async with rig.running():
        elector.elected.set()
        rig.workflows.put(make_workflow())
        await stalled.wait()
        elector.elected.clear()
        await asyncio.sleep(0.02)
        monkeypatch.setattr(rig.api, "patch", patch)
        elector.elected.set()
        await rig.until("Pending")


async def test_a_write_of_a_leader_ends_before_its_lease_does(
    elected_rig: Rig, make_workflow: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = elected_rig
    elector: Any = rig.controller._elector
    ends: list[float] = []

    async def stall(*_: Any, **__: Any) -> Raw:
        begun = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(3600)
        finally:
            ends.append(asyncio.get_running_loop().time() - begun)
        raise AssertionError

    monkeypatch.setattr(rig.api, "patch", stall)
    async with rig.running():
        elector.elected.set()
        rig.workflows.put(make_workflow())
        await until(lambda: ends)
    assert 0.9 * elector.write_timeout < ends[0] < 5, "its own bound, and no longer one of the client's"


async def test_a_worker_that_has_not_heard_yet_that_another_leads_does_not_write(
    elected_rig: Rig, make_workflow: Make
) -> None:
    rig = elected_rig
    elector: Any = rig.controller._elector
    async with rig.running():
        elector.elected.set()
        await until(lambda: elector.is_leader)
        elector.is_leader = False
        rig.workflows.put(make_workflow())
        await asyncio.sleep(0.05)
        assert rig.api.patches == []
        elector.is_leader = True
        await rig.until("Pending")


async def test_nothing_is_remembered_of_workflows_that_went(rig: Rig, make_workflow: Make) -> None:
    async with rig.running():
        rig.workflows.put(make_workflow())
        await asyncio.sleep(0.02)
        rig.workflows.remove("d", "w")
        await until(lambda: len(rig.controller._waiting) == 0 and len(rig.controller._ages) == 0)
