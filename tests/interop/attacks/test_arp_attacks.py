"""ARP in others' names, and too much of it, while DHCP and TFTP are served; and what a proxy believes of who is where.

eth0 (attacker, and every host that it plays) -- srv0 (the server)      10.77.6.0/24
far0 (a host of a routed network) -- the attacker, which routes         10.77.9.0/24
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from edge.callers import Callers
from edge.dhcp import DhcpServer, DhcpSettings, Responder
from edge.journey.events import Outcome
from edge.machines import DhcpMode, MachineScripts, NetbootPolicy
from edge.neighbour.resolution import AddressResolution
from edge.neighbour.table import NeighbourTable
from edge.tftp import BootFiles, TftpServer
from ipxe.scripts import BootSettings, Scripts
from tests.interop.conftest import Network, in_namespace
from tests.interop.dhcp.conftest import DhcpLab

OpenWire = Callable[..., Any]

ATTACKER, VICTIM = "52:54:00:cc:00:01", "52:54:00:cc:00:60"
SERVER, ATTACKERS_IP, VICTIMS_IP, FAR = "10.77.6.1", "10.77.6.50", "10.77.6.60", "10.77.9.2"


class Closing:
    """Ends with the servers."""

    def __init__(self, table: NeighbourTable) -> None:
        self._table = table

    async def stop(self) -> None:
        self._table.close()


class Rack:
    """DHCP and TFTP in a mode, for one registered machine: the victim."""

    def __init__(self, network: Network, directory: Path, mode: DhcpMode) -> None:
        self.network = network
        self.dhcp = DhcpLab(network, directory)
        self.dhcp.register(VICTIMS_IP, VICTIM, "victim")
        self.mode = mode

    async def start(self) -> list[Any]:
        network, inventory, binaries = self.network, self.dhcp.inventory, self.dhcp.binaries
        policy, table = NetbootPolicy(self.mode), NeighbourTable(["srv0"])
        self.callers = callers = Callers(inventory, self.mode, table)
        bound = callers.answering_on("srv0")
        settings = DhcpSettings(SERVER, SERVER, f"http://{SERVER}:7080")

        def learn(mac: str, ip: str, *, relayed: bool) -> None:
            callers.learn(mac, ip, "" if relayed else "srv0")

        responder = Responder(
            inventory, settings, network.record, time.monotonic, binaries, policy, learn=learn
        )  # fmt: skip
        inventory.on_change(responder.machine_changed)
        osie = {"metadata": {"name": "lab"}, "spec": {"kernelUrl": "http://u/k", "initrdUrl": "http://u/i"}}
        scripts = MachineScripts(
            inventory, policy, lambda _namespace, _name: osie, Scripts(BootSettings()), network.record
        )
        files = BootFiles(
            binaries,
            inventory,
            bound,
            policy,
            address=SERVER,
            scripts=scripts,
            resolution=AddressResolution(bound.is_hidden, "srv0"),
        )
        started = [DhcpServer(responder, "srv0"), TftpServer(files, network.record, host=SERVER, interface="srv0")]
        for server in started:
            await server.start()
        return [*started, Closing(table)]


def ask(namespace: str, source: str, name: str) -> bytes:
    """The first packet that the TFTP server answers with."""

    def talk() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, 0))
            sock.settimeout(1)
            for _ in range(5):
                sock.sendto(b"\0\1" + name.encode() + b"\0octet\0", (SERVER, 69))
                try:
                    return sock.recv(2048)
                except TimeoutError:
                    continue
        raise AssertionError("no answer")

    return in_namespace(namespace, talk)


def claim(mac: str, ip: str) -> bytes:
    """ "I have this address", to everybody."""
    return bytes(Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=2, hwsrc=mac, psrc=ip, hwdst=mac, pdst=ip))


def lie(ip: str) -> bytes:
    """What the victim says to another DHCP server when it takes this address."""
    options = [("message-type", "request"), ("server_id", "10.77.6.9"), ("requested_addr", ip), "end"]
    chaddr = bytes.fromhex(VICTIM.replace(":", ""))
    return bytes(BOOTP(op=1, xid=7, chaddr=chaddr) / DHCP(options=options))


def test_who_takes_the_address_of_a_machine_gets_nothing_that_is_made_for_it(network: Network, tmp_path: Path) -> None:
    """It knows us from before, so that no ARP of it has told us who has that address now."""
    network.give_client_its_address()
    rack = Rack(network, tmp_path, DhcpMode.PROXY)
    with network.serving(rack.start):
        ask(network.client, ATTACKERS_IP, "nothing.efi")
        network.add_address(network.client, "eth0", f"{VICTIMS_IP}/24")
        for name in (f"{VICTIM}/auto.ipxe", "auto.ipxe", "why.ipxe", "autoexec.ipxe"):
            answer = ask(network.client, VICTIMS_IP, name)
            assert answer[:2] == b"\0\5", answer
            assert b"nobody" not in answer, "it was met, and is another"
        assert ask(network.client, VICTIMS_IP, "snponly.efi") == b"\0\3\0\1snponly"


def test_machine_that_the_kernel_has_forgotten_is_met_and_gets_what_is_made_for_it(
    network: Network, tmp_path: Path
) -> None:
    network.set_mac(network.client, "eth0", VICTIM)
    network.add_address(network.client, "eth0", f"{VICTIMS_IP}/24")
    rack = Rack(network, tmp_path, DhcpMode.PROXY)
    with network.serving(rack.start):
        ask(network.client, VICTIMS_IP, "nothing.efi")
        for _ in range(2):
            command = ["ip", "-n", network.server, "neigh", "flush", "dev", "srv0"]
            subprocess.run(command, check=True, capture_output=True)
            assert ask(network.client, VICTIMS_IP, "auto.ipxe")[:4] == b"\0\3\0\1"


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_who_lies_in_arp_and_dhcp_on_the_link_is_still_known_by_its_own_mac(
    network: Network, wire: OpenWire, tmp_path: Path, mode: DhcpMode
) -> None:
    network.give_client_its_address()
    network.add_address(network.client, "eth0", f"{VICTIMS_IP}/24")  # the attacker takes the victim's address, too
    network.sysctl(network.client, "net.ipv4.conf.eth0.arp_announce", "0")
    rack, ears = Rack(network, tmp_path, mode), wire()
    with network.serving(rack.start):
        broadcast = Ether(src=ATTACKER, dst="ff:ff:ff:ff:ff:ff") / IP(src="0.0.0.0", dst="255.255.255.255")
        for _ in range(20):
            ears.send(bytes(broadcast / UDP(sport=68, dport=67) / lie(ATTACKERS_IP)))
            for address in (ATTACKERS_IP, VICTIMS_IP):
                ears.send(claim(ATTACKER, address))
        time.sleep(0.2)
        for source in (ATTACKERS_IP, VICTIMS_IP):
            for name in (f"{VICTIM}/auto.ipxe", "auto.ipxe"):
                answer = ask(network.client, source, name)
                assert answer[:2] == b"\0\5" or VICTIM.encode() not in answer, answer
                assert b"victim" not in answer


@pytest.mark.parametrize("port", [67, 4011])
def test_host_of_a_routed_network_is_not_taken_for_a_machine_by_what_it_says(
    network: Network, tmp_path: Path, port: int
) -> None:
    network.give_client_its_address()
    far = network.another("far")
    network.join(network.client, "far1", "10.77.9.1/24", far, "far0", f"{FAR}/24")
    network.sysctl(network.client, "net.ipv4.ip_forward", "1")
    network.route(network.server, "10.77.9.0/24", ATTACKERS_IP)
    network.route(far, "10.77.6.0/24", "10.77.9.1")
    rack = Rack(network, tmp_path, DhcpMode.PROXY)
    with network.serving(rack.start), closing(in_namespace(far, _udp)) as forger:
        for _ in range(5):
            forger.sendto(lie(FAR), (SERVER, port))
        time.sleep(0.3)
        assert rack.callers.mac(FAR) is None
        answer = ask(far, FAR, f"{VICTIM}/auto.ipxe")
    assert answer[:2] == b"\0\5", "the victim's script"
    told = [event for event in network.events if event.mac == VICTIM and FAR in event.message]
    assert [event.outcome for event in told] == [Outcome.INFO]


def _flood(ears: Any, count: int) -> None:
    """So many hosts that nobody has ask who we are: each becomes an entry of the kernel's table."""
    for number in range(count):
        mac, ip = f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}", f"10.77.{8 + (number >> 8)}.{number & 255}"
        packet = Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=mac, psrc=ip, pdst=SERVER)
        ears.send(bytes(packet))


@pytest.mark.parametrize(
    "hosts",
    # The table's limit is the machine's (gc_thresh3, 1024), not the namespace's: what goes beyond it hurts all others.
    [300, pytest.param(4000, marks=pytest.mark.soak)],
)
def test_machine_boots_while_the_neighbour_table_is_flooded(
    network: Network, wire: OpenWire, tmp_path: Path, hosts: int
) -> None:
    network.add_address(network.server, "srv0", "10.77.99.1/16")  # all of them are on the link
    network.sysctl(network.client, "net.ipv4.conf.all.arp_ignore", "8")  # what is asked of them nobody answers
    rack, ears = Rack(network, tmp_path, DhcpMode.RESERVATION), wire()
    rack.dhcp.register()
    with network.serving(rack.start):
        _flood(ears, hosts)
        assert rack.dhcp.udhcpc("-T", "1", "-t", "8").returncode == 0, "frames by hand need no entry"
        network.sysctl(network.client, "net.ipv4.conf.all.arp_ignore", "0")
        network.give_client_its_address()
        deadline = time.monotonic() + 30
        while True:
            try:
                assert ask(network.client, ATTACKERS_IP, "snponly.efi") == b"\0\3\0\1snponly"
                break
            except AssertionError:
                assert time.monotonic() < deadline, "it does not recover"


def _udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
