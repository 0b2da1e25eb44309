"""How a Workflow that was prepared ends: by deletion, in time, or not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.outcomes import (
    CREATED,
    SETTINGS,
    STAMP,
    condition,
    finalizers_in,
    look,
    make_workflow,
    never,
    status_in,
)
from tink.api.v1alpha2 import Raw
from tink.controller.reconcile import Outcome, reconcile, timestamps
from tink.controller.settings import ControllerSettings
from tink.workflow.guards import unconfirmed
from tink.workflow.status import InvalidStatusError

# --- deletion -----------------------------------------------------------------------------------------------------


def test_deleting_a_pending_workflow_cancels_it_and_lets_it_go() -> None:
    outcome = look(make_workflow("Pending", deleted=True), CREATED)
    assert status_in(outcome)["state"] == "Canceled"
    assert finalizers_in(outcome) == ["other/one"]
    assert [patch.subresource for patch in outcome.patches] == ["status", None], "the end state must be seen first"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_deleting_a_dispatched_workflow_starts_cancelling_and_keeps_it(state: str) -> None:
    outcome = look(make_workflow(state, deleted=True, startedAt=STAMP), CREATED)
    assert status_in(outcome)["state"] == "Cancelling"
    assert finalizers_in(outcome) is None


def test_deleting_a_workflow_that_was_never_prepared_lets_it_go() -> None:
    outcome = look(make_workflow(None, deleted=True, finalizer=True), CREATED)
    assert finalizers_in(outcome) == ["other/one"]
    assert look(make_workflow(None, deleted=True), CREATED) == Outcome()


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Canceled"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_terminal_workflow_gives_up_our_finalizer_only(state: str, deleted: bool) -> None:
    outcome = look(make_workflow(state, deleted=deleted), CREATED + 10)
    assert finalizers_in(outcome) == ["other/one"]
    assert len(outcome.patches) == 1
    assert look(make_workflow(state, deleted=deleted, finalizer=False), CREATED) == Outcome()


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Succeeded", "Failed"])
def test_a_workflow_that_an_older_release_has_written_gets_its_message(state: str) -> None:
    actions = [{"id": "a", "state": "Running", "rendered": {"name": "write"}}]
    workflow = make_workflow(state, actions=actions)
    message = workflow["status"].pop("message")
    outcome = look(workflow, CREATED)
    assert message
    assert status_in(outcome) == {"message": message}
    if state in ("Succeeded", "Failed"):
        workflow["status"]["message"] = "as it was at its end"
        assert all(patch.subresource is None for patch in look(workflow, CREATED).patches)


# --- timeouts -----------------------------------------------------------------------------------------------------


def test_scheduled_for_too_long_fails() -> None:
    workflow = make_workflow("Scheduled")
    assert look(workflow, CREATED + 100) == Outcome(requeue_after=200)
    outcome = look(workflow, CREATED + 300)
    assert condition(status_in(outcome), "Succeeded")["reason"] == "StartTimeout"
    assert status_in(outcome)["state"] == "Failed"
    assert finalizers_in(outcome) == ["other/one"]


def test_cancelling_for_too_long_is_canceled_by_force_with_reason_and_message() -> None:
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]
    workflow = make_workflow("Cancelling", deleted=True, conditions=conditions, dispatched=True)
    assert look(workflow, CREATED + 299) == Outcome(requeue_after=1)
    outcome = look(workflow, CREATED + 300)
    assert status_in(outcome)["state"] == "Canceled"
    assert condition(status_in(outcome), "Succeeded")["reason"] == "CancelTimeout"
    assert finalizers_in(outcome) == ["other/one"]


ACTIONS = [{"id": "a0", "rendered": {"name": "n", "image": "i"}, "state": "Pending"}]
BEGUN = [{**ACTIONS[0], "state": "Running", "startedAt": STAMP}]


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    "status",
    [
        {},  # before anybody looked at it
        {"conditions": [{"type": "Prepared", "status": "False", "reason": "HardwareNotFound"}]},
        {"actions": ACTIONS, "dispatched": False},
        {"actions": ACTIONS, "dispatched": False, "rejections": 2, "dispatchAfter": STAMP},
        {"actions": ACTIONS, "dispatched": False, "claimedAt": STAMP},  # taken back
        # Noted by somebody who did not know.
        {
            "actions": ACTIONS,
            "dispatched": False,
            "conditions": [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}],
        },
    ],
    ids=["new", "waits", "prepared", "rejected", "taken back", "noted"],
)
def test_what_no_agent_has_ends_at_once_when_it_is_set_to_cancelling(status: Raw, deleted: bool) -> None:
    outcome = look(make_workflow("Cancelling", deleted=deleted, **status), CREATED + 1)
    assert status_in(outcome)["state"] == "Canceled"
    assert condition(status_in(outcome), "Succeeded")["reason"] == "Canceled"
    assert finalizers_in(outcome) == ["other/one"]


@pytest.mark.parametrize(
    "status",
    [
        {"actions": ACTIONS, "dispatched": True},
        {"actions": ACTIONS},  # prepared by an older version: it may have been dispatched by one, too
        {"actions": BEGUN, "dispatched": False},  # the claim was taken back, the command had arrived
        {"actions": ACTIONS, "dispatched": False, "startedAt": STAMP},
        {"dispatched": True},  # somebody took the actions away
    ],
    ids=["dispatched", "older version", "begun", "started", "no actions"],
)
def test_what_an_agent_may_have_is_not_canceled_at_once(status: Raw) -> None:
    changed = status_in(look(make_workflow("Cancelling", **status), CREATED + 1))
    assert "state" not in changed
    assert condition(changed, "Succeeded")["reason"] == "Cancelling"


@pytest.mark.parametrize("deleted", [False, True])
def test_cancelling_set_by_hand_long_after_the_last_transition_gives_the_agent_its_time(deleted: bool) -> None:
    workflow = make_workflow("Cancelling", deleted=deleted, dispatched=True)
    status = status_in(look(workflow, CREATED + 4000))
    assert "state" not in status
    workflow["status"] |= status
    assert look(workflow, CREATED + 4100) == Outcome(requeue_after=200)


def running(*, timeout: int = 0, action: Raw | None = None) -> Raw:
    actions = [
        {"id": "a0", "state": "Succeeded", "startedAt": STAMP, "rendered": {"name": "x", "timeout": 1}},
        {"id": "a1", "state": "Running", "startedAt": "2027-01-15T08:01:40.000Z", "rendered": action or {"name": "y"}},
        {"id": "a2", "state": "Pending", "rendered": {"name": "z", "timeout": 1}},
    ]
    return make_workflow("Running", startedAt=STAMP, actions=actions, spec={"timeout": timeout})


def test_without_timeouts_a_workflow_runs_for_ever() -> None:
    assert look(running(), CREATED + 1e7) == Outcome()


def test_workflow_timeout_counts_from_the_start_of_the_first_action() -> None:
    workflow = running(timeout=600)
    assert look(workflow, CREATED + 500) == Outcome(requeue_after=100)
    status = status_in(look(workflow, CREATED + 600))
    assert status["state"] == "Failed"
    assert condition(status, "Succeeded")["reason"] == "WorkflowTimeout"
    assert [action["state"] for action in status["actions"]] == ["Succeeded", "Failed", "Pending"]


def test_action_timeout_counts_from_the_start_of_that_action() -> None:
    workflow = running(timeout=6000, action={"name": "y", "timeout": 50})
    assert look(workflow, CREATED + 140) == Outcome(requeue_after=10)
    status = status_in(look(workflow, CREATED + 150))
    assert condition(status, "Succeeded")["reason"] == "ActionTimeout"
    assert "'y'" in condition(status, "Succeeded")["message"]


def test_the_default_action_timeout_is_for_actions_that_give_none() -> None:
    settings = ControllerSettings(action_timeout=20)
    assert look(running(), CREATED + 110, settings) == Outcome(requeue_after=10)
    own = running(action={"name": "y", "timeout": 50})
    assert look(own, CREATED + 130, settings) == Outcome(requeue_after=20)
    assert status_in(look(running(), CREATED + 120, settings))["state"] == "Failed"


def test_a_timestamp_taken_away_by_hand_does_not_stop_the_clock() -> None:
    workflow = make_workflow("Scheduled")
    workflow["status"]["lastTransitioned"] = "whenever"
    assert status_in(look(workflow, CREATED + 300))["state"] == "Failed"


@pytest.mark.parametrize("states", [None, (), ("Succeeded", "Succeeded"), ("Succeeded", "Failed")])
def test_a_running_workflow_whose_actions_were_edited_away_does_not_block_its_machine_for_ever(
    states: tuple[str, ...] | None,
) -> None:
    actions = states and [{"id": f"a{index}", "state": state} for index, state in enumerate(states)]
    workflow = make_workflow("Running", startedAt=STAMP, actions=actions)
    outcome = look(workflow, CREATED)
    succeeded = condition(status_in(outcome), "Succeeded")
    assert (status_in(outcome)["state"], succeeded["reason"]) == ("Failed", "InvalidStatus")
    assert "somebody edited its status" in succeeded["message"]
    workflow["status"] |= status_in(outcome)
    assert unconfirmed(workflow), "an agent that still runs it is told to stop"


@pytest.mark.parametrize(("timeout", "action"), [(600, 0), (0, 500)])
def test_the_time_of_a_last_action_that_reboots_is_up_when_the_machine_has_gone(timeout: int, action: int) -> None:
    workflow = running(timeout=timeout, action={"name": "y", "reboots": True, "timeout": action})
    workflow["status"]["actions"].pop()
    outcome = look(workflow, CREATED + 600)
    assert status_in(outcome)["state"] == "Succeeded"
    assert finalizers_in(outcome) == ["other/one"]


FUTURE = "2999-01-01T00:00:00Z"


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling"])
def test_a_time_in_the_future_is_looked_at_again_within_the_timeout(state: str) -> None:
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]
    workflow = make_workflow(state, lastTransitioned=FUTURE, conditions=conditions, dispatched=True)
    assert look(workflow, CREATED) == Outcome(requeue_after=300)


def test_who_knows_better_says_how_old_each_timestamp_is() -> None:
    asked: list[str] = []

    def age(path: str, _: float) -> float:
        asked.append(path)
        return 45.0

    workflow = running(timeout=600, action={"name": "y", "timeout": 50})
    assert reconcile(workflow, None, None, SETTINGS, CREATED + 1e9, never, age) == Outcome(requeue_after=5)
    assert asked == ["status.actions[a1].startedAt", "status.startedAt"]
    assert set(asked) < {path for path, _ in timestamps(workflow)}
    assert reconcile(make_workflow("Scheduled"), None, None, SETTINGS, 0, never, age) == Outcome(requeue_after=255)
    assert reconcile(make_workflow(), None, None, SETTINGS, 0, never, age).requeue_after == 15
    assert set(asked) == {path for path, _ in timestamps(workflow)}


def test_timestamps_that_nobody_can_read_are_none() -> None:
    workflow = make_workflow("Running", lastTransitioned="soon", startedAt=7)
    assert list(timestamps(workflow)) == [("metadata.creationTimestamp", CREATED)]


def test_an_unknown_state_is_left_alone_with_an_error() -> None:
    with pytest.raises(InvalidStatusError, match="d/w"):
        look(make_workflow("Paused"), CREATED)


@pytest.mark.parametrize("setting", [{"scheduled_timeout": 0}, {"action_timeout": -1}, {"workers": 0}])
def test_senseless_settings_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        ControllerSettings(**setting)
