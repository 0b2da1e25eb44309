"""What agents report, and how the state machine takes it."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.v1alpha2 import WorkflowStatus
from tink.workflow import events, machine
from tink.workflow.machine import apply
from tink.workflow.table import Author

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"
# --- agents' reports ----------------------------------------------------------------------------------------------


def test_first_start_is_the_start_of_the_workflow(make_workflow: Any) -> None:
    status = apply(make_workflow("Scheduled"), events.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["startedAt"] == STAMP
    assert status["currentAction"] == "action-0"
    assert {"type": "Started", "status": "True"} in status["conditions"]
    assert status["actions"][0] | {"rendered": None} == {
        "id": "a0",
        "rendered": None,
        "state": "Running",
        "startedAt": STAMP,
        "lastTransitioned": STAMP,
    }
    assert status["actions"][1]["state"] == "Pending"


def test_second_start_leaves_the_workflows_start_and_transition_alone(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Pending"), startedAt="2026-01-01T00:00:01.000Z")
    status = apply(workflow, events.ActionStarted("a1"), NOW, Author.SERVER)
    assert status is not None
    assert status["startedAt"] == "2026-01-01T00:00:01.000Z"
    assert status["lastTransitioned"] == "2026-01-01T00:00:00.000Z"
    assert status["currentAction"] == "action-1"


def test_success_without_start_is_both(make_workflow: Any) -> None:
    status = apply(make_workflow("Scheduled"), events.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Running"
    assert status["actions"][0]["state"] == "Succeeded"
    assert status["actions"][0]["startedAt"] == STAMP


def test_last_success_makes_the_workflow_succeed(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Succeeded", "Running")), events.ActionSucceeded("a1"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Succeeded"
    assert {"type": "Succeeded", "status": "True"} in status["conditions"]


def test_success_of_the_last_action_waits_for_a_report_that_was_overtaken(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Running", "Running"))
    workflow["status"] = apply(workflow, events.ActionSucceeded("a1"), NOW, Author.SERVER)
    assert workflow["status"]["state"] == "Running"
    status = apply(workflow, events.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Succeeded"


def test_late_start_does_not_turn_the_current_action_back(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Pending", "Running"), currentAction="action-1", startedAt=STAMP)
    status = apply(workflow, events.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["currentAction"] == "action-1"


def test_reason_and_message_of_a_failed_action_reach_the_succeeded_condition(make_workflow: Any) -> None:
    event = events.ActionFailed("a0", "DiskMissing", "/dev/sda is not there")
    status = apply(make_workflow("Running", ("Running", "Pending")), event, NOW, Author.SERVER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "DiskMissing"
    assert status["actions"][0]["failureMessage"] == "/dev/sda is not there"
    assert status["actions"][1]["state"] == "Pending"
    assert {
        "type": "Succeeded",
        "status": "False",
        "reason": "DiskMissing",
        "message": "/dev/sda is not there",
    } in status["conditions"]


def test_a_failure_that_gives_no_reason_has_one_nevertheless(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Running",)), events.ActionFailed("a0", "", ""), NOW, Author.SERVER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "ActionFailed"


def test_an_agent_cannot_fill_the_api_with_its_message(make_workflow: Any) -> None:
    event = events.ActionFailed("a0", "R" * 10_000, "m" * 1_000_000)
    status = apply(make_workflow("Running", ("Running",)), event, NOW, Author.SERVER)
    assert len(str(status)) < 2 * (machine.MAX_MESSAGE + machine.MAX_REASON) + 1000


@pytest.mark.parametrize("state", ["Scheduled", "Running", "Cancelling"])
@pytest.mark.parametrize("final", ["Succeeded", "Failed"])
def test_repeated_reports_for_a_final_action_change_nothing(make_workflow: Any, state: str, final: str) -> None:
    workflow = make_workflow(state, (final, "Pending"))
    for event in (events.ActionStarted("a0"), events.ActionSucceeded("a0"), events.ActionFailed("a0", "R", "m")):
        assert apply(workflow, event, NOW, Author.SERVER) is None


def test_a_rejection_of_a_running_workflow_changes_nothing(make_workflow: Any) -> None:
    """An agent of another make rejects the repeated command for the Workflow that it runs already."""
    assert apply(make_workflow("Running", ("Running",)), events.Rejected("Busy", "m"), NOW, Author.SERVER) is None


def test_a_rejection_says_on_the_object_why_it_does_not_start(make_workflow: Any) -> None:
    status = apply(make_workflow("Scheduled"), events.Rejected("Busy", "runs another"), NOW, Author.SERVER)
    assert status is not None
    assert {"type": "Started", "status": "False", "reason": "Busy", "message": "runs another"} in status["conditions"]


def test_rejections_are_counted_and_hold_the_workflow_back(make_workflow: Any) -> None:
    workflow = make_workflow("Scheduled")
    workflow["status"] = apply(workflow, events.Rejected("Busy", "m", 5.5), NOW, Author.SERVER)
    assert (workflow["status"]["rejections"], workflow["status"]["dispatchAfter"]) == (1, "2027-01-15T08:00:05.500Z")
    workflow["status"] = apply(workflow, events.Dispatched(), NOW + 6, Author.SERVER)
    workflow["status"] = apply(workflow, events.GivenBack(), NOW + 6, Author.SERVER)
    assert workflow["status"]["rejections"] == 1, "the agent has not even seen it"
    workflow["status"] = apply(workflow, events.Dispatched(), NOW + 7, Author.SERVER)
    workflow["status"] = apply(workflow, events.Rejected("Busy", "m", 10), NOW + 7, Author.SERVER)
    assert (workflow["status"]["rejections"], workflow["status"]["dispatchAfter"]) == (2, "2027-01-15T08:00:17.000Z")
    WorkflowStatus.model_validate(workflow["status"])


@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
def test_a_workflow_that_starts_has_never_been_rejected(make_workflow: Any, state: str) -> None:
    workflow = make_workflow(state, rejections=3, dispatchAfter=STAMP)
    status = apply(workflow, events.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert not {"rejections", "dispatchAfter"} & set(status)


@pytest.mark.parametrize(
    ("written", "counted"), [(-5, 1), ("many", 1), (True, 1), (2.5, 1), (10**30, machine.MAX_REJECTIONS)]
)
def test_a_count_of_rejections_written_by_hand_harms_nothing(make_workflow: Any, written: Any, counted: int) -> None:
    status = apply(make_workflow("Scheduled", rejections=written), events.Rejected("B", "m", 1), NOW, Author.SERVER)
    assert status is not None
    assert status["rejections"] == counted
