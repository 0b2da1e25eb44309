"""The TFTP server among many clients, strangers and garbage: everybody real is served, and nothing grows."""

import asyncio
import logging
import random
import socket
from contextlib import ExitStack, suppress

import pytest

from edge.journey.events import Outcome
from edge.tftp import TftpServer
from edge.tftp import server as server_module
from edge.tftp.packets import ErrorCode
from edge.tftp.server import ERRORS_A_SECOND, MAX_WAITING_OF_CLIENT, UNPROVEN_FIRST_BLOCKS, UNRESOLVED_IN_ALL
from edge.tftp.source import Refusal, TftpFile
from tests.unit.tftp.loopback import CONTENT, MAC, Loopback, ack, download, receive, rrq, serving, silence, udp
from tests.waiting import until

# --- crowds ----------------------------------------------------------------------------------------------------------


async def test_half_open_transfers_never_keep_a_real_client_out(client):
    closed = []
    loopback = serving(b"x" * 600, close=lambda: closed.append(True))
    async with loopback.serving(max_half_open=20, max_transfers_per_client=1000) as server:
        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(udp()).sendto(rrq("tsize", "0"), loopback.address)
            await until(lambda: len(closed) == 40)
            assert server.transfers == server._scheduler.active == 20
            assert len(closed) == 40
            assert await download(client, loopback.address, rrq("tsize", "0")) == b"x" * 600
            await loopback.settled(1)
            assert server.transfers == 19
        await asyncio.sleep(0)
    assert len(closed) == 61


async def test_ten_thousand_requests_in_others_names_cost_bounded_memory_and_no_client_its_boot(client):
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


async def test_requests_of_one_address_are_dropped_unread_where_they_come_too_fast_and_others_are_served(
    client, caplog, monkeypatch
):
    monkeypatch.setattr(server_module, "REQUESTS_AT_ONCE", 5.0)
    monkeypatch.setattr(server_module, "REQUESTS_A_SECOND", 0.001)
    asked = []

    def open_file(request):
        asked.append(request.client_ip)
        return TftpFile(CONTENT, "file", None)

    loopback = Loopback(open_file)
    async with loopback.serving():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.9.0.1", 0))
            for number in range(50):
                stranger.sendto(rrq("tsize", "0", name=f"file{number}"), loopback.address)
            await until(lambda: "sends more than" in caplog.text)
        assert await download(client, loopback.address, rrq("blksize", "1468"), 1468) == CONTENT
    assert asked.count("127.9.0.1") == 5
    assert caplog.text.count("TFTP: 127.9.0.1 sends more than 0 requests a second; the rest is dropped") == 1


async def test_requests_of_invented_addresses_on_the_link_have_few_answers_and_known_clients_are_served(
    client, caplog, monkeypatch
):
    """An answer to each would fill the kernel's neighbour table with addresses that no host has."""
    monkeypatch.setattr(server_module, "UNRESOLVED_SECONDS", 1e6)
    asked = []

    def open_file(request):
        asked.append(request.client_ip)
        return TftpFile(CONTENT, "file", None)

    loopback = Loopback(open_file)
    async with loopback.serving(is_unresolved=lambda ip: ip.startswith("127.9.")):
        for number in range(2 * UNRESOLVED_IN_ALL):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as invented:
                invented.bind((f"127.9.{number}.1", 0))
                invented.sendto(rrq("tsize", "0"), loopback.address)
        await until(lambda: f"now 127.9.{UNRESOLVED_IN_ALL}.1; they are invented" in caplog.text)
        assert await download(client, loopback.address, rrq("blksize", "1468"), 1468) == CONTENT
    assert asked == [*(f"127.9.{number}.1" for number in range(UNRESOLVED_IN_ALL)), "127.0.0.1"]


@pytest.mark.parametrize("machine", [True, False], ids=["a machine's", "a stranger's"])
async def test_address_is_not_flooded_with_first_blocks_that_others_ask_for_in_its_name(client, caplog, machine):
    loopback = Loopback(lambda _request: TftpFile(CONTENT, "file", MAC if machine else None))
    async with loopback.serving() as server:
        with ExitStack() as stack:
            forged = [stack.enter_context(udp()) for _ in range(200)]
            for sock in forged * 2:
                sock.sendto(rrq(), loopback.address)
            await until(lambda: "asks for more files than it acknowledges" in caplog.text)
            await asyncio.sleep(0.7)  # a timer would have fired
            assert everything(forged) == [b"\0\3\0\1" + CONTENT[:512]] * UNPROVEN_FIRST_BLOCKS
            assert caplog.text.count("asks for more files than it acknowledges") == 1
            assert server.transfers <= UNPROVEN_FIRST_BLOCKS
            # A client that sends options is offered them, which is no more than it sent.
            request = rrq("blksize", "1468", "windowsize", "16")
            assert await download(client, loopback.address, request, 1468, 16) == CONTENT


async def test_client_without_options_that_acknowledges_may_have_any_number_of_files(client):
    loopback = serving(b"x" * 600)
    async with loopback.serving():
        for _ in range(3 * UNPROVEN_FIRST_BLOCKS):
            with udp() as sock:
                assert await download(sock, loopback.address, rrq()) == b"x" * 600


async def test_errors_to_one_address_are_bounded(client, caplog):
    loopback = Loopback(lambda _request: Refusal(ErrorCode.NOT_FOUND, "no such file"))
    async with loopback.serving():
        with ExitStack() as stack:
            askers = [stack.enter_context(udp()) for _ in range(3 * ERRORS_A_SECOND)]
            for sock in askers:
                sock.sendto(rrq(), loopback.address)
            await until(lambda: "is refused more than 100 files a second" in caplog.text)
            await asyncio.sleep(0.2)
            assert len(everything(askers)) <= 2 * ERRORS_A_SECOND, "of two intervals at the most"


async def test_slow_machine_is_served_among_thousands_of_requests_in_strangers_names():
    """A busy ROM takes some tenths of a second to acknowledge, and is not pushed out meanwhile."""
    loopback = Loopback(
        lambda request: TftpFile(CONTENT[:3000], "file", MAC if request.client_ip == "127.0.0.50" else None)
    )
    async with loopback.serving(max_half_open=50) as server:
        with ExitStack() as stack:
            machine = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            machine.bind(("127.0.0.50", 0))
            machine.setblocking(False)
            machine.sendto(rrq("tsize", "0"), loopback.address)
            _, transfer = await receive(machine)
            forged = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(60)]
            for number, sock in enumerate(forged):
                sock.bind((f"127.9.{number}.1", 0))
            for turn in range(20):
                for sock in forged:
                    sock.sendto(rrq("tsize", "0", name=f"file{turn}"), loopback.address)
                await asyncio.sleep(0.005)
            await until(lambda: server.transfers == 51)
            machine.sendto(ack(0), transfer)
            # Where all of this has taken long, the answer to the request has been sent again meanwhile.
            while (answer := (await receive(machine))[0]).startswith(b"\0\6"):
                pass
            assert answer[:4] == b"\0\3\0\1"


async def test_files_that_take_time_to_open_are_shared_among_addresses(client, caplog):
    opened = asyncio.Event()

    async def open_late():
        await opened.wait()
        return TftpFile(b"x" * 600, "kernel", MAC)

    loopback = Loopback(lambda _request: open_late())
    async with loopback.serving() as server:
        with ExitStack() as stack:
            for _ in range(3 * MAX_WAITING_OF_CLIENT):
                stack.enter_context(udp()).sendto(rrq("tsize", "0"), loopback.address)
            await until(lambda: "too many transfers" in caplog.text)
            assert len(server._waiting) == MAX_WAITING_OF_CLIENT
            other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            other.bind(("127.0.0.2", 0))
            other.setblocking(False)
            other.sendto(rrq("tsize", "0"), loopback.address)
            await until(lambda: len(server._waiting) == MAX_WAITING_OF_CLIENT + 1)
            opened.set()
            assert (await receive(other))[0][:2] == b"\0\6"


async def test_machine_in_whose_name_another_asks_hears_who_once_and_the_asker_nothing_of_it(client):
    loopback = Loopback(lambda _request: Refusal(ErrorCode.ACCESS_VIOLATION, "its own machine only", about=MAC))
    async with loopback.serving():
        for _ in range(20):
            client.sendto(rrq(), loopback.address)
            assert (await receive(client))[0] == b"\0\5\0\2its own machine only\0"
    (event,) = loopback.events
    assert (event.mac, event.outcome) == (MAC, Outcome.INFO)
    assert "127.0.0.1, which is not known to be this machine" in event.message
    assert event.detail["client_ip"] == "127.0.0.1"


async def test_client_beyond_the_limit_waits_where_all_transfers_are_real(client):
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


async def test_one_client_can_not_have_all_transfers(client):
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
async def test_many_clients_at_once_get_the_whole_file(single_port):
    content = CONTENT[:100_000]
    loopback = serving(content)

    async def one():
        with udp() as sock:
            return await download(sock, loopback.address, rrq("blksize", "1468", "windowsize", "16"), 1468, 16)

    async with loopback.serving(max_transfers_per_client=100, single_port=single_port):
        assert set(await asyncio.gather(*(one() for _ in range(40)))) == {content}
        await loopback.settled(40)
    assert {event.outcome for event in loopback.events} == {Outcome.OK}


def everything(sockets):
    """What has come to them."""
    heard = []
    for sock in sockets:
        with suppress(BlockingIOError):
            while True:
                heard.append(sock.recv(2048))
    return heard


# --- strangers and garbage -------------------------------------------------------------------------------------------


async def test_stranger_is_told_that_it_is_wrong_and_the_transfer_goes_on(client):
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


async def test_stranger_that_goes_on_is_answered_a_bounded_number_of_times(client):
    loopback = serving(b"x" * 1200)
    async with loopback.serving():
        client.sendto(rrq(), loopback.address)
        _, transfer = await receive(client)
        with udp() as stranger:
            for _ in range(100):
                stranger.sendto(ack(1), transfer)
            for _ in range(16):
                await receive(stranger)
            await silence(stranger)


async def test_acknowledgement_of_no_transfer_is_an_error_on_a_single_port(client):
    loopback = serving(b"x" * 1200)
    async with loopback.serving(single_port=True):
        client.sendto(ack(1), loopback.address)
        assert (await receive(client))[0] == b"\0\5\0\5there is no such transfer\0"
        client.sendto(ack(1), loopback.address)
        client.sendto(b"\0\5\0\0no\0", loopback.address)
        await silence(client)


async def test_garbage_gets_no_answer_and_does_not_end_the_service(client, caplog):
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


async def test_garbage_on_the_port_of_a_transfer_gets_no_answer(client):
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


async def test_request_to_everybody_is_ignored():
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


async def test_answer_comes_from_the_address_that_was_asked():
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
async def test_what_is_not_served_is_refused_with_the_code_for_it(client, request_packet, answer):
    loopback = serving(b"x")
    async with loopback.serving():
        client.sendto(request_packet, loopback.address)
        assert (await receive(client))[0] == answer
