"""A reservation of another network than the interface's is served, for relays need it; who has none is told about."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from edge.machines import Machine
from tests.unit.dhcp.harness import MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
HERE, FAR_RELAY = (IPv4Network("10.77.6.0/24"),), b"\x0a\x4d\0\3"


@pytest.mark.parametrize("fast_path", [True, False])
def test_machine_on_the_wrong_link_is_told_about_and_one_behind_its_relay_is_not(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes], wire: Wire, fast_path: bool
) -> None:
    heard: list[tuple[str, str, str]] = []
    far = make_hardware("far", MAC, "10.77.0.58")

    def relay_heard(machine: Machine, link: str, relay: str) -> None:
        heard.append((machine.mac, link, relay))

    edge = make_edge(far, networks=HERE, relay_heard=relay_heard, fast_path=fast_path)
    direct = captured["edk2_pxe_discover"]
    relayed = wire.altered(direct, giaddr=FAR_RELAY)
    for _ in range(3):
        assert edge.send(relayed) is not None
    told = [event.message for event in edge.events if "of another network" in event.message]
    assert (told, heard) == ([], [(MAC, "10.77.0.3", "10.77.0.3")]), "once, and not with each packet"
    for _ in range(3):
        assert edge.send(direct) is not None, "it is served all the same"
    told = [event.message for event in edge.events if "of another network" in event.message]
    assert len(told) == 1
    assert told[0].startswith("asked on a link of this edge (10.77.6.0/24), and its address 10.77.0.58 is of another")


def test_machine_of_the_interfaces_network_needs_no_relay(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes]
) -> None:
    networks = (*HERE, IPv4Network("10.77.0.0/25"))
    edge = make_edge(make_hardware("near", MAC, "10.77.0.58"), networks=networks)
    assert edge.send(captured["edk2_pxe_discover"]) is not None
    assert [event.message for event in edge.events if "of another network" in event.message] == []
