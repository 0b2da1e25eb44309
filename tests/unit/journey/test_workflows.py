"""Workflow objects as steps of a machine's journey."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from edge.journey.events import Note, Outcome, Step
from edge.journey.recorder import Journey
from edge.journey.workflows import WorkflowJourney
from edge.machines import Inventory

MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"
T0, T1, T2 = "2026-11-21T09:00:00Z", "2026-11-21T09:00:03.200000Z", "2026-11-21T09:00:10Z"

Raw = dict[str, Any]


@pytest.fixture
def inventory() -> Inventory:
    inventory = Inventory()
    interfaces: Raw = {MAC: {"dhcp": {"ip": "10.0.0.5"}}, OTHER: {}}
    inventory.apply({"metadata": {"name": "m1", "namespace": "default"}, "spec": {"networkInterfaces": interfaces}})
    return inventory


@pytest.fixture
def workflows(journey: Journey, inventory: Inventory) -> WorkflowJourney:
    return WorkflowJourney(journey, inventory)


def workflow(state: str | None, *actions: Raw, uid: str = "u1", **status: Any) -> Raw:
    return {
        "metadata": {"name": "install", "namespace": "default", "uid": uid},
        "spec": {"hardwareRef": {"name": "m1"}, "templateRef": {"name": "t"}},
        "status": {"state": state, "lastTransitioned": T0, "actions": list(actions), **status} if state else {},
    }


def action(number: int, state: str, **more: Any) -> Raw:
    rendered = {"name": f"step-{number}", "image": "image:1"}
    return {"id": f"id-{number}", "state": state, "rendered": rendered, **more}


def test_pending_by_default_is_no_step_of_the_journey(journey, workflows):
    new = workflow("Pending")
    new["status"] = {"state": "Pending", "message": "waits for the controller"}
    workflows.on_change(new, None)
    assert lines(journey) == []
    workflows.on_change(workflow("Pending", action(1, "Pending")), new)
    assert [line[2] for line in lines(journey)] == ["workflow default/install: Pending"]


def lines(journey: Journey, mac: str = MAC) -> list[tuple[Step, Outcome, str]]:
    return [(event.step, event.outcome, event.message) for event in journey.events(mac)]


def test_whole_run_reads_as_a_story(inventory, clock):
    journey = Journey(clock)
    workflows = WorkflowJourney(journey, inventory)
    stages = [
        workflow("Pending", action(1, "Pending"), action(2, "Pending")),
        workflow("Scheduled", action(1, "Pending"), action(2, "Pending")),
        workflow("Running", action(1, "Running", startedAt=T0), action(2, "Pending"), startedAt=T0),
        workflow(
            "Running", action(1, "Succeeded", startedAt=T0, lastTransitioned=T1), action(2, "Running", startedAt=T1)
        ),
        workflow(
            "Succeeded",
            action(1, "Succeeded", startedAt=T0, lastTransitioned=T1),
            action(2, "Succeeded", startedAt=T1, lastTransitioned=T2),
            startedAt=T0,
            lastTransitioned=T2,
        ),
    ]
    before = None
    for stage in stages:
        workflows.on_change(stage, before)
        workflows.on_change(stage, copy.deepcopy(stage))  # a resync
        before = stage
    assert lines(journey) == [
        (Step.WORKFLOW, Outcome.INFO, "workflow default/install: Pending"),
        (Step.WORKFLOW, Outcome.INFO, "workflow default/install: Scheduled"),
        (Step.WORKFLOW, Outcome.INFO, "workflow default/install: Running"),
        (Step.ACTION, Outcome.INFO, "action step-1 started (1 of 2)"),
        (Step.ACTION, Outcome.OK, "action step-1 succeeded in 3.2 s (1 of 2)"),
        (Step.ACTION, Outcome.INFO, "action step-2 started (2 of 2)"),
        (Step.ACTION, Outcome.OK, "action step-2 succeeded in 6.8 s (2 of 2)"),
        (Step.WORKFLOW, Outcome.OK, "workflow default/install: Succeeded after 10.0 s"),
    ]
    ended = journey.events(MAC)[4]
    assert ended.detail["duration_seconds"] == 3.2
    assert ended.detail["workflow"] == "default/install"


def test_failed_action_names_reason_and_message(journey, workflows):
    running = workflow("Running", action(1, "Running", startedAt=T0))
    failed = workflow(
        "Failed",
        action(
            1, "Failed", startedAt=T0, lastTransitioned=T1, failureReason="ImageNotFound", failureMessage="no image:1"
        ),
        conditions=[{"type": "Succeeded", "status": "False", "reason": "ActionFailed", "message": "step-1"}],
    )
    workflows.on_change(failed, running)
    assert lines(journey) == [
        (Step.ACTION, Outcome.FAILED, "action step-1 failed after 3.2 s (1 of 1): ImageNotFound: no image:1"),
        (Step.WORKFLOW, Outcome.FAILED, "workflow default/install: Failed: ActionFailed: step-1"),
    ]


def test_action_too_quick_to_be_seen_running_was_started_too(journey, workflows):
    before = workflow("Running", action(1, "Pending"))
    workflows.on_change(workflow("Running", action(1, "Succeeded", startedAt=T0, lastTransitioned=T0)), before)
    assert [line[2] for line in lines(journey)] == [
        "action step-1 started (1 of 1)",
        "action step-1 succeeded in 0.0 s (1 of 1)",
    ]


def test_workflows_that_ended_before_this_start_are_no_news(journey, workflows):
    workflows.on_change(workflow("Succeeded", action(1, "Succeeded")), None)
    assert lines(journey) == []
    workflows.on_change(workflow("Running", action(1, "Succeeded"), action(2, "Running")), None)
    assert [line[2] for line in lines(journey)] == [
        "workflow default/install: Running",
        "action step-2 started (2 of 2)",
    ]


def test_workflow_recreated_under_its_name_starts_anew(journey, workflows):
    workflows.on_change(workflow("Pending", uid="u2"), workflow("Pending", uid="u1"))
    assert [line[2] for line in lines(journey)] == ["workflow default/install: Pending"]


def test_story_stays_with_the_interface_that_booted(journey, workflows):
    journey.record(OTHER, Step.DHCP, Outcome.OK, "offer")
    workflows.on_change(workflow("Pending"), None)
    assert [step for step, _, _ in lines(journey, OTHER)] == [Step.DHCP, Step.WORKFLOW]
    assert lines(journey, MAC) == []


def test_deleted_before_its_end(journey, workflows):
    workflows.on_delete(workflow("Succeeded"))
    workflows.on_delete(workflow("Running"))
    assert [line[2] for line in lines(journey)] == ["workflow default/install: deleted"]


def test_unknown_hardware_and_broken_object_are_logged(journey, workflows, caplog):
    lost = workflow("Pending")
    lost["spec"]["hardwareRef"]["name"] = "nowhere"
    workflows.on_change(lost, None)
    workflows.on_change({"metadata": {"name": "bad", "namespace": "default"}, "spec": {}}, None)
    odd = workflow("Succeeded", startedAt="yesterday", lastTransitioned=T0)
    workflows.on_change(odd, workflow("Running"))
    assert "Hardware nowhere is not known" in caplog.text
    assert "Workflow default/bad is ignored: spec.hardwareRef: Field required" in caplog.text
    assert lines(journey) == [(Step.WORKFLOW, Outcome.OK, "workflow default/install: Succeeded")]


def test_what_is_known_of_history_alone_makes_no_steps_anew(journey, workflows):
    """Somebody labels a Workflow that ended a year ago: of what it was then, its actions are not kept."""
    short = {**workflow("Succeeded", message="m"), "spec": {"hardwareRef": {"name": "m1"}}}
    whole = workflow("Succeeded", action(1, "Succeeded", startedAt=T0, lastTransitioned=T1))
    workflows.on_change(whole, short)
    workflows.on_delete(short)
    assert lines(journey) == []


@pytest.mark.parametrize("others", [False, True])
def test_workflows_of_other_sites_fill_no_log_where_there_are_others(journey, inventory, caplog, others):
    elsewhere = workflow("Running")
    elsewhere["spec"]["hardwareRef"]["name"] = "of-another-site"
    WorkflowJourney(journey, inventory, others=others).on_change(elsewhere, None)
    assert bool([each for each in caplog.records if each.levelname == "WARNING"]) is not others


def test_workflow_that_goes_on_while_the_edge_is_started_again_is_told_once(inventory, clock):
    first = Journey(clock)
    running = workflow("Running", action(1, "Succeeded"), action(2, "Running", startedAt=T1))
    before = WorkflowJourney(first, inventory)
    before.on_change(workflow("Running", action(1, "Running", startedAt=T0), action(2, "Pending")), None)
    before.on_change(running, workflow("Running", action(1, "Running", startedAt=T0), action(2, "Pending")))
    clock.now += 10
    second = Journey(clock, began=clock.now)
    for event in first.events(MAC):
        note = Note(event.step, event.outcome, event.message, event.detail)
        second.take_in(MAC, event.time, note, now=False)
    told = lines(second)
    after = WorkflowJourney(second, inventory)
    after.on_change(running, None)
    assert lines(second) == told
    ended = workflow("Succeeded", action(1, "Succeeded"), action(2, "Succeeded"))
    after.on_change(ended, running)
    assert [line[2] for line in lines(second)[len(told) :]][-1] == "workflow default/install: Succeeded"
    after.on_change(workflow("Pending", action(1, "Pending"), uid="u2"), None)
    assert lines(second)[-1][2] == "workflow default/install: Pending", "another one of the same name"
