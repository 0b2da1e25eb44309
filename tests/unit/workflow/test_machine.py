"""The effect of each event on a Workflow's fields: reports, cancellation, and silent agents."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.workflow.cases import (
    BEFORE,
    NOW,
    STAMP,
    after,
    author_of,
    in_state,
    letters,
    other_than,
    unchanged,
)
from tink.api.v1alpha2 import Raw, WorkflowStatus
from tink.workflow import guards, machine
from tink.workflow.events import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    ActionTimedOut,
    AgentAway,
    AgentLost,
    AgentSeen,
    CancelRequested,
    CancelTimedOut,
    Dispatched,
    Event,
    GivenBack,
    NothingLeft,
    Rejected,
    StartTimedOut,
    WorkflowTimedOut,
)
from tink.workflow.machine import apply
from tink.workflow.status import InvalidStatusError, agent_seen

DISK_MISSING = ActionFailed("a0", "DiskMissing", "/dev/sda is not there")
# State and actions of the Workflow, the event; state and actions afterwards, and why an action has failed.
# State and actions of the Workflow, the event; both afterwards, why an action has failed, and the condition: its reason
# (of Succeeded, at the end; of Started, after a rejection), and a part of its message.
EFFECTS: dict[str, tuple[str, Event, str, dict[int, str], str, str]] = {
    "action is stopped": (
        *("Cancelling SRP", ActionFailed("a1", "Canceled", "m"), "Canceled SFP", {1: "Canceled"}),
        *("Canceled", "the agent stopped the Workflow"),
    ),
    "agent does not know it": (
        *("Cancelling R", Rejected("UnknownWorkflow", "m"), "Canceled F", {0: "Canceled"}),
        *("Canceled", "the agent does not run the Workflow"),
    ),
    "last action ends before the stop arrives": (
        *("Cancelling R", ActionSucceeded("a0"), "Canceled S", {}),
        *("Canceled", "all actions had succeeded before the agent could be told"),
    ),
    "progress while cancelling": ("Cancelling RP", ActionSucceeded("a0"), "Cancelling SP", {}, "", ""),
    "agent without the Workflow that it was to stop": (
        *("Cancelling R", AgentLost(), "Canceled F", {0: "Canceled"}, "Canceled", "came back without the Workflow"),
    ),
    # The agent may still run it.
    "forced cancel": (
        *("Cancelling R", CancelTimedOut(300), "Canceled F", {0: "CancelTimeout"}, "CancelTimeout", "300 s"),
    ),
    "start timeout": ("Scheduled P", StartTimedOut(300), "Failed P", {}, "StartTimeout", "300 s"),
    "Workflow timeout": (
        "Running R",
        WorkflowTimedOut(5),
        "Failed F",
        {0: "WorkflowTimeout"},
        "WorkflowTimeout",
        "5 s",
    ),
    "action timeout": (
        *("Running R", ActionTimedOut("a0", 5), "Failed F", {0: "ActionTimeout"}),
        *("ActionTimeout", "'action-0' did not complete within 5 s"),
    ),
    "no action left": ("Running S", NothingLeft(), "Failed S", {}, "InvalidStatus", "its status was edited by hand"),
    "agent without its Workflow": (
        *("Running SRP", AgentLost(), "Failed SFP", {1: "AgentLost"}, "AgentLost", "came back without the Workflow"),
    ),
    "agent lost between two actions": ("Running SP", AgentLost(), "Failed SP", {}, "AgentLost", ""),
    "success without start": ("Scheduled PP", ActionSucceeded("a0"), "Running SP", {}, "", ""),
    "last success": ("Running SR", ActionSucceeded("a1"), "Succeeded SS", {}, "", ""),
    "last success overtakes the first": ("Running RR", ActionSucceeded("a1"), "Running RS", {}, "", ""),
    "overtaken success": ("Running RS", ActionSucceeded("a0"), "Succeeded SS", {}, "", ""),
    "failure": ("Running RP", DISK_MISSING, "Failed FP", {0: "DiskMissing"}, "DiskMissing", "/dev/sda is not there"),
    "failure without a reason": (
        *("Running R", ActionFailed("a0", "", ""), "Failed F", {0: "ActionFailed"}, "ActionFailed", ""),
    ),
    "rejection": ("Scheduled P", Rejected("Busy", "runs another"), "Pending P", {}, "Busy", "runs another"),
    "rejection without a reason": ("Scheduled P", Rejected("", "m"), "Pending P", {}, "Rejected", "m"),
    "cancel request": (
        "Running R",
        CancelRequested("it was deleted"),
        "Cancelling R",
        {},
        "Cancelling",
        "it was deleted",
    ),
    "cancel request of what no agent has": ("Pending P", CancelRequested("m"), "Canceled P", {}, "Canceled", "m"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_event_changes_workflow_and_actions_and_says_why(name: str) -> None:
    before, event, expected, reasons, reason, says = EFFECTS[name]
    status = after(in_state(*before.split()), event)
    assert f"{status['state']} {letters(status)}" == expected
    failed = {i: a for i, a in enumerate(status["actions"]) if "failureReason" in a}
    assert {i: a["failureReason"] for i, a in failed.items()} == reasons
    moved = status["state"] != before.split()[0]
    assert status["lastTransitioned"] == (STAMP if moved else BEFORE), "a timeout counts from the last arrow"
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    if status["state"] == "Succeeded":
        expected = {"type": "Succeeded", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}
        assert conditions["Succeeded"] == expected
    if reason:
        said = conditions["Started" if status["state"] == "Pending" else "Succeeded"]
        assert (said["status"], said["reason"]) == ("Unknown" if reason == "Cancelling" else "False", reason)
        assert says in said.get("message", "")
    if "action" in says or name == "failure":
        assert all(says in a["failureMessage"] for a in failed.values())
    if "Pending" in expected:
        assert status["dispatched"] is False


# --- reports ----------------------------------------------------------------------------------------------------------


def test_first_start_is_the_start_of_the_workflow_and_no_later_one() -> None:
    status = after(in_state("Scheduled"), ActionStarted("a0"))
    assert (status["startedAt"], status["currentAction"]) == (STAMP, "action-0")
    assert ("Started", "True") in [(each["type"], each["status"]) for each in status["conditions"]]
    started = {"id": "a0", "state": "Running", "startedAt": STAMP, "lastTransitioned": STAMP}
    assert {key: value for key, value in status["actions"][0].items() if key != "rendered"} == started
    assert letters(status) == "RP"
    assert after(in_state("Scheduled"), ActionSucceeded("a0"))["actions"][0]["startedAt"] == STAMP
    status = after(in_state("Running", "SP", startedAt="2026-01-01T00:00:01.000Z"), ActionStarted("a1"))
    assert (status["startedAt"], status["lastTransitioned"]) == ("2026-01-01T00:00:01.000Z", BEFORE)
    assert status["currentAction"] == "action-1"
    late = in_state("Running", "PR", currentAction="action-1", startedAt=STAMP)
    assert after(late, ActionStarted("a0"))["currentAction"] == "action-1", "it is not turned back"


def test_agent_cannot_fill_the_api_with_its_message() -> None:
    status = after(in_state("Running", "R"), ActionFailed("a0", "R" * 10_000, "m" * 1_000_000))
    assert len(str(status)) < 2 * (machine.MAX_MESSAGE + machine.MAX_REASON) + 1000


@pytest.mark.parametrize("state", ["Scheduled", "Running", "Cancelling"])
@pytest.mark.parametrize("final", ["SP", "FP"])
def test_repeated_reports_for_a_final_action_change_nothing(state: str, final: str) -> None:
    reports = (ActionStarted("a0"), ActionSucceeded("a0"), ActionFailed("a0", "R", "m"))
    assert unchanged(in_state(state, final), *reports)
    # An agent of another make rejects the repeated command for the Workflow that it runs already.
    assert unchanged(in_state("Running", "R"), Rejected("Busy", "m"))
    assert unchanged(in_state("Running", "SP"), ActionTimedOut("a0", 5)), "it ended in time"


def test_rejections_are_counted_and_hold_the_workflow_back() -> None:
    workflow = in_state("Scheduled")
    workflow["status"] = after(workflow, Rejected("Busy", "m", 5.5))
    assert (workflow["status"]["rejections"], workflow["status"]["dispatchAfter"]) == (1, "2027-01-15T08:00:05.500Z")
    workflow["status"] = after(workflow, Dispatched(), GivenBack(), now=NOW + 6)
    assert workflow["status"]["rejections"] == 1, "the agent has not even seen it"
    workflow["status"] = after(workflow, Dispatched(), Rejected("Busy", "m", 10), now=NOW + 7)
    assert (workflow["status"]["rejections"], workflow["status"]["dispatchAfter"]) == (2, "2027-01-15T08:00:17.000Z")
    WorkflowStatus.model_validate(workflow["status"])


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Cancelling"])
def test_workflow_that_starts_forgets_its_rejections(state: str) -> None:
    status = after(in_state(state, rejections=3, dispatchAfter=STAMP), ActionStarted("a0"))
    assert not {"rejections", "dispatchAfter"} & set(status)


@pytest.mark.parametrize(
    ("written", "counted"), [(-5, 1), ("many", 1), (True, 1), (2.5, 1), (10**30, machine.MAX_REJECTIONS)]
)
def test_count_of_rejections_written_by_hand_harms_nothing(written: Any, counted: int) -> None:
    assert after(in_state("Scheduled", rejections=written), Rejected("B", "m", 1))["rejections"] == counted


def test_cancelling_set_by_hand_gives_the_agent_its_time_from_now() -> None:
    workflow = in_state("Cancelling", "R")
    workflow["status"] = after(workflow, CancelRequested("by hand"))
    assert workflow["status"]["lastTransitioned"] == STAMP
    assert unchanged(workflow, CancelRequested("by hand")), "noticed once"


def test_invalid_state_or_unknown_action_is_refused_by_name() -> None:
    started = ActionStarted("a0")
    with pytest.raises(InvalidStatusError, match=r"default/w: status.state is 'Runing'"):
        after(in_state("Runing"), started)
    odd = in_state("Running", "R")
    odd["status"]["actions"][0]["state"] = "Odd"
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.actions\[a0\].state is 'Odd'"):
        after(odd, started)
    with pytest.raises(machine.UnknownActionError, match=r"default/w has no action with the id 'zz'"):
        after(in_state("Running"), ActionStarted("zz"))


def test_fields_of_a_newer_version_survive() -> None:
    workflow = in_state("Scheduled", newField={"x": 1})
    workflow["status"]["actions"][0]["newField"] = 2
    status = after(workflow, ActionStarted("a0"))
    assert (status["newField"], status["actions"][0]["newField"]) == ({"x": 1}, 2)


# --- agents that say nothing any more ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (AgentLost(), "Rebooted"),
        (AgentAway(30), "Rebooted"),
        (ActionTimedOut("a1", 5), "RebootAssumed"),
        (WorkflowTimedOut(5), "RebootAssumed"),
    ],
)
def test_last_action_that_reboots_succeeds_when_its_agent_disappears(event: Event, reason: str) -> None:
    workflow = in_state("Running", "SR", reboots=True)
    assert guards.rebooting(workflow)
    status = after(workflow, event)
    assert (status["state"], status["lastTransitioned"], letters(status)) == ("Succeeded", STAMP, "SS")
    condition = status["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Succeeded", "True", reason)
    assert condition["message"]
    assert "failureReason" not in status["actions"][1]
    with pytest.raises(machine.NotAllowedError):
        apply(workflow, event, NOW, other_than(author_of(event)))


@pytest.mark.parametrize(
    ("actions", "reboots"),
    [
        ("SR", False),
        ("RR", True),  # a report was overtaken, or lost: what came of the first is not known
        ("SP", True),
        ("RP", True),
        ("FR", True),
        ("", False),
    ],
)
def test_other_action_fails_when_its_agent_disappears(actions: str, reboots: bool) -> None:
    workflow = in_state("Running", actions, reboots=reboots)
    assert not guards.rebooting(workflow)
    assert unchanged(workflow, AgentAway(30), AgentSeen())
    timeouts = (ActionTimedOut("a1", 5),) if actions.endswith("R") else ()
    for event in (AgentLost(), WorkflowTimedOut(5), *timeouts):
        assert after(workflow, event)["state"] == "Failed"


def test_agent_that_another_server_has_seen_meanwhile_is_not_gone() -> None:
    workflow = in_state("Running", "SR", reboots=True)
    status = after(workflow, AgentSeen())
    assert {field for field in status if status[field] != workflow["status"].get(field)} == {"agentSeenAt", "message"}
    seen, first = {**workflow, "status": status}, agent_seen(status)
    assert first
    assert unchanged(seen, AgentAway(30))
    assert after(seen, AgentAway(30, first))["state"] == "Succeeded"
    later = {**workflow, "status": after(seen, AgentSeen(), now=NOW - 5)}
    assert unchanged(later, AgentAway(30, first))
    by_hand = {**workflow, "status": {**status, "agentSeenAt": 7}}
    assert after(by_hand, AgentAway(30))["state"] == "Succeeded"


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_action_reboots_only_if_the_field_is_true(value: Any) -> None:
    workflow = in_state("Running", "R")
    workflow["status"]["actions"][0]["rendered"]["reboots"] = value
    assert not guards.rebooting(workflow)
    workflow["status"]["actions"][0]["rendered"] = "reboots"
    assert not guards.rebooting(workflow)


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling", "Failed", "Succeeded", None])
def test_workflow_that_does_not_run_does_not_reboot(state: str | None) -> None:
    workflow = in_state(state, "SR", reboots=True)
    assert not guards.rebooting(workflow)
    assert unchanged(workflow, AgentAway(30), AgentSeen())
    assert guards.under_way(workflow) is (state == "Cancelling")
    assert not guards.under_way(in_state("Runing"))


REBOOTING = in_state("Running", "SR", reboots=True)


@pytest.mark.parametrize(
    ("workflow", "event", "agents_word"),
    [
        (REBOOTING, ActionSucceeded("a1"), True),
        (REBOOTING, ActionFailed("a1", "DiskMissing", "m"), True),
        (REBOOTING, AgentAway(30), True),  # or nearly: the reboot is not to be stopped
        (REBOOTING, ActionTimedOut("a1", 5), False),
        (REBOOTING, WorkflowTimedOut(5), False),
        (in_state("Running", "R"), AgentLost(), False),
        (in_state("Cancelling", "R"), CancelTimedOut(5), False),
        (in_state("Scheduled", "P"), StartTimedOut(5), False),
    ],
)
def test_end_without_a_report_of_the_agent_is_unconfirmed(workflow: Raw, event: Event, agents_word: bool) -> None:
    """An agent that turns up with such a Workflow is to stop it."""
    assert not guards.unconfirmed(workflow)
    assert guards.unconfirmed({**workflow, "status": after(workflow, event)}) is not agents_word


@pytest.mark.parametrize(
    ("state", "actions", "agents_word"),
    [
        ("Failed", "RP", False),
        ("Failed", "SP", False),
        ("Failed", "FR", False),
        ("Failed", "FP", True),
        ("Succeeded", "SR", False),
        ("Succeeded", "SS", True),
        ("Canceled", "PP", False),
        ("Canceled", "FP", True),
    ],
)
def test_end_state_written_by_hand_is_unconfirmed(state: str, actions: str, agents_word: bool) -> None:
    assert guards.unconfirmed(in_state(state, actions)) is not agents_word
