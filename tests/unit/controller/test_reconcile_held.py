"""Workflows that are held, or paused while they are moved to another API."""

from __future__ import annotations

import pytest

from tests.unit.controller.outcomes import (
    CREATED,
    SETTINGS,
    condition,
    hardware,
    look,
    make_workflow,
    never,
    render,
    status_in,
    template,
)
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.controller.reconcile import Outcome, reconcile

LATE = CREATED + 1e6


def annotated(workflow: Raw, annotation: str) -> Raw:
    workflow["metadata"]["annotations"] = {annotation: "made from a backup"}
    return workflow


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled"])
def test_held_workflow_is_neither_prepared_nor_timed_out_and_says_why(state: str | None) -> None:
    held = annotated(make_workflow(state), HOLD_ANNOTATION)
    outcome = reconcile(held, hardware, template, SETTINGS, LATE, never)
    said = condition(status_in(outcome), "Started")
    assert (said["status"], said["reason"]) == ("False", "Held")
    assert "made from a backup" in said["message"]
    assert f"kubectl annotate -n d workflow w {HOLD_ANNOTATION}-" in said["message"]
    assert status_in(outcome)["message"] == f"held ({HOLD_ANNOTATION}): made from a backup", "for kubectl get"
    assert "state" not in status_in(outcome)
    assert outcome.requeue_after is None
    held["status"] = {**held.get("status", {}), **status_in(outcome)}
    assert reconcile(held, hardware, template, SETTINGS, LATE, never) == Outcome(), "said once"


def test_what_a_hold_said_goes_with_it() -> None:
    released = make_workflow(
        "Pending",
        actions=[{"id": "a", "state": "Pending"}],
        conditions=[{"type": "Started", "status": "False", "reason": "Held", "message": "m"}],
        message=f"held ({HOLD_ANNOTATION}): m",
    )
    outcome = reconcile(released, hardware, template, SETTINGS, CREATED, render)
    assert condition(status_in(outcome), "Started") == {"type": "Started", "status": "False"}
    assert status_in(outcome)["message"] == "waits for the machine's agent"


def test_held_workflow_can_be_deleted_and_cancelled() -> None:
    deleted = annotated(make_workflow("Pending", deleted=True, dispatched=False), HOLD_ANNOTATION)
    assert status_in(look(deleted, CREATED))["state"] == "Canceled"
    cancelled = annotated(make_workflow("Cancelling", dispatched=False), HOLD_ANNOTATION)
    assert status_in(look(cancelled, CREATED))["state"] == "Canceled"


def test_hold_does_not_touch_what_has_begun() -> None:
    running = make_workflow("Running", startedAt="2027-01-15T08:00:00Z", spec={"timeout": 1})
    running["status"]["actions"] = [{"id": "a", "state": "Running"}]
    assert status_in(look(annotated(running, HOLD_ANNOTATION), LATE))["state"] == "Failed"


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled", "Running", "Cancelling", "Succeeded"])
@pytest.mark.parametrize("deleted", [False, True])
def test_paused_workflow_is_left_alone(state: str | None, deleted: bool) -> None:
    paused = annotated(make_workflow(state, deleted=deleted, spec={"timeout": 1}), PAUSED_ANNOTATION)
    assert reconcile(paused, None, None, SETTINGS, LATE, never) == Outcome()


def test_id_that_the_agent_knows_survives_a_new_preparation() -> None:
    changed = make_workflow("Pending", id="where-it-was", observedGeneration=1, actions=[{"id": "a"}])
    changed["metadata"]["generation"] = 2
    status = status_in(reconcile(changed, hardware, template, SETTINGS, CREATED, render))
    assert "id" not in status, "it stays as it is"
    assert len(status["actions"]) == 2
