"""Agents that go with their machines, because the last action of their Workflow reboots them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import objects
from tests.support.virtual_time import elapse, turns
from tests.unit.server import conftest as server
from tink.api.v1alpha2 import Raw
from tink.kube.client import UnreachableError
from tink.server.events import BusyError, ServerEvent, StaleError, WorkflowGoneError
from tink.server.streams import ELSEWHERE_GRACES, REPORT_PART, RebootWatch
from tink.server.workflows import WorkflowIndex
from tink.workflow.events import AgentAway, AgentSeen
from tink.workflow.machine import apply
from tink.workflow.status import InvalidStatusError, agent_seen
from tink.workflow.table import Author

KEY = ("default", "m1")
GRACE = 30.0
ELSEWHERE, REPORT = GRACE * ELSEWHERE_GRACES, GRACE * REPORT_PART
pytestmark = pytest.mark.looptime


def workflow(state: str = "Running", *actions: str, reboots: bool = True) -> Raw:
    """Return a Workflow whose last action may reboot the machine."""
    listed = [objects.action(f"a{index}", each) for index, each in enumerate(actions or ("Succeeded", "Running"))]
    listed[-1]["rendered"]["reboots"] = reboots
    return objects.workflow("w", state, actions=listed)


def seen(at: float = 1e9) -> Raw:
    """Return the Workflow after a server has said at that time that the agent is there."""
    status = apply(workflow(), AgentSeen(), at, Author.SERVER)
    assert status is not None
    return {**workflow(), "status": status}


class Bench:
    """A watch over the loop's clock, and what it has said."""

    def __init__(self) -> None:
        self.index = WorkflowIndex()
        self.taken: list[ServerEvent] = []
        self.faults: list[Exception] = []
        self.answer: Callable[[], Any] | None = None
        self.connected = False
        self.rebooted: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        parts = server.parts(
            self.index,
            self,
            lambda work: self.tasks.append(asyncio.ensure_future(work)),
            observe=lambda activity: self.rebooted.append(activity.workflow.rpartition("/")[2]),
            reboot_grace=GRACE,
        )
        self.watch = RebootWatch(parts, lambda key: self.connected and key == KEY)

    async def take(self, _: Raw, event: ServerEvent) -> bool:
        self.taken.append(event)
        if self.faults:
            raise self.faults.pop(0)
        return True if self.answer is None else bool(await self.answer())

    async def does(self, *steps: Any) -> None:
        """A number of seconds passes, a Workflow (a dict) is new or changed, a list is what was said until now."""
        for step in steps:
            match step:
                case float() | int():
                    await elapse(step)
                    await turns(5)
                case dict():
                    self.index.apply(step)
                    self.watch.look(step)
                case list():
                    assert self.taken == step
                case "opens" | "opens with it" | "opens without a word":
                    self.connected = True
                    self.watch.opened(KEY, {"opens": (), "opens with it": ("uid-w",)}.get(step))
                case "closes":
                    self.connected = False
                    self.watch.closed(KEY)
                case "stops":
                    self.watch.close()
                case "deleted":
                    self.watch.cancel(workflow()["metadata"]["uid"])
                case "unseen: connects" | "unseen: leaves":  # with other servers' streams, or another machine
                    self.connected = step.endswith("connects")
                case "unseen: fails" | "unseen: is seen":
                    self.index.apply(workflow("Failed") if step.endswith("fails") else seen())
                case _:
                    raise AssertionError(step)


@pytest.fixture
def bench() -> Bench:
    return Bench()


SEEN_AT = agent_seen(seen()["status"])
RUNS_FIRST = workflow("Running", "Running", "Pending")
OTHERS = [
    *(workflow("Succeeded"), workflow("Cancelling"), RUNS_FIRST, workflow(reboots=False), workflow("Odd")),
    *(workflow("Running", "Odd", "Running"), workflow() | {"spec": {}}),
]
STORIES: dict[str, list[Any]] = {
    "it goes and does not come back": ["opens", workflow(), [], "closes", GRACE - 1, [], 1, [AgentAway(GRACE)]],
    "it comes back in time": ["opens", workflow(), "closes", GRACE - 1, "opens", REPORT - 1, []],
    **{
        f"it goes from other work {number}": ["opens", other, "closes", other, 1000, []]
        for number, other in enumerate(OTHERS)
    },
    "the Workflow ends": [workflow(), workflow("Failed"), 1000, []],
    "the Workflow is deleted": [workflow(), "deleted", 1000, []],
    # The server was restarted, or the agent is with another server. News do not restart the wait.
    "it goes unseen": [workflow(), ELSEWHERE - 1, workflow(), [], 1, [AgentAway(ELSEWHERE)]],
    "it is with another server": [
        workflow(),
        *(step for at in range(50) for step in (ELSEWHERE - 1, seen(1e9 - at))),  # that one's clock goes backwards
        *([], ELSEWHERE, [AgentAway(ELSEWHERE, agent_seen(seen(1e9 - 49)["status"]))]),
    ],
    "it goes to another server": [
        *("opens with it", workflow(), "closes", GRACE - 1, seen(), ELSEWHERE - 1, []),
    ],
    # The server it came from waits for one grace.
    "it comes, and that is said at once and again": [
        *(workflow(), "opens with it", 0, [AgentSeen()]),
        *(step for _ in range(9) for step in (seen(), REPORT)),
        *([AgentSeen()] * 10, "closes", GRACE, [*[AgentSeen()] * 10, AgentAway(GRACE, SEEN_AT)]),
    ],
    "it comes without a word": [workflow(), "opens without a word", 0, [AgentSeen()]],
    "it reboots at once and costs no write": [
        *("opens", workflow(), REPORT - 1, "closes", GRACE - 1, "opens", 1, []),
    ],
    "it went before the action began": ["opens", RUNS_FIRST, "closes", workflow(), GRACE * 2, []],
    "what changed while it waited is seen": [
        *(workflow(), "unseen: fails", 1000, workflow("Failed"), workflow(), "unseen: connects"),
        *(ELSEWHERE + REPORT, [AgentSeen()]),
    ],
    # The Workflow was given to another machine, whose agent comes and goes with other servers' streams.
    "news tell who sees the agent": [
        *(workflow(), "unseen: connects", workflow(), REPORT, [AgentSeen()]),
        *("unseen: leaves", workflow(), ELSEWHERE, [AgentSeen(), AgentAway(ELSEWHERE)]),
    ],
    # This server may have read newer news for another's sake, and they say that the agent is there.
    "it is judged by what the status said": [workflow(), "unseen: is seen", ELSEWHERE, [AgentAway(ELSEWHERE, "")]],
    "the server stops": [workflow(), "stops", 1000, []],
}


@pytest.mark.parametrize("name", STORIES)
async def test_story_of_an_agent(bench: Bench, name: str) -> None:
    await bench.does(*STORIES[name])
    assert bench.rebooted == ["w"] * any(isinstance(event, AgentAway) for event in bench.taken)


async def test_one_write_of_agent_seen_runs_at_a_time_and_a_failed_one_is_repeated(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow() -> bool:
        await gate.wait()
        raise UnreachableError("away")

    bench.answer = slow
    await bench.does(workflow(), "opens with it", 0, seen(), GRACE, [AgentSeen()])
    gate.set()
    await asyncio.gather(*bench.tasks)
    await bench.does(REPORT, [AgentSeen()] * 2)


async def test_late_conclusion_is_void_and_the_grace_period_restarts(bench: Bench) -> None:
    """Another server saw the agent, and this one's informer has not told it yet."""

    async def void() -> bool:
        bench.index.apply(seen())  # what it read
        return False

    bench.answer = void
    away = [AgentAway(GRACE), AgentAway(ELSEWHERE, SEEN_AT)]
    await bench.does("opens with it", workflow(), "closes", GRACE, ELSEWHERE, away)
    assert bench.rebooted == []


async def test_connected_agent_is_recorded_several_times_in_each_grace_period(bench: Bench) -> None:
    """One that fails must not make others take the agent for gone."""
    await bench.does("opens with it", workflow(), GRACE)
    assert len(bench.taken) >= 3


@pytest.mark.parametrize("fault", [StaleError("again"), InvalidStatusError("odd"), BusyError("busy")])
async def test_failed_report_of_the_agent_is_repeated_after_any_error(bench: Bench, fault: Exception) -> None:
    bench.faults = [fault]
    await bench.does("opens with it", workflow(), REPORT * 2)
    assert bench.taken == [AgentSeen()] * 2


@pytest.mark.parametrize("fault", [WorkflowGoneError("w"), InvalidStatusError("odd")])
@pytest.mark.parametrize("here", [True, False])
async def test_of_a_workflow_that_is_gone_or_odd_nothing_is_judged_and_nothing_breaks(
    bench: Bench, fault: Exception, here: bool
) -> None:
    bench.faults = [fault]
    await bench.does(workflow(), *(["opens with it"] if here else []), ELSEWHERE)
    assert bench.rebooted == []
    bench.index.remove(workflow())
    await bench.does("deleted", logged := [*bench.taken], 1000, logged)


@pytest.mark.parametrize("here", [True, False])
async def test_workflow_that_is_deleted_during_a_write_is_not_looked_at_again(bench: Bench, here: bool) -> None:
    async def gone() -> bool:
        bench.index.remove(workflow())
        if not here:
            bench.watch.cancel(workflow()["metadata"]["uid"])
            raise UnreachableError("away")
        return True

    bench.answer = gone
    await bench.does(workflow(), *(["opens with it"] if here else []), 1000)
    assert len(bench.taken) == 1


async def test_without_the_api_it_is_tried_again(bench: Bench) -> None:
    bench.faults = [UnreachableError("away"), BusyError("busy")]
    await bench.does("opens", workflow(), "closes", *[GRACE] * 5, [AgentAway(GRACE)] * 3)
    assert bench.rebooted == ["w"]


async def test_an_agent_that_moves_to_another_server_is_not_gone_before_it_has_left_that_one(rig: server.Rig) -> None:
    """Two servers' watches over one API."""
    rig.workflow(state="Running")
    rig.reboots()
    streams, watches, tasks = [1, 0], [], set()
    for number in range(2):
        part = server.Bench(rig)
        part.index.apply(rig.read())
        parts = server.parts(
            part.index, part.store, lambda work: tasks.add(asyncio.ensure_future(work)), reboot_grace=GRACE
        )
        watch = RebootWatch(parts, lambda _, number=number: bool(streams[number]))
        rig.workflows.add_event_handler(lambda new, _, watch=watch: watch.look(new))
        watches.append(watch)

    async def passes(graces: float) -> None:
        for _ in range(round(graces * 4)):
            rig.now += GRACE / 4
            await elapse(GRACE / 4)

    watches[0].opened(("d", "h"), ("uid-w",))
    await passes(2 * ELSEWHERE_GRACES)
    assert rig.state() == "Running"
    streams[0] = 0
    watches[0].closed(("d", "h"))
    await passes(0.75)
    streams[1] = 1
    watches[1].opened(("d", "h"), ("uid-w",))
    await passes(2 * ELSEWHERE_GRACES + 0.5)  # it closes between two reports
    assert rig.state() == "Running"
    streams[1] = 0
    watches[1].closed(("d", "h"))
    await passes(1.25)
    assert rig.state() == "Succeeded"
