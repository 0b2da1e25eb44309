"""Events that come together: what goes into one write, whose turn it is, and what nobody may flood."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.support.objects import action
from tests.support.virtual_time import elapse, turns
from tests.unit.server.bench import Bench
from tink.agent.connection.transport import RetryPolicy
from tink.kube.client import UnreachableError
from tink.server.events import BATCH_SECONDS, MAX_WAITING, MAX_WRITES, YIELD_SECONDS, BusyError
from tink.workflow import machine
from tink.workflow.events import ActionFailed, ActionStarted, ActionSucceeded, AgentLost, Rejected

pytestmark = pytest.mark.looptime

THREE = [action(f"a{number}") for number in range(3)]
BUSY = Rejected("Busy", "m")


async def begun(bench: Bench) -> asyncio.Future[bool]:
    """Return a write that is under way until the gate is open: the start of a0."""
    bench.rig.workflow(state="Scheduled")
    bench.rig.hold()
    first = bench.taking(ActionStarted("a0"))
    await bench.rig.gate.reached.wait()
    return first


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("Running", ActionStarted("a0")),
        ("Running", BUSY),
        ("Cancelling", ActionStarted("a0")),
        ("Failed", ActionStarted("a1")),
        ("Canceled", Rejected("UnknownWorkflow", "m")),
        ("Succeeded", AgentLost()),
    ],
)
async def test_what_is_known_already_costs_no_call(bench: Bench, state: str, event: Any) -> None:
    bench.rig.workflow(state=state)
    for _ in range(50):
        assert await bench.take(event) is False
    assert (bench.reads, bench.rig.patches) == (0, 0)


async def test_events_of_one_machine_are_taken_one_after_the_other_and_only_some_may_wait(bench: Bench) -> None:
    bench.rig.workflow("other", state="Scheduled", hardware="g")
    waiting = [await begun(bench), *(bench.taking(ActionStarted("a0")) for _ in range(MAX_WAITING - 1))]
    await turns()
    with pytest.raises(BusyError, match="of Hardware d/h wait already: publish one after the other"):
        await bench.take(ActionStarted("a0"))
    others = bench.taking(ActionStarted("a0"), "other")
    await turns(5)
    assert bench.status("other")["state"] == "Running"
    assert bench.rig.patches == 2, "all but the first waited for their turn"
    bench.rig.gate.open()
    assert sorted(await asyncio.gather(*waiting)) == [False] * (MAX_WAITING - 1) + [True]
    assert await others
    assert bench.rig.patches == 2, "those that waited saw what the first one wrote"
    assert bench.store.machines == 0, "nothing is kept of machines that report nothing"


async def test_what_comes_while_a_write_is_under_way_is_stored_with_one_more_each_with_its_own_answer(
    bench: Bench,
) -> None:
    first = await begun(bench)
    reports = [
        ActionSucceeded("a0"),
        ActionStarted("zz"),
        ActionStarted("a1"),
        ActionStarted("a1"),
        BUSY,
        ActionSucceeded("a1"),
        ActionFailed("a1", "R", "m"),
    ]
    rest = [bench.taking(event) for event in reports]
    await elapse(0.02)
    assert not any(call.done() for call in (first, *rest)), "nothing is answered before it is stored"
    bench.rig.gate.open()
    answers = await asyncio.gather(first, *rest, return_exceptions=True)
    assert isinstance(answers.pop(2), machine.UnknownActionError)
    assert answers == [True, True, True, False, False, True, False]
    assert bench.status()["state"] == "Succeeded"
    assert bench.rig.patches == 2


async def test_events_of_two_workflows_of_one_machine_keep_their_order(bench: Bench) -> None:
    bench.rig.workflow("next", state="Scheduled", created=1)
    first = await begun(bench)
    order: list[str] = []
    bench.rig.workflows.add_event_handler(lambda new, _: order.append(new["metadata"]["name"]))
    order.clear()
    reports = [
        ("w", ActionSucceeded("a0")),
        ("w", ActionFailed("a1", "R", "m")),
        ("next", ActionStarted("a0")),
        ("w", BUSY),
    ]
    calls = [bench.taking(event, name) for name, event in reports]
    bench.rig.gate.open()
    assert await asyncio.gather(first, *calls) == [True, True, True, True, False]
    assert order == ["w", "next"]


async def test_an_event_of_another_workflow_is_not_overtaken(bench: Bench) -> None:
    bench.rig.workflow("next", state="Scheduled", created=1)
    first = await begun(bench)
    order: list[tuple[str, str]] = []
    bench.rig.workflows.add_event_handler(
        lambda new, _: order.append((new["metadata"]["name"], new["status"]["state"]))
    )
    order.clear()
    reports = [("w", ActionSucceeded("a0")), ("next", ActionStarted("a0")), ("w", ActionFailed("a1", "R", "m"))]
    calls = [bench.taking(event, name) for name, event in reports]
    await turns()
    bench.rig.gate.open()
    assert await asyncio.gather(first, *calls) == [True] * 4
    assert order == [("w", "Running"), ("next", "Running"), ("w", "Failed")]


async def test_a_fault_of_the_api_is_told_to_all_whose_write_it_was_and_to_nobody_else(bench: Bench) -> None:
    first = await begun(bench)
    bench.rig.api.fail("patch", UnreachableError("away"))
    both = [bench.taking(event) for event in (ActionSucceeded("a0"), ActionStarted("a1"))]
    await turns()
    bench.rig.gate.open()
    answers = await asyncio.gather(first, *both, return_exceptions=True)
    assert [type(answer) for answer in answers] == [bool, UnreachableError, UnreachableError]
    assert await bench.take(ActionSucceeded("a0")) is True


async def test_a_caller_that_leaves_in_the_midst_of_a_write_for_others_does_not_take_their_events_along(
    bench: Bench,
) -> None:
    await begun(bench)
    both = [bench.taking(event) for event in (ActionSucceeded("a0"), ActionStarted("a1"))]
    await turns()
    bench.rig.gate.open()
    bench.rig.hold()
    await bench.rig.gate.reached.wait()
    assert bench.status()["actions"][1]["state"] == "Running"
    both[0].cancel()
    bench.rig.gate.open()
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] is False, "it finds its event stored"
    assert bench.store.machines == 0


async def test_the_end_of_an_action_waits_a_moment_for_the_start_of_the_next_and_the_last_does_not(
    bench: Bench,
) -> None:
    clock = asyncio.get_running_loop().time
    bench.rig.workflow(state="Running")
    begin = clock()
    end = bench.taking(ActionSucceeded("a0"))
    await turns()  # it waits now
    assert await asyncio.gather(end, bench.taking(ActionStarted("a1"))) == [True, True]
    assert bench.rig.patches == 1
    assert clock() - begin == pytest.approx(BATCH_SECONDS)
    begin = clock()
    assert await bench.take(ActionSucceeded("a1"))
    assert clock() == begin


async def test_end_of_an_action_waits_for_nothing_when_there_is_more_to_write_already(bench: Bench) -> None:
    begin = asyncio.get_running_loop().time()
    calls = [await begun(bench), *(bench.taking(event) for event in (ActionSucceeded("a0"), ActionStarted("a1")))]
    await turns()
    bench.rig.gate.open()
    assert await asyncio.gather(*calls) == [True] * 3
    assert asyncio.get_running_loop().time() == begin


async def test_only_so_many_writes_are_under_way_at_once(bench: Bench) -> None:
    names = [f"w{number}" for number in range(MAX_WRITES + 4)]
    for name in names:
        bench.rig.workflow(name, state="Scheduled", hardware=f"h-{name}")
    bench.rig.hold()
    calls = [bench.taking(ActionStarted("a0"), name) for name in names]
    await elapse(0.02)
    assert bench.rig.patches == MAX_WRITES
    late = bench.taking(ActionSucceeded("a0"), names[-1])
    await elapse(0.02)
    bench.rig.gate.open()
    assert await asyncio.gather(*calls, late) == [True] * (MAX_WRITES + 5)
    assert bench.rig.patches == MAX_WRITES + 4, "what waited went together"


# --- whose turn it is, where one write is under way at a time ---


async def _order(bench: Bench, *reports: tuple[str, Any]) -> list[str]:
    """Report these while a write is under way, and return the Workflows in the order of the answers."""
    bench.rig.hold()
    done: list[str] = []

    async def take(name: str, event: Any) -> None:
        try:
            await bench.take(event, name)
        except machine.UnknownActionError:
            name += " (unknown action)"
        done.append(name)

    calls = []
    for name, event in reports:
        calls.append(asyncio.ensure_future(take(name, event)))
        await elapse(0.005)
    bench.rig.gate.open()
    await asyncio.gather(*calls)
    return done


async def test_what_an_agent_waits_for_is_stored_before_what_none_waits_for(bench: Bench) -> None:
    """An agent waits before its first action and before its last; in between it goes on without the answer."""
    bench = Bench(bench.rig, max_writes=1)
    for name in ("w0", "patient", "second", "hurried"):
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.workflow("new", state="Scheduled", hardware="h-new", actions=THREE)
    reports = [
        ("w0", ActionStarted("a1")),
        ("patient", ActionStarted("a1")),
        ("second", ActionStarted("a1")),
        ("hurried", ActionStarted("a1")),
        ("hurried", ActionStarted("a2")),
        ("new", ActionStarted("a0")),
        ("second", ActionSucceeded("a2")),
    ]
    assert await _order(bench, *reports) == ["w0", "hurried", "hurried", "new", "second", "second", "patient"]


@pytest.mark.parametrize("event", [ActionStarted("a1"), ActionSucceeded("a1")])
async def test_a_report_of_actions_that_this_server_has_not_heard_of_is_in_a_hurry(bench: Bench, event: Any) -> None:
    bench = Bench(bench.rig, max_writes=1)
    for name, actions in (("w0", THREE), ("patient", THREE), ("unheard", [])):
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=actions)
    reports = (("w0", ActionStarted("a1")), ("patient", ActionStarted("a1")), ("unheard", event))
    assert await _order(bench, *reports) == ["w0", "unheard (unknown action)", "patient"]


async def test_machine_whose_agent_waits_for_one_of_its_reports_is_in_a_hurry_whatever_else_it_reports(
    bench: Bench,
) -> None:
    """They have gathered while an earlier one was written, and go together."""
    bench = Bench(bench.rig, max_writes=1)
    for name in ("w0", "other", "patient"):
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    reports = (("w0", "a0"), ("other", "a1"), ("patient", "a1"), ("w0", "a1"), ("w0", "a2"))
    done = await _order(bench, *((name, ActionStarted(started)) for name, started in reports))
    assert done == ["w0", "other", "w0", "w0", "patient"]


async def test_what_none_waits_for_is_stored_at_its_time_however_much_is_in_a_hurry(bench: Bench) -> None:
    bench = Bench(bench.rig, max_writes=1)
    names = [f"w{number}" for number in range(6)]
    for name in names:
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.hold()
    first = bench.taking(ActionStarted("a2"), "w0")
    await turns()
    patient = bench.taking(ActionStarted("a1"), "w1")
    await elapse(2 * YIELD_SECONDS)
    late = [bench.taking(ActionStarted("a2"), name) for name in names[2:]]
    await turns()
    bench.rig.gate.open()
    await patient
    assert not any(call.done() for call in late)
    await asyncio.gather(first, *late)


def test_a_report_that_gives_way_comes_long_before_its_agent_takes_it_for_lost() -> None:
    assert 10 * BATCH_SECONDS <= YIELD_SECONDS <= RetryPolicy().publish_timeout / 5


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_reports_that_were_under_way_together_come_to_the_same_in_any_order(
    bench: Bench, order: tuple[int, ...]
) -> None:
    """An agent sends them without waiting for answers, and each goes its own way to the server."""
    reports = [ActionStarted("a0"), ActionSucceeded("a0"), ActionStarted("a1"), ActionSucceeded("a1")]
    bench.rig.workflow(state="Scheduled")
    await asyncio.gather(*(bench.take(reports[index]) for index in order))
    assert bench.status()["state"] == "Succeeded"
    assert [action["state"] for action in bench.status()["actions"]] == ["Succeeded", "Succeeded"]
    assert all(action["startedAt"] for action in bench.status()["actions"])


async def test_a_caller_that_leaves_gives_up_its_turn(bench: Bench) -> None:
    calls = [await begun(bench), *(bench.taking(ActionStarted("a0")) for _ in range(2))]
    await turns()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    bench.rig.gate.open()
    assert await bench.take(ActionSucceeded("a0"))
    assert bench.store.machines == 0
