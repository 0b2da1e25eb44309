"""One agent's command stream: what ends while it is sent, what was edited by hand, and the whole over the network."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from proto import metadata
from tests.unit.server.conftest import Rig, started
from tests.unit.server.dispatch.conftest import OVER, Make, reboots
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.server.agents.call_metadata import MAX_HELD, read_call_metadata
from tink.workflow import events

# --- what ended while it was sent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
async def test_a_workflow_that_times_out_while_it_is_sent_is_stopped(rig: Rig, side: Make, state: str) -> None:
    rig.workflow(state=state)
    there = side(start=False)

    async def time_out() -> None:
        there.before_write = None
        rig.set_state("w", "Failed", conditions=[OVER[0] | {"reason": "StartTimeout"}])

    there.before_write = time_out
    there.start()
    assert await there.calm() == [("start", "uid-w"), ("stop", "uid-w")]


async def test_a_workflow_that_vanishes_while_it_is_sent_is_stopped(rig: Rig, side: Make) -> None:
    rig.workflow()
    there = side(start=False)

    async def vanish() -> None:
        there.before_write = None
        rig.remove("w")

    there.before_write = vanish
    there.start()
    assert await there.calm() == [("start", "uid-w"), ("stop", "uid-w")]


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("state", ["Failed", "Running", "Cancelling", "Odd"])
async def test_a_workflow_that_is_not_scheduled_any_more_is_not_sent_because_the_informer_is_behind(
    rig: Rig, side: Make, says: bool, state: str
) -> None:
    rig.workflow(state="Scheduled")
    there = side(start=False, says=says)
    rig.workflows.hold()
    rig.set_state("w", state, conditions=[OVER[0] | {"reason": "StartTimeout"}])
    there.start()
    assert ("start", "uid-w") not in await there.calm()


async def test_a_workflow_that_timed_out_before_the_agent_changed_servers_is_stopped_by_the_new_one(
    rig: Rig, side: Make
) -> None:
    rig.workflow(state="Failed", conditions=OVER)
    there = side("uid-w")
    assert await there.calm() == [("stop", "uid-w")]
    rig.set_state("w", "Failed", message="again")
    assert await there.calm() == [("stop", "uid-w")], "once is enough"


async def test_a_workflow_that_timed_out_and_was_deleted_at_once_is_stopped(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w")
    await there.calm()
    rig.workflows.hold()
    rig.set_state("w", "Failed", conditions=OVER)
    rig.remove("w")
    rig.workflows.release()
    assert await there.calm() == [("stop", "uid-w")]


@pytest.mark.parametrize("report", [events.ActionStarted("a1"), events.ActionSucceeded("a0")])
async def test_an_agent_that_still_reports_of_a_workflow_that_is_over_is_told_to_stop(
    rig: Rig, side: Make, report: Any
) -> None:
    rig.workflow(state="Failed", conditions=OVER)
    there = side()
    assert await there.calm() == []
    there.stream.heard("uid-w", events.Rejected("UnknownWorkflow", "m"))
    there.stream.heard("uid-w", events.ActionFailed("a0", "R", "m"))
    assert await there.calm() == [], "it has stopped"
    there.stream.heard("uid-w", report)
    assert await there.calm() == [("stop", "uid-w")]


async def test_an_agent_that_does_not_say_what_it_runs_is_told_to_stop_what_is_over_without_its_word(
    rig: Rig, side: Make
) -> None:
    """It may have been away when the time was up."""
    rig.workflow(state="Failed", conditions=OVER)
    assert await side(says=False).calm() == [("stop", "uid-w")]


async def test_a_workflow_that_is_deleted_while_its_agent_holds_it_unheard_is_stopped(rig: Rig, side: Make) -> None:
    """The claim was taken back, but the command had arrived."""
    rig.workflow(dispatchAfter="2027-01-15T08:00:30Z")
    there = side("uid-w")
    assert await there.calm() == []
    there.stream.gone(rig.read("w"))
    assert await there.calm() == [("stop", "uid-w")]


async def test_a_workflow_that_is_deleted_after_its_agent_was_heard_of_it_is_stopped(rig: Rig, side: Make) -> None:
    """This server's copy is behind: another one has sent it."""
    rig.workflow(dispatchAfter="2027-01-15T08:00:30Z")
    there = side()
    assert await there.calm() == []
    there.stream.heard("uid-w", events.ActionStarted("a0"))
    assert await there.calm() == []
    there.stream.gone(rig.read("w"))
    assert await there.calm() == [("stop", "uid-w")]


async def test_a_reboot_that_counts_as_done_is_not_stopped_when_its_agent_shows_up_again(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    reboots(rig)
    there = side("uid-w")
    await there.calm()
    await there.store.take(there.index.get("uid-w") or {}, events.AgentAway(30))
    there.stream.wake()
    assert rig.state() == "Succeeded"
    assert await there.calm() == []


# --- what somebody edited by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", [{"state": "Odd"}, {"actions": [{"id": "a0", "state": "Odd"}]}])
async def test_a_status_edited_by_hand_is_named_once_and_holds_up_nobody(
    rig: Rig, side: Make, caplog: pytest.LogCaptureFixture, edit: Raw
) -> None:
    rig.workflow()
    rig.set_state("w", **({"state": "Pending"} | edit))
    rig.workflow("good", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-good")]
    for note in range(5):
        rig.set_state("w", **({"state": "Pending"} | edit), message=str(note))
        await there.calm()
    said = [record.getMessage() for record in caplog.records if "d/w" in record.getMessage()]
    assert len(said) == 1, said
    assert "'Odd'" in said[0]
    assert "agent h does without it until that is mended" in said[0]
    rig.set_state("good", "Succeeded", actions=[{"id": "a0", "state": "Succeeded"}])
    rig.workflow("w")
    assert await there.calm() == [("start", "uid-good"), ("start", "uid-w")]


@pytest.mark.parametrize("rendered", ["text", {"env": 5}, {"env": {"A": 1}, "args": 5}, {"volumes": True}])
@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
async def test_actions_that_no_message_can_be_made_of_are_named_and_hold_up_nobody(
    rig: Rig, side: Make, caplog: pytest.LogCaptureFixture, rendered: Any, state: str
) -> None:
    rig.workflow(state=state, actions=[{"id": "a0", "rendered": rendered}])
    rig.workflow("good", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-good")]
    said = [record.getMessage() for record in caplog.records if "d/w" in record.getMessage()]
    assert len(said) == 1, said
    assert "Workflow d/w: status.actions[0] can't be sent" in said[0]
    assert rig.state() == state, "nobody claimed it"


async def test_a_broken_workflow_that_goes_away_harms_nobody(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w")
    await there.calm()
    rig.set_state("w", "Odd")
    await there.calm()
    rig.remove("w")
    rig.workflow("next")
    assert await there.calm() == [("start", "uid-next")]


def test_an_agent_that_holds_more_than_it_can_say_loses_nothing() -> None:
    """A list that was cut off would make a loss of what runs."""
    held = [(metadata.WORKFLOW, f"u{number}") for number in range(MAX_HELD)]
    assert read_call_metadata(held).holds is None
    assert read_call_metadata([*held, *held]).holds is None
    assert read_call_metadata(held[1:]).holds == frozenset(uid for _, uid in held[1:])
    assert read_call_metadata([(metadata.WORKFLOW, "")]).holds == frozenset()
    assert read_call_metadata([("other", "u")]).holds is None


# --- over the network ---------------------------------------------------------------------------------------------


async def test_the_server_reads_what_an_agent_holds_from_its_call(rig: Rig) -> None:
    await rig.serve("Running")
    faithful = await rig.connected(holds=("uid-w",))
    rig.set_state("w", "Cancelling")
    assert await faithful.command() == ("stop", "uid-w")
    assert rig.patches == 0, "it did not count as lost"
    await faithful.channel.close()
    await rig.connected(holds=())
    await until(lambda: rig.state() == "Canceled")
    await until(lambda: rig.seen[-1].message == "agent came back without workflow d/w, which is Canceled")


async def test_an_agent_that_publishes_for_a_workflow_that_is_over_is_told_to_stop(rig: Rig) -> None:
    await rig.serve()
    rig.workflow(state="Failed", conditions=OVER)
    agent = await rig.connected()
    await agent.publish(started("a1"))
    assert await agent.command() == ("stop", "uid-w")
    assert rig.state() == "Failed"


async def test_an_agent_that_publishes_everything_at_once_is_told_to_do_so_one_after_the_other(rig: Rig) -> None:
    await rig.serve("Scheduled")
    rig.hold()
    agent = rig.agent()
    calls = [asyncio.ensure_future(agent.publish(started("a0"))) for _ in range(40)]
    await until(lambda: sum(call.done() for call in calls) == 24)
    rig.gate.open()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {refusal.code() for refusal in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(refusals) == 24
    assert rig.patches == 1
