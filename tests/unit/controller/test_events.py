"""What operators read in `kubectl describe workflow`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.controller.events import COMPONENT, event_for
from tink.kube.client import ApiError, ConflictError
from tink.kube.resources import WORKFLOW
from tink.kube.runtime import Event, EventRecorder
from tink.kube.runtime.events import manifest

Make = Callable[..., Raw]
ACTIONS = [{"id": "a"}, {"id": "b"}]


def because(kind: str, status: str, reason: str = "", message: str = "") -> Raw:
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("before", "after", "condition", "event"),
    [
        (None, "Pending", {}, Event("Prepared", "2 actions, waiting for the agent")),
        ("Pending", "Scheduled", {}, Event("Scheduled", "given to the agent")),
        ("Scheduled", "Running", {}, Event("Running", "the agent has started the first of 2 actions")),
        ("Running", "Succeeded", {}, Event("Succeeded", "all 2 actions have succeeded")),
        (
            "Scheduled",
            "Pending",
            because("Started", "False", "Busy", "runs another"),
            Event("Returned", "the agent does not take it now: Busy: runs another", warning=True),
        ),
        (
            "Running",
            "Failed",
            because("Succeeded", "False", "NoDisk", "there is none"),
            Event("NoDisk", "there is none", warning=True),
        ),
        (
            "Running",
            "Cancelling",
            because("Succeeded", "Unknown", "Cancelling", "the Workflow was deleted"),
            Event("Cancelling", "the Workflow was deleted"),
        ),
        (
            "Cancelling",
            "Canceled",
            because("Succeeded", "False", "CancelTimeout", "it may still run"),
            Event("CancelTimeout", "it may still run", warning=True),
        ),
        (
            "Cancelling",
            "Canceled",
            because("Succeeded", "False", "Canceled", "stopped"),
            Event("Canceled", "stopped"),
        ),
        (
            None,
            None,
            because("Prepared", "False", "HardwareNotFound", "there is no Hardware"),
            Event("HardwareNotFound", "there is no Hardware", warning=True),
        ),
        ("Running", "Running", {}, None),
    ],
)
def test_each_change_of_state_has_its_words(
    make_workflow: Make, before: str | None, after: str | None, condition: Raw, event: Event | None
) -> None:
    new = make_workflow(after, actions=ACTIONS, conditions=[condition])
    if after is None:
        new["status"] = {"conditions": [condition]}
    assert event_for(new, make_workflow(before)) == event
    assert event_for(new, new) is None


def test_an_event_is_one_that_kubernetes_takes(make_workflow: Make) -> None:
    workflow = make_workflow("Failed", name="n" * 253)
    made = manifest(
        workflow, WORKFLOW, Event("R", "m" * 5000, warning=True), component="c", host="host", now=1_800_000_000
    )
    assert len(made["metadata"]["name"]) <= 253
    assert made["metadata"]["namespace"] == made["involvedObject"]["namespace"] == "d"
    assert made["involvedObject"]["uid"] == workflow["metadata"]["uid"]
    assert len(made["message"]) == 1024
    assert made["firstTimestamp"] == "2027-01-15T08:00:00Z"


def test_the_same_news_has_the_same_name_and_other_news_another(make_workflow: Make) -> None:
    def name(workflow: Raw, reason: str, host: str = "h") -> Any:
        return manifest(workflow, WORKFLOW, Event(reason, "m"), component="c", host=host, now=1)["metadata"]["name"]

    workflow = make_workflow("Pending")
    assert name(workflow, "a") == name(workflow, "a", "other host")
    later = make_workflow("Pending", lastTransitioned="2027-01-15T09:00:00Z")
    assert len({name(workflow, "a"), name(workflow, "b"), name(later, "a")}) == 3


class Api:
    def __init__(self) -> None:
        self.events: list[Raw] = []
        self.error: Exception | None = None
        self.asked = 0

    async def create(self, _: Any, body: Raw) -> Raw:
        await asyncio.sleep(0)
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.events.append(body)
        return body


async def test_a_flood_of_news_becomes_few_writes_and_one_warning(
    make_workflow: Make, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    recorder = EventRecorder(api, COMPONENT, clock=lambda: 0.0, settle=0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    for index in range(3000):
        recorder.event(make_workflow(name=f"w{index}"), WORKFLOW, Event("R", "m"))
    await until(lambda: len(api.events) >= 100)
    await asyncio.sleep(0.06)
    task.cancel()
    assert len(api.events) == 100, "no time has passed by its clock"
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ConflictError(409, "AlreadyExists", "there"), 0),
        (ApiError(403, "Forbidden", "events is forbidden"), 1),
        (RuntimeError("a mistake of ours"), 5),
    ],
)
async def test_events_that_can_not_be_written_stop_nothing(
    make_workflow: Make, caplog: pytest.LogCaptureFixture, error: Exception, lines: int
) -> None:
    api = Api()
    api.error = error
    recorder = EventRecorder(api, COMPONENT, settle=0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    for index in range(5):
        recorder.event(make_workflow(name=f"w{index}"), WORKFLOW, Event("R", "m"))
    await until(lambda: api.asked == 5)
    await asyncio.sleep(0)
    assert not task.done()
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == lines
    api.error = None
    recorder.event(make_workflow(), WORKFLOW, Event("R", "m"))
    await until(lambda: len(api.events) == 1)
    task.cancel()


async def test_who_does_not_lead_says_nothing(make_workflow: Make) -> None:
    api = Api()
    recorder = EventRecorder(api, COMPONENT, settle=0.0)  # type: ignore[arg-type]
    recorder.event(make_workflow(), WORKFLOW, Event("R", "m"))
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0.02)
    task.cancel()
    assert api.events == []


def test_what_there_was_before_is_no_news(make_workflow: Make) -> None:
    assert event_for(make_workflow("Scheduled"), None) is None
