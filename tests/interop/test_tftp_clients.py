"""Real TFTP clients against the server: curl, tftp-hpa, atftp, busybox, tftpy and EDK2's way of asking."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tftpy

from edge.callers import Callers
from edge.inventory import Inventory
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.policy import NetbootPolicy
from edge.tftp.files import BootFiles
from edge.tftp.server import TftpServer, TftpServerError
from edge.tftp.source import TftpFile
from ipxe.binaries import BootBinaries

Network = Any
Start = Callable[[], Awaitable[Sequence[TftpServer]]]

SIZE = 300_007


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(7).randbytes(SIZE)


@pytest.fixture
def start(network: Network, tmp_path: Path, content: bytes) -> Start:
    """Serves snponly.efi to one registered machine."""
    directory = tmp_path / "ipxe"
    directory.mkdir()
    (directory / "snponly.efi").write_bytes(content)
    (directory / "exact.efi").write_bytes(content[:1024])
    inventory = Inventory()
    interface = {"dhcp": {"ip": network.client_ip}}
    metadata = {"name": "lab-1", "namespace": "default"}
    inventory.apply({"metadata": metadata, "spec": {"networkInterfaces": {network.client_mac: interface}}})
    network.give_client_its_address()

    async def start_tftp() -> Sequence[TftpServer]:
        server = TftpServer(
            BootFiles(BootBinaries(directory), inventory, Callers(inventory), NetbootPolicy()),
            network.record,
            interface="srv0",
        )
        await server.start()
        return [server]

    return start_tftp


CLIENTS = {
    "curl": "curl -sS -o got tftp://10.77.6.1/snponly.efi",
    "curl, large blocks": "curl -sS --tftp-blksize 1468 -o got tftp://10.77.6.1/snponly.efi",
    "curl, blocks larger than the way carries": "curl -sS --tftp-blksize 9000 -o got tftp://10.77.6.1/snponly.efi",
    "curl without options": "curl -sS --tftp-no-options -o got tftp://10.77.6.1/snponly.efi",
    "tftp-hpa": "tftp -m binary 10.77.6.1 -c get snponly.efi got",
    "atftp": "atftp --option tsize --option blksize\\ 1468 -g -r snponly.efi -l got 10.77.6.1",
    "atftp, window of 8": "atftp --option blksize\\ 1468 --option windowsize\\ 8 -g -r snponly.efi -l got 10.77.6.1",
    "atftp, window of 64": "atftp --option blksize\\ 512 --option windowsize\\ 64 -g -r snponly.efi -l got 10.77.6.1",
    "busybox": "busybox tftp -g -b 1468 -r snponly.efi -l got 10.77.6.1",
    "with the machine's MAC in the name": "busybox tftp -g -r 52-54-00-CC-00-01/snponly.efi -l got 10.77.6.1",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_client_gets_the_whole_file(
    network: Network, start: Start, content: bytes, tmp_path: Path, client: str
) -> None:
    with network.serving(start, loop="uvloop" if client == "busybox" else "asyncio"):
        done = network.run("sh", "-c", CLIENTS[client], cwd=tmp_path)
    assert (tmp_path / "got").read_bytes() == content, done.stderr + done.stdout
    event = network.events[-1]
    assert (event.mac, event.step, event.outcome) == (network.client_mac, Step.TFTP, Outcome.OK)
    assert event.message.startswith(f"TFTP sent snponly.efi, {SIZE} bytes in ")
    assert event.detail["resent_blocks"] == 0
    if "window" in client:
        assert event.detail["window_blocks"] == int(client.rpartition(" ")[2])


def test_file_of_whole_blocks_arrives_whole(network: Network, start: Start, content: bytes, tmp_path: Path) -> None:
    with network.serving(start):
        network.run("curl", "-sS", "-o", "got", "tftp://10.77.6.1/exact.efi", cwd=tmp_path)
    assert (tmp_path / "got").read_bytes() == content[:1024]


def test_missing_file_and_writing_are_refused_at_once(network: Network, start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    with network.serving(start):
        missing = network.run("curl", "-sS", "-o", "got", "tftp://10.77.6.1/nope.efi", cwd=tmp_path, timeout=5)
        outside = network.run(
            "curl", "-sS", "-o", "got", "--path-as-is", "tftp://10.77.6.1/../../etc/passwd", cwd=tmp_path
        )
        writing = network.run("curl", "-sS", "-T", "mine", "tftp://10.77.6.1/snponly.efi", cwd=tmp_path, timeout=5)
    assert (missing.returncode, outside.returncode) == (68, 69)  # not found, permission problem
    assert writing.returncode != 0
    assert [(event.outcome, event.message) for event in network.events] == [
        (Outcome.FAILED, "TFTP nope.efi: no such file"),
        (Outcome.REFUSED, "TFTP ../../etc/passwd: '..' is not allowed in names"),
    ]


# --- over loopback ---------------------------------------------------------------------------------------------------


class Loopback:
    """A server on a free port of loopback, and what it recorded."""

    def __init__(self, content: bytes | memoryview, **limits: int) -> None:
        self.events: list[JourneyEvent] = []
        file = TftpFile(content, "file", "52:54:00:00:00:01")
        self.server = TftpServer(lambda _request: file, self._record, host="127.0.0.1", port=0, **limits)

    def _record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
        self.events.append(JourneyEvent(0.0, mac, step, outcome, message, detail))

    async def settled(self, count: int) -> None:
        """Wait until `count` events are there."""
        async with asyncio.timeout(5):
            while len(self.events) < count:
                await asyncio.sleep(0.01)


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        yield sock


async def receive(sock: socket.socket) -> tuple[bytes, tuple[str, int]]:
    async with asyncio.timeout(3):
        return await asyncio.get_running_loop().sock_recvfrom(sock, 2048)


async def test_tftpy_gets_the_whole_file(content: bytes, tmp_path: Path) -> None:
    loopback = Loopback(content)
    await loopback.server.start()
    client = tftpy.TftpClient("127.0.0.1", loopback.server.port, {"blksize": 1428})
    await asyncio.to_thread(client.download, "file", str(tmp_path / "got"))
    await loopback.settled(1)
    await loopback.server.stop()
    assert (tmp_path / "got").read_bytes() == content


async def test_edk2_probe_is_information_and_the_transfer_after_it_a_success(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 3000)
    await loopback.server.start()
    server = ("127.0.0.1", loopback.server.port)
    client.sendto(b"\0\1file\0octet\0tsize\x000\0blksize\x001468\0windowsize\x004\0", server)
    answer, transfer = await receive(client)
    assert answer == b"\0\6tsize\x003000\0blksize\x001468\0windowsize\x004\0"
    client.sendto(b"\0\5\0\x08User aborted the transfer\0", transfer)
    client.sendto(b"\0\1file\0octet\0blksize\x001468\0windowsize\x004\0", server)
    answer, transfer = await receive(client)
    assert answer == b"\0\6blksize\x001468\0windowsize\x004\0"
    client.sendto(b"\0\4\0\0", transfer)
    blocks = [(await receive(client))[0] for _ in range(3)]
    assert [block[2:4] for block in blocks] == [b"\0\1", b"\0\2", b"\0\3"]
    assert b"".join(block[4:] for block in blocks) == b"x" * 3000
    client.sendto(b"\0\4\0\3", transfer)
    await loopback.settled(2)
    assert [event.outcome for event in loopback.events] == [Outcome.INFO, Outcome.OK]
    assert loopback.events[0].message == "TFTP told the size of file, 3000 bytes"
    await loopback.server.stop()


async def test_lost_acknowledgement_is_mended_after_half_a_second(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 600)
    await loopback.server.start()
    client.sendto(b"\0\1file\0octet\0", ("127.0.0.1", loopback.server.port))
    first, _ = await receive(client)
    started = time.monotonic()
    again, transfer = await receive(client)
    assert again == first
    assert 0.3 < time.monotonic() - started < 1.5
    client.sendto(b"\0\4\0\1", transfer)
    assert (await receive(client))[0] == b"\0\3\0\2" + b"x" * 88
    client.sendto(b"\0\4\0\2", transfer)
    await loopback.settled(1)
    assert loopback.events[0].detail["resent_blocks"] == 1
    await loopback.server.stop()


async def test_lost_block_of_a_window_comes_again_without_waiting_for_the_timer(client: socket.socket) -> None:
    loopback = Loopback(random.Random(1).randbytes(512 * 5 + 1))
    await loopback.server.start()
    client.sendto(b"\0\1file\0octet\0windowsize\x004\0", ("127.0.0.1", loopback.server.port))
    _, transfer = await receive(client)
    client.sendto(b"\0\4\0\0", transfer)
    started = time.monotonic()
    assert [(await receive(client))[0][3] for _ in range(4)] == [1, 2, 3, 4]
    for _ in range(3):  # the second was lost; EDK2 says so once for each block behind it
        client.sendto(b"\0\4\0\1", transfer)
    assert [(await receive(client))[0][3] for _ in range(4)] == [2, 3, 4, 5]
    client.sendto(b"\0\4\0\5", transfer)
    assert [(await receive(client))[0][3] for _ in range(1)] == [6]
    assert time.monotonic() - started < 0.4
    client.sendto(b"\0\4\0\6", transfer)
    await loopback.settled(1)
    assert loopback.events[0].detail["resent_blocks"] == 3
    await loopback.server.stop()


async def test_client_that_vanished_is_noticed_at_once(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 6000)
    await loopback.server.start()
    client.sendto(b"\0\1file\0octet\0", ("127.0.0.1", loopback.server.port))
    _, transfer = await receive(client)
    client.sendto(b"\0\4\0\1", transfer)
    client.close()
    await loopback.settled(1)
    assert loopback.server.transfers == 0
    assert "failed, gone: the client closed its port" in loopback.events[0].message
    await loopback.server.stop()


async def test_client_that_vanished_within_a_window_is_noticed_at_once(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 60000)
    await loopback.server.start()
    client.sendto(b"\0\1file\0octet\0windowsize\x004\0", ("127.0.0.1", loopback.server.port))
    _, transfer = await receive(client)
    client.sendto(b"\0\4\0\0", transfer)
    client.close()
    await loopback.settled(1)
    assert "failed, gone: the client closed its port" in loopback.events[0].message
    await loopback.server.stop()


async def test_half_open_transfers_never_keep_a_real_client_out(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 600, max_transfers=20, max_transfers_per_client=20)
    await loopback.server.start()
    server = ("127.0.0.1", loopback.server.port)
    silent = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(60)]
    for sock in silent:
        sock.sendto(b"\0\1file\0octet\0", server)
    await asyncio.sleep(0.1)
    assert loopback.server.transfers == 20
    client.sendto(b"\0\1file\0octet\0", server)
    answer, _ = await receive(client)
    assert answer[:4] == b"\0\3\0\1"
    assert loopback.server.transfers == 20
    await loopback.server.stop()
    assert loopback.server.transfers == 0
    for sock in silent:
        sock.close()


async def test_client_beyond_the_limit_waits_where_all_transfers_are_real(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 6000, max_transfers=1)
    await loopback.server.start()
    server = ("127.0.0.1", loopback.server.port)
    client.sendto(b"\0\1file\0octet\0", server)
    _, transfer = await receive(client)
    client.sendto(b"\0\4\0\1", transfer)
    await receive(client)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second:
        second.sendto(b"\0\1file\0octet\0", server)
        await asyncio.sleep(0.1)
        assert loopback.server.transfers == 1
        client.sendto(b"\0\5\0\0done\0", transfer)
        await loopback.settled(1)
        second.sendto(b"\0\1file\0octet\0", server)
        await asyncio.sleep(0.1)
        assert loopback.server.transfers == 1
    await loopback.server.stop()


async def test_garbage_gets_no_answer_and_does_not_end_the_service(client: socket.socket) -> None:
    loopback = Loopback(b"x")
    await loopback.server.start()
    server = ("127.0.0.1", loopback.server.port)
    for size in (0, 1, 3, 100, 2000):
        client.sendto(random.Random(size).randbytes(size), server)
    client.sendto(b"\0\5\0\0no\0", server)
    client.sendto(b"\0\1file\0octet\0", server)
    assert (await receive(client))[0] == b"\0\3\0\1x"
    await loopback.server.stop()


async def test_stopping_server_tells_its_clients(client: socket.socket) -> None:
    loopback = Loopback(b"x" * 6000)
    await loopback.server.start()
    client.sendto(b"\0\1file\0octet\0", ("127.0.0.1", loopback.server.port))
    await receive(client)
    await loopback.server.stop()
    assert (await receive(client))[0] == b"\0\5\0\0the server is stopping\0"


async def test_text_file_in_netascii_is_translated(client: socket.socket) -> None:
    loopback = Loopback(b"a\nb\n")
    await loopback.server.start()
    client.sendto(b"\0\1file\0netascii\0tsize\x000\0", ("127.0.0.1", loopback.server.port))
    answer, transfer = await receive(client)
    assert answer == b"\0\6tsize\x006\0"
    client.sendto(b"\0\4\0\0", transfer)
    assert (await receive(client))[0] == b"\0\3\0\1a\r\nb\r\n"
    await loopback.server.stop()


async def test_taken_port_is_named_with_what_to_do() -> None:
    loopback = Loopback(b"x")
    await loopback.server.start()
    port = loopback.server.port
    with pytest.raises(TftpServerError, match=f"UDP port {port} on 127.0.0.1: another program has it; stop it"):
        await TftpServer(lambda _: TftpFile(b"", "f"), loopback._record, host="127.0.0.1", port=port).start()
    with pytest.raises(TftpServerError, match="no interface of this host has that address"):
        await TftpServer(lambda _: TftpFile(b"", "f"), loopback._record, host="192.0.2.1").start()
    await loopback.server.stop()
