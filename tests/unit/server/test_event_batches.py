"""Events that come together: what goes into one write, whose turn it is, and what nobody may flood."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.unit.server.bench import Bench
from tests.waiting import until
from tink.agent.connection.transport import RetryPolicy
from tink.kube.client import UnreachableError
from tink.server.events import (
    BATCH_SECONDS,
    MAX_WAITING,
    MAX_WRITES,
    YIELD_SECONDS,
    BusyError,
    _can_wait,
)
from tink.workflow import events, machine

THREE = [{"id": f"a{number}", "state": "Pending", "rendered": {"name": f"n{number}"}} for number in range(3)]


# --- floods -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("Running", events.ActionStarted("a0")),
        ("Running", events.Rejected("Busy", "m")),
        ("Cancelling", events.ActionStarted("a0")),
        ("Failed", events.ActionStarted("a1")),
        ("Canceled", events.Rejected("UnknownWorkflow", "m")),
        ("Succeeded", events.AgentLost()),
    ],
)
async def test_what_is_known_already_costs_no_call(bench: Bench, state: str, event: Any) -> None:
    bench.rig.workflow(state=state)
    for _ in range(50):
        assert await bench.take(event) is False
    assert (bench.reads, bench.rig.api.patches) == (0, 0)


async def test_events_of_one_machine_are_taken_one_after_the_other_and_only_some_may_wait(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflow("other", state="Scheduled", hardware="g")
    bench.rig.api.gate = asyncio.Event()
    waiting = [asyncio.ensure_future(bench.take(events.ActionStarted("a0"))) for _ in range(MAX_WAITING)]
    await until(lambda: bench.status()["state"] == "Running")
    with pytest.raises(BusyError, match="of Hardware d/h wait already: publish one after the other"):
        await bench.take(events.ActionStarted("a0"))
    others = asyncio.ensure_future(bench.take(events.ActionStarted("a0"), "other"))
    await until(lambda: bench.status("other")["state"] == "Running")
    assert bench.rig.api.patches == 2, "all but the first waited for their turn"
    bench.rig.api.gate.set()
    assert sorted(await asyncio.gather(*waiting)) == [False] * (MAX_WAITING - 1) + [True]
    assert await others
    assert bench.rig.api.patches == 2, "those that waited saw what the first one wrote"
    assert not bench.store._queues, "nothing is kept of machines that say nothing"


async def test_what_comes_while_a_write_is_under_way_is_stored_with_one_more_each_with_its_own_answer(
    bench: Bench,
) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.gate = asyncio.Event()
    first = asyncio.ensure_future(bench.take(events.ActionStarted("a0")))
    await until(lambda: bench.status()["state"] == "Running")
    reports = [
        events.ActionSucceeded("a0"),
        events.ActionStarted("zz"),
        events.ActionStarted("a1"),
        events.ActionStarted("a1"),
        events.Rejected("Busy", "m"),
        events.ActionSucceeded("a1"),
        events.ActionFailed("a1", "R", "m"),
    ]
    rest = [asyncio.ensure_future(bench.take(event)) for event in reports]
    await asyncio.sleep(0.02)
    assert not any(call.done() for call in (first, *rest)), "nothing is answered before it is stored"
    bench.rig.api.gate.set()
    answers = await asyncio.gather(first, *rest, return_exceptions=True)
    assert isinstance(answers.pop(2), machine.UnknownActionError)
    assert answers == [True, True, True, False, False, True, False]
    assert bench.status()["state"] == "Succeeded"
    assert bench.rig.api.patches == 2


async def test_events_of_two_workflows_of_one_machine_keep_their_order(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflow("next", state="Scheduled", created=1)
    bench.rig.api.gate = asyncio.Event()
    order: list[str] = []
    bench.rig.workflows.add_event_handler(lambda new, _: order.append(new["metadata"]["name"]))
    reports: list[tuple[str, Any]] = [
        ("w", events.ActionStarted("a0")),
        ("w", events.ActionSucceeded("a0")),
        ("w", events.ActionFailed("a1", "R", "m")),
        ("next", events.ActionStarted("a0")),
        ("w", events.Rejected("Busy", "m")),
    ]
    calls = [asyncio.ensure_future(bench.take(event, name)) for name, event in reports]
    await until(lambda: bool(order))
    bench.rig.api.gate.set()
    assert await asyncio.gather(*calls) == [True, True, True, True, False]
    assert order == ["w", "w", "next"]


async def test_an_event_of_another_workflow_is_not_overtaken(bench: Bench) -> None:
    bench.rig.workflow("next", state="Scheduled", created=1)
    first = await begun(bench)
    order: list[tuple[str, str]] = []
    bench.rig.workflows.add_event_handler(
        lambda new, _: order.append((new["metadata"]["name"], new["status"]["state"]))
    )
    reports: list[tuple[str, Any]] = [
        ("w", events.ActionSucceeded("a0")),
        ("next", events.ActionStarted("a0")),
        ("w", events.ActionFailed("a1", "R", "m")),
    ]
    calls = [asyncio.ensure_future(bench.take(event, name)) for name, event in reports]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    assert await asyncio.gather(first, *calls) == [True] * 4
    assert order == [("w", "Running"), ("next", "Running"), ("w", "Failed")]


async def begun(bench: Bench) -> asyncio.Future[bool]:
    """A write that is under way until the gate is set: the start of a0."""
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.gate = asyncio.Event()
    first = asyncio.ensure_future(bench.take(events.ActionStarted("a0")))
    await until(lambda: bench.status()["state"] == "Running")
    return first


async def test_a_fault_of_the_api_is_told_to_all_whose_write_it_was_and_to_nobody_else(bench: Bench) -> None:
    first = await begun(bench)
    bench.rig.api.faults = [UnreachableError("away")]
    both = [
        asyncio.ensure_future(bench.take(event)) for event in (events.ActionSucceeded("a0"), events.ActionStarted("a1"))
    ]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    answers = await asyncio.gather(first, *both, return_exceptions=True)
    assert [type(answer) for answer in answers] == [bool, UnreachableError, UnreachableError]
    assert await bench.take(events.ActionSucceeded("a0")) is True


async def test_a_caller_that_leaves_in_the_midst_of_a_write_for_others_does_not_take_their_events_along(
    bench: Bench,
) -> None:
    await begun(bench)
    both = [
        asyncio.ensure_future(bench.take(event)) for event in (events.ActionSucceeded("a0"), events.ActionStarted("a1"))
    ]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    bench.rig.api.gate = asyncio.Event()
    await until(lambda: bench.status()["actions"][1]["state"] == "Running")
    both[0].cancel()
    answers = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 10)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] is False, "it finds its event stored"
    assert not bench.store._queues


async def test_the_end_of_an_action_waits_a_moment_for_the_start_of_the_next_and_the_last_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.server.events.BATCH_SECONDS", 0.5)
    bench.rig.workflow(state="Running")
    end = asyncio.ensure_future(bench.take(events.ActionSucceeded("a0")))
    await asyncio.sleep(0)  # it waits now
    start = asyncio.ensure_future(bench.take(events.ActionStarted("a1")))
    assert await asyncio.gather(end, start) == [True, True]
    assert bench.rig.api.patches == 1
    monkeypatch.setattr("tink.server.events.BATCH_SECONDS", 60)
    assert await asyncio.wait_for(bench.take(events.ActionSucceeded("a1")), 20)


async def test_only_so_many_writes_are_under_way_at_once(bench: Bench) -> None:
    names = [f"w{number}" for number in range(MAX_WRITES + 4)]
    for name in names:
        bench.rig.workflow(name, state="Scheduled", hardware=f"h-{name}")
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(events.ActionStarted("a0"), name)) for name in names]
    await until(lambda: bench.rig.api.patches >= MAX_WRITES)
    await asyncio.sleep(0.02)
    assert bench.rig.api.patches == MAX_WRITES
    late = asyncio.ensure_future(bench.take(events.ActionSucceeded("a0"), names[-1]))
    await asyncio.sleep(0.02)
    bench.rig.api.gate.set()
    assert await asyncio.gather(*calls, late) == [True] * (MAX_WRITES + 5)
    assert bench.rig.api.patches == MAX_WRITES + 4, "what waited went together"


async def test_what_an_agent_waits_for_is_stored_before_what_none_waits_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent waits before its first action and before its last; in between it goes on without the answer."""
    monkeypatch.setattr("tink.server.events.MAX_WRITES", 1)
    monkeypatch.setattr("tink.server.events.YIELD_SECONDS", 30.0)
    bench = Bench(bench.rig)
    for name in ("w0", "patient", "second", "hurried"):
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.workflow("new", state="Scheduled", hardware="h-new", actions=THREE)
    bench.rig.api.gate = asyncio.Event()
    done: list[str] = []

    async def take(name: str, event: Any) -> None:
        await bench.take(event, name)
        done.append(f"{name} {event.action_id}")

    calls = []
    for name, event in (
        ("w0", events.ActionStarted("a1")),
        ("patient", events.ActionStarted("a1")),
        ("second", events.ActionStarted("a1")),
        ("hurried", events.ActionStarted("a1")),
        ("hurried", events.ActionStarted("a2")),
        ("new", events.ActionStarted("a0")),
        ("second", events.ActionSucceeded("a2")),
    ):
        calls.append(asyncio.ensure_future(take(name, event)))
        await asyncio.sleep(0.005)
    bench.rig.api.gate.set()
    await asyncio.wait_for(asyncio.gather(*calls), 20)
    assert [each.split()[0] for each in done] == ["w0", "hurried", "hurried", "new", "second", "second", "patient"]


async def test_what_none_waits_for_is_stored_at_its_time_however_much_is_in_a_hurry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.server.events.MAX_WRITES", 1)
    monkeypatch.setattr("tink.server.events.YIELD_SECONDS", 0.03)
    bench = Bench(bench.rig)
    names = [f"w{number}" for number in range(6)]
    for name in names:
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(events.ActionStarted("a2"), "w0"))]
    await asyncio.sleep(0)
    calls.append(asyncio.ensure_future(bench.take(events.ActionStarted("a1"), "w1")))
    await asyncio.sleep(0.06)
    late = [asyncio.ensure_future(bench.take(events.ActionStarted("a2"), name)) for name in names[2:]]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    await asyncio.wait_for(calls[1], 20)
    assert not any(call.done() for call in late)
    await asyncio.wait_for(asyncio.gather(*calls, *late), 20)


async def test_machine_whose_agent_waits_for_one_of_its_reports_is_in_a_hurry_whatever_else_it_reports(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have gathered while an earlier one was written, and go together."""
    monkeypatch.setattr("tink.server.events.MAX_WRITES", 1)
    monkeypatch.setattr("tink.server.events.YIELD_SECONDS", 30.0)
    bench = Bench(bench.rig)
    for name in ("w0", "other", "patient"):
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.api.gate = asyncio.Event()
    done: list[str] = []

    async def take(name: str, event: Any) -> None:
        await bench.take(event, name)
        done.append(name)

    calls = []
    for name, action in (("w0", "a0"), ("other", "a1"), ("patient", "a1"), ("w0", "a1"), ("w0", "a2")):
        calls.append(asyncio.ensure_future(take(name, events.ActionStarted(action))))
        await asyncio.sleep(0.005)
    bench.rig.api.gate.set()
    await asyncio.wait_for(asyncio.gather(*calls), 20)
    assert done == ["w0", "other", "w0", "w0", "patient"]


async def test_end_of_an_action_waits_for_nothing_when_there_is_more_to_write_already(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rig.workflow(state="Scheduled", actions=THREE)
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(events.ActionStarted("a0")))]
    await until(lambda: bench.status()["state"] == "Running")
    calls += [
        asyncio.ensure_future(bench.take(event)) for event in (events.ActionSucceeded("a0"), events.ActionStarted("a1"))
    ]
    await asyncio.sleep(0)
    monkeypatch.setattr("tink.server.events.BATCH_SECONDS", 60)
    bench.rig.api.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*calls), 20) == [True] * 3


def test_a_report_of_actions_that_this_server_has_not_heard_of_is_in_a_hurry(bench: Bench) -> None:
    bench.rig.workflow(state="Running", actions=[])
    assert not _can_wait(bench.seen(), events.ActionStarted("a1"))
    assert not _can_wait(bench.seen(), events.ActionSucceeded("a1"))


def test_a_report_that_gives_way_comes_long_before_its_agent_takes_it_for_lost() -> None:
    assert 10 * BATCH_SECONDS <= YIELD_SECONDS <= RetryPolicy().publish_timeout / 5


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_reports_that_were_under_way_together_come_to_the_same_in_any_order(
    bench: Bench, order: tuple[int, ...]
) -> None:
    """An agent sends them without waiting for answers, and each goes its own way to the server."""
    reports = [
        events.ActionStarted("a0"),
        events.ActionSucceeded("a0"),
        events.ActionStarted("a1"),
        events.ActionSucceeded("a1"),
    ]
    bench.rig.workflow(state="Scheduled")
    await asyncio.gather(*(bench.take(reports[index]) for index in order))
    assert bench.status()["state"] == "Succeeded"
    assert [action["state"] for action in bench.status()["actions"]] == ["Succeeded", "Succeeded"]
    assert all(action["startedAt"] for action in bench.status()["actions"])


async def test_a_caller_that_leaves_gives_up_its_turn(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(events.ActionStarted("a0"))) for _ in range(3)]
    await until(lambda: bench.status()["state"] == "Running")
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    bench.rig.api.gate = None
    assert await asyncio.wait_for(bench.take(events.ActionSucceeded("a0")), 10)
    assert not bench.store._queues
