"""Workflows that have ended: when they are deleted, and what is never deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.controller.outcomes import CREATED, SETTINGS, STAMP, finalizers_in, look, make_workflow, never
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.controller.history import WorkflowHistory
from tink.controller.reconcile import Outcome, reconcile
from tink.controller.settings import ControllerSettings
from tink.kube.objects import NamespacedName

STATES = ["Succeeded", "Failed", "Canceled"]


def ended(ttl: int | None = 60, state: str = "Succeeded", name: str = "w", at: str = STAMP) -> Any:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    return make_workflow(state, name=name, finalizer=False, spec=spec, lastTransitioned=at)


@pytest.mark.parametrize("state", STATES)
def test_it_goes_when_its_time_is_up_and_not_before(state: str) -> None:
    workflow = ended(60, state)
    assert look(workflow, CREATED + 59) == Outcome(requeue_after=1.0)
    gone = look(workflow, CREATED + 60)
    assert "spec.ttlSecondsAfterFinished" in gone.delete
    assert gone.patches == ()


def test_at_once_is_zero_seconds_and_kept_is_none() -> None:
    assert look(ended(0), CREATED).delete
    assert look(ended(None), CREATED + 1e9) == Outcome()


def test_an_end_in_the_future_has_its_whole_time() -> None:
    """The clock that wrote it is ahead of ours, or ours was set back."""
    assert look(ended(60), CREATED - 1000) == Outcome(requeue_after=60.0)


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled", "Running", "Cancelling"])
def test_what_has_not_ended_never_goes(state: str | None) -> None:
    workflow = make_workflow(state, spec={"ttlSecondsAfterFinished": 0})
    settings = replace(SETTINGS, history_limit=1)
    outcome = reconcile(workflow, None, None, settings, CREATED + 1e6, never, surplus=True)
    assert outcome.delete == ""


@pytest.mark.parametrize("annotation", [HOLD_ANNOTATION, PAUSED_ANNOTATION])
@pytest.mark.parametrize("surplus", [False, True])
def test_what_somebody_holds_or_moves_stays(annotation: str, surplus: bool) -> None:
    workflow = ended(0)
    workflow["metadata"]["annotations"] = {annotation: "for the record"}
    assert reconcile(workflow, None, None, SETTINGS, CREATED + 1e6, never, surplus=surplus) == Outcome()


def test_its_finalizer_goes_first_and_a_deletion_is_asked_for_once() -> None:
    with_finalizer = make_workflow("Succeeded", spec={"ttlSecondsAfterFinished": 0})
    assert (look(with_finalizer, CREATED).delete, len(look(with_finalizer, CREATED).patches)) == ("", 1)
    deleted = make_workflow("Succeeded", finalizer=False, deleted=True, spec={"ttlSecondsAfterFinished": 0})
    assert look(deleted, CREATED) == Outcome(), "somebody else's finalizer keeps it"


@pytest.mark.parametrize("state", STATES)
def test_the_finalizer_goes_some_seconds_after_the_end_and_at_once_when_somebody_deletes_it(state: str) -> None:
    assert look(make_workflow(state), CREATED + 4) == Outcome(requeue_after=6.0)
    assert finalizers_in(look(make_workflow(state), CREATED + 10)) == ["other/one"]
    assert finalizers_in(look(make_workflow(state, deleted=True), CREATED + 4)) == ["other/one"]


def test_the_finalizer_goes_at_once_when_the_workflow_is_to_go() -> None:
    settings = replace(SETTINGS, history_limit=1)
    outcome = reconcile(make_workflow("Failed"), None, None, settings, CREATED, never, surplus=True)
    assert finalizers_in(outcome) == ["other/one"]
    timed = make_workflow("Succeeded", spec={"ttlSecondsAfterFinished": 3})
    assert look(timed, CREATED + 1) == Outcome(requeue_after=2.0)
    assert finalizers_in(look(timed, CREATED + 3)) == ["other/one"]


@pytest.mark.parametrize("ttl", [True, -1, "60", 1.5, None])
def test_a_time_that_is_none_deletes_nothing(ttl: object) -> None:
    workflow = make_workflow("Succeeded", finalizer=False, spec={"ttlSecondsAfterFinished": ttl})
    assert look(workflow, CREATED + 1e9) == Outcome()


# --- so many of each Hardware ---


def test_the_newest_of_each_hardware_stay_whatever_order_they_come_in() -> None:
    history, told = WorkflowHistory(2), []
    for day in (3, 1, 5, 2, 4):
        told += history.apply(ended(None, name=f"w{day}", at=f"2027-01-{day:02}T00:00:00Z"))
    other = ended(None, name="other")
    other["spec"]["hardwareRef"] = {"name": "another"}
    assert history.apply(other) == []
    surplus = [day for day in range(1, 6) if history.is_surplus(NamespacedName("d", f"w{day}"))]
    assert surplus == [1, 2, 3]
    assert {key.name for key in told} == {"w1", "w2", "w3"}, "each is told of"
    assert not history.is_surplus(NamespacedName("d", "other"))
    for day in surplus:
        history.remove(NamespacedName("d", f"w{day}"))
    assert (len(history), history.is_surplus(NamespacedName("d", "w4"))) == (3, False)


def test_what_is_held_does_not_count() -> None:
    history = WorkflowHistory(1)
    held = ended(None, name="held", at="2027-02-01T00:00:00Z")
    held["metadata"]["annotations"] = {HOLD_ANNOTATION: ""}
    history.apply(held)
    assert history.apply(ended(None, name="w")) == []
    assert not history.is_surplus(NamespacedName("d", "w"))
    del held["metadata"]["annotations"]
    assert history.apply(held) == [NamespacedName("d", "w")]


def test_without_a_limit_nothing_is_kept_and_nothing_goes() -> None:
    history = WorkflowHistory(None)
    assert history.apply(ended()) == []
    assert (len(history), history.is_surplus(NamespacedName("d", "w"))) == (0, False)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_would_leave_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="history_limit"):
        ControllerSettings(history_limit=limit)
