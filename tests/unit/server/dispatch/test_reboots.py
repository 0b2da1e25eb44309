"""Agents that go with their machines, because the last action of their Workflow reboots them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import objects
from tests.support.virtual_time import elapse, turns
from tests.unit.server.conftest import Rig, started
from tests.unit.server.dispatch.conftest import reboots
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.client import UnreachableError
from tink.server.dispatch.reboots import ELSEWHERE_GRACES, REPORT_PART, RebootWatch
from tink.server.events import BusyError, ServerEvent, StaleError, WorkflowGoneError
from tink.server.workflows import WorkflowIndex
from tink.workflow.events import AgentAway, AgentSeen
from tink.workflow.machine import apply
from tink.workflow.status import InvalidStatusError, agent_seen
from tink.workflow.table import Author

KEY = ("default", "m1")
GRACE = 30.0
virtual = pytest.mark.looptime


def workflow(state: str = "Running", *actions: str, reboots: bool = True) -> Raw:
    """Return a Workflow whose last action may reboot the machine."""
    listed = [objects.action(f"a{index}", each) for index, each in enumerate(actions or ("Succeeded", "Running"))]
    listed[-1]["rendered"]["reboots"] = reboots
    return objects.workflow("w", state, actions=listed)


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
        self.watch = RebootWatch(
            self.index,
            take=self.take,
            connected=lambda key: self.connected and key == KEY,
            spawn=lambda work: self.tasks.append(asyncio.ensure_future(work)),
            rebooted=lambda obj: self.rebooted.append(obj["metadata"]["name"]),
            grace=GRACE,
        )

    async def passes(self, seconds: float) -> None:
        await elapse(seconds)
        await turns(5)

    async def take(self, _: Raw, event: ServerEvent) -> bool:
        self.taken.append(event)
        if self.faults:
            raise self.faults.pop(0)
        return True if self.answer is None else bool(await self.answer())

    def put(self, obj: Raw) -> None:
        self.index.apply(obj)
        self.watch.look(obj)

    def opens(self, *holds: str) -> None:
        self.connected = True
        self.watch.opened(KEY, holds)

    def closes(self) -> None:
        self.connected = False
        self.watch.closed(KEY)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@virtual
async def test_an_agent_that_goes_while_it_reboots_and_does_not_come_back_has_succeeded(bench: Bench) -> None:
    bench.opens()
    bench.put(workflow())
    assert bench.taken == [], "it is there"
    bench.closes()
    await bench.passes(GRACE - 1)
    assert bench.taken == [], "it may come back"
    await bench.passes(1)
    assert bench.taken == [AgentAway(GRACE)]
    assert bench.rebooted == ["w"]


@virtual
async def test_an_agent_that_comes_back_in_time_speaks_for_itself(bench: Bench) -> None:
    bench.opens()
    bench.put(workflow())
    bench.closes()
    await bench.passes(GRACE - 1)
    bench.opens()
    await bench.passes(1000)
    assert AgentAway not in map(type, bench.taken)


@virtual
@pytest.mark.parametrize(
    "other",
    [
        workflow("Succeeded"),
        workflow("Cancelling"),
        workflow("Running", "Running", "Pending"),
        workflow(reboots=False),
        workflow("Odd"),
        workflow("Running", "Odd", "Running"),
        workflow() | {"spec": {}},
    ],
)
async def test_an_agent_that_goes_from_any_other_work_has_not(bench: Bench, other: Raw) -> None:
    bench.opens()
    bench.put(other)
    bench.closes()
    bench.put(other)
    await bench.passes(1000)
    assert bench.taken == []


@virtual
async def test_news_of_the_end_or_of_the_deletion_end_the_waiting(bench: Bench) -> None:
    bench.put(workflow())
    bench.put(workflow("Failed"))
    await bench.passes(1000)
    bench.put(workflow())
    bench.watch.forget(workflow())
    await bench.passes(1000)
    assert bench.taken == []


@virtual
async def test_a_server_that_did_not_see_the_agent_go_waits_longer_and_then_judges(bench: Bench) -> None:
    """It was restarted; or the agent is with another server."""
    bench.put(workflow())
    await bench.passes(GRACE * ELSEWHERE_GRACES - 1)
    bench.put(workflow())  # news do not begin the waiting anew
    assert bench.taken == []
    await bench.passes(1)
    assert bench.taken == [AgentAway(GRACE * ELSEWHERE_GRACES)]


def seen(obj: Raw, at: float) -> Raw:
    """The Workflow after a server has said at that time that the agent is there."""
    status = apply(obj, AgentSeen(), at, Author.SERVER)
    assert status is not None
    return {**obj, "status": status}


@virtual
async def test_an_agent_that_another_server_goes_on_seeing_is_not_gone(bench: Bench) -> None:
    obj = workflow()
    bench.put(obj)
    for at in range(50):
        await bench.passes(GRACE * ELSEWHERE_GRACES - 1)
        obj = seen(obj, 1e9 - at)  # that one's clock goes backwards
        bench.put(obj)
    assert bench.taken == []
    await bench.passes(GRACE * ELSEWHERE_GRACES)
    assert bench.taken == [AgentAway(GRACE * ELSEWHERE_GRACES, agent_seen(obj["status"]))]


@virtual
async def test_an_agent_that_went_to_another_server_is_not_gone_for_the_one_it_left(bench: Bench) -> None:
    bench.opens("uid-w")
    bench.put(workflow())
    bench.closes()
    await bench.passes(GRACE - 1)
    bench.put(seen(workflow(), 1e9))
    await bench.passes(GRACE * ELSEWHERE_GRACES - 1)
    assert bench.taken == []


@virtual
async def test_an_agent_that_comes_while_it_reboots_is_said_to_be_here_at_once_and_again_and_again(
    bench: Bench,
) -> None:
    """The server it came from waits for one grace."""
    bench.put(workflow())
    bench.opens("uid-w")
    await bench.passes(0)
    assert bench.taken == [AgentSeen()]
    for _ in range(9):
        bench.put(seen(workflow(), 1e9))
        await bench.passes(GRACE * REPORT_PART)
    assert bench.taken == [AgentSeen()] * 10
    bench.closes()
    await bench.passes(GRACE)
    assert bench.taken[10:] == [AgentAway(GRACE, agent_seen(seen(workflow(), 1e9)["status"]))]


@virtual
async def test_an_agent_that_does_not_say_what_it_holds_is_here_all_the_same(bench: Bench) -> None:
    bench.put(workflow())
    bench.connected = True
    bench.watch.opened(KEY, None)
    await bench.passes(0)
    assert bench.taken == [AgentSeen()]


@virtual
async def test_a_machine_that_reboots_at_once_and_comes_back_costs_no_write(bench: Bench) -> None:
    bench.opens()
    bench.put(workflow())
    await bench.passes(GRACE * REPORT_PART - 1)
    bench.closes()
    await bench.passes(GRACE - 1)
    bench.opens()
    await bench.passes(1)
    assert bench.taken == []


@virtual
async def test_one_saying_is_under_way_at_a_time_and_a_failed_one_is_made_good(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow() -> bool:
        await gate.wait()
        raise UnreachableError("away")

    bench.answer = slow
    bench.put(workflow())
    bench.opens("uid-w")
    await bench.passes(0)
    bench.put(seen(workflow(), 1e9))
    await bench.passes(GRACE)
    assert bench.taken == [AgentSeen()], "news do not begin a second one"
    gate.set()
    await asyncio.gather(*bench.tasks)
    await bench.passes(GRACE * REPORT_PART)
    assert bench.taken == [AgentSeen()] * 2


@virtual
async def test_judgement_that_came_too_late_is_void_and_the_waiting_begins_anew(bench: Bench) -> None:
    """Another server saw the agent, and this one's informer has not told it yet."""

    async def void() -> bool:
        bench.index.apply(seen(workflow(), 1e9))  # what it read
        return False

    bench.answer = void
    bench.opens("uid-w")
    bench.put(workflow())
    bench.closes()
    await bench.passes(GRACE)
    await bench.passes(GRACE * ELSEWHERE_GRACES)
    assert bench.taken == [
        AgentAway(GRACE),
        AgentAway(GRACE * ELSEWHERE_GRACES, agent_seen(seen(workflow(), 1e9)["status"])),
    ]
    assert bench.rebooted == []


@virtual
async def test_an_agent_that_went_before_the_action_began_is_with_another_server(bench: Bench) -> None:
    bench.opens()
    bench.put(workflow("Running", "Running", "Pending"))
    bench.closes()
    bench.put(workflow())
    await bench.passes(GRACE * 2)
    assert bench.taken == []


@virtual
async def test_what_changed_while_it_waited_is_seen(bench: Bench) -> None:
    """News that have not come through a call of `look`, or `opened`, yet."""
    bench.put(workflow())
    bench.index.apply(workflow("Failed"))
    await bench.passes(1000)
    bench.put(workflow("Failed"))
    bench.put(workflow())
    bench.connected = True
    await bench.passes(GRACE * (ELSEWHERE_GRACES + REPORT_PART))
    assert bench.taken == [AgentSeen()]


@virtual
async def test_news_tell_who_sees_the_agent_when_nothing_else_has(bench: Bench) -> None:
    """The Workflow was given to another machine, whose agent comes and goes with other servers' streams."""
    bench.put(workflow())
    bench.connected = True
    bench.put(workflow())
    await bench.passes(GRACE * REPORT_PART)
    assert bench.taken == [AgentSeen()]
    bench.connected = False
    bench.put(workflow())
    await bench.passes(GRACE * ELSEWHERE_GRACES)
    assert bench.taken == [AgentSeen(), AgentAway(GRACE * ELSEWHERE_GRACES)]


@virtual
async def test_that_an_agent_is_here_is_said_several_times_in_each_grace(bench: Bench) -> None:
    """One that fails must not make others take the agent for gone."""
    bench.opens("uid-w")
    bench.put(workflow())
    await bench.passes(GRACE)
    assert len(bench.taken) >= 3


@virtual
@pytest.mark.parametrize("fault", [StaleError("again"), InvalidStatusError("odd"), BusyError("busy")])
async def test_saying_that_fails_is_made_good_whatever_was_wrong(bench: Bench, fault: Exception) -> None:
    bench.faults = [fault]
    bench.opens("uid-w")
    bench.put(workflow())
    await bench.passes(GRACE * REPORT_PART * 2)
    assert bench.taken == [AgentSeen()] * 2


@virtual
@pytest.mark.parametrize("fault", [WorkflowGoneError("w"), InvalidStatusError("odd")])
@pytest.mark.parametrize("here", [True, False])
async def test_of_a_workflow_that_is_gone_or_odd_nothing_is_judged_and_nothing_breaks(
    bench: Bench, fault: Exception, here: bool
) -> None:
    bench.faults = [fault]
    bench.put(workflow())
    if here:
        bench.opens("uid-w")
    await bench.passes(GRACE * ELSEWHERE_GRACES)
    assert bench.rebooted == []
    bench.watch.forget(workflow())
    bench.index.remove(workflow())
    said = len(bench.taken)
    await bench.passes(1000)
    assert len(bench.taken) == said


@virtual
@pytest.mark.parametrize("here", [True, False])
async def test_a_workflow_that_goes_while_something_is_said_of_it_is_not_looked_at_again(
    bench: Bench, here: bool
) -> None:
    async def gone() -> bool:
        bench.index.remove(workflow())
        if not here:
            bench.watch.forget(workflow())
            raise UnreachableError("away")
        return True

    bench.answer = gone
    bench.put(workflow())
    if here:
        bench.opens("uid-w")
    await bench.passes(1000)
    assert len(bench.taken) == 1


@virtual
async def test_judgement_is_by_what_the_status_said_while_it_waited(bench: Bench) -> None:
    """This server may have read newer news for another's sake, and they say that the agent is there."""
    bench.put(workflow())
    bench.index.apply(seen(workflow(), 1e9))
    await bench.passes(GRACE * ELSEWHERE_GRACES)
    assert bench.taken == [AgentAway(GRACE * ELSEWHERE_GRACES, "")]


@virtual
async def test_a_server_that_stops_waits_for_nothing(bench: Bench) -> None:
    bench.put(workflow())
    bench.watch.close()
    await bench.passes(1000)
    assert bench.taken == []


@virtual
async def test_without_the_api_it_is_tried_again(bench: Bench) -> None:
    bench.faults = [UnreachableError("away"), BusyError("busy")]
    bench.opens()
    bench.put(workflow())
    bench.closes()
    for _ in range(5):
        await bench.passes(GRACE)
    assert bench.taken == [AgentAway(GRACE)] * 3
    assert bench.rebooted == ["w"]


async def reports(rig: Rig, count: int) -> None:
    """Wait until servers have written so many times that they see the agent."""
    patches = rig.patches + count

    def written() -> bool:
        rig.now += 0.01
        return rig.patches >= patches

    await until(written)


async def test_the_server_finds_it_out_and_says_so(rig: Rig) -> None:
    await rig.serve("Running", reboot_grace=0.05)
    reboots(rig)
    agent = await rig.connected(holds=("uid-w",))
    await agent.publish(started("a1"))
    await reports(rig, 5)  # for longer than the grace
    assert rig.state() == "Running"
    await agent.channel.close()
    await until(lambda: rig.state() == "Succeeded")
    await until(lambda: "reboots the machine" in rig.seen[-1].message)
    assert (rig.seen[-1].hardware, rig.seen[-1].workflow, rig.seen[-1].agent_id) == ("d/h", "d/w", objects.MAC)


async def test_a_server_that_was_restarted_finds_it_again(rig: Rig) -> None:
    rig.machine()
    rig.workflow(state="Running")
    reboots(rig)
    await rig.start(reboot_grace=0.01)
    await until(lambda: rig.state() == "Succeeded")


async def test_an_agent_that_moves_to_another_server_is_not_gone_before_it_has_left_that_one(rig: Rig) -> None:
    rig.machine()
    rig.workflow(state="Running")
    reboots(rig)
    grace = 0.1  # both have the same
    await rig.start(reboot_grace=grace)
    first = rig.server
    try:
        agent = await rig.connected(holds=("uid-w",))
        await reports(rig, 1)
        await rig.start(reboot_grace=grace)
        await agent.channel.close()
        again = await rig.connected(holds=("uid-w",))
        await reports(rig, int(ELSEWHERE_GRACES / REPORT_PART * 1.3))
        assert rig.state() == "Running"
        await again.channel.close()
        await until(lambda: rig.state() == "Succeeded")
    finally:
        await first.stop()
