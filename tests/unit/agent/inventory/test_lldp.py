"""LLDP: frames of switches are read, others are not, and a card has one neighbour at a time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.agent.inventory.lldp import (
    MAX_CARDS,
    MAX_NEIGHBOURS_PER_CARD,
    PRESENT_SECONDS,
    Neighbours,
    neighbour_of,
)
from tink.api.v1alpha2 import LldpNeighbour

HEADER = bytes.fromhex("0180c200000e 001c73000001 88cc")


def tlv(kind, value=b""):
    return (kind << 9 | len(value)).to_bytes(2, "big") + value


CHASSIS = tlv(1, b"\x04" + bytes.fromhex("001c73000001"))
END = tlv(0)


def frame(port=b"\x05Ethernet7", *more, chassis=CHASSIS, ttl=120):
    return HEADER + chassis + tlv(2, port) + tlv(3, ttl.to_bytes(2, "big")) + b"".join(more) + END


def test_frame_of_a_switch_names_the_port_and_its_vlan():
    more = (
        tlv(4, b"rack 7, slot 12"),
        tlv(5, b"switch-7"),
        tlv(6, b"Arista Networks EOS"),
        tlv(127, bytes.fromhex("00120f") + b"\x01..."),
        tlv(127, bytes.fromhex("0080c2 01 0064")),
    )
    assert neighbour_of(frame(b"\x05Ethernet7", *more)).facts == {
        "chassisID": "00:1c:73:00:00:01", "portID": "Ethernet7", "portDescription": "rack 7, slot 12",
        "systemName": "switch-7", "vlanID": 100,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x03" + bytes.fromhex("001c73000007"), "00:1c:73:00:00:07"),
        (b"\x04\x01\x0a\x01\x02\x03", "10.1.2.3"),
        (b"\x04\x02" + bytes.fromhex("20010db8" + "00" * 11 + "07"), "2001:db8::7"),
        (b"\x05GigabitEthernet1/0/7", "GigabitEthernet1/0/7"),
        (b"\x07 12\x1b[2J\n", "12 [2J"),
    ],
)
def test_port_id_is_a_text(value, text):
    assert neighbour_of(frame(value)).facts["portID"] == text


@pytest.mark.parametrize(
    "invalid",
    [
        frame()[:12] + b"\x08\x00" + frame()[14:],
        HEADER,
        HEADER + END,
        HEADER + tlv(2, b"\x05e1") + CHASSIS + tlv(3, b"\0\x78") + END,
        HEADER + CHASSIS + tlv(2, b"\x05e1") + END,
        frame(b""),
        frame(b"\x03short"),
        frame(b"\x05"),
        HEADER + CHASSIS + b"\x04\xff",
    ],
)
def test_frame_without_chassis_port_and_ttl_is_ignored(invalid):
    assert neighbour_of(invalid) is None


def test_part_that_is_cut_off_ends_the_frame():
    whole = frame(b"\x05e1", tlv(4, b"port seven"), tlv(5, b"switch-7"))
    assert set(neighbour_of(whole[:-5]).facts) == {"chassisID", "portID", "portDescription"}


@pytest.mark.parametrize("vlan", ["0000", "0fff", "ffff"])
def test_port_without_an_untagged_vlan_has_none(vlan):
    assert "vlanID" not in neighbour_of(frame(b"\x05e1", tlv(127, bytes.fromhex(f"0080c201{vlan}")))).facts


@given(st.binary(max_size=300))
def test_no_frame_stops_the_reader(content):
    for each in (content, HEADER + content, frame()[:-2] + content, HEADER + CHASSIS + content):
        found = neighbour_of(each)
        if found is not None:
            LldpNeighbour.model_validate(found.facts)
            json.dumps(found.facts, ensure_ascii=False).encode()


@given(st.lists(st.tuples(st.integers(0, 127), st.binary(max_size=40)), max_size=20))
def test_no_tlv_stops_the_reader(tlvs):
    found = neighbour_of(frame(b"\x05e1", *(tlv(kind, value) for kind, value in tlvs)))
    if found is not None:
        LldpNeighbour.model_validate(found.facts)


def ports(neighbours, now):
    return {card: facts["portID"] for card, facts in neighbours.present(now).items()}


def test_neighbour_expires_after_its_time_to_live():
    neighbours = Neighbours()
    neighbours.receive("eno1", frame(ttl=120), 0.0)
    assert ports(neighbours, 119.9) == {"eno1": "Ethernet7"}
    assert ports(neighbours, 120.0) == {}


def test_neighbour_that_closes_its_port_is_gone_at_once():
    neighbours = Neighbours()
    neighbours.receive("eno1", frame(), 0.0)
    neighbours.receive("eno1", frame(ttl=0), 1.0)
    assert ports(neighbours, 1.0) == {}


def test_new_port_replaces_the_old_one_when_that_is_silent():
    neighbours = Neighbours()
    neighbours.receive("eno1", frame(b"\x05old", ttl=600), 0.0)
    for now in (40.0, 70.0):
        neighbours.receive("eno1", frame(b"\x05new"), now)
    assert ports(neighbours, PRESENT_SECONDS) == {"eno1": "old"}
    assert ports(neighbours, PRESENT_SECONDS + 1) == {"eno1": "new"}


def test_two_switches_on_one_cable_do_not_take_turns():
    neighbours = Neighbours()
    seen = []
    for now in range(0, 300, 15):
        neighbours.receive("eno1", frame(b"\x05one" if now % 30 == 0 else b"\x05two"), float(now))
        seen.append(ports(neighbours, float(now))["eno1"])
    assert set(seen) == {"one"}


def test_number_of_cards_is_bounded():
    neighbours = Neighbours()
    for number in range(1000):
        neighbours.receive(f"card{number}", frame(), 0.0)
    assert len(neighbours.present(0.0)) == MAX_CARDS


def test_number_of_neighbours_of_a_card_is_bounded():
    neighbours = Neighbours()
    for number in range(1000):
        neighbours.receive("eno1", frame(b"\x05port%d" % number, ttl=65535), float(number))
    for number in range(1000 - MAX_NEIGHBOURS_PER_CARD, 1000):
        neighbours.receive("eno1", frame(b"\x05port%d" % number, ttl=0), 1000.0)
    assert neighbours.present(1000.0) == {}, "those that were silent for longest are dropped"
