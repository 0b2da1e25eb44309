"""What becomes of events: every one is decided on what the API has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.server.bench import FIRST, LONGEST, Bench
from tests.unit.server.conftest import Rig
from tink.api.v1alpha2 import WorkflowState
from tink.kube.client import ApiError, ConflictError, NotFoundError
from tink.server.events import (
    StaleError,
    WorkflowGoneError,
    rejection_delay,
)
from tink.workflow import events, machine
from tink.workflow.status import InvalidStatusError, parse_timestamp

# --- rejections ---------------------------------------------------------------------------------------------------


def test_rejection_delays_double_to_their_bound_and_chance_takes_a_little_away() -> None:
    assert [rejection_delay(n, 5, 60, 0.0) for n in range(6)] == [5, 10, 20, 40, 60, 60]
    assert rejection_delay(10**9, 5, 60, 0.0) == 60
    assert rejection_delay(0, 5, 60, 1.0) == pytest.approx(4)
    assert rejection_delay(10, 5, 60, 1.0) == pytest.approx(48)


async def test_delays_of_rejections_grow_from_the_status_so_that_a_restart_does_not_begin_anew(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled", rejections=2)
    await bench.take(events.Rejected("Busy", "m"))
    assert bench.status()["rejections"] == 3
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + 4 * FIRST
    bench.rig.set_state("w", "Scheduled", rejections=50)
    await bench.take(events.Rejected("Busy", "m"))
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + LONGEST


async def test_a_rejection_that_meets_a_conflict_counts_from_what_the_other_wrote(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Scheduled", rejections=1)
    await bench.take(events.Rejected("Busy", "m"))
    assert bench.status()["rejections"] == 2
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + 2 * FIRST


# --- copies that are behind ----------------------------------------------------------------------------------------


async def test_an_agent_is_not_lost_because_the_servers_copy_is_behind(bench: Bench) -> None:
    """It reported the end to another server."""
    bench.rig.workflow(state="Running")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Succeeded")
    assert await bench.take(events.AgentLost()) is False
    assert bench.status()["state"] == "Succeeded"


async def test_a_workflow_that_seems_scheduled_and_runs_is_lost_with_its_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Running")
    assert await bench.take(events.AgentLost()) is True
    assert bench.status()["state"] == "Failed"
    assert bench.seen()["status"]["state"] == "Failed", "the stream must see it at once"


async def test_a_scheduled_workflow_is_not_lost_with_its_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    assert await bench.take(events.AgentLost()) is False
    assert (bench.status()["state"], bench.reads, bench.rig.patches) == ("Scheduled", 1, 0)


@pytest.mark.parametrize("state", ["Pending", "Cancelling"])
async def test_a_rejection_without_effect_is_held_against_the_api(bench: Bench, state: str) -> None:
    bench.rig.workflow(state=state)
    assert await bench.take(events.Rejected("Busy", "m")) is False
    assert bench.reads == 1


@pytest.mark.parametrize("reason", ["UnknownWorkflow", "AlreadyFinished"])
async def test_the_answer_to_a_stop_is_not_dropped_because_the_servers_copy_still_says_running(
    bench: Bench, reason: str
) -> None:
    bench.rig.workflow(state="Running")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Cancelling")
    assert await bench.take(events.Rejected(reason, "m")) is True
    assert bench.status()["state"] == "Canceled"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
async def test_a_workflow_that_its_agent_ended_unheard_fails_and_is_not_offered_for_ever(
    bench: Bench, state: str
) -> None:
    bench.rig.workflow(state=state)
    assert await bench.take(events.Rejected("AlreadyFinished", "ended: Succeeded")) is True
    assert bench.status()["state"] == "Failed"
    condition = bench.status()["conditions"][0]
    assert condition["reason"] == "AgentLost"
    assert condition["message"].endswith("its reports never came: ended: Succeeded")


async def test_an_action_that_the_copy_does_not_have_yet_is_looked_for(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    actions = bench.status()["actions"]
    bench.rig.set_state("w", "Scheduled", actions=[])
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Scheduled", actions=actions)
    assert await bench.take(events.ActionStarted("a0")) is True
    with pytest.raises(machine.UnknownActionError):
        await bench.take(events.ActionStarted("zz"))


async def test_a_status_that_was_mended_meanwhile_takes_the_event(bench: Bench) -> None:
    bench.rig.workflow(state="Odd")
    with pytest.raises(InvalidStatusError, match="d/w"):
        await bench.take(events.ActionStarted("a0"))
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Scheduled")
    assert await bench.take(events.ActionStarted("a0")) is True


async def test_a_workflow_that_went_and_came_again_under_its_name_is_gone(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    old = bench.seen()
    bench.rig.workflows.hold()
    bench.rig.remove("w")
    bench.rig.api.put(old | {"metadata": {**old["metadata"], "uid": "uid-second"}})
    with pytest.raises(WorkflowGoneError):
        await bench.store.take(old, events.ActionStarted("a0"))
    assert await bench.store.reclaim(old) is None
    bench.rig.remove("w")
    assert await bench.store.reclaim(old) is None
    bench.rig.api.fail("patch", NotFoundError(404, "NotFound", "w"))
    with pytest.raises(WorkflowGoneError):
        await bench.store.take(old, events.ActionStarted("a0"))


async def test_an_event_that_always_comes_too_late_is_given_back_to_the_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.fail("patch", *[ConflictError(409, "Conflict", "c")] * 100)
    with pytest.raises(StaleError, match="d/w changes too often"):
        await bench.take(events.ActionStarted("a0"))
    assert bench.rig.patches < 20


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["state", "actions", "action", "rendered", "conditions", "rejections", "status"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(list(WorkflowState)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "state", "x"]), inner),
        max_leaves=5,
    ),
    state=st.sampled_from(["Pending", "Scheduled", "Running", "Cancelling"]),
)
async def test_a_status_that_anybody_wrote_is_an_error_or_an_answer_and_never_a_crash(
    rig: Rig, kind: str, value: Any, state: str
) -> None:
    bench = Bench(rig)
    rig.workflow(state=state)
    obj = rig.read("w")
    status = obj["status"]
    assume(not (kind == "status" and isinstance(value, dict) and "id" in value))  # another Workflow's, on the wire
    if kind == "status":
        obj["status"] = value
    elif kind == "action":
        status["actions"][0] = value
    elif kind == "rendered":
        status["actions"][0]["rendered"] = value
    else:
        status[kind] = value
    rig.api.put(obj)
    for event in (
        events.ActionStarted("a0"),
        events.AgentLost(),
        events.AgentAway(5),
        events.Rejected("R", "m"),
        events.ActionFailed("a1", "", ""),
    ):
        try:
            await bench.take(event)
        except (InvalidStatusError, machine.UnknownActionError) as error:
            said = str(error)
        except ApiError as error:
            assert error.status == 422, "the API takes no status that its schema does not know"  # noqa: PT017
            continue
        else:
            continue
        assert "d/w" in said
