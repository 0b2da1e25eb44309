"""The gRPC server as a child process: its parent's reaction to its end and to its messages."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from edge.journey.events import Notice
from edge.run.errors import MessageError, StackError
from edge.run.server_process import supervisor
from edge.run.server_process.channel import (
    Channel,
    Failed,
    KeptAway,
    LogLine,
    Message,
    Ping,
    Reread,
    ServerState,
    Up,
    decoded,
    encoded,
    pair,
)
from edge.run.server_process.core_log import MAX_LINE_BYTES, MAX_LINES, CoreLog
from edge.run.server_process.supervisor import ServerBegin, ServerProcess, child_settings
from edge.settings.model import EdgeSettings, Service, StackSettings
from tests.interop.authority import Authority
from tests.support.virtual_time import turns
from tests.waiting import PATIENCE_SECONDS, until
from tink.server import ActivityKind, AgentActivity, ServerSettings, TlsFiles

EndChannel = Callable[[Channel], None]

SETTINGS = StackSettings(
    frozenset({Service.SERVER, Service.HTTP}),
    server=ServerSettings(memory=300_000_000),
    server_apart=True,
    edge=EdgeSettings(reports_key=Path("reports.key")),
)


class Child:
    """A process that a test ends, with the other end of its channel."""

    pid = 2**22 + 1  # no process has this id

    channel: Channel

    def __init__(self, begin: ServerBegin, stderr: int) -> None:
        self.begin = begin
        self.stderr = os.dup(stderr)
        self.received: list[Message] = []
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self.lost = asyncio.Event()

    async def open(self, channel: int) -> None:
        sock = socket.socket(fileno=os.dup(channel))
        self.channel = await Channel.open(sock, self.received.append, self._lost)

    def _lost(self) -> None:
        self.lost.set()
        self.end(0)

    def end(self, status: int, reported: bytes = b"") -> None:
        if self.returncode is None:
            os.write(self.stderr, reported or b"\n")
            os.close(self.stderr)
            self.returncode = status
            self.channel.close()
            self._ended.set()

    def kill(self) -> None:
        self.end(-9)

    async def wait(self) -> int:
        await self._ended.wait()
        return self.returncode or 0


class Parent:
    def __init__(self) -> None:
        self.children: asyncio.Queue[Child] = asyncio.Queue()
        self.started: list[Child] = []
        self.seen: list[AgentActivity] = []
        self.notices: list[Notice] = []
        self.process = ServerProcess(SETTINGS, Path("kubeconfig"), self.seen.append, self.notices.append)

    async def start_process(self, begin: ServerBegin, channel: int, stderr: int) -> Child:
        child = Child(begin, stderr)
        await child.open(channel)
        self.started.append(child)
        self.children.put_nowait(child)
        return child

    async def child(self) -> Child:
        return await asyncio.wait_for(self.children.get(), PATIENCE_SECONDS)

    async def serving_child(self) -> Child:
        child = await self.child()
        child.channel.send(Up())
        await self.process.listening()
        return child

    def sample(self, name: str) -> float:
        return {each.name: each.samples[0].value for each in self.process.metrics()}[name]

    async def until(self, text: str) -> None:
        """Wait until the problem contains this text; empty: until there is none."""
        await until(lambda: text in self.process.problem if text else not self.process.problem)


@pytest.fixture
async def parent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parent]:
    made = Parent()
    monkeypatch.setattr(supervisor, "start_process", made.start_process)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.001)
    made.process.start()
    yield made
    await made.process.stop()


async def test_child_has_the_service_alone_at_the_api_of_its_parent(parent: Parent) -> None:
    settings = (await parent.child()).begin.settings
    assert settings.services == {Service.SERVER}
    assert settings.kubeconfig == Path("kubeconfig")
    assert not settings.server_apart
    assert settings.edge.reports_key is None, "what it sees goes to its parent, which tells the other edges"
    assert settings.server == SETTINGS.server
    assert child_settings(replace(SETTINGS, kubeconfig=Path("cluster")), Path("cluster")).kubeconfig == Path("cluster")


async def test_start_waits_until_the_child_listens_and_reports_why_it_can_not(parent: Parent) -> None:
    child = await parent.child()
    child.channel.send(Failed("the port is taken: choose another one with --grpc-port"))
    child.end(1)
    with pytest.raises(StackError, match=r"^the port is taken: choose another one with --grpc-port$"):
        await parent.process.listening()
    reported = "agents are not served: the gRPC server's process can't start: the port is"
    assert parent.process.problem.startswith(reported)
    (await parent.child()).channel.send(Up())
    await parent.until("")
    await parent.process.listening()


async def test_child_that_ends_is_a_problem_until_another_one_serves(
    parent: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    child = await parent.serving_child()
    assert parent.process.problem == ""
    child.end(-6, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    await parent.until("needed more memory than --grpc-memory allows (300 MB)")
    assert "agents are not served: the gRPC server's process ended" in parent.process.problem
    assert parent.sample("tinkedge_server_up") == 0
    (await parent.child()).channel.send(Up())
    await parent.until("")
    assert [notice.outcome for notice in parent.notices] == ["failed", "ok"]
    assert "it is started again, and agents connect again" in caplog.text
    assert (parent.sample("tinkedge_server_up"), parent.sample("tinkedge_server_restarts")) == (1, 1)


async def test_child_that_keeps_ending_is_a_note_for_operators(parent: Parent) -> None:
    for _ in range(3):
        child = await parent.child()
        child.channel.send(Up())
        await parent.until("")
        child.end(-11)
        await parent.until("SIGSEGV")
    assert parent.process.note == "the gRPC server's process ended by signal SIGSEGV, 3 times within 60 s"


async def test_next_child_blocks_the_networks_that_the_previous_one_blocked(parent: Parent) -> None:
    child = await parent.child()
    until = parent.process._clock() + 300
    child.channel.send(KeptAway([("192.0.2.66/32", until), ("192.0.2.1/32", 0.0)]))
    child.end(-6)
    assert (await parent.child()).begin.kept_away == (("192.0.2.66/32", until),)


async def test_activity_of_agents_and_metrics_reach_the_parent(parent: Parent) -> None:
    child = await parent.child()
    child.channel.send(Up())
    who, names, lines = ("id", "192.0.2.7"), ("two", "a/b", "a/w", "stream"), ("one", "two")
    activity = AgentActivity(*who, ActivityKind.OUTPUT, *names, lines, 3, elsewhere=True)
    child.channel.send(activity)
    metrics = "# TYPE tinkedge_agents_connected gauge\ntinkedge_agents_connected 7.0\n"
    child.channel.send(ServerState("192.0.2.9 is not here", metrics))
    await until(lambda: parent.process.note)
    assert parent.seen == [activity]
    assert parent.process.note == "192.0.2.9 is not here"
    assert parent.sample("tinkedge_agents_connected") == 7


async def test_sighup_reaches_the_child_and_stop_ends_it_in_order(parent: Parent) -> None:
    child = await parent.serving_child()
    assert parent.process.reread()
    await until(lambda: Reread(logging.getLogger().level) in child.received)
    await parent.process.stop()
    assert child.lost.is_set()
    assert child.returncode == 0
    assert parent.notices == [], "that is no failure"


@pytest.mark.parametrize("count", range(12))
async def test_stop_ends_in_whatever_turn_of_the_loop_the_child_dies(parent: Parent, count: int) -> None:
    child = await parent.serving_child()
    child.end(-9)
    await turns(count)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await parent.process.stop()
    await turns(3)
    assert all(each.returncode is not None for each in parent.started), "a child that was started meanwhile ends too"


async def test_child_with_too_much_memory_is_ended(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    await parent.serving_child()
    monkeypatch.setattr(supervisor, "resident_bytes", lambda _pid: 301e6)
    await parent.until("had 301 MB of memory; --grpc-memory is 300 MB")


# --- its standard error -----------------------------------------------------------------------------------------------

CORE = b"E1129 02:13:26.392442   31373 hpack_encoder.cc:618] Ignoring key value pair due to size limit. %d\n"


async def test_standard_error_is_logged_once_for_each_place_in_the_source_of_grpc_and_is_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read, write = os.pipe()
    log = CoreLog(read, lambda: 100.0)
    for number in range(400):
        log.take(CORE % number)
    log.take(b"E1129 02:13:26.392442   31373 hpack_parser.cc:1048] Error parsing 'x' metadata\n")
    assert caplog.messages == [
        "hpack_encoder.cc:618: Ignoring key value pair due to size limit. 0",
        "hpack_parser.cc:1048: Error parsing 'x' metadata",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    # Long, many or unprintable lines of remote hosts.
    for _ in range(100):
        log.take(b"x" * 50_000)
    log.take(b"\n\x1b[31mred\n")
    for number in range(1000):
        log.take(b"line %d\n" % number)
    assert len(caplog.messages) == MAX_LINES
    assert max(map(len, caplog.messages)) == MAX_LINE_BYTES
    assert not any("\x1b" in line for line in caplog.messages)
    os.close(write)
    log.close()
    # The last lines of a dying process, without a line end.
    read, write = os.pipe()
    log = CoreLog(read)
    os.write(write, b"MemoryError: no line end")
    os.close(write)
    log.close()
    assert log.lacks_memory
    assert caplog.messages[-1] == "MemoryError: no line end"


async def test_bad_certificate_starts_no_child_and_ends_no_start_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    name = x509.DNSName("edge")
    chain, key = authority.sign("tls", name, timedelta(days=-3))
    made = Parent()
    monkeypatch.setattr(supervisor, "start_process", made.start_process)
    server = replace(SETTINGS.server, tls=TlsFiles(chain, key))
    made.process = ServerProcess(replace(SETTINGS, server=server), None, made.seen.append, made.notices.append)
    made.process.start()
    try:
        await made.process.listening()
        assert made.process.problem.startswith(f"agents are not served: --grpc-tls-cert {chain}: ended on ")
        assert "it is read again by itself, or by 'systemctl reload tinkedge'" in made.process.problem
        assert made.sample("tinkedge_server_up") == 0
        assert not made.process.reread()
        key.write_bytes(b"")
        assert not made.process.reread()
        assert f"--grpc-tls-key {key}: holds no private key" in made.process.problem
        chain.unlink()
        assert not made.process.reread()
        assert f"{chain}: No such file or directory" in made.process.problem
        assert made.started == []
        authority.sign("tls", name)
        assert made.process.reread()
        assert made.process.problem == "agents are not served yet: the gRPC server starts"
        await made.serving_child()
        await made.until("")
    finally:
        await made.process.stop()
    assert len(made.notices) == 4
    assert caplog.text.count("agents are not served until then") == 4


# --- the channel between parent and child -----------------------------------------------------------------------------


class Side:
    """One end of a channel, and the messages that it has received."""

    channel: Channel

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received: list[Message] = []
        self.lost = asyncio.Event()

    async def open(self) -> None:
        self.channel = await Channel.open(self.sock, self.received.append, self.lost.set)

    async def has(self, count: int) -> list[Message]:
        await until(lambda: len(self.received) >= count)
        return self.received


@pytest.fixture
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    one, other = map(Side, pair())
    await one.open()
    await other.open()
    yield one, other
    one.channel.close()
    other.channel.close()


async def test_messages_arrive_in_order(sides: tuple[Side, Side]) -> None:
    main, child = sides
    for number in range(200):
        main.channel.send(Ping(number))
    assert await child.has(200) == [*map(Ping, range(200))]


async def test_bytes_that_the_other_side_does_not_read_wait_and_sending_does_not_block(
    sides: tuple[Side, Side],
) -> None:
    main, child = sides
    child.channel._transport.pause_reading()
    for number in range(100):
        main.channel.send(ServerState(str(number), "x" * 100_000))
    assert main.channel.waiting_bytes > 5_000_000
    child.channel._transport.resume_reading()
    assert await child.has(100) == [ServerState(str(number), "x" * 100_000) for number in range(100)]
    await until(lambda: main.channel.waiting_bytes == 0)


@pytest.mark.parametrize("end", [Channel.close, Channel.finish])
async def test_messages_that_were_sent_before_the_end_arrive(sides: tuple[Side, Side], end: EndChannel) -> None:
    main, child = sides
    for number in range(100):
        child.channel.send(Ping(number))
    end(child.channel)
    assert await main.has(100) == [*map(Ping, range(100))]
    await main.lost.wait()


async def test_parent_that_has_finished_still_receives_the_last_messages(sides: tuple[Side, Side]) -> None:
    main, child = sides
    main.channel.finish()
    await child.lost.wait()
    child.channel.send(Ping(7))
    assert await main.has(1) == [Ping(7)]


async def test_message_of_an_absurd_length_ends_the_channel(sides: tuple[Side, Side]) -> None:
    main, child = sides
    main.channel._transport.write(b"\xff\xff\xff\xff")
    await child.lost.wait()


@pytest.mark.parametrize("value", [None, 1, 1.5, "text", ["a", 1], {"a": [None]}])
def test_message_is_read_as_it_was_written(value: object) -> None:
    line = LogLine("logger", 20, "text", {"field": value})
    assert decoded(encoded(line)) == line


def test_text_that_is_no_unicode_is_sent_with_question_marks() -> None:
    read = decoded(encoded(LogLine("logger", 20, "no file a\udc80", {"name": "a\udc80"})))
    assert read == LogLine("logger", 20, "no file a?", {"name": "a?"})


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'["Nothing"]', b'["Ping"]', b'["Ping", 1, 2]'])
def test_bytes_that_are_no_message_are_an_error(content: bytes) -> None:
    with pytest.raises(MessageError):
        decoded(content)
