"""An agent that dies and is started again, anywhere, any number of times: nothing runs twice, nothing is left open.

The agent, its journal and its spool are the real ones; disk, runtime and server are the test's, and outlive the agent.
Every call to them is a step at which the agent may die, before it was carried out, half-way (a torn write), or after.
"""

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tink.agent.agent as agent_module
from tink.agent.agent import Agent
from tink.agent.executor import Progress
from tink.agent.journal import Journal
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
    WorkflowRejected,
)
from tink.agent.spool import Spool

STATE = Path("/state")


class Died(BaseException):
    """kill -9"""


class World:
    """What outlives an agent. `kills` are the numbers of the steps at which one dies; odd ones tear a write."""

    def __init__(self, kills=(), *, full=(), actions=3, engine=False, stop_at=None):
        self.kills, self.full = set(kills), set(full)
        self.engine = engine  # the runtime knows how an action ended whose agent died
        self.stop_at = stop_at
        self.steps = 0
        self.dead = False
        self.boot = "boot-1"
        self.reachable = True
        self.files = {}
        self.workflow = Workflow("w", tuple(Action(f"a{index}", f"act{index}", "img") for index in range(actions)))
        self.runs = Counter()
        self.ended = set()
        self.after = 0
        self.events = []
        self.state = "Scheduled"
        self.action_states = {}

    def step(self):
        """Die here, if it is time; a dead agent does nothing more."""
        self.steps += 1
        if self.dead or self.steps in self.kills:
            self.dead = True
            raise Died

    # the runtime

    async def prepare(self, held=""):
        self.step()
        self.held = held

    async def pull(self, image, stop):
        self.step()

    async def run(self, action, stop):
        self.step()
        self.runs[action.id] += 1
        self.step()
        await asyncio.sleep(0)
        if stop.is_set():
            return RunResult(143, "NonZeroExit", "exit code 143")
        self.ended.add(action.id)
        self.step()
        return RunResult(0)

    async def resume(self, action, stop):
        assert self.held == action.id, "what is to be asked back must not be cleared away first"
        self.step()
        return RunResult(0) if self.engine and self.runs[action.id] else None

    # the server

    def take(self, event):
        self.events.append(event)
        if self.state not in ("Scheduled", "Running"):
            return  # terminal states are immutable
        match event:
            case ActionStarted():
                self.state = "Running"
                self.action_states[event.action_id] = "Running"
            case ActionSucceeded():
                self.action_states[event.action_id] = "Succeeded"
                if event.action_id == self.workflow.actions[-1].id:
                    self.state = "Succeeded"
            case ActionFailed():
                self.state = "Canceled" if event.reason == "Canceled" else f"Failed {event.reason}"
            case WorkflowRejected():
                if event.reason == "AlreadyFinished":
                    self.state = "Failed NotStarted"  # after many repetitions
                elif event.reason == "UnknownWorkflow":
                    self.state = "Canceled"

    def connect(self, agent):
        if "w" not in agent.holds():
            if self.state == "Running":
                self.state = "Failed AgentLost"
            elif self.state == "Scheduled":
                agent.handle(StartWorkflow(self.workflow))


class MemoryDisk:
    """Files in `world`. A kill in a write leaves half of it; a step in `world.full` fails."""

    def __init__(self, world):
        self.world = world
        self.descriptors = {}

    def _step(self):
        self.world.step()
        if self.world.steps in self.world.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def read(self, path, limit):
        if path not in self.world.files:
            raise FileNotFoundError(path)
        return bytes(self.world.files[path][:limit])

    def open(self, path, *, new):
        self._step()
        if new or path not in self.world.files:
            self.world.files[path] = bytearray()
        descriptor = len(self.descriptors)
        self.descriptors[descriptor] = self.world.files[path]
        return descriptor

    def write(self, descriptor, content, offset):
        file = self.descriptors[descriptor]
        try:
            self._step()
        except Died:
            if self.world.steps % 2:
                file[offset : offset + len(content) // 2] = content[: len(content) // 2]
            raise
        except OSError:
            file[offset : offset + 5] = content[:5]
            raise
        file[offset : offset + len(content)] = content
        return len(content)

    def sync(self, descriptor):
        self._step()

    def close(self, descriptor):
        del self.descriptors[descriptor]

    def replace(self, new, path):
        self._step()
        self.world.files[path] = self.world.files.pop(new)


async def life(world):
    """One agent, from its start to its death, or until there is nothing more to do (then True)."""
    world.dead = False
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    agent = told = None
    try:
        journal = Journal(STATE, world.boot, MemoryDisk(world))
        restored = journal.restore()
        spool = Spool(restored.pending)
        agent = Agent(world, spool, journal=journal, restored=restored)
        await agent.prepare()
        connected = False
        told = asyncio.create_task(agent.lost_is_told())
        for _ in range(2000):
            await asyncio.sleep(0)
            if world.dead:
                return False
            if not connected and told.done():
                world.step()
                connected = True
                world.connect(agent)
            elif world.stop_at is not None and world.steps >= world.stop_at and world.state == "Running" and connected:
                world.stop_at = None
                agent.handle(StopWorkflow("w"))
            elif len(spool) and world.reachable:
                number, event = await spool.head()
                world.step()
                world.take(event)
                world.step()
                spool.settle(number, delivered=True)
            elif not agent._tasks and world.state not in ("Scheduled", "Running"):
                return True
        pytest.fail(f"stuck: {world.state} {agent._executor.progress} {world.events}")
    except Died:
        return False
    finally:
        world.dead = True
        if agent is not None:
            left = [*agent._tasks, *([told] if told else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def lives(world):
    """As many agents as it takes. Gives how many."""

    async def all_of_them():
        for number in range(1, 100):
            if await life(world):
                return number
        return pytest.fail("it never ends")

    return asyncio.run(all_of_them())


def check(world):
    assert all(count == 1 for count in world.runs.values()), f"run twice: {world.runs}"
    if world.state == "Succeeded":
        assert set(world.runs) == {action.id for action in world.workflow.actions}
    order = [event.action_id for event in world.events if isinstance(event, ActionStarted)]
    assert sorted(set(order), key=order.index) == [action.id for action in world.workflow.actions][: len(set(order))]


@pytest.fixture(scope="module", autouse=True)
def impatience():
    """The publisher of these tests sleeps never; a second is long."""
    before, agent_module.KNOWN_WITHIN_SECONDS = agent_module.KNOWN_WITHIN_SECONDS, 1.0
    yield
    agent_module.KNOWN_WITHIN_SECONDS = before


def test_without_any_trouble_the_workflow_succeeds():
    world = World()
    assert lives(world) == 1
    assert world.state == "Succeeded"
    check(world)


STEPS = 60
"""More than a workflow of three actions takes."""


@pytest.mark.parametrize("engine", [False, True])
def test_one_death_anywhere_runs_nothing_twice_and_ends_the_workflow(engine):
    lost = []
    for kill in range(1, STEPS):
        world = World([kill], engine=engine)
        lives(world)
        check(world)
        assert world.state in ("Succeeded", "Failed AgentRestarted"), kill
        if world.state != "Succeeded":
            lost.append(kill)
    # For each action the steps between keeping that it begins and keeping how it ended, and no others.
    assert len(lost) <= 3 * (2 if engine else 5), lost


def test_death_between_actions_or_while_pulling_costs_nothing():
    """The journal says that the action has not begun: then it is run, once."""
    world = World()
    real = world.pull

    async def die_while_pulling(image, stop):
        world.pull = real
        world.dead = True
        raise Died

    world.pull = die_while_pulling
    assert lives(world) == 2
    assert world.state == "Succeeded"
    check(world)


def test_engine_that_knows_the_end_lets_the_workflow_go_on():
    world = World(engine=True)
    real = world.run

    async def die_while_running(action, stop):
        world.run = real
        world.runs[action.id] += 1
        world.dead = True
        raise Died

    world.run = die_while_running
    assert lives(world) == 2
    assert world.state == "Succeeded"
    assert len(world.runs) == 3
    check(world)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kills=st.sets(st.integers(1, 150), max_size=8),
    full=st.sets(st.integers(1, 150), max_size=6),
    engine=st.booleans(),
    stop_at=st.none() | st.integers(1, 60),
)
def test_any_deaths_and_any_failing_disk_run_nothing_twice_and_end_the_workflow(kills, full, engine, stop_at):
    world = World(kills, full=full, engine=engine, stop_at=stop_at)
    lives(world)
    check(world)
    assert world.state.split()[0] in ("Succeeded", "Failed", "Canceled")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kill=st.integers(1, STEPS), damage=st.data())
def test_damaged_journal_runs_nothing_twice(kill, damage):
    world = World([kill])

    async def story():
        if not await life(world) and (file := world.files.get(STATE / "journal")):
            position = damage.draw(st.integers(0, len(file) - 1))
            file[position] ^= damage.draw(st.integers(1, 255))
        while not await life(world):
            pass

    asyncio.run(story())
    check(world)


def test_machine_that_booted_since_does_not_say_that_it_holds_the_workflow():
    """The server then knows better: an action that reboots the machine has succeeded."""
    world = World(actions=1)

    async def reboot(action, stop):
        world.runs[action.id] += 1
        world.boot = "boot-2"
        world.dead = True
        raise Died

    world.run = reboot
    assert lives(world) == 2
    assert world.state == "Failed AgentLost"
    assert [type(event) for event in world.events] == [ActionStarted]
    check(world)


def test_what_a_rebooted_machine_had_still_to_tell_is_told_before_it_says_that_it_lost_the_workflow(monkeypatch):
    world = World(actions=2)
    world.reachable = False
    real = world.run

    async def reboot_in_the_second(action, stop):
        if action.id == "a0":
            return await real(action, stop)
        world.boot, world.reachable, world.dead = "boot-2", True, True
        raise Died

    world.run = reboot_in_the_second
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 0.0)
    lives(world)
    assert world.state == "Failed AgentLost"
    assert world.action_states == {"a0": "Succeeded", "a1": "Running"}


async def restart(world, **more):
    journal = Journal(STATE, world.boot, MemoryDisk(world))
    restored = journal.restore()
    spool = Spool(restored.pending)
    agent = Agent(world, spool, journal=journal, restored=restored, **more)
    await agent.prepare()
    return agent, spool


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not happen within 5 s")


async def settle_all(spool):
    while len(spool):
        number, _ = await spool.head()
        spool.settle(number, delivered=True)
        await asyncio.sleep(0)


async def test_sigterm_and_a_new_agent_report_the_action_as_failed():
    world = World()
    agent, spool = await restart(world)

    async def hang(action, stop):
        world.runs[action.id] += 1
        await stop.wait()
        return RunResult(143, "NonZeroExit", "exit code 143")

    world.run = hang
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: world.runs)
    await agent.close()
    assert [type(event) for _, event in spool.pending] == [ActionStarted], "SIGTERM reports nothing"
    agent, spool = await restart(world)
    await until(lambda: not agent._tasks)
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
    await until(lambda: agent._executor.progress.begun)
    await agent.close()
    await settle_all(spool)
    agent, spool = await restart(world)
    assert agent.holds() == ("w",)
    await until(lambda: not agent._tasks)
    assert [type(event) for _, event in spool.pending] == [ActionFailed]
    await agent.close()


async def test_stop_before_the_death_still_counts_after_it():
    world = World()
    agent, _ = await restart(world)

    async def deaf(action, stop):
        world.runs[action.id] += 1
        await asyncio.sleep(60)

    world.run = deaf
    agent.handle(StartWorkflow(world.workflow))
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
    agent, _ = await restart(world)

    async def deaf(action, stop):
        world.runs[action.id] += 1
        await asyncio.sleep(60)

    async def resume(action, stop):
        await stop.wait()
        return RunResult(137, "NonZeroExit", "exit code 137")

    world.run, world.resume = deaf, resume
    agent.handle(StartWorkflow(world.workflow))
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


async def test_last_action_waits_until_the_server_knows_of_it(monkeypatch):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 60.0)
    world = World(actions=2)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: len(spool) == 3)
    await asyncio.sleep(0.05)
    assert world.runs == {"a0": 1}, "only the last one waits"
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    assert world.runs == {"a0": 1, "a1": 1}
    await agent.close()


async def test_last_action_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 0.05)
    world = World(actions=1)
    agent, _ = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: not agent._tasks)
    assert world.runs == {"a0": 1}
    assert "begins although the server has not heard of it" in caplog.text
    await agent.close()


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


async def test_without_room_on_disk_every_action_waits_for_the_server(monkeypatch):
    monkeypatch.setattr(agent_module, "KNOWN_WITHIN_SECONDS", 60.0)
    world = World(full=range(1, 10_000), actions=2)
    agent, spool = await restart(world)
    agent.handle(StartWorkflow(world.workflow))
    await asyncio.sleep(0.05)
    assert not world.runs
    await settle_all(spool)
    await until(lambda: world.runs)
    await agent.close()


async def test_after_workflow_command_of_an_agent_that_died_is_run_by_the_next(tmp_path):
    world = World(actions=1)
    command = ("/bin/sh", "-c", f"echo once >>{tmp_path}/told")
    agent, spool = await restart(world, after_workflow=command)
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: len(spool) == 1)
    await settle_all(spool)
    await until(lambda: len(spool) == 1)
    for task in agent._tasks:
        task.cancel()
    agent, spool = await restart(world, after_workflow=command)
    agent.handle(StartWorkflow(Workflow("w2", world.workflow.actions)))
    assert spool.pending[-1][1].reason == "AlreadyRunning"
    await settle_all(spool)
    await until(lambda: not agent._tasks)
    assert (tmp_path / "told").read_text() == "once\n"
    await agent.close()
    agent, _ = await restart(world, after_workflow=command)
    assert not agent._tasks, "a machine whose state outlives its reboot would reboot for ever"
    assert agent._executor.progress.settling is None


async def test_command_that_an_agent_died_in_is_not_run_again():
    world = World(actions=1)
    agent, spool = await restart(world, after_workflow=("/bin/sleep", "60"))
    agent.handle(StartWorkflow(world.workflow))
    await until(lambda: len(spool) == 1)
    await settle_all(spool)
    await until(lambda: len(spool) == 1)
    await settle_all(spool)
    await until(lambda: agent._executor.progress.settling is not None and agent._executor.progress.settling.begun)
    for task in agent._tasks:
        task.cancel()
    await asyncio.gather(*agent._tasks, return_exceptions=True)
    agent, _ = await restart(world, after_workflow=("/bin/sleep", "60"))
    assert not agent._tasks
    assert agent._executor.progress.settling is None


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
    assert agent.holds() == ()
    agent.handle(StartWorkflow(world.workflow))
    assert spool.pending[-1][1].reason == "AlreadyFinished"
    assert agent.holds() == ("w",), "the server has not heard the answer yet"


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
    from tink.agent.ledger import WHOLE, line_of

    (tmp_path / "journal").write_bytes(WHOLE + line_of(record))
    journal = Journal(tmp_path, "boot")
    restored = journal.restore()
    assert restored.progress == Progress()
    assert "not one of this version" in caplog.text
    journal.close()
