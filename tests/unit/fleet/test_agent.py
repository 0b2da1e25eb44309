"""A simulated agent repeats requests as often as a real one."""

import asyncio
from types import SimpleNamespace

import pytest

from edge.fleet import agent as module
from edge.fleet.agent import WINDOW, Agent
from proto import workflow_pb2 as pb
from tests.support.virtual_time import elapse, turns
from tink.agent import AgentSettings
from tink.agent import connection as transport

pytestmark = pytest.mark.looptime

UNAVAILABLE, CANCELLED, NOT_FOUND = 14, 1, 5
PUBLISH, STREAM = "PublishEvent", "GetWorkflows"


class Channel:
    """A connection of the fleet's own gRPC, with calls that a test ends."""

    is_open = True

    def __init__(self):
        self.calls, self.arrived = [], asyncio.Event()

    def call(self, method, message, _fields, call):
        method, action = method.decode().rpartition("/")[2], ""
        if method == PUBLISH:
            action = pb.PublishEventRequest.FromString(message).event.action_started.action_id
        self.calls.append((method, action, lambda status: call.ended(status, "")))
        self.arrived.set()

    def taken(self, method=PUBLISH):
        """Take the calls that have come: their actions, and functions that end them."""
        found = [(action, end) for each, action, end in self.calls if each == method]
        self.calls = [call for call in self.calls if call[0] != method]
        self.arrived.clear()
        return found

    def actions(self):
        return "".join(action for action, _ in self.taken())

    async def pause(self):
        """Wait for the next call; return after how many seconds it came."""
        began = asyncio.get_running_loop().time()
        await self.arrived.wait()
        return asyncio.get_running_loop().time() - began


@pytest.fixture
async def channel():
    return Channel()


@pytest.fixture
async def agent(channel):
    around = SimpleNamespace(
        recorder=SimpleNamespace(events=0, took=lambda *_: None), profile=SimpleNamespace(patience=60.0)
    )
    machine = SimpleNamespace(around=around, was_cut=False, error=lambda _: None)
    made = Agent(machine, AgentSettings(server="192.0.2.1:42113", agent_id="m"))
    made._channel = channel
    return made


def publish(agent, actions):
    for action in actions:
        event = agent._publish(pb.Event(workflow_id="w", action_started=pb.Event.ActionStarted(action_id=action)))
    return event


async def test_event_that_is_not_taken_comes_again_after_pauses_that_grow(agent, channel):
    publish(agent, "a")
    for most in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10):
        [(_, end)] = channel.taken()
        end(CANCELLED)
        assert most / 2 <= await channel.pause() <= most
    [(_, end)] = channel.taken()
    end(NOT_FOUND)
    assert await channel.pause() == pytest.approx(10), "a refusal is asked again slowly"


async def test_what_others_of_the_window_wait_for_does_not_stop_it(agent, channel):
    publish(agent, "abcdefghijkl")
    ends = [end for _, end in channel.taken()]
    assert len(ends) == WINDOW
    ends[0](0)
    assert channel.actions() == "i"
    ends[2](UNAVAILABLE)
    ends[1](0)
    assert channel.actions() == "j"
    await channel.pause()
    assert channel.actions() == "c", "it is the oldest by now"


async def test_agent_waits_for_all_before_an_event_too(agent, channel):
    waiting = asyncio.create_task(agent._acknowledged(publish(agent, "ab")))
    (_, first), (_, last) = channel.taken()
    await turns()
    first(CANCELLED)
    last(0)
    await channel.pause()
    assert not waiting.done()
    [(_, again)] = channel.taken()
    again(0)
    await waiting


def test_pauses_are_those_of_real_agents():
    policy = transport.RetryPolicy()
    assert (policy.initial_backoff, policy.max_backoff) == (module._FIRST_PAUSE_SECONDS, module._LONGEST_PAUSE_SECONDS)
    assert (policy.refused_backoff, transport.WINDOW) == (module._REFUSED_SECONDS, WINDOW)


async def test_stream_is_opened_once_where_a_connection_comes_before_its_pause_ends(agent, channel):
    agent._open_stream()
    [(_, end)] = channel.taken(STREAM)
    end(UNAVAILABLE)
    agent._connected()
    assert len(channel.taken(STREAM)) == 1
    await elapse(60)
    assert not channel.taken(STREAM)
