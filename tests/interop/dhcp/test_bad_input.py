"""Floods and invalid packets: other clients are served meanwhile, and the log stays short."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp import Received, Reply, Responder
from tests.interop.conftest import Network
from tests.interop.dhcp.conftest import DhcpLab, client_socket, message
from tests.waiting import wait_until

RELAY_IP = "10.77.6.2"
CHADDR = bytes.fromhex("525400cc0001")


@contextmanager
def flood(network: Network, directory: Path, packets: list[bytes], pause: float = 0.003) -> Iterator[None]:
    """The packets, over and over, to both ports of the server: 20, and a `pause` in seconds, so some thousand a second;
    it should be no more than it can answer."""
    directory.mkdir(exist_ok=True)
    for number, packet in enumerate(packets):
        (directory / f"{number:04}").write_bytes(packet)
    send = (
        "import itertools, pathlib, socket, sys, time\n"
        "packets = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())]\n"
        "sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n"
        "sock.bind(('10.77.6.2', 0))\n"
        "for at, packet in enumerate(itertools.cycle(packets)):\n"
        "    to = '10.77.6.1' if at & 1 else '10.77.6.255'\n"
        "    sock.sendto(packet, (to, 4011 if at % 7 == 0 else 67))\n"
        f"    if at % 20 == 0: time.sleep({pause})\n"
        "    if at == 400: print(flush=True)\n"
    )
    command = network.as_client(sys.executable, "-c", send, str(directory))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "it does not begin"
            yield
        finally:
            process.kill()


def unresolved_neighbours(network: Network) -> int:
    """Return the number of hosts on the server's link that do not answer the kernel's ARP requests."""
    command = ["ip", "-n", network.server, "neigh", "show", "dev", "srv0", "nud", "incomplete", "nud", "failed"]
    return len(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


@pytest.fixture
def ready(network: Network, dhcp: DhcpLab) -> DhcpLab:
    """The client's namespace has a relay's address."""
    network.add_address(network.client, "eth0", f"{RELAY_IP}/24")
    return dhcp


class Relay:
    """A relay that passes on a DISCOVER and waits for the offer, one after the other."""

    def __init__(self, network: Network, sock: socket.socket) -> None:
        sock.settimeout(1.0)
        self._socket = sock
        self._to = (network.server_ip, 67)

    def assert_answers(self, count: int) -> None:
        """Send `count` DISCOVERs one after the other, each again every second until it is answered."""
        for xid in range(1, count + 1):
            wait_until(lambda xid=xid: self._is_answered(xid), f"DISCOVER {xid} has no answer")

    def _is_answered(self, xid: int) -> bool:
        self._socket.sendto(message("discover", giaddr=RELAY_IP, hops=1, xid=xid), self._to)
        with suppress(TimeoutError):
            while BOOTP(self._socket.recv(2000)).xid != xid:
                pass
            return True
        return False

    def pause(self, count: int = 100) -> float:
        """Seconds for every 20 packets of a flood, so that it is half of what this server answers here."""
        packet, began = message("discover", giaddr=RELAY_IP, hops=1), time.monotonic()
        for _ in range(count):
            self._socket.sendto(packet, self._to)
        for _ in range(count):
            self._socket.recv(2000)
        return max(0.003, 40 * (time.monotonic() - began) / count)


@pytest.fixture
def relay(network: Network, ready: DhcpLab) -> Iterator[Relay]:
    with client_socket(network, RELAY_IP, 67) as sock:
        yield Relay(network, sock)


WHOLE = message("discover")
GARBAGE = [
    b"",
    b"\1",
    WHOLE[:239],
    WHOLE[:240],
    WHOLE[:241],
    WHOLE[:242],
    WHOLE + bytes(4000),
    bytes(65507),
    b"\xff" * 65507,
    WHOLE[:240] + b"\x35\xff\1",  # a message type that says it has 255 bytes
    WHOLE[:240] + b"\x35\1\1\x34\1\x03" + bytes(50),  # options in sname and file, where there are none
    WHOLE[:240] + b"\x35\1\1" + b"\x52\xff" * 700,
    WHOLE[:2] + b"\xff" + WHOLE[3:],  # a hardware address of 255 bytes
    *(message("discover", giaddr=relay) for relay in ("255.255.255.255", "127.0.0.1", "224.0.0.1")),
    bytes(BOOTP(op=2, chaddr=CHADDR) / DHCP(options=[("message-type", "offer"), "end"])),
]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_endless_garbage_does_not_prevent_a_lease(
    network: Network, ready: DhcpLab, loop: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with network.serving(ready.start, loop), flood(network, tmp_path / "packets", GARBAGE):
        assert ready.udhcpc("-T", "1", "-t", "8").returncode == 0
    assert 0 < len(caplog.records) < 60


def test_machine_with_endless_requests_does_not_delay_others(
    network: Network, ready: DhcpLab, relay: Relay, tmp_path: Path
) -> None:
    # It never takes an offer. Its packets are as good as any other's, so each is answered.
    ready.register("10.77.6.70", "52:54:00:cc:00:70", "lab-70")
    asks = [message("discover", mac="52:54:00:cc:00:70", xid=xid) for xid in range(64)]
    with network.serving(ready.start, "uvloop"), flood(network, tmp_path / "packets", asks, relay.pause()):
        relay.assert_answers(40)


def test_forged_relays_that_do_not_exist_do_not_delay_real_ones(
    network: Network, ready: DhcpLab, relay: Relay, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The kernel keeps replies to them in the socket's send buffer while it asks for their hardware address.
    forged = [message("discover", giaddr=f"10.77.6.{host}", hops=1) for host in range(100, 250)]
    with network.serving(ready.start, "uvloop"), flood(network, tmp_path / "packets", forged, relay.pause()):
        wait_until(lambda: unresolved_neighbours(network) > 100, "the server does not answer the forged relays")
        relay.assert_answers(40)
        assert ready.udhcpc("-T", "1", "-t", "8").returncode == 0
    assert len(caplog.records) < 60


def test_relays_blocked_by_the_firewall_are_logged_at_a_limited_rate(
    network: Network, ready: DhcpLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network.firewall(network.server, "OUTPUT", "-d", "192.0.2.0/24", "-j", "DROP")
    forged = [message("discover", giaddr=f"192.0.2.{host}", hops=1) for host in range(1, 255)]
    with network.serving(ready.start), flood(network, tmp_path / "packets", forged):
        assert ready.udhcpc("-T", "1", "-t", "8").returncode == 0
    assert "was not sent: Operation not permitted" in caplog.text
    assert len(caplog.records) < 60


def test_internal_error_on_every_packet_of_a_machine_is_logged_at_a_limited_rate(
    network: Network, ready: DhcpLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    respond_in_full = Responder.respond_in_full
    faults = itertools.count()

    def fail(responder: Responder, packet: bytes, received: Received) -> Reply | None:
        if len(packet) > 28 and packet[28:34] != CHADDR:
            raise ZeroDivisionError(f"fault {next(faults)}")
        return respond_in_full(responder, packet, received)

    monkeypatch.setattr(Responder, "respond_in_full", fail)
    other = message("discover", mac="02:02:02:02:02:02")
    with network.serving(ready.start), flood(network, tmp_path / "packets", [other]):
        assert ready.udhcpc("-T", "1", "-t", "8").returncode == 0
    assert next(faults) > 100
    assert caplog.text.count("internal error on") <= 4  # one for each socket
