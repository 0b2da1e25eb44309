"""What an action waits for before it begins: that somebody will know of it, whatever becomes of the agent."""

import asyncio
import errno

import pytest

import tink.agent.agent as agent_module
from tests.unit.agent.lives import MemoryDisk, World, lives, restart, settle_all, until
from tink.agent.model import Action, ActionFailed, StartWorkflow, StopWorkflow, Workflow


async def test_last_action_waits_until_the_server_knows_of_it(monkeypatch):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 60.0)
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
    await agent.close()


async def test_last_action_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 0.05)
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
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 0.02)
    world = World(actions=actions)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await asyncio.sleep(0.1)
    assert not world.runs
    assert "action act0 does not begin before the server has heard of it" in caplog.text
    await settle_all(spool)
    await until(lambda: world.runs)
    await agent.close()


async def test_agent_that_is_started_again_before_the_first_action_waits_for_the_same(monkeypatch):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 0.02)
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


async def test_stop_while_the_last_action_waits_runs_nothing(monkeypatch):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 60.0)
    world = World(actions=1)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await asyncio.sleep(0.05)
    agent.handle(StopWorkflow("w"))
    await until(lambda: not agent._tasks)
    assert not world.runs
    assert spool.pending[-1][1].reason == "Canceled"
    await agent.close()


@pytest.fixture
def impatient(monkeypatch):
    """The server has been away for longer than anything waits for it."""
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 0.01)


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
    await until(lambda: not agent._journal.kept)
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
    assert not agent._journal.kept
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
    assert world.runs == {"a0": 1}
    assert agent._executor.progress.ended == {"w": "Failed"}
    assert agent._journal.misleads


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
    assert not agent._journal.misleads
    await agent.close()
