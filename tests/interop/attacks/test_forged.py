"""Forged DHCP and ARP on the machines' link, from a routed network and in the name of relays; and floods of them, while
DHCP and TFTP are served. Also the addresses that a DHCP proxy learns.

eth0 (the machine, or the attacker, and a router) -- srv0 (the server)      10.77.6.0/24
far0 (a host of a routed network) -- the router                             10.77.9.0/24
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from edge.callers import Callers
from edge.dhcp import DhcpServer, DhcpSettings, Responder
from edge.dhcp.context import MAX_CLIENT_REPLIES, MAX_RELAY_REPLIES
from edge.dhcp_common import DhcpSite, Quarantine
from edge.journey.events import Outcome
from edge.machines import DhcpMode, MachineScripts, NetbootPolicy
from edge.neighbour.table import AddressResolution, NeighbourTable
from edge.tftp import BootFiles, TftpServer
from ipxe.scripts import BootSettings, Scripts
from tests.interop.attacks.soak.boot import first_packet
from tests.interop.conftest import Network, in_namespace
from tests.interop.dhcp.conftest import Closing, DhcpLab
from tests.waiting import wait_until

OpenWire = Callable[..., Any]

MAC, CHADDR = "52:54:00:cc:00:01", bytes.fromhex("525400cc0001")
FORGER = "02:00:00:00:00:99"
SERVER, MACHINE = "10.77.6.1", "10.77.6.50"
FAR = "10.77.9.2"
VICTIM, VICTIMS_IP = "52:54:00:cc:00:60", "10.77.6.60"
EVERYBODY = "ff:ff:ff:ff:ff:ff"
COOKIE = b"\x63\x82\x53\x63"


@pytest.fixture
def dhcp(network: Network, tmp_path: Path) -> DhcpLab:
    lab = DhcpLab(network, tmp_path)
    lab.register()
    return lab


@pytest.fixture
def far(network: Network) -> str:
    """Add a namespace behind the machine's namespace, which is its router."""
    namespace: str = network.another("far")
    network.give_client_its_address()
    network.join(network.client, "far1", "10.77.9.1/24", namespace, "far0", f"{FAR}/24")
    network.sysctl(network.client, "net.ipv4.ip_forward", "1")
    network.route(network.server, "10.77.9.0/24", MACHINE)
    network.route(namespace, "10.77.6.0/24", "10.77.9.1")
    return namespace


def message(kind: str, *options: Any, chaddr: bytes = CHADDR, **fields: Any) -> bytes:
    message_options = [("message-type", kind), *options, "end"]
    return bytes(BOOTP(op=1, xid=7, chaddr=chaddr, **fields) / DHCP(options=message_options))


def decline(**fields: Any) -> bytes:
    return message("decline", ("server_id", SERVER), ("requested_addr", MACHINE), **fields)


def broadcast(payload: bytes, source: str = FORGER) -> bytes:
    """Return a frame from a host without an address on the link."""
    packet = Ether(src=source, dst=EVERYBODY) / IP(src="0.0.0.0", dst="255.255.255.255")
    return bytes(packet / UDP(sport=68, dport=67) / payload)


def udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class Everything:
    """A DHCP server with a quarantine of ten minutes, and the addresses that went into quarantine."""

    def __init__(self, dhcp: DhcpLab) -> None:
        self.begun: list[str] = []
        self.dhcp = dhcp
        changed = lambda _machine, address, until: self.begun.append(address) if until is not None else None  # noqa: E731
        self.quarantine = Quarantine(time.monotonic, 600.0, changed)

    def serving(self) -> Any:
        return self.dhcp.network.serving(lambda: self.dhcp.start(quarantine=self.quarantine))

    def has_logged(self, words: str) -> Callable[[], bool]:
        return lambda: any(words in message for message in self.dhcp.network.messages())

    def leases(self, tries: int = 8) -> bool:
        """Return True if the machine gets its address when it boots."""
        return self.dhcp.udhcpc("-T", "1", "-t", str(tries)).returncode == 0


@pytest.fixture
def server(dhcp: DhcpLab) -> Everything:
    return Everything(dhcp)


# --- DHCPDECLINE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine_is", ["up", "off"])
def test_forged_decline_does_not_take_a_machine_s_address(server: Everything, wire: OpenWire, machine_is: str) -> None:
    if machine_is == "up":
        server.dhcp.network.give_client_its_address()
    ears = wire()
    with server.serving():
        ears.send(broadcast(decline()))
        expected = "only the machine itself answers ARP" if machine_is == "up" else "no host answers ARP"
        wait_until(server.has_logged(expected), "the server sent no probe")
        assert server.leases()
    assert server.begun == []
    probes = [packet[ARP] for packet in map(Ether, ears.received()) if ARP in packet and packet[ARP].psrc == "0.0.0.0"]
    assert [(probe.op, probe.pdst) for probe in probes] == [(1, MACHINE)] * 3


def test_decline_is_accepted_if_another_host_answers_and_its_mac_is_recorded(
    server: Everything, wire: OpenWire
) -> None:
    ears = wire()
    with server.serving():
        ears.send(broadcast(decline()))
        claim = ARP(op=2, hwsrc=FORGER, psrc=MACHINE, hwdst="00:00:00:00:00:00", pdst="0.0.0.0")
        wait_until(lambda: any(ARP in Ether(frame) for frame in ears.received()), "the server sent no probe")
        ears.send(bytes(Ether(src=FORGER, dst=EVERYBODY) / claim))
        wait_until(
            server.has_logged(f"another host, {FORGER}, already uses {MACHINE}"),
            "the server did not receive the answer",
        )
        assert not server.leases(2)
    assert server.begun == [MACHINE]


@pytest.mark.parametrize("relay", ["0.0.0.0", "10.77.6.9", "10.77.9.1"], ids=["none", "a likely one", "another's"])
def test_decline_from_a_routed_network_is_recorded_and_the_machine_keeps_its_address(
    server: Everything, far: str, relay: str
) -> None:
    # The server probes, since the giaddr is in the machine's network, and finds the machine itself.
    words = "only the machine itself answers ARP" if relay == "10.77.6.9" else f"from {FAR} is not believed"
    with server.serving(), closing(in_namespace(far, udp)) as forger:
        assert server.leases(), "it was given its address a moment ago"
        for _ in range(50):
            forger.sendto(decline(giaddr=relay), (SERVER, 67))
        wait_until(server.has_logged(words), "the server did not report it")
        assert server.leases()
    assert server.begun == []
    assert sum(words in message for message in server.dhcp.network.messages()) == 1


def test_host_that_invents_the_relay_of_a_machine_does_not_silence_it(server: Everything, far: str) -> None:
    """The attacker sends a whole exchange and a DHCPDECLINE in the machine's name, from its own address."""
    relay, behind, network = "10.77.9.1", "10.77.9.50", server.dhcp.network
    server.dhcp.register(behind)
    own = ("server_id", SERVER), ("requested_addr", behind)
    with (
        server.serving(),
        closing(in_namespace(network.client, udp)) as forger,
        closing(in_namespace(network.client, udp)) as router,
    ):
        router.bind((relay, 67))
        router.settimeout(10)
        for _ in range(3):
            forger.sendto(message("request", *own, giaddr=relay), (SERVER, 67))
            assert BOOTP(router.recv(2000)).yiaddr == behind, "leases go to any relay"
            forger.sendto(message("decline", *own, giaddr=relay), (SERVER, 67))
        wait_until(
            server.has_logged(f"it comes from {MACHINE} and not from its relay {relay}"), server.dhcp.network.messages
        )
        router.sendto(message("discover", giaddr=relay), (SERVER, 67))
        assert BOOTP(router.recv(2000)).yiaddr == behind
    assert server.begun == []


def test_machine_that_has_its_address_renews_while_it_is_in_quarantine(server: Everything, far: str) -> None:
    machine = server.dhcp.inventory.by_mac(MAC)
    assert machine is not None
    with server.serving(), closing(in_namespace(server.dhcp.network.client, udp)) as client:
        server.quarantine.begin(machine)
        client.bind((MACHINE, 68))
        client.settimeout(5)
        client.sendto(message("request", ciaddr=MACHINE), (SERVER, 67))
        assert BOOTP(client.recv(2000)).yiaddr == MACHINE


# --- destination of answers -------------------------------------------------------------------------------------------


@pytest.fixture
def victim(far: str) -> Iterator[socket.socket]:
    with closing(in_namespace(far, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))) as ears:
        ears.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        in_namespace(far, lambda: ears.bind(("far0", 0x0800)))
        ears.settimeout(0.5)
        with closing(in_namespace(far, udp)) as ping:
            ping.sendto(b"", (SERVER, 9))  # so that both ends resolve their next hops
            assert ears.recv(2048)
        yield ears


def test_answers_can_not_be_turned_on_a_host_that_is_no_relay(
    server: Everything, victim: socket.socket, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    with server.serving(), closing(in_namespace(network.client, udp)) as forger:
        count, seconds = count_received(forger, victim, message("discover", giaddr=FAR), 12_000)
    assert 0 < count <= MAX_RELAY_REPLIES * (seconds + 1)
    assert caplog.text.count(f"the relay {FAR}, which is not of its machine's network (1000 a second)") == 1


def test_inform_for_a_host_elsewhere_is_not_answered_to_it(
    server: Everything, victim: socket.socket, network: Network
) -> None:
    with server.serving(), closing(in_namespace(network.client, udp)) as forger:
        count, _ = count_received(forger, victim, message("inform", ciaddr=FAR), 500)
        assert count == 0
        wait_until(
            server.has_logged(f"DHCPINFORM for {FAR}, which is not of this machine's network"),
            "the server did not report it",
        )
    informed = [event for event in network.events if "DHCPINFORM" in event.message]
    assert [event.outcome for event in informed] == [Outcome.INFO]


def test_port_4011_limits_answers_to_one_address(server: Everything, victim: socket.socket, far: str) -> None:
    rom = [("vendor_class_id", b"PXEClient:Arch:00007:UNDI:003016"), ("pxe_client_architecture", b"\0\7")]
    with server.serving(), closing(in_namespace(far, udp)) as forger:
        count, seconds = count_received(forger, victim, message("request", *rom, ciaddr=FAR), 500, 4011)
    assert 0 < count <= MAX_CLIENT_REPLIES * (seconds + 1)


def count_received(
    forger: socket.socket, victim: socket.socket, packet: bytes, count: int, port: int = 67
) -> tuple[int, float]:
    """Return the number of the server's packets that the victim received, and the seconds that this took."""
    begun = time.monotonic()
    received = 0
    for number in range(count):
        forger.sendto(packet, (SERVER, port))
        if number % 64 == 0:
            time.sleep(0.001)  # so that the server's socket drops no request
    while True:
        try:
            frame = victim.recv(1 << 17)
        except TimeoutError:
            return received, time.monotonic() - begun
        if frame[26:30] == socket.inet_aton(SERVER):
            received += frame.count(COOKIE)  # equal replies leave as one segmented packet, which veth does not split


# --- identity by ARP, DHCP and TFTP -----------------------------------------------------------------------------------


class Rack:
    """DHCP in a mode, and TFTP, with one registered machine: the victim."""

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

        def learn(mac: str, ip: str, relayed: bool) -> None:
            callers.learn(mac, ip, "" if relayed else "srv0")

        site = DhcpSite(inventory, policy, binaries, network.record, time.monotonic)
        responder = Responder(site, settings, learn=learn)
        inventory.on_change(responder.machine_changed)
        osie = {"metadata": {"name": "lab"}, "spec": {"kernelUrl": "http://u/k", "initrdUrl": "http://u/i"}}
        scripts = MachineScripts(inventory, policy, lambda *_: osie, Scripts(BootSettings()), network.record)
        resolution = AddressResolution(bound.is_hidden, "srv0")
        files = BootFiles(binaries, inventory, bound, policy, address=SERVER, scripts=scripts, resolution=resolution)
        started = [DhcpServer(responder, "srv0"), TftpServer(files, network.record, host=SERVER, interface="srv0")]
        for server in started:
            await server.start()
        return [*started, Closing(table)]


def ask(namespace: str, source: str, name: str) -> bytes:
    answer = first_packet(namespace, source, SERVER, name)
    assert answer, "no answer"
    return answer


def lie(ip: str) -> bytes:
    """Return the victim's REQUEST to another DHCP server for this address."""
    options = ("server_id", "10.77.6.9"), ("requested_addr", ip)
    return message("request", *options, chaddr=bytes.fromhex(VICTIM.replace(":", "")))


def test_attacker_with_the_address_of_a_machine_gets_none_of_its_files(network: Network, tmp_path: Path) -> None:
    """The machine has our address in its ARP cache, so it sends no ARP request that would show its new address."""
    network.give_client_its_address()
    rack = Rack(network, tmp_path, DhcpMode.PROXY)
    with network.serving(rack.start):
        ask(network.client, MACHINE, "nothing.efi")
        network.add_address(network.client, "eth0", f"{VICTIMS_IP}/24")
        for name in (f"{VICTIM}/auto.ipxe", "auto.ipxe", "why.ipxe", "autoexec.ipxe"):
            answer = ask(network.client, VICTIMS_IP, name)
            assert answer[:2] == b"\0\5", answer
            assert b"no host" not in answer, "its MAC is known, and is another one"
        assert ask(network.client, VICTIMS_IP, "snponly.efi") == b"\0\3\0\1snponly"


def test_machine_missing_in_the_neighbour_table_is_resolved_and_gets_its_files(
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
def test_attacker_with_forged_arp_and_dhcp_on_the_link_is_known_by_its_own_mac(
    network: Network, wire: OpenWire, tmp_path: Path, mode: DhcpMode
) -> None:
    network.give_client_its_address()
    network.add_address(network.client, "eth0", f"{VICTIMS_IP}/24")  # the attacker takes the victim's address, too
    network.sysctl(network.client, "net.ipv4.conf.eth0.arp_announce", "0")
    rack, ears = Rack(network, tmp_path, mode), wire()
    with network.serving(rack.start):
        before = network.datagrams_read(network.server)
        for _ in range(20):
            ears.send(broadcast(lie(MACHINE), MAC))
            for ip in (MACHINE, VICTIMS_IP):
                claim = ARP(op=2, hwsrc=MAC, psrc=ip, hwdst=MAC, pdst=ip)
                ears.send(bytes(Ether(src=MAC, dst=EVERYBODY) / claim))
        wait_until(lambda: network.datagrams_read(network.server) >= before + 20, "the server has not read the lies")
        for source in (MACHINE, VICTIMS_IP):
            for name in (f"{VICTIM}/auto.ipxe", "auto.ipxe"):
                answer = ask(network.client, source, name)
                assert answer[:2] == b"\0\5" or VICTIM.encode() not in answer, answer
                assert b"victim" not in answer


def test_host_of_a_routed_network_is_not_identified_by_its_claims(network: Network, far: str, tmp_path: Path) -> None:
    rack = Rack(network, tmp_path, DhcpMode.PROXY)
    with network.serving(rack.start), closing(in_namespace(far, udp)) as forger:
        before = network.datagrams_read(network.server)
        for port in (67, 4011) * 5:
            forger.sendto(lie(FAR), (SERVER, port))
        wait_until(lambda: network.datagrams_read(network.server) >= before + 10, "the server has not read the lies")
        answer = ask(far, FAR, f"{VICTIM}/auto.ipxe")  # from the same event loop, after the lies
        assert rack.callers.mac(FAR) is None
    assert answer[:2] == b"\0\5", "the victim's script"
    events = [event for event in network.events if event.mac == VICTIM and FAR in event.message]
    assert [event.outcome for event in events] == [Outcome.INFO]


@pytest.mark.parametrize(
    "hosts",
    # The table's limit (gc_thresh3, 1024) is that of the whole machine: exceeding it would break other tests.
    [300, pytest.param(4000, marks=pytest.mark.soak)],
)
def test_machine_boots_while_the_neighbour_table_is_flooded(
    network: Network, wire: OpenWire, tmp_path: Path, hosts: int
) -> None:
    network.add_address(network.server, "srv0", "10.77.99.1/16")  # all of them are on the link
    network.sysctl(network.client, "net.ipv4.conf.all.arp_ignore", "8")  # no host answers the ARP requests for them
    rack, ears = Rack(network, tmp_path, DhcpMode.RESERVATION), wire()
    rack.dhcp.register()
    with network.serving(rack.start):
        # Hosts that do not exist send ARP requests for our address: each becomes an entry of the kernel's table.
        for number in range(hosts):
            mac, ip = f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}", f"10.77.{8 + (number >> 8)}.{number & 255}"
            arp_request = ARP(op=1, hwsrc=mac, psrc=ip, pdst=SERVER)
            ears.send(bytes(Ether(src=mac, dst=EVERYBODY) / arp_request))
        assert rack.dhcp.udhcpc("-T", "1", "-t", "8").returncode == 0, "frames by hand need no entry"
        network.sysctl(network.client, "net.ipv4.conf.all.arp_ignore", "0")
        network.give_client_its_address()

        def is_served() -> bool:
            with suppress(AssertionError):
                return ask(network.client, MACHINE, "snponly.efi") == b"\0\3\0\1snponly"
            return False

        wait_until(is_served, "it does not recover")
