"""The controller's shell: what wakes a Workflow up, what happens when the API says no, and who leads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support import objects
from tests.support.virtual_time import elapse, turns
from tests.unit.controller.outcomes import CREATED, QUICK, SETTINGS, Rig, hardware, make_workflow, template
from tests.waiting import until
from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import FINALIZER, Raw
from tink.controller.settings import ControllerSettings
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.kube.resources import EVENT, HARDWARE, WORKFLOW
from tink.template import RenderedTemplate
from tink.workflow.guards import protect
from tink.workflow.status import creation_order, status_of

virtual = pytest.mark.looptime
LONG_AGO = "2027-01-15T07:00:00Z"


@pytest.fixture
def rig() -> Rig:
    return Rig(hardware, template)


NEW, PROTECTED, HALF = make_workflow(), make_workflow(), make_workflow(None, finalizer=True)
protect(PROTECTED)


@virtual
@pytest.mark.parametrize(
    ("workflow", "writes"),
    [(NEW, [None, "status"]), (PROTECTED, ["status"]), (HALF, ["status"])],
    ids=["new", "the API gives it the finalizer", "after a crash between the writes"],
)
async def test_a_workflow_is_prepared_with_two_writes_and_with_one_if_it_has_the_finalizer(
    rig: Rig, workflow: Raw, writes: list[str | None]
) -> None:
    async with rig.running():
        rig.put(workflow)
        await rig.until("Pending")
        await elapse(1)
    assert rig.patched == writes
    assert FINALIZER in rig.read()["metadata"]["finalizers"]


@virtual
@pytest.mark.parametrize("protected", [True, False], ids=["with finalizers from the API", "with the controller's"])
async def test_order_of_creation_within_a_second_is_the_same_for_all_and_for_good(rig: Rig, protected: bool) -> None:
    for name in ("wipe", "install", "a-last"):
        workflow = make_workflow(name=name)
        if protected:
            protect(workflow)
        rig.put(workflow)

    def order() -> list[str]:
        by_name = sorted(rig.api.objects(WORKFLOW), key=lambda each: each["metadata"]["name"])
        return [each["metadata"]["name"] for each in sorted(by_name, key=creation_order)]

    assert order() == ["wipe", "install", "a-last"]
    async with rig.running():
        await rig.until("Pending", "a-last")
        await elapse(1)
    wipe = rig.read("wipe")
    rig.put(wipe | {"status": wipe["status"] | {"state": "Running"}})
    assert order() == ["wipe", "install", "a-last"]


async def test_a_template_that_takes_its_time_keeps_nothing_else_of_the_process_waiting() -> None:
    others_went_on = threading.Event()
    in_time = []

    def render(_: Raw, _hardware: Raw, params: Mapping[str, str]) -> RenderedTemplate:
        if "slow" in params:
            in_time.append(others_went_on.wait(60))
        return RenderedTemplate([{"name": "a", "image": "i"}])

    rig = Rig(hardware, template, render=render, settings=SETTINGS)
    async with rig.running():
        rig.put(make_workflow(name="slow", spec={"templateParams": {"slow": "1"}}))
        rig.put(make_workflow())
        await rig.until("Pending")
        assert rig.state("slow") is None
        others_went_on.set()
        await rig.until("Pending", "slow")
    assert in_time == [True]


async def test_templates_of_one_tenant_that_take_long_do_not_hold_up_anothers_workflow() -> None:
    rendered: list[str] = []
    permits = threading.Semaphore(0)

    def render(_: Raw, _hardware: Raw, params: Mapping[str, str]) -> RenderedTemplate:
        rendered.append(params["of"])
        permits.acquire(timeout=60)
        return RenderedTemplate([{"name": "a", "image": "i"}])

    hostile = {"namespace": "hostile"}
    rig = Rig(hardware, template, render=render, settings=SETTINGS)
    rig.put(objects.hardware("h", **hostile))
    rig.put(objects.template(**hostile))
    async with rig.running():
        for number in range(100):
            spec = {"templateParams": {"of": "hostile"}}
            rig.put(objects.workflow(f"bomb{number}", hardware="h", spec=spec, **hostile))
        await until(lambda: len(rendered) == 2)  # more are not rendered at once
        rig.put(make_workflow(spec={"templateParams": {"of": "victim"}}))
        for count in range(3, 11):
            await turns(50)
            permits.release()
            await until(partial(lambda least: len(rendered) >= least, count))
        permits.release(200)
        await rig.until("Pending")
    assert rendered.index("victim") <= 8, "it waited for the others"


@virtual
@pytest.mark.parametrize("last", [hardware, template], ids=["hardware", "template"])
async def test_the_missing_reference_wakes_the_workflow_up_when_it_comes(last: Raw) -> None:
    rig = Rig(*(each for each in (hardware, template) if each is not last))
    async with rig.running():
        rig.put(make_workflow())
        await elapse(0.03)
        assert not status_of(rig.read()).get("actions")
        rig.put(last)
        await until(lambda: status_of(rig.read()).get("actions"))
        rig.api.calls.clear()
        rig.put(hardware)
        rig.put(template)
        await elapse(0.02)
    assert rig.patched == [], "a change touches only Workflows that wait for it"


@virtual
@pytest.mark.parametrize(
    "faults",
    [
        [ConflictError(409, "Conflict", "changed")],
        [UnreachableError("away"), ApiError(500, "InternalError", "oh")],
        [RuntimeError("a mistake of ours")],
    ],
)
async def test_a_write_that_fails_is_tried_again(rig: Rig, faults: list[Exception]) -> None:
    rig.api.fail("patch", *faults)
    async with rig.running():
        rig.put(make_workflow())
        await rig.until("Pending")


@virtual
@pytest.mark.parametrize("jump", [3e8, -3e8])
async def test_deadlines_come_without_any_change_and_not_because_a_clock_jumps(jump: float) -> None:
    rig = Rig(hardware, settings=replace(QUICK, scheduled_timeout=1.05))
    rig.put(make_workflow("Scheduled"))
    async with rig.running():
        rig.now += jump
        rig.put(make_workflow("Scheduled", reason="looked at again"))
        await elapse(0.02)
        assert rig.state() == "Scheduled"
        rig.elapsed += 1.05
        await rig.until("Failed")
        assert rig.controller.remembered == 0


@virtual
async def test_a_status_written_by_a_late_clock_has_its_whole_time(rig: Rig) -> None:
    async with rig.running():
        await elapse(0.01)
        rig.put(make_workflow("Pending", actions=[objects.action()]))
        rig.elapsed += 1
        rig.put(make_workflow("Scheduled", lastTransitioned=LONG_AGO))
        await elapse(0.02)
        assert rig.state() == "Scheduled"


@virtual
async def test_a_deleted_pending_workflow_goes(rig: Rig) -> None:
    workflow = make_workflow("Pending", deleted=True)
    workflow["metadata"]["finalizers"] = [FINALIZER]
    async with rig.running():
        rig.put(workflow)
        await rig.until("gone")
    assert rig.api.bodies("patch")[0]["status"]["state"] == "Canceled"


@virtual
async def test_a_status_edited_by_hand_is_reported_and_others_are_served(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.put(make_workflow("Paused", name="odd"))
    rig.put(make_workflow(name="w"))
    async with rig.running():
        await rig.until("Pending")
        await elapse(1)
    assert any("d/odd: status.state is 'Paused'" in r.getMessage() for r in caplog.records)
    assert rig.state("odd") == "Paused"
    warnings = [event for event in rig.api.objects(EVENT) if event["type"] == "Warning"]
    assert [(each["involvedObject"]["name"], each["reason"]) for each in warnings] == [("odd", "InvalidStatus")]


@virtual
async def test_transitions_are_logged_with_their_reason_and_what_went_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    async with rig.running():
        rig.put(make_workflow())
        await elapse(0.02)
        assert rig.controller.remembered == 3, "its timestamps, what it waits for, and its Hardware"
        rig.now += 3600
        rig.elapsed += 3600
        rig.put(make_workflow())
        await rig.until("Failed")
        rig.api.remove(WORKFLOW, "w", "d")
        await until(lambda: rig.controller.remembered == 0)
    lines = [r.getMessage() for r in caplog.records]
    assert any(line.startswith("Workflow d/w: (new) -> Failed: HardwareNotFound: ") for line in lines)


@virtual
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_the_api_never_takes_fails_the_workflow_instead_of_being_tried_for_ever(
    rig: Rig, status: int
) -> None:
    workflow = make_workflow()
    workflow["metadata"]["finalizers"] = [FINALIZER]  # so that the first write is the one that is refused
    rig.api.fail("patch", ApiError(status, "Invalid", "status.actions: no"))
    async with rig.running():
        rig.put(workflow)
        await rig.until("Failed")
        await elapse(1)
    assert not rig.read()["metadata"].get("finalizers")
    assert any("status.actions: no" in c.get("message", "") for c in rig.read()["status"]["conditions"])


@virtual
async def test_a_supervising_write_that_is_refused_is_tried_again(rig: Rig) -> None:
    rig.now += 400
    rig.elapsed += 400
    rig.put(make_workflow("Scheduled"))
    rig.api.fail("patch", ApiError(422, "Invalid", "no"))
    async with rig.running():
        await rig.until("Failed")
    assert [c["reason"] for c in rig.read()["status"]["conditions"]] == ["StartTimeout"]


@virtual
async def test_those_that_wait_for_others_do_not_hold_up_a_good_one() -> None:
    rig = Rig(template, objects.hardware("g", namespace="d"))
    rig.now += 30  # long enough to be worth a word in each one's conditions
    for index in range(200):
        rig.put(make_workflow(name=f"lost{index}"))
    rig.put(make_workflow(name="good", spec={"hardwareRef": {"name": "g"}}))
    for _ in range(300):
        rig.api.around("patch", before=lambda: elapse(0.005))
    async with rig.running():
        await rig.until("Pending", "good")
        assert len(rig.patched) < 60
        await until(lambda: all("status" in workflow for workflow in rig.api.objects(WORKFLOW)))


@virtual
async def test_thousands_in_trouble_fill_no_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.api.fail("patch", *[ApiError(500, "InternalError", "oh")] * 300)
    async with rig.running():
        for index in range(300):
            rig.put(make_workflow(name=f"w{index}"))
        await until(lambda: len(rig.patched) > 300)
    assert 1 <= len([r for r in caplog.records if "trying again" in r.getMessage()]) <= 20


async def test_a_thousand_looks_without_a_write_leave_others_their_turns(rig: Rig) -> None:
    for index in range(1000):
        rig.put(make_workflow("Scheduled", name=f"w{index}"))
    queue, count = rig.controller.runtime.queue, 0
    async with rig.running():
        while len(queue) or list(queue.begun()) or not count:
            await turns()
            count += 1
    assert count > 200


# --- several replicas ---


class Elected:
    """A leader by the test's word."""

    def __init__(self) -> None:
        self.is_leader = False
        self.write_timeout = 60.0
        self.elected = asyncio.Event()
        self.deposed = asyncio.Event()

    def lead(self) -> None:
        self.deposed.clear()
        self.elected.set()

    def lose(self) -> None:
        self.elected.clear()
        self.deposed.set()

    async def run(self, act: Callable[[], Any]) -> None:
        while True:
            await self.elected.wait()
            self.is_leader = True
            acting = asyncio.create_task(act())
            try:
                await self.deposed.wait()
            finally:
                acting.cancel()
                await asyncio.wait([acting])
                self.is_leader = False


@pytest.fixture
def replica() -> Rig:
    return Rig(hardware, template, elector=Elected())


@virtual
async def test_who_does_not_lead_writes_nothing_and_does_all_of_it_when_elected_and_elected_again(
    replica: Rig,
) -> None:
    stalled = asyncio.Event()

    async def stall() -> None:
        stalled.set()
        await asyncio.Event().wait()

    replica.api.around("patch", before=stall)
    async with replica.running():
        for name in ("a", "b", "c"):
            replica.put(make_workflow(name=name))
        await elapse(0.03)
        assert replica.patched == []
        replica.elector.lead()
        await stalled.wait()
        replica.elector.lose()
        await elapse(0.02)
        assert None in [replica.state(name) for name in ("a", "b", "c")], "its write was cut short"
        replica.elector.lead()
        for name in ("a", "b", "c"):
            await replica.until("Pending", name)


@virtual
async def test_a_write_of_a_leader_ends_before_its_lease_does(replica: Rig) -> None:
    clock = asyncio.get_running_loop().time
    times: list[float] = []

    async def stall() -> None:
        times.append(clock())
        try:
            await asyncio.Event().wait()
        finally:
            times.append(clock())

    replica.elector.write_timeout = 7.0
    replica.api.around("patch", before=stall)
    async with replica.running():
        replica.elector.lead()
        replica.put(make_workflow())
        await until(lambda: len(times) == 2)
    assert times[1] - times[0] == pytest.approx(7.0), "its own bound, and not the client's"


@virtual
async def test_worker_that_lost_leadership_without_noticing_does_not_write(replica: Rig) -> None:
    async with replica.running():
        replica.elector.lead()
        await until(lambda: replica.elector.is_leader)
        replica.elector.is_leader = False
        replica.put(make_workflow())
        await elapse(0.05)
        assert replica.patched == []
        replica.elector.is_leader = True
        await replica.until("Pending")


# --- what has ended ---


def ended(ttl: int | None, name: str = "w", at: str = objects.CREATED, hardware: str = "h") -> Raw:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    spec |= {"hardwareRef": {"name": hardware}}
    return make_workflow("Succeeded", name=name, finalizer=False, spec=spec, lastTransitioned=at)


@virtual
async def test_the_finalizer_goes_though_a_clock_is_set_back_meanwhile(rig: Rig) -> None:
    async with rig.running():
        rig.put(make_workflow("Running", finalizer=True))
        rig.now = CREATED
        rig.put(make_workflow("Succeeded"))
        rig.now -= 86_400
        rig.elapsed += SETTINGS.release_after
        rig.put(make_workflow("Succeeded"))
        await until(lambda: rig.read()["metadata"]["finalizers"] == ["other/one"])
    assert rig.patched == [None]


@virtual
async def test_controller_deletes_expired_and_surplus_workflows() -> None:
    rig = Rig(
        ended(None, "old", "2027-01-14T00:00:00Z"),
        ended(None, "new"),
        ended(5, "timed", hardware="another"),
        settings=ControllerSettings(history_limit=1),
        now=CREATED + 10,
    )
    async with rig.running():
        await rig.until("gone", "old")
        await rig.until("gone", "timed")
        await elapse(1)
    assert rig.state("new") == "Succeeded"


@virtual
async def test_clock_that_jumps_shortens_no_timeout(rig: Rig) -> None:
    async with rig.running():
        await turns()
        rig.now = CREATED
        rig.put(make_workflow("Running", finalizer=False, spec={"ttlSecondsAfterFinished": 3600}))
        rig.put(ended(3600))
        rig.now += 86_400
        rig.put(ended(3600))
        await elapse(0.05)
        assert rig.api.count("delete") == 0
        rig.elapsed += 3600
        rig.put(ended(3600))
        await rig.until("gone")


@virtual
async def test_one_that_is_held_in_the_last_moment_is_not_deleted(rig: Rig) -> None:
    async def hold() -> None:
        held = ended(0)
        held["metadata"]["annotations"] = {HOLD_ANNOTATION: "wait"}
        rig.put(held)

    rig.api.around("delete", before=hold)
    rig.now = CREATED + 10
    async with rig.running():
        rig.put(ended(0))
        await until(lambda: rig.controller.runtime.queue.counts.retries)
        await elapse(1)
    assert (rig.state(), rig.api.count("delete")) == ("Succeeded", 1)


@virtual
async def test_history_is_not_looked_at_when_the_controller_starts() -> None:
    """A hundred thousand looks, for nothing."""
    there = [*(ended(None, f"w{index}") for index in range(50)), make_workflow("Succeeded", name="unfinished")]
    rig = Rig(*there, now=CREATED + SETTINGS.release_after)
    async with rig.running():
        await until(lambda: rig.patched)
    assert rig.controller.runtime.queue.counts.adds == 2, "once, and after its finalizer is gone"


# --- the Hardware is gone ---------------------------------------------------------------------------------------------


def gone(rig: Rig) -> str:
    """Return the status and the reason of the condition HardwareGone; empty: it has none."""
    conditions = status_of(rig.read()).get("conditions", [])
    found = [each for each in conditions if each["type"] == "HardwareGone"]
    return f"{found[0]['status']} {found[0]['reason']}" if found else ""


@virtual
async def test_workflow_hears_of_its_hardware_that_goes_and_comes_back_and_events_say_so(rig: Rig) -> None:
    action = objects.action("a0", "Running", name="x")
    async with rig.running():
        rig.put(make_workflow("Running", actions=[action], startedAt=objects.CREATED))
        await elapse(1)
        assert gone(rig) == ""
        rig.api.remove(HARDWARE, "h", "d")
        await elapse(1)
        assert gone(rig) == "True HardwareDeleted"
        rig.put(hardware)
        await elapse(1)
        assert (rig.state(), gone(rig)) == ("Running", "False HardwareBack")
        rig.api.remove(HARDWARE, "h", "d")
        await elapse(1)
        rig.now += 300
        rig.elapsed += 300
        await elapse(301)
        assert rig.state() == "Failed"
        await elapse(15)
    events = [(each["type"], each["reason"]) for each in rig.api.objects(EVENT)]
    assert set(events) == {("Warning", "HardwareDeleted"), ("Normal", "HardwareBack"), ("Warning", "HardwareGone")}


@virtual
async def test_hardware_that_the_informer_does_not_select_is_not_gone() -> None:
    rig = Rig(hardware, template, hardware_selector="site=elsewhere")
    async with rig.running():
        rig.put(make_workflow("Running", actions=[objects.action("a0", "Running")], startedAt=objects.CREATED))
        await elapse(1)
        rig.hardware.feed("DELETED", hardware)  # it lost the label
        await elapse(1)
        assert gone(rig) == ""
        rig.api.remove(HARDWARE, "h", "d")
        rig.put(make_workflow("Running", actions=[objects.action("a0", "Running")], startedAt=LONG_AGO))
        await elapse(1)
        assert gone(rig) == "True HardwareDeleted"
