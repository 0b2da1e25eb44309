"""What a simulated agent sends again, and when: as much as a real one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge.fleet.machines import agent
from edge.fleet.machines.agent import WINDOW, Agent
from edge.fleet.machines.machine import Machine
from proto import workflow_pb2 as pb
from tink.agent import AgentSettings
from tink.agent.connection import transport

UNAVAILABLE, CANCELLED, NOT_FOUND = 14, 1, 5
PUBLISH, STREAM = "PublishEvent", "GetWorkflows"


class Call:
    def __init__(self, method: str, message: bytes, call: Any) -> None:
        self.method = method
        self.call = call
        self.action = ""
        if method == PUBLISH:
            self.action = pb.PublishEventRequest.FromString(message).event.action_started.action_id

    def end(self, status: int) -> None:
        self.call.ended(status, "")


class Channel:
    is_open = True

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def call(self, method: bytes, messages: tuple[bytes, ...], _fields: object, call: Any) -> None:
        self.calls.append(Call(method.decode().rpartition("/")[2], messages[0], call))

    def taken(self, method: str = PUBLISH) -> list[Call]:
        found = [call for call in self.calls if call.method == method]
        self.calls = [call for call in self.calls if call.method != method]
        return found


class Timer:
    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds = seconds
        self.fire = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def time(self) -> float:
        return 0.0

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(seconds, lambda: call(*arguments))
        self.timers.append(timer)
        return timer

    def due(self) -> list[float]:
        """Fire what waits; give after how many seconds."""
        timers, self.timers = [timer for timer in self.timers if not timer.is_cancelled], []
        for timer in timers:
            timer.fire()
        return [timer.seconds for timer in timers]


class Recorder:
    events = 0

    def took(self, *_: object) -> None:
        pass


class Surroundings:
    recorder = Recorder()
    profile = SimpleNamespace(patience=60.0)


class Owner:
    around = Surroundings()
    was_cut = False

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, text: str) -> None:
        self.errors.append(text)


class Rig:
    def __init__(self) -> None:
        self.owner, self.loop, self.channel = Owner(), Loop(), Channel()
        self.agent = Agent(cast(Machine, self.owner), AgentSettings(server="192.0.2.1:42113", agent_id="m"))
        self.agent._loop = cast(Any, self.loop)
        self.agent._channel = cast(Any, self.channel)

    def publish(self, *actions: str) -> None:
        for action in actions:
            started = pb.Event.ActionStarted(action_id=action)
            self.agent._publish(pb.Event(workflow_id="w", action_started=started))


@pytest.fixture
async def rig():
    return Rig()


async def test_event_that_is_not_taken_comes_again_after_pauses_that_grow(rig):
    rig.publish("a")
    pauses = []
    for _ in range(9):
        (call,) = rig.channel.taken()
        call.end(CANCELLED)
        assert not rig.channel.taken(), "it waits"
        pauses += rig.loop.due()
    longest = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True)), pauses
    rig.channel.taken()[0].end(0)
    assert not rig.agent._events


async def test_refusal_is_asked_again_slowly(rig):
    rig.publish("a")
    rig.channel.taken()[0].end(NOT_FOUND)
    assert rig.loop.due() == [10.0]


async def test_of_events_that_were_not_taken_only_the_oldest_comes_again(rig):
    rig.publish("a", "b", "c")
    for call in rig.channel.taken():
        call.end(UNAVAILABLE)
    rig.loop.due()
    (oldest,) = rig.channel.taken()
    assert oldest.action == "a"
    oldest.end(0)
    assert [call.action for call in rig.channel.taken()] == ["b"]


async def test_what_others_of_the_window_wait_for_does_not_stop_it(rig):
    rig.publish(*"abcdefghijkl")
    calls = rig.channel.taken()
    assert len(calls) == WINDOW
    calls[0].end(0)
    assert [call.action for call in rig.channel.taken()] == ["i"]
    calls[2].end(UNAVAILABLE)
    calls[1].end(0)
    assert [call.action for call in rig.channel.taken()] == ["j"]
    rig.loop.due()
    assert [call.action for call in rig.channel.taken()] == ["c"], "it is the oldest by now"


async def test_agent_waits_for_all_before_an_event_too(rig):
    rig.publish("a", "b")
    first, last = rig.channel.taken()
    waiting = asyncio.ensure_future(rig.agent._acknowledged(rig.agent._events[-1]))
    await asyncio.sleep(0)
    first.end(CANCELLED)
    last.end(0)
    await asyncio.sleep(0.02)
    assert not waiting.done()
    rig.loop.due()
    rig.channel.taken()[0].end(0)
    await waiting


def test_pauses_are_those_of_real_agents():
    policy = transport.RetryPolicy()
    assert (policy.initial_backoff, policy.max_backoff) == (agent._FIRST_PAUSE_SECONDS, agent._LONGEST_PAUSE_SECONDS)
    assert (policy.refused_backoff, transport.WINDOW) == (agent._REFUSED_SECONDS, WINDOW)


async def test_stream_is_opened_once_where_a_connection_comes_before_its_pause_ends(rig):
    rig.agent._open_stream()
    rig.channel.taken(STREAM)[0].end(UNAVAILABLE)
    rig.agent._connected()
    assert len(rig.channel.taken(STREAM)) == 1
    assert rig.loop.due() == []
    assert not rig.channel.taken(STREAM)
