"""Which interface and address the stack serves when it is not told."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path

import pytest

from edge.composition.host import HostError, Network, default_interface, interface_address, state_of
from edge.neighbour.links import Link

HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
NETWORK = "eth1\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
DEFAULT = "eth7\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
DOWN = "eth9\t00000000\t0101A8C0\t0002\t0\t0\t100\t00000000\t0\t0\t0\n"


def routes(directory: Path, *lines: str) -> Path:
    file = directory / "route"
    file.write_text(HEADER + "".join(lines))
    return file


def test_default_is_the_interface_of_the_default_route(tmp_path: Path) -> None:
    assert default_interface(routes(tmp_path, NETWORK, DOWN, DEFAULT)) == "eth7"


def test_host_without_a_default_route_is_told_to_name_the_interface(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="give --interface"):
        default_interface(routes(tmp_path, NETWORK))


def test_address_is_the_interfaces_first() -> None:
    assert interface_address("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["absent0", "a-name-that-is-too-long-for-linux", "lo\0", "ä", "eth\udcff"])
def test_missing_interface_is_named_with_those_that_are_there(name: str) -> None:
    with pytest.raises(HostError, match=r"there is no interface .*there are: .*lo"):
        interface_address(name)


def link(*addresses: str, up: bool = True) -> Link:
    return Link("eth1", 7, up, carrier=up, mtu=1500, addresses=tuple(map(IPv4Interface, addresses)))


def nobody(_address: IPv4Address | IPv6Address) -> bool:
    return False


def test_address_stays_as_long_as_the_interface_has_it() -> None:
    followed = Network("eth1")
    assert state_of(followed, link("10.0.0.1/24", "10.0.0.2/24")).address == "10.0.0.1"
    both = state_of(followed, link("10.0.0.1/24", "10.0.0.2/24"), "10.0.0.2")
    assert (both.address, both.problem, both.networks) == ("10.0.0.2", "", (IPv4Network("10.0.0.0/24"),))
    assert state_of(followed, link("10.0.0.3/24"), "10.0.0.2").address == "10.0.0.3"


@pytest.mark.parametrize(
    ("network", "found", "address", "problem"),
    [
        (Network("eth1"), link(), "", "eth1 has no IPv4 address"),
        (Network("eth1"), link("10.0.0.1/24", up=False), "10.0.0.1", "eth1 is down ('ip link set eth1 up')"),
        (Network("eth1"), link(up=False), "", "eth1 is down ('ip link set eth1 up')"),
        (
            Network("eth1", "10.0.0.9"),
            link("10.0.0.1/24", "10.1.0.1/24"),
            "",
            "10.0.0.9 is no address of this host (eth1 has 10.0.0.1, 10.1.0.1)",
        ),
        (Network("eth1", "10.0.0.9"), link(), "", "10.0.0.9 is no address of this host (eth1 has none)"),
    ],
)
def test_what_keeps_a_network_from_being_served_is_said(
    network: Network, found: Link, address: str, problem: str
) -> None:
    state = state_of(network, found, "10.0.0.1", nobody)
    assert (state.address, state.problem) == (address, problem)


def test_fixed_address_may_be_that_of_another_interface() -> None:
    state = state_of(Network("eth1", "10.9.0.1"), link("10.0.0.1/24"), "", lambda address: str(address) == "10.9.0.1")
    assert (state.address, state.problem) == ("10.9.0.1", "")


def test_ipv6_address_is_told_only_where_it_is_served_and_stays_as_long_as_it_is_there() -> None:
    both = replace(link("10.0.0.1/24"), addresses6=(IPv6Interface("fd00::1/64"), IPv6Interface("fd00::2/64")))
    assert state_of(Network("eth1"), both).addresses == ("10.0.0.1",)
    served = Network("eth1", ipv6=True)
    state = state_of(served, both)
    assert (state.addresses, state.networks6) == (("10.0.0.1", "fd00::1"), (IPv6Network("fd00::/64"),))
    assert state_of(served, both, before6="fd00::2").address6 == "fd00::2"
    assert state_of(served, both, before6="fd00::3").address6 == "fd00::1"
    fixed = Network("eth1", ipv6=True, address6="fd00::2")
    assert state_of(fixed, both).address6 == "fd00::2"
    assert state_of(replace(fixed, address6="fd00::9"), both, "", nobody).address6 == ""


def test_network_with_ipv6_alone_is_served_and_one_without_any_address_says_so() -> None:
    alone = replace(link(), addresses6=(IPv6Interface("fd00::1/64"),))
    state = state_of(Network("eth1", ipv6=True), alone)
    assert (state.address, state.address6, state.problem) == ("", "fd00::1", "")
    assert state_of(Network("eth1"), alone).problem == "eth1 has no IPv4 address"
    assert state_of(Network("eth1", ipv6=True), link()).problem == "eth1 has no IP address"
