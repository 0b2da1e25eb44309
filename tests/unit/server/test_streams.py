"""One agent's command stream: what the agent holds, hand-over between servers, and races that no test over a network
could play at will."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest

from proto import metadata
from proto import workflow_pb2 as pb
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.client import ConflictError, UnreachableError
from tink.server.dispatch import Start, Stop
from tink.server.events import EventStore
from tink.server.hello import MAX_HELD, hello_of
from tink.server.streams import Ending, Stream
from tink.server.workflows import WorkflowIndex
from tink.workflow import machine as m

KEY = ("d", "h")
OVER = [{"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}]


class Side:
    """One server's part: its own copy of what there is, and one stream. `before_write` is called before each command
    goes out; `lost` and `sent` are what the server was told."""

    def __init__(self, rig: Any, holds: frozenset[str] | None) -> None:
        self.rig = rig
        self.index = WorkflowIndex()
        self.store = EventStore(
            rig.api, self.index, lambda: rig.now, rejection_first=5, rejection_longest=60, chance=lambda: 0.0
        )
        self.commands: list[tuple[str, str]] = []
        self.before_write: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.sent: list[Start | Stop] = []
        self.lost: list[str] = []
        self.background: set[asyncio.Task[None]] = set()
        for workflow in rig.workflows.objects.values():
            self.index.apply(workflow)
        self.stream = Stream(
            "h",
            "192.0.2.1",
            KEY,
            holds=holds,
            workflows=self.index,
            records=self.store,
            spawn=lambda work: self.background.add(asyncio.ensure_future(work)),
            sent=lambda _, move: self.sent.append(move),
            lost=lambda _, workflow: self.lost.append(workflow["status"]["state"]),
            clock=lambda: rig.now,
            rejection_longest=60,
        )
        rig.workflows.on_change(self._changed)
        rig.workflows.on_delete(self._gone)
        self.task: asyncio.Task[Ending] | None = None

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
        self.task = asyncio.ensure_future(self.stream.run(self.write))

    async def calm(self) -> list[tuple[str, str]]:
        """The commands so far, when nothing more comes."""
        for _ in range(60):
            await asyncio.sleep(0)
        return self.commands

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await asyncio.gather(*self.background)


Make = Callable[..., Side]


@pytest.fixture
async def side(rig: Any) -> AsyncIterator[Make]:
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


def reboots(rig: Any, state: str = "Running", name: str = "w") -> None:
    """The Workflow runs its last action, which reboots the machine."""
    actions = copy.deepcopy(rig.workflows.objects["d", name]["status"]["actions"])
    actions[0]["state"], actions[1]["state"] = "Succeeded", "Running"
    actions[1]["rendered"]["reboots"] = True
    rig.set_state(name, state, actions=actions)


# --- what the agent holds -----------------------------------------------------------------------------------------


async def test_an_agent_that_comes_back_without_its_workflow_fails_it_and_gets_the_next(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("next", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-next")]
    assert rig.state() == "Failed"
    assert rig.workflows.objects["d", "w"]["status"]["conditions"][0]["reason"] == "AgentLost"
    assert there.lost == ["Failed"]


async def test_an_agent_that_comes_back_without_the_workflow_it_was_to_stop_ends_it(rig: Any, side: Make) -> None:
    rig.workflow(state="Cancelling")
    assert await side().calm() == []
    assert rig.state() == "Canceled"


async def test_a_machine_that_rebooted_as_its_last_action_wanted_has_succeeded(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    reboots(rig)
    there = side()
    assert await there.calm() == []
    assert rig.state() == "Succeeded"
    assert there.lost == ["Succeeded"]


@pytest.mark.parametrize("state", ["Running", "Scheduled"])
async def test_a_workflow_that_the_agent_holds_is_neither_lost_nor_sent_again(rig: Any, side: Make, state: str) -> None:
    rig.workflow(state=state)
    there = side("uid-w")
    assert await there.calm() == []
    assert rig.state() == state
    assert there.lost == []
    rig.set_state("w", "Failed", conditions=OVER)
    assert await there.calm() == [("stop", "uid-w")]


async def test_a_scheduled_workflow_that_the_agent_does_not_hold_is_sent_again(rig: Any, side: Make) -> None:
    rig.workflow(state="Scheduled")
    assert await side().calm() == [("start", "uid-w")]


async def test_an_agent_that_does_not_say_what_it_holds_loses_nothing(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    there = side(says=False)
    assert await there.calm() == []
    assert rig.state() == "Running"
    rig.set_state("w", "Failed", conditions=OVER)
    assert await there.calm() == [("stop", "uid-w")], "it may run it all the same"


async def test_what_waits_or_has_ended_costs_no_call_when_an_agent_comes(
    rig: Any, side: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(*_: Any) -> Raw:
        raise AssertionError("asked the API")

    monkeypatch.setattr(rig.api, "get", get)
    rig.workflow(state="Running")
    rig.workflow("done", state="Succeeded")
    for number in range(20):
        rig.workflow(f"waits{number}", created=number)
    there = side("uid-w")
    assert await there.calm() == []
    assert there.task is not None
    assert not there.task.done()


async def test_a_workflow_that_ended_well_does_not_fail_because_the_informer_is_behind(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    there = side(start=False)
    rig.workflows.hold()
    rig.set_state("w", "Succeeded")
    there.start()
    assert await there.calm() == []
    assert rig.state() == "Succeeded"


@pytest.mark.parametrize("seems", ["Scheduled", "Pending"])
async def test_a_workflow_that_seemed_not_to_run_yet_when_the_agent_came_without_it_is_asked_about_and_not_run_again(
    rig: Any, side: Make, seems: str
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
    assert there.task is not None
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE
    again = side()
    assert await again.calm() == []
    assert rig.state() == "Failed"
    assert again.lost == ["Failed"]


async def test_what_begins_to_run_between_the_hello_and_the_account_is_not_lost(rig: Any, side: Make) -> None:
    rig.workflow(state="Scheduled")
    there = side(start=False)
    rig.set_state("w", "Running")  # seen by this server at once
    there.start()
    await there.calm()
    assert rig.state() == "Running"
    assert there.task is not None
    assert (await there.task).code is grpc.StatusCode.UNAVAILABLE


async def test_a_slow_account_does_not_fail_what_began_to_run_elsewhere_meanwhile(rig: Any, side: Make) -> None:
    """The agent held nothing when it came, its connection died unseen, and another server sent it the Workflow."""
    rig.workflow(state="Running")
    rig.workflow("second", state="Scheduled", created=1)
    rig.api.gate = asyncio.Event()
    there = side()
    await there.calm()
    rig.set_state("second", "Running")
    rig.api.gate.set()
    assert await there.calm() == []
    assert (rig.state(), rig.state("second")) == ("Failed", "Running")
    assert there.task is not None
    assert "connect again" in (await there.task).message


async def test_a_workflow_that_was_dispatched_on_this_stream_is_never_lost_on_it(rig: Any, side: Make) -> None:
    rig.workflow()
    there = side()
    assert await there.calm() == [("start", "uid-w")]
    await there.store.take(there.index.get("uid-w") or {}, m.ActionStarted("a0"))
    there.stream.wake()
    assert await there.calm() == [("start", "uid-w")]
    assert rig.state() == "Running"


async def test_a_stream_whose_agent_has_gone_on_to_another_server_does_not_fail_what_runs_there(
    rig: Any, side: Make
) -> None:
    """It is a dead connection that nobody has noticed yet: the agent held nothing when it opened this one."""
    dead = side()
    await dead.calm()
    rig.workflow(state="Running")
    assert await dead.calm() == []
    assert rig.state() == "Running"


async def test_what_is_held_of_a_workflow_that_is_gone_is_stopped(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w", "uid-never-was", start=False)
    rig.workflows.remove("d", "w")
    there.start()
    assert await there.calm() == [("stop", "uid-w")]
    assert there.sent == [Stop("uid-w", "d/w")]


@pytest.mark.parametrize("fault", [UnreachableError("away"), ConflictError(409, "Conflict", "c")])
async def test_an_agent_whose_losses_cannot_be_stored_is_asked_to_come_again(
    rig: Any, side: Make, fault: Exception
) -> None:
    rig.workflow(state="Running")
    rig.api.faults = [fault] * 20
    there = side()
    assert there.task is not None
    ending = await asyncio.wait_for(there.task, 20)
    assert ending.code is grpc.StatusCode.UNAVAILABLE
    assert "connect again" in ending.message


async def test_an_agent_is_asked_to_come_again_when_what_it_said_is_old(
    rig: Any, side: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.server.streams._ACCOUNT_PATIENCE", 0.05)
    rig.workflow(state="Running")
    rig.api.gate = asyncio.Event()
    there = side()
    assert there.task is not None
    assert (await asyncio.wait_for(there.task, 20)).code is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_that_was_replaced_while_it_took_stock_decides_nothing(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    rig.workflow("v", state="Running")
    there = side(start=False)
    there.stream.end(grpc.StatusCode.ABORTED, "another")
    there.start()
    await there.calm()
    assert (rig.state(), rig.state("v")) == ("Running", "Running")


# --- what ended while it was sent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
async def test_a_workflow_that_times_out_while_it_is_sent_is_stopped(rig: Any, side: Make, state: str) -> None:
    rig.workflow(state=state)
    there = side(start=False)

    async def time_out() -> None:
        there.before_write = None
        rig.set_state("w", "Failed", conditions=[OVER[0] | {"reason": "StartTimeout"}])

    there.before_write = time_out
    there.start()
    assert await there.calm() == [("start", "uid-w"), ("stop", "uid-w")]


async def test_a_workflow_that_vanishes_while_it_is_sent_is_stopped(rig: Any, side: Make) -> None:
    rig.workflow()
    there = side(start=False)

    async def vanish() -> None:
        there.before_write = None
        rig.workflows.remove("d", "w")

    there.before_write = vanish
    there.start()
    assert await there.calm() == [("start", "uid-w"), ("stop", "uid-w")]


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("state", ["Failed", "Running", "Cancelling", "Odd"])
async def test_a_workflow_that_is_not_scheduled_any_more_is_not_sent_because_the_informer_is_behind(
    rig: Any, side: Make, says: bool, state: str
) -> None:
    rig.workflow(state="Scheduled")
    there = side(start=False, says=says)
    rig.workflows.hold()
    rig.set_state("w", state, conditions=[OVER[0] | {"reason": "StartTimeout"}])
    there.start()
    assert ("start", "uid-w") not in await there.calm()


async def test_a_workflow_that_timed_out_before_the_agent_changed_servers_is_stopped_by_the_new_one(
    rig: Any, side: Make
) -> None:
    rig.workflow(state="Failed", conditions=OVER)
    there = side("uid-w")
    assert await there.calm() == [("stop", "uid-w")]
    rig.set_state("w", "Failed", note="again")
    assert await there.calm() == [("stop", "uid-w")], "once is enough"


async def test_a_workflow_that_timed_out_and_was_deleted_at_once_is_stopped(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w")
    await there.calm()
    rig.workflows.hold()
    rig.set_state("w", "Failed", conditions=OVER)
    rig.workflows.remove("d", "w")
    rig.workflows.release()
    assert await there.calm() == [("stop", "uid-w")]


@pytest.mark.parametrize("report", [m.ActionStarted("a1"), m.ActionSucceeded("a0")])
async def test_an_agent_that_still_reports_of_a_workflow_that_is_over_is_told_to_stop(
    rig: Any, side: Make, report: Any
) -> None:
    rig.workflow(state="Failed", conditions=OVER)
    there = side()
    assert await there.calm() == []
    there.stream.heard("uid-w", m.Rejected("UnknownWorkflow", "m"))
    there.stream.heard("uid-w", m.ActionFailed("a0", "R", "m"))
    assert await there.calm() == [], "it has stopped"
    there.stream.heard("uid-w", report)
    assert await there.calm() == [("stop", "uid-w")]


async def test_an_agent_that_does_not_say_what_it_runs_is_told_to_stop_what_is_over_without_its_word(
    rig: Any, side: Make
) -> None:
    """It may have been away when the time was up."""
    rig.workflow(state="Failed", conditions=OVER)
    assert await side(says=False).calm() == [("stop", "uid-w")]


async def test_a_workflow_that_is_deleted_while_its_agent_holds_it_unheard_is_stopped(rig: Any, side: Make) -> None:
    """The claim was taken back, but the command had arrived."""
    rig.workflow(dispatchAfter="2027-01-15T08:00:30Z")
    there = side("uid-w")
    assert await there.calm() == []
    there.stream.gone(rig.workflows.objects["d", "w"])
    assert await there.calm() == [("stop", "uid-w")]


async def test_a_workflow_that_is_deleted_after_its_agent_was_heard_of_it_is_stopped(rig: Any, side: Make) -> None:
    """This server's copy is behind: another one has sent it."""
    rig.workflow(dispatchAfter="2027-01-15T08:00:30Z")
    there = side()
    assert await there.calm() == []
    there.stream.heard("uid-w", m.ActionStarted("a0"))
    assert await there.calm() == []
    there.stream.gone(rig.workflows.objects["d", "w"])
    assert await there.calm() == [("stop", "uid-w")]


async def test_a_reboot_that_counts_as_done_is_not_stopped_when_its_agent_shows_up_again(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    reboots(rig)
    there = side("uid-w")
    await there.calm()
    await there.store.take(there.index.get("uid-w") or {}, m.AgentAway(30))
    there.stream.wake()
    assert rig.state() == "Succeeded"
    assert await there.calm() == []


# --- several servers ------------------------------------------------------------------------------------------------


async def test_two_servers_with_a_stream_each_never_claim_one_workflow_twice(rig: Any, side: Make) -> None:
    servers = side(), side()
    await servers[0].calm()
    for name in ("a", "b", "c"):
        rig.workflow(name)
    await servers[0].calm()
    assert sorted(rig.state(name) for name in "abc") == ["Pending", "Pending", "Scheduled"]
    assert rig.api.patches == 3, "one of two claims failed, and was made anew before it was sent"


async def test_a_workflow_that_a_dead_stream_claimed_is_sent_by_the_living_one(rig: Any, side: Make) -> None:
    alive = side()
    await alive.calm()
    rig.workflow(state="Scheduled")
    assert await alive.calm() == [("start", "uid-w")]


async def test_a_second_claim_of_a_dead_stream_is_given_back_and_comes_after_the_first(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    alive = side("uid-w")
    rig.workflow("second", state="Scheduled", created=1)
    assert await alive.calm() == []
    assert rig.state("second") == "Pending"
    rig.set_state("w", "Succeeded", actions=[{"id": "a0", "state": "Succeeded"}])
    assert await alive.calm() == [("start", "uid-second")]


async def test_a_workflow_that_was_rejected_here_and_claimed_elsewhere_is_sent_again(rig: Any, side: Make) -> None:
    rig.workflow()
    there = side()
    assert await there.calm() == [("start", "uid-w")]
    rig.set_state("w", "Pending", dispatchAfter="2027-01-15T08:00:30Z")
    await there.calm()
    rig.set_state("w", "Scheduled")
    assert await there.calm() == [("start", "uid-w"), ("start", "uid-w")]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_claim_of_a_stream_that_ended_is_taken_back_also_if_it_was_cancelled_meanwhile(
    rig: Any, side: Make, deleted: bool
) -> None:
    """Of what nobody sent, nobody will ever report the end."""
    rig.workflow(dispatched=False)
    there = side(start=False)
    patch = rig.api.patch

    async def cancelled_meanwhile(*arguments: Any, **options: Any) -> Raw:
        rig.api.patch = patch
        claimed: Raw = await patch(*arguments, **options)
        there.stream.end(grpc.StatusCode.UNAVAILABLE, "broken")
        if deleted:
            rig.set_state("w", "Cancelling")
        return claimed

    rig.api.patch = cancelled_meanwhile
    there.start()
    assert await there.calm() == []
    assert rig.state() == ("Canceled" if deleted else "Pending")


async def test_a_claim_that_another_stream_has_sent_is_not_taken_back(rig: Any, side: Make) -> None:
    rig.workflow()
    old, new = side(start=False), side(start=False)
    patch = rig.api.patch

    async def sent_elsewhere(*arguments: Any, **options: Any) -> Raw:
        rig.api.patch = patch
        claimed: Raw = await patch(*arguments, **options)
        old.stream.end(grpc.StatusCode.ABORTED, "another agent connected")
        new.start()
        assert await new.calm() == [("start", "uid-w")]
        return claimed

    rig.api.patch = sent_elsewhere
    old.start()
    assert await old.calm() == []
    for _ in range(3):
        await new.calm()
    assert new.commands == [("start", "uid-w")]
    assert rig.state() == "Scheduled"


async def test_a_claim_whose_answer_was_lost_is_sent_all_the_same(rig: Any, side: Make) -> None:
    patch = rig.api.patch

    async def carried_out_and_lost(*arguments: Any, **options: Any) -> Raw:
        rig.api.patch = patch
        await patch(*arguments, **options)
        raise UnreachableError("broke off")

    rig.workflow()
    rig.api.patch = carried_out_and_lost
    assert await side().calm() == [("start", "uid-w")]


async def test_an_api_that_is_away_is_asked_ever_more_rarely(
    rig: Any, side: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.server.streams._FIRST_RETRY", 0.01)
    rig.workflow()
    rig.api.faults = [UnreachableError("away")] * 1000
    there = side()
    await until(lambda: rig.api.patches >= 2)
    await asyncio.sleep(0.3)
    assert rig.api.patches <= 9
    rig.api.faults.clear()
    there.stream.wake()
    assert await there.calm() == [("start", "uid-w")]


async def test_a_rejected_workflow_is_held_back_by_a_server_that_was_not_there(rig: Any, side: Make) -> None:
    rig.workflow(rejections=1, dispatchAfter="2027-01-15T08:00:30Z")
    rig.workflow("younger", created=1)
    there = side()
    assert await there.calm() == []
    rig.now += 30
    there.stream.wake()
    assert await there.calm() == [("start", "uid-w")]


# --- what somebody edited by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", [{"state": "Odd"}, {"actions": [{"id": "a0", "state": "Odd"}]}])
async def test_a_status_edited_by_hand_is_named_once_and_holds_up_nobody(
    rig: Any, side: Make, caplog: pytest.LogCaptureFixture, edit: Raw
) -> None:
    rig.workflow()
    rig.set_state("w", **({"state": "Pending"} | edit))
    rig.workflow("good", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-good")]
    for note in range(5):
        rig.set_state("w", **({"state": "Pending"} | edit), note=note)
        await there.calm()
    said = [record.getMessage() for record in caplog.records if "d/w" in record.getMessage()]
    assert len(said) == 1, said
    assert "'Odd'" in said[0]
    assert "agent h does without it until that is mended" in said[0]
    rig.set_state("good", "Succeeded", actions=[{"id": "a0", "state": "Succeeded"}])
    rig.workflow("w")
    assert await there.calm() == [("start", "uid-good"), ("start", "uid-w")]


@pytest.mark.parametrize("rendered", ["text", {"env": 5}, {"env": {"A": 1}, "args": 5}, {"volumes": True}])
@pytest.mark.parametrize("state", ["Pending", "Scheduled"])
async def test_actions_that_no_message_can_be_made_of_are_named_and_hold_up_nobody(
    rig: Any, side: Make, caplog: pytest.LogCaptureFixture, rendered: Any, state: str
) -> None:
    rig.workflow(state=state, actions=[{"id": "a0", "rendered": rendered}])
    rig.workflow("good", created=1)
    there = side()
    assert await there.calm() == [("start", "uid-good")]
    said = [record.getMessage() for record in caplog.records if "d/w" in record.getMessage()]
    assert len(said) == 1, said
    assert "Workflow d/w: status.actions[0] can't be sent" in said[0]
    assert rig.state() == state, "nobody claimed it"


async def test_a_broken_workflow_that_goes_away_harms_nobody(rig: Any, side: Make) -> None:
    rig.workflow(state="Running")
    there = side("uid-w")
    await there.calm()
    rig.set_state("w", "Odd")
    await there.calm()
    rig.workflows.remove("d", "w")
    rig.workflow("next")
    assert await there.calm() == [("start", "uid-next")]


def test_an_agent_that_holds_more_than_it_can_say_loses_nothing() -> None:
    """A list that was cut off would make a loss of what runs."""
    held = [(metadata.WORKFLOW, f"u{number}") for number in range(MAX_HELD)]
    assert hello_of(held).holds is None
    assert hello_of([*held, *held]).holds is None
    assert hello_of(held[1:]).holds == frozenset(uid for _, uid in held[1:])
    assert hello_of([(metadata.WORKFLOW, "")]).holds == frozenset()
    assert hello_of([("other", "u")]).holds is None


# --- over the network ---------------------------------------------------------------------------------------------


async def test_the_server_reads_what_an_agent_holds_from_its_call(rig: Any) -> None:
    await rig.start()
    rig.machine()
    rig.workflow(state="Running")
    faithful = rig.agent()
    await faithful.accepted(holds=("uid-w",))
    assert await faithful.silent()
    assert rig.state() == "Running"
    await faithful.channel.close()
    forgetful = rig.agent()
    await forgetful.accepted(holds=())
    await until(lambda: rig.state() == "Failed")
    await until(lambda: rig.seen[-1].message == "agent came back without workflow d/w, which is Failed")


async def test_an_agent_that_publishes_for_a_workflow_that_is_over_is_told_to_stop(rig: Any, started: Any) -> None:
    await rig.start()
    rig.machine()
    rig.workflow(state="Failed", conditions=OVER)
    agent = rig.agent()
    await agent.accepted()
    await agent.publish(started("a1"))
    assert await agent.command() == ("stop", "uid-w")
    assert rig.state() == "Failed"


async def test_an_agent_that_publishes_everything_at_once_is_told_to_do_so_one_after_the_other(
    rig: Any, started: Any
) -> None:
    await rig.start()
    rig.machine()
    rig.workflow(state="Scheduled")
    rig.api.gate = asyncio.Event()
    agent = rig.agent()
    calls = [asyncio.ensure_future(agent.publish(started("a0"))) for _ in range(40)]
    await until(lambda: sum(call.done() for call in calls) == 24)
    rig.api.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {refusal.code() for refusal in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(refusals) == 24
    assert rig.api.patches == 1
