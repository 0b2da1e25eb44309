"""What an agent holds when it comes: what is lost, what is sent again, what it is asked."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.unit.server.conftest import Rig
from tests.unit.server.dispatch.conftest import OVER, Make, reboots
from tink.kube.client import ConflictError, UnreachableError
from tink.server.dispatch.decision import Stop
from tink.workflow import events

pytestmark = pytest.mark.looptime

# --- what the agent holds -----------------------------------------------------------------------------------------


async def test_an_agent_that_comes_back_without_its_workflow_fails_it_and_gets_the_next(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("next", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-next")]
    assert rig.state() == "Failed"
    assert rig.read("w")["status"]["conditions"][0]["reason"] == "AgentLost"
    assert there.lost == ["Failed"]


async def test_an_agent_that_comes_back_without_the_workflow_it_was_to_stop_ends_it(rig: Rig, side: Make) -> None:
    rig.workflow(state="Cancelling")
    assert await side().calm() == []
    assert rig.state() == "Canceled"


async def test_a_machine_that_rebooted_as_its_last_action_wanted_has_succeeded(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    reboots(rig)
    there = side()
    assert await there.calm() == []
    assert rig.state() == "Succeeded"
    assert there.lost == ["Succeeded"]


@pytest.mark.parametrize("state", ["Running", "Scheduled"])
async def test_a_workflow_that_the_agent_holds_is_neither_lost_nor_sent_again(rig: Rig, side: Make, state: str) -> None:
    rig.workflow(state=state)
    there = side("uid-w")
    assert await there.calm() == []
    assert rig.state() == state
    assert there.lost == []
    rig.set_state("w", "Failed", conditions=OVER)
    assert await there.calm() == [("stop", "uid-w")]


async def test_a_scheduled_workflow_that_the_agent_does_not_hold_is_sent_again(rig: Rig, side: Make) -> None:
    rig.workflow(state="Scheduled")
    assert await side().calm() == [("start", "uid-w")]


async def test_an_agent_that_does_not_say_what_it_holds_loses_nothing(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side(says=False)
    assert await there.calm() == []
    assert rig.state() == "Running"
    rig.set_state("w", "Failed", conditions=OVER)
    assert await there.calm() == [("stop", "uid-w")], "it may run it all the same"


async def test_what_waits_or_has_ended_costs_no_call_when_an_agent_comes(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("done", state="Succeeded")
    for number in range(20):
        rig.workflow(f"waits{number}", created=number)
    there = side("uid-w")
    assert await there.calm() == []
    assert rig.api.calls == []
    assert not there.task.done()


async def test_a_workflow_that_ended_well_does_not_fail_because_the_informer_is_behind(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side(start=False)
    rig.workflows.hold()
    rig.set_state("w", "Succeeded")
    there.start()
    assert await there.calm() == []
    assert rig.state() == "Succeeded"


@pytest.mark.parametrize("seems", ["Scheduled", "Pending"])
async def test_a_workflow_that_seemed_not_to_run_yet_when_the_agent_came_without_it_is_asked_about_and_not_run_again(
    rig: Rig, side: Make, seems: str
) -> None:
    """It may run for an agent that has gone on to another server; or the copy was behind, and the agent has lost it."""
    rig.workflow(state=seems)
    there = side(start=False)
    rig.workflows.hold()
    rig.set_state("w", "Running")
    there.start()
    await there.calm()
    rig.workflows.release()
    assert await there.calm() == []
    assert rig.state() == "Running"
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE
    again = side()
    assert await again.calm() == []
    assert rig.state() == "Failed"
    assert again.lost == ["Failed"]


async def test_what_begins_to_run_between_the_hello_and_the_account_is_not_lost(rig: Rig, side: Make) -> None:
    rig.workflow(state="Scheduled")
    there = side(start=False)
    rig.set_state("w", "Running")  # seen by this server at once
    there.start()
    await there.calm()
    assert rig.state() == "Running"
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE


async def test_a_slow_account_does_not_fail_what_began_to_run_elsewhere_meanwhile(rig: Rig, side: Make) -> None:
    """The agent held nothing when it came, its connection died unseen, and another server sent it the Workflow."""
    rig.workflow(state="Running")
    rig.workflow("second", state="Scheduled", created=1)
    rig.hold()
    there = side()
    await there.calm()
    rig.set_state("second", "Running")
    rig.gate.open()
    assert await there.calm() == []
    assert (rig.state(), rig.state("second")) == ("Failed", "Running")
    assert "connect again" in (await there.task).message


async def test_a_workflow_that_was_dispatched_on_this_stream_is_never_lost_on_it(rig: Rig, side: Make) -> None:
    rig.workflow()
    there = side()
    assert await there.calm() == [("start", "uid-w")]
    await there.store.take(there.index.get("uid-w") or {}, events.ActionStarted("a0"))
    there.stream.wake()
    assert await there.calm() == [("start", "uid-w")]
    assert rig.state() == "Running"


async def test_a_stream_whose_agent_has_gone_on_to_another_server_does_not_fail_what_runs_there(
    rig: Rig, side: Make
) -> None:
    """It is a dead connection that nobody has noticed yet: the agent held nothing when it opened this one."""
    dead = side()
    await dead.calm()
    rig.workflow(state="Running")
    assert await dead.calm() == []
    assert rig.state() == "Running"


async def test_what_is_held_of_a_workflow_that_is_gone_is_stopped(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w", "uid-never-was", start=False)
    rig.remove("w")
    there.start()
    assert await there.calm() == [("stop", "uid-w")]
    assert there.sent == [Stop("uid-w", "d/w")]


@pytest.mark.parametrize("fault", [UnreachableError("away"), ConflictError(409, "Conflict", "c")])
async def test_an_agent_whose_losses_cannot_be_stored_is_asked_to_come_again(
    rig: Rig, side: Make, fault: Exception
) -> None:
    rig.workflow(state="Running")
    rig.api.fail("patch", *[fault] * 20)
    there = side()
    ending = await there.task
    assert ending.code is grpc.StatusCode.UNAVAILABLE
    assert "connect again" in ending.message


async def test_an_agent_is_asked_to_come_again_when_what_it_said_is_old(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.hold()
    clock = asyncio.get_running_loop().time
    begin, there = clock(), side()
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE
    assert clock() - begin == pytest.approx(5), "it would get no command meanwhile"


async def test_a_stream_that_was_replaced_while_it_took_stock_decides_nothing(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("v", state="Running")
    there = side(start=False)
    there.stream.end(grpc.StatusCode.ABORTED, "another")
    there.start()
    await there.calm()
    assert (rig.state(), rig.state("v")) == ("Running", "Running")
