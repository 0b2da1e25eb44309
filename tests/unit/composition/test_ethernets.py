"""Two interfaces on one Ethernet are told by `doctor`, and two that only look alike are not."""

from __future__ import annotations

from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from edge.composition.checks import Severity, check_ethernets
from edge.neighbour.links import Link

HOST = ("10.0.0.50", "52:54:00:00:00:50")
ROUTER = "52:54:00:00:00:01"


def link(name: str, index: int, address: str, mac: str, *, up: bool = True) -> Link:
    addresses = (IPv4Interface(address),) if address else ()
    return Link(name, index, up, True, 1500, addresses, mac=bytes.fromhex(mac.replace(":", "")))


def said(system: Path, *links: Link, seen: dict[int, set[tuple[str, str]]], served: str = "eth1") -> list[str]:
    by_name = {each.name: each for each in links}
    found = check_ethernets(
        [served],
        ask=by_name.get,
        others=lambda names: [name for name in by_name if name not in names],
        seen=lambda: {index: frozenset(pairs) for index, pairs in seen.items()},
        system=system,
    )
    findings = list(found)
    assert all(each.severity is Severity.WARNING for each in findings)
    return [each.seen for each in findings]


ONE, OTHER = link("eth1", 2, "10.0.0.1/24", "02:00:00:00:00:01"), link("eth2", 3, "10.9.0.1/24", "02:00:00:00:00:02")


def test_host_that_is_a_neighbour_of_both_tells(tmp_path: Path) -> None:
    (line,) = said(tmp_path, ONE, OTHER, seen={2: {HOST}, 3: {HOST}})
    assert line.startswith("eth1 and eth2 of this host seem to be on one Ethernet (10.0.0.50, 52:54:00:00:00:50, is a")
    assert "eth2 answers ARP for 10.0.0.1" in line


def test_networks_that_overlap_and_an_interface_that_is_the_others_neighbour_tell(tmp_path: Path) -> None:
    same = link("eth2", 3, "10.0.0.2/24", "02:00:00:00:00:02")
    assert "10.0.0.1/24 and 10.0.0.2/24 are of one network" in said(tmp_path, ONE, same, seen={})[0]
    seen = {2: {("10.9.0.1", "02:00:00:00:00:02")}}
    assert "eth2 itself is a neighbour of the other" in said(tmp_path, ONE, OTHER, seen=seen)[0]


@pytest.mark.parametrize(
    ("other", "seen"),
    [
        (OTHER, {}),
        (OTHER, {2: {HOST}}),
        # A router that has one MAC in all VLANs.
        (OTHER, {2: {("10.0.0.254", ROUTER)}, 3: {("10.9.0.254", ROUTER)}}),
        (link("eth2", 3, "10.9.0.1/24", "02:00:00:00:00:02", up=False), {2: {HOST}, 3: {HOST}}),
        (link("eth2", 3, "10.0.0.7/32", "02:00:00:00:00:02"), {}),
        # VLANs have the MAC of the interface that they are on.
        (link("eth2", 3, "10.9.0.1/24", "02:00:00:00:00:01"), {2: {("10.0.0.9", "02:00:00:00:00:01")}}),
    ],
)
def test_what_can_be_so_on_two_ethernets_tells_nothing(
    tmp_path: Path, other: Link, seen: dict[int, set[tuple[str, str]]]
) -> None:
    assert said(tmp_path, ONE, other, seen=seen) == []


@pytest.mark.parametrize("where", ["all", "eth2"])
def test_host_that_minds_where_it_is_asked_is_well(tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir()
    (tmp_path / where / "arp_ignore").write_text("1\n")
    assert said(tmp_path, ONE, OTHER, seen={2: {HOST}, 3: {HOST}}) == []
