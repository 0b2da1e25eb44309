"""The Events of Workflows, as `kubectl describe workflow` shows them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse, turns
from tests.unit.controller.outcomes import make_workflow
from tink.api.v1alpha2 import Raw
from tink.controller.controller import COMPONENT, event_for
from tink.kube.client import ApiError, ConflictError
from tink.kube.resources import EVENT, WORKFLOW
from tink.kube.runtime import Event, EventRecorder
from tink.kube.runtime.events import manifest

virtual = pytest.mark.looptime
Start = Callable[..., Awaitable["Recorder"]]
ACTIONS = [{"id": "a"}, {"id": "b"}]


def warning(reason: str, message: str) -> Event:
    return Event(reason, message, warning=True)


# The states before and after, the condition (type, status, reason, message), and the event.
CHANGES: dict[str, tuple[str | None, str | None, tuple[str, str, str, str] | None, Event | None]] = {
    "prepared": (None, "Pending", None, Event("Prepared", "2 actions, waiting for the agent")),
    "scheduled": ("Pending", "Scheduled", None, Event("Scheduled", "given to the agent")),
    "running": ("Scheduled", "Running", None, Event("Running", "the agent has started the first of 2 actions")),
    "succeeded": ("Running", "Succeeded", None, Event("Succeeded", "all 2 actions have succeeded")),
    "returned": (
        *("Scheduled", "Pending", ("Started", "False", "Busy", "runs another")),
        warning("Returned", "the agent does not take it now: Busy: runs another"),
    ),
    "failed": (
        *("Running", "Failed", ("Succeeded", "False", "NoDisk", "there is none")),
        warning("NoDisk", "there is none"),
    ),
    "cancelling": (
        *("Running", "Cancelling", ("Succeeded", "Unknown", "Cancelling", "the Workflow was deleted")),
        Event("Cancelling", "the Workflow was deleted"),
    ),
    "by force": (
        *("Cancelling", "Canceled", ("Succeeded", "False", "CancelTimeout", "it may still run")),
        warning("CancelTimeout", "it may still run"),
    ),
    "canceled": (
        *("Cancelling", "Canceled", ("Succeeded", "False", "Canceled", "stopped")),
        Event("Canceled", "stopped"),
    ),
    "waits": (
        *(None, None, ("Prepared", "False", "HardwareNotFound", "there is no Hardware")),
        warning("HardwareNotFound", "there is no Hardware"),
    ),
    "no change": ("Running", "Running", None, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_state_has_its_words(name: str) -> None:
    before, after, said, event = CHANGES[name]
    conditions = [dict(zip(("type", "status", "reason", "message"), said, strict=True))] if said else []
    new = make_workflow(after, actions=ACTIONS, conditions=conditions)
    if after is None:
        new["status"] = {"conditions": conditions}
    assert event_for(new, make_workflow(before)) == event
    assert event_for(new, new) is None
    if before is not None:
        assert event_for(new, None) is None, "what there was before is no news"


def made(workflow: Raw, event: Event, host: str = "h", now: float = 1_800_000_000) -> Raw:
    return manifest(workflow, WORKFLOW, event, component="c", host=host, now=now)


def test_an_event_is_one_that_kubernetes_takes() -> None:
    workflow = make_workflow("Failed", name="n" * 253)
    event = made(workflow, warning("R", "m" * 5000))
    assert len(event["metadata"]["name"]) <= 253
    assert event["metadata"]["namespace"] == event["involvedObject"]["namespace"] == "d"
    assert event["involvedObject"]["uid"] == workflow["metadata"]["uid"]
    assert (len(event["message"]), event["firstTimestamp"]) == (1024, "2027-01-15T08:00:00Z")
    assert [each["type"] for each in (event, made(workflow, Event("R", "m")))] == ["Warning", "Normal"]


def test_the_same_news_has_the_same_name_and_other_news_another() -> None:
    def name(workflow: Raw, reason: str, host: str = "h") -> Any:
        return made(workflow, Event(reason, "m"), host, 1)["metadata"]["name"]

    workflow = make_workflow("Pending")
    assert name(workflow, "a") == name(workflow, "a", "other host")
    later = make_workflow("Pending", lastTransitioned="2027-01-15T09:00:00Z")
    assert len({name(workflow, "a"), name(workflow, "b"), name(later, "a")}) == 3


# --- how many are written, and when ---


class Recorder:
    """A recorder over the API in this process and the loop's clock."""

    def __init__(self, **options: Any) -> None:
        self.api = InProcessApi(make_workflow())
        clock = asyncio.get_running_loop().time
        self.recorder = EventRecorder(self.api, COMPONENT, clock=clock, **{"settle": 0.0, **options})
        self.task: asyncio.Task[None]

    def record(self, *names: str, namespace: str = "d") -> None:
        for name in names:
            workflow = objects.workflow(name, namespace=namespace)
            self.recorder.event(workflow, WORKFLOW, Event("R", "m"))

    @property
    def taken(self) -> int:
        return self.api.count("create")


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[Recorder]]]:
    made: list[Recorder] = []

    async def run(**options: Any) -> Recorder:
        made.append(Recorder(**options))
        made[0].task = asyncio.create_task(made[0].recorder.run())
        await turns()
        return made[0]

    yield run
    for each in made:
        each.task.cancel()


def flood(count: int) -> list[str]:
    return [f"w{index}" for index in range(count)]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@virtual
async def test_twenty_a_second_may_follow_the_first_hundred(start: Start) -> None:
    events = await start()
    events.record(*flood(300))
    await elapse(0.04)
    assert events.taken == 100
    await elapse(2)
    assert events.taken == 140
    await elapse(1000)
    assert events.taken == 300
    events.record(*flood(300))
    await elapse(0.04)
    assert events.taken == 400, "however long nothing happened, it is a hundred at once"


@virtual
@pytest.mark.parametrize(
    ("count", "then", "taken"), [(3, 0.06, 3), (250, 0.045, 100)], ids=["a moment", "ten seconds at most"]
)
async def test_they_wait_until_nothing_happens_for_a_moment_but_not_for_ever(
    start: Start, count: int, then: float, taken: int
) -> None:
    events = await start(settle=0.05)
    for name in flood(count):
        await elapse(0.04)
        assert events.taken == 0, "another may come"
        events.record(name)
    await elapse(then)
    assert events.taken == taken


@virtual
async def test_a_flood_becomes_few_writes_and_one_warning_and_does_not_drop_those_of_others(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    events = await start()
    events.record(*flood(1000))
    assert warned(caplog) == []
    events.record("more")
    assert len(warned(caplog)) == 1
    assert "not written, 1 so far" in warned(caplog)[0]
    events.record(*flood(3000))
    events.api.put(objects.workflow("victim", namespace="other"))
    events.record("victim", namespace="other")
    await elapse(0.04)
    assert events.taken == 100
    assert len(warned(caplog)) == 1
    assert "victim" in [body["involvedObject"]["name"] for body in events.api.bodies("create")[:3]]


@virtual
@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ConflictError(409, "AlreadyExists", "there"), 0),
        (ApiError(403, "Forbidden", "events is forbidden"), 1),
        (RuntimeError("a mistake of ours"), 5),
    ],
)
async def test_events_that_can_not_be_written_stop_nothing(
    start: Start, caplog: pytest.LogCaptureFixture, error: Exception, lines: int
) -> None:
    events = await start()
    events.api.fail("create", *[error] * 5)
    events.record(*flood(5))
    await elapse(0.04)
    assert (events.taken, len(warned(caplog))) == (5, lines)
    events.record("w")
    await elapse(0.04)
    assert [event["involvedObject"]["name"] for event in events.api.objects(EVENT)] == ["w"]


@virtual
async def test_who_does_not_lead_says_nothing() -> None:
    idle = Recorder()
    idle.record("w")
    idle.task = asyncio.create_task(idle.recorder.run())
    await elapse(1)
    idle.task.cancel()
    assert idle.taken == 0
