"""The threads that send files: everybody gets a share, nobody's descriptors leak, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from edge.artifacts import Artifact, Source, StorageError
from edge.http.files import sendfile
from edge.http.files.body import BodySender
from edge.http.files.sendfile import FileEndsError, IdleError, Part, SendThread, StoppedError
from tests.waiting import until

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "kernel").write_bytes(CONTENT)
    return tmp_path / "kernel"


@pytest.fixture
def file(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def thread() -> Iterator[SendThread]:
    thread = SendThread("test", idle_seconds=0.3)
    yield thread
    thread.stop()


@pytest.fixture
def patient() -> Iterator[SendThread]:
    """One that gives no machine up while a test lasts."""
    thread = SendThread("test", idle_seconds=60)
    yield thread
    thread.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def received(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        part = await asyncio.get_running_loop().sock_recv(sock, min(size, 100_000))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def settled(before: int) -> None:
    await until(lambda: descriptors() <= before)


async def test_part_of_a_file_arrives_as_it_is(patient: SendThread, file: int, pair: Any) -> None:
    before = descriptors()
    sending = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 1000, 900_000)))
    assert await received(pair[1], 899_000) == CONTENT[1000:900_000]
    await sending
    await settled(before)
    pair[0].close()
    assert await received(pair[1], 1) == b""  # nothing more, and no descriptor keeps the connection open


async def test_machine_that_takes_nothing_is_given_up_after_its_time_and_not_before(
    thread: SendThread, file: int, pair: Any
) -> None:
    part = Part(pair[0].fileno(), file, 0, len(CONTENT))
    start = asyncio.get_running_loop().time()
    with pytest.raises(IdleError):
        await thread.send(part)
    assert asyncio.get_running_loop().time() - start >= 0.3
    assert 0 < part.offset < len(CONTENT)


async def test_slow_machine_is_not_given_up(file: int, pair: Any) -> None:
    thread = SendThread("test", idle_seconds=2)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    sending = asyncio.create_task(thread.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    got = b""
    while len(got) < len(CONTENT):
        got += await received(pair[1], min(75_000, len(CONTENT) - len(got)))
        await asyncio.sleep(0.18)  # 2.5 s in all
    await sending
    assert got == CONTENT
    thread.stop()


async def test_stuck_machine_holds_nobody_up(patient: SendThread, file: int, pair: Any) -> None:
    stuck = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    await asyncio.sleep(0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        async with asyncio.timeout(20):
            sending = asyncio.create_task(patient.send(Part(ours.fileno(), file, 0, len(CONTENT))))
            assert await received(theirs, len(CONTENT)) == CONTENT
            await sending
    assert not stuck.done()
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)


async def test_cancelled_part_is_let_go_at_once(patient: SendThread, file: int, pair: Any) -> None:
    before = descriptors()
    sending = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    await asyncio.sleep(0.05)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await settled(before)
    assert patient.load == 0


async def test_machine_that_hangs_up_and_file_that_shrinks_are_told_apart(
    thread: SendThread, file: int, path: Path, pair: Any
) -> None:
    os.truncate(path, 1000)
    with pytest.raises(FileEndsError):
        await thread.send(Part(pair[0].fileno(), file, 0, 2000))
    pair[1].close()
    with pytest.raises(ConnectionError):
        await thread.send(Part(pair[0].fileno(), file, 0, 1000))


async def test_stop_gives_everything_up_and_what_comes_later_too(patient: SendThread, file: int, pair: Any) -> None:
    before = descriptors()
    sending = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    await asyncio.sleep(0.05)
    patient.stop()
    with pytest.raises(StoppedError):
        await sending
    with pytest.raises(StoppedError):
        await patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT)))
    assert descriptors() <= before


async def test_fast_machines_take_turns(thread: SendThread, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sendfile, "PIECE_BYTES", 10_000)
    turns: list[int] = []
    real = os.sendfile

    def noted(sock: int, *rest: int) -> int:
        turns.append(sock)
        return real(sock, *rest)

    monkeypatch.setattr(os, "sendfile", noted)
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    await asyncio.gather(*(thread.send(Part(ours.fileno(), file, 0, 100_000)) for ours, _ in pairs))
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    assert len(turns) == 30
    # Once all three are there, no one has two turns more than another.
    counts = dict.fromkeys(turns, 0)
    for sock in turns[:-3]:
        counts[sock] += 1
    first, last = min(counts.values()), max(counts.values())
    assert last - first <= 3, turns


async def test_threads_have_a_lower_priority_than_the_event_loop(thread: SendThread) -> None:
    def priorities() -> list[int]:
        found = []
        for task in list(Path("/proc/self/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                found.append(os.getpriority(os.PRIO_PROCESS, int(task.name)))
        return found

    async with asyncio.timeout(20):
        lower = min(os.getpriority(os.PRIO_PROCESS, 0) + sendfile.NICENESS, 19)  # the kernel's lowest
        while lower not in priorities():
            await asyncio.sleep(0.01)


class LazyTransport:
    """Holds the head in its buffer until it has been asked three times, as a loop does that writes later."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.asked = 0
        self.corked = False

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> socket.socket:
        return self.sock

    def get_write_buffer_size(self) -> int:
        self.asked += 1
        self.corked = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 1
        if self.asked == 3:
            self.sock.send(b"head")
        return 7 if self.asked < 3 else 0


class Head(web.StreamResponse):
    """A response whose head is sent by somebody else."""

    async def prepare(self, _request: Any) -> Any:
        return None


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_body_waits_until_the_head_has_left(file: int, connected: Any) -> None:
    sender = BodySender(threads=1)
    response = Head()
    response.content_length = 4
    request: Any = SimpleNamespace(transport=LazyTransport(connected[0]))
    with Artifact("u", os.dup(file), len(CONTENT), "v", Source.FILE, None) as artifact:
        await sender.send(request, response, artifact, 100)
    assert request.transport.corked  # the head is no segment of its own
    assert await received(connected[1], 8) == b"head" + CONTENT[100:104]
    assert connected[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0
    sender.close()


async def test_file_that_is_shorter_than_promised_is_an_error_of_ours(file: int, connected: Any) -> None:
    sender = BodySender(threads=1)
    response = Head()
    response.content_length = len(CONTENT) + 1
    request: Any = SimpleNamespace(transport=LazyTransport(connected[0]))
    with Artifact("http://h/u", os.dup(file), len(CONTENT) + 1, "v", Source.FILE, None) as artifact:
        sending = asyncio.create_task(sender.send(request, response, artifact, 0))
        await received(connected[1], len(CONTENT) + 4)
        with pytest.raises(StorageError, match=f"http://h/u: the file ends before byte {len(CONTENT)}"):
            await sending
    sender.close()
