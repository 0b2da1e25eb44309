"""Real TFTP clients against the server, over a cable of their own: curl, tftp-hpa, atftp and busybox.

The cable can lose packets, be narrow, or end at a firewall; files can be large, or still be arriving.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from edge.callers import Callers
from edge.journey.events import Outcome, Step
from edge.machines import Inventory, NetbootPolicy
from edge.tftp import BootFiles, TftpServer
from edge.tftp.source import OpenFile, TftpFile
from ipxe.binaries import BootBinaries
from tests.interop.conftest import Network
from tests.support import objects
from tests.waiting import PATIENCE_SECONDS, wait_until

Servers = Callable[[], Awaitable[Sequence[TftpServer]]]
Start = Callable[..., Servers]

SIZE = 300_007
MAC = "52:54:00:cc:00:01"


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(7).randbytes(SIZE)


@pytest.fixture
def start(network: Network, tmp_path: Path, content: bytes) -> Start:
    """`start(...)`: serves snponly.efi to one registered machine; `start(open_file, ...)`: something else."""
    directory = tmp_path / "ipxe"
    directory.mkdir()
    (directory / "snponly.efi").write_bytes(content)
    (directory / "exact.efi").write_bytes(content[:1024])
    inventory = Inventory()
    inventory.apply(objects.hardware("lab-1", network.client_mac, network.client_ip))
    network.give_client_its_address()
    files = BootFiles(BootBinaries(directory), inventory, Callers(inventory), NetbootPolicy())

    def prepare(open_file: OpenFile = files, **settings: bool) -> Servers:
        async def start_tftp() -> Sequence[TftpServer]:
            server = TftpServer(open_file, network.record, interface="srv0", **settings)
            await server.start()
            return [server]

        return start_tftp

    return prepare


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


def get(network: Network, client: str, directory: Path) -> tuple[bytes, str]:
    """Return the received file and the client's output."""
    done = network.run("sh", "-c", CLIENTS[client], cwd=directory)
    return (directory / "got").read_bytes(), done.stderr + done.stdout


@pytest.mark.smoke
@pytest.mark.parametrize("single_port", [False, True], ids=["port of its own", "single port"])
@pytest.mark.parametrize("client", CLIENTS)
def test_client_gets_the_whole_file(
    network: Network,
    start: Start,
    content: bytes,
    tmp_path: Path,
    client: str,
    single_port: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A client on a busy machine is late by more than what is learned of a quick network: what is sent again is a fault.
    for name in ("FIRST_TIMEOUT_SECONDS", "MIN_TIMEOUT_SECONDS", "CAUTIOUS_TIMEOUT_SECONDS"):
        monkeypatch.setattr(f"edge.tftp.transfer.{name}", 5.0)
    with network.serving(start(single_port=single_port), loop="uvloop"):
        got, output = get(network, client, tmp_path)
    assert got == content, output
    event = network.events[-1]
    assert (event.mac, event.step, event.outcome) == (network.client_mac, Step.TFTP, Outcome.OK)
    assert event.message.startswith(f"TFTP sent snponly.efi, {SIZE} bytes in ")
    assert event.detail["resent_blocks"] == 0
    if "window" in client:
        assert event.detail["window_blocks"] == int(client.rpartition(" ")[2])
    if "larger" in client:
        assert event.detail["block_bytes"] == 1468


def test_whole_blocks_arrive_and_missing_files_and_writing_are_refused_at_once(
    network: Network, start: Start, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_bytes(b"mine")

    def curl(*words: str) -> int:
        return network.run("curl", "-sS", *words, cwd=tmp_path).returncode

    with network.serving(start()):
        assert curl("-o", "got", "tftp://10.77.6.1/exact.efi") == 0
        assert (tmp_path / "got").read_bytes() == content[:1024]
        # curl ends before the server has read its last ACK.
        wait_until(lambda: any(event.outcome is Outcome.OK for event in network.events))
        network.events.clear()
        assert curl("-o", "got", "tftp://10.77.6.1/nope.efi") == 68  # not found
        assert curl("-o", "got", "--path-as-is", "tftp://10.77.6.1/../../etc/passwd") == 69  # permission problem
        assert curl("-T", "mine", "tftp://10.77.6.1/snponly.efi") != 0
    assert [(event.outcome, event.message) for event in network.events] == [
        (Outcome.FAILED, "TFTP nope.efi: no such file"),
        (Outcome.REFUSED, "TFTP ../../etc/passwd: '..' is not allowed in names"),
    ]


def test_blocks_fit_the_path_mtu_to_the_client(network: Network, start: Start, content: bytes, tmp_path: Path) -> None:
    network.mtu(network.server, "srv0", 1280)
    with network.serving(start(), loop="uvloop"):
        got, output = get(network, "atftp, window of 8", tmp_path)
    assert got == content, output
    assert network.events[-1].detail["block_bytes"] == 1280 - 32


def test_transfer_continues_when_the_path_mtu_shrinks(network: Network, start: Start, tmp_path: Path) -> None:
    large = random.Random(1).randbytes(8 << 20)
    files = start(lambda _: TftpFile(large, "kernel", MAC))
    with network.serving(files, loop="uvloop"):
        command = network.as_client("sh", "-c", CLIENTS["atftp, window of 8"])
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: (tmp_path / "got").exists() and (tmp_path / "got").stat().st_size, every=0.001)
            network.mtu(network.server, "srv0", 1280)
            process.wait(PATIENCE_SECONDS)
    assert (tmp_path / "got").read_bytes() == large


@pytest.mark.parametrize("gso", [True, False], ids=["windows lost whole", "packets lost"])
@pytest.mark.parametrize("client", ["atftp", "atftp, window of 8", "atftp, window of 64", "busybox"])
def test_client_on_a_cable_that_loses_packets_gets_the_file(
    network: Network, start: Start, content: bytes, tmp_path: Path, client: str, gso: bool
) -> None:
    """Every fortieth packet, both ways; a window that the kernel has not cut yet counts as one."""
    for namespace in (network.server, network.client):
        count = ["-m", "statistic", "--mode", "nth", "--every", "40", "--packet", "7"]
        network.firewall(namespace, "INPUT", "-p", "udp", *count, "-j", "DROP")
    if not gso:
        subprocess.run(["ip", "-n", network.server, "link", "set", "srv0", "gso_max_segs", "1"], check=True)
    with network.serving(start(), loop="uvloop"):
        got, output = get(network, client, tmp_path)
    assert got == content, output
    assert network.events[-1].detail["resent_blocks"] > 0


@pytest.mark.parametrize("single_port", [False, True], ids=["port of its own", "single port"])
def test_firewall_that_knows_nothing_of_tftp_lets_a_single_port_through(
    network: Network, start: Start, content: bytes, tmp_path: Path, single_port: bool
) -> None:
    network.firewall(network.client, "INPUT", "-p", "udp", "--sport", "69", "-j", "ACCEPT")
    network.firewall(network.client, "INPUT", "-p", "udp", "-j", "DROP")
    with network.serving(start(single_port=single_port), loop="uvloop"):
        command = f"timeout {20 if single_port else 2} {CLIENTS['atftp, window of 8']}"
        network.run("sh", "-c", command, cwd=tmp_path)
    assert ((tmp_path / "got").read_bytes() == content) == single_port


def test_text_in_netascii_arrives_as_it_was(network: Network, start: Start, tmp_path: Path) -> None:
    text = b"".join(b"line %d\r\x00 of\n\n" % number for number in range(5000))
    with network.serving(start(lambda _: TftpFile(text, "config.txt", MAC))):
        network.run("tftp", "-m", "ascii", "10.77.6.1", "-c", "get", "config.txt", "hpa", cwd=tmp_path)
        network.run("curl", "-sS", "-o", "curl", "tftp://10.77.6.1/config.txt;mode=netascii", cwd=tmp_path)
    assert (tmp_path / "hpa").read_bytes() == text
    # curl writes what was on the wire.
    assert (tmp_path / "curl").read_bytes() == text.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")


@pytest.mark.parametrize("window", [1, 64])
def test_client_counts_beyond_65535_blocks_with_us(network: Network, start: Start, tmp_path: Path, window: int) -> None:
    large = random.Random(1).randbytes(1024) * (33 << 10) + b"end"
    block = ["--option", "blksize 512", "--option", f"windowsize {window}"]
    with network.serving(start(lambda _: TftpFile(large, "kernel", MAC, Step.KERNEL)), loop="uvloop"):
        network.run("atftp", *block, "-g", "-r", "kernel", "-l", "got", "10.77.6.1", cwd=tmp_path)
    assert (tmp_path / "got").read_bytes() == large
    assert network.events[-1].step is Step.KERNEL
    assert "block numbers went beyond 65535" in network.events[-1].message


class Arriving:
    """A file that grows by a step, after a pause, each time that a reader waits for it."""

    def __init__(self, content: bytes, step: int, pause: float) -> None:
        self._content = content
        self._step = step
        self._pause = pause
        self.closed = 0

    def __call__(self, _request: object) -> TftpFile:
        return TftpFile(self._content, "initrd", MAC, Step.INITRD, self._filled, self._close)

    async def _filled(self, offset: int) -> int:
        await asyncio.sleep(self._pause)
        return min(offset + self._step, len(self._content))

    def _close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("client", ["curl, large blocks", "atftp, window of 8", "tftp-hpa", "busybox"])
def test_client_waits_for_a_file_that_is_still_arriving(
    network: Network, start: Start, content: bytes, tmp_path: Path, client: str
) -> None:
    arriving = Arriving(content, 60_000, 0.3)
    with network.serving(start(arriving), loop="uvloop"):
        got, output = get(network, client, tmp_path)
    assert got == content, output
    assert network.events[-1].step is Step.INITRD
    assert arriving.closed == 1


def test_clients_that_repeat_requests_during_a_transfer_get_the_right_file(
    network: Network, start: Start, content: bytes, tmp_path: Path
) -> None:
    """busybox asks again after a tenth of a second and ever more slowly, the others hear our signs of life."""
    commands = [CLIENTS[client].replace("got", client[:5]) for client in ("curl", "atftp, window of 8", "busybox")]
    with network.serving(start(Arriving(content, 200_000, 2.2)), loop="uvloop"):
        processes = [subprocess.Popen(network.as_client("sh", "-c", command), cwd=tmp_path) for command in commands]
        for process in processes:
            process.wait(PATIENCE_SECONDS)
    for name in ("curl", "atftp", "busyb"):
        assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("single_port", [False, True], ids=["port of its own", "single port"])
def test_client_that_dies_in_the_middle_is_noticed(
    network: Network, start: Start, tmp_path: Path, single_port: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if single_port:  # it hears nothing of ICMP
        monkeypatch.setattr("edge.tftp.transfer.PATIENCE_SECONDS", 4.0)
    arriving = Arriving(bytes(8 << 20), 1 << 20, 0.1)
    with network.serving(start(arriving, single_port=single_port), loop="uvloop"):
        command = network.as_client("busybox", "tftp", "-g", "-b", "1468", "-r", "initrd", "-l", "got", "10.77.6.1")
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: (tmp_path / "got").exists() and (tmp_path / "got").stat().st_size >= 1 << 20)
            process.send_signal(signal.SIGKILL)
        wait_until(lambda: any(event.detail.get("phase") != "begun" for event in network.events))
    reason = "failed, silent: no answer for" if single_port else "failed, gone: the client closed its port"
    assert reason in network.events[-1].message
    assert arriving.closed == 1
