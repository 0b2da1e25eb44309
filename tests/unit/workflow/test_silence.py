"""Agents that say nothing any more: what has become of their Workflows."""

from __future__ import annotations

from typing import Any

import pytest

from tink.workflow import events, guards, machine
from tink.workflow.machine import apply
from tink.workflow.status import agent_seen
from tink.workflow.table import Author

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"
# --- agents that say nothing any more -----------------------------------------------------------------------------


def test_an_agent_without_its_workflow_fails_it_and_what_ran(make_workflow: Any) -> None:
    status = apply(
        make_workflow("Running", ("Succeeded", "Running", "Pending")), events.AgentLost(), NOW, Author.SERVER
    )
    assert status is not None
    assert (status["state"], status["conditions"][0]["reason"]) == ("Failed", "AgentLost")
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Failed", "Pending"]
    assert status["actions"][1]["failureReason"] == "AgentLost"


def test_an_agent_lost_between_two_actions_fails_the_workflow(make_workflow: Any) -> None:
    status = apply(make_workflow("Running", ("Succeeded", "Pending")), events.AgentLost(), NOW, Author.SERVER)
    assert status is not None
    assert status["state"] == "Failed"
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Pending"]


def test_an_agent_without_the_workflow_it_was_to_stop_has_stopped_it(make_workflow: Any) -> None:
    workflow = make_workflow("Cancelling", ("Running",), reboots=True)
    status = apply(workflow, events.AgentLost(), NOW, Author.SERVER)
    assert status is not None
    assert (status["state"], status["actions"][0]["failureReason"]) == ("Canceled", "Canceled")


SILENCES: list[tuple[events.Event, Author, str]] = [
    (events.AgentLost(), Author.SERVER, "Rebooted"),
    (events.AgentAway(30), Author.SERVER, "Rebooted"),
    (events.ActionTimedOut("a1", 5), Author.CONTROLLER, "RebootAssumed"),
    (events.WorkflowTimedOut(5), Author.CONTROLLER, "RebootAssumed"),
]


@pytest.mark.parametrize(("event", "author", "reason"), SILENCES)
def test_a_last_action_that_reboots_succeeds_when_nobody_is_left_to_say_so(
    make_workflow: Any, event: events.Event, author: Author, reason: str
) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Running"), reboots=True)
    assert guards.rebooting(workflow)
    status = apply(workflow, event, NOW, author)
    assert status is not None
    assert (status["state"], status["lastTransitioned"]) == ("Succeeded", STAMP)
    assert [a["state"] for a in status["actions"]] == ["Succeeded", "Succeeded"]
    condition = status["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Succeeded", "True", reason)
    assert condition["message"]
    assert "failureReason" not in status["actions"][1]
    other = Author.CONTROLLER if author is Author.SERVER else Author.SERVER
    with pytest.raises(machine.NotAllowedError):
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
    assert not guards.rebooting(workflow)
    assert apply(workflow, events.AgentAway(30), NOW, Author.SERVER) is None
    assert apply(workflow, events.AgentSeen(), NOW, Author.SERVER) is None
    for event, author in ((events.AgentLost(), Author.SERVER), (events.WorkflowTimedOut(5), Author.CONTROLLER)):
        status = apply(workflow, event, NOW, author)
        assert status is not None
        assert status["state"] == "Failed"
    if actions and actions[-1] == "Running":
        status = apply(workflow, events.ActionTimedOut("a1", 5), NOW, Author.CONTROLLER)
        assert status is not None
        assert status["state"] == "Failed"


def test_agent_that_another_server_has_seen_meanwhile_is_not_gone(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Running"), reboots=True)
    status = apply(workflow, events.AgentSeen(), NOW, Author.SERVER)
    assert status is not None
    assert {field for field in status if status[field] != workflow["status"].get(field)} == {"agentSeenAt", "message"}
    seen = {**workflow, "status": status}
    first = agent_seen(status)
    assert first
    assert apply(seen, events.AgentAway(30), NOW, Author.SERVER) is None
    assert (apply(seen, events.AgentAway(30, first), NOW, Author.SERVER) or {})["state"] == "Succeeded"
    later = {**workflow, "status": apply(seen, events.AgentSeen(), NOW - 5, Author.SERVER)}
    assert apply(later, events.AgentAway(30, first), NOW, Author.SERVER) is None
    by_hand = {**workflow, "status": {**status, "agentSeenAt": 7}}
    assert (apply(by_hand, events.AgentAway(30), NOW, Author.SERVER) or {})["state"] == "Succeeded"


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_only_true_says_that_an_action_reboots(make_workflow: Any, value: Any) -> None:
    workflow = make_workflow("Running", ("Running",))
    workflow["status"]["actions"][0]["rendered"]["reboots"] = value
    assert not guards.rebooting(workflow)
    workflow["status"]["actions"][0]["rendered"] = "reboots"
    assert not guards.rebooting(workflow)


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling", "Failed", "Succeeded", None])
def test_a_workflow_that_does_not_run_does_not_reboot(make_workflow: Any, state: str | None) -> None:
    workflow = make_workflow(state, ("Succeeded", "Running"), reboots=True)
    assert not guards.rebooting(workflow)
    assert apply(workflow, events.AgentAway(30), NOW, Author.SERVER) is None
    assert apply(workflow, events.AgentSeen(), NOW, Author.SERVER) is None


@pytest.mark.parametrize(
    ("event", "author", "agents_word"),
    [
        (events.ActionSucceeded("a1"), Author.SERVER, True),
        (events.ActionFailed("a1", "DiskMissing", "m"), Author.SERVER, True),
        (events.AgentAway(30), Author.SERVER, True),  # or as good as that: nobody is to stop the reboot
        (events.ActionTimedOut("a1", 5), Author.CONTROLLER, False),
        (events.WorkflowTimedOut(5), Author.CONTROLLER, False),
    ],
)
def test_what_ended_without_its_agents_word_is_known(
    make_workflow: Any, event: events.Event, author: Author, agents_word: bool
) -> None:
    workflow = make_workflow("Running", ("Succeeded", "Running"), reboots=True)
    assert not guards.unconfirmed(workflow)
    workflow["status"] = apply(workflow, event, NOW, author)
    assert guards.unconfirmed(workflow) is not agents_word


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
    assert guards.unconfirmed(make_workflow(state, actions)) is not agents_word


def test_a_lost_agent_that_turns_up_with_the_workflow_is_to_stop_it(make_workflow: Any) -> None:
    workflow = make_workflow("Running", ("Running",))
    workflow["status"] = apply(workflow, events.AgentLost(), NOW, Author.SERVER)
    assert guards.unconfirmed(workflow)
    timed_out = make_workflow("Cancelling", ("Running",))
    timed_out["status"] = apply(timed_out, events.CancelTimedOut(5), NOW, Author.CONTROLLER)
    assert guards.unconfirmed(timed_out)
    waiting = make_workflow("Scheduled", ("Pending",))
    waiting["status"] = apply(waiting, events.StartTimedOut(5), NOW, Author.CONTROLLER)
    assert guards.unconfirmed(waiting)


def test_unknown_action_names_workflow_and_id(make_workflow: Any) -> None:
    with pytest.raises(machine.UnknownActionError, match=r"default/w has no action with the id 'zz'"):
        apply(make_workflow("Running"), events.ActionStarted("zz"), NOW, Author.SERVER)
