"""The TFTP server and files that take their time: to be opened, to arrive, or for ever."""

import asyncio
from contextlib import ExitStack

from edge.journey.events import Step
from edge.tftp import server as server_module
from edge.tftp.packets import ErrorCode
from edge.tftp.source import Refusal, TftpFile
from tests.unit.tftp.loopback import CONTENT, MAC, Loopback, ack, download, receive, rrq, serving, silence, udp
from tests.waiting import until


class Arriving:
    """A file that comes as the test wants, and how often it was closed."""

    def __init__(self, content):
        self.content = content
        self.there = 0
        self.failure = None
        self.more = asyncio.Event()
        self.closed = 0
        self.waiting = 0

    def file(self):
        return TftpFile(self.content, "kernel", MAC, Step.KERNEL, self.filled, self.close)

    async def filled(self, offset):
        self.waiting += 1
        try:
            while self.there <= offset:
                if self.failure is not None:
                    raise self.failure
                await self.more.wait()
        finally:
            self.waiting -= 1
        return self.there

    def grow(self, there):
        self.there = there
        self.more.set()
        self.more = asyncio.Event()

    def fail(self, error):
        self.failure = error
        self.more.set()

    def close(self):
        self.closed += 1


async def test_file_that_is_still_arriving_is_sent_while_it_comes(client):
    arriving = Arriving(CONTENT)
    loopback = Loopback(lambda _request: arriving.file())
    async with loopback.serving() as server:
        request = rrq("blksize", "1468", "windowsize", "16", "timeout", "20")
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


async def test_upstream_that_fails_in_the_middle_is_told_with_its_reason(client):
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


async def test_client_that_vanishes_while_the_file_arrives_leaves_nothing_behind(client):
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


async def test_stop_while_the_file_arrives_closes_it(client):
    arriving = Arriving(CONTENT)
    loopback = Loopback(lambda _request: arriving.file())
    async with loopback.serving():
        client.sendto(rrq("tsize", "0"), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(0), transfer)
        await until(lambda: arriving.waiting == 1)
    assert (await receive(client))[0] == b"\0\5\0\0the server is stopping\0"
    await asyncio.sleep(0)
    assert (arriving.closed, arriving.waiting) == (1, 0)


def later(opened, event):
    async def open_file(_request):
        await event.wait()
        if isinstance(opened, Exception):
            raise opened
        return opened

    return open_file


async def test_file_that_takes_time_to_open_is_answered_once_however_often_it_is_asked_for(client):
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


async def test_file_that_could_not_be_opened_is_refused_with_the_reason(client):
    event = asyncio.Event()
    event.set()
    loopback = Loopback(later(Refusal(ErrorCode.NOT_FOUND, "OSIE lab has no kernel", MAC), event))
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0] == b"\0\5\0\1OSIE lab has no kernel\0"
        assert await loopback.settled(1) == ["TFTP OSIE lab has no kernel"]


async def test_fault_of_ours_while_opening_is_an_error_and_not_a_silence(client, caplog):
    event = asyncio.Event()
    event.set()
    loopback = Loopback(later(ValueError("a fault"), event))
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0] == b"\0\5\0\0file can't be opened: internal error\0"
    assert "a fault" in caplog.text


async def test_file_that_never_opens_is_refused_in_the_end(client, monkeypatch):
    monkeypatch.setattr(server_module, "OPEN_SECONDS", 0.05)
    loopback = Loopback(later(TftpFile(b"", "file"), asyncio.Event()))
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        assert (await receive(client))[0].startswith(b"\0\5\0\0file is not there after")
        event = asyncio.Event()
        event.set()
        loopback.open_file = later(TftpFile(b"", "file"), event)


async def test_client_that_asks_for_something_else_does_not_wait_for_the_first(client):
    never = asyncio.Event()
    abandoned = []

    async def wait():
        try:
            await never.wait()
        finally:
            abandoned.append(True)
        return Refusal(ErrorCode.NOT_FOUND, "never")

    def open_file(request):
        return wait() if request.name == "slow" else TftpFile(b"quick", "quick", MAC)

    loopback = Loopback(open_file)
    async with loopback.serving():
        client.sendto(rrq(name="slow"), loopback.address)
        await silence(client, 0.05)
        client.sendto(rrq(name="quick"), loopback.address)
        assert (await receive(client))[0] == b"\0\3\0\1quick"
        await asyncio.sleep(0)
        assert abandoned == [True]


async def test_request_that_is_replaced_before_its_file_began_to_open_leaves_no_trace(client):
    event = asyncio.Event()
    event.set()
    loopback = Loopback(later(TftpFile(b"x", "file"), event))
    async with loopback.serving():
        for name in "abc":  # all are there when the server looks
            client.sendto(rrq(name=name), loopback.address)
        assert (await receive(client))[0] == b"\0\3\0\1x"
        await silence(client, 0.05)


async def test_strangers_do_not_keep_a_machines_refusal_from_its_journey(client):
    def open_file(request):
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


async def test_number_of_files_being_opened_is_bounded(client, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_WAITING", 5)
    event = asyncio.Event()
    loopback = Loopback(later(TftpFile(b"x", "file"), event))
    async with loopback.serving() as server:
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(udp()).sendto(rrq(), loopback.address)
            for _ in range(50):  # turns of the loop: all have been read then, however late it is
                await asyncio.sleep(0.001)
            event.set()
            await until(lambda: server.transfers >= 5)
            await asyncio.sleep(0.1)
            assert server.transfers == 5


async def test_stop_does_not_wait_for_files_that_are_being_opened(client):
    loopback = Loopback(later(TftpFile(b"x", "file"), asyncio.Event()))
    async with asyncio.timeout(20):
        async with loopback.serving():
            client.sendto(rrq(), loopback.address)
            await asyncio.sleep(0.05)


async def test_client_that_fetches_the_file_twice_in_a_row_does_not_wait(client):
    loopback = serving(b"x" * 600)
    async with loopback.serving():
        async with asyncio.timeout(9):  # half a second would be waited each time
            for _ in range(20):
                assert await download(client, loopback.address, rrq()) == b"x" * 600
        await loopback.settled(20)


async def test_request_for_which_no_socket_is_left_closes_its_file_and_leaves_the_others_alone(
    client, monkeypatch, caplog
):
    def none_left(_local, _interface):
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


async def test_fault_of_ours_ends_one_transfer_and_is_told_once(client, monkeypatch, caplog):
    closed = []
    loopback = serving(b"x" * 6000, close=lambda: closed.append(True))
    async with loopback.serving() as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)

        def fault(*_):
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr("edge.tftp.transfer.ReadTransfer.receive", fault)
            client.sendto(ack(1), transfer)
            assert (await receive(client))[0] == b"\0\5\0\0internal error\0"
        assert (server.transfers, closed) == (0, [True])
        assert caplog.text.count("TFTP to 127.0.0.1: internal error") == 1
        assert await download(client, loopback.address, rrq()) == b"x" * 6000
