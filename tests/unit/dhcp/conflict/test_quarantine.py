"""Declined addresses: given to nobody for a while, and the operator told what to do."""

from __future__ import annotations

from typing import Any

import pytest

from edge.conflict import Quarantine
from edge.conflict.quarantine import MAX_ADDRESSES
from edge.dhcp.wire import MessageType
from edge.journey.events import Outcome
from edge.machines import Inventory
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
SQUATTER = "02:00:00:00:00:99"
OURS = b"\x0a\x4d\0\1"


def test_declined_address_is_not_offered_again_until_the_time_is_over(
    edge: Edge, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    packets = [captured["edk2_pxe_discover"], captured["edk2_pxe_request"], captured["ipxe_bios_discover"]]
    for packet in packets:
        assert edge.send(packet) is not None  # so that they are known ones
    edge.events.clear()
    assert edge.send(decline) is None
    edge.look(SQUATTER)
    assert edge.quarantined == [(MAC, "10.77.0.58", 1600.0)]
    assert [edge.send(packet) for packet in packets * 3] == [None] * 9
    told, refused = edge.events
    assert told.outcome is Outcome.FAILED
    assert told.message == (
        f"DHCPDECLINE: another host, {SQUATTER}, already uses 10.77.0.58; it is not offered for 600 s. "
        "Find that host and stop it, or change the Hardware's dhcp.ip"
    )
    assert refused.outcome is Outcome.REFUSED
    assert "10.77.0.58 is in quarantine" in refused.message
    edge.now = 1599.9
    assert edge.send(packets[0]) is None
    edge.now = 1600.0
    assert wire.kind(edge.send(packets[0])) is MessageType.OFFER
    assert edge.quarantined[1:] == [(MAC, "10.77.0.58", None)]


def test_other_machines_are_served_meanwhile(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    edge = make_edge(
        make_hardware("lab-1", MAC, "10.77.0.58"), make_hardware("lab-2", "52:54:00:12:34:57", "10.77.0.59")
    )
    edge.send(decline)
    edge.look(SQUATTER)
    other = wire.altered(captured["edk2_pxe_discover"], chaddr=bytes.fromhex("525400123457"))
    for _ in range(2):
        assert wire.kind(edge.send(other)) is MessageType.OFFER


def test_another_address_in_the_hardware_ends_it(
    edge: Edge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    edge.send(decline)
    edge.look(SQUATTER)
    changed = make_hardware("lab-1", MAC, "10.77.0.58", disableNetboot=True)
    edge.inventory.apply(changed)
    assert edge.send(captured["edk2_pxe_discover"]) is None  # another change does not
    edge.inventory.apply(make_hardware("lab-1", MAC, "10.77.0.60"))
    assert edge.quarantined[1:] == [(MAC, "10.77.0.58", None)]
    assert wire.read(edge.send(captured["edk2_pxe_discover"])).yiaddr == b"\x0a\x4d\0\x3c"


def test_removed_hardware_ends_it(edge: Edge, make_hardware: MakeHardware, decline: bytes) -> None:
    edge.send(decline)
    edge.look(SQUATTER)
    edge.inventory.remove(make_hardware("lab-1", MAC, "10.77.0.58"))
    assert edge.quarantined[1:] == [(MAC, "10.77.0.58", None)]


@pytest.mark.parametrize(
    "change",
    [
        {"options": {50: b"\x0a\x4d\0\x3b"}},
        {"drop": (50,)},
        {"options": {54: b"\x0a\x4d\0\2"}},
        {"drop": (54,)},
        {"chaddr": b"\2\0\0\0\0\1"},
    ],
    ids=["another address", "no address", "another server", "no server", "another machine"],
)
def test_decline_that_is_not_about_what_we_gave_the_machine_is_not_believed(
    edge: Edge, wire: Wire, captured: dict[str, bytes], decline: bytes, change: dict[str, Any]
) -> None:
    assert edge.send(wire.altered(decline, **change)) is None
    assert edge.look(SQUATTER) == 0
    assert edge.quarantined == []
    assert edge.send(captured["edk2_pxe_discover"]) is not None


def test_decline_through_a_relay_that_is_the_server_is_believed(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    """RFC 5107: option 54 is the relay's."""
    edge, relay = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), relays="192.0.2.9"), b"\x0a\x4d\0\2"
    edge.send(wire.altered(captured["edk2_pxe_request"], giaddr=relay, options={54: relay, 82: b"\x0b\4" + relay}))
    decline = wire.altered(decline, giaddr=relay, options={54: relay, 82: b"\x0b\4" + relay})
    edge.send(decline, source="192.0.2.9")
    assert len(edge.quarantined) == 1


def test_without_a_quarantine_the_decline_is_told_all_the_same(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes], decline: bytes
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), quarantine_seconds=0)
    edge.send(decline)
    edge.look(SQUATTER)
    assert edge.quarantined == []
    (message,) = edge.messages()
    assert message.startswith(f"DHCPDECLINE: another host, {SQUATTER}, already uses 10.77.0.58. Find that host")
    assert edge.send(captured["edk2_pxe_discover"]) is not None


def test_second_decline_begins_the_time_anew_and_is_told_once_a_minute(edge: Edge, decline: bytes) -> None:
    edge.send(decline)
    edge.look(SQUATTER)
    edge.now += 30
    edge.send(decline)
    edge.look(SQUATTER)
    assert [until for _, _, until in edge.quarantined] == [1600.0, 1630.0]
    assert len(edge.events) == 1
    edge.now = 1600.0
    edge.quarantine.expire()
    assert len(edge.quarantined) == 2
    edge.now = 1630.0
    edge.quarantine.expire()
    assert edge.quarantined[2:] == [(MAC, "10.77.0.58", None)]


def test_decline_that_is_repeated_does_not_keep_others_in_quarantine(make_hardware: MakeHardware) -> None:
    inventory = Inventory()
    for number in range(2):
        inventory.apply(make_hardware(f"m{number}", f"52:54:00:00:00:0{number}", f"10.77.0.{number + 10}"))
    now = [0.0]
    quarantine = Quarantine(lambda: now[0], 60.0)
    one, other = inventory.machines()
    for machine in (one, other, one):
        quarantine.begin(machine)
        now[0] += 10
    now[0] = 75.0
    quarantine.expire()
    assert list(quarantine.macs) == [one.mac]


def test_end_comes_without_a_packet_and_a_clock_set_back_keeps_nothing_for_ever(make_hardware: MakeHardware) -> None:
    inventory = Inventory()
    for number in range(3):
        inventory.apply(make_hardware(f"m{number}", f"52:54:00:00:00:0{number}", f"10.77.0.{number + 10}"))
    now = [100.0]
    ends: list[str] = []
    quarantine = Quarantine(
        lambda: now[0], 60.0, lambda machine, _ip, until: ends.append(machine.name) if until is None else None
    )
    for machine in inventory.machines():
        quarantine.begin(machine)
        now[0] += 10
    now[0] = 165.0
    quarantine.expire()
    assert ends == ["m0"]
    assert quarantine.holds("52:54:00:00:00:01")
    assert not quarantine.holds("52:54:00:00:00:00")
    now[0] = -1000.0
    quarantine.expire()
    assert ends == ["m0", "m1", "m2"]
    assert not quarantine.macs


def test_quarantine_is_bounded_and_the_oldest_makes_room(make_hardware: MakeHardware) -> None:
    inventory = Inventory()
    inventory.apply(make_hardware("m", MAC, "10.77.0.10"))
    (machine,) = inventory.machines()
    ended: list[str] = []
    quarantine = Quarantine(
        lambda: 0.0, 60.0, lambda machine, _ip, until: ended.append(machine.mac) if until is None else None
    )
    for number in range(MAX_ADDRESSES + 2):
        quarantine.begin(type(machine)(f"mac {number}", *[getattr(machine, name) for name in machine.__slots__[1:]]))
    assert ended == ["mac 0", "mac 1"]
    assert len(quarantine.macs) == MAX_ADDRESSES
