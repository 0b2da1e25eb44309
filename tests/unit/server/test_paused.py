"""Workflows that are being moved to another API, were moved here, or are held: what agents may hear, and report."""

from __future__ import annotations

import copy

import grpc
import pytest

from tests.unit.server.conftest import Bench, Rig, ScriptedAgent, started, succeeded
from tests.waiting import until
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.server.events import PausedError
from tink.workflow import events


def annotate(rig: Rig, annotations: dict[str, str], name: str = "w") -> None:
    obj: Raw = copy.deepcopy(rig.read(name))
    obj["metadata"]["annotations"] = annotations
    rig.api.put(obj)


def pause(rig: Rig, name: str = "w") -> None:
    annotate(rig, {PAUSED_ANNOTATION: "moved"}, name)


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Cancelling"])
async def test_agent_gets_no_command_for_a_workflow_that_is_being_moved_and_keeps_its_reports(
    rig: Rig, state: str
) -> None:
    await rig.serve(state)
    pause(rig)
    agent = await rig.connected(holds=())
    code, message = await agent.refused(started("a1"))
    assert code is grpc.StatusCode.UNAVAILABLE, "with any other the agent would drop it one day"
    assert "another API" in message
    assert await agent.silent()
    assert (rig.state(), rig.patches) == (state, 0)


async def test_agent_gets_no_stop_command_when_a_moved_workflow_is_deleted_at_its_origin(rig: Rig) -> None:
    await rig.serve()
    agent = rig.agent()
    rig.workflow(state="Running")
    await agent.accepted(holds=("uid-w",))
    pause(rig)
    rig.remove("w")
    assert await agent.silent()


async def test_pause_that_the_servers_copy_does_not_show_yet_still_keeps_it_from_writing(bench: Bench) -> None:
    bench.rig.workflow()
    before = bench.seen()
    bench.rig.workflows.hold()
    pause(bench.rig)
    assert await bench.store.claim(before) is None
    with pytest.raises(PausedError):
        await bench.store.take(before, events.ActionStarted("a0"))
    assert bench.status()["state"] == "Pending"
    bench.rig.workflows.release()
    assert await bench.store.claim(bench.seen()) is None
    await bench.store.take_back(bench.seen(), before)  # would never end
    assert bench.status()["state"] == "Pending"


async def finish(agent: ScriptedAgent, workflow_id: str) -> None:
    for action in ("a0", "a1"):
        event = succeeded(action)
        event.workflow_id = workflow_id
        await agent.publish(event)


async def test_agent_goes_on_with_a_workflow_that_was_moved_here_under_the_id_that_it_knows(rig: Rig) -> None:
    await rig.serve("Running")
    rig.set_state("w", "Running", id="where-it-was")
    await finish(await rig.connected(holds=("where-it-was",)), "where-it-was")
    await until(lambda: rig.state() == "Succeeded")


async def test_workflow_moved_here_goes_out_under_its_old_id_once(rig: Rig) -> None:
    await rig.serve("Pending")
    pause(rig)  # as the move makes it: paused, then its status, then free
    agent = await rig.connected(holds=())
    rig.set_state("w", "Pending", id="where-it-was")
    annotate(rig, {})
    assert await agent.command() == ("start", "where-it-was")
    assert await agent.silent()


async def test_status_that_names_another_workflows_id_takes_nothing_from_that_one(bench: Bench) -> None:
    bench.rig.workflow("victim", state="Running")
    bench.rig.workflow("thief", state="Running", id="uid-victim")
    assert bench.index.get("uid-victim") == bench.rig.read("victim")
    assert [each["metadata"]["name"] for each in bench.index.of(("d", "h"))] == ["victim"]
    bench.rig.remove("thief")
    assert bench.index.get("uid-victim") is not None


@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
async def test_held_workflow_is_not_sent_until_it_is_released_and_holds_up_no_other(rig: Rig, state: str) -> None:
    await rig.serve(state)
    annotate(rig, {HOLD_ANNOTATION: "restored"})
    rig.workflow("new", created=1)
    agent = await rig.connected(holds=())
    assert await agent.command() == ("start", "uid-new")
    await finish(agent, "uid-new")
    annotate(rig, {})
    assert await agent.command() == ("start", "uid-w")


async def test_report_of_a_held_workflow_that_its_agent_runs_after_all_is_taken(rig: Rig) -> None:
    await rig.serve("Pending")
    annotate(rig, {HOLD_ANNOTATION: "restored"})
    agent = await rig.connected(holds=("uid-w",))
    await agent.publish(started("a0"))
    assert rig.state() == "Running"
