"""Real DHCPv6 clients, TFTP and router advertisements over IPv6, each side in a network namespace of its own."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

import pytest

from edge.callers import Callers
from edge.dhcp6 import Dhcp6Server, Responder6, Settings6, server_duid
from edge.dhcp6.wire import MessageType6, Option, addresses_in, option, options, parse
from edge.dhcp_common import DhcpSite, Port, Reply
from edge.machines import Inventory, NetbootPolicy
from edge.neighbour.arrivals import Arrivals
from edge.neighbour.discovery import Advertised
from edge.neighbour.router_advertisement import RouterAdvertiser
from edge.neighbour.table import LinkLocalResolution, NeighbourTable
from edge.tftp import BootFiles, TftpServer
from ipxe.binaries import BootBinaries
from tests.interop.conftest import Network, in_namespace
from tests.interop.dhcp.conftest import CLIENT_MAC, Closing, Learning
from tests.support import objects
from tests.unit.dhcp6.harness import ask, hardware, ia, relayed
from tests.waiting import PATIENCE_SECONDS, until, wait_until

SERVER, CLIENT, NETWORK = "fd77:6::1", "fd77:6::50", IPv6Network("fd77:6::/64")
CONTENT = bytes(range(256)) * 1000
DECLINE = ask(MessageType6.DECLINE, option(Option.SERVERID, server_duid(b"\2tinke")), ia(CLIENT))


def has_link_local_address(namespace: str, interface: str) -> None:
    """Wait until the interface's link-local address is usable."""
    listed = ["ip", "-n", namespace, "-6", "address", "show", "dev", interface, "scope", "link", "-tentative"]
    wait_until(lambda: "fe80::" in subprocess.check_output(listed, text=True), "no link-local address")


class Lab6(Learning):
    """The services over IPv6 in the server's namespace, for the machine in the client's."""

    def __init__(self, network: Network, directory: Path) -> None:
        super().__init__(directory)
        self.network = network
        self.single_port = False
        self.inventory = Inventory()
        (directory / "ipxe").mkdir()
        (directory / "ipxe" / "snponly.efi").write_bytes(CONTENT)
        self.binaries = BootBinaries(directory / "ipxe")
        dhcp = {"ipv6": {"address": CLIENT, "nameservers": [SERVER]}, "leaseTimeSeconds": 4321}
        self.hardware = objects.hardware("lab-1", CLIENT_MAC, ip=None, dhcp=dhcp)
        self.inventory.apply(self.hardware)
        for namespace, interface in ((network.server, "srv0"), (network.client, "eth0")):
            network.sysctl(namespace, f"net.ipv6.conf.{interface}.accept_dad", "0")
            network.bounce(namespace, interface)
        network.add_address(network.server, "srv0", f"{SERVER}/64")
        for namespace, interface in ((network.server, "srv0"), (network.client, "eth0")):
            has_link_local_address(namespace, interface)

    async def start(self) -> list[Any]:
        table = NeighbourTable(["srv0"])
        callers = Callers(self.inventory, neighbours=table)
        settings = Settings6(IPv6Address(SERVER), f"http://[{SERVER}]:7080", server_duid(b"\2tinke"), (NETWORK,))
        record, policy = self.network.record, NetbootPolicy()
        neighbours = LinkLocalResolution("srv0", callers.neighbour, time.monotonic)
        responder = Responder6(
            DhcpSite(self.inventory, policy, self.binaries, record, time.monotonic), settings, neighbours
        )
        self.inventory.on_change(responder.machine_changed)
        files = BootFiles(self.binaries, self.inventory, callers, policy, address=SERVER)
        servers: list[Any] = [
            Dhcp6Server(responder, "srv0"),
            RouterAdvertiser("srv0", Advertised(True, 0, (NETWORK,), b"")),
            TftpServer(files, record, host=SERVER, interface="srv0", single_port=self.single_port),
        ]
        for each in servers:
            await each.start()
        return [*servers, Closing(table)]

    @contextmanager
    def client(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.directory / "client.log").open("ab") as log:
            process = subprocess.Popen(self.network.as_client(*command), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)

    def dhclient(self, *options: str) -> list[str]:
        files = ["-lf", f"{self.directory}/leases", "-pf", f"{self.directory}/pid", "-sf", str(self.script)]
        return ["dhclient", "-6", *options, *files, "eth0"]

    @contextmanager
    def client_socket(self, port: int = 0) -> Iterator[Callable[[bytes], socket.socket]]:
        """Yield a function that sends a client's message to all servers of its link and returns its socket."""
        network = self.network
        to = ("ff02::1:2", 547, 0, network.inside(network.client, lambda: socket.if_nametoindex("eth0")))
        with network.inside(network.client, lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as sock:
            sock.bind(("::", port))
            sock.settimeout(20)

            def send(message: bytes) -> socket.socket:
                sock.sendto(message, to)
                return sock

            yield send

    def wait_for_message(self, words: str) -> None:
        """Wait until a journey contains `words`."""
        wait_until(lambda: any(words in each for each in self.network.messages()), self.network.messages)


@pytest.fixture
def lab(network: Network, tmp_path: Path) -> Lab6:
    return Lab6(network, tmp_path)


@pytest.mark.smoke
def test_dhclient_gets_its_reservation_and_releases_it(network: Network, lab: Lab6) -> None:
    with network.serving(lab.start):
        with lab.client(*lab.dhclient("-d")):
            lease = lab.learned("BOUND6")
        assert (lease["new_ip6_address"], lease["new_dhcp6_name_servers"]) == (CLIENT, SERVER)
        assert (lease["new_max_life"], lease["new_preferred_life"]) == ("4321", "4321")
        network.run(*lab.dhclient("-r"))
    answers = dict.fromkeys(message.split(" to ")[0] for message in network.messages())
    assert [*answers][:2] == ["DHCPv6 ADVERTISE", "DHCPv6 REPLY"]


@pytest.mark.parametrize(
    ("declared", "url"),
    [
        ("send dhcp6.client-arch-type 41;", f"tftp://[{SERVER}]/"),
        ("send dhcp6.client-arch-type 7;", f"tftp://[{SERVER}]/snponly.efi"),
        ("send dhcp6.client-arch-type 22;", f"tftp://[{SERVER}]/boot.scr.uimg"),
        ("", None),
    ],
    ids=["Raspberry Pi", "UEFI without a class", "U-Boot", "operating system"],
)
def test_dhclient_that_declares_firmware_gets_its_boot_file(
    network: Network, lab: Lab6, declared: str, url: str | None
) -> None:
    configuration = lab.directory / "dhclient.conf"
    configuration.write_text(f"{declared}\nalso request dhcp6.bootfile-url;\n")
    with network.serving(lab.start), lab.client(*lab.dhclient("-d", "-cf", str(configuration))):
        lease = lab.learned("BOUND6")
    assert (lease["new_ip6_address"], lease.get("new_dhcp6_bootfile_url")) == (CLIENT, url)


def test_address_of_another_host_is_declined_and_not_offered_again(network: Network, lab: Lab6) -> None:
    squatter, other = "02:00:00:00:00:99", network.another("other")
    network.run("ip", "link", "add", "link", "eth0", "name", "other0", "address", squatter, "type", "macvlan")
    subprocess.run(["ip", "-n", network.client, "link", "set", "other0", "netns", other], check=True)
    network.sysctl(other, "net.ipv6.conf.other0.accept_dad", "0")
    subprocess.run(["ip", "-n", other, "link", "set", "other0", "up"], check=True)
    network.add_address(other, "other0", f"{CLIENT}/64")
    with network.serving(lab.start), lab.client_socket(546) as send:
        assert send(DECLINE).recv(2000)[0] == MessageType6.REPLY
        lab.wait_for_message(f"DHCPv6 DECLINE: another host, {squatter}, already uses {CLIENT}")
        send(ask(MessageType6.SOLICIT, ia()))
        lab.wait_for_message("is in quarantine")


def test_declined_address_that_no_host_uses_is_offered_again(network: Network, lab: Lab6) -> None:
    with network.serving(lab.start), lab.client_socket() as send:
        send(DECLINE)
        lab.wait_for_message(f"DHCPv6 DECLINE of {CLIENT}, but no host answers neighbour discovery there")


def test_dhcpcd_obeys_the_advertisement_and_knows_the_link_by_it(network: Network, lab: Lab6) -> None:
    configuration = lab.directory / "dhcpcd.conf"
    configuration.write_text("duid\nnodev\nipv6only\nia_na\npersistent\noption dhcp6_name_servers\n")
    # Without an earlier lease.
    alone = "mount -t tmpfs none /var/lib/dhcpcd && exec dhcpcd --nobackground --config $0 --script $1 eth0"
    command = ["unshare", "--mount", "sh", "-c", alone, str(configuration), str(lab.script)]
    with network.serving(lab.start), lab.client(*command):
        lease = lab.learned("BOUND6")
        routes = network.run("ip", "-6", "route").stdout
    assert lease["new_dhcp6_ia_na1_ia_addr1"] == CLIENT
    assert str(NETWORK) in routes, "the prefix is on the link, as only the advertisement says"
    assert "default" not in routes, "with a router lifetime of 0 we are nobody's router"


def test_dhclient_behind_a_relay_gets_its_reservation(network: Network, lab: Lab6) -> None:
    relay = network.another("relay")
    network.remove_cable("srv0")
    network.join(relay, "up0", "fd77:6::2/64", network.server, "srv0", f"{SERVER}/64")
    network.join(relay, "down0", "fd77:7::1/64", network.client, "eth0", "fd77:7::99/64")
    network.set_mac(network.client, "eth0", CLIENT_MAC)
    for namespace, interface in ((network.server, "srv0"), (relay, "up0"), (relay, "down0"), (network.client, "eth0")):
        network.sysctl(namespace, f"net.ipv6.conf.{interface}.keep_addr_on_down", "1")
        network.sysctl(namespace, f"net.ipv6.conf.{interface}.accept_dad", "0")
        network.bounce(namespace, interface)
        has_link_local_address(namespace, interface)
    behind = {"ipv6": {"address": "fd77:7::50"}}
    lab.inventory.apply(objects.hardware("lab-1", CLIENT_MAC, ip=None, dhcp=behind))
    forward = ["dhcrelay", "-6", "-d", "--no-pid", "-I", "-l", "down0", "-u", f"{SERVER}%up0"]
    with network.serving(lab.start), (lab.directory / "relay.log").open("wb") as log:
        process = subprocess.Popen(["ip", "netns", "exec", relay, *forward], stdout=log, stderr=log)
        try:
            with lab.client(*lab.dhclient("-d")):
                lease = lab.learned("BOUND6")
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
    assert lease["new_ip6_address"] == "fd77:7::50"


def test_machines_behind_a_relay_each_get_their_own_answer_of_those_sent_together(
    network: Network, lab: Lab6, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, machines = "fd77:6::2", 200
    network.add_address(network.client, "eth0", f"{relay}/64")
    for number in range(machines):
        mac = f"02:00:00:00:06:{number:02x}"
        lab.inventory.apply(hardware(f"m-{number}", mac, f"fd77:6::1:{number:x}"))
    groups: list[int] = []
    send_group = Port._send_group

    def counted(port: Port, group: list[Reply]) -> None:
        groups.append(len(group))
        send_group(port, group)

    monkeypatch.setattr(Port, "_send_group", counted)
    addresses_by_machine = {}
    with (
        network.serving(lab.start, "uvloop"),
        network.inside(network.client, lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as asker,
    ):
        asker.bind((relay, 547))
        asker.setsockopt(socket.SOL_SOCKET, 33, 1 << 20)  # SO_RCVBUFFORCE: no packet is read until all are sent
        asker.settimeout(20)
        for number in range(machines):
            peer = IPv6Address(f"fe80::ff:fe00:6{number:02x}")
            solicit = ask(MessageType6.SOLICIT, ia(iaid=number.to_bytes(4, "big")))
            asker.sendto(relayed(solicit, relay, peer), (SERVER, 547))
        while len(addresses_by_machine) < machines:
            (inner,) = [value for code, value in options(asker.recv(2000)[34:]) if code == Option.RELAY_MSG]
            answer, _ = parse(inner)
            association = answer.get(Option.IA_NA)
            assert association is not None
            addresses_by_machine[int.from_bytes(association[:4], "big")] = str(addresses_in(association)[0])
    assert addresses_by_machine == {number: str(IPv6Address(f"fd77:6::1:{number:x}")) for number in range(machines)}
    assert 1 < max(groups) <= 64


def test_unregistered_host_gets_no_answer_and_is_reported_with_a_manifest(network: Network, lab: Lab6) -> None:
    lab.inventory.remove(lab.hardware)
    with network.serving(lab.start), lab.client(*lab.dhclient("-d")):
        wait_until(lambda: bool(network.events), "nobody was seen")
    assert network.client_mac in str(network.events[0].detail["manifest"])


def test_system_with_a_random_link_local_address_is_identified_at_its_second_request(
    network: Network, lab: Lab6
) -> None:
    network.sysctl(network.client, "net.ipv6.conf.eth0.addr_gen_mode", "3")
    network.bounce(network.client, "eth0")
    has_link_local_address(network.client, "eth0")
    solicit = ask(MessageType6.SOLICIT, ia(), client=b"\0\2\0\0\xab\x11machine")

    assert "ff:fe" not in network.run("ip", "-6", "address", "show", "dev", "eth0").stdout

    with network.serving(lab.start), lab.client_socket(546) as send:
        sock = send(solicit)
        sock.settimeout(1.2)
        with pytest.raises(TimeoutError):
            sock.recv(2000)
        sock.settimeout(20)
        assert IPv6Address(CLIENT).packed in send(solicit).recv(2000)


@pytest.mark.parametrize("single_port", [False, True])
def test_boot_program_comes_by_tftp_to_the_machine_at_its_address(
    network: Network, lab: Lab6, single_port: bool
) -> None:
    lab.single_port = single_port
    network.add_address(network.client, "eth0", f"{CLIENT}/64")
    target = lab.directory / "got"
    with network.serving(lab.start):
        url = f"tftp://[{SERVER}]/snponly.efi"
        done = network.run("curl", "-sS", "--max-time", "20", "-o", str(target), url)
        assert done.returncode == 0, done.stderr
        lab.wait_for_message("sent snponly.efi")
    assert target.read_bytes() == CONTENT


def test_kernel_has_the_mac_of_an_ipv6_address_on_our_link(network: Network, lab: Lab6) -> None:
    network.add_address(network.client, "eth0", f"{CLIENT}/64")
    with in_namespace(network.client, lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as sock:
        sock.sendto(b"", (SERVER, 9))

    def resolve_addresses() -> list[object]:
        table = NeighbourTable(["srv0"])
        with closing(table):
            return [
                *map(table.mac, (CLIENT, "fd77:6::51")),
                *map(table.on_link, (CLIENT, "fe80::1", "2001:db8::1")),
            ]

    wait_until(lambda: in_namespace(network.server, resolve_addresses) == [CLIENT_MAC, None, True, True, False])


def test_packets_over_ipv6_are_counted_before_the_firewall(network: Network, lab: Lab6) -> None:
    network.add_address(network.client, "eth0", f"{CLIENT}/64")
    udp, tcp = (
        in_namespace(network.client, lambda kind=kind: socket.socket(socket.AF_INET6, kind))
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)
    )

    async def count_packets() -> tuple[dict[str, int], dict[str, int]]:
        arrivals = Arrivals("srv0", 7080)
        try:
            udp.sendto(b"\0\1x\0octet\0", (SERVER, 69))
            with pytest.raises(ConnectionRefusedError):
                await asyncio.to_thread(tcp.connect, (SERVER, 7080))
            await until(lambda: len(arrivals.asked(CLIENT, 0)) == 2)
            return arrivals.asked(CLIENT, 0), arrivals.asked("10.77.6.50", 0)
        finally:
            arrivals.close()

    with udp, tcp:
        assert in_namespace(network.server, lambda: asyncio.run(count_packets())) == ({"udp/69": 1, "tcp/7080": 1}, {})
