"""The agent's calls to a real gRPC server in this process: the command stream, which is always reopened, and events.

Each event is sent until it is acknowledged, in order where order matters, and none delays the next longer than it must.
"""

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import random
import socket
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509

from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tests.interop.authority import Authority
from tests.ports import free_port, free_ports
from tests.support.objects import MAC
from tests.support.virtual_time import turns
from tests.unit.agent.workflow_service import (
    FAST,
    Link,
    Server,
    open_channel,
    serving,
    stop,
    transporting,
)
from tests.waiting import until
from tink.agent.connection import (
    CHANNEL_OPTIONS,
    WINDOW,
    UnusableCommandError,
    command_from_wire,
    connect,
    event_to_wire,
)
from tink.agent.journal import Spool
from tink.agent.model import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RenderedAction,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowRejected,
)
from tink.agent.settings import from_kernel_command_line
from tink.limits import Backoff
from tink.server.events import MAX_WAITING

pytestmark = pytest.mark.long

NEVER_ESTABLISHED = replace(FAST, established_after=3600.0)
UNAVAILABLE, NOT_FOUND = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "tink.agent.connection")
    with caplog.filtering(logging.Filter("tink")):  # asyncio has lines of its own, of grpc.aio's event loops
        yield caplog


@pytest.fixture
async def link():
    return Link()


async def test_transport_is_connected_while_the_server_serves_its_stream(link):
    async with link.transporting(replace(FAST, max_backoff=0.02)) as transport:
        assert not transport.connected.is_set()
        async with link.serving():
            await transport.connected.wait()
        await until(lambda: not transport.connected.is_set())


# --- messages ---------------------------------------------------------------------------------------------------------


def start(**action):
    message = pb.GetWorkflowsResponse()
    message.start_workflow.workflow.workflow_id = "w"
    message.start_workflow.workflow.actions.add(**action)
    return message


EVERY_FIELD = {"id": "a", "name": "n", "image": "i", "cmd": "c", "args": ["x", "y"], "env": {"K": "V"}}
EVERY_FIELD |= {"volumes": ["/a:/b"], "ns": pb.Workflow.Action.Namespace(pid="host", net="none")}


@pytest.mark.parametrize(
    ("message", "command"),
    [
        (
            start(**EVERY_FIELD),
            StartWorkflow(
                Workflow("w", (RenderedAction("a", "n", "i", "c", ("x", "y"), {"K": "V"}, ("/a:/b",), "host", "none"),))
            ),
        ),
        (start(id="a", image="i"), StartWorkflow(Workflow("w", (RenderedAction("a", "a", "i"),)))),
        (stop("w"), StopWorkflow("w")),
    ],
    ids=["every-field", "without-a-name", "stop"],
)
def test_command_is_read_from_its_message(message, command):
    assert command_from_wire(message) == command


@pytest.mark.parametrize(
    "message",
    [
        pb.GetWorkflowsResponse(),
        pb.GetWorkflowsResponse(start_workflow=pb.GetWorkflowsResponse.StartWorkflow()),
        stop(""),
        None,  # what grpc hands out for bytes that it cannot parse
    ],
)
def test_command_that_names_nothing_is_refused(message):
    with pytest.raises(UnusableCommandError):
        command_from_wire(message)


FAILURE = '{ action_id: "a" failure_reason: "R" failure_message: "m" }'


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ActionStarted("w", "a"), 'action_started { action_id: "a" }'),
        (ActionSucceeded("w", "a"), 'action_succeeded { action_id: "a" }'),
        (ActionFailed("w", "a", "R", "m"), f"action_failed {FAILURE}"),
        (WorkflowRejected("w", "R", "m"), 'workflow_rejected { failure_reason: "R" failure_message: "m" }'),
    ],
)
def test_event_keeps_its_meaning_on_the_wire(event, text):
    assert " ".join(str(event_to_wire(event).event).split()) == f'workflow_id: "w" {text}'


# --- the command stream -----------------------------------------------------------------------------------------------


async def test_commands_come_through_broken_and_ended_streams_in_order_and_unusable_ones_are_logged(link, log):
    async with link.up() as (server, _):
        for index, trouble in enumerate(["break", "end", "break", pb.GetWorkflowsResponse()]):
            server.commands.put_nowait(stop(f"w{index}"))
            server.commands.put_nowait(trouble)
        server.commands.put_nowait(stop("w4"))
        await until(lambda: len(link.received) == 5)
    assert link.received == [StopWorkflow(f"w{index}") for index in range(5)]
    assert server.agents == [MAC] * 4
    assert log.messages.count(f"connected to the server 127.0.0.1:{link.port} as {MAC}") == 4
    assert "ignored a command" in log.text


async def test_agent_that_boots_before_the_server_waits_for_it(link, log):
    link.spool.append(ActionStarted("w", "a"))
    attempts = asyncio.Queue()
    async with link.transporting():
        await until(lambda: "waiting for it" in log.text)
        async with await asyncio.start_server(lambda _, out: attempts.put_nowait(out.close()), "127.0.0.1", link.port):
            for _ in range(2):
                await attempts.get()
        async with link.serving():
            link.server.commands.put_nowait(stop("w"))
            await until(lambda: link.received == [StopWorkflow("w")] and len(link.server.events) == 1)
    about_waiting = [message for message in log.messages if "waiting for it" in message]
    assert len(about_waiting) == 1, "one line, not one for each attempt"
    assert "Connection refused" in about_waiting[0]


async def test_server_that_goes_away_and_comes_back_gets_every_event_in_order(link, log):
    async with link.transporting():
        async with link.serving():
            link.spool.append(ActionStarted("w", "0"))
            await until(lambda: len(link.server.events) == 1 and "connected" in log.text)
        for index in range(1, 6):
            link.spool.append(ActionStarted("w", str(index)))
        await until(lambda: any(message.startswith("lost the server") for message in log.messages))
        async with link.serving():
            await until(lambda: len(link.server.events) >= 6)
            link.server.commands.put_nowait(stop("w"))
            await until(lambda: link.received == [StopWorkflow("w")])
    assert [event.action_started.action_id for event in link.server.events] == ["0", "1", "2", "3", "4", "5"]


async def test_machine_that_the_server_does_not_know_logs_that_once_and_asks_again(link, log):
    link.server.stream_status = [(grpc.StatusCode.PERMISSION_DENIED, "no Hardware has this MAC")] * 4
    # A refusal may take its time, and is not to be taken for a server that is there.
    async with link.up(NEVER_ESTABLISHED) as (server, _):
        server.commands.put_nowait(stop("w"))
        await until(lambda: link.received == [StopWorkflow("w")])
    [refused] = [record for record in log.records if "refuses this machine" in record.message]
    assert "no Hardware has this MAC" in refused.message
    assert refused.levelno == logging.ERROR
    assert len(server.agents) == 5


async def test_server_that_does_not_answer_is_out_of_reach_and_never_connected(log):
    """As where a firewall drops what is sent there, or what comes back; or something else has the port."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with transporting(port, Spool(), [], replace(FAST, established_after=0.01, patience=0.2)):
            await until(lambda: log.records)
    assert log.messages == [f"cannot reach the server 127.0.0.1:{port} yet: nothing has answered there for 0 s"]


async def test_server_is_sent_with_each_stream_what_the_agent_holds_then(link):
    held = []
    async with link.up(held_workflows=lambda: held) as (server, _):
        await until(lambda: server.held)
        for streams, holds in (
            (2, ["uid-1", "uid-2"]),
            (3, ["no uid\u00e9", "", "x" * 500, *(f"uid-{number}" for number in range(100))]),
        ):
            held[:] = holds
            server.commands.put_nowait("break")
            await until(lambda streams=streams: len(server.held) == streams)
    assert server.held == [[""], ["uid-1", "uid-2"], [f"uid-{number}" for number in range(64)]]


class Wire:
    """A TCP proxy that a test cuts without either side noticing, as a switch does that loses power."""

    def __init__(self, port):
        self.port, self.dead, self.silent = port, False, 0
        self.writers, self.tasks = [], []

    @contextlib.asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            for writer in self.writers:
                writer.close()

    async def _accept(self, reader, writer):
        self.writers.append(writer)
        if self.dead:
            self.silent += 1
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(back)
        self.tasks += [asyncio.create_task(self._copy(reader, back)), asyncio.create_task(self._copy(there, writer))]

    async def _copy(self, reader, writer):
        while content := await reader.read(65536):
            if self.dead:
                await asyncio.Event().wait()
            writer.write(content)
        writer.close()


async def test_connection_that_died_without_a_word_is_noticed_and_replaced(link, log):
    server, spool, wire = link.server, link.spool, Wire(link.port)
    # As `open_channel`, but everything that takes 10 or 20 s there takes one second.
    options = {**dict(CHANNEL_OPTIONS), "grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
    options |= {"grpc.min_reconnect_backoff_ms": 1000, "grpc.max_reconnect_backoff_ms": 500}
    async with link.serving(), wire.open() as front:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{front}", options=[*options.items()])
        async with transporting(front, spool, link.received, channel=channel):
            server.commands.put_nowait(stop("w1"))
            await until(lambda: link.received == [StopWorkflow("w1")])
            wire.dead = True
            spool.append(ActionStarted("w", "a"))
            await until(lambda: "lost the server" in log.text and wire.silent)
            wire.dead = False
            await until(lambda: len(spool) == 0 and len(server.agents) >= 2)
            # Streams that died take their turns.
            await until(lambda: StopWorkflow("w2") in link.received or server.commands.put_nowait(stop("w2")))
    assert {event.action_started.action_id for event in server.events} == {"a"}


# --- TLS, and another server ------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def signed(authority, **more):
    """The key and the certificate of 127.0.0.1, in PEM."""
    certificate, key = authority.sign("own", x509.IPAddress(ipaddress.ip_address("127.0.0.1")), **more)
    return key.read_bytes(), certificate.read_bytes()


def credentials(authority, *, asking=False):
    roots = authority.file.read_bytes() if asking else None
    return grpc.ssl_server_credentials([signed(authority)], root_certificates=roots, require_client_auth=asking)


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls_is_spoken_only_to_a_server_that_the_roots_vouch_for(link, authority, tmp_path, trusted):
    async with link.serving(credentials(authority)):
        channel = await open_channel(f"127.0.0.1:{link.port}", authority.file if trusted else tmp_path / "no-such-file")
        async with channel:
            call = WorkflowServiceStub(channel).PublishEvent(event_to_wire(ActionStarted("w", "a")))
            if trusted:
                await call
            else:
                with pytest.raises(grpc.aio.AioRpcError, match=r"(?i)certificate|handshake"):
                    await call
    assert len(link.server.events) == trusted


@pytest.mark.parametrize(
    ("trouble", "hint"),
    [
        ("it shows none", "give --tls-cert and --tls-key"),
        ("its own has ended", "if the server refuses the certificate own.crt: has it ended"),
        ("it uses no TLS", ""),
        ("no server is there", ""),
        ("it does not trust the server", ""),
    ],
)
async def test_agent_logs_that_its_certificate_may_be_what_is_wrong_where_that_can_be(
    link, authority, tmp_path, log, trouble, hint
):
    """gRPC reports no more than that the socket is closed."""
    settings = {"tls": trouble != "it uses no TLS"}
    async with link.serving(credentials(authority, asking=True)):
        server = f"127.0.0.1:{free_port() if 'is there' in trouble else link.port}"
        if "ended" in trouble:
            ended = grpc.ssl_channel_credentials(
                authority.file.read_bytes(), *signed(authority, begins=datetime.timedelta(days=-3))
            )
            channel = grpc.aio.secure_channel(server, ended)
            settings |= {"tls_cert": Path("own.crt"), "tls_key": Path("own.key")}
        else:
            channel = await open_channel(server, tmp_path / "none" if "trust" in trouble else authority.file)
        async with link.transporting(NEVER_ESTABLISHED, channel=channel, **settings):
            await until(lambda: log.records)
    assert "cannot reach the server" in log.messages[0]
    assert hint in log.messages[0]
    assert hint or "--tls-cert" not in log.text


def test_pauses_grow_to_ten_seconds_and_differ_between_agents():
    pauses = []
    for seed in range(50):
        backoff = Backoff(0.2, 10.0, random.Random(seed).uniform)
        pauses.append([backoff.next() for _ in range(12)])
    assert all(0.1 <= row[0] <= 0.2 and 5.0 <= row[-1] <= 10.0 for row in pauses)
    assert len({row[-1] for row in pauses}) == 50
    backoff.reset()
    assert backoff.next() <= 0.2


@pytest.mark.parametrize("tls", [False, True])
async def test_agent_goes_on_with_another_server_when_its_own_is_gone(authority, tmp_path, tls):
    ports, servers, spool = free_ports(2), [Server(), Server()], Spool()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    line = f"worker_id=m grpc_authority={addresses[0]} tinkerbell_servers={addresses[1]} tinkerbell_tls={tls}"
    channel = await connect(
        from_kernel_command_line(line, tls_roots=authority.file, state_dir=tmp_path), asyncio.Event()
    )
    secure = credentials(authority) if tls else None
    async with (
        serving(servers[0], ports[0], secure) as first,
        serving(servers[1], ports[1], secure),
        transporting(ports[0], spool, [], channel=channel),
    ):
        await until(lambda: servers[0].agents)
        assert not servers[1].agents
        await first.stop(None)
        await until(lambda: servers[1].agents)
        spool.append(ActionStarted("w", "a"))
        await until(lambda: servers[1].events)


# --- events -----------------------------------------------------------------------------------------------------------


def pair(workflow="w1", other=None):
    return ActionSucceeded(workflow, "a1"), ActionStarted(other or workflow, "a2")


def starts(*actions, workflow="w"):
    return [ActionStarted(workflow, action) for action in actions]


async def ready(link):
    """Let the server accept one event first. From then on, the agent sends waiting events together."""
    await link.spool.append(ActionStarted("w1", "before"))
    link.server.seen.clear()
    link.server.events.clear()


async def test_the_end_of_an_action_and_the_start_of_the_next_go_together_and_the_first_is_settled_first(link):
    async with link.up() as (server, spool):
        await ready(link)
        go, _ = server.hold("a1")
        first, second = [spool.append(event) for event in pair()]
        await until(lambda: server.events)
        third = spool.append(ActionSucceeded("w1", "a2"))
        await until(lambda: len(server.events) == 2)
        assert server.seen == ["a1", "a2", "a2"], "sent in order"
        assert not first.done()
        assert not second.done(), "it is known to the server, but what was before it is not"
        assert not third.done()
        assert len(spool) == 3
        go.set()
        assert await asyncio.gather(first, second, third) == [True] * 3
        assert server.seen == ["a1", "a2", "a2"], "each once"


async def test_no_more_events_are_under_way_than_the_server_lets_wait_and_each_comes_once(link):
    names = [f"a{number}" for number in range(3 * WINDOW)]
    async with link.up() as (server, spool):
        await ready(link)
        go, _ = server.hold("a0")
        sent = [spool.append(event) for event in starts(*names, workflow="w1")]
        await until(lambda: len(server.seen) >= WINDOW)
        await link.round_trips()
        assert sorted(server.seen, key=names.index) == names[:WINDOW]
        go.set()
        assert await asyncio.gather(*sent) == [True] * len(names)
        # gRPC hands out calls that came at once in any order; but none before there was room for it.
        assert sorted(server.seen, key=names.index) == names
        assert all(names.index(name) < place + WINDOW for place, name in enumerate(server.seen))
        await spool.append(ActionFailed("w1", "a3", "R", "m"))


async def test_transport_that_ends_takes_along_what_it_had_under_way_and_the_next_one_sends_it(link):
    async with link.serving():
        channel = await open_channel(f"127.0.0.1:{link.port}")
        channel.close, close = turns, channel.close
        async with link.transporting(channel=channel):
            await ready(link)
            link.server.hold("a1", "a2")
            for event in pair():
                link.spool.append(event)
            await until(lambda: len(link.server.seen) == 2)
        await until(lambda: sorted(link.server.canceled) == ["a1", "a2"])
        link.spool.append(ActionSucceeded("w1", "a3"))
        await link.round_trips()
        assert link.server.seen == ["a1", "a2"]
        await close()
        link.server.hold()
        assert len(link.spool) == 3
        async with link.transporting():
            await until(lambda: not len(link.spool))


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
async def test_anything_else_waits_until_the_one_before_it_is_acknowledged(link, events):
    """A failure or a rejection that overtakes a success would end what has not ended."""
    async with link.up() as (server, spool):
        await ready(link)
        go, _ = server.hold("a1")
        last = [spool.append(event) for event in events][-1]
        await until(lambda: server.seen)
        await link.round_trips()
        assert server.seen == ["a1"]
        go.set()
        assert await last


@pytest.mark.parametrize("refusals", [[UNAVAILABLE], [UNAVAILABLE, grpc.StatusCode.INTERNAL]])
async def test_of_two_that_went_together_the_one_that_was_not_taken_is_sent_again_in_its_turn(link, refusals):
    link.server.event_status = [(status, "not now") for status in refusals]
    events = pair()
    async with link.up() as (server, spool):
        assert await asyncio.gather(*(spool.append(event) for event in events)) == [True, True]
    assert all(event_to_wire(event).event in server.events for event in events)
    assert {event.WhichOneof("event") for event in server.events} == {"action_succeeded", "action_started"}
    assert len(server.seen) >= 2 + len(refusals)
    assert len(spool) == 0


async def test_event_that_the_server_can_never_take_does_not_hold_up_the_next(link, log):
    link.server.event_status = [(grpc.StatusCode.INVALID_ARGUMENT, "no such action")]
    async with link.up() as (_, spool):
        dropped, sent = spool.append(ActionStarted("w", "a")), spool.append(ActionSucceeded("w", "a"))
        assert (await dropped, await sent) == (False, True)
    assert "no such action; dropped" in log.text


async def test_refused_event_is_tried_for_a_while_and_then_dropped(link, log):
    link.server.event_status = [(NOT_FOUND, "no such workflow")] * 1000
    async with link.up(replace(FAST, refusal_timeout=1.0)) as (server, spool):
        assert await spool.append(ActionStarted("gone", "a")) is False
        assert len(server.seen) > 1
        server.event_status.clear()
        assert await spool.append(ActionStarted("w", "a")) is True
    assert len([message for message in log.messages if "not delivered yet" in message]) == 1


@pytest.mark.parametrize("quick", ["refusal_timeout", "gone_timeout"])
async def test_all_events_of_a_workflow_that_is_gone_delay_the_next_workflow_only_once(link, quick, log):
    """A machine that was cut off while its workflow was deleted comes back with a dozen."""

    async def refuse(action, context):
        if action != "a":
            await context.abort(NOT_FOUND, "no such workflow")

    link.server.before = refuse
    policy = replace(FAST, **{"refusal_timeout": 3600.0, "gone_timeout": 3600.0, quick: 1.0})
    if quick == "refusal_timeout":  # no command stream: the server may not even know the machine
        link.server.stream_status = [(grpc.StatusCode.PERMISSION_DENIED, "no")] * 1000
        policy = replace(policy, established_after=3600.0)
    for event in starts(*map(str, range(12)), workflow="gone"):
        link.spool.append(event)
    async with link.up(policy) as (server, spool):
        assert await spool.append(ActionStarted("w", "a")) is True
    assert server.seen.count("0") > 1
    assert set(server.seen) == {"a", *map(str, range(12))}, "each is tried: it might be taken after all"
    assert all(server.seen.count(str(number)) <= 2 for number in range(1, 12)), "ahead, and in its turn"
    assert log.text.count("keeps refusing") == 12


async def test_server_that_stalls_in_the_middle_of_an_event_is_asked_again(link):
    go, _ = link.server.hold("a")
    async with link.up(replace(FAST, publish_timeout=0.2)) as (server, spool):
        sent = spool.append(ActionStarted("w", "a"))
        await until(lambda: len(server.seen) >= 2)
        go.set()
        assert await sent is True
    assert {event.action_started.action_id for event in server.events} == {"a"}


async def test_events_of_an_earlier_agent_are_sent_together_though_no_new_one_comes():
    link = Link(starts("a1", "a2", "a3", "a4", "a5"))
    go, _ = link.server.hold("a2", "a3", "a4", "a5")
    async with link.up() as (server, spool):
        await until(lambda: len(server.seen) == 5)
        go.set()
        await until(lambda: not len(spool))


async def test_event_that_was_sent_ahead_and_not_taken_is_sent_again():
    """a3 is refused once, and a2 is answered after that."""
    link, refused = Link(starts("a1", "a2", "a3")), asyncio.Event()

    async def before(action, context):
        if action == "a3" and not refused.is_set():
            refused.set()
            await context.abort(UNAVAILABLE, "not now")
        if action == "a2":
            await refused.wait()

    link.server.before = before
    async with link.up() as (server, spool):
        await until(lambda: not len(spool))
    assert [event.action_started.action_id for event in server.events] == ["a1", "a2", "a3"]


async def test_no_call_is_made_ahead_while_the_server_is_away(log):
    """gRPC would send what waits for a connection in any order."""
    link = Link(starts("a1", "a2", "a3"))
    async with link.transporting():
        await until(lambda: "waiting for it" in log.text)
        await turns(10)
        calls = len(asyncio.all_tasks())
        for event in starts("b1", "b2", "b3"):
            link.spool.append(event)
            assert len(asyncio.all_tasks()) == calls
            await turns(10)


def test_server_lets_as_many_events_of_a_machine_wait_as_its_agent_sends_at_once():
    assert 2 * WINDOW <= MAX_WAITING, "those that the server still has when the agent comes again among them"
