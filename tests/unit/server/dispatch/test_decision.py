"""Which command an agent gets next."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.server.dispatch.decision import (
    AgentView,
    Claim,
    GiveBack,
    Move,
    Recall,
    Start,
    Stop,
    Wait,
    next_move,
)
from tink.server.workflows import WorkflowIndex
from tink.workflow.status import InvalidStatusError, timestamp

NOW = 1000.0
LONGEST = 60.0


def workflow(name: str, state: str | None = "Pending", *, deleted: bool = False, **status: Any) -> Raw:
    metadata: Raw = {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"}
    if deleted:
        metadata["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    actions = [{"id": "a", "rendered": {"name": "n", "image": "i"}}]
    return {"metadata": metadata, "status": {"state": state, "actions": actions, **status} if state else {}}


def decide(*workflows: Raw, view: AgentView | None = None, now: float = NOW) -> Move:
    return next_move(workflows, view or AgentView(), now, LONGEST)


def test_the_oldest_pending_workflow_is_claimed() -> None:
    a, b = workflow("a"), workflow("b")
    assert decide(workflow("done", "Succeeded"), workflow("new", None), a, b) == Claim(a)


def test_workflow_whose_spec_changed_is_not_given_away_before_it_is_rendered_anew() -> None:
    changed = workflow("a", observedGeneration=1)
    changed["metadata"]["generation"] = 2
    assert decide(changed) == Wait(), "these actions were rendered for another machine, perhaps"
    changed["metadata"]["generation"] = 1
    assert decide(changed) == Claim(changed)


@pytest.mark.parametrize("state", ["Scheduled", "Running", "Cancelling"])
def test_one_at_a_time(state: str) -> None:
    view = AgentView(started={"a"}, stopped={"a"})
    assert decide(workflow("a", state), workflow("b"), view=view) == Wait()


def test_an_active_workflow_that_is_younger_blocks_an_older_pending_one() -> None:
    assert decide(workflow("a"), workflow("b", "Running"), view=AgentView(started={"b"})) == Wait()


def test_a_scheduled_workflow_is_sent_again_to_an_agent_that_came_back_a_running_one_is_not() -> None:
    scheduled, running = workflow("a", "Scheduled"), workflow("a", "Running")
    assert decide(scheduled) == Start(scheduled)
    assert decide(scheduled, view=AgentView(started={"a"})) == Wait()
    assert decide(running) == Wait()


def test_a_second_claim_is_given_back_while_the_agent_is_at_work() -> None:
    """Another server, whose connection to the agent is dead, claimed it and can't send it."""
    second = workflow("b", "Scheduled")
    for state in ("Scheduled", "Running", "Cancelling"):
        first = workflow("a", state)
        assert decide(first, second, view=AgentView(started={"a"}, stopped={"a"})) == GiveBack(second)
    assert decide(workflow("a", "Scheduled"), second) == Start(workflow("a", "Scheduled")), "the older one goes first"
    assert decide(workflow("a", "Succeeded"), second) == Start(second)


def test_a_workflow_that_no_message_can_be_made_of_does_not_hold_up_the_others() -> None:
    view = AgentView()
    broken = workflow("a")
    view.set_aside(broken)
    assert decide(broken, workflow("b"), view=view) == Claim(workflow("b"))
    scheduled = workflow("a", "Scheduled")
    assert decide(scheduled, workflow("b"), view=view) == Claim(workflow("b"))
    mended = workflow("a")
    mended["metadata"]["resourceVersion"] = "2"
    assert decide(mended, workflow("b"), view=view) == Claim(mended)


def test_cancelling_is_stopped_once_per_stream_whatever_else_there_is() -> None:
    cancelling = workflow("b", "Cancelling")
    assert decide(workflow("a"), cancelling) == Stop("b", "d/b")
    assert decide(workflow("a"), cancelling, view=AgentView(stopped={"b"})) == Wait()


def test_a_workflow_that_timed_out_is_stopped_on_the_stream_of_the_agent_that_runs_it() -> None:
    condition = {"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}
    over = workflow("a", "Failed", conditions=[condition])
    assert decide(over, view=AgentView(started={"a"})) == Stop("a", "d/a")
    assert decide(over, view=AgentView(started={"a"}, stopped={"a"})) == Wait()
    assert decide(over) == Wait()
    failed = workflow("a", "Failed", conditions=[condition | {"reason": "DiskMissing"}])
    failed["status"]["actions"][0]["state"] = "Failed"
    assert decide(failed, view=AgentView(started={"a"})) == Wait(), "the agent itself said that it is over"


def test_a_workflow_that_somebody_ended_by_hand_is_stopped() -> None:
    by_hand = workflow("a", "Failed")
    by_hand["status"]["actions"][0]["state"] = "Running"
    assert decide(by_hand, view=AgentView(started={"a"})) == Stop("a", "d/a")


def test_a_workflow_that_vanished_while_it_ran_is_stopped() -> None:
    view = AgentView(stopped={"e"}, offered={"a": 1.0}, unsendable={"a": "1"})
    view.runs(["a", "b", "c", "e"])
    done = workflow("b", "Succeeded")
    done["status"]["actions"][0]["state"] = "Succeeded"
    timed_out = workflow("c", "Failed", conditions=[{"type": "Succeeded", "status": "False", "reason": "StartTimeout"}])
    for gone in (workflow("a", "Running"), done, timed_out, workflow("never", "Running"), workflow("e", "Cancelling")):
        view.forget(gone)
    assert view.orphans == {"a": "d/a", "c": "d/c"}
    assert (view.started, view.given, view.stopped, view.offered, view.unsendable) == (set(), set(), set(), {}, {})
    assert decide(view=view) == Stop("a", "d/a")


def test_an_agent_that_says_what_it_holds_is_asked_again_about_what_runs_and_is_neither_held_nor_sent() -> None:
    running = workflow("a", "Running")
    assert decide(running, workflow("b"), view=AgentView(says=True)) == Recall(running)
    assert decide(running, view=AgentView(says=True, started={"a"})) == Wait()
    assert decide(running, workflow("b", "Cancelling"), view=AgentView(says=True)) == Stop("b", "d/b"), (
        "first things first"
    )
    view = AgentView(says=True, started={"b"})
    view.see([running, workflow("b")])
    assert view.started == set(), "only what it said or was sent counts"
    for other in ("Pending", "Scheduled", "Cancelling", "Failed"):
        assert not isinstance(decide(workflow("a", other), view=AgentView(says=True)), Recall)


def test_what_is_running_is_known_to_the_agent_and_what_is_pending_has_to_be_sent_anew() -> None:
    view = AgentView(started={"b", "c"})
    view.see([workflow("a", "Running"), workflow("b"), workflow("c", "Scheduled"), workflow("e", "Cancelling")])
    assert view.started == {"a", "c"}


def test_a_workflow_that_is_sent_again_can_be_stopped_again() -> None:
    view = AgentView(stopped={"a"})
    view.sent(workflow("a"), NOW)
    assert (view.started, view.stopped, view.offered) == ({"a"}, set(), {"a": NOW})


def test_a_deleted_workflow_is_not_claimed() -> None:
    assert decide(workflow("a", deleted=True)) == Wait()


def test_a_workflow_without_actions_is_not_claimed() -> None:
    assert decide(workflow("a", actions=[])) == Wait()


def test_a_rejected_workflow_waits_and_is_not_overtaken() -> None:
    rejected = workflow("a", dispatchAfter=timestamp(NOW + 5))
    assert decide(rejected, workflow("b")) == Wait(NOW + 5)
    assert decide(rejected, workflow("b"), now=NOW + 5) == Claim(rejected)
    assert decide(workflow("a", dispatchAfter="soon")) == Claim(workflow("a", dispatchAfter="soon"))


def test_a_clock_that_jumps_holds_a_workflow_back_for_the_longest_delay_at_most() -> None:
    mad = workflow("a", dispatchAfter="9999-01-01T00:00:00Z")
    assert decide(workflow("a", dispatchAfter=timestamp(NOW + LONGEST))) == Wait(NOW + LONGEST)
    assert decide(mad) == Claim(mad), "this stream has not offered it: nothing is known of a delay"
    view = AgentView(offered={"a": NOW})
    assert decide(mad, view=view) == Wait(NOW + LONGEST)
    assert decide(mad, view=view, now=NOW + 59) == Wait(NOW + LONGEST), "it comes nearer"
    assert decide(mad, view=view, now=NOW + LONGEST) == Claim(mad)
    assert decide(mad, view=view, now=NOW - 3600) == Claim(mad), "this server's own clock went back"


def test_a_status_edited_by_hand_is_named() -> None:
    with pytest.raises(InvalidStatusError, match="d/a"):
        decide(workflow("a", "Odd"))


# --- the index ----------------------------------------------------------------------------------------------------


def indexed(name: str, created: str, hardware: str = "h", **extra: Any) -> Raw:
    metadata = {"name": name, "namespace": "d", "uid": name, "creationTimestamp": created, **extra}
    return {"metadata": metadata, "spec": {"hardwareRef": {"name": hardware}}}


def test_workflows_of_a_machine_are_in_the_order_of_their_creation() -> None:
    index = WorkflowIndex()
    for obj in (indexed("z", "02"), indexed("y", "02"), indexed("x", "01"), indexed("other", "00", "g")):
        index.apply(obj)
    index.apply(indexed("z", "02", resourceVersion="9"))  # a change is no new creation
    assert [w["metadata"]["name"] for w in index.of(("d", "h"))] == ["x", "z", "y"]


def test_index_follows_changes_and_remembers_what_is_gone() -> None:
    index = WorkflowIndex()
    index.apply(indexed("a", "01"))
    index.apply(indexed("a", "01", "g"))
    assert index.of(("d", "h")) == []
    assert len(index.of(("d", "g"))) == 1
    index.remove(indexed("a", "01", "g"))
    index.refresh(indexed("a", "01", "g"))
    assert index.of(("d", "g")) == [], "a late answer brought a deleted Workflow back"
    assert index.get("a") is None
    assert (index.name_of_gone("a"), index.name_of_gone("b")) == ("d/a", None)
    for i in range(5000):
        index.apply(indexed(f"n{i}", "01"))
        index.remove(indexed(f"n{i}", "01"))
    assert index.name_of_gone("a") is None, "memory is bounded"


def test_the_informers_late_news_do_not_undo_what_the_api_has_answered() -> None:
    index = WorkflowIndex()
    index.apply(indexed("a", "01", resourceVersion="9"))
    index.refresh(indexed("a", "01", resourceVersion="11"))
    index.apply(indexed("a", "01", resourceVersion="10"))
    assert index.get("a") == indexed("a", "01", resourceVersion="11")
    index.apply(indexed("a", "01", resourceVersion="12"))
    index.refresh(indexed("a", "01", resourceVersion="11"))
    assert index.get("a") == indexed("a", "01", resourceVersion="12")
    index.apply(indexed("a", "01", resourceVersion="3"))
    assert index.get("a") == indexed("a", "01", resourceVersion="3"), "an API that was restored counts anew"


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    index = WorkflowIndex()
    index.apply(indexed("a", "01", resourceVersion="x"))
    index.refresh(indexed("a", "01", resourceVersion="b"))
    assert index.get("a") == indexed("a", "01", resourceVersion="b")
    index.apply(indexed("a", "01", resourceVersion="a"))
    assert index.get("a") == indexed("a", "01", resourceVersion="a")


@pytest.mark.parametrize("spec", [None, {}, {"hardwareRef": None}, {"hardwareRef": {}}, 5])
def test_a_workflow_that_names_no_hardware_is_of_no_machine(spec: Any) -> None:
    index = WorkflowIndex()
    index.apply({"metadata": {"name": "a", "namespace": "d", "uid": "a"}, "spec": spec})
    assert index.get("a") is not None
