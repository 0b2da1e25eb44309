"""The world that outlives an agent: its disk, the runtime of its actions, and the server.

The agent, its journal and its spool are the real ones. Every call to disk, runtime and server is a step at which the
agent may die: before it was carried out, half-way (a torn write), or after.
"""

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest

from tests.support.virtual_time import turns
from tink.agent.agent import Agent
from tink.agent.journal import Journal
from tink.agent.model import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RenderedAction,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowRejected,
)

STATE = Path("/state")
HANG, DEAF = "until it is stopped", "for ever"


class Died(BaseException):
    """kill -9"""


def workflow(*names, workflow_id="w", image="img"):
    return Workflow(workflow_id, tuple(RenderedAction(f"id-{name}", name, image) for name in names))


class World:
    """A machine and its server. `kills` are the steps at which the agent dies; odd ones tear a write.

    The disk is full at the steps of `full`; the server is away in the turns of `away`. With `engine` the runtime knows
    how an action ended whose agent died. `ends` scripts the runtime: {"run one": a result, an exception, HANG, DEAF or
    a function}; the keys are the entries of `calls`.
    """

    def __init__(self, kills=(), *, full=(), away=(), actions=3, engine=False, stop_at=None, ends=None):
        self.kills, self.full, self.away = set(kills), full, away
        self.engine, self.stop_at, self.ends = engine, stop_at, ends or {}
        self.turns = self.steps = 0
        self.dead = False
        self.boot = "boot-1"
        self.reachable = True
        self.files = {}
        self.workflow = workflow(*("one", "two", "three")[:actions])
        self.calls, self.ran, self.runs = [], [], Counter()
        self.events, self.state, self.action_states = [], "Scheduled", {}

    def step(self):
        """Die here if the step is one of `kills`; a dead agent does nothing more."""
        self.steps += 1
        if self.dead or self.steps in self.kills:
            self.die()

    def die(self):
        self.dead = True
        raise Died

    # the runtime

    async def prepare(self, held=""):
        self.step()
        self.held = held

    async def pull(self, image, stop):
        self.step()
        await self._scripted(f"pull {image}", stop)

    def check(self, action):
        self.step()
        self.calls.append(f"check {action.name}")
        if isinstance(end := self.ends.get(self.calls[-1]), Exception):
            raise end

    async def run(self, action, stop):
        self.step()
        self.runs[action.name] += 1
        self.ran.append(action)
        self.step()
        await turns()
        result = await self._scripted(f"run {action.name}", stop)
        if stop.is_set():
            return RunResult(143, "NonZeroExit", "exit code 143")
        self.step()
        return result or RunResult(0)

    async def resume(self, action, stop):
        assert self.held == action.id, "what is to be asked back must not be cleared away first"
        self.step()
        known = RunResult(0) if self.engine and self.runs[action.name] else None
        return await self._scripted(f"resume {action.name}", stop) or known

    async def _scripted(self, call, stop):
        self.calls.append(call)
        end = self.ends.get(call)
        if callable(end):
            end = end()
        if isinstance(end, BaseException):
            raise end
        if end == DEAF:
            await asyncio.Future()
        if end != HANG:
            return end
        await stop.wait()
        self.calls.append(f"stopped {call}")
        return RunResult(143, "NonZeroExit", "exit code 143")

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
            case WorkflowRejected(reason="AlreadyFinished"):
                self.state = "Failed NotStarted"  # after many repetitions
            case WorkflowRejected(reason="UnknownWorkflow"):
                self.state = "Canceled"

    @property
    def is_there(self):
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


async def restart(world, *, disk=None, **more):
    """Start the next agent; return it and its spool."""
    journal = Journal(STATE, world.boot, disk or MemoryDisk(world))
    agent = Agent(world, journal, **more)
    await agent.prepare()
    return agent, agent.spool


async def kill():
    """End all that the agent of this loop does, as `kill -9`; a program that it has started is waited for."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__.startswith("Agent.")]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def taken(spool, count):
    """Acknowledge the next `count` events as a server would, and return them."""
    events = []
    for _ in range(count):
        number, event = await spool.head()
        events.append(event)
        spool.settle(number, delivered=True)
    await turns(30)
    return events


async def take_all(spool, *, delivered=True):
    """Acknowledge, or refuse for good, what comes until the agent reports nothing more."""
    await turns(30)
    while len(spool):
        number, _ = await spool.head()
        spool.settle(number, delivered=delivered)
        await turns(30)


async def life(world):
    """Run one agent to its death (False), or until there is nothing more to do (True)."""
    world.dead = False
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    try:
        agent, spool = await restart(world)
        connected = False
        reported = asyncio.create_task(agent.lost_is_reported())
        for _ in range(2000):
            await turns()
            world.turns += 1
            if world.dead:
                return False
            if not connected and reported.done() and world.is_there:
                world.step()
                connected = True
                world.connect(agent)
            elif world.stop_at is not None and world.steps >= world.stop_at and world.state == "Running" and connected:
                world.stop_at = None
                agent.handle(StopWorkflow("w"))
            elif len(spool) and world.is_there:
                number, event = await spool.head()
                world.step()
                world.take(event)
                world.step()
                spool.settle(number, delivered=True)
            elif agent.is_idle and world.state not in ("Scheduled", "Running"):
                return True
        pytest.fail(f"stuck: {world.state} {agent.progress} {world.events}")
    except Died:
        return False
    finally:
        world.dead = True
        await kill()


def lives(world):
    """Start agents until one has nothing more to do; return how many that took."""

    async def all_of_them():
        for number in range(1, 100):
            if await life(world):
                return number
        return pytest.fail("it never ends")

    return asyncio.run(all_of_them())


def check(world):
    """Assert that no action ran twice, none was left out before a success, and that they were in order."""
    names = [action.name for action in world.workflow.actions]
    assert all(count == 1 for count in world.runs.values()), f"run twice: {world.runs}"
    if world.state == "Succeeded":
        assert set(world.runs) == set(names)
    order = [event.action_id for event in world.events if isinstance(event, ActionStarted)]
    assert sorted(set(order), key=order.index) == [f"id-{name}" for name in names[: len(set(order))]]
