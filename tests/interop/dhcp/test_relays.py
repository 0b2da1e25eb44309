"""Behind relays: dnsmasq's, ISC's with option 82, and perfdhcp, which is one itself.

eth0 (the machine)  --  srv0 | relay | up0  --  srv1 10.77.8.1 (the server)
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.interop.conftest import Network, Wire
from tests.interop.dhcp.conftest import DhcpLab, client_socket, message
from tests.waiting import wait_until

OpenWire = Callable[..., Wire]

UPSTREAM_IP, RELAY_IP = "10.77.8.1", "10.77.8.2"


class Relayed:
    """The network's server namespace becomes the relay; the DHCP server is behind it, in a namespace of its own."""

    def __init__(self, network: Network, dhcp: DhcpLab) -> None:
        self.network = network
        self.dhcp = dhcp
        self.far = network.another("far")
        network.join(network.server, "up0", f"{RELAY_IP}/24", self.far, "srv1", f"{UPSTREAM_IP}/24")
        # Its way back to the machines' network is the relay.
        network.route(self.far, "10.77.6.0/24", RELAY_IP)
        network.sysctl(network.server, "net.ipv4.ip_forward", "1")

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self.network.serving(lambda: self.dhcp.start("srv1", UPSTREAM_IP), namespace=self.far):
            yield

    @contextmanager
    def relay(self, command: Sequence[str], log: Path) -> Iterator[None]:
        whole = ["ip", "netns", "exec", self.network.server, *command]
        with log.open("wb") as output, subprocess.Popen(whole, stdout=output, stderr=output) as process:
            try:
                wait_until(self._listens, "the relay does not listen")
                yield
            finally:
                process.terminate()

    def _listens(self) -> bool:
        command = ["ip", "netns", "exec", self.network.server, "cat", "/proc/net/udp"]
        return ":0043 " in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def relayed(network: Network, dhcp: DhcpLab) -> Relayed:
    return Relayed(network, dhcp)


def messages(frames: list[bytes]) -> list[Packet]:
    return [packet for packet in map(Ether, frames) if BOOTP in packet]


def options(packet: Packet) -> dict[str, Any]:
    return {option[0]: option[1] for option in packet[DHCP].options if isinstance(option, tuple)}


DNSMASQ = [
    "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--port=0", "--user=root", "--pid-file",
    f"--dhcp-relay=10.77.6.1,{UPSTREAM_IP}",
]  # fmt: skip
# -a adds option 82 to what it passes on; -m is what it does with what has it already.
DHCRELAY = ["dhcrelay", "-4", "-d", "--no-pid", "-a", "-id", "srv0", "-iu", "up0", UPSTREAM_IP]


@pytest.mark.parametrize("command", [DNSMASQ, DHCRELAY], ids=["dnsmasq", "dhcrelay"])
def test_machine_behind_a_relay_gets_its_lease(relayed: Relayed, command: list[str], tmp_path: Path) -> None:
    with relayed.serving(), relayed.relay(command, tmp_path / "log"):
        done = relayed.dhcp.udhcpc("-T", "1", "-t", "8")
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
    got = relayed.dhcp.learned("bound")
    assert (got["ip"], got["serverid"]) == (relayed.network.client_ip, UPSTREAM_IP)


def test_option_82_comes_back_as_the_relay_sent_it_and_last(relayed: Relayed, wire: OpenWire, tmp_path: Path) -> None:
    ears = wire(relayed.far, "srv1")
    with relayed.serving(), relayed.relay(DHCRELAY, tmp_path / "log"):
        assert relayed.dhcp.udhcpc("-T", "1", "-t", "8").returncode == 0
    found = messages(ears.received())
    asked = next(packet for packet in found if packet[BOOTP].op == 1)
    answered = next(packet for packet in found if packet[BOOTP].op == 2)
    assert asked[BOOTP].giaddr == answered[BOOTP].giaddr == "10.77.6.1"
    # It names the machine's interface (sub-option 1), and the ISC relay drops answers that bring it back changed.
    assert options(asked)["relay_agent_information"] == options(answered)["relay_agent_information"]
    assert [option[0] for option in answered[DHCP].options if isinstance(option, tuple)][-1] == (
        "relay_agent_information"
    )
    assert (answered[IP].dst, answered[IP].src) == ("10.77.6.1", UPSTREAM_IP)


def test_machine_behind_a_relay_renews_without_it(relayed: Relayed, tmp_path: Path) -> None:
    relayed.dhcp.register(seconds=6)
    relayed.network.give_client_its_address()
    relayed.network.route(relayed.network.client, f"{UPSTREAM_IP}/32", "10.77.6.1")
    with (
        relayed.serving(),
        relayed.relay(DHCRELAY, tmp_path / "log"),
        relayed.dhcp.dhclient(),
    ):
        relayed.dhcp.learned("RENEW")
    assert any("renewal" in message for message in relayed.network.messages())


def test_refusal_reaches_a_machine_behind_a_relay(relayed: Relayed, wire: OpenWire, tmp_path: Path) -> None:
    # The client has no address, so the flag makes the relay broadcast (RFC 2131 section 4.3.2).
    ears = wire(relayed.far, "srv1")
    with (
        relayed.serving(),
        relayed.relay(DHCRELAY, tmp_path / "log"),
        relayed.dhcp.dhclient(had="10.77.6.99", of=UPSTREAM_IP),
    ):
        assert relayed.dhcp.learned("BOUND", 30)["new_ip_address"] == relayed.network.client_ip
    naks = [packet for packet in messages(ears.received()) if options(packet).get("message-type") == 6]
    assert naks
    assert all(packet[BOOTP].flags.B and packet[IP].dst == "10.77.6.1" for packet in naks)


def test_relay_without_port_67_is_answered_at_its_own_port(network: Network, dhcp: DhcpLab) -> None:
    """RFC 8357. Debian's relays are built without it."""
    network.add_address(network.client, "eth0", "10.77.6.2/24")
    asks = message("discover", (82, b"\x01\x04eth7\x13\x00"), giaddr="10.77.6.2")
    with network.serving(dhcp.start, "uvloop"), client_socket(network, "10.77.6.2", 0) as sock:
        sock.sendto(asks, (network.server_ip, 67))
        answer, source = sock.recvfrom(2000)
    assert source == (network.server_ip, 67)
    assert BOOTP(answer).yiaddr == network.client_ip


def test_perfdhcp_gets_an_answer_to_everything(network: Network, dhcp: DhcpLab) -> None:
    for number in range(100):
        dhcp.register(f"10.77.6.{100 + number}", f"00:0c:01:02:03:{4 + number:02x}", f"machine-{number}")
    network.add_address(network.client, "eth0", "10.77.6.2/24")
    with network.serving(dhcp.start, "uvloop"):
        rate = ["-r", "100", "-R", "100", "-p", "3", "-d", "30", "-W", "3000000"]  # -W: microseconds
        done = network.run("perfdhcp", "-4", "-l", "eth0", *rate, "10.77.6.1")
    sent = [int(number) for number in re.findall(r"sent packets: (\d+)", done.stdout)]
    received = [int(number) for number in re.findall(r"received packets: (\d+)", done.stdout)]
    assert sent[0] > 100, done.stdout + done.stderr
    # What was sent last may still be on its way when it stops.
    assert all(sent - received <= 2 for sent, received in zip(sent, received, strict=True)), done.stdout
