"""Command streams of one agent, on one server and on several: what is lost, sent, sent again, given back, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest

from proto import metadata
from proto import workflow_pb2 as pb
from tests.support.virtual_time import elapse, turns
from tests.unit.server.conftest import Rig, parts
from tink.api.v1alpha2 import Raw
from tink.kube.client import ConflictError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.server.activity import ActivityKind, AgentActivity
from tink.server.auth import Credentials
from tink.server.events import EventStore
from tink.server.peer import MAX_HELD, read_call_metadata
from tink.server.streams import CommandStream, Ending
from tink.server.workflows import WorkflowIndex
from tink.workflow import events

pytestmark = pytest.mark.looptime
OVER = [{"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}]
START, STOP, NEXT = ("start", "uid-w"), ("stop", "uid-w"), ("start", "uid-next")
TIMED_OUT: Raw = {"conditions": [OVER[0] | {"reason": "StartTimeout"}]}
LATER = "2027-01-15T08:00:30Z"


class Side:
    """One server's part: its own copy of what there is, and one stream.

    `before_write` is called before each command goes out; `reported` are the activities of the agent."""

    def __init__(self, rig: Rig, holds: frozenset[str] | None) -> None:
        self.rig = rig
        self.index = WorkflowIndex()
        self.store = EventStore(
            rig.api, self.index, lambda: rig.now, rejection_first=5, rejection_longest=60, chance=lambda: 0.0
        )
        self.commands: list[tuple[str, str]] = []
        self.before_write: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.reported: list[AgentActivity] = []
        self.background: set[asyncio.Task[None]] = set()
        for workflow in rig.workflows.list():
            self.index.apply(workflow)
        server = parts(
            self.index,
            self.store,
            lambda work: self.background.add(asyncio.ensure_future(work)),
            observe=self.reported.append,
            clock=lambda: rig.now,
            rejection_longest=60,
        )
        self.stream = CommandStream(server, "h", Credentials("192.0.2.1"), NamespacedName("d", "h"), holds)
        rig.workflows.add_event_handler(self._changed, self._gone)

    @property
    def lost(self) -> list[str]:
        """The states of the Workflows that the agent came back without."""
        stories = [each.message for each in self.reported if each.kind is ActivityKind.EVENT]
        return [story.rpartition(" ")[2] for story in stories]

    def _changed(self, new: Raw, _: Raw | None) -> None:
        self.index.apply(new)
        self.stream.wake()

    def _gone(self, old: Raw) -> None:
        self.index.remove(old)
        self.stream.gone(old)

    async def write(self, message: pb.GetWorkflowsResponse) -> None:
        if self.before_write is not None:
            await self.before_write()
        if message.WhichOneof("cmd") == "start_workflow":
            self.commands.append(("start", message.start_workflow.workflow.workflow_id))
        else:
            self.commands.append(("stop", message.stop_workflow.workflow_id))

    def start(self) -> None:
        self.task: asyncio.Task[Ending] = asyncio.ensure_future(self.stream.run(self.write))

    async def calm(self) -> list[tuple[str, str]]:
        """The commands so far, when nothing more comes."""
        await turns(60)
        return self.commands

    async def close(self) -> None:
        if hasattr(self, "task"):
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await asyncio.gather(*self.background)


Make = Callable[..., Side]


@pytest.fixture
async def side(rig: Rig) -> AsyncIterator[Make]:
    sides: list[Side] = []

    def make(*holds: str, says: bool = True, start: bool = True) -> Side:
        made = Side(rig, frozenset(holds) if says else None)
        sides.append(made)
        if start:
            made.start()
        return made

    yield make
    for made in sides:
        await made.close()


# --- what the agent holds when it comes ---------------------------------------------------------------------------

# The state of w, what the agent holds (None: it does not say); its commands, the state afterwards, and what it lost.
ARRIVALS: dict[str, tuple[str, tuple[str, ...] | None, list[tuple[str, str]], str, list[str]]] = {
    "without what it ran": ("Running", (), [NEXT], "Failed", ["Failed"]),
    "without what it was to stop": ("Cancelling", (), [NEXT], "Canceled", ["Canceled"]),
    "after the reboot that its last action wanted": ("Running, reboots", (), [NEXT], "Succeeded", ["Succeeded"]),
    "with what it runs": ("Running", ("uid-w",), [], "Running", []),
    "with what it was sent": ("Scheduled", ("uid-w",), [], "Scheduled", []),
    "without what it was sent": ("Scheduled", (), [START], "Scheduled", []),
    "without a word of what it runs": ("Running", None, [], "Running", []),
    "with what has timed out meanwhile": ("Failed", ("uid-w",), [STOP, NEXT], "Failed", []),
    "without a word of what has timed out": ("Failed", None, [STOP, NEXT], "Failed", []),
}


@pytest.mark.parametrize("name", ARRIVALS)
async def test_agent_comes(rig: Rig, side: Make, name: str) -> None:
    state, holds, commands, after, lost = ARRIVALS[name]
    rig.workflow(state=state.removesuffix(", reboots"), conditions=OVER if state == "Failed" else [])
    if state.endswith(", reboots"):
        rig.reboots()
    rig.workflow("next", created=1)
    there = side(*(holds or ()), says=holds is not None)
    assert await there.calm() == commands
    assert (rig.state(), there.lost) == (after, lost)
    if lost == ["Failed"]:
        assert rig.read("w")["status"]["conditions"][0]["reason"] == "AgentLost"
    if after in ("Running", "Scheduled"):
        rig.set_state("w", "Failed", conditions=OVER)
    rig.set_state("w", rig.state(), message="again")
    reports_made = await there.calm()
    assert reports_made.count(STOP) == (after in ("Running", "Scheduled", "Failed") and not lost), "once is enough"


async def test_what_waits_or_has_ended_costs_no_call_when_an_agent_comes(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("done", state="Succeeded")
    for number in range(20):
        rig.workflow(f"waits{number}", created=number)
    there = side("uid-w")
    assert await there.calm() == []
    assert rig.api.calls == []
    assert not there.task.done()


async def test_a_workflow_that_ended_well_does_not_fail_because_the_informer_is_behind(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side(start=False)
    rig.workflows.hold()
    rig.set_state("w", "Succeeded")
    there.start()
    assert await there.calm() == []
    assert rig.state() == "Succeeded"


@pytest.mark.parametrize("seems", ["Scheduled", "Pending"])
async def test_a_workflow_that_seemed_not_to_run_yet_when_the_agent_came_without_it_is_asked_about_and_not_run_again(
    rig: Rig, side: Make, seems: str
) -> None:
    """It may run for an agent that has gone on to another server; or the copy was behind, and the agent has lost it."""
    rig.workflow(state=seems)
    there = side(start=False)
    rig.workflows.hold()
    rig.set_state("w", "Running")
    there.start()
    await there.calm()
    rig.workflows.release()
    assert await there.calm() == []
    assert rig.state() == "Running"
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE
    again = side()
    assert await again.calm() == []
    assert rig.state() == "Failed"
    assert again.lost == ["Failed"]


async def test_what_begins_to_run_between_the_hello_and_the_account_is_not_lost(rig: Rig, side: Make) -> None:
    rig.workflow(state="Scheduled")
    there = side(start=False)
    rig.set_state("w", "Running")  # seen by this server at once
    there.start()
    await there.calm()
    assert rig.state() == "Running"
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE


async def test_a_slow_account_does_not_fail_what_began_to_run_elsewhere_meanwhile(rig: Rig, side: Make) -> None:
    """The agent held nothing when it came, its connection died unseen, and another server sent it the Workflow."""
    rig.workflow(state="Running")
    rig.workflow("second", state="Scheduled", created=1)
    rig.hold()
    there = side()
    await there.calm()
    rig.set_state("second", "Running")
    rig.gate.open()
    assert await there.calm() == []
    assert (rig.state(), rig.state("second")) == ("Failed", "Running")
    assert "connect again" in (await there.task).message


async def test_a_workflow_that_was_dispatched_on_this_stream_is_never_lost_on_it(rig: Rig, side: Make) -> None:
    rig.workflow()
    there = side()
    assert await there.calm() == [START]
    await there.store.take(there.index.get("uid-w") or {}, events.ActionStarted("a0"))
    there.stream.wake()
    assert await there.calm() == [START]
    assert rig.state() == "Running"


async def test_a_stream_whose_agent_has_gone_on_to_another_server_does_not_fail_what_runs_there(
    rig: Rig, side: Make
) -> None:
    """It is a dead connection that the server has not noticed: the agent held nothing when it opened this one."""
    dead = side()
    await dead.calm()
    rig.workflow(state="Running")
    assert await dead.calm() == []
    assert rig.state() == "Running"


async def test_what_is_held_of_a_workflow_that_is_gone_is_stopped(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w", "uid-never-was", start=False)
    rig.remove("w")
    there.start()
    assert await there.calm() == [STOP]
    assert [(each.kind, each.workflow) for each in there.reported] == [(ActivityKind.STOPPED, "d/w")]


@pytest.mark.parametrize("fault", [UnreachableError("away"), ConflictError(409, "Conflict", "c"), None])
async def test_agent_whose_losses_can_not_be_stored_is_asked_to_come_again(
    rig: Rig, side: Make, fault: Exception | None
) -> None:
    rig.workflow(state="Running")
    if fault is None:
        rig.hold()
    else:
        rig.api.fail("patch", *[fault] * 20)
    clock = asyncio.get_running_loop().time
    begin, there = clock(), side()
    ending = await there.task
    assert ending.code is grpc.StatusCode.UNAVAILABLE
    assert "connect again" in ending.message
    if fault is None:
        assert clock() - begin == pytest.approx(5), "it would get no command meanwhile"


async def test_a_stream_that_was_replaced_while_it_took_stock_decides_nothing(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("v", state="Running")
    there = side(start=False)
    there.stream.end(grpc.StatusCode.ABORTED, "another")
    there.start()
    await there.calm()
    assert (rig.state(), rig.state("v")) == ("Running", "Running")


def test_agent_that_holds_more_workflows_than_it_can_report_loses_none() -> None:
    """A list that was cut off would make a loss of what runs."""
    held = [(metadata.WORKFLOW, f"u{number}") for number in range(MAX_HELD)]
    assert read_call_metadata(held).holds is None
    assert read_call_metadata([*held, *held]).holds is None
    assert read_call_metadata(held[1:]).holds == frozenset(uid for _, uid in held[1:])
    assert read_call_metadata([(metadata.WORKFLOW, "")]).holds == frozenset()
    assert read_call_metadata([("other", "u")]).holds is None


# --- what ends while it is sent, or is over -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "ends"), [("Pending", "times out"), ("Scheduled", "times out"), ("Pending", "vanishes")]
)
async def test_workflow_that_ends_while_it_is_sent_is_stopped(rig: Rig, side: Make, state: str, ends: str) -> None:
    rig.workflow(state=state)
    there = side(start=False)

    async def end() -> None:
        there.before_write = None
        if ends == "times out":
            rig.set_state("w", "Failed", **TIMED_OUT)
        else:
            rig.remove("w")

    there.before_write = end
    there.start()
    assert await there.calm() == [START, STOP]


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("state", ["Failed", "Running", "Cancelling", "Odd"])
async def test_a_workflow_that_is_not_scheduled_any_more_is_not_sent_because_the_informer_is_behind(
    rig: Rig, side: Make, says: bool, state: str
) -> None:
    rig.workflow(state="Scheduled")
    there = side(start=False, says=says)
    rig.workflows.hold()
    rig.set_state("w", state, **TIMED_OUT)
    there.start()
    assert START not in await there.calm()


async def test_a_workflow_that_timed_out_and_was_deleted_at_once_is_stopped(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w")
    await there.calm()
    rig.workflows.hold()
    rig.set_state("w", "Failed", conditions=OVER)
    rig.remove("w")
    rig.workflows.release()
    assert await there.calm() == [STOP]


@pytest.mark.parametrize("report", [events.ActionStarted("a1"), events.ActionSucceeded("a0")])
async def test_agent_that_reports_events_of_an_ended_workflow_gets_a_stop_command(
    rig: Rig, side: Make, report: Any
) -> None:
    rig.workflow(state="Failed", conditions=OVER)
    there = side()
    assert await there.calm() == []
    there.stream.note_report("uid-w", events.Rejected("UnknownWorkflow", "m"))
    there.stream.note_report("uid-w", events.ActionFailed("a0", "R", "m"))
    assert await there.calm() == [], "it has stopped"
    there.stream.note_report("uid-w", report)
    assert await there.calm() == [STOP]


@pytest.mark.parametrize("held", [True, False], ids=["held", "heard of"])
async def test_workflow_that_is_deleted_while_its_agent_has_it_unknown_to_this_server_is_stopped(
    rig: Rig, side: Make, held: bool
) -> None:
    """The claim was taken back, but the command had arrived; or another server has sent it, and the copy is behind."""
    rig.workflow(dispatchAfter=LATER)
    there = side(*(["uid-w"] if held else []))
    assert await there.calm() == []
    if not held:
        there.stream.note_report("uid-w", events.ActionStarted("a0"))
        assert await there.calm() == []
    there.stream.gone(rig.read("w"))
    assert await there.calm() == [STOP]


async def test_a_reboot_that_counts_as_done_is_not_stopped_when_its_agent_shows_up_again(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    rig.reboots()
    there = side("uid-w")
    await there.calm()
    await there.store.take(there.index.get("uid-w") or {}, events.AgentAway(30))
    there.stream.wake()
    assert rig.state() == "Succeeded"
    assert await there.calm() == []


# --- Workflows that were edited by hand -------------------------------------------------------------------------------

EDITS: list[tuple[Raw, str]] = [
    ({"state": "Odd"}, "'Odd'"),
    ({"state": "Pending", "actions": [{"id": "a0", "state": "Odd"}]}, "'Odd'"),
    *(
        ({"state": state, "actions": [{"id": "a0", "rendered": rendered}]}, "status.actions[0] can't be sent")
        for rendered in ("text", {"env": 5}, {"env": {"A": 1}, "args": 5}, {"volumes": True})
        for state in ("Pending", "Scheduled")
    ),
]


@pytest.mark.parametrize(("edit", "named"), EDITS, ids=[str(number) for number in range(len(EDITS))])
async def test_status_edited_by_hand_is_logged_once_and_delays_no_other_workflow(
    rig: Rig, side: Make, caplog: pytest.LogCaptureFixture, edit: Raw, named: str
) -> None:
    rig.workflow()
    rig.set_state("w", **edit)
    rig.workflow("good", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-good")]
    assert rig.state() == edit["state"], "nobody claimed it"
    for note in range(5):
        rig.set_state("w", **edit, message=str(note))
        await there.calm()
    logged = [record.getMessage() for record in caplog.records if "d/w" in record.getMessage()]
    assert len(logged) == 1, logged
    assert "Workflow d/w: " in logged[0]
    assert named in logged[0]
    assert "agent h does not receive it until that is corrected" in logged[0]
    rig.set_state("good", "Succeeded", actions=[{"id": "a0", "state": "Succeeded"}])
    rig.workflow("w")
    assert await there.calm() == [("start", "uid-good"), START]


async def test_deletion_of_an_invalid_workflow_has_no_effect_on_others(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w")
    await there.calm()
    rig.set_state("w", "Odd")
    await there.calm()
    rig.remove("w")
    rig.workflow("next")
    assert await there.calm() == [NEXT]


# --- several servers with a stream each: no Workflow is claimed or sent twice ---------------------------------------


async def test_two_servers_with_a_stream_each_never_claim_one_workflow_twice(rig: Rig, side: Make) -> None:
    servers = side(), side()
    await servers[0].calm()
    for name in ("a", "b", "c"):
        rig.workflow(name)
    await servers[0].calm()
    assert sorted(rig.state(name) for name in "abc") == ["Pending", "Pending", "Scheduled"]
    assert rig.patches == 3, "one of two claims failed, and was made anew before it was sent"


async def test_claims_of_a_dead_stream_are_sent_or_given_back_by_the_living_one(rig: Rig, side: Make) -> None:
    alive = side()
    await alive.calm()
    rig.workflow(state="Scheduled")
    assert await alive.calm() == [START]
    rig.set_state("w", "Running")
    rig.workflow("next", state="Scheduled", created=1)
    assert await alive.calm() == [START]
    assert rig.state("next") == "Pending"
    rig.set_state("w", "Succeeded", actions=[{"id": "a0", "state": "Succeeded"}])
    assert await alive.calm() == [START, NEXT]


async def test_a_workflow_that_was_rejected_here_and_claimed_elsewhere_is_sent_again(rig: Rig, side: Make) -> None:
    rig.workflow()
    there = side()
    assert await there.calm() == [START]
    rig.set_state("w", "Pending", dispatchAfter=LATER)
    await there.calm()
    rig.set_state("w", "Scheduled")
    assert await there.calm() == [START, START]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_claim_of_a_stream_that_ended_is_taken_back_also_if_it_was_cancelled_meanwhile(
    rig: Rig, side: Make, deleted: bool
) -> None:
    """No agent reports the end of a Workflow that was never sent."""
    rig.workflow(dispatched=False)
    there = side(start=False)

    async def cancelled_meanwhile() -> None:
        there.stream.end(grpc.StatusCode.UNAVAILABLE, "broken")
        if deleted:
            rig.set_state("w", "Cancelling")

    rig.api.around("patch", after=cancelled_meanwhile)
    there.start()
    assert await there.calm() == []
    assert rig.state() == ("Canceled" if deleted else "Pending")


async def test_a_claim_that_another_stream_has_sent_is_not_taken_back(rig: Rig, side: Make) -> None:
    rig.workflow()
    old, new = side(start=False), side(start=False)

    async def sent_elsewhere() -> None:
        old.stream.end(grpc.StatusCode.ABORTED, "another agent connected")
        new.start()
        assert await new.calm() == [START]

    rig.api.around("patch", after=sent_elsewhere)
    old.start()
    assert await old.calm() == []
    for _ in range(3):
        await new.calm()
    assert new.commands == [START]
    assert rig.state() == "Scheduled"


async def test_a_claim_whose_answer_was_lost_is_sent_all_the_same(rig: Rig, side: Make) -> None:
    rig.workflow()
    rig.api.fail("patch", UnreachableError("broke off"), done=True)
    assert await side().calm() == [START]


async def test_an_api_that_is_away_is_asked_ever_more_rarely(rig: Rig, side: Make) -> None:
    rig.workflow()
    rig.api.fail("patch", *[UnreachableError("away")] * 1000)
    there = side()
    await elapse(16)
    assert 4 <= rig.patches <= 9
    rig.api.recover()
    there.stream.wake()
    assert await there.calm() == [START]


async def test_a_rejected_workflow_is_held_back_by_a_server_that_was_not_there(rig: Rig, side: Make) -> None:
    rig.workflow(rejections=1, dispatchAfter=LATER)
    rig.workflow("younger", created=1)
    there = side()
    assert await there.calm() == []
    rig.now += 30
    there.stream.wake()
    assert await there.calm() == [START]
