"""The state machine against the law: `TABLE` is the table of the design, written down again by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.workflow.table import STATES, TABLE, TERMINAL
from tink.api.v1alpha2 import ActionState, WorkflowState, WorkflowStatus
from tink.workflow import events, machine, table
from tink.workflow.machine import apply
from tink.workflow.status import InvalidStatusError
from tink.workflow.table import AUTHOR, WORKFLOW, Author, Cause

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"


def test_the_table_has_the_arrows_of_the_design_and_no_others() -> None:
    built = {
        (state, str(cause), str(target), str(AUTHOR[cause]))
        for state, arrows in WORKFLOW.items()
        for cause, target in arrows.items()
    }
    assert built == TABLE


def test_every_state_and_every_cause_is_in_the_tables() -> None:
    assert set(WORKFLOW) == {None, *WorkflowState}
    assert set(AUTHOR) == set(Cause)
    assert set(table.ACTION) == set(ActionState)


def test_actions_go_from_pending_through_running_to_an_end_and_nowhere_else() -> None:
    arrows = {(str(state), str(to)) for state, by_cause in table.ACTION.items() for to in by_cause.values()}
    assert arrows == {("Pending", "Running"), ("Running", "Succeeded"), ("Running", "Failed")}


# --- every event in every state ---------------------------------------------------------------------------------

PREPARED = events.Prepared((events.PreparedAction("a0", {"name": "action-0", "image": "i"}),))
# event -> {state: state after}; a state that is missing is one where the event changes nothing
EFFECTS: list[tuple[events.Event, Author, dict[str | None, str]]] = [
    (PREPARED, Author.CONTROLLER, {None: "Pending"}),
    (events.PreparationFailed("R", "m"), Author.CONTROLLER, {None: "Failed"}),
    (events.Dispatched(), Author.SERVER, {"Pending": "Scheduled"}),
    (events.GivenBack(), Author.SERVER, {"Scheduled": "Pending"}),
    (events.Rejected("Busy", "m"), Author.SERVER, {"Scheduled": "Pending"}),
    (events.Rejected("UnknownWorkflow", "m"), Author.SERVER, {"Scheduled": "Pending", "Cancelling": "Canceled"}),
    (
        events.Rejected("AlreadyFinished", "m"),
        Author.SERVER,
        {"Scheduled": "Failed", "Running": "Failed", "Cancelling": "Canceled"},
    ),
    (events.AgentLost(), Author.SERVER, {"Running": "Failed", "Cancelling": "Canceled"}),
    (events.AgentSeen(), Author.SERVER, {}),
    (events.AgentAway(30), Author.SERVER, {}),
    (
        events.CancelRequested("m"),
        Author.CONTROLLER,
        {"Pending": "Canceled", "Scheduled": "Cancelling", "Running": "Cancelling"},
    ),
    (events.StartTimedOut(1), Author.CONTROLLER, {"Scheduled": "Failed"}),
    (events.CancelTimedOut(1), Author.CONTROLLER, {"Cancelling": "Canceled"}),
    (events.WorkflowTimedOut(1), Author.CONTROLLER, {"Running": "Failed"}),
    (events.NothingLeft(), Author.CONTROLLER, {"Running": "Failed"}),
    (events.ActionTimedOut("a0", 1), Author.CONTROLLER, {"Running": "Failed"}),
    # "Pending": the claim was taken back, but the command had arrived.
    (events.ActionStarted("a0"), Author.SERVER, {"Pending": "Running", "Scheduled": "Running"}),
    (
        events.ActionFailed("a0", "R", "m"),
        Author.SERVER,
        {"Pending": "Failed", "Scheduled": "Failed", "Running": "Failed", "Cancelling": "Canceled"},
    ),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("event", "author", "effects"), EFFECTS)
def test_each_event_moves_the_workflow_only_along_its_arrows(
    make_workflow: Any, state: str | None, event: events.Event, author: Author, effects: dict[str | None, str]
) -> None:
    running = state in ("Running", "Cancelling")
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}] if state == "Cancelling" else []
    workflow = make_workflow(state, ("Running" if running else "Pending", "Pending"), conditions=conditions)
    before = copy.deepcopy(workflow)
    if state is None and isinstance(event, events.ActionStarted | events.ActionFailed | events.ActionTimedOut):
        with pytest.raises(machine.UnknownActionError):
            apply(workflow, event, NOW, author)
        return
    status = apply(workflow, event, NOW, author)
    assert workflow == before, "the shared object was changed"
    if state in effects:
        assert status is not None
        assert status["state"] == effects[state]
        assert status["lastTransitioned"] == STAMP
        WorkflowStatus.model_validate(status)
    elif status is not None:
        assert status.get("state") == state, "moved without an arrow"
        assert state not in TERMINAL, "a terminal Workflow changed"


@pytest.mark.parametrize(("event", "author", "effects"), EFFECTS)
def test_the_other_component_may_not_write_an_event(
    make_workflow: Any, event: events.Event, author: Author, effects: dict[str | None, str]
) -> None:
    other = Author.SERVER if author is Author.CONTROLLER else Author.CONTROLLER
    if not effects:
        return  # see the actions that reboot
    state = next(iter(effects))
    with pytest.raises(machine.NotAllowedError, match=f"written by the {author}"):
        apply(make_workflow(state, ("Running" if state == "Running" else "Pending",)), event, NOW, other)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_nothing_changes_a_terminal_workflow(make_workflow: Any, state: str) -> None:
    workflow = make_workflow(state, ("Running", "Pending"))
    for event, author, _ in EFFECTS:
        assert apply(workflow, event, NOW, author) is None


# --- cancelling -----------------------------------------------------------------------------------------------------


def test_a_stopped_action_ends_cancelling_and_has_failed(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Succeeded", "Running", "Pending"))
    status = apply(workflow, events.ActionFailed("a1", "Canceled", "stopped"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Canceled"
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Failed", "Pending"]
    assert status["actions"][1]["failureReason"] == "Canceled"


def test_an_agent_that_does_not_know_the_workflow_ends_cancelling_and_what_ran_has_failed(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running",))
    status = apply(workflow, events.Rejected("UnknownWorkflow", "m"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Canceled"
    assert status["actions"][0]["failureReason"] == "Canceled"


def test_an_agent_that_finishes_before_the_stop_arrives_does_not_leave_the_workflow_cancelling(
    make_workflow: Any,
) -> None:
    status = apply(make_workflow("Cancelling", ("Running",)), events.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Canceled"
    assert status["actions"][0]["state"] == "Succeeded"


def test_progress_while_cancelling_is_recorded_without_moving_the_workflow(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running", "Pending"))
    status = apply(workflow, events.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert (status["state"], status["actions"][0]["state"]) == ("Cancelling", "Succeeded")
    assert status["lastTransitioned"] == "2026-01-01T00:00:00.000Z", "the agent's time to stop must not start anew"


def test_cancelling_set_by_hand_gives_the_agent_its_time_from_now(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running",))
    workflow["status"] = apply(workflow, events.CancelRequested("by hand"), NOW, Author.CONTROLLER)
    assert workflow["status"]["lastTransitioned"] == STAMP
    assert apply(workflow, events.CancelRequested("by hand"), NOW + 1, Author.CONTROLLER) is None, "noticed once"


def test_a_forced_cancel_says_that_the_agent_may_still_run(make_workflow: Any) -> None:
    status = apply(make_workflow("Cancelling", ("Running",)), events.CancelTimedOut(300), NOW, Author.CONTROLLER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "CancelTimeout"
    assert "300 s" in status["conditions"][0]["message"]
    assert status["conditions"][0]["reason"] == "CancelTimeout"


def test_an_action_that_ended_in_time_does_not_time_out(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Pending"))
    assert apply(workflow, events.ActionTimedOut("a0", 5), NOW, Author.CONTROLLER) is None


def test_action_timeout_names_the_action(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Running",)), events.ActionTimedOut("a0", 5), NOW, Author.CONTROLLER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "ActionTimeout"
    assert "'action-0' did not complete within 5 s" in status["actions"][0]["failureMessage"]


def test_a_status_edited_by_hand_is_refused_by_name(make_workflow: Any) -> None:
    with pytest.raises(InvalidStatusError, match=r"default/w: status.state is 'Runing'"):
        apply(make_workflow("Runing"), events.ActionStarted("a0"), NOW, Author.SERVER)
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.actions\[a0\].state is 'Odd'"):
        apply(make_workflow("Running", ("Odd",)), events.ActionStarted("a0"), NOW, Author.SERVER)


def test_fields_of_a_newer_version_survive(make_workflow: Any) -> None:
    workflow = make_workflow("Scheduled", newField={"x": 1})
    workflow["status"]["actions"][0]["newField"] = 2
    status = apply(workflow, events.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["newField"] == {"x": 1}
    assert status["actions"][0]["newField"] == 2


def test_a_workflow_that_begins_although_it_is_to_stop_forgets_its_rejections_too(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", rejections=1, dispatchAfter="2027-01-15T08:00:08.000Z")
    status = apply(workflow, events.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert not {"rejections", "dispatchAfter"} & set(status)
