"""An agent that is started again goes on where the one before it was: stories of what that one was at."""

import asyncio
from dataclasses import replace

import pytest

from tests.unit.agent.durable.lives import World, restart, settle_all
from tests.waiting import until
from tink.agent.durable.journal import Journal
from tink.agent.durable.ledger import file_of
from tink.agent.executor import Progress
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
)


async def die_at_the_end(agent, spool, workflow):
    """Run a workflow of one action, and die before the server knows that it has ended."""
    agent.handle(StartWorkflow(workflow))
    await until(lambda: len(spool) == 1)
    await settle_all(spool)
    await until(lambda: len(spool) == 1)
    for task in agent._tasks:
        task.cancel()


async def test_sigterm_and_a_new_agent_report_the_action_as_failed(caplog):
    caplog.set_level("INFO", "tink.agent.agent")
    world = World()
    agent, spool = await restart(world)

    async def hang(action, stop):
        world.runs[action.id] += 1
        await stop.wait()
        return RunResult(143, "NonZeroExit", "exit code 143")

    world.run = hang
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: world.runs)
    await agent.close()
    assert not len(spool), "SIGTERM reports nothing"
    assert "workflow w: action act0 begins: img" in caplog.messages
    caplog.clear()
    agent, spool = await restart(world)
    await until(lambda: not agent._tasks)
    assert "workflow w: action act0 had begun: what became of it is looked at: img" in caplog.messages
    assert "begins" not in caplog.text, "it is not run again"
    failed = spool.pending[-1][1]
    assert (failed.action_id, failed.reason) == ("a0", "AgentRestarted")
    assert "act0" in failed.message
    assert agent._executor.progress.ended == {"w": WorkflowOutcome.FAILED}
    await agent.close()


async def test_events_acknowledged_while_the_agent_closes_do_not_end_the_workflow_in_the_journal():
    world = World()
    agent, spool = await restart(world)

    async def hang(action, stop):
        await stop.wait()
        return RunResult(143, "NonZeroExit", "exit code 143")

    world.run = hang
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: agent._executor.progress.begun)
    agent._spool.append(ActionStarted("w", "another"))
    await agent.close()
    await settle_all(spool)
    agent, spool = await restart(world)
    assert agent.held_workflows() == ("w",)
    await until(lambda: not agent._tasks)
    assert [type(event) for _, event in spool.pending] == [ActionFailed]
    await agent.close()


async def test_stop_before_the_death_still_counts_after_it():
    world = World()
    agent, spool = await restart(world)

    async def deaf(action, stop):
        world.runs[action.id] += 1
        await asyncio.sleep(60)

    world.run = deaf
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: world.runs)
    agent.handle(StopWorkflow("w"))
    for task in agent._tasks:
        task.cancel()
    agent, spool = await restart(world)
    await until(lambda: not agent._tasks)
    assert spool.pending[-1][1].reason == "Canceled"
    assert world.runs == {"a0": 1}
    await agent.close()


async def test_stop_reaches_an_action_that_was_asked_back():
    world = World()
    agent, spool = await restart(world)

    async def deaf(action, stop):
        world.runs[action.id] += 1
        await asyncio.sleep(60)

    async def resume(action, stop):
        await stop.wait()
        return RunResult(137, "NonZeroExit", "exit code 137")

    world.run, world.resume = deaf, resume
    agent.handle(StartWorkflow(world.workflow))
    await settle_all(spool)
    await until(lambda: world.runs)
    for task in agent._tasks:
        task.cancel()
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    agent.handle(StopWorkflow("w"))
    agent.handle(StopWorkflow("w"))
    await until(lambda: not agent._tasks)
    assert [event.reason for _, event in spool.pending if isinstance(event, ActionFailed)] == ["Canceled"]
    await agent.close()


async def test_after_workflow_command_of_an_agent_that_died_is_run_by_the_next(tmp_path):
    world = World(actions=1)
    command = ("/bin/sh", "-c", f"echo once >>{tmp_path}/told")
    agent, spool = await restart(world, after_workflow=command)
    await die_at_the_end(agent, spool, world.workflow)
    agent, spool = await restart(world, after_workflow=command)
    agent.handle(StartWorkflow(Workflow("w2", world.workflow.actions)))
    assert spool.pending[-1][1].reason == "AlreadyRunning"
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    assert (tmp_path / "told").read_text() == "once\n"
    await agent.close()
    agent, _ = await restart(world, after_workflow=command)
    assert not agent._tasks, "a machine whose state outlives its reboot would reboot for ever"
    assert agent._executor.progress.after_workflow is None


async def test_what_an_agent_that_died_had_waiting_for_the_end_is_run_by_the_next_and_once_only():
    world = World(actions=1)
    waits = Action("a0", "restart", "x/waitdaemon", env={"IMAGE": "kexec", "A": "b"}, volumes=("/a:/b",))
    world.workflow = Workflow("w", (waits,))
    agent, spool = await restart(world)
    await die_at_the_end(agent, spool, world.workflow)
    assert not world.runs, "the server does not know the end yet"
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(Workflow("w2", world.workflow.actions)))
    assert spool.pending[-1][1].reason == "AlreadyRunning"
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    assert world.ran == [replace(waits, image="kexec", env={"A": "b"}, pid_namespace="host")]
    await agent.close()
    agent, _ = await restart(world)
    assert not agent._tasks
    await agent.close()


async def test_command_that_an_agent_died_in_is_not_run_again():
    world = World(actions=1)
    agent, spool = await restart(world, after_workflow=("/bin/sleep", "60"))
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: len(spool) == 1)
    await settle_all(spool)
    await until(lambda: len(spool) == 1)
    await settle_all(spool)
    await until(
        lambda: agent._executor.progress.after_workflow is not None and agent._executor.progress.after_workflow.begun
    )
    for task in agent._tasks:
        task.cancel()
    await asyncio.gather(*agent._tasks, return_exceptions=True)
    agent, _ = await restart(world, after_workflow=("/bin/sleep", "60"))
    assert not agent._tasks
    assert agent._executor.progress.after_workflow is None


async def test_everything_that_an_action_has_is_the_same_after_a_restart():
    world = World()
    world.workflow = Workflow(
        "w",
        (
            Action("a0", "act\udc80", "img", "cmd", ("a", "\n"), {"K": "v\u2028"}, ("/a:/b",), "host", "host"),
            Action("a1", "two", "img"),
        ),
    )

    async def die(image, stop):
        await asyncio.sleep(60)

    world.pull = die
    agent, _ = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    before = agent._executor.progress
    for task in agent._tasks:
        task.cancel()
    agent, _ = await restart(world)
    assert agent._executor.progress == before
    assert agent._executor.progress.workflow == world.workflow
    for task in agent._tasks:
        task.cancel()


async def test_ended_workflows_are_remembered_through_restarts():
    world = World(actions=1)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: not agent._tasks or len(spool))
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    await settle_all(spool)
    for _ in range(3):
        agent, spool = await restart(world)
    assert agent.held_workflows() == ()
    agent.handle(StartWorkflow(world.workflow))
    assert spool.pending[-1][1].reason == "AlreadyFinished"
    assert agent.held_workflows() == ("w",), "the server has not heard the answer yet"


@pytest.mark.parametrize(
    "record",
    [
        b"[]",
        b"{",
        b'"x"',
        b'{"at": [0, false]}',
        b'{"workflow": {"id": "w", "actions": []}}',
        b'{"workflow": {"id": "w", "actions": [{"id": "a", "name": "n", "image": "i"}]}, "at": [-1, true, false]}',
        b'{"workflow": {"id": "w", "actions": [{"nonsense": 1}]}}',
        b'{"events": [[1, "NoSuchEvent", {}]]}',
        b'{"events": [[1, "ActionStarted", {"x": 1}]]}',
        b'{"ended": {"w": "Exploded"}}',
        b'{"ended": 3}',
    ],
)
async def test_journal_of_another_version_is_told_and_begins_anew(tmp_path, record, caplog):
    (tmp_path / "journal").write_bytes(file_of([record])[0])
    journal = Journal(tmp_path, "boot")
    restored = journal.restore()
    assert restored.progress == Progress()
    assert "not one of this version" in caplog.text
    journal.close()
