"""The agent's calls to a real gRPC server in this process that breaks, refuses, and comes back."""

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import random
import socket
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from proto import metadata
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, WorkflowServiceStub, add_WorkflowServiceServicer_to_server
from tink.agent.channel import CHANNEL_OPTIONS, open_channel
from tink.agent.model import ActionFailed, ActionStarted, ActionSucceeded, StopWorkflow, WorkflowRejected
from tink.agent.spool import Spool
from tink.agent.transport import WINDOW, Pace, Transport
from tink.agent.wire import event_to_wire
from tink.backoff import Backoff
from tink.server.events import MAX_WAITING

FAST = Pace(
    first_backoff=0.02,
    last_backoff=0.1,
    refused_backoff=0.05,
    publish_timeout=1.0,
    refusal_patience=0.3,
    established_after=0.1,
)


class Server(WorkflowServiceServicer):
    """Streams what is put into `commands` ("break" aborts, "end" ends the stream) and keeps the events it took."""

    def __init__(self):
        self.commands = asyncio.Queue()
        self.agents = []
        self.held = []
        self.events = []
        self.attempts = 0
        self.stalls = 0
        self.stream_status = []
        self.event_status = []

    async def GetWorkflows(self, request, context):  # noqa: N802 - the service's name
        self.agents.append(request.agent_id)
        self.held.append([value for key, value in context.invocation_metadata() if key == metadata.WORKFLOW])
        if self.stream_status:
            await context.abort(*self.stream_status.pop(0))
        while True:
            command = await self.commands.get()
            if command == "break":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")
            if command == "end":
                return
            yield command

    async def PublishEvent(self, request, context):  # noqa: N802
        self.attempts += 1
        if self.stalls:
            self.stalls -= 1
            await asyncio.sleep(3600)
        if self.event_status:
            await context.abort(*self.event_status.pop(0))
        self.events.append(request.event)
        return pb.PublishEventResponse()


def stop(workflow_id):
    return pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=workflow_id))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.asynccontextmanager
async def serving(servicer, port):
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)])
    add_WorkflowServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        # What gRPC finishes after this event loop is closed fails in the loop, and the log, of the next test.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=1)


@contextlib.asynccontextmanager
async def transporting(port, spool, received, pace=FAST, holds=tuple, channel=None, anonymous=False):
    channel = channel or open_channel(f"127.0.0.1:{port}", None)
    transport = Transport(
        channel,
        server=f"127.0.0.1:{port}",
        agent_id="52:54:00:00:00:01",
        spool=spool,
        holds=holds,
        anonymous=anonymous,
        pace=pace,
        rng=random.Random(1),
    )
    tasks = [asyncio.create_task(transport.commands(received.append)), asyncio.create_task(transport.publish())]
    try:
        yield
        assert not any(task.done() for task in tasks), "the transport gave up"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await channel.close()


async def until(condition, seconds=10):
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail("it did not happen in time")
        await asyncio.sleep(0.01)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "tink.agent.transport")
    return caplog


async def test_commands_come_through_broken_and_ended_streams_in_order(log):
    server, received, port = Server(), [], free_port()
    async with serving(server, port), transporting(port, Spool(), received):
        for index, trouble in enumerate(["break", "end", "break"]):
            server.commands.put_nowait(stop(f"w{index}"))
            server.commands.put_nowait(trouble)
        server.commands.put_nowait(stop("w3"))
        await until(lambda: len(received) == 4)
        assert received == [StopWorkflow(f"w{index}") for index in range(4)]
        assert set(server.agents) == {"52:54:00:00:00:01"}
    assert log.messages.count(f"connected to the server 127.0.0.1:{port} as 52:54:00:00:00:01") == 4


async def test_agent_that_boots_before_the_server_waits_for_it(log):
    server, received, port = Server(), [], free_port()
    spool = Spool()
    spool.append(ActionStarted("w", "a"))
    async with transporting(port, spool, received):
        await asyncio.sleep(1.0)
        async with serving(server, port):
            server.commands.put_nowait(stop("w"))
            await until(lambda: received == [StopWorkflow("w")] and len(server.events) == 1)
    about_waiting = [message for message in log.messages if "waiting for it" in message]
    assert len(about_waiting) == 1, "one line, not one for each attempt"
    assert "Connection refused" in about_waiting[0]


async def test_server_that_goes_away_and_comes_back_gets_every_event_in_order(log):
    server, received, port, spool = Server(), [], free_port(), Spool()
    async with transporting(port, spool, received):
        async with serving(server, port):
            spool.append(ActionStarted("w", "0"))
            await until(lambda: len(server.events) == 1 and "connected" in log.text)
        for index in range(1, 6):
            spool.append(ActionStarted("w", str(index)))
        await asyncio.sleep(0.3)
        async with serving(server, port):
            await until(lambda: len(server.events) >= 6)
            server.commands.put_nowait(stop("w"))
            await until(lambda: received == [StopWorkflow("w")])
    assert [event.action_started.action_id for event in server.events] == ["0", "1", "2", "3", "4", "5"]
    assert any(message.startswith("lost the server") for message in log.messages)


async def test_event_is_sent_again_until_it_is_acknowledged():
    server, port, spool = Server(), free_port(), Spool()
    server.event_status = [(grpc.StatusCode.UNAVAILABLE, "no"), (grpc.StatusCode.INTERNAL, "no")]
    async with serving(server, port), transporting(port, spool, []):
        spool.append(ActionStarted("w", "a"))
        assert await asyncio.wait_for(spool.append(ActionSucceeded("w", "a")), 5) is True
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
        await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 5)
        server.seen.clear()
        server.events.clear()
        first, second = [spool.append(event) for event in pair()]
        async with asyncio.timeout(5):
            while not server.events:
                await asyncio.sleep(0.01)
        third = spool.append(ActionSucceeded("w1", "a2"))
        async with asyncio.timeout(5):
            while len(server.events) < 2:
                await asyncio.sleep(0.01)
        assert server.seen == ["a1", "a2", "a2"], "sent in order"
        assert not first.done()
        assert not second.done(), "it is known to the server, but what was before it is not"
        assert not third.done()
        assert len(spool) == 3
        server.go.set()
        assert await asyncio.wait_for(asyncio.gather(first, second, third), 5) == [True] * 3
        assert server.seen == ["a1", "a2", "a2"], "each once"


async def test_no_more_events_are_under_way_than_the_server_lets_wait_and_all_come_in_order():
    port, spool, server = free_port(), Spool(), Slow("a0")
    names = [f"a{number}" for number in range(3 * WINDOW)]
    async with serving(server, port), transporting(port, spool, []):
        await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 5)
        server.seen.clear()
        taken = [spool.append(ActionStarted("w1", name)) for name in names]
        async with asyncio.timeout(5):
            while len(server.seen) < WINDOW:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert server.seen == names[:WINDOW]
        server.go.set()
        assert await asyncio.wait_for(asyncio.gather(*taken), 5) == [True] * len(names)
        assert server.seen == names
        await asyncio.wait_for(spool.append(ActionFailed("w1", "a3", "R", "m")), 5)


async def test_a_transport_that_ends_takes_what_it_had_under_way_along():
    port, spool, server = free_port(), Spool(), Slow("a1", "a2")
    async with serving(server, port):
        async with transporting(port, spool, []):
            await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 5)
            server.seen.clear()
            for event in pair():
                spool.append(event)
            async with asyncio.timeout(5):
                while len(server.seen) < 2:
                    await asyncio.sleep(0.01)
        server.go.set()
        spool.append(ActionSucceeded("w1", "a2"))
        assert len(spool) == 3, "they wait for the next transport"
        async with transporting(port, spool, []), asyncio.timeout(5):
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
        await asyncio.wait_for(spool.append(ActionStarted("w1", "before")), 5)
        server.seen.clear()
        last = [spool.append(event) for event in events][-1]
        await asyncio.sleep(0.2)
        assert server.seen == ["a1"]
        server.go.set()
        assert await asyncio.wait_for(last, 5)


@pytest.mark.parametrize("refused", [1, 2])
async def test_of_two_that_went_together_the_one_that_was_not_taken_is_sent_again_in_its_turn(refused):
    port, spool, server = free_port(), Spool(), Server()
    server.event_status = [(grpc.StatusCode.UNAVAILABLE, "not now")] * refused
    async with serving(server, port), transporting(port, spool, []):
        futures = [spool.append(event) for event in pair()]
        assert await asyncio.wait_for(asyncio.gather(*futures), 5) == [True, True]
    assert {event.WhichOneof("event") for event in server.events} == {"action_succeeded", "action_started"}
    assert server.attempts >= 2 + refused
    assert len(spool) == 0


async def test_event_that_the_server_can_never_take_does_not_hold_up_the_next(log):
    server, port, spool = Server(), free_port(), Spool()
    server.event_status = [(grpc.StatusCode.INVALID_ARGUMENT, "no such action")]
    async with serving(server, port), transporting(port, spool, []):
        dropped, taken = spool.append(ActionStarted("w", "a")), spool.append(ActionSucceeded("w", "a"))
        assert await asyncio.wait_for(dropped, 5) is False
        assert await asyncio.wait_for(taken, 5) is True
    assert "no such action; dropped" in log.text


async def test_refused_event_is_tried_for_a_while_and_then_makes_way(log):
    server, port, spool = Server(), free_port(), Spool()
    server.event_status = [(grpc.StatusCode.NOT_FOUND, "no such workflow")] * 100
    async with serving(server, port), transporting(port, spool, []):
        assert await asyncio.wait_for(spool.append(ActionStarted("gone", "a")), 5) is False
        assert server.attempts > 2
        server.event_status.clear()
        assert await asyncio.wait_for(spool.append(ActionStarted("w", "a")), 5) is True
    assert len([message for message in log.messages if "not delivered yet" in message]) == 1


async def test_machine_that_the_server_does_not_know_says_so_once_and_asks_again(log):
    server, received, port = Server(), [], free_port()
    server.stream_status = [(grpc.StatusCode.PERMISSION_DENIED, "no Hardware has this MAC")] * 4
    async with serving(server, port), transporting(port, Spool(), received):
        server.commands.put_nowait(stop("w"))
        await until(lambda: received == [StopWorkflow("w")])
    refused = [record for record in log.records if "refuses this machine" in record.message]
    assert len(refused) == 1
    assert "no Hardware has this MAC" in refused[0].message
    assert refused[0].levelno == logging.ERROR
    assert len(server.agents) == 5


async def test_unusable_command_is_logged_and_the_next_one_is_heard(log):
    server, received, port = Server(), [], free_port()
    async with serving(server, port), transporting(port, Spool(), received):
        server.commands.put_nowait(pb.GetWorkflowsResponse())
        server.commands.put_nowait(stop("w"))
        await until(lambda: received == [StopWorkflow("w")])
    assert "ignored a command" in log.text
    assert len(server.agents) == 1


async def test_silent_server_counts_as_connected(log):
    server, port = Server(), free_port()
    async with serving(server, port), transporting(port, Spool(), []):
        await until(lambda: "connected to the server" in log.text, 3)


async def test_server_hears_with_each_stream_what_the_agent_holds_then():
    server, received, port, held = Server(), [], free_port(), []
    async with serving(server, port), transporting(port, Spool(), received, holds=lambda: held):
        await until(lambda: server.held)
        held.extend(["uid-1", "uid-2"])
        server.commands.put_nowait("break")
        await until(lambda: len(server.held) == 2)
        held[:] = ["no uid\u00e9", "", "x" * 500, *(f"uid-{number}" for number in range(100))]
        server.commands.put_nowait("break")
        await until(lambda: len(server.held) == 3)
    assert server.held == [[""], ["uid-1", "uid-2"], [f"uid-{number}" for number in range(64)]]


class Wire:
    """A TCP proxy that a test cuts without either side hearing of it, as a switch does that loses power."""

    def __init__(self, port):
        self.port = port
        self.dead = False
        self.writers = []
        self.tasks = []

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
            return  # connected, and silent
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(back)
        self.tasks += [asyncio.create_task(self._copy(reader, back)), asyncio.create_task(self._copy(there, writer))]

    async def _copy(self, reader, writer):
        while content := await reader.read(65536):
            if self.dead:
                await asyncio.sleep(3600)
            writer.write(content)
        writer.close()


def impatient_channel(port):
    """As `open_channel`, but everything that takes 10 or 20 s there takes one second."""
    options = {**dict(CHANNEL_OPTIONS), "grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 1000}
    options |= {"grpc.min_reconnect_backoff_ms": 1000, "grpc.max_reconnect_backoff_ms": 500}
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=list(options.items()))


@pytest.mark.timeout(60)
async def test_connection_that_died_without_a_word_is_noticed_and_made_anew(log):
    server, received, port, spool = Server(), [], free_port(), Spool()
    wire = Wire(port)
    async with (
        serving(server, port),
        wire.open() as front,
        transporting(front, spool, received, channel=impatient_channel(front)),
    ):
        server.commands.put_nowait(stop("w1"))
        await until(lambda: received == [StopWorkflow("w1")])
        wire.dead = True
        spool.append(ActionStarted("w", "a"))
        await until(lambda: "lost the server" in log.text, 10)
        await asyncio.sleep(2)  # what connects now is met with silence
        wire.dead = False
        await until(lambda: len(spool) == 0 and len(server.agents) == 2, 20)
        for _ in range(2):
            server.commands.put_nowait(stop("w2"))  # the stream that died takes its turn
            await asyncio.sleep(0.1)
        await until(lambda: StopWorkflow("w2") in received)
    assert [event.action_started.action_id for event in server.events] == ["a"]


async def test_server_that_stalls_in_the_middle_of_an_event_is_asked_again():
    server, port, spool = Server(), free_port(), Spool()
    server.stalls = 1
    async with serving(server, port), transporting(port, spool, [], pace=replace(FAST, publish_timeout=0.2)):
        assert await asyncio.wait_for(spool.append(ActionStarted("w", "a")), 10) is True
    assert server.attempts == 2
    assert len(server.events) == 1


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate for 127.0.0.1 as (key, certificate) in PEM, and the file with the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tink")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin.replace(year=2099))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = signed.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "roots.crt").write_bytes(pem)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (private, pem), tmp_path / "roots.crt"


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls_is_spoken_only_to_a_server_that_the_roots_vouch_for(certificate, tmp_path, trusted):
    pair, roots = certificate
    servicer, server = Server(), grpc.aio.server()
    add_WorkflowServiceServicer_to_server(servicer, server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    channel = open_channel(f"127.0.0.1:{port}", roots if trusted else tmp_path / "no-such-file")
    try:
        call = WorkflowServiceStub(channel).PublishEvent(event_to_wire(ActionStarted("w", "a")), timeout=5)
        if trusted:
            await call
        else:
            with pytest.raises(grpc.aio.AioRpcError, match=r"(?i)certificate|handshake"):
                await call
        assert len(servicer.events) == trusted
    finally:
        await channel.close()
        await server.stop(None)


@contextlib.asynccontextmanager
async def asking_for_certificates(pair):
    server = grpc.aio.server()
    add_WorkflowServiceServicer_to_server(Server(), server)
    credentials = grpc.ssl_server_credentials([pair], root_certificates=pair[1], require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def test_agent_without_a_certificate_says_that_the_server_may_want_one(certificate, log):
    """All that gRPC says is that the socket is closed."""
    pair, roots = certificate
    async with asking_for_certificates(pair) as port:
        channel = open_channel(f"127.0.0.1:{port}", roots)
        async with transporting(port, Spool(), [], channel=channel, anonymous=True):
            await until(lambda: log.records)
    assert "cannot reach the server" in log.records[0].message
    assert "give --tls-cert and --tls-key" in log.records[0].message


@pytest.mark.parametrize("trouble", ["it shows one", "nobody is there", "it does not trust the server"])
async def test_nobody_looks_for_a_certificate_where_that_is_not_what_is_missing(certificate, tmp_path, log, trouble):
    pair, roots = certificate
    async with asking_for_certificates(pair) as port:
        port = free_port() if trouble == "nobody is there" else port
        channel = open_channel(f"127.0.0.1:{port}", tmp_path / "none" if "trust" in trouble else roots)
        async with transporting(port, Spool(), [], channel=channel, anonymous=trouble != "it shows one"):
            await until(lambda: log.records)
    assert "cannot reach the server" in log.records[0].message
    assert "--tls-cert" not in log.text


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
    channel = open_channel(f"127.0.0.1:{free_port()}", None)
    transport = Transport(channel, server="s", agent_id="a", spool=spool, pace=FAST)
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
        channel = open_channel(f"127.0.0.1:{port}", None)
        transport = Transport(channel, server="s", agent_id="a", spool=spool, pace=FAST)
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


def test_pauses_grow_to_ten_seconds_and_differ_between_agents():
    pauses = []
    for seed in range(50):
        backoff = Backoff(0.2, 10.0, random.Random(seed).uniform)
        pauses.append([backoff.next() for _ in range(12)])
    assert all(0.1 <= row[0] <= 0.2 and 5.0 <= row[-1] <= 10.0 for row in pauses)
    assert len({row[-1] for row in pauses}) == 50
    backoff = Backoff(0.2, 10.0, random.Random(0).uniform)
    for _ in range(10):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.2
