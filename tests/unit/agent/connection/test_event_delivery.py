"""The agent's events on their way to a real gRPC server in this process: each until it is acknowledged, in order where
order matters, and none in the way of the next for longer than it must."""

import asyncio
import logging
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from tests.ports import free_port
from tests.unit.agent.connection.workflow_service import (
    FAST,
    Server,
    open_channel,
    serving,
    transporting,
)
from tests.waiting import until
from tink.agent.connection.transport import WINDOW, Transport
from tink.agent.durable.spool import Spool
from tink.agent.model import ActionFailed, ActionStarted, ActionSucceeded, WorkflowRejected
from tink.server.events import MAX_WAITING


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "tink.agent.connection.transport")
    with caplog.filtering(logging.Filter("tink")):  # asyncio has lines of its own, of grpc.aio's event loops
        yield caplog


async def test_event_is_sent_again_until_it_is_acknowledged():
    server, port, spool = Server(), free_port(), Spool()
    server.event_status = [(grpc.StatusCode.UNAVAILABLE, "no"), (grpc.StatusCode.INTERNAL, "no")]
    async with serving(server, port), transporting(port, spool, []):
        spool.append(ActionStarted("w", "a"))
        assert await asyncio.wait_for(spool.append(ActionSucceeded("w", "a")), 20) is True
    assert server.attempts == 4
    assert [event.WhichOneof("event") for event in server.events] == ["action_started", "action_succeeded"]


def pair(workflow="w1", other=None):
    return ActionSucceeded(workflow, "a1"), ActionStarted(other or workflow, "a2")


class Slow(Server):
    """Answers the events of `late` actions only when `go` is set."""

    def __init__(self, *late):
        super().__init__()
        self.late, self.go, self.seen = late, asyncio.Event(), []

    async def PublishEvent(self, request, context):  # noqa: N802
        event = getattr(request.event, request.event.WhichOneof("event"))
        self.seen.append(getattr(event, "action_id", "rejected"))
        if self.seen[-1] in self.late:
            await self.go.wait()
        return await super().PublishEvent(request, context)


async def test_the_end_of_an_action_and_the_start_of_the_next_go_together_and_the_first_is_settled_first():
    port, spool, server = free_port(), Spool(), Slow("a1")
    async with serving(server, port), transporting(port, spool, []):
        await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 20)
        server.seen.clear()
        server.events.clear()
        first, second = [spool.append(event) for event in pair()]
        await until(lambda: server.events)
        third = spool.append(ActionSucceeded("w1", "a2"))
        async with asyncio.timeout(20):
            while len(server.events) < 2:
                await asyncio.sleep(0.01)
        assert server.seen == ["a1", "a2", "a2"], "sent in order"
        assert not first.done()
        assert not second.done(), "it is known to the server, but what was before it is not"
        assert not third.done()
        assert len(spool) == 3
        server.go.set()
        assert await asyncio.wait_for(asyncio.gather(first, second, third), 20) == [True] * 3
        assert server.seen == ["a1", "a2", "a2"], "each once"


async def test_no_more_events_are_under_way_than_the_server_lets_wait_and_each_comes_once():
    port, spool, server = free_port(), Spool(), Slow("a0")
    names = [f"a{number}" for number in range(3 * WINDOW)]
    async with serving(server, port), transporting(port, spool, []):
        await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 20)
        server.seen.clear()
        taken = [spool.append(ActionStarted("w1", name)) for name in names]
        async with asyncio.timeout(20):
            while len(server.seen) < WINDOW:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert sorted(server.seen, key=names.index) == names[:WINDOW]
        server.go.set()
        assert await asyncio.wait_for(asyncio.gather(*taken), 20) == [True] * len(names)
        # gRPC hands out calls that came at once in any order; but none before there was room for it.
        assert sorted(server.seen, key=names.index) == names
        assert all(names.index(name) < place + WINDOW for place, name in enumerate(server.seen))
        await asyncio.wait_for(spool.append(ActionFailed("w1", "a3", "R", "m")), 20)


async def test_a_transport_that_ends_takes_what_it_had_under_way_along():
    port, spool, server = free_port(), Spool(), Slow("a1", "a2")
    async with serving(server, port):
        async with transporting(port, spool, []):
            await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 20)
            server.seen.clear()
            for event in pair():
                spool.append(event)
            async with asyncio.timeout(20):
                while len(server.seen) < 2:
                    await asyncio.sleep(0.01)
        server.go.set()
        spool.append(ActionSucceeded("w1", "a2"))
        assert len(spool) == 3, "they wait for the next transport"
        async with transporting(port, spool, []), asyncio.timeout(20):
            while len(spool):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "events",
    [
        pair("w1", "w2"),
        (ActionStarted("w1", "a1"), ActionStarted("w2", "a1"), ActionStarted("w1", "a2")),
        (ActionSucceeded("w1", "a1"), ActionFailed("w1", "a2", "R", "m"), ActionStarted("w1", "a3")),
        (ActionFailed("w1", "a1", "R", "m"), ActionStarted("w1", "a2")),
        (ActionSucceeded("w1", "a1"), ActionFailed("w1", "a2", "R", "m")),
        (ActionSucceeded("w1", "a1"), WorkflowRejected("w1", "AlreadyFinished", "m")),
    ],
)
async def test_anything_else_waits_until_the_one_before_it_is_acknowledged(events):
    """A failure or a rejection that overtakes a success would end what has not ended."""
    port, spool, server = free_port(), Spool(), Slow("a1")
    async with serving(server, port), transporting(port, spool, []):
        await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 20)
        server.seen.clear()
        last = [spool.append(event) for event in events][-1]
        await until(lambda: server.seen)
        await asyncio.sleep(0.2)
        assert server.seen == ["a1"]
        server.go.set()
        assert await asyncio.wait_for(last, 20)


@pytest.mark.parametrize("refused", [1, 2])
async def test_of_two_that_went_together_the_one_that_was_not_taken_is_sent_again_in_its_turn(refused):
    port, spool, server = free_port(), Spool(), Server()
    server.event_status = [(grpc.StatusCode.UNAVAILABLE, "not now")] * refused
    async with serving(server, port), transporting(port, spool, []):
        futures = [spool.append(event) for event in pair()]
        assert await asyncio.wait_for(asyncio.gather(*futures), 20) == [True, True]
    assert {event.WhichOneof("event") for event in server.events} == {"action_succeeded", "action_started"}
    assert server.attempts >= 2 + refused
    assert len(spool) == 0


async def test_event_that_the_server_can_never_take_does_not_hold_up_the_next(log):
    server, port, spool = Server(), free_port(), Spool()
    server.event_status = [(grpc.StatusCode.INVALID_ARGUMENT, "no such action")]
    async with serving(server, port), transporting(port, spool, []):
        dropped, taken = spool.append(ActionStarted("w", "a")), spool.append(ActionSucceeded("w", "a"))
        assert await asyncio.wait_for(dropped, 20) is False
        assert await asyncio.wait_for(taken, 20) is True
    assert "no such action; dropped" in log.text


async def test_refused_event_is_tried_for_a_while_and_then_makes_way(log):
    server, port, spool = Server(), free_port(), Spool()
    server.event_status = [(grpc.StatusCode.NOT_FOUND, "no such workflow")] * 100
    policy = replace(FAST, refusal_timeout=1.0)
    async with serving(server, port), transporting(port, spool, [], policy=policy):
        assert await asyncio.wait_for(spool.append(ActionStarted("gone", "a")), 20) is False
        assert server.attempts > 1
        server.event_status.clear()
        assert await asyncio.wait_for(spool.append(ActionStarted("w", "a")), 20) is True
    assert len([message for message in log.messages if "not delivered yet" in message]) == 1


class Forgetful(Server):
    """Knows nothing of the workflow "gone"."""

    def __init__(self):
        super().__init__()
        self.refused = []

    async def PublishEvent(self, request, context):  # noqa: N802
        if request.event.workflow_id == "gone":
            self.refused.append(request.event.action_started.action_id)
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such workflow")
        return await super().PublishEvent(request, context)


@pytest.mark.parametrize("quick", ["refusal_timeout", "gone_timeout"])
async def test_all_events_of_a_workflow_that_is_gone_hold_up_the_next_workflow_only_once(quick, log):
    """A machine that was cut off while its workflow was deleted comes back with a dozen."""
    server, port, spool = Forgetful(), free_port(), Spool()
    policy = replace(FAST, **{"refusal_timeout": 60.0, "gone_timeout": 60.0, quick: 3.0})
    async with serving(server, port):
        for number in range(12):
            spool.append(ActionStarted("gone", str(number)))
        taken = spool.append(ActionStarted("w", "a"))
        if quick == "refusal_timeout":  # no command stream: the server may not even know the machine
            channel = await open_channel(f"127.0.0.1:{port}")
            transport = Transport(channel, server="s", agent_id="a", spool=spool, policy=policy)
            publishing = asyncio.create_task(transport.publish())
            assert await asyncio.wait_for(taken, 20) is True
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            await channel.close()
        else:
            async with transporting(port, spool, [], policy=policy):
                assert await asyncio.wait_for(taken, 20) is True
    assert server.refused.count("0") > 2
    assert set(server.refused) == {str(number) for number in range(12)}, "each is tried: it might be taken after all"
    assert log.text.count("keeps refusing") == 12


async def test_server_that_stalls_in_the_middle_of_an_event_is_asked_again():
    server, port, spool = Server(), free_port(), Spool()
    server.stalls = 1
    async with serving(server, port), transporting(port, spool, [], policy=replace(FAST, publish_timeout=0.2)):
        assert await asyncio.wait_for(spool.append(ActionStarted("w", "a")), 10) is True
    assert server.attempts >= 2
    assert {event.action_started.action_id for event in server.events} == {"a"}


class Gathering(Server):
    """Answers no event but the first before `expected` are with it at once; `most` is how many were."""

    def __init__(self, expected):
        super().__init__()
        self.expected, self.here, self.most = expected, 0, 0
        self.full = asyncio.Event()

    async def PublishEvent(self, request, context):  # noqa: N802
        if self.events:
            self.here += 1
            self.most = max(self.most, self.here)
            if self.here == self.expected:
                self.full.set()
            await self.full.wait()
            self.here -= 1
        return await super().PublishEvent(request, context)


async def test_what_an_earlier_agent_has_left_is_sent_together_though_nothing_new_comes():
    left = [(number, ActionStarted("w", f"a{number}")) for number in range(1, 6)]
    server, port, spool = Gathering(4), free_port(), Spool(left)
    async with serving(server, port), transporting(port, spool, []):
        await until(lambda: not len(spool))
    assert server.most == 4


class Refusing(Server):
    """Refuses a3 once, and answers a2 after that."""

    def __init__(self):
        super().__init__()
        self.refused = asyncio.Event()

    async def PublishEvent(self, request, context):  # noqa: N802
        action = request.event.action_started.action_id
        if action == "a3" and not self.refused.is_set():
            self.refused.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if action == "a2":
            await self.refused.wait()
        return await super().PublishEvent(request, context)


async def test_event_that_was_sent_ahead_and_not_taken_is_sent_again():
    left = [(number, ActionStarted("w", f"a{number}")) for number in range(1, 4)]
    server, port, spool = Refusing(), free_port(), Spool(left)
    async with serving(server, port), transporting(port, spool, []):
        await until(lambda: not len(spool))
    assert [event.action_started.action_id for event in server.events] == ["a1", "a2", "a3"]


async def test_nothing_is_sent_ahead_while_the_server_is_away():
    """gRPC would send what waits for a connection in any order."""
    spool = Spool([(number, ActionStarted("w", f"a{number}")) for number in range(1, 4)])
    channel = await open_channel(f"127.0.0.1:{free_port()}")
    transport = Transport(channel, server="s", agent_id="a", spool=spool, policy=FAST)
    publishing = asyncio.create_task(transport.publish())
    for number in range(5):
        await asyncio.sleep(0.02)
        spool.append(ActionStarted("w", f"b{number}"))
        assert not transport._ahead
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    await channel.close()


async def test_transport_that_has_ended_sends_nothing_any_more():
    server, port, spool = Gathering(9), free_port(), Spool()
    async with serving(server, port):
        channel = await open_channel(f"127.0.0.1:{port}")
        transport = Transport(channel, server="s", agent_id="a", spool=spool, policy=FAST)
        publishing = asyncio.create_task(transport.publish())
        for number in range(3):
            spool.append(ActionStarted("w", f"a{number}"))
            await until(lambda number=number: server.events and server.here >= min(number, 1))
        under_way = list(transport._ahead.values())
        publishing.cancel()
        await asyncio.gather(publishing, *under_way, return_exceptions=True)
        assert under_way
        assert all(task.cancelled() for task in under_way)
        assert not transport._ahead
        spool.append(ActionStarted("w", "a9"))
        assert not transport._ahead
        await channel.close()


def test_server_lets_as_many_events_of_a_machine_wait_as_its_agent_sends_at_once():
    assert 2 * WINDOW <= MAX_WAITING, "those that the server still has when the agent comes again among them"
