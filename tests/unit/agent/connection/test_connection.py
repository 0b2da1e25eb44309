"""The agent's connection to a real gRPC server in this process: kept up for ever, noticed when it is dead, encrypted;
and the commands that come through it."""

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

from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub, add_WorkflowServiceServicer_to_server
from tests.ports import free_port, free_ports
from tests.unit.agent.connection.workflow_service import (
    FAST,
    Server,
    open_channel,
    serving,
    stop,
    transporting,
)
from tests.waiting import until
from tink.agent.connection.channel import CHANNEL_OPTIONS, connect
from tink.agent.connection.wire import event_to_wire
from tink.agent.durable.spool import Spool
from tink.agent.model import ActionStarted, StopWorkflow
from tink.agent.settings import from_kernel_command_line
from tink.limits.backoff import Backoff


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "tink.agent.connection.transport")
    with caplog.filtering(logging.Filter("tink")):  # asyncio has lines of its own, of grpc.aio's event loops
        yield caplog


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


async def test_machine_that_the_server_does_not_know_says_so_once_and_asks_again(log):
    server, received, port = Server(), [], free_port()
    server.stream_status = [(grpc.StatusCode.PERMISSION_DENIED, "no Hardware has this MAC")] * 4
    # A refusal may take its time, and is not to be taken for a server that is there.
    patient = replace(FAST, established_after=60.0)
    async with serving(server, port), transporting(port, Spool(), received, policy=patient):
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
        await until(lambda: "connected to the server" in log.text)


async def test_server_that_says_nothing_at_all_is_not_connected_to(log):
    """Whoever drops packets to the port, or took it for something else, must not be taken for the server."""
    heard, connected = asyncio.Event(), []

    def hold(_reader, writer):
        connected.append(writer)
        heard.set()

    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    port, policy = silent.sockets[0].getsockname()[1], replace(FAST, established_after=0.01)
    async with silent, transporting(port, Spool(), [], policy):
        await heard.wait()
        await asyncio.sleep(0.2)  # many times as long as it takes to be taken for established
        silent.close()
        for writer in connected:
            writer.transport.abort()
            await writer.wait_closed()
    assert "connected to the server" not in log.text


async def test_server_hears_with_each_stream_what_the_agent_holds_then():
    server, received, port, held = Server(), [], free_port(), []
    async with serving(server, port), transporting(port, Spool(), received, held_workflows=lambda: held):
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
        await until(lambda: "lost the server" in log.text)
        await asyncio.sleep(2)  # what connects now is met with silence
        wire.dead = False
        await until(lambda: len(spool) == 0 and len(server.agents) >= 2)
        async with asyncio.timeout(20):
            while StopWorkflow("w2") not in received:
                server.commands.put_nowait(stop("w2"))  # streams that died take their turns
                await asyncio.sleep(0.1)
    assert {event.action_started.action_id for event in server.events} == {"a"}


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
    channel = await open_channel(f"127.0.0.1:{port}", roots if trusted else tmp_path / "no-such-file")
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
        channel = await open_channel(f"127.0.0.1:{port}", roots)
        policy = replace(FAST, established_after=60.0)
        async with transporting(port, Spool(), [], channel=channel, anonymous=True, policy=policy):
            await until(lambda: log.records)
    assert "cannot reach the server" in log.records[0].message
    assert "give --tls-cert and --tls-key" in log.records[0].message


async def test_agent_whose_certificate_is_refused_says_which_and_what_may_be_wrong(certificate, tmp_path, log):
    """The certificate has ended; the server has its authority, and says that the socket is closed."""
    pair, roots = certificate
    key = serialization.load_pem_private_key(pair[0], None)
    authority = x509.load_pem_x509_certificate(pair[1])
    begin = authority.not_valid_before_utc
    ended = x509.CertificateBuilder(
        authority.subject, authority.subject, key.public_key(), 2, begin, begin.replace(2021)
    )
    shown = ended.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    async with asking_for_certificates(pair) as port:
        credentials = grpc.ssl_channel_credentials(roots.read_bytes(), pair[0], shown)
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)
        file = tmp_path / "own.crt"
        policy = replace(FAST, established_after=60.0)
        async with transporting(port, Spool(), [], channel=channel, certificate=file, policy=policy):
            await until(lambda: log.records)
    assert "cannot reach the server" in log.records[0].message
    assert f"if the server refuses the certificate {file}: has it ended" in log.records[0].message


@pytest.mark.parametrize("trouble", ["it shows one", "nobody is there", "it does not trust the server"])
async def test_nobody_looks_for_a_certificate_where_that_is_not_what_is_missing(certificate, tmp_path, log, trouble):
    pair, roots = certificate
    async with asking_for_certificates(pair) as port:
        port = free_port() if trouble == "nobody is there" else port
        channel = await open_channel(f"127.0.0.1:{port}", tmp_path / "none" if "trust" in trouble else roots)
        policy, anonymous = replace(FAST, established_after=60.0), trouble != "it shows one"
        async with transporting(port, Spool(), [], channel=channel, anonymous=anonymous, policy=policy):
            await until(lambda: log.records)
    assert "cannot reach the server" in log.records[0].message
    assert "--tls-cert" not in log.text


async def test_server_that_does_not_answer_is_not_said_to_be_connected_to_but_out_of_reach(log):
    """As where a firewall drops what is sent there, or what comes back."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with transporting(port, Spool(), [], policy=replace(FAST, patience=0.2)):
            await until(lambda: log.records)
    assert log.messages == [f"cannot reach the server 127.0.0.1:{port} yet: nothing has answered there for 0 s"]


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


@pytest.mark.parametrize("tls", [False, True])
async def test_agent_goes_on_with_another_server_when_its_own_is_gone(certificate, tmp_path, tls):
    pair, roots = certificate
    first, second = free_ports(2)
    servicers, servers = [Server(), Server()], []
    for port, servicer in zip((first, second), servicers, strict=True):
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_WorkflowServiceServicer_to_server(servicer, server)
        if tls:
            server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair]))
        else:
            server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
    line = f"worker_id=m grpc_authority=127.0.0.1:{first} tinkerbell_servers=127.0.0.1:{second} tinkerbell_tls={tls}"
    settings = from_kernel_command_line(line, tls_roots=roots, state_dir=tmp_path)
    channel = await connect(settings, asyncio.Event())
    spool, received = Spool(), []
    try:
        async with transporting(first, spool, received, channel=channel):
            await until(lambda: servicers[0].agents)
            assert not servicers[1].agents
            await servers[0].stop(None)
            await until(lambda: servicers[1].agents)
            spool.append(ActionStarted("w", "a"))
            await until(lambda: servicers[1].events)
    finally:
        for server in servers:
            await server.stop(None)
