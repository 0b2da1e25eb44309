"""What becomes of events: every one is decided on what the API has, and no agent can flood it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.waiting import until
from tink.agent.transport import Pace
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ConflictError, NotFoundError, UnreachableError
from tink.server import events
from tink.server.events import (
    GATHER,
    MAX_WAITING,
    PATIENCE,
    WRITES,
    BusyError,
    EventStore,
    StaleError,
    WorkflowGoneError,
    _can_wait,
)
from tink.server.workflows import WorkflowIndex
from tink.workflow import machine as m
from tink.workflow.status import InvalidStatusError, parse_timestamp

FIRST, LONGEST = 5.0, 60.0
THREE = [{"id": f"a{number}", "state": "Pending", "rendered": {"name": f"n{number}"}} for number in range(3)]


class Bench:
    """An EventStore over the rig's API, fed by the rig's informer; `reads` counts what it asked the API for."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.reads = 0
        self.index = WorkflowIndex()
        rig.workflows.on_change(lambda new, _: self.index.apply(new))
        rig.workflows.on_delete(self.index.remove)
        get = rig.api.get

        async def counted(*arguments: Any) -> Raw:
            self.reads += 1
            workflow: Raw = await get(*arguments)
            return workflow

        # Only what the store itself reads: the API's patches read as well.
        client: Any = type("Client", (), {"get": staticmethod(counted), "patch": rig.api.patch})()
        self.store = EventStore(
            client,
            self.index,
            lambda: rig.now,
            rejection_first=FIRST,
            rejection_longest=LONGEST,
            chance=lambda: 0.0,
        )

    def seen(self, name: str = "w") -> Raw:
        workflow = self.index.get(f"uid-{name}")
        assert workflow is not None
        return workflow

    def status(self, name: str = "w") -> Raw:
        status: Raw = self.rig.workflows.objects["d", name]["status"]
        return status

    async def take(self, event: Any, name: str = "w") -> bool:
        return await self.store.take(self.seen(name), event)


@pytest.fixture
def bench(rig: Any) -> Bench:
    return Bench(rig)


# --- rejections ---------------------------------------------------------------------------------------------------


async def test_delays_of_rejections_grow_from_the_status_so_that_a_restart_does_not_begin_anew(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled", rejections=2)
    await bench.take(m.Rejected("Busy", "m"))
    assert bench.status()["rejections"] == 3
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + 4 * FIRST
    bench.rig.set_state("w", "Scheduled", rejections=50)
    await bench.take(m.Rejected("Busy", "m"))
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + LONGEST


async def test_a_rejection_that_meets_a_conflict_counts_from_what_the_other_wrote(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Scheduled", rejections=1)
    await bench.take(m.Rejected("Busy", "m"))
    assert bench.status()["rejections"] == 2
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + 2 * FIRST


# --- copies that are behind ----------------------------------------------------------------------------------------


async def test_an_agent_is_not_lost_because_the_servers_copy_is_behind(bench: Bench) -> None:
    """It reported the end to another server."""
    bench.rig.workflow(state="Running")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Succeeded")
    assert await bench.take(m.AgentLost()) is False
    assert bench.status()["state"] == "Succeeded"


async def test_a_workflow_that_seems_scheduled_and_runs_is_lost_with_its_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Running")
    assert await bench.take(m.AgentLost()) is True
    assert bench.status()["state"] == "Failed"
    assert bench.seen()["status"]["state"] == "Failed", "the stream must see it at once"


async def test_a_scheduled_workflow_is_not_lost_with_its_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    assert await bench.take(m.AgentLost()) is False
    assert (bench.status()["state"], bench.reads, bench.rig.api.patches) == ("Scheduled", 1, 0)


@pytest.mark.parametrize("state", ["Pending", "Cancelling"])
async def test_a_rejection_without_effect_is_held_against_the_api(bench: Bench, state: str) -> None:
    bench.rig.workflow(state=state)
    assert await bench.take(m.Rejected("Busy", "m")) is False
    assert bench.reads == 1


@pytest.mark.parametrize("reason", ["UnknownWorkflow", "AlreadyFinished"])
async def test_the_answer_to_a_stop_is_not_dropped_because_the_servers_copy_still_says_running(
    bench: Bench, reason: str
) -> None:
    bench.rig.workflow(state="Running")
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Cancelling")
    assert await bench.take(m.Rejected(reason, "m")) is True
    assert bench.status()["state"] == "Canceled"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
async def test_a_workflow_that_its_agent_ended_unheard_fails_and_is_not_offered_for_ever(
    bench: Bench, state: str
) -> None:
    bench.rig.workflow(state=state)
    assert await bench.take(m.Rejected("AlreadyFinished", "ended: Succeeded")) is True
    assert bench.status()["state"] == "Failed"
    condition = bench.status()["conditions"][0]
    assert condition["reason"] == "AgentLost"
    assert condition["message"].endswith("its reports never came: ended: Succeeded")


async def test_an_action_that_the_copy_does_not_have_yet_is_looked_for(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    actions = bench.status()["actions"]
    bench.rig.set_state("w", "Scheduled", actions=[])
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Scheduled", actions=actions)
    assert await bench.take(m.ActionStarted("a0")) is True
    with pytest.raises(m.UnknownActionError):
        await bench.take(m.ActionStarted("zz"))


async def test_a_status_that_was_mended_meanwhile_takes_the_event(bench: Bench) -> None:
    bench.rig.workflow(state="Odd")
    with pytest.raises(InvalidStatusError, match="d/w"):
        await bench.take(m.ActionStarted("a0"))
    bench.rig.workflows.hold()
    bench.rig.set_state("w", "Scheduled")
    assert await bench.take(m.ActionStarted("a0")) is True


async def test_a_workflow_that_went_and_came_again_under_its_name_is_gone(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    old = bench.seen()
    bench.rig.workflows.hold()
    bench.rig.workflows.remove("d", "w")
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflows.objects["d", "w"]["metadata"]["uid"] = "uid-second"
    with pytest.raises(WorkflowGoneError):
        await bench.store.take(old, m.ActionStarted("a0"))
    assert await bench.store.reclaim(old) is None
    bench.rig.workflows.remove("d", "w")
    assert await bench.store.reclaim(old) is None
    bench.rig.api.faults = [NotFoundError(404, "NotFound", "w")]
    with pytest.raises(WorkflowGoneError):
        await bench.store.take(old, m.ActionStarted("a0"))


# --- floods -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("Running", m.ActionStarted("a0")),
        ("Running", m.Rejected("Busy", "m")),
        ("Cancelling", m.ActionStarted("a0")),
        ("Failed", m.ActionStarted("a1")),
        ("Canceled", m.Rejected("UnknownWorkflow", "m")),
        ("Succeeded", m.AgentLost()),
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
    waiting = [asyncio.ensure_future(bench.take(m.ActionStarted("a0"))) for _ in range(MAX_WAITING)]
    await until(lambda: bench.status()["state"] == "Running")
    with pytest.raises(BusyError, match="of Hardware d/h wait already: publish one after the other"):
        await bench.take(m.ActionStarted("a0"))
    others = asyncio.ensure_future(bench.take(m.ActionStarted("a0"), "other"))
    await until(lambda: bench.status("other")["state"] == "Running")
    assert bench.rig.api.patches == 2, "all but the first waited for their turn"
    bench.rig.api.gate.set()
    assert sorted(await asyncio.gather(*waiting)) == [False] * (MAX_WAITING - 1) + [True]
    assert await others
    assert bench.rig.api.patches == 2, "those that waited saw what the first one wrote"
    assert not bench.store._lines, "nothing is kept of machines that say nothing"


async def test_what_comes_while_a_write_is_under_way_is_stored_with_one_more_each_with_its_own_answer(
    bench: Bench,
) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.gate = asyncio.Event()
    first = asyncio.ensure_future(bench.take(m.ActionStarted("a0")))
    await until(lambda: bench.status()["state"] == "Running")
    events = [
        m.ActionSucceeded("a0"),
        m.ActionStarted("zz"),
        m.ActionStarted("a1"),
        m.ActionStarted("a1"),
        m.Rejected("Busy", "m"),
        m.ActionSucceeded("a1"),
        m.ActionFailed("a1", "R", "m"),
    ]
    rest = [asyncio.ensure_future(bench.take(event)) for event in events]
    await asyncio.sleep(0.02)
    assert not any(call.done() for call in (first, *rest)), "nothing is answered before it is stored"
    bench.rig.api.gate.set()
    answers = await asyncio.gather(first, *rest, return_exceptions=True)
    assert isinstance(answers.pop(2), m.UnknownActionError)
    assert answers == [True, True, True, False, False, True, False]
    assert bench.status()["state"] == "Succeeded"
    assert bench.rig.api.patches == 2


async def test_events_of_two_workflows_of_one_machine_keep_their_order(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.workflow("next", state="Scheduled", created=1)
    bench.rig.api.gate = asyncio.Event()
    order: list[str] = []
    bench.rig.workflows.on_change(lambda new, _: order.append(new["metadata"]["name"]))
    events: list[tuple[str, Any]] = [
        ("w", m.ActionStarted("a0")),
        ("w", m.ActionSucceeded("a0")),
        ("w", m.ActionFailed("a1", "R", "m")),
        ("next", m.ActionStarted("a0")),
        ("w", m.Rejected("Busy", "m")),
    ]
    calls = [asyncio.ensure_future(bench.take(event, name)) for name, event in events]
    await until(lambda: bool(order))
    bench.rig.api.gate.set()
    assert await asyncio.gather(*calls) == [True, True, True, True, False]
    assert order == ["w", "w", "next"]


async def test_an_event_of_another_workflow_is_not_overtaken(bench: Bench) -> None:
    bench.rig.workflow("next", state="Scheduled", created=1)
    first = await begun(bench)
    order: list[tuple[str, str]] = []
    bench.rig.workflows.on_change(lambda new, _: order.append((new["metadata"]["name"], new["status"]["state"])))
    events: list[tuple[str, Any]] = [
        ("w", m.ActionSucceeded("a0")),
        ("next", m.ActionStarted("a0")),
        ("w", m.ActionFailed("a1", "R", "m")),
    ]
    calls = [asyncio.ensure_future(bench.take(event, name)) for name, event in events]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    assert await asyncio.gather(first, *calls) == [True] * 4
    assert order == [("w", "Running"), ("next", "Running"), ("w", "Failed")]


async def begun(bench: Bench) -> asyncio.Future[bool]:
    """A write that is under way until the gate is set: the start of a0."""
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.gate = asyncio.Event()
    first = asyncio.ensure_future(bench.take(m.ActionStarted("a0")))
    await until(lambda: bench.status()["state"] == "Running")
    return first


async def test_a_fault_of_the_api_is_told_to_all_whose_write_it_was_and_to_nobody_else(bench: Bench) -> None:
    first = await begun(bench)
    bench.rig.api.faults = [UnreachableError("away")]
    both = [asyncio.ensure_future(bench.take(event)) for event in (m.ActionSucceeded("a0"), m.ActionStarted("a1"))]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    answers = await asyncio.gather(first, *both, return_exceptions=True)
    assert [type(answer) for answer in answers] == [bool, UnreachableError, UnreachableError]
    assert await bench.take(m.ActionSucceeded("a0")) is True


async def test_a_caller_that_leaves_in_the_midst_of_a_write_for_others_does_not_take_their_events_along(
    bench: Bench,
) -> None:
    await begun(bench)
    both = [asyncio.ensure_future(bench.take(event)) for event in (m.ActionSucceeded("a0"), m.ActionStarted("a1"))]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    bench.rig.api.gate = asyncio.Event()
    await until(lambda: bench.status()["actions"][1]["state"] == "Running")
    both[0].cancel()
    answers = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 10)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] is False, "it finds its event stored"
    assert not bench.store._lines


async def test_the_end_of_an_action_waits_a_moment_for_the_start_of_the_next_and_the_last_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.server.events.GATHER", 0.5)
    bench.rig.workflow(state="Running")
    end = asyncio.ensure_future(bench.take(m.ActionSucceeded("a0")))
    await asyncio.sleep(0.01)
    start = asyncio.ensure_future(bench.take(m.ActionStarted("a1")))
    assert await asyncio.gather(end, start) == [True, True]
    assert bench.rig.api.patches == 1
    monkeypatch.setattr("tink.server.events.GATHER", 60)
    assert await asyncio.wait_for(bench.take(m.ActionSucceeded("a1")), 20)


async def test_only_so_many_writes_are_under_way_at_once(bench: Bench) -> None:
    names = [f"w{number}" for number in range(WRITES + 4)]
    for name in names:
        bench.rig.workflow(name, state="Scheduled", hardware=f"h-{name}")
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(m.ActionStarted("a0"), name)) for name in names]
    await until(lambda: bench.rig.api.patches >= WRITES)
    await asyncio.sleep(0.02)
    assert bench.rig.api.patches == WRITES
    late = asyncio.ensure_future(bench.take(m.ActionSucceeded("a0"), names[-1]))
    await asyncio.sleep(0.02)
    bench.rig.api.gate.set()
    assert await asyncio.gather(*calls, late) == [True] * (WRITES + 5)
    assert bench.rig.api.patches == WRITES + 4, "what waited went together"


async def test_what_an_agent_waits_for_is_stored_before_what_none_waits_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent waits before its first action and before its last; in between it goes on without the answer."""
    monkeypatch.setattr("tink.server.events.WRITES", 1)
    monkeypatch.setattr("tink.server.events.PATIENCE", 30.0)
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
        ("w0", m.ActionStarted("a1")),
        ("patient", m.ActionStarted("a1")),
        ("second", m.ActionStarted("a1")),
        ("hurried", m.ActionStarted("a1")),
        ("hurried", m.ActionStarted("a2")),
        ("new", m.ActionStarted("a0")),
        ("second", m.ActionSucceeded("a2")),
    ):
        calls.append(asyncio.ensure_future(take(name, event)))
        await asyncio.sleep(0.005)
    bench.rig.api.gate.set()
    await asyncio.wait_for(asyncio.gather(*calls), 20)
    assert [each.split()[0] for each in done] == ["w0", "hurried", "hurried", "new", "second", "second", "patient"]


async def test_what_none_waits_for_is_stored_at_its_time_however_much_is_in_a_hurry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.server.events.WRITES", 1)
    monkeypatch.setattr("tink.server.events.PATIENCE", 0.03)
    bench = Bench(bench.rig)
    names = [f"w{number}" for number in range(6)]
    for name in names:
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(m.ActionStarted("a2"), "w0"))]
    await asyncio.sleep(0)
    calls.append(asyncio.ensure_future(bench.take(m.ActionStarted("a1"), "w1")))
    await asyncio.sleep(0.06)
    late = [asyncio.ensure_future(bench.take(m.ActionStarted("a2"), name)) for name in names[2:]]
    await asyncio.sleep(0)
    bench.rig.api.gate.set()
    await asyncio.wait_for(calls[1], 20)
    assert not any(call.done() for call in late)
    await asyncio.wait_for(asyncio.gather(*calls, *late), 20)


async def test_machine_whose_agent_waits_for_one_of_its_reports_is_in_a_hurry_whatever_else_it_reports(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have gathered while an earlier one was written, and go together."""
    monkeypatch.setattr("tink.server.events.WRITES", 1)
    monkeypatch.setattr("tink.server.events.PATIENCE", 30.0)
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
        calls.append(asyncio.ensure_future(take(name, m.ActionStarted(action))))
        await asyncio.sleep(0.005)
    bench.rig.api.gate.set()
    await asyncio.wait_for(asyncio.gather(*calls), 20)
    assert done == ["w0", "other", "w0", "w0", "patient"]


async def test_end_of_an_action_waits_for_nothing_when_there_is_more_to_write_already(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rig.workflow(state="Scheduled", actions=THREE)
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(m.ActionStarted("a0")))]
    await until(lambda: bench.status()["state"] == "Running")
    calls += [asyncio.ensure_future(bench.take(event)) for event in (m.ActionSucceeded("a0"), m.ActionStarted("a1"))]
    await asyncio.sleep(0)
    monkeypatch.setattr("tink.server.events.GATHER", 60)
    bench.rig.api.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*calls), 20) == [True] * 3


def test_a_report_of_actions_that_this_server_has_not_heard_of_is_in_a_hurry(bench: Bench) -> None:
    bench.rig.workflow(state="Running", actions=[])
    assert not _can_wait(bench.seen(), m.ActionStarted("a1"))
    assert not _can_wait(bench.seen(), m.ActionSucceeded("a1"))


def test_a_report_that_gives_way_comes_long_before_its_agent_takes_it_for_lost() -> None:
    assert 10 * GATHER <= PATIENCE <= Pace().publish_timeout / 5


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_reports_that_were_under_way_together_come_to_the_same_in_any_order(
    bench: Bench, order: tuple[int, ...]
) -> None:
    """An agent sends them without waiting for answers, and each goes its own way to the server."""
    reports = [m.ActionStarted("a0"), m.ActionSucceeded("a0"), m.ActionStarted("a1"), m.ActionSucceeded("a1")]
    bench.rig.workflow(state="Scheduled")
    await asyncio.gather(*(bench.take(reports[index]) for index in order))
    assert bench.status()["state"] == "Succeeded"
    assert [action["state"] for action in bench.status()["actions"]] == ["Succeeded", "Succeeded"]
    assert all(action["startedAt"] for action in bench.status()["actions"])


async def test_a_caller_that_leaves_gives_up_its_turn(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.gate = asyncio.Event()
    calls = [asyncio.ensure_future(bench.take(m.ActionStarted("a0"))) for _ in range(3)]
    await until(lambda: bench.status()["state"] == "Running")
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    bench.rig.api.gate = None
    assert await asyncio.wait_for(bench.take(m.ActionSucceeded("a0")), 10)
    assert not bench.store._lines


async def test_an_event_that_always_comes_too_late_is_given_back_to_the_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.faults = [ConflictError(409, "Conflict", "c")] * 100
    with pytest.raises(StaleError, match="d/w changes too often"):
        await bench.take(m.ActionStarted("a0"))
    assert bench.rig.api.patches < 20


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["state", "actions", "action", "rendered", "conditions", "rejections", "status"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(list(WorkflowState)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "state", "x"]), inner),
        max_leaves=5,
    ),
    state=st.sampled_from(["Pending", "Scheduled", "Running", "Cancelling"]),
)
async def test_a_status_that_anybody_wrote_is_an_error_or_an_answer_and_never_a_crash(
    rig: Any, kind: str, value: Any, state: str
) -> None:
    bench = Bench(rig)
    rig.workflow(state=state)
    obj = rig.workflows.objects["d", "w"]
    status = obj["status"]
    if kind == "status":
        obj["status"] = value
    elif kind == "action":
        status["actions"][0] = value
    elif kind == "rendered":
        status["actions"][0]["rendered"] = value
    else:
        status[kind] = value
    rig.workflows.put(obj)
    for event in (
        m.ActionStarted("a0"),
        m.AgentLost(),
        m.AgentAway(5),
        m.Rejected("R", "m"),
        m.ActionFailed("a1", "", ""),
    ):
        try:
            await bench.take(event)
        except (InvalidStatusError, m.UnknownActionError) as error:
            said = str(error)
        else:
            continue
        assert "d/w" in said


# --- claims -------------------------------------------------------------------------------------------------------


async def test_of_two_servers_that_claim_one_workflow_one_has_it(bench: Bench) -> None:
    bench.rig.workflow()
    other = Bench(bench.rig)
    other.index.apply(bench.seen())
    claims = await asyncio.gather(bench.store.claim(bench.seen()), other.store.claim(other.seen()))
    assert sorted(claim is not None for claim in claims) == [False, True]


NEVER_SENT: Raw = {"status": {"dispatched": False}}


async def claimed_by(bench: Bench) -> Raw:
    bench.rig.workflow()
    claimed = await bench.store.claim(bench.seen())
    assert claimed is not None
    return claimed


async def test_a_claim_is_given_back_unless_somebody_was_faster_or_the_api_is_away(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    assert await bench.store.claim(claimed) is None, "it is not Pending"
    bench.rig.api.faults = [UnreachableError("away"), NotFoundError(404, "NotFound", "w")]
    assert await bench.store.give_back(claimed) is False
    assert await bench.store.give_back(claimed) is False
    assert await bench.store.give_back(claimed) is True
    assert bench.status()["state"] == "Pending"
    assert bench.status()["dispatched"] is True, "who claimed it may have sent it"
    assert await bench.store.give_back(claimed) is False, "changed since"
    assert await bench.store.give_back(bench.seen()) is False, "Pending already"


async def test_a_claim_that_was_never_sent_is_taken_back_though_the_api_is_away_and_the_object_changes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_FIRST_RETRY", 0.01)
    claimed = await claimed_by(bench)
    bench.rig.workflows.objects["d", "w"]["metadata"]["labels"] = {"a": "b"}
    bench.rig.set_state("w", "Scheduled")
    bench.rig.api.faults = [UnreachableError("away"), UnreachableError("away")]
    await asyncio.wait_for(bench.store.take_back(claimed, NEVER_SENT), 5)
    assert (bench.status()["state"], bench.status()["dispatched"]) == ("Pending", False)


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Cancelling", "Canceled"])
async def test_a_claim_of_another_is_not_taken_back(bench: Bench, state: str) -> None:
    claimed = await claimed_by(bench)
    other = Bench(bench.rig)
    other.index.apply(bench.seen())
    assert await other.store.reclaim(other.seen()) is not None, "at the same moment"
    bench.rig.set_state("w", state)
    before = dict(bench.status())
    await bench.store.take_back(claimed, NEVER_SENT)
    assert bench.status() == before


async def test_what_was_cancelled_before_its_claim_could_be_sent_ends_with_the_claim(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", "Cancelling")
    await bench.store.take_back(claimed, NEVER_SENT)
    assert bench.status()["state"] == "Canceled"


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling"])
async def test_what_an_agent_may_have_had_before_the_claim_is_not_taken_for_unsent(bench: Bench, state: str) -> None:
    """An earlier claim was given back, and what was sent with it may have arrived."""
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", state)
    await bench.store.take_back(claimed, {"status": {"dispatched": True}})
    assert bench.status()["dispatched"] is True
    assert bench.status()["state"] == {"Scheduled": "Pending"}.get(state, state)


async def test_a_workflow_that_is_gone_or_none_is_not_taken_back_for_ever(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", "Bogus")
    await asyncio.wait_for(bench.store.take_back(claimed, NEVER_SENT), 5)
    bench.rig.workflows.remove("d", "w")
    await asyncio.wait_for(bench.store.take_back(claimed, NEVER_SENT), 5)


async def test_an_api_that_is_away_is_one_line_in_the_log_and_not_one_for_each_machine(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        bench.rig.workflow(f"w{number}", hardware=f"h{number}")
        bench.rig.api.faults = [UnreachableError("away")]
        assert await bench.store.claim(bench.seen(f"w{number}")) is None
    assert len(caplog.records) == 1
    assert "can't be scheduled, trying again: away" in caplog.text
