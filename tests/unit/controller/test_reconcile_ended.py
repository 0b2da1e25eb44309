"""Workflows that have ended: when they are deleted, and what is never deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.controller.outcomes import CREATED, SETTINGS, STAMP, Make, finalizers_in, look, never
from tests.unit.controller.test_controller import Rig
from tests.waiting import until
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.controller.history import WorkflowHistory
from tink.controller.reconcile import Outcome, reconcile
from tink.controller.settings import ControllerSettings
from tink.kube.objects import NamespacedName

STATES = ["Succeeded", "Failed", "Canceled"]


def ended(make: Make, ttl: int | None = 60, state: str = "Succeeded", name: str = "w", at: str = STAMP) -> Any:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    return make(state, name=name, finalizer=False, spec=spec, lastTransitioned=at)


@pytest.mark.parametrize("state", STATES)
def test_it_goes_when_its_time_is_up_and_not_before(make_workflow: Make, state: str) -> None:
    workflow = ended(make_workflow, 60, state)
    assert look(workflow, CREATED + 59) == Outcome(requeue_after=1.0)
    gone = look(workflow, CREATED + 60)
    assert "spec.ttlSecondsAfterFinished" in gone.delete
    assert gone.patches == ()


def test_at_once_is_zero_seconds_and_kept_is_none(make_workflow: Make) -> None:
    assert look(ended(make_workflow, 0), CREATED).delete
    assert look(ended(make_workflow, None), CREATED + 1e9) == Outcome()


def test_an_end_in_the_future_has_its_whole_time(make_workflow: Make) -> None:
    """The clock that wrote it is ahead of ours, or ours was set back."""
    assert look(ended(make_workflow, 60), CREATED - 1000) == Outcome(requeue_after=60.0)


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled", "Running", "Cancelling"])
def test_what_has_not_ended_never_goes(make_workflow: Make, state: str | None) -> None:
    workflow = make_workflow(state, spec={"ttlSecondsAfterFinished": 0})
    settings = replace(SETTINGS, history_limit=1)
    outcome = reconcile(workflow, None, None, settings, CREATED + 1e6, never, surplus=True)
    assert outcome.delete == ""


@pytest.mark.parametrize("annotation", [HOLD_ANNOTATION, PAUSED_ANNOTATION])
@pytest.mark.parametrize("surplus", [False, True])
def test_what_somebody_holds_or_moves_stays(make_workflow: Make, annotation: str, surplus: bool) -> None:
    workflow = ended(make_workflow, 0)
    workflow["metadata"]["annotations"] = {annotation: "for the record"}
    assert reconcile(workflow, None, None, SETTINGS, CREATED + 1e6, never, surplus=surplus) == Outcome()


def test_its_finalizer_goes_first_and_a_deletion_is_asked_for_once(make_workflow: Make) -> None:
    with_finalizer = make_workflow("Succeeded", spec={"ttlSecondsAfterFinished": 0})
    assert (look(with_finalizer, CREATED).delete, len(look(with_finalizer, CREATED).patches)) == ("", 1)
    deleted = make_workflow("Succeeded", finalizer=False, deleted=True, spec={"ttlSecondsAfterFinished": 0})
    assert look(deleted, CREATED) == Outcome(), "somebody else's finalizer keeps it"


@pytest.mark.parametrize("state", STATES)
def test_the_finalizer_goes_some_seconds_after_the_end_and_at_once_when_somebody_deletes_it(
    make_workflow: Make, state: str
) -> None:
    assert look(make_workflow(state), CREATED + 4) == Outcome(requeue_after=6.0)
    assert finalizers_in(look(make_workflow(state), CREATED + 10)) == ["other/one"]
    assert finalizers_in(look(make_workflow(state, deleted=True), CREATED + 4)) == ["other/one"]


def test_the_finalizer_goes_at_once_when_the_workflow_is_to_go(make_workflow: Make) -> None:
    settings = replace(SETTINGS, history_limit=1)
    outcome = reconcile(make_workflow("Failed"), None, None, settings, CREATED, never, surplus=True)
    assert finalizers_in(outcome) == ["other/one"]
    timed = make_workflow("Succeeded", spec={"ttlSecondsAfterFinished": 3})
    assert look(timed, CREATED + 1) == Outcome(requeue_after=2.0)
    assert finalizers_in(look(timed, CREATED + 3)) == ["other/one"]


async def test_the_finalizer_goes_though_a_clock_is_set_back_meanwhile(rig: Rig, make_workflow: Make) -> None:
    async with rig.running():
        rig.workflows.put(make_workflow("Running", finalizer=True))
        rig.now = CREATED
        rig.workflows.put(make_workflow("Succeeded"))
        rig.now -= 86_400
        rig.elapsed += SETTINGS.release_after
        rig.workflows.put(make_workflow("Succeeded"))
        await until(lambda: [patch["metadata"].get("finalizers") for _, patch in rig.api.patches] == [["other/one"]])


@pytest.mark.parametrize("ttl", [True, -1, "60", 1.5, None])
def test_a_time_that_is_none_deletes_nothing(make_workflow: Make, ttl: object) -> None:
    workflow = make_workflow("Succeeded", finalizer=False, spec={"ttlSecondsAfterFinished": ttl})
    assert look(workflow, CREATED + 1e9) == Outcome()


# --- so many of each Hardware ---


def test_the_newest_of_each_hardware_stay_whatever_order_they_come_in(make_workflow: Make) -> None:
    history, told = WorkflowHistory(2), []
    for day in (3, 1, 5, 2, 4):
        told += history.apply(ended(make_workflow, None, name=f"w{day}", at=f"2027-01-{day:02}T00:00:00Z"))
    other = ended(make_workflow, None, name="other")
    other["spec"]["hardwareRef"] = {"name": "another"}
    assert history.apply(other) == []
    surplus = [day for day in range(1, 6) if history.is_surplus(NamespacedName("d", f"w{day}"))]
    assert surplus == [1, 2, 3]
    assert {key.name for key in told} == {"w1", "w2", "w3"}, "each is told of"
    assert not history.is_surplus(NamespacedName("d", "other"))
    for day in surplus:
        history.remove(NamespacedName("d", f"w{day}"))
    assert (len(history), history.is_surplus(NamespacedName("d", "w4"))) == (3, False)


def test_what_is_held_does_not_count(make_workflow: Make) -> None:
    history = WorkflowHistory(1)
    held = ended(make_workflow, None, name="held", at="2027-02-01T00:00:00Z")
    held["metadata"]["annotations"] = {HOLD_ANNOTATION: ""}
    history.apply(held)
    assert history.apply(ended(make_workflow, None, name="w")) == []
    assert not history.is_surplus(NamespacedName("d", "w"))
    del held["metadata"]["annotations"]
    assert history.apply(held) == [NamespacedName("d", "w")]


def test_without_a_limit_nothing_is_kept_and_nothing_goes(make_workflow: Make) -> None:
    history = WorkflowHistory(None)
    assert history.apply(ended(make_workflow)) == []
    assert (len(history), history.is_surplus(NamespacedName("d", "w"))) == (0, False)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_would_leave_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="history_limit"):
        ControllerSettings(history_limit=limit)


# --- the controller ---


@pytest.fixture
def rig(store: Any, fake_api: Any, render: Any) -> Rig:
    return Rig(store, fake_api, render, ControllerSettings(retry_first=0.005, retry_longest=0.02))


async def test_the_controller_deletes_what_nobody_wants_any_more(
    store: Any, fake_api: Any, render: Any, make_workflow: Make
) -> None:
    rig = Rig(store, fake_api, render, ControllerSettings(history_limit=1))
    rig.now = CREATED + 10
    rig.workflows.put(ended(make_workflow, None, name="old", at="2027-01-14T00:00:00Z"))
    rig.workflows.put(ended(make_workflow, None, name="new"))
    timed = ended(make_workflow, 5, name="timed")
    timed["spec"]["hardwareRef"] = {"name": "another"}
    rig.workflows.put(timed)
    async with rig.running():
        await until(lambda: sorted(rig.api.deletions) == ["old", "timed"])
    assert rig.state("new") == "Succeeded"


async def test_a_clock_that_jumps_shortens_nobodys_time(rig: Rig, make_workflow: Make) -> None:
    async with rig.running():
        await asyncio.sleep(0)
        rig.now = CREATED
        rig.workflows.put(make_workflow("Running", finalizer=False, spec={"ttlSecondsAfterFinished": 3600}))
        rig.workflows.put(ended(make_workflow, 3600))
        rig.now += 86_400
        rig.workflows.put(ended(make_workflow, 3600))
        await asyncio.sleep(0.05)
        assert rig.api.deletions == []
        rig.elapsed += 3600
        rig.workflows.put(ended(make_workflow, 3600))
        await until(lambda: rig.api.deletions == ["w"])


async def test_one_that_is_held_in_the_last_moment_is_not_deleted(rig: Rig, make_workflow: Make) -> None:
    delete = rig.api.delete

    async def too_late(*args: Any, **options: Any) -> Any:
        rig.api.delete = delete
        held = ended(make_workflow, 0)
        held["metadata"]["annotations"] = {HOLD_ANNOTATION: "wait"}
        rig.workflows.put(held)
        return await delete(*args, **options)

    rig.api.delete = too_late
    rig.now = CREATED + 10
    async with rig.running():
        rig.workflows.put(ended(make_workflow, 0))
        await until(lambda: rig.api.delete == delete and rig.controller.runtime.queue.counts.retries)
        await asyncio.sleep(0.05)
    assert rig.api.deletions == []


async def test_history_is_not_looked_at_when_the_controller_starts(rig: Rig, make_workflow: Make) -> None:
    """A hundred thousand looks, for nothing."""
    rig.now = CREATED + SETTINGS.release_after
    for index in range(50):
        rig.workflows.put(ended(make_workflow, None, name=f"w{index}"))
    rig.workflows.put(make_workflow("Succeeded", name="unfinished"))
    async with rig.running():
        await until(lambda: rig.api.patches)
    assert rig.controller.runtime.queue.counts.adds == 2, "once, and after its finalizer is gone"
