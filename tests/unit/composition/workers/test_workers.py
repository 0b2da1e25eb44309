"""Workers: the channel to the main process, the pool that replaces them, and what they share."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from edge.composition.settings import EdgeSettings, Service, StackSettings
from edge.composition.workers import pool as pools
from edge.composition.workers import worker as workers
from edge.composition.workers.channel import ALONE, GATHER_SECONDS, Channel, pair
from edge.composition.workers.inbox import Inbox
from edge.composition.workers.messages import Event, LogsWanted, Message, MessageError, Ping, Said, Up, decoded, encoded
from edge.composition.workers.pool import Pool
from edge.composition.workers.shared import SharedFailures, SharedOnce
from edge.composition.workers.worker import Begin, Sources, Worker
from edge.journey.events import Outcome, Step
from tests.support.virtual_time import elapse
from tests.waiting import until


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
