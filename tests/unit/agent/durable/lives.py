"""The world that outlives an agent, and the lives of agents in it, for the tests of what survives a `kill -9`.

The agent, its journal and its spool are the real ones; disk, runtime and server are the test's. Every call to them is a
step at which the agent may die, before it was carried out, half-way (a torn write), or after.
"""

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest

from tink.agent.agent import Agent
from tink.agent.durable.journal import Journal
from tink.agent.durable.spool import Spool
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowRejected,
)

STATE = Path("/state")


class Died(BaseException):
    """kill -9"""


class World:
    """What outlives an agent. `kills` are the numbers of the steps at which one dies; odd ones tear a write. At the
    steps of `full` the disk is, and in the turns of `away` the server."""

    def __init__(self, kills=(), *, full=(), away=(), actions=3, engine=False, stop_at=None):
        self.kills, self.full, self.away = set(kills), full, away
        self.turns = 0
        self.engine = engine  # the runtime knows how an action ended whose agent died
        self.stop_at = stop_at
        self.steps = 0
        self.dead = False
        self.boot = "boot-1"
        self.reachable = True
        self.files = {}
        self.workflow = Workflow("w", tuple(Action(f"a{index}", f"act{index}", "img") for index in range(actions)))
        self.runs = Counter()
        self.ran = []
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

    def check(self, action):
        self.step()

    async def run(self, action, stop):
        self.step()
        self.runs[action.id] += 1
        self.ran.append(action)
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

    @property
    def there(self):
        """Whether the server can be reached."""
        return self.reachable and self.turns not in self.away

    def connect(self, agent):
        if "w" not in agent.held_workflows():
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
        told = asyncio.create_task(agent.lost_is_reported())
        for _ in range(2000):
            await asyncio.sleep(0)
            world.turns += 1
            if world.dead:
                return False
            if not connected and told.done() and world.there:
                world.step()
                connected = True
                world.connect(agent)
            elif world.stop_at is not None and world.steps >= world.stop_at and world.state == "Running" and connected:
                world.stop_at = None
                agent.handle(StopWorkflow("w"))
            elif len(spool) and world.there:
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


async def restart(world, *, disk=None, **more):
    """The next agent, and its spool."""
    journal = Journal(STATE, world.boot, disk or MemoryDisk(world))
    restored = journal.restore()
    spool = Spool(restored.pending)
    agent = Agent(world, spool, journal=journal, restored=restored, **more)
    await agent.prepare()
    return agent, spool


async def settle_all(spool):
    while len(spool):
        number, _ = await spool.head()
        spool.settle(number, delivered=True)
        await asyncio.sleep(0)
