"""The fast way and the full one give the same bytes for the same packets, whatever happened before.

Two edges hear the same; one answers known layouts by `edge.dhcp.fast_path`, the other everything in full.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.dhcp import Received
from edge.dhcp.fast_path import answers
from edge.dhcp.wire import codec, options
from tests.unit.dhcp.firmware.packets import CAPTURES
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire
from tink.api.annotations import BOOT_PATH_ANNOTATION

MACS = [bytes.fromhex("525400123456"), bytes.fromhex("525400123457"), bytes.fromhex("b827eb000001")]
STRANGER = bytes.fromhex("020000000009")
ADDRESSES = [b"\x0a\x4d\0\x3a", b"\x0a\x4d\0\x3b", b"\x0a\x4d\1\x3c"]
OURS, OTHERS = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"
CLIENTS = [
    "edk2_pxe_discover", "edk2_pxe_request", "edk2_http_discover", "edk2_http_request", "ipxe_bios_discover",
    "ipxe_bios_request", "ipxe_efi_discover", "plain_discover", "udhcpc_request", "networkd_discover",
    "perfdhcp_discover",
]  # fmt: skip


@pytest.fixture
def hardware(make_hardware: MakeHardware) -> Callable[..., dict[str, Any]]:
    """The machine of that number; `kind` picks one of a few settings of it."""

    def make(number: int, kind: int = 0) -> dict[str, Any]:
        obj = make_hardware(f"lab-{number}", MACS[number].hex(":"), options.dotted(ADDRESSES[number]))
        interface = obj["spec"]["networkInterfaces"][MACS[number].hex(":")]
        changes: list[dict[str, Any]] = [
            {},
            {"hostname": "node.example.org", "vlanId": "7"},
            {"netmask": "255.255.0.0", "leaseTimeSeconds": 60, "hostname": None},
            {"nameservers": [f"10.0.0.{n}" for n in range(1, 60)], "hostname": "n" * 60},
            {"ip": options.dotted(ADDRESSES[0])},
            {"netmask": None, "gateway": None},
        ]
        interface["dhcp"].update(changes[kind % len(changes)])
        interface["dhcp"] = {name: value for name, value in interface["dhcp"].items() if value is not None}
        if kind >= 9:
            obj["metadata"]["annotations"] = {BOOT_PATH_ANNOTATION: ("grub", "ipxe", "lilo")[kind - 9]}
        interface["disableNetboot"] = kind == 6
        interface["disableDhcp"] = kind == 7
        return copy.deepcopy(obj)

    return make


@st.composite
def packets(draw: st.DrawFn, captured: dict[str, bytes]) -> bytes:
    """A client's packet, mostly well formed, with the things altered that an answer may depend on."""
    message = codec.parse(captured[draw(st.sampled_from(CLIENTS))])
    found = dict(message.options)
    values: dict[int, st.SearchStrategy[bytes]] = {
        12: st.sampled_from([b"a", b"bb", b""]),
        50: st.sampled_from([*ADDRESSES, b"\1\2\3\4", b""]),
        53: st.sampled_from([bytes((n,)) for n in (1, 1, 1, 3, 3, 3, 4, 7, 8)]),
        54: st.sampled_from([OURS, OURS, OTHERS, b""]),
        55: st.sampled_from([b"\1\3\6\x0c", b"\x0c\6", b"", b"\x2a\x1c\x0f\x0c\6\3\1"]),
        57: st.sampled_from([b"\2\x40", b"\5\xc0", b"\xff\0", b"\0"]),
        61: st.sampled_from([b"", b"\1abcdef", b"\1ghijkl", bytes(255)]),
        77: st.sampled_from([b"iPXE", b"\4iPXE", b"x"]),
        81: st.sampled_from([b"\0\0\0a", b"\0\0\0b"]),
        82: st.sampled_from(
            [b"", b"\1\1a", b"\1\1b", b"\1\1a\2\2xy", b"\5\4\x0a\x4d\0\0", b"\5\4\x0a\x4d\1\0", b"\x0b\4" + OTHERS,
             b"\1\xff", b"\0", b"\1\1a\1\1b", b"\xff"]
        ),
        93: st.sampled_from([b"\0\7", b"\0\0", b"\0\x0b"]),
        97: st.sampled_from([bytes(17), b"\0" + b"u" * 16, b"\1" + bytes(16), b"short"]),
    }  # fmt: skip
    for code in draw(st.lists(st.sampled_from(sorted(values)), max_size=4, unique=True)):
        found[code] = draw(values[code])
    for code in draw(st.lists(st.sampled_from([12, 50, 54, 55, 57, 61, 82, 93, 97, 175]), max_size=2)):
        found.pop(code, None)
    if draw(st.integers(0, 9)) == 0:
        found = dict(draw(st.permutations(list(found.items()))))
    packet = bytearray(
        codec.build(
            message._replace(
                options=found,
                xid=draw(st.binary(min_size=4, max_size=4)),
                hops=draw(st.integers(0, 3)),
                secs=draw(st.integers(0, 9)),
                flags=draw(st.sampled_from([0, 0, 0x8000, 0x8000, 1])),
                chaddr=draw(st.sampled_from([*MACS, *MACS, STRANGER])),
                giaddr=draw(st.sampled_from([bytes(4), OTHERS, OTHERS, b"\x0a\x4d\1\2", b"\xff\0\0\1"])),
                ciaddr=draw(st.sampled_from([bytes(4), bytes(4), bytes(4), *ADDRESSES])),
            )
        )
    )
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        packet[draw(st.integers(0, len(packet) - 1))] = draw(st.integers(0, 255))
    return bytes(packet)


def test_recorded_packets_get_the_same_bytes_with_and_without_the_fast_path(
    make_edge: MakeEdge, hardware: Callable[..., dict[str, Any]], captured: dict[str, bytes], wire: Wire
) -> None:
    fast, full = (
        make_edge(*(hardware(number, number) for number in range(3)), fast_path=fast_path)
        for fast_path in (True, False)
    )
    fast.responder.fast_path.answer = calls = _Calls(fast.responder.fast_path.answer)
    recorded = [*captured.values(), *(packet.payload for packet in CAPTURES)]
    for packet in recorded:
        asks = codec.parse(packet).options
        for giaddr in (bytes(4), OTHERS):
            for mac, address in (*zip(MACS, ADDRESSES, strict=True), (MACS[0], ADDRESSES[0]), (STRANGER, ADDRESSES[0])):
                ours = {code: value for code, value in ((50, address), (54, OURS)) if code in asks}
                for sent in (packet, wire.altered(packet, chaddr=mac, giaddr=giaddr, options=ours)):
                    for port in (67, 4011):
                        replies = [edge.send(sent, options.dotted(address), port=port) for edge in (fast, full)]
                        assert replies[0] == replies[1], (sent.hex(), port)
    assert fast.events == full.events
    assert calls.answered > 2 * len(recorded)


def test_without_the_fast_path_everything_is_answered_in_full(
    make_edge: MakeEdge, hardware: Callable[..., dict[str, Any]], wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = make_edge(hardware(0), fast_path=False)
    edge.responder.respond_in_full = calls = _Calls(edge.responder.respond_in_full)
    for _ in range(3):
        assert wire.read(edge.send(captured["edk2_pxe_discover"])).yiaddr == ADDRESSES[0]
    assert edge.responder.fast_path is None
    assert calls.answered == 3


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("relayed", [False, True])
def test_every_single_byte_that_differs_is_minded(
    make_edge: MakeEdge,
    hardware: Callable[..., dict[str, Any]],
    wire: Wire,
    captured: dict[str, bytes],
    name: str,
    relayed: bool,
) -> None:
    fast, full = (
        make_edge(*(hardware(number, 1) for number in range(2)), fast_path=fast_path) for fast_path in (True, False)
    )
    request = {50: ADDRESSES[0], 54: OURS} if "request" in name else {}
    relay = {"giaddr": OTHERS} if relayed else {}
    information = {82: b"\1\4eth7\5\4\x0a\x4d\0\0\x0b\4" + OTHERS} if relayed else {}
    packet = wire.altered(captured[name], chaddr=MACS[0], flags=0, options={**request, **information}, **relay)
    other = wire.altered(packet, chaddr=MACS[1], options={50: ADDRESSES[1]} if request else {})
    for known in (packet, other, packet, other):
        assert fast.send(known) == full.send(known) is not None
    for at in range(len(packet)):
        for flip in (0x01, 0x80):
            altered = packet[:at] + bytes((packet[at] ^ flip,)) + packet[at + 1 :]
            assert fast.send(altered) == full.send(altered), (at, flip)
            fast.now = full.now = fast.now + 61  # so that what is told once a minute is told again
        assert fast.send(packet) == full.send(packet)
    assert fast.events == full.events


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_known_packets_get_the_answer_that_they_would_get_in_full(
    make_edge: MakeEdge, hardware: Callable[..., dict[str, Any]], captured: dict[str, bytes], data: st.DataObject
) -> None:
    work = [True]
    edges = [
        make_edge(*(hardware(number) for number in range(3)), fast_path=fast, has_pending=lambda *_name: work[0])
        for fast in (True, False)
    ]
    sent: list[bytes] = []
    for _ in range(data.draw(st.integers(4, 14))):
        match data.draw(
            st.sampled_from(["new", "new", "again", "again", "kin", "kin", "kin", "change", "work", "time"])
        ):
            case "change":
                number, kind = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 11))
                for edge in edges:
                    change = edge.inventory.remove if kind == 8 else edge.inventory.apply
                    change(hardware(number, kind))
                continue
            case "work":
                work[0] = not work[0]
                continue
            case "time":
                for edge in edges:
                    edge.now += 400
                continue
            case "again" if sent:
                packet = data.draw(st.sampled_from(sent))
            case "kin" if sent:  # the same firmware on another machine
                packet = data.draw(st.sampled_from(sent))
                packet = packet[:4] + data.draw(st.binary(min_size=4, max_size=4)) + packet[8:]
                packet = packet[:28] + data.draw(st.sampled_from([*MACS, STRANGER])) + packet[34:]
                for old in ADDRESSES:
                    packet = packet.replace(b"\x32\4" + old, b"\x32\4" + data.draw(st.sampled_from(ADDRESSES)))
            case _:
                packet = data.draw(packets(captured))
        sent.append(packet)
        port = data.draw(st.sampled_from([67, 67, 67, 67, 4011]))
        received = Received(data.draw(st.sampled_from(["10.77.0.2", "0.0.0.0"])), 67, port)
        fast, full = (edge.responder.respond(packet, received) for edge in edges)
        assert fast == full
        assert edges[0].events == edges[1].events
        assert edges[0].quarantined == edges[1].quarantined


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_machines_of_one_maker_boot_by_the_path_of_their_own_hardware(
    make_edge: MakeEdge,
    hardware: Callable[..., dict[str, Any]],
    wire: Wire,
    captured: dict[str, bytes],
    order: tuple[int, ...],
) -> None:
    objects = [hardware(0), hardware(1, 9)]
    fast, full = (make_edge(*objects, fast_path=fast_path) for fast_path in (True, False))
    files = {0: b"snponly.efi", 1: b"shimx64.efi"}
    for number in order * 3:
        packet = wire.altered(captured["edk2_pxe_discover"], chaddr=MACS[number])
        replies = [edge.send(packet) for edge in (fast, full)]
        assert replies[0] == replies[1]
        assert wire.read(replies[0]).file.rstrip(b"\0") == files[number]
    assert fast.events == full.events


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in ("udhcpc_request", "networkd_discover")])
def test_what_firmware_really_sends_is_answered_the_fast_way_from_the_second_machine_on(
    make_edge: MakeEdge, hardware: Callable[..., dict[str, Any]], wire: Wire, captured: dict[str, bytes], name: str
) -> None:
    edge = make_edge(*(hardware(number) for number in range(3)))
    for mac in MACS:  # heard before, so that their reservations are compiled
        edge.send(wire.altered(captured["networkd_discover"], chaddr=mac))
    edge.responder.respond_in_full = calls = _Calls(edge.responder.respond_in_full)
    for giaddr in (bytes(4), OTHERS):
        for number in range(2):
            changes = {50: ADDRESSES[number]} if "request" in name else {}
            information = {} if giaddr == bytes(4) else {82: b"\1\4eth%d" % number}
            uuid = {97: b"\0" + bytes((number,)) * 16} if 97 in codec.parse(captured[name]).options else {}
            packet = wire.altered(
                captured[name],
                chaddr=MACS[number],
                xid=bytes((number,)) * 4,
                giaddr=giaddr,
                options={**changes, **information, **uuid},
            )
            assert wire.read(edge.send(packet)).yiaddr == ADDRESSES[number]
    assert calls.count == 2  # the first machine of each of the two ways


class _Calls:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.count = 0
        self.answered = 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        result = self._function(*arguments)
        self.answered += result is not None
        return result


def test_layouts_that_nobody_uses_make_room_and_none_is_kept_twice(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    known = edge.responder.fast_path._known.lists
    edge.responder.respond_in_full = calls = _Calls(edge.responder.respond_in_full)
    for _ in range(3):
        edge.send(captured["edk2_pxe_discover"])
        edge.send(captured["edk2_pxe_request"])
    assert sum(map(len, known.values())) == 2
    for number in range(1200):
        edge.send(wire.altered(captured["plain_discover"], options={60: b"%05d" % number + b"x" * (number % 90)}))
        if number % 50 == 0:
            edge.send(captured["edk2_pxe_discover"])
    assert sum(map(len, known.values())) <= answers._LAYOUTS
    assert max(map(len, known.values())) <= answers._LAYOUTS_OF_A_LENGTH
    assert len(edge.responder.fast_path._known) == sum(map(len, known.values()))
    assert calls.count == 1202  # that which is in use all the time was known all the time
    assert len(captured["edk2_pxe_discover"]) << 8 | 1 in known
    assert len(captured["edk2_pxe_request"]) << 8 | 3 not in known


def test_what_is_prepared_for_a_layout_is_bounded(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge()
    packet = captured["edk2_pxe_discover"]
    for number in range(600):  # each a network and a maker of its own
        mac = b"\x02" + number.to_bytes(2, "big") + b"\0\0\1"
        edge.inventory.apply(make_hardware(f"m{number}", mac.hex(":"), f"10.{number // 250}.{number % 250 + 1}.5"))
        edge.send(packet[:28] + mac + packet[34:])
    (known,) = (known for alike in edge.responder.fast_path._known.lists.values() for known in alike)
    assert len(known.networks) <= answers._NETWORKS_OF_A_LAYOUT
    assert len(known.shared) <= answers._MAKERS_OF_A_LAYOUT


def test_machines_of_another_maker_do_not_get_its_boot_file(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    pi, other = "b8:27:eb:00:00:01", "b8:27:ec:00:00:01"
    edge = make_edge(make_hardware("pi", pi, "10.77.0.58"), make_hardware("pc", other, "10.77.0.59"))
    rom = wire.altered(captured["ipxe_bios_discover"], drop=(77, 175))
    for _ in range(3):
        for mac, boots in ((pi, b""), (other, b"undionly.kpxe")):
            packet = rom[:28] + bytes.fromhex(mac.replace(":", "")) + rom[34:]
            assert wire.read(edge.send(packet)).file == boots
