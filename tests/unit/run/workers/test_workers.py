"""Workers: the channel to the main process, the pool that replaces them, and the artifacts that they borrow."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge.artifacts import Artifact, ArtifactCache, NotFoundError, Progress, Source, StorageError, UpstreamError
from edge.journey.events import Outcome, Step
from edge.run.workers import pool as pools
from edge.run.workers import worker as workers
from edge.run.workers.borrowing import BorrowedArtifacts, BorrowedSecrets
from edge.run.workers.channel import ALONE, GATHER_SECONDS, Channel, pair
from edge.run.workers.inbox import Inbox
from edge.run.workers.lending import Lending
from edge.run.workers.messages import (
    ArtifactFailed,
    ArtifactFilled,
    ArtifactOpened,
    ArtifactWanted,
    CloseArtifact,
    Event,
    LogsWanted,
    Message,
    MessageError,
    OpenArtifact,
    Ping,
    ReadSecret,
    Said,
    SecretRead,
    Up,
    decoded,
    encoded,
)
from edge.run.workers.pool import Pool
from edge.run.workers.shared import SharedFailures, SharedOnce
from edge.run.workers.worker import Begin, Sources, Worker
from edge.settings.model import EdgeSettings, Service, StackSettings
from tests.support.virtual_time import elapse, turns
from tests.unit.artifacts.conftest import Clock, Upstream, clock, make_cache, start_cache, upstream
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.client import NotFoundError as NoSecretError
from tink.kube.client import UnreachableError


class Side:
    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[tuple[Message, list[int]]] = []
        self.lost = asyncio.Event()
        self.channel = Channel(sock, lambda message, files: self.heard.append((message, files)), self.lost.set)
        self.channel.start()

    async def has(self, count: int) -> list[tuple[Message, list[int]]]:
        await until(lambda: len(self.heard) >= count)
        return self.heard

    def send_pings(self, count: int) -> None:
        for number in range(count):
            self.channel.send(Ping(number), can_wait=True)

    async def pings(self, count: int) -> list[Message]:
        return [message for message, _ in await self.has(count)]


def pings(count: int) -> list[Ping]:
    return [*map(Ping, range(count))]


Sides = tuple[Side, Side]


@pytest.fixture
async def sides() -> AsyncIterator[Sides]:
    both = tuple(map(Side, pair()))
    yield both[0], both[1]
    for side in both:
        side.channel.close()


async def test_messages_come_in_order_each_with_its_own_files(sides: Sides, tmp_path: Path) -> None:
    main, worker = sides
    for number in range(200):
        file = tmp_path / str(number)
        file.write_text(f"file {number}")
        with file.open() as opened:
            main.channel.send(Ping(number), [opened.fileno()] if number % 3 == 0 else [])
    for number, (message, files) in enumerate(await worker.has(200)):
        assert message == Ping(number)
        assert len(files) == (number % 3 == 0)
        for fd in files:
            assert os.pread(fd, 100, 0) == f"file {number}".encode()
            os.close(fd)
    opened = [os.open(tmp_path / name, os.O_RDONLY) for name in ("7", "5")]
    main.channel.send(Ping(200), opened)
    (_, files) = (await worker.has(201))[-1]
    assert [os.pread(fd, 100, 0) for fd in files] == [b"file 7", b"file 5"], "in their order"
    for fd in (*opened, *files):
        os.close(fd)


async def test_what_the_other_side_does_not_take_waits_and_blocks_nobody(sides: Sides) -> None:
    main, worker = sides
    asyncio.get_running_loop().remove_reader(worker.channel._sock)
    text = "x" * 100_000
    for number in range(100):
        main.channel.send(Said("said", [number, text]))
    assert main.channel.waiting_bytes > 5_000_000
    worker.channel.start()
    heard = await worker.has(100)
    assert [message.key[0] for message, _ in heard] == list(range(100))
    await main.channel.drained()
    assert main.channel.waiting_bytes == 0


async def test_what_can_wait_gathers_where_there_is_much_of_it_and_comes_by_itself(sides: Sides) -> None:
    main, worker = sides
    worker.send_pings(ALONE)
    assert worker.channel.waiting_bytes == 0, "a little is sent at once"
    assert await main.pings(ALONE) == pings(ALONE)
    main.heard.clear()
    worker.send_pings(100)
    assert worker.channel.waiting_bytes >= sum(5 + len(encoded(Ping(number))) for number in range(5 * ALONE, 100))
    assert await main.pings(100) == pings(100)
    assert worker.channel.waiting_bytes == 0


async def test_what_can_wait_goes_before_the_next_that_can_not(sides: Sides, tmp_path: Path) -> None:
    main, worker = sides
    (tmp_path / "file").write_text("its content")
    with (tmp_path / "file").open() as opened:
        for number in range(100):
            files = [opened.fileno()] if number % 7 == 0 else []
            worker.channel.send(Ping(number), files, can_wait=number < 99)
    assert worker.channel.waiting_bytes == 0
    heard = await main.has(100)
    assert [message for message, _ in heard] == pings(100)
    assert [number for number, (_, files) in enumerate(heard) if files] == [*range(0, 100, 7)]
    for _, files in heard:
        for fd in files:
            assert os.pread(fd, 100, 0) == b"its content"
            os.close(fd)


@pytest.mark.parametrize("end", [Channel.close, Channel.finish])
async def test_what_waits_for_others_is_said_before_the_end(sides: Sides, end: Callable[[Channel], None]) -> None:
    main, worker = sides
    worker.send_pings(100)
    end(worker.channel)
    assert await main.pings(100) == pings(100)
    await main.lost.wait()


@pytest.mark.looptime
async def test_gathering_ends_when_it_is_quiet_again(sides: Sides) -> None:
    main, worker = sides
    worker.send_pings(50)
    await main.has(50)
    await elapse(2 * GATHER_SECONDS)
    worker.channel.send(Ping(50), can_wait=True)
    assert worker.channel.waiting_bytes == 0


@pytest.mark.looptime
async def test_what_gathers_where_the_other_side_takes_nothing_is_bounded(sides: Sides) -> None:
    main, worker = sides
    asyncio.get_running_loop().remove_reader(main.channel._sock)
    text = "x" * 100_000
    for number in range(60):
        worker.channel.send(Said("said", [number, text]), can_wait=True)
    assert worker.channel.waiting_bytes > 5_000_000
    await elapse(2 * GATHER_SECONDS)
    assert worker.channel.waiting_bytes > 3_000_000  # what the socket's buffer has not taken
    main.channel.start()
    assert [message.key[0] for message, _ in await main.has(60)] == list(range(60))
    await worker.channel.drained()
    assert worker.channel.waiting_bytes == 0


async def test_a_main_process_that_stops_still_hears_what_the_worker_says_of_it(sides: Sides) -> None:
    main, worker = sides
    main.channel.finish()
    await worker.lost.wait()
    worker.channel.send(Ping(7))
    assert await main.has(1) == [(Ping(7), [])]


async def test_a_frame_of_any_length_is_not_waited_for(sides: Sides) -> None:
    main, worker = sides
    main.channel._sock.send(b"\xff\xff\xff\xff\x00")
    await worker.lost.wait()


@pytest.mark.parametrize("value", [None, 1, 1.5, "text", ["a", 1], {"a": [None]}])
def test_a_message_is_read_as_it_was_written(value: Any) -> None:
    assert decoded(encoded(Said("said", [value]))) == Said("said", [value])


def test_a_name_that_is_no_unicode_is_shown_and_not_lost() -> None:
    event = Event(1.0, "m", "tftp", "failed", "no file a\udc80", {"name": "a\udc80"})
    read = decoded(encoded(event))
    assert isinstance(read, Event)
    assert read.message == "no file a?"


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'["Nothing"]', b'["Ping"]', b'["Ping", 1, 2]'])
def test_what_is_no_message_is_an_error(content: bytes) -> None:
    with pytest.raises(MessageError):
        decoded(content)


async def no_secret(_namespace: str, _name: str) -> dict[str, Any]:
    return {}


SOURCES = Sources({}, None, no_secret)


class Process:
    """Of a worker that serves at once, until it is ended."""

    pid = 1

    def __init__(self, channel: int) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.returncode: int | None = None
        self.channel = Channel(socket.socket(fileno=os.dup(channel)), lambda *_: None, lambda: None)
        self.channel.send(Up())

    async def wait(self) -> int:
        self.returncode = await asyncio.shield(self.status)
        return self.returncode

    def kill(self) -> None:
        if not self.status.done():
            self.status.set_result(-9)
            self.channel.close()


class Life:
    """Says how each process after the first begins, and has those that there were."""

    def __init__(self) -> None:
        self.begins: list[Exception] = []
        self.processes: list[Process] = []

    async def process(self, _module: str, begin: Begin, channel: int) -> Process:
        if self.processes and self.begins:
            raise self.begins.pop(0)
        self.processes.append(Process(channel))
        return self.processes[-1]


@pytest.fixture
async def life(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Life, Pool]]:
    life = Life()
    monkeypatch.setattr(workers, "start_process", life.process)
    monkeypatch.setattr(pools, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(workers, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(workers, "_LAST_WORDS_SECONDS", 0.01)
    settings = StackSettings(frozenset({Service.HTTP}), edge=EdgeSettings(workers=1))
    inbox = Inbox(lambda *_, **__: None, lambda: None, lambda *_: None)
    pool = Pool(settings, SOURCES, inbox, ready=lambda: "", learnt=list, announce=lambda _: None)
    await pool.start()
    yield life, pool
    await pool.stop()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("unable to perform operation on <WriteUnixTransport closed=True>; the handler is closed"),
        OSError(errno.EAGAIN, "Resource temporarily unavailable"),
        BrokenPipeError(),
    ],
    ids=["the event loop's", "no process", "a pipe"],
)
async def test_a_worker_that_could_not_be_started_is_tried_again(
    life: tuple[Life, Pool], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    lives, _ = life
    lives.begins = [error, error]
    lives.processes[0].kill()
    await until(lambda: len(lives.processes) >= 2)
    assert caplog.text.count("worker 1 can't be started: ") >= 2


async def test_a_worker_that_can_not_be_told_of_changes_is_replaced(
    life: tuple[Life, Pool], caplog: pytest.LogCaptureFixture
) -> None:
    lives, pool = life
    (worker,) = pool._workers.values()
    worker.feed.change("hardware", {"metadata": {"name": "m", "namespace": "n"}, "number": 1 << 80})
    await until(lambda: len(lives.processes) >= 2)
    assert "worker 1 can't be told of what changes: it is ended" in caplog.text


async def test_a_program_that_ends_at_once_is_a_worker_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    begin = Begin(StackSettings(frozenset()), 1, 1, logging.INFO)
    for _ in range(5):
        worker = await Worker.started(begin, SOURCES, lambda *_: None)
        assert await worker.ended() == 7


def test_what_one_worker_has_said_the_other_does_not() -> None:
    told: list[list[Any]] = []
    one, other = SharedOnce(60, 10, told.append), SharedOnce(60, 10, told.append)
    assert one.due(("metadata", "m1", None), 0)
    assert told == [["metadata", "m1", None]]
    other.heard(told[0], 0)
    assert not other.due(("metadata", "m1", None), 1)
    assert other.due(("metadata", "m1", None), 61), "after the interval it is news again"
    assert len(told) == 2, "what is heard is not handed on"


def test_why_a_file_did_not_come_is_known_to_all_until_it_came() -> None:
    told: list[tuple[str, str]] = []
    one = SharedFailures(10, lambda mac, reason: told.append((mac, reason)))
    other = SharedFailures(10, lambda mac, reason: told.append((mac, reason)))
    one["m1"] = "404"
    other.heard(*told.pop())
    assert other.get("m1") == "404"
    assert other.pop("m1", None) == "404"
    one.heard(*told.pop())
    assert "m1" not in one
    assert one.pop("m1", None) is None
    assert told == [], "nothing is said of what was not known"


async def test_what_workers_saw_in_one_turn_is_recorded_by_its_time() -> None:
    seen: list[str] = []

    def record(_mac: str, _step: Step, _outcome: Outcome, message: str, **_: object) -> None:
        seen.append(message)

    wanted: list[int] = []
    inbox = Inbox(record, lambda: wanted.append(1), lambda _sock, _received: None)
    worker: Any = None
    inbox.heard(worker, Event(2.0, "m", "kernel", "ok", "second", {}), [])
    inbox.heard(worker, Event(1.0, "m", "script", "ok", "first", {}), [])
    inbox.heard(worker, LogsWanted(), [])
    assert seen == []
    inbox.flush()
    assert seen == ["first", "second"]
    assert wanted == [1]


URL = "http://upstream/kernel"


class Paced:
    """A download at the pace of its one reader, as of a file that another edge passes through."""

    is_paced = True

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.at = 4

    def progress(self) -> Progress:
        return Progress(URL, self.at, 10, 1)

    async def filled(self, offset: int) -> int:
        self.asked.append(offset)
        return self.at

    async def whole_sha256(self) -> str:
        return "ab"


class Line:
    """A worker's side and the main process's, with no process in between."""

    def __init__(self, cache: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.cache = cache
        self.secrets = BorrowedSecrets(self.to_main)
        self.artifacts = BorrowedArtifacts(self.to_main, clock)
        self.secret: Raw | Exception = AssertionError("no test asks for it")
        self.lending = Lending(cache, self.read, self.to_worker)
        self.questions = 0

    async def read(self, _namespace: str, _name: str) -> Raw:
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret

    def to_main(self, message: Message) -> None:
        match message:
            case OpenArtifact():
                self.questions += 1
                self.lending.open(message)
            case ArtifactWanted():
                self.lending.wanted(message)
            case CloseArtifact():
                self.lending.close(message)
            case ReadSecret():
                self.lending.read(message)

    def to_worker(self, message: Message, files: Sequence[int] = ()) -> None:
        match message:
            case ArtifactOpened():
                self.artifacts.opened(message, os.dup(files[0]))
            case ArtifactFilled():
                self.artifacts.filled(message)
            case ArtifactFailed():
                self.artifacts.failed(message)
            case SecretRead():
                self.secrets.read(message)

    def held(self) -> bool:
        """Whether the cache has a file that is in use."""
        return any(occupant.held for occupant in self.cache._store.occupants())


async def test_what_forgets_what_was_read_is_asked_for_no_more_than_the_reader_in_the_worker_wants(
    tmp_path: Path, start_cache: Callable[..., Awaitable[ArtifactCache]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    paced, cache = Paced(), await start_cache()

    async def passed_through(url: str, *, sha256: str = "") -> Artifact:
        fd = os.open(tmp_path / "file", os.O_RDONLY)
        return Artifact(url, fd, 10, "v1", Source.UPSTREAM, paced, sha256=sha256, released=lambda: None)

    monkeypatch.setattr(cache, "open", passed_through)
    both = Line(cache)
    with await both.artifacts.open(URL) as artifact:
        await turns(10)
        assert paced.asked == [], "the reader has not said where it begins"
        assert await artifact.filled(2) == 4
        paced.at = 10
        await turns(10)
        assert paced.asked == [2], "it has bytes that it has not read"
        assert await artifact.filled(4) == 10
        assert paced.asked == [2, 4]
    await both.lending.stop()


__all__ = ["clock", "make_cache", "start_cache", "upstream"]

FRESH = 10.0
"""Seconds for which the cache does not ask the upstream again."""


async def test_download_is_followed_from_afar_and_fails_as_it_fails_in_the_main_process(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream
) -> None:
    both = Line(await start_cache())
    upstream.gate.clear()
    half = len(upstream.content) // 2
    artifact = await both.artifacts.open(upstream.url)
    assert artifact.progress is not None
    at = 0
    while at < half:
        at = await artifact.filled(at)
    following = asyncio.ensure_future(artifact.filled(half))
    await turns(10)
    assert not following.done()
    upstream.gate.set()
    assert await following > half
    assert await artifact.sha256() == hashlib.sha256(upstream.content).hexdigest()
    artifact.close()
    await until(lambda: both.lending.open_artifacts == 0)
    upstream.mode = "dies"
    with await both.artifacts.open(f"{upstream.url}2") as broken:
        for reading in (broken.filled(half), broken.sha256()):
            with pytest.raises(UpstreamError):
                await reading
    await both.lending.stop()


async def test_errors_are_what_they_were(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Line(await start_cache())
    upstream.mode = "404"
    with pytest.raises(NotFoundError, match=rf"{upstream.url}: 404 Not Found"):
        await both.artifacts.open(upstream.url)

    async def mistaken(*_: Any, **__: Any) -> Artifact:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(both.cache, "open", mistaken)
    with pytest.raises(StorageError, match="internal error"):
        await both.artifacts.open(URL)
    both.secret = {"data": {"a": "Yg=="}}
    assert await both.secrets("default", "s") == {"data": {"a": "Yg=="}}
    both.secret = NoSecretError(404, "NotFound", "no such Secret")
    with pytest.raises(NoSecretError, match="no such Secret"):
        await both.secrets("default", "s")
    both.secret = UnreachableError("the API is away")
    with pytest.raises(UnreachableError, match="away"):
        await both.secrets("default", "s")


@pytest.fixture
async def process(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream, clock: Clock
) -> AsyncIterator[Line]:
    cache = await start_cache(revalidate_after=FRESH)
    with await cache.open(upstream.url) as artifact:
        await artifact.sha256()
    await until(lambda: cache.stored_files == 1 and not cache._flights)
    cache.counts.opened.clear()
    process = Line(cache, clock)
    yield process
    await process.lending.stop()


async def test_second_machine_has_the_file_of_the_first_without_a_question(process: Line, upstream: Upstream) -> None:
    first = await process.artifacts.open(upstream.url)
    second = await process.artifacts.open(upstream.url)
    assert process.questions == 1
    assert (second.version, second.size, second.source) == (first.version, first.size, Source.CACHE)
    assert await second.sha256() == await first.sha256() != ""
    first.close()
    assert os.pread(second.fd, 256, 256) == upstream.content[256:512], "each has a descriptor of its own"
    second.close()


async def test_file_is_in_use_until_the_last_machine_has_it_and_each_is_counted(
    process: Line, upstream: Upstream
) -> None:
    artifacts = [await process.artifacts.open(upstream.url) for _ in range(3)]
    for artifact in artifacts:
        assert process.held()
        artifact.close()
    await until(lambda: not process.held())
    assert process.cache.counts.opened == {Source.CACHE: 3}
    artifact = await process.artifacts.open(upstream.url)
    assert process.questions == 2, "what was in nobody's use may have gone"
    await process.lending.stop()
    assert not process.held(), "what a worker that died had is closed"
    artifact.close()


async def test_file_that_has_changed_is_not_served_from_memory(process: Line, upstream: Upstream, clock: Clock) -> None:
    old = await process.artifacts.open(upstream.url)
    upstream.content, upstream.etag = upstream.content[::-1], '"v2"'
    clock.now += FRESH
    new = await process.artifacts.open(upstream.url)
    await new.sha256()  # it may still be on its way
    assert os.pread(new.fd, 256, 0) == upstream.content[:256]
    assert new.version != old.version
    assert os.pread(old.fd, 256, 0) == upstream.content[::-1][:256], "who has begun has it to the end"
    new.close()
    old.close()
    await until(lambda: not process.held())


async def test_another_checksum_is_another_question(process: Line, upstream: Upstream) -> None:
    with await process.artifacts.open(upstream.url) as artifact:
        sha256 = await artifact.sha256()
        with await process.artifacts.open(upstream.url, sha256=sha256):
            assert process.questions == 2
            with await process.artifacts.open(upstream.url, sha256=sha256):
                assert process.questions == 2


async def test_file_of_this_machine_is_looked_at_each_time(process: Line, tmp_path: Any) -> None:
    (tmp_path / "kernel").write_bytes(b"one")
    url = (tmp_path / "kernel").as_uri()
    with await process.artifacts.open(url):
        (tmp_path / "kernel").write_bytes(b"other")
        with await process.artifacts.open(url) as changed:
            assert changed.size == 5


async def test_too_many_open_files_are_an_error_and_take_nothing(
    process: Line, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_fd: int) -> int:
        raise OSError(24, "Too many open files")

    with await process.artifacts.open(upstream.url):
        with monkeypatch.context() as patch:
            patch.setattr("edge.run.workers.borrowing.os.dup", none_left)
            with pytest.raises(StorageError, match="Too many open files"):
                await process.artifacts.open(upstream.url)
        assert process.held()
    await until(lambda: not process.held())
    assert process.cache.counts.opened == {Source.CACHE: 1}


async def test_machine_that_left_before_its_file_came_leaves_nothing_open(process: Line, upstream: Upstream) -> None:
    waiting = asyncio.ensure_future(process.artifacts.open(upstream.url))
    await turns()
    waiting.cancel()
    await until(lambda: process.lending.open_artifacts == 0)
    assert not process.held()
