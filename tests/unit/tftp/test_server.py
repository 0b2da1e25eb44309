"""The TFTP server over loopback, packet by packet: who gets which file, through what losses, and what is told of it."""

import asyncio
import re
import socket
import struct
import time

import pytest
import tftpy

from edge.journey.events import Outcome, Step
from edge.tftp import TftpServer, TftpServerError
from edge.tftp.framed import FramedBlocks
from edge.tftp.source import TftpFile
from tests.unit.tftp.loopback import CONTENT, MAC, Loopback, ack, download, receive, rrq, serving, udp

# --- the usual course ------------------------------------------------------------------------------------------------


async def test_tftpy_gets_the_whole_file(tmp_path):
    loopback = serving(CONTENT)
    async with loopback.serving() as server:
        client = tftpy.TftpClient("127.0.0.1", server.port, {"blksize": 1428})
        await asyncio.to_thread(client.download, "file", str(tmp_path / "got"))
        await loopback.settled(1)
    assert (tmp_path / "got").read_bytes() == CONTENT


@pytest.mark.parametrize("single_port", [False, True])
@pytest.mark.parametrize(("block", "window"), [(512, 1), (1468, 4), (1468, 64), (8, 64), (16000, 64), (65464, 2)])
async def test_file_arrives_whole_whatever_its_blocks_and_windows(client, block, window, single_port):
    loopback = serving(CONTENT[: block * 300])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    async with loopback.serving(single_port=single_port):
        request = rrq("blksize", str(block), "windowsize", str(window))
        assert await download(client, loopback.address, request, block, window) == CONTENT[: block * 300]
        await loopback.settled(1)
    detail = loopback.events[0].detail
    assert (detail["block_bytes"], detail["window_blocks"]) == (block, window)


async def test_edk2_probe_is_information_and_the_transfer_after_it_a_success(client):
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
    assert re.match(r"TFTP sent file, 3000 bytes in \d+\.\d\d s", messages[1])


async def test_large_window_goes_out_with_one_system_call(client, monkeypatch):
    calls = []
    sendmsg = socket.socket.sendmsg

    class Counting(socket.socket):
        def sendmsg(self, buffers, *arguments):  # type: ignore[override]
            calls.append(-(-len(buffers[0]) // 1472))
            return sendmsg(self, buffers, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Counting)
    loopback = serving(CONTENT[: 1468 * 32 * 3 - 1])
    async with loopback.serving():
        request = rrq("blksize", "1468", "windowsize", "32", "timeout", "20")  # nothing is sent again
        await download(client, loopback.address, request, 1468, 32)
        await loopback.settled(1)
    assert calls == [32, 32, 32]


@pytest.mark.parametrize("window", [1, 4])
async def test_machines_that_read_one_file_at_the_same_time_all_have_it(window, monkeypatch):
    made = []
    make = FramedBlocks.__init__
    monkeypatch.setattr(FramedBlocks, "__init__", lambda *given: made.append(given[1]) or make(*given))
    loopback = serving(CONTENT)
    clients = [udp() for _ in range(6)]
    request = rrq("blksize", "1468", "windowsize", str(window))
    async with loopback.serving():
        got = await asyncio.gather(*(download(one, loopback.address, request, 1468, window) for one in clients))
        assert len(await loopback.settled(6)) == 6
    for one in clients:
        one.close()
    assert got == [CONTENT] * 6
    assert made == [CONTENT], "packets are made once for all"


async def test_where_the_kernel_can_not_cut_windows_they_go_packet_by_packet(client, monkeypatch):
    calls = []
    sendmsg = socket.socket.sendmsg

    class Old(socket.socket):
        def sendmsg(self, buffers, *arguments):  # type: ignore[override]
            calls.append(-(-len(buffers[0]) // 1472))
            if calls[-1] > 1:
                raise OSError(5, "Input/output error")  # EIO: the interface does no checksums
            return sendmsg(self, buffers, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Old)
    loopback = serving(CONTENT)
    async with loopback.serving():
        got = await download(client, loopback.address, rrq("blksize", "1468", "windowsize", "32"), 1468, 32)
    assert got == CONTENT
    assert [count for count in calls if count > 1] == [32]  # it is tried once


async def test_send_buffer_that_is_full_loses_nothing(client, monkeypatch):
    sendmsg, calls = socket.socket.sendmsg, 0

    class Full(socket.socket):
        def sendmsg(self, buffers, *arguments):  # type: ignore[override]
            nonlocal calls
            calls += 1
            if calls % 3 == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return sendmsg(self, buffers, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Full)
    loopback = serving(CONTENT[:100_000])
    async with loopback.serving():
        request = rrq("blksize", "1468", "windowsize", "8", "timeout", "20")
        got = await download(client, loopback.address, request, 1468, 8)
        await loopback.settled(1)
    assert got == CONTENT[:100_000]
    assert loopback.events[0].detail["resent_blocks"] == 0


async def test_journey_has_the_speed_the_step_and_what_was_sent_again(client):
    loopback = serving(b"x" * 600, step=Step.KERNEL)
    async with loopback.serving():
        client.sendto(rrq("timeout", "1"), loopback.address)
        offer, transfer = await receive(client)
        assert (await receive(client))[0] == offer, "after a second"
        client.sendto(ack(0), transfer)
        first, _ = await receive(client)
        assert (await receive(client))[0] == first, "after another"
        client.sendto(ack(1), transfer)
        await receive(client)
        client.sendto(ack(2), transfer)
        [message] = await loopback.settled(1)
    assert re.fullmatch(r"TFTP sent file, 600 bytes in \d+\.\d+ s \(.* MB/s\), 1 blocks sent again", message)
    assert loopback.events[0].detail["duration_seconds"] >= 2
    assert loopback.events[0].step is Step.KERNEL
    assert loopback.events[0].detail["client_ip"] == "127.0.0.1"


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_file_beyond_65535_blocks_arrives_with_a_warning(client):
    content = CONTENT * 2
    loopback = serving(content[: 65540 * 8])
    async with loopback.serving():
        got = await download(client, loopback.address, rrq("blksize", "8", "windowsize", "64"), 8, 64)
        [message] = await loopback.settled(1)
    assert got == content[: 65540 * 8]
    assert message.endswith("block numbers went beyond 65535, where some firmware stops: use HTTP, or larger blocks")


# --- losses ----------------------------------------------------------------------------------------------------------


async def test_lost_block_of_a_window_comes_again_without_waiting_for_the_timer(client):
    loopback = serving(CONTENT[: 512 * 5 + 1])
    async with loopback.serving():
        client.sendto(rrq("windowsize", "4", "timeout", "15"), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(0), transfer)
        started = time.monotonic()
        assert [(await receive(client))[0][3] for _ in range(4)] == [1, 2, 3, 4]
        for _ in range(3):  # the second was lost; EDK2 says so once for each block behind it
            client.sendto(ack(1), transfer)
        assert [(await receive(client))[0][3] for _ in range(4)] == [2, 3, 4, 5]
        client.sendto(ack(5), transfer)
        assert (await receive(client))[0][3] == 6
        assert time.monotonic() - started < 10
        client.sendto(ack(6), transfer)
        await loopback.settled(1)
    assert loopback.events[0].detail["resent_blocks"] == 3


async def test_lost_block_is_mended_soon_where_the_client_is_quick():
    loopback, took = serving(b"x" * 6000), []
    async with loopback.serving():
        for _ in range(3):  # the quickest counts: the machine that tests may have no time for one of them
            with udp() as client:  # nothing of the round before is there
                client.sendto(rrq(), loopback.address)
                expected = 1
                while expected < 5:
                    packet, transfer = await receive(client)
                    if packet[3] == expected:
                        client.sendto(ack(expected), transfer)
                        expected += 1
                    else:  # sent again: this process had no time to acknowledge it
                        assert packet[3] == expected - 1
                while (packet := (await receive(client))[0])[3] == 4:
                    pass
                assert packet[3] == 5  # and is lost
                started = time.monotonic()
                assert (await receive(client))[0][3] == 5
                took.append(time.monotonic() - started)
                client.sendto(b"\0\5\0\0enough\0", transfer)
                await loopback.settled(len(took))
    assert min(took) < 0.4


@pytest.mark.parametrize("options", [(), ("windowsize", "4")])
async def test_client_that_vanished_is_noticed_at_once(client, options):
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
async def test_request_that_comes_again_is_answered_from_the_same_transfer(client, single_port):
    loopback = serving(b"x" * 600)
    async with loopback.serving(single_port=single_port) as server:
        for _ in range(3):
            client.sendto(rrq("tsize", "0", "timeout", "15"), loopback.address)
        async with asyncio.timeout(10):  # sooner than it would be repeated anyway
            answers = [await receive(client) for _ in range(3)]
        assert len(set(answers)) == 1
        assert server.transfers == 1
        assert (answers[0][1] == loopback.address) == single_port


@pytest.mark.parametrize("single_port", [False, True])
async def test_copy_of_a_request_that_was_late_disturbs_no_transfer(client, single_port):
    loopback = serving(b"x" * 6000)
    async with loopback.serving(single_port=single_port) as server:
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        assert (await receive(client))[0][3] == 2
        client.sendto(rrq(), loopback.address)
        client.sendto(ack(2), transfer)
        while (packet := (await receive(client))[0])[3] == 2:  # sent again before the acknowledgement was there
            pass
        assert packet[3] == 3
        assert server.transfers == 1


@pytest.mark.parametrize("single_port", [False, True])
async def test_client_that_asks_for_something_else_from_the_same_port_gets_it(client, single_port):
    loopback = Loopback(lambda request: TftpFile(request.name.encode() * 600, request.name, MAC))
    async with loopback.serving(single_port=single_port) as server:
        client.sendto(rrq(name="a"), loopback.address)
        _, transfer = await receive(client)
        client.sendto(ack(1), transfer)
        await receive(client)
        client.sendto(rrq(name="b"), loopback.address)
        packet, transfer = await receive(client)
        while packet == b"\0\3\0\2" + b"a" * 88:  # sent again before the request was there
            packet, transfer = await receive(client)
        assert packet == b"\0\3\0\1" + b"b" * 512
        assert server.transfers == 1
        [message] = await loopback.settled(1)
        assert message == "TFTP transfer of a: the client began anew at block 1 of 2"
        client.sendto(ack(1), transfer)
        assert (await receive(client))[0] == b"\0\3\0\2" + b"b" * 88


@pytest.mark.parametrize("single_port", [False, True])
async def test_machine_that_was_reset_in_the_middle_gets_the_same_file_anew(client, single_port, monkeypatch):
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


# --- text ------------------------------------------------------------------------------------------------------------


async def test_text_file_in_netascii_is_translated_and_its_size_is_that_on_the_wire(client):
    loopback = serving(b"a\nb\n")
    async with loopback.serving():
        client.sendto(rrq("tsize", "0", mode="NetASCII"), loopback.address)
        answer, transfer = await receive(client)
        assert answer == b"\0\6tsize\x006\0"
        client.sendto(ack(0), transfer)
        assert (await receive(client))[0] == b"\0\3\0\1a\r\nb\r\n"


async def test_size_of_a_long_text_is_left_out_rather_than_wrong(client):
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


async def test_stopping_server_tells_its_clients(client):
    loopback = serving(b"x" * 6000)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        await receive(client)
    assert (await receive(client))[0] == b"\0\5\0\0the server is stopping\0"


async def test_taken_port_is_named_with_what_to_do():
    loopback = serving(b"x")
    async with loopback.serving() as server:
        with pytest.raises(TftpServerError, match=f"UDP port {server.port} on 127.0.0.1: another program has it"):
            await TftpServer(loopback.open_file, loopback._record, host="127.0.0.1", port=server.port).start()
    with pytest.raises(TftpServerError, match="no interface of this host has that address"):
        await TftpServer(loopback.open_file, loopback._record, host="192.0.2.1").start()


async def test_file_is_closed_once_however_often_its_transfer_is_ended(client):
    closed = []
    loopback = serving(b"x" * 6000, close=lambda: closed.append(True))
    async with loopback.serving() as server:
        client.sendto(rrq(), loopback.address)
        await receive(client)
        [session] = server._active
        session.drop()
        session.drop()
        session.step()
        assert closed == [True]
        assert server._scheduler.active == 0


async def test_file_whose_closing_fails_does_not_end_the_service(client, caplog):
    def close():
        raise OSError("bad file descriptor")

    loopback = serving(b"x", close=close)
    async with loopback.serving():
        for _ in range(2):
            assert await download(client, loopback.address, rrq()) == b"x"
        assert len(await loopback.settled(2)) == 2
    assert caplog.text.count("closing file") == 2


def test_kernel_constants_are_those_of_this_machine():
    """A window is cut by the kernel into packets of the length that was named."""
    with udp() as sender, udp() as receiver:
        ancillary = [(17, 103, struct.pack("=H", 100))]
        sender.sendmsg([bytes(250)], ancillary, 0, receiver.getsockname())
        assert [len(receiver.recv(1000)) for _ in range(3)] == [100, 100, 50]
