"""The TFTP server over loopback, packet by packet: permissions, losses, and the journey."""

import asyncio
import logging
import random
import re
import socket
import struct

import pytest

from edge.journey.events import Outcome, Step
from edge.tftp import TftpServer, TftpServerError, transport
from edge.tftp import server as server_module
from edge.tftp.blocks import FramedBlocks
from edge.tftp.packets import ErrorCode
from edge.tftp.server import MAX_WAITING_OF_CLIENT, UNPROVEN_FIRST_BLOCKS, UNRESOLVED_IN_ALL
from edge.tftp.session import ActiveTransfers
from edge.tftp.source import TftpFile, TftpRefusal
from tests.support.virtual_time import turns
from tests.unit.tftp.loopback import CONTENT, MAC, ack, rrq, udp
from tests.waiting import until

pytestmark = pytest.mark.long

EITHER_PORT = pytest.mark.parametrize("single_port", [False, True])
UNHURRIED = ("timeout", "20")
"""Nothing is sent again because this machine is busy."""

# --- the usual course ------------------------------------------------------------------------------------------------


@EITHER_PORT
@pytest.mark.parametrize(("block", "window"), [(512, 1), (1468, 4), (1468, 64), (8, 64), (16000, 64), (65464, 2)])
async def test_file_arrives_whole_whatever_its_blocks_and_windows(serve, block, window, single_port):
    loopback = await serve(CONTENT[: block * 300], single_port=single_port)
    client = loopback.client()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    assert await client.download(block, window, "tsize", "0") == CONTENT[: block * 300]
    await loopback.settled(1)
    detail = loopback.events[0].detail
    assert (detail["block_bytes"], detail["window_blocks"]) == (block, window)


async def test_edk2_probe_is_information_and_the_transfer_after_it_a_success(serve):
    loopback = await serve(b"x" * 3000)
    client = loopback.client()
    offer = await client.ask("tsize", "0", "blksize", "1468", "windowsize", "4")
    assert offer == b"\0\6tsize\x003000\0blksize\x001468\0windowsize\x004\0"
    client.send(b"\0\5\0\x08User aborted the transfer\0")
    assert await client.download(1468, 4) == b"x" * 3000
    messages = await loopback.settled(2)
    assert [event.outcome for event in loopback.events] == [Outcome.INFO, Outcome.OK]
    assert messages[0] == "TFTP told the size of file, 3000 bytes"
    assert re.match(r"TFTP sent file, 3000 bytes in \d+\.\d\d s", messages[1])


@pytest.mark.parametrize(("single_port", "window"), [(False, 1), (True, 16)])
async def test_machines_that_read_one_file_at_the_same_time_all_have_it(serve, single_port, window, monkeypatch):
    made, make = [], FramedBlocks.__init__
    monkeypatch.setattr(FramedBlocks, "__init__", lambda *given: made.append(given[1]) or make(*given))
    loopback = await serve(CONTENT, active=ActiveTransfers(limit_per_client=100), single_port=single_port)
    got = await asyncio.gather(*(one.download(1468, window, "tsize", "0") for one in loopback.clients(20)))
    await loopback.settled(20)
    assert {event.outcome for event in loopback.events} == {Outcome.OK}
    assert got == [CONTENT] * 20
    assert made == [CONTENT], "packets are made once for all"


async def test_send_buffer_that_is_full_loses_nothing(serve, monkeypatch):
    class Full(socket.socket):
        calls = 0

        def sendmsg(self, *arguments):
            Full.calls += 1
            if Full.calls % 3 == 2:
                raise BlockingIOError(11, "try again")
            return super().sendmsg(*arguments)

    monkeypatch.setattr(socket, "socket", Full)
    loopback = await serve(CONTENT[:100_000])
    assert await loopback.client().download(1468, 8, *UNHURRIED) == CONTENT[:100_000]
    await loopback.settled(1)
    assert loopback.events[0].detail["resent_blocks"] == 0
    assert Full.calls > 3


def test_kernel_constants_are_those_of_this_machine():
    """A window is cut by the kernel into packets of the length that was named."""
    with udp() as sender, udp() as receiver:
        sender.sendmsg([bytes(250)], [(17, 103, struct.pack("=H", 100))], 0, receiver.getsockname())
        assert [len(receiver.recv(1000)) for _ in range(3)] == [100, 100, 50]


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_file_beyond_65535_blocks_arrives_with_a_warning(serve):
    content = (CONTENT * 2)[: 65540 * 8]
    loopback = await serve(content)
    assert await loopback.client().download(8, 64) == content
    [message] = await loopback.settled(1)
    assert message.endswith("block numbers went beyond 65535, where some firmware stops: use HTTP, or larger blocks")


async def test_text_file_in_netascii_is_translated_and_its_size_is_that_on_the_wire_or_left_out(serve):
    files = {"short": b"a\nb\n", "long": b"line\n" * 210_000}
    loopback = await serve(lambda request: TftpFile(files[request.name], request.name, MAC))
    client = loopback.client()
    asked = await client.ask("tsize", "0", *UNHURRIED, name="short", mode="NetASCII")
    assert asked == b"\0\6tsize\x006\0timeout\x0020\0"
    assert await client.answer(ack(0)) == b"\0\3\0\1a\r\nb\r\n"
    client = loopback.client()
    assert await client.ask("tsize", "0", "blksize", "1468", name="long", mode="netascii") == b"\0\6blksize\x001468\0"
    client.send(b"\0\5\0\0enough\0")
    assert await client.download(1468, 64, name="long", mode="netascii") == b"line\r\n" * 210_000


async def test_answer_comes_from_the_address_that_was_asked_and_none_to_a_request_to_everybody(serve):
    for single_port in (False, True):
        loopback = await serve(b"x", host="0.0.0.0", single_port=single_port)
        client = loopback.client()
        client.server = ("127.0.0.77", loopback.server.port)
        assert await client.ask() == b"\0\3\0\1x"
        assert client.transfer[0] == "127.0.0.77"
        assert (client.transfer[1] == loopback.server.port) == single_port
        sender = loopback.client()
        sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.socket.sendto(rrq(), ("127.255.255.255", loopback.server.port))
        await loopback.has_read()
        assert sender.drained() == []


# --- losses, and requests that come again ----------------------------------------------------------------------------


async def test_lost_block_of_a_window_comes_again_without_waiting_for_the_timer_and_is_on_the_journey(serve):
    loopback = await serve(CONTENT[: 512 * 5 + 1], {"step": Step.KERNEL})
    client = loopback.client()
    assert (await client.begin("windowsize", "4", "timeout", "255"))[3] == 1
    assert [(await client.receive())[3] for _ in range(3)] == [2, 3, 4]
    for _ in range(3):  # the second was lost; EDK2 says so once for each block behind it
        client.send(ack(1))
    assert [(await client.receive())[3] for _ in range(4)] == [2, 3, 4, 5]
    assert (await client.answer(ack(5)))[3] == 6
    client.send(ack(6))
    [message] = await loopback.settled(1)
    assert re.fullmatch(r"TFTP sent file, 2561 bytes in \d+\.\d+ s \(.* MB/s\), 3 blocks sent again", message)
    assert loopback.events[0].step is Step.KERNEL
    assert loopback.events[0].detail["resent_blocks"] == 3
    assert loopback.events[0].detail["client_ip"] == "127.0.0.1"
    assert loopback.events[0].detail["duration_seconds"] > 0


async def test_what_is_not_acknowledged_comes_again(serve):
    loopback = await serve(b"x" * 6000)
    client = loopback.client()
    block = await client.begin()
    assert await client.receive() == block


@EITHER_PORT
async def test_request_that_comes_again_is_answered_from_the_same_transfer(serve, single_port):
    loopback = await serve(b"x" * 600, single_port=single_port)
    client = loopback.client()
    answers = set()
    for _ in range(3):
        answers.add((await client.ask("tsize", "0", "timeout", "255"), client.transfer))
    assert len(answers) == loopback.transfers == 1
    assert (client.transfer == loopback.address) == single_port


@EITHER_PORT
async def test_copy_of_a_request_that_was_late_disturbs_no_transfer(serve, single_port, monkeypatch):
    monkeypatch.setattr("edge.tftp.session.LATE_COPY_SECONDS", 1e6)
    loopback = await serve(b"x" * 6000, single_port=single_port)
    client = loopback.client()
    assert (await client.begin())[3] == 2
    client.request()
    client.send(ack(2))
    while (packet := await client.receive())[3] == 2:  # sent again before the acknowledgement was there
        pass
    assert packet[3] == 3
    assert loopback.transfers == 1


@EITHER_PORT
@pytest.mark.parametrize("second", ["a", "b"], ids=["the same file, after a reset", "another file"])
async def test_client_that_restarts_from_the_same_port_gets_its_file(serve, single_port, second, monkeypatch):
    monkeypatch.setattr("edge.tftp.session.LATE_COPY_SECONDS", 0.0)
    opens = lambda request: TftpFile(request.name.encode() * 600, request.name, MAC)  # noqa: E731
    loopback = await serve(opens, single_port=single_port)
    client = loopback.client()
    await client.begin(name="a")
    client.drained()
    assert await client.download(name=second) == second.encode() * 600
    messages = await loopback.settled(2)
    assert messages[0] == "TFTP transfer of a: the client began again at block 1 of 2"


# --- crowds ----------------------------------------------------------------------------------------------------------


async def test_thousands_of_requests_in_others_names_cost_bounded_memory_and_no_machine_its_boot(serve):
    """A busy ROM takes some tenths of a second to acknowledge, and is not pushed out meanwhile."""
    opens = lambda request: TftpFile(CONTENT, "file", None if request.client_ip.startswith("127.9.") else MAC)  # noqa: E731
    loopback = await serve(opens, active=ActiveTransfers(limit_half_open=50))
    fetching = asyncio.ensure_future(loopback.client().download(1468, 4))
    slow = loopback.client("127.0.0.50")
    await slow.ask("timeout", "255")
    forged = loopback.clients(100, "127.9.{}.1")  # every address of 127/8 is ours to send from
    for turn in range(12):
        for one in forged:
            one.request("timeout", "255", name=f"file{turn}")
        await loopback.has_read()
        assert 51 <= loopback.transfers <= 52
    assert await fetching == CONTENT
    assert (await slow.answer(ack(0)))[:4] == b"\0\3\0\1"
    assert len(loopback.events) <= 1


@pytest.fixture
def asked(serve):
    """Serves a large file to strangers; a list of the addresses of those that have asked."""
    addresses = []

    def open_file(request):
        addresses.append(request.client_ip)
        return TftpFile(CONTENT, "file", None)

    return addresses, lambda **settings: serve(open_file, **settings)


async def test_requests_of_one_address_are_dropped_unread_where_they_come_too_fast_and_others_are_served(
    asked, caplog, monkeypatch
):
    monkeypatch.setattr(server_module, "REQUESTS_AT_ONCE", 5.0)
    monkeypatch.setattr(server_module, "REQUESTS_A_SECOND", 1e-6)
    addresses, start = asked
    loopback = await start()
    stranger = loopback.client("127.9.0.1")
    for number in range(50):
        stranger.request("tsize", "0", name=f"file{number}")
    await until(lambda: "sends more than" in caplog.text)
    assert await loopback.client().download(1468) == CONTENT
    assert addresses.count("127.9.0.1") == 5
    assert caplog.text.count("TFTP: 127.9.0.1 sends more than 0 requests a second; the rest is dropped") == 1


async def test_requests_of_invented_addresses_on_the_link_have_few_answers_and_known_clients_are_served(
    asked, caplog, monkeypatch
):
    """An answer to each would fill the kernel's neighbour table with addresses that no host has."""
    monkeypatch.setattr(server_module, "UNRESOLVED_SECONDS", 1e6)
    addresses, start = asked
    loopback = await start(is_unresolved=lambda ip: ip.startswith("127.9."))
    for one in loopback.clients(2 * UNRESOLVED_IN_ALL, "127.9.{}.1"):
        one.request("tsize", "0")
    await until(lambda: f"now 127.9.{UNRESOLVED_IN_ALL}.1; they are invented" in caplog.text)
    assert await loopback.client().download(1468) == CONTENT
    assert addresses == [*(f"127.9.{number}.1" for number in range(UNRESOLVED_IN_ALL)), "127.0.0.1"]


@pytest.mark.parametrize("machine", [True, False], ids=["a machine's", "a stranger's"])
async def test_address_is_not_flooded_with_first_blocks_that_others_ask_for_in_its_name(
    serve, caplog, monkeypatch, machine
):
    monkeypatch.setattr(server_module, "UNPROVEN_SECONDS", 1e6)
    loopback = await serve(lambda _request: TftpFile(CONTENT, "file", MAC if machine else None))
    forged = loopback.clients(200)
    for one in forged * 2:
        one.request()
    await loopback.has_read()
    drained = [packet for one in forged for packet in one.drained()]
    assert drained == [b"\0\3\0\1" + CONTENT[:512]] * UNPROVEN_FIRST_BLOCKS
    assert caplog.text.count("asks for more files than it acknowledges") == 1
    assert loopback.transfers <= UNPROVEN_FIRST_BLOCKS
    # A client that sends options is offered them, which is no more than it sent.
    assert await loopback.client().download(1468, 16) == CONTENT


async def test_client_without_options_that_acknowledges_may_have_any_number_of_files(serve):
    loopback = await serve(b"x" * 600)
    for client in loopback.clients(3 * UNPROVEN_FIRST_BLOCKS):
        assert await client.download() == b"x" * 600


async def test_errors_to_one_address_are_bounded(serve, caplog, monkeypatch):
    monkeypatch.setattr(server_module, "ERRORS_A_SECOND", 2)  # so that any machine is asked for more in a second
    loopback = await serve(lambda _request: TftpRefusal(ErrorCode.NOT_FOUND, "no such file"))
    clock = asyncio.get_running_loop().time
    started, askers = clock(), loopback.clients(60)
    for one in askers:
        one.request()
    await until(lambda: "is refused more than 2 files a second" in caplog.text)
    answers = sum(len(one.drained()) for one in askers)
    assert 2 <= answers <= 2 * (int(clock() - started) + 2)


@pytest.mark.parametrize(("limit", "count"), [("limit", 1), ("limit_per_client", 3)])
async def test_client_beyond_the_limit_waits_where_all_transfers_are_real(serve, limit, count):
    loopback = await serve(b"x" * 6000, active=ActiveTransfers(**{limit: count}))
    client, *others, last = loopback.clients(count + 1)
    for one in (client, *others):
        await one.begin()
    last.request()
    await loopback.has_read()
    assert (last.drained(), loopback.transfers) == ([], count)
    if limit == "limit_per_client":
        assert (await loopback.client("127.0.0.2").ask())[:4] == b"\0\3\0\1"
    client.send(b"\0\5\0\0done\0")
    await loopback.settled(1)
    assert (await last.ask())[:4] == b"\0\3\0\1"


async def test_forged_request_is_recorded_once_on_the_victims_journey_and_not_revealed_to_the_sender(serve):
    loopback = await serve(lambda _request: TftpRefusal(ErrorCode.ACCESS_VIOLATION, "its own machine only", about=MAC))
    client = loopback.client()
    for _ in range(20):
        assert await client.ask() == b"\0\5\0\2its own machine only\0"
    (event,) = loopback.events
    assert (event.mac, event.outcome) == (MAC, Outcome.INFO)
    assert "127.0.0.1, which is not known to be this machine" in event.message
    assert event.detail["client_ip"] == "127.0.0.1"


async def test_strangers_do_not_keep_a_machines_refusal_from_its_journey(serve):
    def open_file(request):
        mac = MAC if request.name == "mine" else None
        return TftpRefusal(ErrorCode.NOT_FOUND, f"{request.name}: no such file", mac)

    loopback = await serve(open_file)
    client = loopback.client()
    for number in range(1000):
        client.request(name=str(number))
        if number % 50 == 0:
            await turns(20)
    client.request(name="mine")
    assert await loopback.settled(1) == ["TFTP mine: no such file"]


# --- strangers and garbage -------------------------------------------------------------------------------------------


async def test_stranger_on_a_transfers_port_gets_a_bounded_number_of_errors_and_the_transfer_continues(serve):
    loopback = await serve(b"x" * 1200)
    client, stranger, gone = loopback.clients(3)
    await client.ask(*UNHURRIED)
    stranger.transfer = gone.transfer = client.transfer
    gone.send(ack(1))
    gone.socket.close()  # when the answer comes: what ICMP says of it is not the client's
    for _ in range(100):
        stranger.send(ack(1))
    assert {await stranger.receive() for _ in range(15)} == {b"\0\5\0\5this transfer is another client's\0"}
    stranger.send(b"\0\5\0\0stop\0")
    chance = random.Random(5)
    for _ in range(50):  # garbage gets no answer from any client
        for one in (stranger, client):
            one.send(chance.randbytes(chance.randrange(600)))
    client.send(b"")
    assert (await client.answer(ack(0)))[:4] == b"\0\3\0\1"
    assert (await client.answer(ack(1)))[:4] == b"\0\3\0\2"
    assert (await client.answer(ack(2)))[:4] == b"\0\3\0\3"
    assert stranger.drained() == client.drained() == []


async def test_acknowledgement_of_no_transfer_is_an_error_on_a_single_port(serve):
    loopback = await serve(b"x" * 1200, single_port=True)
    client = loopback.client()
    assert await client.answer(ack(1)) == b"\0\5\0\5there is no such transfer\0"
    client.send(ack(1))
    client.send(b"\0\5\0\0no\0")
    await loopback.has_read()
    assert client.drained() == []


async def test_garbage_gets_no_answer_and_does_not_end_the_service(serve, caplog):
    caplog.set_level(logging.INFO)
    loopback = await serve(b"x")
    client = loopback.client()
    for size in (0, 1, 3, 100, 2000):
        client.send(random.Random(size).randbytes(size))
    for packet in (b"\0\5\0\0no\0", ack(1), rrq()[:-1]):
        client.send(packet)
    assert await client.answer(b"\0\2file\0octet\0") == b"\0\5\0\2this server is read-only\0"
    assert await loopback.client().ask() == b"\0\3\0\1x"
    assert caplog.text.count("is ignored") == 1


# --- files that open or arrive slowly, or not at all ------------------------------------------------------------------


class Arriving:
    """A file that comes as the test wants, and how often it was closed."""

    def __init__(self, there=0):
        self.there = there
        self.failure = None
        self.more = asyncio.Event()
        self.closed = 0
        self.waiting = 0

    def open(self, _request):
        return TftpFile(CONTENT, "kernel", MAC, Step.KERNEL, self.filled, self.close)

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

    def grow(self, there, failure=None):
        self.there, self.failure = there, failure
        self.more.set()
        self.more = asyncio.Event()

    def close(self):
        self.closed += 1


async def test_file_that_is_still_arriving_is_sent_while_it_comes(serve):
    arriving = Arriving()
    loopback = await serve(arriving.open)
    fetching = asyncio.ensure_future(loopback.client().download(1468, 16, *UNHURRIED))
    while arriving.there < len(CONTENT):
        await until(lambda: arriving.waiting)
        arriving.grow(min(arriving.there + 20_000, len(CONTENT)))
        await turns(2)
    assert await fetching == CONTENT
    await loopback.settled(1)
    assert (loopback.transfers, arriving.closed, arriving.waiting) == (0, 1, 0)
    assert loopback.events[0].detail["resent_blocks"] == 0


async def test_upstream_that_fails_in_the_middle_is_reported_with_its_reason(serve):
    arriving = Arriving(600)
    loopback = await serve(arriving.open)
    client, stranger = loopback.clients(2)
    await client.ask()
    client.send(ack(1))
    stranger.transfer = client.transfer
    await stranger.answer(ack(1))  # it is read after the client's
    arriving.grow(600, RuntimeError("http://images/kernel: answered 503"))
    while (packet := await client.receive())[1] == 3:  # signs of life, while the file arrives
        pass
    assert packet == b"\0\5\0\0kernel did not arrive: http://images/kernel: answered 503\0"
    assert await loopback.settled(1) == [
        "TFTP transfer of kernel failed, the file did not arrive here: "
        "kernel did not arrive: http://images/kernel: answered 503, at block 1 of 586"
    ]
    assert (loopback.transfers, arriving.closed) == (0, 1)


async def test_client_that_vanishes_while_the_file_arrives_leaves_nothing_behind(serve):
    arriving = Arriving(600)
    loopback = await serve(arriving.open)
    client = loopback.client()
    await client.ask()
    client.send(ack(1))
    await until(lambda: arriving.waiting)
    client.socket.close()
    arriving.grow(5000)
    await loopback.settled(1)
    assert (loopback.transfers, arriving.closed, arriving.waiting) == (0, 1, 0)


async def test_stop_tells_the_clients_and_waits_for_no_file_that_arrives_or_is_being_opened(serve):
    arriving, opening = Arriving(), Opening()
    loopback = await serve(lambda request: (arriving if request.name == "file" else opening).open(request))
    client, other = loopback.clients(2)
    other.request(name="slow")
    await until(lambda: opening.waiting)
    await client.ask("tsize", "0", *UNHURRIED)
    client.send(ack(0))
    await until(lambda: arriving.waiting)
    await loopback.server.stop()
    assert await client.receive() == b"\0\5\0\0the server is stopping\0"
    await turns()
    assert (arriving.closed, arriving.waiting, opening.abandoned) == (1, 0, 1)


class Opening:
    """Files that take their time to be opened; counts those asked for, those that wait, and those given up."""

    def __init__(self, opened=None):
        self.gate = asyncio.Event()
        self.opened = opened or TftpFile(b"x" * 100, "file", MAC)
        self.asked = self.waiting = self.abandoned = 0

    async def open(self, _request):
        self.asked += 1
        self.waiting += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.waiting -= 1
        if isinstance(self.opened, Exception):
            raise self.opened
        return self.opened


async def test_file_that_takes_time_to_open_is_answered_once_however_often_it_is_asked_for(serve):
    opening = Opening()
    loopback = await serve(opening.open)
    client = loopback.client()
    for _ in range(5):
        client.request()
    await loopback.has_read()
    assert (client.drained(), opening.asked) == ([], 1)
    opening.gate.set()
    assert await client.receive() == b"\0\3\0\1" + b"x" * 100
    await loopback.has_read()
    assert (client.drained(), loopback.transfers) == ([], 1)


@pytest.mark.parametrize(
    ("opened", "answer", "messages", "log"),
    [
        (
            TftpRefusal(ErrorCode.NOT_FOUND, "OSIE lab has no kernel", MAC),
            b"\0\5\0\1OSIE lab has no kernel\0",
            ["TFTP OSIE lab has no kernel"],
            "",
        ),
        (ValueError("a fault"), b"\0\5\0\0file can't be opened: internal error\0", [], "a fault"),
    ],
)
async def test_file_that_could_not_be_opened_is_refused_with_the_reason(serve, caplog, opened, answer, messages, log):
    opening = Opening(opened)
    opening.gate.set()
    loopback = await serve(opening.open)
    assert await loopback.client().ask() == answer
    assert await loopback.settled(len(messages)) == messages
    assert log in caplog.text


async def test_file_that_never_opens_is_refused_in_the_end(serve, monkeypatch):
    monkeypatch.setattr(server_module, "OPEN_SECONDS", 0.05)
    loopback = await serve(Opening().open)
    assert (await loopback.client().ask()).startswith(b"\0\5\0\0file is not there after")


async def test_client_that_asks_for_something_else_does_not_wait_for_the_first(serve):
    opening = Opening()
    slow = opening.open
    loopback = await serve(lambda asked: slow(asked) if asked.name != "quick" else TftpFile(b"quick", "quick", MAC))
    client = loopback.client()
    client.request(name="slow")
    await until(lambda: opening.waiting)
    for name in ("b", "c"):  # both are there when the server looks: the one is replaced before its file begins to open
        client.request(name=name)
    await until(lambda: opening.abandoned == 1 and opening.waiting == 1)
    assert await client.ask(name="quick") == b"\0\3\0\1quick"
    await turns()
    assert (opening.abandoned, opening.waiting) == (2, 0)


async def test_files_that_are_being_opened_are_bounded_in_all_and_for_each_address(serve, caplog, monkeypatch):
    opening = Opening()
    loopback = await serve(opening.open)
    for one in loopback.clients(3 * MAX_WAITING_OF_CLIENT):
        one.request("tsize", "0")
    await loopback.has_read()
    assert "too many transfers" in caplog.text
    assert opening.waiting == MAX_WAITING_OF_CLIENT
    other, late = loopback.client("127.0.0.2"), loopback.client("127.0.0.3")
    other.request("tsize", "0")
    await until(lambda: opening.waiting == MAX_WAITING_OF_CLIENT + 1)
    monkeypatch.setattr(server_module, "MAX_WAITING", MAX_WAITING_OF_CLIENT + 1)
    late.request("tsize", "0")
    await loopback.has_read()
    assert opening.waiting == MAX_WAITING_OF_CLIENT + 1
    opening.gate.set()
    assert (await other.receive())[:2] == b"\0\6"
    assert late.drained() == []


# --- faults ----------------------------------------------------------------------------------------------------------


async def test_request_for_which_no_socket_is_left_closes_its_file_and_leaves_the_others_alone(
    serve, monkeypatch, caplog
):
    def none_left(_local, _interface):
        raise OSError(24, "Too many open files")

    closed = []
    loopback = await serve(b"x" * 600, {"close": lambda: closed.append(True)})
    client = loopback.client()
    with monkeypatch.context() as patch:
        patch.setattr(transport, "transfer_socket", none_left)
        for _ in range(3):
            client.request()
        await loopback.has_read()
    assert (client.drained(), loopback.transfers, closed) == ([], 0, [True] * 3)
    assert caplog.text.count("Too many open files") == 1
    assert await client.download() == b"x" * 600


async def test_internal_error_ends_one_transfer_and_is_logged_once(serve, monkeypatch, caplog):
    def fault(*_):
        raise ZeroDivisionError

    closed = []
    loopback = await serve(b"x" * 6000, {"close": lambda: closed.append(True)})
    client = loopback.client()
    await client.ask(*UNHURRIED)
    with monkeypatch.context() as patch:
        patch.setattr("edge.tftp.transfer.ReadTransfer.receive", fault)
        assert await client.answer(ack(0)) == b"\0\5\0\0internal error\0"
    assert (loopback.transfers, closed) == (0, [True])
    assert caplog.text.count("TFTP to 127.0.0.1: internal error") == 1
    assert await client.download() == b"x" * 6000


async def test_file_whose_closing_fails_does_not_end_the_service(serve, caplog):
    def close():
        raise OSError("bad file descriptor")

    loopback = await serve(b"x", {"close": close})
    client = loopback.client()
    for _ in range(2):
        assert await client.download() == b"x"
    assert len(await loopback.settled(2)) == 2
    assert caplog.text.count("closing file") == 2


async def test_taken_port_is_named_with_what_to_do(serve):
    loopback = await serve(b"x")
    host, port = loopback.address
    with pytest.raises(TftpServerError, match=f"UDP port {port} on 127.0.0.1: another program has it"):
        await TftpServer(loopback.open_file, loopback.record, host=host, port=port).start()
    with pytest.raises(TftpServerError, match="no interface of this host has that address"):
        await TftpServer(loopback.open_file, loopback.record, host="192.0.2.1").start()
