"""The fast path and the full one give the same bytes for the same packets, whatever happened before.

Two edges receive the same; one answers known layouts by `edge.dhcp.fast_path`, the other everything in full.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.dhcp import fast_path
from edge.dhcp.wire import codec, options
from edge.dhcp_common import KnownLayouts
from tests.unit.dhcp.firmware.packets import CAPTURES
from tests.unit.dhcp.harness import (
    CAPTURED,
    IPXE_BIOS,
    PLAIN,
    PXE_DISCOVER,
    PXE_REQUEST,
    Calls,
    MakeEdge,
    Pair,
    altered,
    check_layouts,
    hardware,
    read,
    sent_by,
)
from tink.api.annotations import BOOT_PATH_ANNOTATION
from tink.api.v1alpha2 import Raw

MACS = [bytes.fromhex("525400123456"), bytes.fromhex("525400123457"), bytes.fromhex("b827eb000001")]
STRANGER = bytes.fromhex("020000000009")
ADDRESSES = [b"\x0a\x4d\0\x3a", b"\x0a\x4d\0\x3b", b"\x0a\x4d\1\x3c"]
OURS, OTHERS = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"
CLIENTS = [
    "edk2_pxe_discover", "edk2_pxe_request", "edk2_http_discover", "edk2_http_request", "ipxe_bios_discover",
    "ipxe_bios_request", "ipxe_efi_discover", "plain_discover", "udhcpc_request", "networkd_discover",
    "perfdhcp_discover",
]  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {},
    {"hostname": "node.example.org", "vlanId": "7"},
    {"netmask": "255.255.0.0", "leaseTimeSeconds": 60, "hostname": None},
    {"nameservers": [f"10.0.0.{n}" for n in range(1, 60)], "hostname": "n" * 60},
    {"ip": options.dotted(ADDRESSES[0])},
    {"netmask": None, "gateway": None},
]


def machine(number: int, kind: int = 0) -> Raw:
    """Return the Hardware of that number; `kind` picks one of a few settings of it."""
    disabled = {"disableNetboot": kind == 6, "disableDhcp": kind == 7}
    mac, ip, dhcp = MACS[number].hex(":"), options.dotted(ADDRESSES[number]), SETTINGS[kind % len(SETTINGS)]
    obj = hardware(f"lab-{number}", mac, ip, dhcp=dhcp, **disabled)
    if kind >= 9:
        obj["metadata"]["annotations"] = {BOOT_PATH_ANNOTATION: ("grub", "ipxe", "lilo")[kind - 9]}
    return obj


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """A client's packet, mostly well formed, with the things altered that an answer may depend on."""
    message = codec.parse(CAPTURED[draw(st.sampled_from(CLIENTS))])
    found = dict(message.options)
    values: dict[int, st.SearchStrategy[bytes]] = {
        12: st.sampled_from([b"a", b"bb", b""]),
        50: st.sampled_from([*ADDRESSES, b"\1\2\3\4", b""]),
        53: st.sampled_from([bytes((n,)) for n in (1, 1, 1, 3, 3, 3, 4, 7, 8)]),
        54: st.sampled_from([OURS, OURS, OTHERS, b""]),
        55: st.sampled_from([b"\1\3\6\x0c", b"\x0c\6", b"", b"\x2a\x1c\x0f\x0c\6\3\1"]),
        57: st.sampled_from([b"\2\x40", b"\5\xc0", b"\xff\0", b"\0"]),
        61: st.sampled_from([b"", b"\1abcdef", b"\1ghijkl", bytes(255)]),
        60: st.sampled_from([b"PXEClient", b"NVIDIA/BF/PXE", b"U-Boot.armv8"]),
        77: st.sampled_from([b"iPXE", b"\4iPXE", b"gPXE", b"x"]),
        81: st.sampled_from([b"\0\0\0a", b"\0\0\0b"]),
        82: st.sampled_from(
            [b"", b"\1\1a", b"\1\1b", b"\1\1a\2\2xy", b"\5\4\x0a\x4d\0\0", b"\5\4\x0a\x4d\1\0", b"\x0b\4" + OTHERS,
             b"\1\xff", b"\0", b"\1\1a\1\1b", b"\xff"]
        ),
        93: st.sampled_from([b"\0\7", b"\0\0", b"\0\x0b", b"\0\x29", b"\7"]),
        97: st.sampled_from([bytes(17), b"\0" + b"u" * 16, b"\0RPi4" + b"u" * 12, b"\1" + bytes(16), b"short"]),
        175: st.sampled_from([b"\x13\1\1", b"\x18\1\1", b"\xeb\3\1\0\0"]),
    }  # fmt: skip
    for code in draw(st.lists(st.sampled_from(sorted(values)), max_size=4, unique=True)):
        found[code] = draw(values[code])
    for code in draw(st.lists(st.sampled_from([12, 50, 54, 55, 57, 60, 61, 82, 93, 97, 175]), max_size=2)):
        found.pop(code, None)
    if draw(st.integers(0, 9)) == 0:
        found = dict(draw(st.permutations(list(found.items()))))
    changed = message._replace(
        options=found,
        xid=draw(st.binary(min_size=4, max_size=4)),
        hops=draw(st.integers(0, 3)),
        secs=draw(st.integers(0, 9)),
        flags=draw(st.sampled_from([0, 0, 0x8000, 0x8000, 1])),
        chaddr=draw(st.sampled_from([*MACS, *MACS, STRANGER])),
        giaddr=draw(st.sampled_from([bytes(4), OTHERS, OTHERS, b"\x0a\x4d\1\2", b"\xff\0\0\1"])),
        ciaddr=draw(st.sampled_from([bytes(4), bytes(4), bytes(4), *ADDRESSES])),
    )
    packet = bytearray(codec.build(changed))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        packet[draw(st.integers(0, len(packet) - 1))] = draw(st.integers(0, 255))
    return bytes(packet)


def test_recorded_packets_get_the_same_bytes_with_and_without_the_fast_path(make_edge: MakeEdge) -> None:
    pair = Pair(make_edge, *(machine(number, number) for number in range(3)))
    recorded = [*CAPTURED.values(), *(packet.payload for packet in CAPTURES)]
    for packet in recorded:
        asks = codec.parse(packet).options
        for giaddr in (bytes(4), OTHERS):
            for mac, address in (*zip(MACS, ADDRESSES, strict=True), (MACS[0], ADDRESSES[0]), (STRANGER, ADDRESSES[0])):
                ours = {code: value for code, value in ((50, address), (54, OURS)) if code in asks}
                for sent in (packet, altered(packet, chaddr=mac, giaddr=giaddr, options=ours)):
                    for port in (67, 4011):
                        pair.send(sent, options.dotted(address), port=port)
    pair.assert_agree()
    assert pair.calls.answered > 2 * len(recorded)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("relayed", [False, True])
def test_fast_path_answers_like_the_full_path_whichever_byte_differs(
    make_edge: MakeEdge, name: str, relayed: bool
) -> None:
    pair = Pair(make_edge, *(machine(number, 1) for number in range(2)))
    request = {50: ADDRESSES[0], 54: OURS} if "request" in name else {}
    relay = {"giaddr": OTHERS} if relayed else {}
    information = {82: b"\1\4eth7\5\4\x0a\x4d\0\0\x0b\4" + OTHERS} if relayed else {}
    packet = altered(CAPTURED[name], chaddr=MACS[0], flags=0, options={**request, **information}, **relay)
    other = altered(packet, chaddr=MACS[1], options={50: ADDRESSES[1]} if request else {})
    for known in (packet, other, packet, other):
        assert pair.send(known) is not None
    for at in range(len(packet)):
        pair.send(packet[:at] + bytes((packet[at] ^ (0x80, 0x01)[at % 2],)) + packet[at + 1 :])
        pair.pass_time(61)  # so that reports that are limited to one a minute are made again
        pair.send(packet)
    pair.assert_agree()


def of_another_machine(draw: Callable[..., Any], packet: bytes) -> bytes:
    """Return what the same firmware sends on another machine."""
    packet = packet[:4] + draw(st.binary(min_size=4, max_size=4)) + packet[8:]
    packet = sent_by(draw(st.sampled_from([*MACS, STRANGER])), packet)
    for old in ADDRESSES:
        packet = packet.replace(b"\x32\4" + old, b"\x32\4" + draw(st.sampled_from(ADDRESSES)))
    return packet


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_histories_get_the_same_answers_from_both_paths(make_edge: MakeEdge, data: st.DataObject) -> None:
    work = [True]
    pair = Pair(make_edge, *(machine(number) for number in range(3)), has_pending=lambda *_name: work[0])
    for packet in pair.history(data.draw, work, machine, packets(), of_another_machine):
        port = data.draw(st.sampled_from([67, 67, 67, 67, 4011]))
        pair.send(packet, data.draw(st.sampled_from(["10.77.0.2", "0.0.0.0"])), 67, port)
    pair.assert_agree()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_machines_of_one_maker_boot_by_the_path_of_their_own_hardware(
    make_edge: MakeEdge, order: tuple[int, ...]
) -> None:
    pair = Pair(make_edge, machine(0), machine(1, 9))
    for number in order * 3:
        reply = read(pair.send(sent_by(MACS[number])))
        assert reply.file.rstrip(b"\0") == (b"snponly.efi", b"shimx64.efi")[number]
    pair.assert_agree()


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in ("udhcpc_request", "networkd_discover")])
def test_real_firmware_is_answered_by_the_fast_path_from_the_second_machine_on(make_edge: MakeEdge, name: str) -> None:
    edge = make_edge(*(machine(number) for number in range(3)))
    for mac in MACS:  # heard before, so that their reservations are compiled
        edge.send(altered(CAPTURED["networkd_discover"], chaddr=mac))
    edge.responder.respond_in_full = calls = Calls(edge.responder.respond_in_full)
    for giaddr in (bytes(4), OTHERS):
        for number in range(2):
            changes = {50: ADDRESSES[number]} if "request" in name else {}
            changes |= {82: b"\1\4eth%d" % number} if any(giaddr) else {}
            changes |= {97: b"\0" + bytes((number,)) * 16} if 97 in codec.parse(CAPTURED[name]).options else {}
            own = {"chaddr": MACS[number], "xid": bytes((number,)) * 4}
            packet = altered(CAPTURED[name], giaddr=giaddr, options=changes, **own)
            assert read(edge.send(packet)).yiaddr == ADDRESSES[number]
    assert calls.count == 2  # the first machine of each of the two ways


def test_unused_layouts_make_room_and_no_layout_is_stored_twice(make_edge: MakeEdge) -> None:
    known = [PXE_DISCOVER, PXE_REQUEST]
    max_of_a_length = fast_path.MAX_LAYOUTS_OF_A_LENGTH
    check_layouts(make_edge, machine(0), max_of_a_length, known, lambda value: altered(PLAIN, options={60: value}))


def test_number_of_prepared_parts_of_a_layout_is_limited(make_edge: MakeEdge) -> None:
    edge = make_edge()
    for number in range(600):  # each a network and a maker of its own
        mac = b"\x02" + number.to_bytes(2, "big") + b"\0\0\1"
        edge.inventory.apply(hardware(f"m{number}", mac.hex(":"), f"10.{number // 250}.{number % 250 + 1}.5"))
        edge.send(sent_by(mac))
    (known,) = (known for alike in edge.responder.fast_path.layouts.lists.values() for known in alike)
    assert len(known.networks) <= fast_path.MAX_NETWORKS_OF_A_LAYOUT
    assert len(known.boots_of_makers) <= fast_path.MAX_MAKERS_OF_A_LAYOUT


def test_machines_of_another_maker_do_not_get_its_boot_file(make_edge: MakeEdge) -> None:
    pi, other = "b8:27:eb:00:00:01", "b8:27:ec:00:00:01"
    edge = make_edge(hardware("pi", pi, "10.77.0.58"), hardware("pc", other, "10.77.0.59"))
    rom = altered(IPXE_BIOS, drop=(77, 175))
    for _ in range(3):
        for mac, boots in ((pi, b""), (other, b"undionly.kpxe")):
            assert read(edge.send(sent_by(bytes.fromhex(mac.replace(":", "")), rom))).file == boots


# --- what a layout can be learnt from ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"options": {52: b"\1"}}, id="overload"),
        pytest.param({"ciaddr": b"\x0a\x4d\0\x3a"}, id="ciaddr"),
        pytest.param({"options": {97: b"\1" + bytes(16)}}, id="UUID of another type"),
        pytest.param({"options": {61: b""}}, id="empty identifier"),
        pytest.param({"options": {82: b"\1\xff"}}, id="lying 82"),
        pytest.param({"options": {82: b"\1\1a\1\1b"}}, id="82 with a repeated sub-option"),
        pytest.param({"options": {82: b"\0"}}, id="82 with a pad"),
        pytest.param({"options": {12: bytes(300)}}, id="option in two instances"),
    ],
)
def test_packet_with_unusual_options_or_fields_is_not_learnt_from(make_edge: MakeEdge, change: dict[str, Any]) -> None:
    edge = make_edge(machine(0))
    assert edge.send(altered(PXE_DISCOVER, **change)) is not None
    assert len(edge.responder.fast_path.layouts) == 0
    assert edge.send(PXE_DISCOVER) is not None
    assert len(edge.responder.fast_path.layouts) == 1


def test_packet_without_end_or_with_bytes_behind_the_mac_is_not_learnt_from(make_edge: MakeEdge) -> None:
    assert PXE_DISCOVER.endswith(b"\xff")
    for odd in (PXE_DISCOVER[:-1], PXE_DISCOVER[:34] + b"\1" + PXE_DISCOVER[35:]):
        edge = make_edge(machine(0))
        assert edge.send(odd) is not None
        assert len(edge.responder.fast_path.layouts) == 0


# --- the number of known layouts --------------------------------------------------------------------------------------


class Layout:
    def __init__(self, name: str, *, used: bool = False) -> None:
        self.name, self.used = name, used


def test_oldest_layout_of_a_key_goes_when_its_list_is_full() -> None:
    known: KnownLayouts[Layout] = KnownLayouts(100, 2)
    for name in "abc":
        known.add(1, partial(Layout, name))
    known.add(2, partial(Layout, "d"))
    assert [layout.name for layout in known.lists[1]] == ["b", "c"]
    assert len(known) == 3


def test_unused_layouts_go_when_there_are_too_many() -> None:
    known: KnownLayouts[Layout] = KnownLayouts(4, 2)
    for number in range(4):
        known.add(number, partial(Layout, str(number), used=number == 1))
    lists = known.lists
    known.add(4, partial(Layout, "4"))
    assert list(lists) == [1]
    assert len(known) == 1
    for number in range(5, 9):  # layout 1 was not used since
        known.add(number, partial(Layout, str(number)))
    assert list(lists) == []
    assert len(known) == 0
