"""The server's writes: what becomes of events, which go together, whose turn it is, and claims of Workflows."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.support.objects import action
from tests.support.virtual_time import elapse, turns
from tests.unit.server.conftest import FIRST, LONGEST, Bench, Rig
from tink.agent.connection import RetryPolicy
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ApiError, ConflictError, NotFoundError, UnreachableError
from tink.server.events import (
    BATCH_SECONDS,
    MAX_WAITING,
    MAX_WRITES,
    YIELD_SECONDS,
    BusyError,
    StaleError,
    WorkflowGoneError,
    rejection_delay,
)
from tink.workflow import events, machine
from tink.workflow.status import InvalidStatusError, parse_timestamp

pytestmark = pytest.mark.looptime
THREE = [action(f"a{number}") for number in range(3)]
BUSY = events.Rejected("Busy", "m")
STARTED, SUCCEEDED = events.ActionStarted("a0"), events.ActionSucceeded("a0")
FAILED = events.ActionFailed("a1", "R", "m")

# --- rejections ---------------------------------------------------------------------------------------------------


def test_rejection_delays_double_to_their_bound_and_chance_takes_a_little_away() -> None:
    assert [rejection_delay(n, 5, 60, 0.0) for n in range(6)] == [5, 10, 20, 40, 60, 60]
    assert rejection_delay(10**9, 5, 60, 0.0) == 60
    assert rejection_delay(0, 5, 60, 1.0) == pytest.approx(4)
    assert rejection_delay(10, 5, 60, 1.0) == pytest.approx(48)


@pytest.mark.parametrize(
    ("before", "delay"), [(2, 4 * FIRST), (50, LONGEST), (1, 2 * FIRST)], ids=["restart", "longest", "conflict"]
)
async def test_delays_of_rejections_grow_from_the_status_as_it_is(bench: Bench, before: int, delay: float) -> None:
    bench.rig.workflow(state="Scheduled", rejections=before if before > 1 else 0)
    if before == 1:
        bench.rig.workflows.hold()  # another server has written it
        bench.rig.set_state("w", "Scheduled", rejections=1)
    await bench.take(BUSY)
    assert bench.status()["rejections"] == before + 1
    assert parse_timestamp(bench.status()["dispatchAfter"]) == bench.rig.now + delay


# --- copies that are behind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seems", "state", "event", "after"),
    [
        ("Running", "Succeeded", events.AgentLost(), "Succeeded"),  # it reported the end to another server
        ("Scheduled", "Running", events.AgentLost(), "Failed"),
        ("Pending", "Scheduled", BUSY, "Pending"),
        ("Running", "Cancelling", events.Rejected("UnknownWorkflow", "m"), "Canceled"),  # the answer to a stop
        ("Running", "Cancelling", events.Rejected("AlreadyFinished", "m"), "Canceled"),
        ("Odd", "Scheduled", events.ActionStarted("a0"), "Running"),  # it was corrected
    ],
    ids=str,
)
async def test_event_is_applied_to_what_is_and_not_to_a_copy_that_is_behind(
    bench: Bench, seems: str, state: str, event: Any, after: str
) -> None:
    bench.rig.workflow(state=seems)
    if seems == "Odd":
        with pytest.raises(InvalidStatusError, match="d/w"):
            await bench.take(event)
    bench.rig.workflows.hold()
    bench.rig.set_state("w", state)
    assert await bench.take(event) is (after != state)
    assert bench.status()["state"] == after
    if after != state:
        assert bench.seen()["status"]["state"] == after, "the stream must see it at once"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
async def test_workflow_whose_end_was_never_reported_fails_and_is_not_offered_again(bench: Bench, state: str) -> None:
    bench.rig.workflow(state=state)
    assert await bench.take(events.Rejected("AlreadyFinished", "ended: Succeeded")) is True
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
    assert await bench.take(events.ActionStarted("a0")) is True
    with pytest.raises(machine.UnknownActionError):
        await bench.take(events.ActionStarted("zz"))


async def test_a_workflow_that_went_and_came_again_under_its_name_is_gone(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    old = bench.seen()
    bench.rig.workflows.hold()
    bench.rig.remove("w")
    bench.rig.api.put(old | {"metadata": {**old["metadata"], "uid": "uid-second"}})
    with pytest.raises(WorkflowGoneError):
        await bench.store.take(old, events.ActionStarted("a0"))
    assert await bench.store.reclaim(old) is None
    bench.rig.remove("w")
    assert await bench.store.reclaim(old) is None
    bench.rig.api.fail("patch", NotFoundError(404, "NotFound", "w"))
    with pytest.raises(WorkflowGoneError):
        await bench.store.take(old, events.ActionStarted("a0"))


async def test_an_event_that_always_comes_too_late_is_given_back_to_the_agent(bench: Bench) -> None:
    bench.rig.workflow(state="Scheduled")
    bench.rig.api.fail("patch", *[ConflictError(409, "Conflict", "c")] * 100)
    with pytest.raises(StaleError, match="d/w changes too often"):
        await bench.take(events.ActionStarted("a0"))
    assert bench.rig.patches < 20


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["state", "actions", "action", "rendered", "conditions", "rejections", "status"]),
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text(max_size=5)
        | st.sampled_from(list(WorkflowState)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "state", "x"]), inner),
        max_leaves=5,
    ),
    state=st.sampled_from(["Pending", "Scheduled", "Running", "Cancelling"]),
)
async def test_a_status_that_anybody_wrote_is_an_error_or_an_answer_and_never_a_crash(
    rig: Rig, kind: str, value: Any, state: str
) -> None:
    bench = Bench(rig)
    rig.workflow(state=state)
    obj = rig.read("w")
    status = obj["status"]
    assume(not (kind == "status" and isinstance(value, dict) and "id" in value))  # another Workflow's, on the wire
    if kind == "status":
        obj["status"] = value
    elif kind == "action":
        status["actions"][0] = value
    elif kind == "rendered":
        status["actions"][0]["rendered"] = value
    else:
        status[kind] = value
    rig.api.put(obj)
    for event in (
        events.ActionStarted("a0"),
        events.AgentLost(),
        events.AgentAway(5),
        events.Rejected("R", "m"),
        events.ActionFailed("a1", "", ""),
    ):
        try:
            await bench.take(event)
        except (InvalidStatusError, machine.UnknownActionError) as error:
            logged = str(error)
        except ApiError as error:
            assert error.status == 422, "the API takes no status that its schema does not know"  # noqa: PT017
            continue
        else:
            continue
        assert "d/w" in logged


async def begun(bench: Bench) -> asyncio.Future[bool]:
    """Return a write that is under way until the gate is open: the start of a0."""
    bench.rig.workflow(state="Scheduled")
    bench.rig.hold()
    first = bench.taking(events.ActionStarted("a0"))
    await bench.rig.gate.reached.wait()
    return first


@pytest.mark.parametrize(
    ("state", "event", "reads"),
    [
        ("Running", events.ActionStarted("a0"), 0),
        ("Running", BUSY, 0),
        ("Cancelling", events.ActionStarted("a0"), 0),
        ("Failed", events.ActionStarted("a1"), 0),
        ("Canceled", events.Rejected("UnknownWorkflow", "m"), 0),
        ("Succeeded", events.AgentLost(), 0),
        # The copy may be behind: such an event is held against the API.
        ("Scheduled", events.AgentLost(), 1),
        ("Pending", BUSY, 1),
        ("Cancelling", BUSY, 1),
    ],
    ids=str,
)
async def test_what_is_known_already_costs_no_call(bench: Bench, state: str, event: Any, reads: int) -> None:
    bench.rig.workflow(state=state)
    for _ in range(50):
        assert await bench.take(event) is False
    assert (bench.reads, bench.rig.patches, bench.status()["state"]) == (50 * reads, 0, state)


async def test_events_of_one_machine_are_taken_one_after_the_other_and_only_some_may_wait(bench: Bench) -> None:
    bench.rig.workflow("other", state="Scheduled", hardware="g")
    waiting = [await begun(bench), *(bench.taking(events.ActionStarted("a0")) for _ in range(MAX_WAITING - 1))]
    await turns()
    with pytest.raises(BusyError, match="of Hardware d/h wait already: publish one after the other"):
        await bench.take(events.ActionStarted("a0"))
    others = bench.taking(events.ActionStarted("a0"), "other")
    await turns(5)
    assert bench.status("other")["state"] == "Running"
    assert bench.rig.patches == 2, "all but the first waited for their turn"
    bench.rig.gate.open()
    assert sorted(await asyncio.gather(*waiting)) == [False] * (MAX_WAITING - 1) + [True]
    assert await others
    assert bench.rig.patches == 2, "those that waited saw what the first one wrote"
    assert not bench.store._queues, "no state is kept of machines that report nothing"


async def test_what_comes_while_a_write_is_under_way_is_stored_with_one_more_each_with_its_own_answer(
    bench: Bench,
) -> None:
    first = await begun(bench)
    reports = [
        events.ActionSucceeded("a0"),
        events.ActionStarted("zz"),
        events.ActionStarted("a1"),
        events.ActionStarted("a1"),
        BUSY,
        events.ActionSucceeded("a1"),
        events.ActionFailed("a1", "R", "m"),
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


@pytest.mark.parametrize(
    ("reports", "order"),
    [
        (
            [("w", SUCCEEDED), ("w", FAILED), ("next", STARTED), ("w", BUSY)],
            [("w", "Failed"), ("next", "Running")],
        ),
        (
            [("w", SUCCEEDED), ("next", STARTED), ("w", FAILED)],
            [("w", "Running"), ("next", "Running"), ("w", "Failed")],  # that of another is not overtaken
        ),
    ],
    ids=["together", "apart"],
)
async def test_events_of_two_workflows_of_one_machine_keep_their_order(
    bench: Bench, reports: list[tuple[str, Any]], order: list[tuple[str, str]]
) -> None:
    bench.rig.workflow("next", state="Scheduled", created=1)
    first = await begun(bench)
    written: list[tuple[str, str]] = []
    bench.rig.workflows.add_event_handler(
        lambda new, _: written.append((new["metadata"]["name"], new["status"]["state"]))
    )
    written.clear()
    calls = [bench.taking(event, name) for name, event in reports]
    await turns()
    bench.rig.gate.open()
    assert await asyncio.gather(first, *calls) == [True, *(event is not BUSY for _, event in reports)]
    assert written == order


async def test_error_of_the_api_reaches_all_callers_of_that_write_and_no_other(bench: Bench) -> None:
    first = await begun(bench)
    bench.rig.api.fail("patch", UnreachableError("away"))
    both = [bench.taking(event) for event in (events.ActionSucceeded("a0"), events.ActionStarted("a1"))]
    await turns()
    bench.rig.gate.open()
    answers = await asyncio.gather(first, *both, return_exceptions=True)
    assert [type(answer) for answer in answers] == [bool, UnreachableError, UnreachableError]
    assert await bench.take(events.ActionSucceeded("a0")) is True


async def test_the_end_of_an_action_waits_a_moment_for_the_start_of_the_next_and_the_last_does_not(
    bench: Bench,
) -> None:
    clock = asyncio.get_running_loop().time
    bench.rig.workflow(state="Running")
    begin = clock()
    end = bench.taking(SUCCEEDED)
    await turns()  # it waits now
    assert await asyncio.gather(end, bench.taking(events.ActionStarted("a1"))) == [True, True]
    assert bench.rig.patches == 1
    assert clock() - begin == pytest.approx(BATCH_SECONDS)
    begin = clock()
    assert await bench.take(events.ActionSucceeded("a1"))
    assert clock() == begin
    calls = [await begun(bench), *(bench.taking(event) for event in (SUCCEEDED, events.ActionStarted("a1")))]
    await turns()
    bench.rig.gate.open()
    assert await asyncio.gather(*calls) == [True] * 3
    assert clock() == begin, "nor does one while there is more to write already"


async def test_only_so_many_writes_are_under_way_at_once(bench: Bench) -> None:
    names = [f"w{number}" for number in range(MAX_WRITES + 4)]
    for name in names:
        bench.rig.workflow(name, state="Scheduled", hardware=f"h-{name}")
    bench.rig.hold()
    calls = [bench.taking(events.ActionStarted("a0"), name) for name in names]
    await elapse(0.02)
    assert bench.rig.patches == MAX_WRITES
    late = bench.taking(events.ActionSucceeded("a0"), names[-1])
    await elapse(0.02)
    bench.rig.gate.open()
    assert await asyncio.gather(*calls, late) == [True] * (MAX_WRITES + 5)
    assert bench.rig.patches == MAX_WRITES + 4, "what waited went together"


# --- whose turn it is, where one write is under way at a time ---


# An agent waits before its first action and before its last; in between it goes on without the answer. w0's report is
# under way; "new" is Scheduled, and this server has not heard of the actions of "unheard".
HURRIES: dict[str, tuple[str, str]] = {
    "what an agent waits for": (
        "w0 >1, patient >1, second >1, hurried >1, hurried >2, new >0, second <2",
        "w0, hurried, hurried, new, second, second, patient",
    ),
    "the start of an action unheard of": ("w0 >1, patient >1, unheard >1", "w0, unheard?, patient"),
    "the end of an action unheard of": ("w0 >1, patient >1, unheard <1", "w0, unheard?, patient"),
    # They have gathered while an earlier one was written, and go together.
    "all of a machine whose agent waits": ("w0 >0, other >1, patient >1, w0 >1, w0 >2", "w0, other, w0, w0, patient"),
}


@pytest.mark.parametrize("name", HURRIES)
async def test_what_an_agent_waits_for_is_stored_before_what_none_waits_for(bench: Bench, name: str) -> None:
    """`>1` is the start of action 1, `<1` its success; the answers come in the order of the writes."""
    reports, order = HURRIES[name]
    bench = Bench(bench.rig, max_writes=1)
    for machine_name in {report.split()[0]: None for report in reports.split(", ")}:
        state, actions = "Scheduled" if machine_name == "new" else "Running", [] if machine_name == "unheard" else THREE
        bench.rig.workflow(machine_name, state=state, hardware=f"h-{machine_name}", actions=actions)
    bench.rig.hold()
    done: list[str] = []

    async def take(which: str, event: Any) -> None:
        try:
            await bench.take(event, which)
        except machine.UnknownActionError:
            which += "?"
        done.append(which)

    calls = []
    for report in reports.split(", "):
        which, (kind, number) = report.split()
        event = events.ActionStarted(f"a{number}") if kind == ">" else events.ActionSucceeded(f"a{number}")
        calls.append(asyncio.ensure_future(take(which, event)))
        await elapse(0.005)
    bench.rig.gate.open()
    await asyncio.gather(*calls)
    assert done == order.split(", ")


async def test_what_none_waits_for_is_stored_at_its_time_however_much_is_in_a_hurry(bench: Bench) -> None:
    bench = Bench(bench.rig, max_writes=1)
    names = [f"w{number}" for number in range(6)]
    for name in names:
        bench.rig.workflow(name, state="Running", hardware=f"h-{name}", actions=THREE)
    bench.rig.hold()
    first = bench.taking(events.ActionStarted("a2"), "w0")
    await turns()
    patient = bench.taking(events.ActionStarted("a1"), "w1")
    await elapse(2 * YIELD_SECONDS)
    late = [bench.taking(events.ActionStarted("a2"), name) for name in names[2:]]
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


async def test_a_caller_that_leaves_in_the_midst_of_a_write_for_others_does_not_take_their_events_along(
    bench: Bench,
) -> None:
    await begun(bench)
    both = [bench.taking(event) for event in (events.ActionSucceeded("a0"), events.ActionStarted("a1"))]
    gone = [bench.taking(events.ActionStarted("a0")) for _ in range(2)]
    await turns()
    for call in gone:
        call.cancel()  # before their turn
    await asyncio.gather(*gone, return_exceptions=True)
    bench.rig.gate.open()
    bench.rig.hold()
    await bench.rig.gate.reached.wait()
    assert bench.status()["actions"][1]["state"] == "Running"
    both[0].cancel()
    bench.rig.gate.open()
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] is False, "it finds its event stored"
    assert await bench.take(events.ActionSucceeded("a1")) is True
    assert not bench.store._queues


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


async def test_claim_is_given_back_unless_another_writer_was_faster_or_the_api_is_away(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    assert await bench.store.claim(claimed) is None, "it is not Pending"
    bench.rig.api.fail("patch", UnreachableError("away"), NotFoundError(404, "NotFound", "w"))
    assert await bench.store.give_back(claimed) is False
    assert await bench.store.give_back(claimed) is False
    assert await bench.store.give_back(claimed) is True
    assert bench.status()["state"] == "Pending"
    assert bench.status()["dispatched"] is True, "who claimed it may have sent it"
    assert await bench.store.give_back(claimed) is False, "changed since"
    assert await bench.store.give_back(bench.seen()) is False, "Pending already"


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


@pytest.mark.parametrize(
    ("before", "state", "after"),
    [
        (False, "Scheduled", "Pending"),
        (False, "Cancelling", "Canceled"),
        # An earlier claim was given back, and what was sent with it may have arrived.
        (True, "Scheduled", "Pending"),
        (True, "Cancelling", "Cancelling"),
    ],
)
async def test_a_claim_that_was_never_sent_is_taken_back_though_the_api_is_away_and_the_object_changes(
    bench: Bench, before: bool, state: str, after: str
) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", state)
    bench.rig.api.fail("patch", UnreachableError("away"), UnreachableError("away"))
    await bench.store.take_back(claimed, {"status": {"dispatched": before}})
    bench.rig.api.recover()
    assert bench.status()["state"] == after
    assert bench.status()["dispatched"] is (before or (after == "Canceled" and bench.status()["dispatched"]))


async def test_claim_of_a_workflow_that_is_gone_or_has_an_unknown_state_is_not_taken_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", "Bogus")
    await bench.store.take_back(claimed, NEVER_SENT)
    assert bench.status()["state"] == "Bogus"
    bench.rig.remove("w")
    await bench.store.take_back(claimed, NEVER_SENT)
    assert "stays Scheduled" not in caplog.text, "there is no retry"


async def test_an_api_that_is_away_is_one_line_in_the_log_and_not_one_for_each_machine(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        bench.rig.workflow(f"w{number}", hardware=f"h{number}")
        bench.rig.api.fail("patch", UnreachableError("away"))
        assert await bench.store.claim(bench.seen(f"w{number}")) is None
    assert len(caplog.records) == 1
    assert "can't be scheduled, trying again: away" in caplog.text
