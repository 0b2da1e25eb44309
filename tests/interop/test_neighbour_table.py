"""The kernel's neighbour table: the host that really receives packets to an address on our link."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from ipaddress import ip_address

import pytest

from edge.neighbour.route import RouteKind, route_to
from edge.neighbour.table import NeighbourTable, neighbour_changes
from tests.interop.conftest import Network
from tests.waiting import until, wait_until

IP = "10.77.6.50"
OTHER_MAC = "52:54:00:99:99:99"


def neigh(network: Network, *words: str) -> None:
    command = ["ip", "-n", network.server, "neigh", *words]
    subprocess.run(command, check=True, capture_output=True)


def entry(network: Network, interface: str, mac: str = OTHER_MAC, ip: str = IP, state: str = "reachable") -> None:
    neigh(network, "replace", ip, "lladdr", mac, "dev", interface, "nud", state)


def ask(network: Network, *interfaces: str, ip: str = IP, bound: str = "") -> str | None:
    def inside() -> str | None:
        with closing(NeighbourTable(interfaces)) as table:
            return table.mac(ip, bound)

    return network.inside(network.server, inside)


def send(network: Network, namespace: str, address: str) -> None:
    with network.inside(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        sender.sendto(b"x", (address, 69))


def test_machine_that_sends_packets_to_us_is_known(network: Network) -> None:
    network.give_client_its_address()
    assert ask(network, "srv0") is None
    send(network, network.client, network.server_ip)
    assert wait_until(lambda: ask(network, "srv0")) == network.client_mac
    assert ask(network, "srv0", ip="10.77.6.51") is None
    assert ask(network, "lo") is None, "what another link says of it does not count"
    assert ask(network, "gone0", "lo", "srv0") == network.client_mac


def test_only_valid_entries_count(network: Network) -> None:
    send(network, network.server, IP)
    listed = subprocess.run(["ip", "-n", network.server, "neigh"], check=True, capture_output=True, text=True).stdout
    assert IP in listed, "an entry, but an incomplete or failed one"
    assert ask(network, "srv0") is None
    states = ("reachable", "stale", "delay", "probe", "permanent", "noarp")
    found = {}
    for state in states:
        entry(network, "srv0", state=state)
        found[state] = ask(network, "srv0")
    assert found == {**dict.fromkeys(states, OTHER_MAC), "noarp": None}
    neigh(network, "del", IP, "dev", "srv0")
    neigh(network, "add", "proxy", IP, "dev", "srv0")
    assert ask(network, "srv0") is None, "this host answers for it on behalf of others"


def test_recreated_link_is_queried_by_its_new_number(network: Network) -> None:
    def inside() -> list[str | None]:
        with closing(NeighbourTable(["srv0"])) as table:
            found = [table.mac(IP)]
            network.remove_cable("srv0")
            found.append(table.mac(IP))
            network.cable("eth0", "srv0", f"{network.server_ip}/24")
            entry(network, "srv0", "52:54:00:99:99:98")
            return [*found, table.mac(IP)]

    entry(network, "srv0")
    assert network.inside(network.server, inside) == [OTHER_MAC, None, "52:54:00:99:99:98"]


def test_address_is_on_link_without_a_router_in_between(network: Network) -> None:
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
        with closing(NeighbourTable(["srv0", "tun0"])) as table:
            assert table.mac("2001:db8::1") is None
            return {address: table.on_link(address) for address in asked}

    assert network.inside(network.server, inside) == asked


@pytest.fixture
def two(network: Network) -> Network:
    """Two links, the second with 10.77.7.1/24."""
    network.cable("eth1", "srv1", "10.77.7.1/24")
    return network


def on_both(two: Network, ip: str) -> None:
    """An entry for an address on each of the links."""
    entry(two, "srv0", OTHER_MAC, ip)
    entry(two, "srv1", two.client_mac, ip)


def test_entry_counts_only_on_the_link_that_the_answer_leaves_by(two: Network) -> None:
    links, ip = ("srv0", "srv1"), "10.77.7.5"
    on_both(two, ip)
    assert ask(two, *links, ip=ip) == two.client_mac
    assert ask(two, *reversed(links), ip=ip) == two.client_mac
    assert ask(two, "srv0", ip=ip) is None, "its link is none of ours"
    assert ask(two, *links, ip=ip, bound="srv1") == two.client_mac
    assert ask(two, *links, ip=ip, bound="srv0") == OTHER_MAC, "a socket that is bound there answers that host"
    assert ask(two, *links, ip=ip, bound="gone0") is None
    two.add_address(two.server, "srv0", "10.77.7.2/24")  # of two links with one network, each answers by its own
    assert ask(two, *links, ip=ip, bound="srv0") == OTHER_MAC
    assert ask(two, *links, ip=ip, bound="srv1") == two.client_mac
    two.remove_address(two.server, "srv1", "10.77.7.1/24")
    entry(two, "srv0", OTHER_MAC, ip)
    assert ask(two, *links, ip=ip) == OTHER_MAC, "it is routed to the other link now"


def test_entry_of_an_address_behind_a_router_does_not_count(two: Network) -> None:
    two.route(two.server, "10.88.0.0/16", "10.77.7.9")
    on_both(two, "10.88.0.5")
    assert ask(two, "srv0", "srv1", ip="10.88.0.5") is None
    assert ask(two, "srv0", "srv1", ip="10.88.0.5", bound="srv1") is None
    assert ask(two, "srv0", "srv1", ip="10.88.0.5", bound="srv0") == OTHER_MAC, "where the kernel would ask by ARP"


def test_ipv6_address_is_on_a_link_only_with_a_route_to_it(two: Network) -> None:
    two.add_address(two.server, "srv1", "fd77:7::1/64")
    for ip in ("fd77:7::5", "fd77:8::5"):
        on_both(two, ip)
    assert ask(two, "srv0", "srv1", ip="fd77:7::5") == two.client_mac
    assert ask(two, "srv0", "srv1", ip="fd77:7::5", bound="srv0") is None
    assert ask(two, "srv0", "srv1", ip="fd77:8::5") is None, "of no network that this host knows"


def test_multipath_route_has_the_next_hop_of_the_kernel(two: Network) -> None:
    hops = ["nexthop", "dev", "srv0", "nexthop", "dev", "srv1"]
    command = ["ip", "-n", two.server, "route", "add", "10.99.0.0/16", *hops]
    subprocess.run(command, check=True, capture_output=True)
    on_both(two, "10.99.0.5")
    way = two.inside(two.server, lambda: socket.if_indextoname(route_to(ip_address("10.99.0.5")).interface))
    expected = {"srv0": OTHER_MAC, "srv1": two.client_mac}[way]
    assert ask(two, "srv0", "srv1", ip="10.99.0.5") == expected


def collect_notifications(
    network: Network, change: Callable[[], None], wanted: Callable[[list[str | None]], bool]
) -> list[str | None]:
    """Wait until the notifications are those that are expected, and return them."""
    events: list[str | None] = []

    async def collect() -> None:
        changes = neighbour_changes(events.append)
        change()
        await until(lambda: wanted(events), lambda: events)
        changes.close()

    network.inside(network.server, lambda: asyncio.run(collect()))
    return events


def test_changes_are_notified_and_missed_ones_as_a_change_of_all(network: Network) -> None:
    def change() -> None:
        entry(network, "srv0", state="stale")
        entry(network, "srv0", "52:54:00:99:99:98", state="stale")
        neigh(network, "del", IP, "dev", "srv0")

    assert set(collect_notifications(network, change, lambda notified: len(notified) >= 3)) == {IP}
    lines = "".join(
        f"neigh replace 10.77.6.{n} lladdr 52:54:00:00:{turn:02x}:{n:02x} dev srv0 nud stale\n"
        for turn in range(40)
        for n in range(60, 250)
    )

    def flood() -> None:  # we don't read meanwhile
        subprocess.run(["ip", "-n", network.server, "-batch", "-"], input=lines, text=True, check=True)

    collect_notifications(network, flood, lambda notified: None in notified)

    def inside() -> dict[str, str | None]:
        with closing(NeighbourTable(["srv0"])) as table:
            return {f"10.77.6.{60 + n % 190}": table.mac(f"10.77.6.{60 + n % 190}") for n in range(1000)}

    expected = {f"10.77.6.{n}": f"52:54:00:00:27:{n:02x}" for n in range(60, 250)}
    assert network.inside(network.server, inside) == expected, "each of a thousand lookups finds its neighbour"


def test_route_to_an_address_has_its_kind(network: Network) -> None:
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
