"""The TFTP server over loopback, packet by packet: who gets an answer, from where, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tftpy

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.tftp import server as server_module
from edge.tftp.packets import ErrorCode
from edge.tftp.server import TftpServer, TftpServerError
from edge.tftp.source import Opened, OpenFile, Refusal, TftpFile, TftpRequest

Address = tuple[str, int]

MAC = "52:54:00:00:00:01"
CONTENT = random.Random(7).randbytes(300_007)


@dataclass
class Loopback:
    """A server on a free port of loopback, and what it recorded."""

    open_file: OpenFile
    events: list[JourneyEvent] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self, **settings: int | bool) -> AsyncIterator[TftpServer]:
        server = TftpServer(self.open_file, self._record, host="127.0.0.1", port=0, **settings)  # type: ignore[arg-type]
        await server.start()
        self.address = ("127.0.0.1", server.port)
        try:
            yield server
        finally:
            await server.stop()
            assert server.transfers == 0

    def _record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
        self.events.append(JourneyEvent(0.0, mac, step, outcome, message, detail))

    async def settled(self, count: int) -> list[str]:
        """The messages, when `count` of them are there."""
        async with asyncio.timeout(5):
            while len(self.events) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        return [event.message for event in self.events]


def serving(content: bytes | memoryview, **more: object) -> Loopback:
    return Loopback(lambda _request: TftpFile(content, "file", MAC, **more))  # type: ignore[arg-type]


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with udp() as sock:
        yield sock


def udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def rrq(*options: str, name: str = "file", mode: str = "octet") -> bytes:
    return b"\0\1" + b"".join(text.encode() + b"\0" for text in (name, mode, *options))


def ack(number: int) -> bytes:
    return b"\0\4" + (number & 0xFFFF).to_bytes(2, "big")


async def receive(sock: socket.socket) -> tuple[bytes, Address]:
    async with asyncio.timeout(3):
        while True:
            try:
                return sock.recvfrom(70_000)
            except BlockingIOError:
                await asyncio.sleep(0.001)


async def silence(sock: socket.socket, seconds: float = 0.1) -> None:
    """Nothing comes."""
    await asyncio.sleep(seconds)
    with pytest.raises(BlockingIOError):
        sock.recvfrom(70_000)


async def download(sock: socket.socket, server: Address, request: bytes, block: int = 512, window: int = 1) -> bytes:
    """The file, as a client without faults takes it."""
    sock.sendto(request, server)
    data, expected, in_window = b"", 1, 0
    while True:
        packet, sender = await receive(sock)
        if packet[1] == 6:
            sock.sendto(ack(0), sender)
            continue
        assert packet[1] == 3, packet
        if packet[2:4] != ack(expected)[2:]:
            continue
        data, expected, in_window = data + packet[4:], expected + 1, in_window + 1
        last = len(packet) - 4 < block
        if last or in_window == window:
            in_window = 0
            sock.sendto(ack(expected - 1), sender)
        if last:
            return data


# --- the usual course ------------------------------------------------------------------------------------------------


async def test_tftpy_gets_the_whole_file(tmp_path: Path) -> None:
    loopback = serving(CONTENT)
    async with loopback.serving() as server:
        client = tftpy.TftpClient("127.0.0.1", server.port, {"blksize": 1428})
        await asyncio.to_thread(client.download, "file", str(tmp_path / "got"))
        await loopback.settled(1)
    assert (tmp_path / "got").read_bytes() == CONTENT


@pytest.mark.parametrize("single_port", [False, True])
@pytest.mark.parametrize(("block", "window"), [(512, 1), (1468, 4), (1468, 64), (8, 64), (16000, 64), (65464, 2)])
async def test_file_arrives_whole_whatever_its_blocks_and_windows(
    client: socket.socket, block: int, window: int, single_port: bool
) -> None:
    loopback = serving(CONTENT[: block * 300])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    async with loopback.serving(single_port=single_port):
        request = rrq("blksize", str(block), "windowsize", str(window))
        assert await download(client, loopback.address, request, block, window) == CONTENT[: block * 300]
        await loopback.settled(1)
    detail = loopback.events[0].detail
    assert (detail["block_bytes"], detail["window_blocks"]) == (block, window)


async def test_edk2_probe_is_information_and_the_transfer_after_it_a_success(client: socket.socket) -> None:
    loopback = serving(b"x" * 3000)
    async with loopback.serving():
        client.sendto(rrq("tsize", "0", "blksize", "1468", "windowsize", "4"), loopback.address)
        answer, transfer = await receive(client)
        assert answer == b"\0\6tsize\x003000\0blksize\x001468\0windowsize\x004\0"
        client.sendto(b"\0\5\0\x08User aborted the transfer\0", transfer)
        got = await download(client, loopback.address, rrq("blksize", "1468", "windowsize", "4"), 1468, 4)
        messages = await loopback.settled(2)
    assert got == b"x" * 3000
    assert [event.outcome for event in loopback.events] == [Outcome.INFO, Outcome.OK]
    assert messages[0] == "TFTP told the size of file, 3000 bytes"
    assert messages[1].startswith("TFTP sent file, 3000 bytes in 0.0")


async def test_large_window_goes_out_with_one_system_call(
    client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sendmsg = socket.socket.sendmsg

    class Counting(socket.socket):
        def sendmsg(self, buffers: list[bytes], *arguments: object) -> int:  # type: ignore[override]
            calls.append(len(buffers) // 2)
            return sendmsg(self, buffers, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Counting)
    loopback = serving(CONTENT[: 1468 * 32 * 3 - 1])
    async with loopback.serving():
        await download(client, loopback.address, rrq("blksize", "1468", "windowsize", "32"), 1468, 32)
        await loopback.settled(1)
    assert calls == [1, 32, 32, 32]


async def test_where_the_kernel_can_not_cut_windows_they_go_packet_by_packet(
    client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sendmsg = socket.socket.sendmsg

    class Old(socket.socket):
        def sendmsg(self, buffers: list[bytes], *arguments: object) -> int:  # type: ignore[override]
            calls.append(len(buffers) // 2)
            if len(buffers) > 2:
                raise OSError(5, "Input/output error")  # EIO: the interface does no checksums
            return sendmsg(self, buffers, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Old)
    loopback = serving(CONTENT)
    async with loopback.serving():
        got = await download(client, loopback.address, rrq("blksize", "1468", "windowsize", "32"), 1468, 32)
    assert got == CONTENT
    assert [count for count in calls if count > 1] == [32]  # it is tried once


async def test_send_buffer_that_is_full_loses_nothing(client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    sendmsg, calls = socket.socket.sendmsg, 0

    class Full(socket.socket):
        def sendmsg(self, buffers: list[bytes], *arguments: object) -> int:  # type: ignore[override]
            nonlocal calls
            calls += 1
            if calls % 3 == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return sendmsg(self, buffers, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Full)
    loopback = serving(CONTENT[:100_000])
    async with loopback.serving():
        got = await download(client, loopback.address, rrq("blksize", "1468", "windowsize", "8"), 1468, 8)
        await loopback.settled(1)
    assert got == CONTENT[:100_000]
    assert loopback.events[0].detail["resent_blocks"] == 0


async def test_journey_has_the_speed_the_step_and_what_was_sent_again(client: socket.socket) -> None:
    loopback = serving(b"x" * 600, step=Step.KERNEL)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        first, transfer = await receive(client)
        again, _ = await receive(client)
        assert again == first
        client.sendto(ack(1), transfer)
        await receive(client)
        client.sendto(ack(2), transfer)
        [message] = await loopback.settled(1)
    assert message.startswith("TFTP sent file, 600 bytes in 0.5")
    assert message.endswith(" MB/s), 1 blocks sent again")
    assert loopback.events[0].step is Step.KERNEL
    assert loopback.events[0].detail["client_ip"] == "127.0.0.1"


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_file_beyond_65535_blocks_arrives_with_a_warning(client: socket.socket) -> None:
    content = CONTENT * 2
    loopback = serving(content[: 65540 * 8])
    async with loopback.serving():
        got = await download(client, loopback.address, rrq("blksize", "8", "windowsize", "64"), 8, 64)
        [message] = await loopback.settled(1)
    assert got == content[: 65540 * 8]
    assert message.endswith("block numbers went beyond 65535, where some firmware stops: use HTTP, or larger blocks")


# --- losses ----------------------------------------------------------------------------------------------------------


async def test_lost_block_of_a_window_comes_again_without_waiting_for_the_timer(client: socket.socket) -> None:
    loopback = serving(CONTENT[: 512 * 5 + 1])
    async with loopback.serving():
        client.sendto(rrq("windowsize", "4"), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(0), transfer)
        started = time.monotonic()
        assert [(await receive(client))[0][3] for _ in range(4)] == [1, 2, 3, 4]
        for _ in range(3):  # the second was lost; EDK2 says so once for each block behind it
            client.sendto(ack(1), transfer)
        assert [(await receive(client))[0][3] for _ in range(4)] == [2, 3, 4, 5]
        client.sendto(ack(5), transfer)
        assert (await receive(client))[0][3] == 6
        assert time.monotonic() - started < 0.4
        client.sendto(ack(6), transfer)
        await loopback.settled(1)
    assert loopback.events[0].detail["resent_blocks"] == 3


async def test_lost_block_is_mended_soon_where_the_client_is_quick(client: socket.socket) -> None:
    loopback = serving(b"x" * 6000)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        for block in range(1, 5):
            packet, transfer = await receive(client)
            assert packet[3] == block
            client.sendto(ack(block), transfer)
        assert (await receive(client))[0][3] == 5  # and is lost
        started = time.monotonic()
        assert (await receive(client))[0][3] == 5
        assert time.monotonic() - started < 0.4


@pytest.mark.parametrize("options", [(), ("windowsize", "4")])
async def test_client_that_vanished_is_noticed_at_once(client: socket.socket, options: tuple[str, ...]) -> None:
    loopback = serving(b"x" * 60000)
    async with loopback.serving() as server:
        client.sendto(rrq(*options), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(0 if options else 1), transfer)
        client.close()
        [message] = await loopback.settled(1)
        assert server.transfers == 0
    assert "failed, gone: the client closed its port" in message


# --- requests that come again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("single_port", [False, True])
async def test_request_that_comes_again_is_answered_from_the_same_transfer(
    client: socket.socket, single_port: bool
) -> None:
    loopback = serving(b"x" * 600)
    async with loopback.serving(single_port=single_port) as server:
        for _ in range(3):
            client.sendto(rrq("tsize", "0"), loopback.address)
        async with asyncio.timeout(0.4):  # sooner than it would be repeated anyway
            answers = [await receive(client) for _ in range(3)]
        assert len(set(answers)) == 1
        assert server.transfers == 1
        assert (answers[0][1] == loopback.address) == single_port


@pytest.mark.parametrize("single_port", [False, True])
async def test_copy_of_a_request_that_was_late_disturbs_no_transfer(client: socket.socket, single_port: bool) -> None:
    loopback = serving(b"x" * 6000)
    async with loopback.serving(single_port=single_port) as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        assert (await receive(client))[0][3] == 2
        client.sendto(rrq(), loopback.address)
        client.sendto(ack(2), transfer)
        assert (await receive(client))[0][3] == 3
        assert server.transfers == 1


@pytest.mark.parametrize("single_port", [False, True])
async def test_client_that_asks_for_something_else_from_the_same_port_gets_it(
    client: socket.socket, single_port: bool
) -> None:
    loopback = Loopback(lambda request: TftpFile(request.name.encode() * 600, request.name, MAC))
    async with loopback.serving(single_port=single_port) as server:
        client.sendto(rrq(name="a"), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        await receive(client)
        client.sendto(rrq(name="b"), loopback.address)
        packet, transfer = await receive(client)
        assert packet == b"\0\3\0\1" + b"b" * 512
        assert server.transfers == 1
        [message] = await loopback.settled(1)
        assert message == "TFTP transfer of a: the client began anew at block 1 of 2"
        client.sendto(ack(1), transfer)
        assert (await receive(client))[0] == b"\0\3\0\2" + b"b" * 88


@pytest.mark.parametrize("single_port", [False, True])
async def test_machine_that_was_reset_in_the_middle_gets_the_same_file_anew(
    client: socket.socket, single_port: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.tftp.session._LATE_COPY_SECONDS", 0.1)
    loopback = serving(b"x" * 6000)
    async with loopback.serving(single_port=single_port):
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        await asyncio.sleep(0.3)
        while True:
            try:
                client.recv(2000)
            except BlockingIOError:
                break
        assert await download(client, loopback.address, rrq()) == b"x" * 6000
        messages = await loopback.settled(2)
    assert messages[0] == "TFTP transfer of file: the client began anew at block 1 of 12"


# --- files that take their time --------------------------------------------------------------------------------------


class Arriving:
    """A file that comes as the test wants, and how often it was closed."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.there = 0
        self.failure: Exception | None = None
        self.more = asyncio.Event()
        self.closed = 0
        self.waiting = 0

    def file(self) -> TftpFile:
        return TftpFile(self.content, "kernel", MAC, Step.KERNEL, self.filled, self.close)

    async def filled(self, offset: int) -> int:
        self.waiting += 1
        try:
            while self.there <= offset:
                if self.failure is not None:
                    raise self.failure
                await self.more.wait()
        finally:
            self.waiting -= 1
        return self.there

    def grow(self, there: int) -> None:
        self.there = there
        self.more.set()
        self.more = asyncio.Event()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.more.set()

    def close(self) -> None:
        self.closed += 1


async def test_file_that_is_still_arriving_is_sent_while_it_comes(client: socket.socket) -> None:
    arriving = Arriving(CONTENT)
    loopback = Loopback(lambda _request: arriving.file())
    async with loopback.serving() as server:
        request = rrq("blksize", "1468", "windowsize", "16")
        fetching = asyncio.ensure_future(download(client, loopback.address, request, 1468, 16))
        while arriving.there < len(CONTENT):
            await asyncio.sleep(0.01)
            arriving.grow(min(arriving.there + 20_000, len(CONTENT)))
        assert await fetching == CONTENT
        await loopback.settled(1)
        assert server.transfers == 0
    assert arriving.closed == 1
    assert arriving.waiting == 0
    assert loopback.events[0].detail["resent_blocks"] == 0


async def test_upstream_that_fails_in_the_middle_is_told_with_its_reason(client: socket.socket) -> None:
    arriving = Arriving(CONTENT)
    arriving.grow(600)
    loopback = Loopback(lambda _request: arriving.file())
    async with loopback.serving() as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        await asyncio.sleep(0.05)
        arriving.fail(RuntimeError("http://images/kernel: answered 503"))
        packet, _ = await receive(client)
        assert packet == b"\0\5\0\0kernel did not arrive: http://images/kernel: answered 503\0"
        [message] = await loopback.settled(1)
        assert server.transfers == 0
    assert message == (
        "TFTP transfer of kernel failed, the file did not arrive here: "
        "kernel did not arrive: http://images/kernel: answered 503, at block 1 of 586"
    )
    assert arriving.closed == 1


async def test_client_that_vanishes_while_the_file_arrives_leaves_nothing_behind(client: socket.socket) -> None:
    arriving = Arriving(CONTENT)
    arriving.grow(600)
    loopback = Loopback(lambda _request: arriving.file())
    async with loopback.serving() as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        await asyncio.sleep(0.05)
        client.close()
        arriving.grow(5000)
        await loopback.settled(1)
        assert server.transfers == 0
    assert arriving.closed == 1
    assert arriving.waiting == 0


async def test_stop_while_the_file_arrives_closes_it(client: socket.socket) -> None:
    arriving = Arriving(CONTENT)
    loopback = Loopback(lambda _request: arriving.file())
    async with loopback.serving():
        client.sendto(rrq("tsize", "0"), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(0), transfer)
        await asyncio.sleep(0.05)
        assert arriving.waiting == 1
    assert (await receive(client))[0] == b"\0\5\0\0the server is stopping\0"
    await asyncio.sleep(0)
    assert (arriving.closed, arriving.waiting) == (1, 0)


def later(opened: Opened | Exception, event: asyncio.Event) -> Callable[[TftpRequest], Awaitable[Opened]]:
    async def open_file(_request: TftpRequest) -> Opened:
        await event.wait()
        if isinstance(opened, Exception):
            raise opened
        return opened

    return open_file


async def test_file_that_takes_time_to_open_is_answered_once_however_often_it_is_asked_for(
    client: socket.socket,
) -> None:
    event = asyncio.Event()
    loopback = Loopback(later(TftpFile(b"x" * 100, "file", MAC), event))
    async with loopback.serving() as server:
        for _ in range(5):
            client.sendto(rrq(), loopback.address)
            await asyncio.sleep(0.01)
        await silence(client, 0.05)
        event.set()
        packet, _ = await receive(client)
        assert packet == b"\0\3\0\1" + b"x" * 100
        assert server.transfers == 1
        await silence(client, 0.05)


async def test_file_that_could_not_be_opened_is_refused_with_the_reason(client: socket.socket) -> None:
    event = asyncio.Event()
    event.set()
    loopback = Loopback(later(Refusal(ErrorCode.NOT_FOUND, "OSIE lab has no kernel", MAC), event))
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0] == b"\0\5\0\1OSIE lab has no kernel\0"
        assert await loopback.settled(1) == ["TFTP OSIE lab has no kernel"]


async def test_fault_of_ours_while_opening_is_an_error_and_not_a_silence(
    client: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    event = asyncio.Event()
    event.set()
    loopback = Loopback(later(ValueError("a fault"), event))
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0] == b"\0\5\0\0file can't be opened: internal error\0"
    assert "a fault" in caplog.text


async def test_file_that_never_opens_is_refused_in_the_end(
    client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "OPEN_SECONDS", 0.05)
    loopback = Loopback(later(TftpFile(b"", "file"), asyncio.Event()))
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0].startswith(b"\0\5\0\0file is not there after")
        event = asyncio.Event()
        event.set()
        loopback.open_file = later(TftpFile(b"", "file"), event)


async def test_client_that_asks_for_something_else_does_not_wait_for_the_first(client: socket.socket) -> None:
    never = asyncio.Event()
    abandoned = []

    async def wait() -> Opened:
        try:
            await never.wait()
        finally:
            abandoned.append(True)
        return Refusal(ErrorCode.NOT_FOUND, "never")

    def open_file(request: TftpRequest) -> Opened | Awaitable[Opened]:
        return wait() if request.name == "slow" else TftpFile(b"quick", "quick", MAC)

    loopback = Loopback(open_file)
    async with loopback.serving():
        client.sendto(rrq(name="slow"), loopback.address)
        await silence(client, 0.05)
        client.sendto(rrq(name="quick"), loopback.address)
        assert (await receive(client))[0] == b"\0\3\0\1quick"
        await asyncio.sleep(0)
        assert abandoned == [True]


async def test_request_that_is_replaced_before_its_file_began_to_open_leaves_no_trace(client: socket.socket) -> None:
    event = asyncio.Event()
    event.set()
    loopback = Loopback(later(TftpFile(b"x", "file"), event))
    async with loopback.serving():
        for name in "abc":  # all are there when the server looks
            client.sendto(rrq(name=name), loopback.address)
        assert (await receive(client))[0] == b"\0\3\0\1x"
        await silence(client, 0.05)


async def test_strangers_do_not_keep_a_machines_refusal_from_its_journey(client: socket.socket) -> None:
    def open_file(request: TftpRequest) -> Opened:
        mac = MAC if request.name == "mine" else None
        return Refusal(ErrorCode.NOT_FOUND, f"{request.name}: no such file", mac)

    loopback = Loopback(open_file)
    async with loopback.serving():
        for number in range(1000):
            client.sendto(rrq(name=str(number)), loopback.address)
            if number % 50 == 0:
                await asyncio.sleep(0.005)
        client.sendto(rrq(name="mine"), loopback.address)
        assert await loopback.settled(1) == ["TFTP mine: no such file"]


async def test_number_of_files_being_opened_is_bounded(client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_WAITING", 5)
    event = asyncio.Event()
    loopback = Loopback(later(TftpFile(b"x", "file"), event))
    async with loopback.serving() as server:
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(udp()).sendto(rrq(), loopback.address)
            await asyncio.sleep(0.1)
            event.set()
            await asyncio.sleep(0.1)
            assert server.transfers == 5


async def test_stop_does_not_wait_for_files_that_are_being_opened(client: socket.socket) -> None:
    loopback = Loopback(later(TftpFile(b"x", "file"), asyncio.Event()))
    async with asyncio.timeout(2):
        async with loopback.serving():
            client.sendto(rrq(), loopback.address)
            await asyncio.sleep(0.05)


async def test_client_that_fetches_the_file_twice_in_a_row_does_not_wait(client: socket.socket) -> None:
    loopback = serving(b"x" * 600)
    async with loopback.serving():
        async with asyncio.timeout(1):
            for _ in range(20):
                assert await download(client, loopback.address, rrq()) == b"x" * 600
        await loopback.settled(20)


async def test_request_for_which_no_socket_is_left_closes_its_file_and_leaves_the_others_alone(
    client: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(_local: str, _interface: str | None) -> socket.socket:
        raise OSError(24, "Too many open files")

    closed = []
    loopback = serving(b"x" * 600, close=lambda: closed.append(True))
    async with loopback.serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(server_module, "own_socket", none_left)
            for _ in range(3):
                client.sendto(rrq(), loopback.address)
            await silence(client)
            assert server.transfers == 0
        assert closed == [True] * 3
        assert caplog.text.count("Too many open files") == 1
        assert await download(client, loopback.address, rrq()) == b"x" * 600


async def test_fault_of_ours_ends_one_transfer_and_is_told_once(
    client: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = []
    loopback = serving(b"x" * 6000, close=lambda: closed.append(True))
    async with loopback.serving() as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)

        def fault(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr("edge.tftp.transfer.ReadTransfer.receive", fault)
            client.sendto(ack(1), transfer)
            assert (await receive(client))[0] == b"\0\5\0\0internal error\0"
        assert (server.transfers, closed) == (0, [True])
        assert caplog.text.count("TFTP to 127.0.0.1: internal error") == 1
        assert await download(client, loopback.address, rrq()) == b"x" * 6000


# --- crowds ----------------------------------------------------------------------------------------------------------


async def test_half_open_transfers_never_keep_a_real_client_out(client: socket.socket) -> None:
    closed = []
    loopback = serving(b"x" * 600, close=lambda: closed.append(True))
    async with loopback.serving(max_half_open=20, max_transfers_per_client=1000) as server:
        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(udp()).sendto(rrq(), loopback.address)
            await asyncio.sleep(0.1)
            assert server.transfers == server._turns.sharing == 20
            assert len(closed) == 40
            assert await download(client, loopback.address, rrq()) == b"x" * 600
            await loopback.settled(1)
            assert server.transfers == 19
        await asyncio.sleep(0)
    assert len(closed) == 61


async def test_ten_thousand_requests_in_others_names_cost_bounded_memory_and_no_client_its_boot(
    client: socket.socket,
) -> None:
    loopback = serving(CONTENT)
    async with loopback.serving() as server:
        fetching = asyncio.ensure_future(
            download(client, loopback.address, rrq("blksize", "1468", "windowsize", "4"), 1468, 4)
        )
        with ExitStack() as stack:
            # Every address of 127/8 is ours to send from; the forged clients have no socket that could answer.
            forged = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(100)]
            for number, sock in enumerate(forged):
                sock.bind((f"127.9.{number}.1", 0))
            for turn in range(100):
                for sock in forged:
                    sock.sendto(rrq(name=f"file{turn}"), loopback.address)
                await asyncio.sleep(0.005)
                assert server.transfers <= server_module.MAX_HALF_OPEN + 1
            assert await fetching == CONTENT
    assert len(loopback.events) < 300


async def test_client_beyond_the_limit_waits_where_all_transfers_are_real(client: socket.socket) -> None:
    loopback = serving(b"x" * 6000)
    async with loopback.serving(max_transfers=1) as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        await receive(client)
        with udp() as second:
            second.sendto(rrq(), loopback.address)
            await silence(second)
            assert server.transfers == 1
            client.sendto(b"\0\5\0\0done\0", transfer)
            await loopback.settled(1)
            second.sendto(rrq(), loopback.address)
            assert (await receive(second))[0][:4] == b"\0\3\0\1"


async def test_one_client_can_not_have_all_transfers(client: socket.socket) -> None:
    loopback = serving(b"x" * 6000)
    async with loopback.serving(max_transfers_per_client=3) as server:
        with ExitStack() as stack:
            for _ in range(3):
                sock = stack.enter_context(udp())
                sock.sendto(rrq(), loopback.address)
                _, transfer = await receive(sock)
                sock.sendto(ack(1), transfer)
                await receive(sock)
            client.sendto(rrq(), loopback.address)
            await silence(client)
            assert server.transfers == 3
            other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            other.bind(("127.0.0.2", 0))
            other.setblocking(False)
            other.sendto(rrq(), loopback.address)
            assert (await receive(other))[0][:4] == b"\0\3\0\1"


@pytest.mark.parametrize("single_port", [False, True])
async def test_many_clients_at_once_get_the_whole_file(single_port: bool) -> None:
    content = CONTENT[:100_000]
    loopback = serving(content)

    async def one() -> bytes:
        with udp() as sock:
            return await download(sock, loopback.address, rrq("blksize", "1468", "windowsize", "16"), 1468, 16)

    async with loopback.serving(max_transfers_per_client=100, single_port=single_port):
        assert set(await asyncio.gather(*(one() for _ in range(40)))) == {content}
        await loopback.settled(40)
    assert {event.outcome for event in loopback.events} == {Outcome.OK}


# --- strangers and garbage -------------------------------------------------------------------------------------------


async def test_stranger_is_told_that_it_is_wrong_and_the_transfer_goes_on(client: socket.socket) -> None:
    loopback = serving(b"x" * 1200)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        with udp() as stranger:
            stranger.sendto(ack(1), transfer)
            assert (await receive(stranger))[0] == b"\0\5\0\5this transfer is another client's\0"
            stranger.sendto(b"\0\5\0\0stop\0", transfer)
            stranger.sendto(b"garbage", transfer)
            await silence(stranger, 0.05)
        with udp() as gone:  # its port is closed when the answer comes: what ICMP says of it is not the client's
            gone.sendto(ack(1), transfer)
        await asyncio.sleep(0.05)
        client.sendto(ack(1), transfer)
        assert (await receive(client))[0][:4] == b"\0\3\0\2"
        client.sendto(ack(2), transfer)
        assert (await receive(client))[0][:4] == b"\0\3\0\3"


async def test_stranger_that_goes_on_is_answered_a_bounded_number_of_times(client: socket.socket) -> None:
    loopback = serving(b"x" * 1200)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        with udp() as stranger:
            for _ in range(100):
                stranger.sendto(ack(1), transfer)
            await asyncio.sleep(0.1)
            answers = 0
            while True:
                try:
                    stranger.recv(100)
                except BlockingIOError:
                    break
                answers += 1
        assert answers == 16


async def test_acknowledgement_of_no_transfer_is_an_error_on_a_single_port(client: socket.socket) -> None:
    loopback = serving(b"x" * 1200)
    async with loopback.serving(single_port=True):
        client.sendto(ack(1), loopback.address)
        assert (await receive(client))[0] == b"\0\5\0\5there is no such transfer\0"
        client.sendto(ack(1), loopback.address)
        client.sendto(b"\0\5\0\0no\0", loopback.address)
        await silence(client)


async def test_garbage_gets_no_answer_and_does_not_end_the_service(
    client: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loopback = serving(b"x")
    async with loopback.serving():
        for size in (0, 1, 3, 100, 2000):
            client.sendto(random.Random(size).randbytes(size), loopback.address)
        client.sendto(b"\0\5\0\0no\0", loopback.address)
        client.sendto(ack(1), loopback.address)
        client.sendto(rrq()[:-1], loopback.address)
        await silence(client)
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0] == b"\0\3\0\1x"
    assert caplog.text.count("is ignored") == 1


async def test_garbage_on_the_port_of_a_transfer_gets_no_answer(client: socket.socket) -> None:
    loopback = serving(b"x" * 1200)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        chance = random.Random(5)
        for _ in range(50):
            client.sendto(chance.randbytes(chance.randrange(600)), transfer)
        client.sendto(b"", transfer)
        await silence(client, 0.05)
        client.sendto(ack(1), transfer)
        assert (await receive(client))[0][:4] == b"\0\3\0\2"


async def test_request_to_everybody_is_ignored() -> None:
    loopback = serving(b"x" * 1200)
    server = TftpServer(loopback.open_file, loopback._record, host="0.0.0.0", port=0)
    await server.start()
    with udp() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(rrq(), ("127.255.255.255", server.port))
        await silence(sock)
        sock.sendto(rrq(), ("127.0.0.1", server.port))
        assert (await receive(sock))[0][:4] == b"\0\3\0\1"
    await server.stop()


async def test_answer_comes_from_the_address_that_was_asked() -> None:
    for single_port in (False, True):
        loopback = serving(b"x")
        server = TftpServer(loopback.open_file, loopback._record, host="0.0.0.0", port=0, single_port=single_port)
        await server.start()
        with udp() as sock:
            sock.sendto(rrq(), ("127.0.0.77", server.port))
            packet, sender = await receive(sock)
            assert packet == b"\0\3\0\1x"
            assert sender[0] == "127.0.0.77"
            assert (sender[1] == server.port) == single_port
        await server.stop()


@pytest.mark.parametrize(
    ("request_packet", "answer"),
    [
        (rrq(mode="mail"), b"\0\5\0\4only the modes octet and netascii are served\0"),
        (b"\0\2file\0octet\0", b"\0\5\0\2this server is read-only\0"),
    ],
)
async def test_what_is_not_served_is_refused_with_the_code_for_it(
    client: socket.socket, request_packet: bytes, answer: bytes
) -> None:
    loopback = serving(b"x")
    async with loopback.serving():
        client.sendto(request_packet, loopback.address)
        assert (await receive(client))[0] == answer


# --- text ------------------------------------------------------------------------------------------------------------


async def test_text_file_in_netascii_is_translated_and_its_size_is_that_on_the_wire(client: socket.socket) -> None:
    loopback = serving(b"a\nb\n")
    async with loopback.serving():
        client.sendto(rrq("tsize", "0", mode="NetASCII"), loopback.address)
        answer, transfer = await receive(client)
        assert answer == b"\0\6tsize\x006\0"
        client.sendto(ack(0), transfer)
        assert (await receive(client))[0] == b"\0\3\0\1a\r\nb\r\n"


async def test_size_of_a_long_text_is_left_out_rather_than_wrong(client: socket.socket) -> None:
    loopback = serving(b"line\n" * 210_000)
    async with loopback.serving():
        client.sendto(rrq("tsize", "0", "blksize", "1468", mode="netascii"), loopback.address)
        answer, transfer = await receive(client)
        assert answer == b"\0\6blksize\x001468\0"
        client.sendto(b"\0\5\0\0enough\0", transfer)
        got = await download(
            client, loopback.address, rrq("blksize", "1468", "windowsize", "64", mode="netascii"), 1468, 64
        )
    assert got == b"line\r\n" * 210_000


# --- start and stop --------------------------------------------------------------------------------------------------


async def test_stopping_server_tells_its_clients(client: socket.socket) -> None:
    loopback = serving(b"x" * 6000)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        await receive(client)
    assert (await receive(client))[0] == b"\0\5\0\0the server is stopping\0"


async def test_taken_port_is_named_with_what_to_do() -> None:
    loopback = serving(b"x")
    async with loopback.serving() as server:
        with pytest.raises(TftpServerError, match=f"UDP port {server.port} on 127.0.0.1: another program has it"):
            await TftpServer(loopback.open_file, loopback._record, host="127.0.0.1", port=server.port).start()
    with pytest.raises(TftpServerError, match="no interface of this host has that address"):
        await TftpServer(loopback.open_file, loopback._record, host="192.0.2.1").start()


async def test_file_is_closed_once_however_often_its_transfer_is_ended(client: socket.socket) -> None:
    closed = []
    loopback = serving(b"x" * 6000, close=lambda: closed.append(True))
    async with loopback.serving() as server:
        client.sendto(rrq(), loopback.address)
        await receive(client)
        [session] = server._crowd
        session.drop()
        session.drop()
        session.turn()
        assert closed == [True]
        assert server._turns.sharing == 0


async def test_file_whose_closing_fails_does_not_end_the_service(
    client: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    def close() -> None:
        raise OSError("bad file descriptor")

    loopback = serving(b"x", close=close)
    async with loopback.serving():
        for _ in range(2):
            assert await download(client, loopback.address, rrq()) == b"x"
        assert len(await loopback.settled(2)) == 2
    assert caplog.text.count("closing file") == 2


def test_kernel_constants_are_those_of_this_machine() -> None:
    """A window is cut by the kernel into packets of the length that was named."""
    with udp() as sender, udp() as receiver:
        ancillary = [(17, 103, struct.pack("=H", 100))]
        sender.sendmsg([bytes(250)], ancillary, 0, receiver.getsockname())
        assert [len(receiver.recv(1000)) for _ in range(3)] == [100, 100, 50]
