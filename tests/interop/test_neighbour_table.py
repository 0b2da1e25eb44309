"""The kernel's neighbour table: who really answers for an address on our link."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from ipaddress import ip_address

import pytest

from edge.neighbour.route import RouteKind, route_to
from edge.neighbour.table import NeighbourTable, neighbour_changes
from tests.interop.conftest import Network
from tests.waiting import PATIENCE_SECONDS, wait_until

IP = "10.77.6.50"
OTHER_MAC = "52:54:00:99:99:99"


def neigh(network: Network, *words: str) -> None:
    command = ["ip", "-n", network.server, "neigh", *words]
    subprocess.run(command, check=True, capture_output=True)


def ask(network: Network, *interfaces: str, ip: str = IP, bound: str = "") -> str | None:
    def inside() -> str | None:
        table = NeighbourTable(interfaces)
        try:
            return table.mac(ip, bound)
        finally:
            table.close()

    found: str | None = network.inside(network.server, inside)
    return found


def test_machine_that_talks_to_us_is_known(network: Network) -> None:
    network.give_client_its_address()
    assert ask(network, "srv0") is None
    sender = network.inside(network.client, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.sendto(b"x", (network.server_ip, 69))
    sender.close()
    assert wait_until(lambda: ask(network, "srv0")) == network.client_mac
    assert ask(network, "srv0", ip="10.77.6.51") is None
    assert ask(network, "lo") is None, "what another link says of it does not count"
    assert ask(network, "gone0", "lo", "srv0") == network.client_mac


@pytest.mark.parametrize(
    ("state", "known"),
    [("reachable", True), ("stale", True), ("delay", True), ("probe", True), ("permanent", True), ("noarp", False)],
)
def test_only_what_the_kernel_would_use_counts(network: Network, state: str, known: bool) -> None:
    neigh(network, "replace", IP, "lladdr", OTHER_MAC, "dev", "srv0", "nud", state)
    assert ask(network, "srv0") == (OTHER_MAC if known else None)


def test_address_that_nobody_answers_for_is_not_known(network: Network) -> None:
    """The kernel has an entry, but an incomplete or failed one."""
    sender = network.inside(network.server, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.sendto(b"x", (IP, 9))
    sender.close()
    listed = subprocess.run(["ip", "-n", network.server, "neigh"], check=True, capture_output=True, text=True).stdout
    assert IP in listed
    assert ask(network, "srv0") is None


def test_address_that_this_host_answers_for_on_behalf_of_others_is_not_known(network: Network) -> None:
    neigh(network, "add", "proxy", IP, "dev", "srv0")
    assert ask(network, "srv0") is None


def test_link_that_went_and_came_back_is_asked_by_its_new_number(network: Network) -> None:
    def inside() -> list[str | None]:
        table = NeighbourTable(["srv0"])
        found = [table.mac(IP)]
        network.remove_cable("srv0")
        found.append(table.mac(IP))
        network.cable("eth0", "srv0", f"{network.server_ip}/24")
        neigh(network, "replace", IP, "lladdr", "52:54:00:99:99:98", "dev", "srv0", "nud", "stale")
        found.append(table.mac(IP))
        table.close()
        return found

    neigh(network, "replace", IP, "lladdr", OTHER_MAC, "dev", "srv0", "nud", "stale")
    assert network.inside(network.server, inside) == [OTHER_MAC, None, "52:54:00:99:99:98"]


def test_on_link_is_what_goes_to_one_of_the_interfaces_by_no_router(network: Network) -> None:
    network.route(network.server, "10.88.0.0/16", IP)
    network.cable("eth1", "srv1", "10.77.7.1/24")
    network.cable("eth2", "tun0", "10.77.8.1/24")
    subprocess.run(["ip", "-n", network.server, "link", "set", "tun0", "arp", "off"], check=True)
    asked = {
        IP: True,
        network.server_ip: False,
        "127.0.0.5": False,
        "10.88.1.1": False,
        "10.77.7.5": False,  # on a link, but on none of these interfaces
        "10.77.8.5": False,  # a link without ARP
        "203.0.113.1": False,
        "2001:db8::1": False,
        "what": False,
    }

    def inside() -> dict[str, bool]:
        table = NeighbourTable(["srv0", "tun0"])
        found = {address: table.on_link(address) for address in asked}
        assert table.mac("2001:db8::1") is None
        table.close()
        return found

    assert network.inside(network.server, inside) == asked


@pytest.fixture
def two(network: Network) -> Network:
    """Two links, both with an entry for an address of the second link."""
    network.cable("eth1", "srv1", "10.77.7.1/24")
    for interface, mac in (("srv0", OTHER_MAC), ("srv1", network.client_mac)):
        neigh(network, "replace", "10.77.7.5", "lladdr", mac, "dev", interface, "nud", "reachable")
    return network


def test_entry_counts_only_on_the_link_that_the_answer_leaves_by(two: Network) -> None:
    links, ip = ("srv0", "srv1"), "10.77.7.5"
    assert ask(two, *links, ip=ip) == two.client_mac
    assert ask(two, *reversed(links), ip=ip) == two.client_mac
    assert ask(two, "srv0", ip=ip) is None, "its link is none of ours"
    assert ask(two, *links, ip=ip, bound="srv1") == two.client_mac
    assert ask(two, *links, ip=ip, bound="srv0") == OTHER_MAC, "a socket that is bound there answers that host"
    assert ask(two, *links, ip=ip, bound="gone0") is None


def test_entry_of_an_address_behind_a_router_does_not_count(two: Network) -> None:
    two.route(two.server, "10.88.0.0/16", "10.77.7.9")
    for interface in ("srv0", "srv1"):
        neigh(two, "replace", "10.88.0.5", "lladdr", OTHER_MAC, "dev", interface, "nud", "reachable")
    assert ask(two, "srv0", "srv1", ip="10.88.0.5") is None
    assert ask(two, "srv0", "srv1", ip="10.88.0.5", bound="srv1") is None
    assert ask(two, "srv0", "srv1", ip="10.88.0.5", bound="srv0") == OTHER_MAC, "where the kernel would ask by ARP"


def test_ipv6_address_is_on_a_link_only_with_a_route_to_it(two: Network) -> None:
    two.add_address(two.server, "srv1", "fd77:7::1/64")
    for interface, mac in (("srv0", OTHER_MAC), ("srv1", two.client_mac)):
        for ip in ("fd77:7::5", "fd77:8::5"):
            neigh(two, "replace", ip, "lladdr", mac, "dev", interface, "nud", "reachable")
    assert ask(two, "srv0", "srv1", ip="fd77:7::5") == two.client_mac
    assert ask(two, "srv0", "srv1", ip="fd77:7::5", bound="srv0") is None
    assert ask(two, "srv0", "srv1", ip="fd77:8::5") is None, "of no network that this host knows"


def test_address_that_is_routed_to_another_link_is_known_there(two: Network) -> None:
    two.remove_address(two.server, "srv1", "10.77.7.1/24")
    two.add_address(two.server, "srv0", "10.77.7.1/24")
    neigh(two, "replace", "10.77.7.5", "lladdr", OTHER_MAC, "dev", "srv0", "nud", "reachable")
    assert ask(two, "srv0", "srv1", ip="10.77.7.5") == OTHER_MAC


def test_of_two_links_with_one_network_a_bound_socket_answers_by_its_own(two: Network) -> None:
    two.add_address(two.server, "srv0", "10.77.7.2/24")
    assert ask(two, "srv0", "srv1", ip="10.77.7.5", bound="srv0") == OTHER_MAC
    assert ask(two, "srv0", "srv1", ip="10.77.7.5", bound="srv1") == two.client_mac


def test_multipath_route_is_asked_for_the_hop_that_the_kernel_takes(two: Network) -> None:
    hops = ["nexthop", "dev", "srv0", "nexthop", "dev", "srv1"]
    command = ["ip", "-n", two.server, "route", "add", "10.99.0.0/16", *hops]
    subprocess.run(command, check=True, capture_output=True)
    for interface, mac in (("srv0", OTHER_MAC), ("srv1", two.client_mac)):
        neigh(two, "replace", "10.99.0.5", "lladdr", mac, "dev", interface, "nud", "reachable")
    way = two.inside(two.server, lambda: socket.if_indextoname(route_to(ip_address("10.99.0.5")).interface))
    expected = {"srv0": OTHER_MAC, "srv1": two.client_mac}[way]
    assert ask(two, "srv0", "srv1", ip="10.99.0.5") == expected


def test_changes_of_the_table_are_told(network: Network) -> None:
    heard: list[str | None] = []

    async def hear() -> None:
        changes = neighbour_changes(heard.append)
        neigh(network, "replace", IP, "lladdr", OTHER_MAC, "dev", "srv0", "nud", "stale")
        neigh(network, "replace", IP, "lladdr", "52:54:00:99:99:98", "dev", "srv0", "nud", "stale")
        neigh(network, "del", IP, "dev", "srv0")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        changes.close()

    network.inside(network.server, lambda: asyncio.run(hear()))
    assert set(heard) == {IP}


def test_changes_that_were_missed_are_told_as_all(network: Network) -> None:
    heard: list[str | None] = []
    lines = "".join(
        f"neigh replace 10.77.6.{n} lladdr 52:54:00:00:{turn:02x}:{n:02x} dev srv0 nud stale\n"
        for turn in range(40)
        for n in range(60, 250)
    )

    async def hear() -> None:
        changes = neighbour_changes(heard.append)
        subprocess.run(["ip", "-n", network.server, "-batch", "-"], input=lines, text=True, check=True)  # we don't read
        async with asyncio.timeout(PATIENCE_SECONDS):
            while None not in heard:
                await asyncio.sleep(0.01)
        changes.close()

    network.inside(network.server, lambda: asyncio.run(hear()))


def test_each_of_a_thousand_lookups_finds_its_neighbour(network: Network) -> None:
    batch = "".join(f"neigh add 10.77.6.{n} lladdr 52:54:00:00:00:{n:02x} dev srv0 nud stale\n" for n in range(60, 250))
    subprocess.run(["ip", "-n", network.server, "-batch", "-"], input=batch, text=True, check=True)

    def inside() -> None:
        table = NeighbourTable(["srv0"])
        for n in range(1000):
            address = 60 + n % 190
            assert table.mac(f"10.77.6.{address}") == f"52:54:00:00:00:{address:02x}"
        table.close()

    network.inside(network.server, inside)


def test_way_to_an_address_is_told(network: Network) -> None:
    network.add_address(network.server, "srv0", "10.77.6.77/24")  # a second one of the same network
    network.add_address(network.server, "lo", "192.0.2.7/32")
    network.sysctl(network.server, "net.ipv4.ip_nonlocal_bind", "1")
    network.route(network.server, "198.51.100.0/24", "10.77.6.50")
    ways = {
        RouteKind.OWN: ("10.77.6.1", "10.77.6.77", "192.0.2.7", "127.0.0.1"),
        RouteKind.LINK: ("10.77.6.50", "10.77.6.200"),
        RouteKind.ROUTER: ("198.51.100.1",),
        RouteKind.EVERYBODY: ("10.77.6.255",),
        RouteKind.NONE: ("255.255.255.255", "203.0.113.1", "224.0.0.1"),
    }
    addresses = [address for found in ways.values() for address in found]
    found = network.inside(network.server, lambda: {ip: route_to(ip_address(ip)).kind for ip in addresses})
    assert found == {address: way for way, those in ways.items() for address in those}
