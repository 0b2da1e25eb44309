"""Packets that overtake each other, come twice or not at all: a cable through a forwarder that does that to them.

    eth0 (the machine) -- near | the forwarder | away -- srv0 (the server)

It works on frames, so that everything on the cable is treated alike, ARP too; the order of its mischief is given by a
seed.
"""

from __future__ import annotations

import random
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.journey.events import Outcome
from edge.tftp import TftpServer
from edge.tftp.source import TftpFile
from tests.interop.conftest import Network, in_namespace
from tests.interop.dhcp.conftest import DhcpLab, dhcp
from tests.waiting import PATIENCE_SECONDS

__all__ = ["dhcp"]
MAC = "52:54:00:cc:00:01"
CONTENT = random.Random(7).randbytes(120_007)
_OUTGOING = 4  # linux/if_packet.h: a copy of what we sent ourselves
HELD_SECONDS = 0.02


class Forwarder:
    """Passes frames between two interfaces of a namespace, a share of them dropped, doubled or late."""

    def __init__(self, namespace: str, ends: Sequence[str], *, drop: float, double: float, late: float) -> None:
        self._sockets = [
            in_namespace(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) for _ in ends
        ]
        for sock, end in zip(self._sockets, ends, strict=True):
            sock.bind((end, 3))  # ETH_P_ALL
        self._chance = random.Random(1)
        self._shares = (drop, double, late)
        self._late: list[tuple[float, socket.socket, bytes]] = []
        self._ending = threading.Event()
        self.did = {"dropped": 0, "doubled": 0, "late": 0, "passed": 0}

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join(PATIENCE_SECONDS)
            for sock in self._sockets:
                sock.close()

    def _run(self) -> None:
        one, other = self._sockets
        while not self._ending.is_set():
            for sock in select.select([one, other], [], [], HELD_SECONDS)[0]:
                frame, where = sock.recvfrom(1 << 16)
                if where[2] != _OUTGOING:
                    self._treat(_without_checksum(frame), other if sock is one else one)
            due = [entry for entry in self._late if entry[0] <= time.monotonic()]
            self._late = [entry for entry in self._late if entry not in due]
            for _, to, frame in due:
                to.send(frame)

    def _treat(self, frame: bytes, to: socket.socket) -> None:
        drop, double, late = self._shares
        lot = self._chance.random()
        if lot < drop:
            self.did["dropped"] += 1
            return
        if lot < drop + late:
            self.did["late"] += 1
            self._late.append((time.monotonic() + self._chance.random() * HELD_SECONDS, to, frame))
            return
        to.send(frame)
        self.did["passed"] += 1
        if lot > 1 - double:
            self.did["doubled"] += 1
            to.send(frame)


def _without_checksum(frame: bytes) -> bytes:
    """A veth leaves UDP's checksum to hardware that is not there; 0 says that there is none (RFC 768)."""
    if frame[12:14] == b"\x08\0" and frame[23] == 17:
        return frame[:40] + b"\0\0" + frame[42:]
    return frame


@pytest.fixture
def unruly(network: Network) -> Callable[..., Forwarder]:
    """`unruly(drop=, double=, late=)`: the cable goes through such a forwarder from now on."""
    network.remove_cable("srv0")
    middle = network.another("middle")
    network.join(network.server, "srv0", f"{network.server_ip}/24", middle, "away", "10.99.0.1/32")
    network.join(network.client, "eth0", "10.99.0.9/32", middle, "near", "10.99.0.2/32")
    network.remove_address(network.client, "eth0", "10.99.0.9/32")
    network.set_mac(network.client, "eth0", MAC)

    def make(**shares: float) -> Forwarder:
        return Forwarder(middle, ("near", "away"), **shares)

    return make


def test_machines_get_their_leases_on_an_unruly_network(
    network: Network, dhcp: DhcpLab, unruly: Callable[..., Forwarder]
) -> None:
    forwarder = unruly(drop=0.05, double=0.4, late=0.4)
    with network.serving(dhcp.start, "uvloop"), forwarder.running():
        for number in range(6):
            broadcast = ["-B"] if number % 2 else []
            # Three REQUESTs that are lost, and udhcpc gives up: one time in a thousand. Init scripts ask again.
            done = dhcp.udhcpc("-T", "1", "-t", "8", *broadcast)
            if "no lease" in done.stderr:
                done = dhcp.udhcpc("-T", "1", "-t", "8", *broadcast)
            assert done.returncode == 0, done.stderr
            assert dhcp.learned("bound")["ip"] == network.client_ip
            dhcp.forget()
        with dhcp.dhclient("-1"):
            assert dhcp.learned("BOUND")["new_ip_address"] == network.client_ip
    assert forwarder.did["late"] > 5
    assert forwarder.did["doubled"] > 5
    assert {event.outcome for event in network.events} == {Outcome.OK}, network.messages()


def test_no_machine_asks_twice_on_a_network_that_is_unruly_but_loses_nothing(
    network: Network, dhcp: DhcpLab, unruly: Callable[..., Forwarder]
) -> None:
    with network.serving(dhcp.start, "uvloop"), unruly(drop=0, double=0.5, late=0.4).running():
        for _ in range(60):
            done = dhcp.udhcpc("-T", "3")
            lines = [line.partition("broadcasting ")[2].partition(" ")[0] for line in done.stderr.splitlines()]
            assert [word for word in lines if word] == ["discover", "select"], done.stderr


CLIENTS = {
    "busybox": "busybox tftp -g -b 1468 -r file -l got 10.77.6.1",
    "atftp": "atftp --option tsize --option blksize\\ 1468 -g -r file -l got 10.77.6.1",
    "atftp, window of 8": "atftp --option blksize\\ 1468 --option windowsize\\ 8 -g -r file -l got 10.77.6.1",
    "atftp, window of 64": "atftp --option blksize\\ 512 --option windowsize\\ 64 -g -r file -l got 10.77.6.1",
}


@pytest.mark.parametrize("single_port", [False, True], ids=["port of its own", "single port"])
@pytest.mark.parametrize("client", CLIENTS)
def test_files_arrive_whole_on_an_unruly_network_without_a_storm(
    network: Network, unruly: Callable[..., Forwarder], tmp_path: Path, client: str, single_port: bool
) -> None:
    network.give_client_its_address()
    forwarder = unruly(drop=0.01, double=0.1, late=0.1)

    async def start() -> list[TftpServer]:
        file = TftpFile(CONTENT, "file", MAC)
        server = TftpServer(lambda _request: file, network.record, interface="srv0", single_port=single_port)
        await server.start()
        return [server]

    # Whole windows are cut into packets before they come to the forwarder.
    command = ["ip", "-n", network.server, "link", "set", "srv0", "gso_max_segs", "1"]
    subprocess.run(command, check=True, capture_output=True)
    with network.serving(start, "uvloop"), forwarder.running():
        done = network.run("sh", "-c", CLIENTS[client], cwd=tmp_path)
    assert (tmp_path / "got").read_bytes() == CONTENT, done.stderr + done.stdout
    blocks = len(CONTENT) // (512 if "64" in client else 1468) + 1
    assert forwarder.did["passed"] < 8 * blocks, "what comes twice is not answered twice, again and again"
