"""The state machine against the law: `TABLE` is the table of the design, written down again by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tink.api.v1alpha2 import ActionState, Raw, WorkflowState, WorkflowStatus
from tink.workflow import machine as m
from tink.workflow.machine import AUTHOR, WORKFLOW, Author, Cause, apply
from tink.workflow.status import InvalidStatusError, agent_seen, parse_timestamp

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"

# (from, cause, to, who writes it)
TABLE = {
    (None, "prepared", "Pending", "controller"),
    (None, "preparation failed", "Failed", "controller"),
    ("Pending", "dispatched", "Scheduled", "server"),
    ("Pending", "cancel requested", "Canceled", "controller"),
    ("Scheduled", "returned", "Pending", "server"),
    ("Scheduled", "started", "Running", "server"),
    ("Scheduled", "cancel requested", "Cancelling", "controller"),
    ("Scheduled", "start timed out", "Failed", "controller"),
    ("Scheduled", "ended unheard", "Failed", "server"),
    ("Running", "succeeded", "Succeeded", "server"),
    ("Running", "action failed", "Failed", "server"),
    ("Running", "run timed out", "Failed", "controller"),
    ("Running", "nothing left", "Failed", "controller"),
    ("Running", "agent lost", "Failed", "server"),
    ("Running", "ended unheard", "Failed", "server"),
    ("Running", "rebooted", "Succeeded", "server"),
    ("Running", "reboot assumed", "Succeeded", "controller"),
    ("Running", "cancel requested", "Cancelling", "controller"),
    ("Cancelling", "stopped", "Canceled", "server"),
    ("Cancelling", "nothing to stop", "Canceled", "controller"),
    ("Cancelling", "cancel timed out", "Canceled", "controller"),
}
STATES: list[str | None] = [None, *WorkflowState]
TERMINAL = {"Succeeded", "Failed", "Canceled"}


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
    assert set(m.ACTION) == set(ActionState)


def test_actions_go_from_pending_through_running_to_an_end_and_nowhere_else() -> None:
    arrows = {(str(state), str(to)) for state, by_cause in m.ACTION.items() for to in by_cause.values()}
    assert arrows == {("Pending", "Running"), ("Running", "Succeeded"), ("Running", "Failed")}


# --- every event in every state ---------------------------------------------------------------------------------

PREPARED = m.Prepared((m.PreparedAction("a0", {"name": "action-0", "image": "i"}),))
# event -> {state: state after}; a state that is missing is one where the event changes nothing
EFFECTS: list[tuple[m.Event, Author, dict[str | None, str]]] = [
    (PREPARED, Author.CONTROLLER, {None: "Pending"}),
    (m.PreparationFailed("R", "m"), Author.CONTROLLER, {None: "Failed"}),
    (m.Dispatched(), Author.SERVER, {"Pending": "Scheduled"}),
    (m.GivenBack(), Author.SERVER, {"Scheduled": "Pending"}),
    (m.Rejected("Busy", "m"), Author.SERVER, {"Scheduled": "Pending"}),
    (m.Rejected("UnknownWorkflow", "m"), Author.SERVER, {"Scheduled": "Pending", "Cancelling": "Canceled"}),
    (
        m.Rejected("AlreadyFinished", "m"),
        Author.SERVER,
        {"Scheduled": "Failed", "Running": "Failed", "Cancelling": "Canceled"},
    ),
    (m.AgentLost(), Author.SERVER, {"Running": "Failed", "Cancelling": "Canceled"}),
    (m.AgentSeen(), Author.SERVER, {}),
    (m.AgentAway(30), Author.SERVER, {}),
    (
        m.CancelRequested("m"),
        Author.CONTROLLER,
        {"Pending": "Canceled", "Scheduled": "Cancelling", "Running": "Cancelling"},
    ),
    (m.StartTimedOut(1), Author.CONTROLLER, {"Scheduled": "Failed"}),
    (m.CancelTimedOut(1), Author.CONTROLLER, {"Cancelling": "Canceled"}),
    (m.WorkflowTimedOut(1), Author.CONTROLLER, {"Running": "Failed"}),
    (m.NothingLeft(), Author.CONTROLLER, {"Running": "Failed"}),
    (m.ActionTimedOut("a0", 1), Author.CONTROLLER, {"Running": "Failed"}),
    # "Pending": the claim was taken back, but the command had arrived.
    (m.ActionStarted("a0"), Author.SERVER, {"Pending": "Running", "Scheduled": "Running"}),
    (
        m.ActionFailed("a0", "R", "m"),
        Author.SERVER,
        {"Pending": "Failed", "Scheduled": "Failed", "Running": "Failed", "Cancelling": "Canceled"},
    ),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("event", "author", "effects"), EFFECTS)
def test_each_event_moves_the_workflow_only_along_its_arrows(
    make_workflow: Any, state: str | None, event: m.Event, author: Author, effects: dict[str | None, str]
) -> None:
    running = state in ("Running", "Cancelling")
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}] if state == "Cancelling" else []
    workflow = make_workflow(state, ("Running" if running else "Pending", "Pending"), conditions=conditions)
    before = copy.deepcopy(workflow)
    if state is None and isinstance(event, m.ActionStarted | m.ActionFailed | m.ActionTimedOut):
        with pytest.raises(m.UnknownActionError):
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
    make_workflow: Any, event: m.Event, author: Author, effects: dict[str | None, str]
) -> None:
    other = Author.SERVER if author is Author.CONTROLLER else Author.CONTROLLER
    if not effects:
        return  # see the actions that reboot
    state = next(iter(effects))
    with pytest.raises(m.NotAllowedError, match=f"written by the {author}"):
        apply(make_workflow(state, ("Running" if state == "Running" else "Pending",)), event, NOW, other)


# --- agents' reports ----------------------------------------------------------------------------------------------


def test_first_start_is_the_start_of_the_workflow(make_workflow: Any) -> None:
    status = apply(make_workflow("Scheduled"), m.ActionStarted("a0"), NOW, Author.SERVER)
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
    status = apply(workflow, m.ActionStarted("a1"), NOW, Author.SERVER)
    assert status is not None
    assert status["startedAt"] == "2026-01-01T00:00:01.000Z"
    assert status["lastTransitioned"] == "2026-01-01T00:00:00.000Z"
    assert status["currentAction"] == "action-1"


def test_success_without_start_is_both(make_workflow: Any) -> None:
    status = apply(make_workflow("Scheduled"), m.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Running"
    assert status["actions"][0]["state"] == "Succeeded"
    assert status["actions"][0]["startedAt"] == STAMP


def test_last_success_makes_the_workflow_succeed(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Succeeded", "Running")), m.ActionSucceeded("a1"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Succeeded"
    assert {"type": "Succeeded", "status": "True"} in status["conditions"]


def test_success_of_the_last_action_waits_for_a_report_that_was_overtaken(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Running", "Running"))
    workflow["status"] = apply(workflow, m.ActionSucceeded("a1"), NOW, Author.SERVER)
    assert workflow["status"]["state"] == "Running"
    status = apply(workflow, m.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Succeeded"


def test_late_start_does_not_turn_the_current_action_back(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Pending", "Running"), currentAction="action-1", startedAt=STAMP)
    status = apply(workflow, m.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["currentAction"] == "action-1"


def test_reason_and_message_of_a_failed_action_reach_the_succeeded_condition(make_workflow: Any) -> None:
    event = m.ActionFailed("a0", "DiskMissing", "/dev/sda is not there")
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
    status = apply(make_workflow("Running", ("Running",)), m.ActionFailed("a0", "", ""), NOW, Author.SERVER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "ActionFailed"


def test_an_agent_cannot_fill_the_api_with_its_message(make_workflow: Any) -> None:
    event = m.ActionFailed("a0", "R" * 10_000, "m" * 1_000_000)
    status = apply(make_workflow("Running", ("Running",)), event, NOW, Author.SERVER)
    assert len(str(status)) < 2 * (m.MAX_MESSAGE + m.MAX_REASON) + 1000


@pytest.mark.parametrize("state", ["Scheduled", "Running", "Cancelling"])
@pytest.mark.parametrize("final", ["Succeeded", "Failed"])
def test_repeated_reports_for_a_final_action_change_nothing(make_workflow: Any, state: str, final: str) -> None:
    workflow = make_workflow(state, (final, "Pending"))
    for event in (m.ActionStarted("a0"), m.ActionSucceeded("a0"), m.ActionFailed("a0", "R", "m")):
        assert apply(workflow, event, NOW, Author.SERVER) is None


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_nothing_changes_a_terminal_workflow(make_workflow: Any, state: str) -> None:
    workflow = make_workflow(state, ("Running", "Pending"))
    for event, author, _ in EFFECTS:
        assert apply(workflow, event, NOW, author) is None


def test_a_rejection_of_a_running_workflow_changes_nothing(make_workflow: Any) -> None:
    """An agent of another make rejects the repeated command for the Workflow that it runs already."""
    assert apply(make_workflow("Running", ("Running",)), m.Rejected("Busy", "m"), NOW, Author.SERVER) is None


def test_a_rejection_says_on_the_object_why_it_does_not_start(make_workflow: Any) -> None:
    status = apply(make_workflow("Scheduled"), m.Rejected("Busy", "runs another"), NOW, Author.SERVER)
    assert status is not None
    assert {"type": "Started", "status": "False", "reason": "Busy", "message": "runs another"} in status["conditions"]


def test_rejections_are_counted_and_hold_the_workflow_back(make_workflow: Any) -> None:
    workflow = make_workflow("Scheduled")
    workflow["status"] = apply(workflow, m.Rejected("Busy", "m", 5.5), NOW, Author.SERVER)
    assert (workflow["status"]["rejections"], workflow["status"]["dispatchAfter"]) == (1, "2027-01-15T08:00:05.500Z")
    workflow["status"] = apply(workflow, m.Dispatched(), NOW + 6, Author.SERVER)
    workflow["status"] = apply(workflow, m.GivenBack(), NOW + 6, Author.SERVER)
    assert workflow["status"]["rejections"] == 1, "the agent has not even seen it"
    workflow["status"] = apply(workflow, m.Dispatched(), NOW + 7, Author.SERVER)
    workflow["status"] = apply(workflow, m.Rejected("Busy", "m", 10), NOW + 7, Author.SERVER)
    assert (workflow["status"]["rejections"], workflow["status"]["dispatchAfter"]) == (2, "2027-01-15T08:00:17.000Z")
    WorkflowStatus.model_validate(workflow["status"])


@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
def test_a_workflow_that_starts_has_never_been_rejected(make_workflow: Any, state: str) -> None:
    workflow = make_workflow(state, rejections=3, dispatchAfter=STAMP)
    status = apply(workflow, m.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert not {"rejections", "dispatchAfter"} & set(status)


@pytest.mark.parametrize(
    ("written", "counted"), [(-5, 1), ("many", 1), (True, 1), (2.5, 1), (10**30, m.MAX_REJECTIONS)]
)
def test_a_count_of_rejections_written_by_hand_harms_nothing(make_workflow: Any, written: Any, counted: int) -> None:
    status = apply(make_workflow("Scheduled", rejections=written), m.Rejected("B", "m", 1), NOW, Author.SERVER)
    assert status is not None
    assert status["rejections"] == counted


# --- agents that say nothing any more -----------------------------------------------------------------------------


def test_an_agent_without_its_workflow_fails_it_and_what_ran(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Succeeded", "Running", "Pending")), m.AgentLost(), NOW, Author.SERVER)
    assert status is not None
    assert (status["state"], status["conditions"][0]["reason"]) == ("Failed", "AgentLost")
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Failed", "Pending"]
    assert status["actions"][1]["failureReason"] == "AgentLost"


def test_an_agent_lost_between_two_actions_fails_the_workflow(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Succeeded", "Pending")), m.AgentLost(), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Failed"
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Pending"]


def test_an_agent_without_the_workflow_it_was_to_stop_has_stopped_it(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running",), reboots=True)
    status = apply(workflow, m.AgentLost(), NOW, Author.SERVER)
    assert status is not None
    assert (status["state"], status["actions"][0]["failureReason"]) == ("Canceled", "Canceled")


SILENCES: list[tuple[m.Event, Author, str]] = [
    (m.AgentLost(), Author.SERVER, "Rebooted"),
    (m.AgentAway(30), Author.SERVER, "Rebooted"),
    (m.ActionTimedOut("a1", 5), Author.CONTROLLER, "RebootAssumed"),
    (m.WorkflowTimedOut(5), Author.CONTROLLER, "RebootAssumed"),
]


@pytest.mark.parametrize(("event", "author", "reason"), SILENCES)
def test_a_last_action_that_reboots_succeeds_when_nobody_is_left_to_say_so(
    make_workflow: Any, event: m.Event, author: Author, reason: str
) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Running"), reboots=True)
    assert m.rebooting(workflow)
    status = apply(workflow, event, NOW, author)
    assert status is not None
    assert (status["state"], status["lastTransitioned"]) == ("Succeeded", STAMP)
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Succeeded"]
    condition = status["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Succeeded", "True", reason)
    assert condition["message"]
    assert "failureReason" not in status["actions"][1]
    other = Author.CONTROLLER if author is Author.SERVER else Author.SERVER
    with pytest.raises(m.NotAllowedError):
        apply(workflow, event, NOW, other)


@pytest.mark.parametrize(
    ("actions", "reboots"),
    [
        (("Succeeded", "Running"), False),
        (("Running", "Running"), True),  # a report was overtaken, or lost: what came of the first is not known
        (("Succeeded", "Pending"), True),
        (("Running", "Pending"), True),
        (("Failed", "Running"), True),
        ((), False),
    ],
)
def test_anything_else_that_falls_silent_has_not_succeeded(
    make_workflow: Any, actions: tuple[str, ...], reboots: bool
) -> None:
    workflow = make_workflow("Running", actions, reboots=reboots)
    assert not m.rebooting(workflow)
    assert apply(workflow, m.AgentAway(30), NOW, Author.SERVER) is None
    assert apply(workflow, m.AgentSeen(), NOW, Author.SERVER) is None
    for event, author in ((m.AgentLost(), Author.SERVER), (m.WorkflowTimedOut(5), Author.CONTROLLER)):
        status = apply(workflow, event, NOW, author)
        assert status is not None
        assert status["state"] == "Failed"
    if actions and actions[-1] == "Running":
        status = apply(workflow, m.ActionTimedOut("a1", 5), NOW, Author.CONTROLLER)
        assert status is not None
        assert status["state"] == "Failed"


def test_agent_that_another_server_has_seen_meanwhile_is_not_gone(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Running"), reboots=True)
    status = apply(workflow, m.AgentSeen(), NOW, Author.SERVER)
    assert status is not None
    assert {field for field in status if status[field] != workflow["status"].get(field)} == {"agentSeenAt"}
    seen = {**workflow, "status": status}
    first = agent_seen(status)
    assert first
    assert apply(seen, m.AgentAway(30), NOW, Author.SERVER) is None
    assert (apply(seen, m.AgentAway(30, first), NOW, Author.SERVER) or {})["state"] == "Succeeded"
    later = {**workflow, "status": apply(seen, m.AgentSeen(), NOW - 5, Author.SERVER)}
    assert apply(later, m.AgentAway(30, first), NOW, Author.SERVER) is None
    by_hand = {**workflow, "status": {**status, "agentSeenAt": 7}}
    assert (apply(by_hand, m.AgentAway(30), NOW, Author.SERVER) or {})["state"] == "Succeeded"


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_only_true_says_that_an_action_reboots(make_workflow: Any, value: Any) -> None:
    workflow = make_workflow("Running", ("Running",))
    workflow["status"]["actions"][0]["rendered"]["reboots"] = value
    assert not m.rebooting(workflow)
    workflow["status"]["actions"][0]["rendered"] = "reboots"
    assert not m.rebooting(workflow)


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling", "Failed", "Succeeded", None])
def test_a_workflow_that_does_not_run_does_not_reboot(make_workflow: Any, state: str | None) -> None:
    workflow = make_workflow(state, ("Succeeded", "Running"), reboots=True)
    assert not m.rebooting(workflow)
    assert apply(workflow, m.AgentAway(30), NOW, Author.SERVER) is None
    assert apply(workflow, m.AgentSeen(), NOW, Author.SERVER) is None


@pytest.mark.parametrize(
    ("event", "author", "agents_word"),
    [
        (m.ActionSucceeded("a1"), Author.SERVER, True),
        (m.ActionFailed("a1", "DiskMissing", "m"), Author.SERVER, True),
        (m.AgentAway(30), Author.SERVER, True),  # or as good as that: nobody is to stop the reboot
        (m.ActionTimedOut("a1", 5), Author.CONTROLLER, False),
        (m.WorkflowTimedOut(5), Author.CONTROLLER, False),
    ],
)
def test_what_ended_without_its_agents_word_is_known(
    make_workflow: Any, event: m.Event, author: Author, agents_word: bool
) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Running"), reboots=True)
    assert not m.unconfirmed(workflow)
    workflow["status"] = apply(workflow, event, NOW, author)
    assert m.unconfirmed(workflow) is not agents_word


@pytest.mark.parametrize(
    ("state", "actions", "agents_word"),
    [
        ("Failed", ("Running", "Pending"), False),
        ("Failed", ("Succeeded", "Pending"), False),
        ("Failed", ("Failed", "Running"), False),
        ("Failed", ("Failed", "Pending"), True),
        ("Succeeded", ("Succeeded", "Running"), False),
        ("Succeeded", ("Succeeded", "Succeeded"), True),
        ("Canceled", ("Pending", "Pending"), False),
        ("Canceled", ("Failed", "Pending"), True),
    ],
)
def test_an_end_state_that_somebody_wrote_by_hand_is_not_the_agents_word(
    make_workflow: Any, state: str, actions: tuple[str, ...], agents_word: bool
) -> None:
    assert m.unconfirmed(make_workflow(state, actions)) is not agents_word


def test_a_lost_agent_that_turns_up_with_the_workflow_is_to_stop_it(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Running",))
    workflow["status"] = apply(workflow, m.AgentLost(), NOW, Author.SERVER)
    assert m.unconfirmed(workflow)
    timed_out = make_workflow("Cancelling", ("Running",))
    timed_out["status"] = apply(timed_out, m.CancelTimedOut(5), NOW, Author.CONTROLLER)
    assert m.unconfirmed(timed_out)
    waiting = make_workflow("Scheduled", ("Pending",))
    waiting["status"] = apply(waiting, m.StartTimedOut(5), NOW, Author.CONTROLLER)
    assert m.unconfirmed(waiting)


def test_unknown_action_names_workflow_and_id(make_workflow: Any) -> None:
    with pytest.raises(m.UnknownActionError, match=r"default/w has no action with the id 'zz'"):
        apply(make_workflow("Running"), m.ActionStarted("zz"), NOW, Author.SERVER)


# --- cancelling -----------------------------------------------------------------------------------------------------


def test_a_stopped_action_ends_cancelling_and_has_failed(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Succeeded", "Running", "Pending"))
    status = apply(workflow, m.ActionFailed("a1", "Canceled", "stopped"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Canceled"
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Failed", "Pending"]
    assert status["actions"][1]["failureReason"] == "Canceled"


def test_an_agent_that_does_not_know_the_workflow_ends_cancelling_and_what_ran_has_failed(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running",))
    status = apply(workflow, m.Rejected("UnknownWorkflow", "m"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Canceled"
    assert status["actions"][0]["failureReason"] == "Canceled"


def test_an_agent_that_finishes_before_the_stop_arrives_does_not_leave_the_workflow_cancelling(
    make_workflow: Any,
) -> None:
    status = apply(make_workflow("Cancelling", ("Running",)), m.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Canceled"
    assert status["actions"][0]["state"] == "Succeeded"


def test_progress_while_cancelling_is_recorded_without_moving_the_workflow(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running", "Pending"))
    status = apply(workflow, m.ActionSucceeded("a0"), NOW, Author.SERVER)
    assert status is not None
    assert (status["state"], status["actions"][0]["state"]) == ("Cancelling", "Succeeded")
    assert status["lastTransitioned"] == "2026-01-01T00:00:00.000Z", "the agent's time to stop must not start anew"


def test_cancelling_set_by_hand_gives_the_agent_its_time_from_now(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running",))
    workflow["status"] = apply(workflow, m.CancelRequested("by hand"), NOW, Author.CONTROLLER)
    assert workflow["status"]["lastTransitioned"] == STAMP
    assert apply(workflow, m.CancelRequested("by hand"), NOW + 1, Author.CONTROLLER) is None, "noticed once"


def test_a_forced_cancel_says_that_the_agent_may_still_run(make_workflow: Any) -> None:
    status = apply(make_workflow("Cancelling", ("Running",)), m.CancelTimedOut(300), NOW, Author.CONTROLLER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "CancelTimeout"
    assert "300 s" in status["conditions"][0]["message"]
    assert status["conditions"][0]["reason"] == "CancelTimeout"


def test_an_action_that_ended_in_time_does_not_time_out(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Pending"))
    assert apply(workflow, m.ActionTimedOut("a0", 5), NOW, Author.CONTROLLER) is None


def test_action_timeout_names_the_action(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Running",)), m.ActionTimedOut("a0", 5), NOW, Author.CONTROLLER)
    assert status is not None
    assert status["actions"][0]["failureReason"] == "ActionTimeout"
    assert "'action-0' did not complete within 5 s" in status["actions"][0]["failureMessage"]


def test_a_status_edited_by_hand_is_refused_by_name(make_workflow: Any) -> None:
    with pytest.raises(InvalidStatusError, match=r"default/w: status.state is 'Runing'"):
        apply(make_workflow("Runing"), m.ActionStarted("a0"), NOW, Author.SERVER)
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.actions\[a0\].state is 'Odd'"):
        apply(make_workflow("Running", ("Odd",)), m.ActionStarted("a0"), NOW, Author.SERVER)


def test_fields_of_a_newer_version_survive(make_workflow: Any) -> None:
    workflow = make_workflow("Scheduled", newField={"x": 1})
    workflow["status"]["actions"][0]["newField"] = 2
    status = apply(workflow, m.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert status["newField"] == {"x": 1}
    assert status["actions"][0]["newField"] == 2


def test_a_workflow_that_begins_although_it_is_to_stop_forgets_its_rejections_too(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", rejections=1, dispatchAfter="2027-01-15T08:00:08.000Z")
    status = apply(workflow, m.ActionStarted("a0"), NOW, Author.SERVER)
    assert status is not None
    assert not {"rejections", "dispatchAfter"} & set(status)


# --- any order, any number of times -----------------------------------------------------------------------------

REPORTS = st.sampled_from(
    [
        make(f"a{i}")
        for i in range(3)
        for make in (m.ActionStarted, m.ActionSucceeded, lambda a: m.ActionFailed(a, "R", "m"))
    ]
    + [m.Rejected(reason, "m", 5) for reason in ("Busy", "UnknownWorkflow", "AlreadyFinished")]
    + [m.AgentLost(), m.AgentAway(30)]
)
SUPERVISION = st.sampled_from(
    [
        m.CancelRequested("m"),
        m.StartTimedOut(1),
        m.CancelTimedOut(1),
        m.WorkflowTimedOut(1),
        m.NothingLeft(),
        *(m.ActionTimedOut(f"a{i}", 1) for i in range(3)),
    ]
)


class AnyOrder(RuleBasedStateMachine):
    """A Workflow of three actions that is told anything, in any order, by both components."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.workflow: Raw = {"metadata": {"name": "w", "namespace": "d", "uid": "u", "resourceVersion": "1"}}

    def _apply(self, event: m.Event, author: Author) -> None:
        self.now += 1
        before: Raw = self.workflow.get("status", {})
        after = apply(self.workflow, event, self.now, author)
        if after is None:
            return
        assert before.get("state") not in TERMINAL
        if before.get("state") != after.get("state"):
            assert self._path(before.get("state"), after["state"], author), (before.get("state"), after["state"])
            assert parse_timestamp(after["lastTransitioned"]) == self.now
        for old, new in zip(before.get("actions", []), after.get("actions", []), strict=False):
            order = ["Pending", "Running", "Succeeded"]
            assert old["id"] == new["id"]
            assert old["state"] == new["state"] or old["state"] not in ("Succeeded", "Failed")
            assert new["state"] == "Failed" or order.index(new["state"]) >= order.index(old["state"])
        self.workflow["status"] = after
        assert apply(self.workflow, event, self.now + 1, author) is None, "not idempotent"

    @staticmethod
    def _path(start: str | None, end: str, author: Author) -> bool:
        """Whether arrows of this author lead from `start` to `end`."""
        reached, todo = set(), [start]
        while todo:
            state = todo.pop()
            todo += [to for (at, _, to, who) in TABLE if at == state and who == author and to not in reached]
            reached |= {to for (at, _, to, who) in TABLE if at == state and who == author}
        return end in reached

    @precondition(lambda self: "status" not in self.workflow)
    @rule()
    def prepare(self) -> None:
        reboots: list[Raw] = [{}, {}, {"reboots": True}]
        actions = (m.PreparedAction(f"a{i}", {"name": f"n{i}", "image": "i"} | reboots[i]) for i in range(3))
        self._apply(m.Prepared(tuple(actions)), Author.CONTROLLER)

    @precondition(lambda self: "status" in self.workflow)
    @rule(event=st.sampled_from([m.Dispatched(), m.GivenBack()]))
    def dispatch(self, event: m.Event) -> None:
        self._apply(event, Author.SERVER)

    @precondition(lambda self: "status" in self.workflow)
    @rule(event=REPORTS)
    def report(self, event: m.Event) -> None:
        self._apply(event, Author.SERVER)

    @precondition(lambda self: "status" in self.workflow)
    @rule(event=SUPERVISION)
    def supervise(self, event: m.Event) -> None:
        self._apply(event, Author.CONTROLLER)

    @invariant()
    def status_is_sound(self) -> None:
        if "status" not in self.workflow:
            return
        status = WorkflowStatus.model_validate(self.workflow["status"])
        states = [action.state for action in status.actions or []]
        conditions = {c.type: c.status for c in status.conditions or []}
        assert status.state is not None
        if status.state is WorkflowState.SUCCEEDED:
            assert set(states) == {ActionState.SUCCEEDED}
        if status.state.terminal:
            assert ActionState.RUNNING not in states
            assert conditions["Succeeded"] == ("True" if status.state is WorkflowState.SUCCEEDED else "False")
        if status.state in (WorkflowState.PENDING, WorkflowState.SCHEDULED):
            assert set(states) == {ActionState.PENDING}
        assert (status.started_at is not None) == (conditions["Started"] == "True")
        assert status.started_at is None or (status.rejections, status.dispatch_after) == (None, None)
        assert (status.rejections is None) == (status.dispatch_after is None)
        assert (status.started_at is not None) == any(s is not ActionState.PENDING for s in states)


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(REPORTS, max_size=12))
def test_reports_delivered_twice_have_the_effect_of_once(events: list[m.AgentEvent]) -> None:
    def play(stream: list[m.AgentEvent]) -> Raw:
        workflow: Raw = {"metadata": {"name": "w", "namespace": "d", "uid": "u", "resourceVersion": "1"}}
        actions = tuple(m.PreparedAction(f"a{i}", {"name": f"n{i}", "image": "i"}) for i in range(3))
        workflow["status"] = apply(workflow, m.Prepared(actions), NOW, Author.CONTROLLER)
        workflow["status"] = apply(workflow, m.Dispatched(), NOW, Author.SERVER)
        for event in stream:
            workflow["status"] = apply(workflow, event, NOW, Author.SERVER) or workflow["status"]
        return workflow

    assert play(events) == play([event for event in events for _ in range(2)])
