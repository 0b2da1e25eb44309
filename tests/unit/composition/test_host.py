"""The host below a stack: which interface and addresses it serves, and which processors and memory it has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from typing import Any

import pytest

from edge.composition.host import HostError, Network, default_interface, interface_address, state_of
from edge.composition.networks import agents
from edge.composition.networks.agents import AgentsAddresses
from edge.composition.processors import default_server_memory, default_workers, memory, processors
from edge.composition.settings import EDGE, Service
from edge.neighbour.links import Link
from tests.waiting import until

HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
NETWORK = "eth1\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
DEFAULT = "eth7\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
DOWN = "eth9\t00000000\t0101A8C0\t0002\t0\t0\t100\t00000000\t0\t0\t0\n"


def routes(directory: Path, *lines: str) -> Path:
    file = directory / "route"
    file.write_text(HEADER + "".join(lines))
    return file


def test_default_is_the_interface_of_the_default_route_or_else_has_to_be_named(tmp_path: Path) -> None:
    assert default_interface(routes(tmp_path, NETWORK, DOWN, DEFAULT)) == "eth7"
    with pytest.raises(HostError, match="give --interface"):
        default_interface(routes(tmp_path, NETWORK))


@pytest.mark.parametrize("name", ["absent0", "a-name-that-is-too-long-for-linux", "lo\0", "ä", "eth\udcff"])
def test_address_is_the_interfaces_first_and_a_missing_interface_is_named_with_those_that_are_there(name: str) -> None:
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(HostError, match=r"there is no interface .*there are: .*lo"):
        interface_address(name)


def link(*addresses: str, up: bool = True) -> Link:
    return Link("eth1", 7, up, carrier=up, mtu=1500, addresses=tuple(map(IPv4Interface, addresses)))


def nobody(_address: IPv4Address | IPv6Address) -> bool:
    return False


FOLLOWED, FIXED = Network("eth1"), Network("eth1", "10.0.0.9")
DOWN_LINK, NO_ADDRESS = "eth1 is down ('ip link set eth1 up')", "10.0.0.9 is no address of this host"


def test_address_stays_as_long_as_the_interface_has_it() -> None:
    assert state_of(FOLLOWED, link("10.0.0.1/24", "10.0.0.2/24")).address == "10.0.0.1"
    both = state_of(FOLLOWED, link("10.0.0.1/24", "10.0.0.2/24"), "10.0.0.2")
    assert (both.address, both.problem, both.networks) == ("10.0.0.2", "", (IPv4Network("10.0.0.0/24"),))
    assert state_of(FOLLOWED, link("10.0.0.3/24"), "10.0.0.2").address == "10.0.0.3"
    state = state_of(Network("eth1", "10.9.0.1"), link("10.0.0.1/24"), "", lambda address: str(address) == "10.9.0.1")
    assert (state.address, state.problem) == ("10.9.0.1", ""), "a fixed one may be that of another interface"


@pytest.mark.parametrize(
    ("network", "found", "address", "problem"),
    [
        (FOLLOWED, link(), "", "eth1 has no IPv4 address"),
        (FOLLOWED, link("10.0.0.1/24", up=False), "10.0.0.1", DOWN_LINK),
        (FOLLOWED, link(up=False), "", DOWN_LINK),
        (FIXED, link("10.0.0.1/24", "10.1.0.1/24"), "", f"{NO_ADDRESS} (eth1 has 10.0.0.1, 10.1.0.1)"),
        (FIXED, link(), "", f"{NO_ADDRESS} (eth1 has none)"),
    ],
)
def test_what_keeps_a_network_from_being_served_is_said(
    network: Network, found: Link, address: str, problem: str
) -> None:
    state = state_of(network, found, "10.0.0.1", nobody)
    assert (state.address, state.problem) == (address, problem)


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
    alone = replace(link(), addresses6=(IPv6Interface("fd00::1/64"),))
    state = state_of(served, alone)
    assert (state.address, state.address6, state.problem) == ("", "fd00::1", ""), "IPv6 alone is served"
    assert state_of(Network("eth1"), alone).problem == "eth1 has no IPv4 address"
    assert state_of(served, link()).problem == "eth1 has no IP address"


def test_smallest_control_group_around_the_process_limits_processors_and_memory(tmp_path: Path) -> None:
    own, none = tmp_path / "cgroup", tmp_path / "nothing"
    own.write_text("0::/pods/edge\n")
    root, group = tmp_path / "fs", tmp_path / "fs" / "pods" / "edge"
    group.mkdir(parents=True)
    here, host = len(os.sched_getaffinity(0)), memory(root, none)
    assert (processors(root, own), processors(root, none)) == (here, here)
    (group / "cpu.max").write_text("max 100000\n")
    for limit in ("100000", "50000"):
        (group.parent / "cpu.max").write_text(f"{limit} 100000\n")
        assert processors(root, own) == 1, "never none"
    assert processors(root, none) == here
    (group / "memory.max").write_text("max\n")
    assert memory(root, own) == host
    (group.parent / "memory.max").write_text("536870912\n")
    assert memory(root, own) == 536_870_912
    assert [default_workers(EDGE, count) for count in (1, 2, 3, 4, 5, 64)] == [1, 1, 1, 3, 4, 4]
    assert default_workers(frozenset(Service), 64) == 1, "where all runs in one process, it stays one"
    for total, most in ((512_000_000, 400_000_000), (4_000_000_000, 1_000_000_000), (64_000_000_000, 4_000_000_000)):
        assert default_server_memory(alone=False, total=total) == most, "a quarter beside others, within bounds"
        assert default_server_memory(alone=True, total=total) == total


VIP = "192.0.2.250"


class Host:
    """Addresses that come and go, and who is told of it."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.listened: list[list[str]] = []
        self.refuses = 0
        self.changed: Any = None

    def owned(self, address: IPv4Address) -> bool:
        return str(address) in self.addresses

    async def listen_at(self, addresses: Collection[str]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError(98, "Address already in use")
        self.listened.append(list(addresses))

    def tells(self, changed: Any) -> Host:
        self.changed = changed
        return self

    def close(self) -> None:
        self.changed = None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host("10.0.0.1")
    monkeypatch.setattr(agents, "LinkChanges", host.tells)
    monkeypatch.setattr(agents, "_RETRY_SECONDS", 0.01)
    return host


async def test_address_is_listened_at_when_it_comes_and_kept_when_it_goes(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    follow = AgentsAddresses(["10.0.0.1", VIP], 42113, host.owned)
    assert follow.listening == ["10.0.0.1:42113"]
    assert follow.note == f"{VIP} is not here: agents find it on another host"
    running = asyncio.create_task(follow.run(host))  # type: ignore[arg-type] # stands in for the server
    await until(lambda: host.changed)
    host.addresses.add(VIP)
    host.refuses = 3
    host.changed()
    await until(lambda: host.listened == [["10.0.0.1:42113", f"{VIP}:42113"]])
    assert "agents can't be served at all addresses: Address already in use" in caplog.text
    assert follow.note == ""
    host.addresses.discard(VIP)
    host.changed()
    await until(lambda: follow.note)
    host.addresses.add(VIP)
    host.changed()
    await until(lambda: not follow.note)
    assert len(host.listened) == 1, "who listened at an address hears again when it is back"
    running.cancel()


def test_all_addresses_are_always_here() -> None:
    six = AgentsAddresses(["::", "fd00::1", "fd00::2"], 42113, Host("fd00::1").owned)
    assert six.listening == ["[::]:42113", "[fd00::1]:42113"]
    follow = AgentsAddresses(["0.0.0.0"], 42113, Host().owned)
    assert (follow.listening, follow.note) == (["0.0.0.0:42113"], "")
