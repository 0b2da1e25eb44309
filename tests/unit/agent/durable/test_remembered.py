"""What an action waits for before it begins: that somebody will know of it, whatever becomes of the agent."""

import asyncio
import errno

import pytest

import tink.agent.agent as agent_module
from tests.unit.agent.durable.lives import STATE, MemoryDisk, World, lives, restart, settle_all
from tests.waiting import until
from tink.agent.durable.journal import Journal
from tink.agent.executor import REMEMBERED_WORKFLOWS, Progress
from tink.agent.model import (
    Action,
    ActionError,
    ActionFailed,
    ActionStarted,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)


async def test_last_action_waits_until_the_server_knows_of_it(monkeypatch, caplog):
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 60.0)
    world = World(actions=2)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: len(spool) == 2)
    await asyncio.sleep(0.05)
    assert world.runs == {"a0": 1}
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    assert world.runs == {"a0": 1, "a1": 1}
    assert "heard of it" not in caplog.text, "a server that answers is no news"
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody goes on waiting"
    await agent.close()


async def test_last_action_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.05)
    world = World(actions=3)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: len(world.runs) == 3)
    assert "action act2 begins although the server has not heard of it" in caplog.text
    assert "act1 begins" not in caplog.text, "the one in the middle need not be known"
    await until(lambda: not agent._tasks)
    await agent.close()


@pytest.mark.parametrize("actions", [1, 2])
async def test_first_action_waits_until_the_server_knows_of_it_for_as_long_as_it_takes(monkeypatch, caplog, actions):
    """A machine that restarts and forgets would be sent the Workflow again."""
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.02)
    world = World(actions=actions)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: "does not begin before" in caplog.text)
    await asyncio.sleep(0.1)
    assert not world.runs
    assert "action act0 does not begin before the server has heard of it" in caplog.text
    await settle_all(spool)
    await until(lambda: world.runs)
    await agent.close()


async def test_agent_that_is_started_again_before_the_first_action_waits_for_the_same(monkeypatch):
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.02)
    world = World()
    agent, _ = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    for task in agent._tasks:
        task.cancel()
    agent, spool = await restart(world)
    await asyncio.sleep(0.1)
    assert not world.runs
    await settle_all(spool)
    await until(lambda: world.runs)
    await agent.close()


@pytest.mark.parametrize("actions", [1, 2])
async def test_workflow_whose_first_action_the_server_refuses_is_not_begun(actions):
    """It is gone, or another machine's: its event is dropped after a while."""
    world = World(actions=actions)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    number, _ = await spool.head()
    spool.settle(number, delivered=False)
    await until(lambda: not agent._tasks)
    assert not world.runs
    failed = spool.pending[-1][1]
    assert (failed.action_id, failed.reason) == ("a0", "RuntimeError")
    assert "act0 was not begun" in failed.message


async def test_stop_while_the_last_action_waits_runs_nothing(monkeypatch, caplog):
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 60.0)
    world = World(actions=1)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await asyncio.sleep(0.05)
    agent.handle(StopWorkflow("w"))
    await until(lambda: not agent._tasks)
    assert not world.runs
    assert spool.pending[-1][1].reason == "Canceled"
    assert "heard of it" not in caplog.text
    await agent.close()


async def test_action_that_is_stopped_before_it_begins_never_counts_as_begun():
    """An agent that died in that moment would say that nobody knows how it ended."""
    world, begun = World(actions=2), []
    agent, spool = await restart(world)
    agent._executor.action_begins = lambda: begun.append(1)
    agent.handle(StartWorkflow(world.workflow))
    agent.handle(StopWorkflow("w"))
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    assert not begun
    assert not world.runs


async def test_action_whose_image_can_not_be_had_leaves_nobody_waiting_for_the_server():
    world = World(actions=1)

    async def pull(image, stop):
        await asyncio.sleep(0)
        raise ActionError("ImagePullFailed", "no such image")

    world.pull = pull
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: not agent._tasks)
    assert spool.pending[-1][1].reason == "ImagePullFailed"
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


@pytest.fixture
def impatient(monkeypatch):
    """The server has been away for longer than anything waits for it."""
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.01)


def from_the_second_action_on(world, call):
    """Have `call` called when the second action is about to begin."""
    real = world.pull

    async def pull(image, stop):
        if world.runs:
            call()
        await real(image, stop)

    world.pull = pull


class Full(MemoryDisk):
    """While `world.filled`, no file can grow."""

    def write(self, descriptor, content, offset):
        if self.world.filled and offset + len(content) > len(self.descriptors[descriptor]):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, content, offset)


async def begun_on_a_disk_that_fills(world):
    """An agent that finds no more room when the second action is to begin, at a server that hears of the first only."""
    world.filled = False
    from_the_second_action_on(world, lambda: setattr(world, "filled", True))
    agent, spool = await restart(world, disk=Full(world))
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: not agent._journal.durable)
    await asyncio.sleep(0.05)
    assert world.runs == {"a0": 1}
    assert len(spool) == 2
    return agent, spool


async def test_action_whose_start_is_kept_neither_on_disk_nor_at_the_server_begins_when_there_is_room_again(impatient):
    world = World(actions=3)
    agent, spool = await begun_on_a_disk_that_fills(world)
    world.filled = False
    await until(lambda: world.runs["a1"])
    assert len(spool), "the server has heard nothing"
    await agent.close()


async def test_it_begins_when_the_server_has_heard_of_it(impatient):
    world = World(actions=3)
    agent, spool = await begun_on_a_disk_that_fills(world)
    await settle_all(spool)
    await until(lambda: world.runs["a1"])
    assert not agent._journal.durable
    await agent.close()


async def test_it_fails_when_the_server_refuses_to_hear_of_it(impatient):
    world = World(actions=3)
    agent, spool = await begun_on_a_disk_that_fills(world)
    while len(spool) and not agent._executor.progress.ended:
        number, _ = await spool.head()
        spool.settle(number, delivered=False)
        await asyncio.sleep(0.01)
    await until(lambda: agent._executor.progress.ended)
    assert world.runs == {"a0": 1}


async def test_action_that_waits_for_room_can_be_stopped(impatient):
    world = World(actions=3)
    agent, spool = await begun_on_a_disk_that_fills(world)
    agent.handle(StopWorkflow("w"))
    await until(lambda: not agent._tasks)
    assert spool.pending[-1][1].reason == "Canceled"
    assert world.runs == {"a0": 1}


async def test_full_disk_an_absent_server_and_a_death_run_nothing_twice(impatient):
    """Nobody knows of the action: what is left of the agent says nothing, and the server sends the Workflow again."""
    world = World(actions=1)
    world.filled, world.reachable = True, False
    agent, _ = await restart(world, disk=Full(world))
    agent.handle(StartWorkflow(world.workflow))
    await asyncio.sleep(0.1)
    for task in agent._tasks:
        task.cancel()
    world.reachable = True
    await asyncio.to_thread(lives, world)
    assert world.runs == {"a0": 1}
    assert world.state == "Succeeded"


class ReadOnly(MemoryDisk):
    """From `world.broken` on nothing can be changed any more, not even marked."""

    def open(self, path, *, new):
        if self.world.broken:
            raise OSError(errno.EROFS, "Read-only file system")
        return super().open(path, new=new)

    def write(self, descriptor, content, offset):
        if self.world.broken:
            raise OSError(errno.EROFS, "Read-only file system")
        return super().write(descriptor, content, offset)


async def begun_on(world):
    """An agent whose disk becomes read-only before the second action begins; the server hears everything."""
    world.broken = False
    from_the_second_action_on(world, lambda: setattr(world, "broken", True))
    agent, spool = await restart(world, disk=ReadOnly(world))
    agent.handle(StartWorkflow(world.workflow))
    return agent, spool


async def test_action_is_not_begun_while_what_is_on_disk_would_have_it_run_again():
    """The journal still says that it has not begun, and can't be changed."""
    world = World(actions=3)
    agent, spool = await begun_on(world)
    await settle_all(spool)
    await until(lambda: world.runs)
    for _ in range(20):
        await settle_all(spool)
        await asyncio.sleep(0.01)
    await until(lambda: agent._executor.progress.ended)
    assert world.runs == {"a0": 1}
    assert agent._executor.progress.ended == {"w": "Failed"}
    assert agent._journal.stale


async def test_its_failure_says_what_is_wrong_and_what_to_look_at():
    world = World(actions=3)
    agent, spool = await begun_on(world)
    await settle_all(spool)
    await until(lambda: any(isinstance(event, ActionFailed) for _, event in spool.pending))
    failed = spool.pending[-1][1]
    assert (failed.action_id, failed.reason) == ("a1", "RuntimeError")
    assert "--state-dir" in failed.message
    await agent.close()


async def test_agent_that_finds_a_disk_that_it_can_not_write_does_not_go_on_with_what_stands_there():
    """It may be old: the agent before could not write there either."""
    world = World(actions=3)
    agent, _ = await begun_on(world)
    for task in agent._tasks:
        task.cancel()
    world.broken = True
    agent, _ = await restart(world, disk=ReadOnly(world))
    assert agent._executor.running is None
    assert "w" in agent._executor.progress.ended


async def test_disk_that_can_be_written_again_serves_the_next_workflow():
    world = World(actions=3)
    agent, spool = await begun_on(world)
    while not agent._executor.progress.ended:
        await settle_all(spool)
        await asyncio.sleep(0.01)
    world.broken = False
    world.pull = World.pull.__get__(world)
    agent.handle(StartWorkflow(Workflow("w2", (Action("b0", "other", "img"),))))
    await settle_all(spool)
    await until(lambda: world.runs["b0"])
    assert not agent._journal.stale
    await agent.close()


async def test_agent_that_finds_its_disk_full_goes_on_with_what_it_reads():
    """It was whole when it was read, and the mark that it is so no more can be set."""
    world = World(actions=3)
    world.filled = False
    agent, _ = await restart(world, disk=Full(world))
    agent.handle(StartWorkflow(world.workflow))
    for task in agent._tasks:
        task.cancel()
    world.filled = True
    agent, spool = await restart(world, disk=Full(world))
    assert agent._executor.running == "w"
    await settle_all(spool)
    await until(lambda: world.runs)
    await agent.close()


async def test_agent_that_dies_right_after_it_has_read_leaves_all_of_it_to_the_next():
    world = World(actions=3)
    agent, _ = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    for task in agent._tasks:
        task.cancel()
    first, second = (Journal(STATE, world.boot, MemoryDisk(world)).restore() for _ in range(2))
    assert first == second
    assert first.progress.workflow == world.workflow
    assert len(first.pending) == 1


async def test_what_was_lost_is_told_by_the_second_agent_that_finds_it_so_if_the_first_one_dies():
    """Before that neither may say that it does not hold the Workflow: the server would judge by less."""
    world = World(actions=3)
    agent, _ = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    for task in agent._tasks:
        task.cancel()
    for _ in range(2):
        restored = Journal(STATE, "the next boot", MemoryDisk(world)).restore()
        assert (restored.lost, restored.progress.workflow, len(restored.pending)) == ("w", None, 1)


async def test_disk_is_left_alone_while_nothing_changes():
    world = World(actions=1)
    agent, _ = await restart(world)
    agent._write()
    steps = world.steps
    agent._write()
    assert world.steps == steps


async def test_as_many_workflows_are_known_to_have_ended_after_a_restart_as_before():
    journal, progress = Journal(STATE, "boot", MemoryDisk(world := World())), Progress()
    for number in range(2 * REMEMBERED_WORKFLOWS):
        progress = progress.with_ended(f"w{number}", WorkflowOutcome.SUCCEEDED)
        journal.write(progress, ())
    restored = Journal(STATE, "boot", MemoryDisk(world)).restore()
    assert restored.progress.ended == progress.ended
    assert len(progress.ended) == REMEMBERED_WORKFLOWS


STARTED, FAILED = (ActionStarted("w", "a0"), ActionFailed("w", "a0", "R", "m"))
OTHER, ANSWER = (ActionStarted("w2", "a0"), WorkflowRejected("w", "AlreadyFinished", "m"))


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([STARTED], "w"),
        ([STARTED, FAILED], ""),
        ([STARTED, FAILED, ANSWER], ""),
        ([STARTED, FAILED, OTHER], "w2"),
        ([ANSWER], ""),
        ([ActionStarted("unknown", "a0")], ""),
    ],
)
async def test_workflow_whose_end_an_agent_had_not_found_out_is_the_one_that_it_still_has_to_tell_of(events, lost):
    ended = Progress().with_ended("w", WorkflowOutcome.FAILED).with_ended("w2", WorkflowOutcome.FAILED)
    journal = Journal(STATE, "boot", MemoryDisk(world := World()))
    journal.write(ended, list(enumerate(events, 1)))
    assert Journal(STATE, "boot", MemoryDisk(world)).restore().lost == lost
