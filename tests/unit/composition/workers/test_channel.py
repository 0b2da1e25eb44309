"""The line between the main process and a worker: whole messages with their files, in order, and never blocking."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from edge.composition.workers.channel import ALONE, GATHER_SECONDS, Channel, pair
from edge.composition.workers.messages import Event, Message, MessageError, Ping, Said, decoded, encoded


class Side:
    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[tuple[Message, list[int]]] = []
        self.lost = asyncio.Event()
        self.channel = Channel(sock, lambda message, files: self.heard.append((message, files)), self.lost.set)
        self.channel.start()

    async def has(self, count: int) -> list[tuple[Message, list[int]]]:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                await asyncio.sleep(0.001)
        return self.heard


@pytest.fixture
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    both = tuple(map(Side, pair()))
    yield both[0], both[1]
    for side in both:
        side.channel.close()


async def test_messages_come_in_order_each_with_its_own_files(sides: tuple[Side, Side], tmp_path: Path) -> None:
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


async def test_files_of_one_message_keep_their_order(sides: tuple[Side, Side], tmp_path: Path) -> None:
    main, worker = sides
    opened = []
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
        opened.append(os.open(tmp_path / name, os.O_RDONLY))
    main.channel.send(Ping(1), opened)
    ((_, files),) = await worker.has(1)
    assert [os.pread(fd, 100, 0) for fd in files] == [b"first", b"second"]
    for fd in (*opened, *files):
        os.close(fd)


async def test_what_the_other_side_does_not_take_waits_and_blocks_nobody(sides: tuple[Side, Side]) -> None:
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


async def test_what_can_wait_is_sent_at_once_while_there_is_little_of_it(sides: tuple[Side, Side]) -> None:
    main, worker = sides
    for number in range(ALONE):
        worker.channel.send(Ping(number), can_wait=True)
    assert worker.channel.waiting_bytes == 0
    assert [message for message, _ in await main.has(ALONE)] == [*map(Ping, range(ALONE))]


async def test_what_can_wait_gathers_where_there_is_much_of_it_and_comes_by_itself(sides: tuple[Side, Side]) -> None:
    main, worker = sides
    for number in range(100):
        worker.channel.send(Ping(number), can_wait=True)
    assert worker.channel.waiting_bytes >= sum(5 + len(encoded(Ping(number))) for number in range(5 * ALONE, 100))
    assert [message for message, _ in await main.has(100)] == [*map(Ping, range(100))]
    assert worker.channel.waiting_bytes == 0


async def test_what_can_wait_goes_before_the_next_that_can_not(sides: tuple[Side, Side], tmp_path: Path) -> None:
    main, worker = sides
    (tmp_path / "file").write_text("its content")
    with (tmp_path / "file").open() as opened:
        for number in range(100):
            files = [opened.fileno()] if number % 7 == 0 else []
            worker.channel.send(Ping(number), files, can_wait=number < 99)
    assert worker.channel.waiting_bytes == 0
    heard = await main.has(100)
    assert [message for message, _ in heard] == [*map(Ping, range(100))]
    assert [number for number, (_, files) in enumerate(heard) if files] == [*range(0, 100, 7)]
    for _, files in heard:
        for fd in files:
            assert os.pread(fd, 100, 0) == b"its content"
            os.close(fd)


@pytest.mark.parametrize("end", [Channel.close, Channel.finish])
async def test_what_waits_for_others_is_said_before_the_end(
    sides: tuple[Side, Side], end: Callable[[Channel], None]
) -> None:
    main, worker = sides
    for number in range(100):
        worker.channel.send(Ping(number), can_wait=True)
    end(worker.channel)
    assert [message for message, _ in await main.has(100)] == [*map(Ping, range(100))]


async def test_gathering_ends_when_it_is_quiet_again(sides: tuple[Side, Side]) -> None:
    main, worker = sides
    for number in range(50):
        worker.channel.send(Ping(number), can_wait=True)
    await main.has(50)
    await asyncio.sleep(2 * GATHER_SECONDS)
    worker.channel.send(Ping(50), can_wait=True)
    assert worker.channel.waiting_bytes == 0


async def test_what_gathers_where_the_other_side_takes_nothing_is_bounded_by_its_size(
    sides: tuple[Side, Side],
) -> None:
    main, worker = sides
    asyncio.get_running_loop().remove_reader(main.channel._sock)
    text = "x" * 100_000
    for number in range(60):
        worker.channel.send(Said("said", [number, text]), can_wait=True)
    assert worker.channel.waiting_bytes > 5_000_000
    await asyncio.sleep(2 * GATHER_SECONDS)
    assert worker.channel.waiting_bytes > 3_000_000  # what the socket's buffer has not taken
    main.channel.start()
    assert [message.key[0] for message, _ in await main.has(60)] == list(range(60))
    await worker.channel.drained()
    assert worker.channel.waiting_bytes == 0


async def test_the_end_of_one_side_is_heard_after_its_last_words(sides: tuple[Side, Side]) -> None:
    main, worker = sides
    worker.channel.send(Ping(1))
    worker.channel.close()
    async with asyncio.timeout(5):
        await main.lost.wait()
    assert main.heard == [(Ping(1), [])]


async def test_a_main_process_that_stops_still_hears_what_the_worker_says_of_it(sides: tuple[Side, Side]) -> None:
    main, worker = sides
    main.channel.finish()
    async with asyncio.timeout(5):
        await worker.lost.wait()
    worker.channel.send(Ping(7))
    assert await main.has(1) == [(Ping(7), [])]


async def test_a_frame_of_any_length_is_not_waited_for(sides: tuple[Side, Side]) -> None:
    main, worker = sides
    main.channel._sock.send(b"\xff\xff\xff\xff\x00")
    async with asyncio.timeout(5):
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
