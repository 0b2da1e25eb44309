"""Which command an agent gets next."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.server.dispatch import Claim, Move, Rejections, Start, Stop, Told, Wait, next_move
from tink.server.workflows import WorkflowIndex
from tink.workflow.status import InvalidStatusError

NOW = 1000.0


def workflow(name: str, state: str | None = "Pending", *, deleted: bool = False, **status: Any) -> Raw:
    metadata: Raw = {"name": name, "namespace": "d", "uid": name}
    if deleted:
        metadata["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    actions = [{"id": "a", "rendered": {"name": "n", "image": "i"}}]
    return {"metadata": metadata, "status": {"state": state, "actions": actions, **status} if state else {}}


def decide(*workflows: Raw, told: Told | None = None, rejections: Rejections | None = None) -> Move:
    return next_move(workflows, told or Told(), rejections or Rejections(5, 60), NOW)


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
    told = Told(started={"a"}, stopped={"a"})
    assert decide(workflow("a", state), workflow("b"), told=told) == Wait()


def test_an_active_workflow_that_is_younger_blocks_an_older_pending_one() -> None:
    assert decide(workflow("a"), workflow("b", "Running"), told=Told(started={"b"})) == Wait()


def test_a_scheduled_workflow_is_sent_again_to_an_agent_that_came_back_a_running_one_is_not() -> None:
    scheduled, running = workflow("a", "Scheduled"), workflow("a", "Running")
    assert decide(scheduled) == Start(scheduled)
    assert decide(scheduled, told=Told(started={"a"})) == Wait()
    assert decide(running) == Wait()


def test_cancelling_is_stopped_once_per_stream_whatever_else_there_is() -> None:
    cancelling = workflow("b", "Cancelling")
    assert decide(workflow("a"), cancelling) == Stop("b", "d/b")
    assert decide(workflow("a"), cancelling, told=Told(stopped={"b"})) == Wait()


def test_a_workflow_that_timed_out_is_stopped_on_the_stream_that_was_told_to_run_it() -> None:
    condition = {"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}
    over = workflow("a", "Failed", conditions=[condition])
    assert decide(over, told=Told(started={"a"})) == Stop("a", "d/a")
    assert decide(over, told=Told(started={"a"}, stopped={"a"})) == Wait()
    assert decide(over) == Wait()
    failed = workflow("a", "Failed", conditions=[condition | {"reason": "DiskMissing"}])
    assert decide(failed, told=Told(started={"a"})) == Wait(), "the agent itself said that it is over"


def test_a_workflow_that_vanished_while_it_ran_is_stopped() -> None:
    told = Told(started={"a", "b"})
    told.forget(workflow("a", "Running"))
    told.forget(workflow("b", "Succeeded"))
    assert told.orphans == {"a": "d/a"}
    assert decide(told=told) == Stop("a", "d/a")


def test_a_deleted_workflow_is_not_claimed() -> None:
    assert decide(workflow("a", deleted=True)) == Wait()


def test_a_rejected_workflow_waits_and_is_not_overtaken() -> None:
    rejections = Rejections(5, 60)
    rejections.rejected("a", NOW)
    assert decide(workflow("a"), workflow("b"), rejections=rejections) == Wait(NOW + 5)
    assert next_move([workflow("a")], Told(), rejections, NOW + 5) == Claim(workflow("a"))


def test_rejection_delays_grow_to_their_bound_for_each_workflow_apart() -> None:
    rejections = Rejections(5, 60)
    assert [rejections.rejected("a", NOW) for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    assert rejections.rejected("b", NOW) == 5
    rejections.forget("a")
    assert rejections.rejected("a", NOW) == 5
    for _ in range(2000):
        delay = rejections.rejected("c", NOW)
    assert delay == 60


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
    assert index.is_gone("a")
    assert not index.is_gone("b")
    for i in range(5000):
        index.apply(indexed(f"n{i}", "01"))
        index.remove(indexed(f"n{i}", "01"))
    assert not index.is_gone("a"), "memory is bounded"


@pytest.mark.parametrize("spec", [None, {}, {"hardwareRef": None}, {"hardwareRef": {}}, 5])
def test_a_workflow_that_names_no_hardware_is_of_no_machine(spec: Any) -> None:
    index = WorkflowIndex()
    index.apply({"metadata": {"name": "a", "namespace": "d", "uid": "a"}, "spec": spec})
    assert index.get("a") is not None
