"""The fast path and the full one give the same bytes for the same packets, whatever happened before.

Two edges receive the same; one answers known layouts by `edge.dhcp6.fast_path`, the other everything in full.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.dhcp6 import fast_path, wire
from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, option
from edge.dhcp_common import Reply
from edge.journey.events import Outcome
from tests.unit.dhcp.harness import Calls, Pair, check_layouts
from tests.unit.dhcp6.harness import (
    EDK2_DUID,
    EDK2_HTTP_SOLICIT,
    EDK2_PXE_SOLICIT,
    EDK2_STACK_SOLICIT,
    SERVER_ID,
    MakeEdge6,
    addresses,
    ask,
    hardware,
    ia,
    relayed,
)
from tink.api.annotations import BOOT_PATH_ANNOTATION

pytestmark = pytest.mark.long

MACS = [bytes.fromhex(each) for each in ("525400fa002a", "525400fa002b", "b827eb000001")]
STRANGER = bytes.fromhex("020000000009")
IPS = ["fd00:77::50", "fd00:77::51", "fd00:88::52"]
RELAYS = ["fd00:77::2", "fd00:77::3", "fd00:88::2", "2001:db8::9", "fe80::2"]
LINKS = ["fd00:77::2", "fd00:77::77", "fd00:88::2", "fd00:99::1", "::", "fe80::2"]
PRIVATE = IPv6Address("fe80::1c2d:3e4f:5a6b:7c8d")
OTHER_SERVER = option(Option.SERVERID, b"\0\3\0\1ABCDEF")
WANTED = option(Option.ORO, b"\0\x17\0\x18\0\x52")
ROM = b"".join(option(code, value) for code, value in wire.options(EDK2_PXE_SOLICIT[4:]) if code not in (1, 3))
IPXE = ROM + option(Option.USER_CLASS, b"\0\4iPXE")
CLASSES = ROM + option(Option.VENDOR_CLASS, b"\0\0\x16\x47\0\x0dNVIDIA/BF/PXE")
PI = option(Option.ORO, b"\0\x3b") + option(Option.CLIENT_ARCH_TYPE, b"\0\x29")
SYSTEM = WANTED + option(Option.ELAPSED_TIME, b"\0\0") + option(39, b"\0\4node")

MESSAGES = [
    EDK2_PXE_SOLICIT,
    EDK2_HTTP_SOLICIT,
    EDK2_STACK_SOLICIT,
    ask(M.REQUEST, SERVER_ID, ia(IPS[0]), ROM),
    ask(M.REQUEST, SERVER_ID, ia(), IPXE),
    ask(M.SOLICIT, ia(), IPXE),
    ask(M.SOLICIT, ia(), CLASSES),
    ask(M.SOLICIT, ia(), PI),
    ask(M.SOLICIT, ia(), option(Option.RAPID_COMMIT, b""), SYSTEM),
    ask(M.SOLICIT, ia(iaid=b"abcd"), ia(IPS[0], iaid=b"efgh"), SYSTEM),
    ask(M.REQUEST, SERVER_ID, ia(IPS[0]), SYSTEM),
    ask(M.RENEW, SERVER_ID, ia(IPS[0]), ROM),
    ask(M.REBIND, ia(IPS[0]), SYSTEM),
    ask(M.INFORMATION_REQUEST, WANTED),
    ask(M.INFORMATION_REQUEST, SERVER_ID, ROM),
    ask(M.INFORMATION_REQUEST, option(Option.USER_CLASS, b"\0\4iPXE")),
    ask(M.CONFIRM, ia(IPS[0])),
    ask(M.RELEASE, SERVER_ID, ia(IPS[0])),
    ask(M.DECLINE, SERVER_ID, ia(IPS[0])),
]
"""Messages of the first machine; the fast path never answers the last three."""
NAMES = [
    "pxe", "http", "firmware", "pxe-request", "ipxe-request", "ipxe", "classes", "pi", "rapid", "two", "request",
    "renew", "rebind", "information", "rom-information", "ipxe-information",
]  # fmt: skip


def link_local(mac: bytes) -> IPv6Address:
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])


def duid(mac: bytes, kind: int = 3) -> bytes:
    return bytes((0, kind, 0, 1)) + (b"time" if kind == 1 else b"") + mac


def ways(packet: bytes, mac: bytes, relay: str = RELAYS[0], link: str = LINKS[0]) -> list[tuple[bytes, IPv6Address]]:
    """The ways by which the message of a client with this MAC may come: what arrives, and where it comes from."""
    peer, source, port = link_local(mac), IPv6Address(relay), option(Option.INTERFACE_ID, b"eth7")
    named, timed = (_with_duid(packet, duid(mac, kind)) for kind in (3, 1))
    said = option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + mac)
    return [
        (packet, peer),
        (relayed(packet, link, peer, port), source),
        (relayed(packet, link, PRIVATE, said, option(37, b"\0\0\0\1" + mac)), source),
        (relayed(named, link, PRIVATE), source),
        (relayed(timed, link, IPv6Address(relay), port), source),
        (relayed(relayed(packet, "::", peer, port), link, IPv6Address("fe80::9"), port, hops=1), source),
        (relayed(relayed(packet, link, peer), "2001:db8::1", IPv6Address("fd00:77::7"), port, hops=1), source),
    ]


def _with_duid(packet: bytes, other: bytes) -> bytes:
    at = packet.find(option(Option.CLIENTID, EDK2_DUID)[:10])
    return packet if at < 0 else packet[:at] + option(Option.CLIENTID, other) + packet[at + 22 :]


def machine(number: int, kind: int = 0) -> dict[str, Any]:
    """Return the Hardware of that number; `kind` selects one of a few settings."""
    ip, servers = IPS[0] if kind == 7 else IPS[number], ["fd00:77::1"]
    changes: dict[int, dict[str, Any]] = {
        1: {"dhcp": {"ipv6": {"address": ip, "nameservers": [*servers, "fd00:77::3"]}}},
        2: {"dhcp": {"ipv6": {"address": ip, "nameservers": servers, "prefixLength": 48}}},
        3: {"dhcp": {"hostname": "short", "leaseTimeSeconds": 0xFFFFFFFF}},
        4: {"dhcp": {"ipv6": {"address": ip, "nameservers": []}}},
        5: {"disableNetboot": True},
        6: {"disableDhcp": True},
    }
    if kind >= 9:
        path = {BOOT_PATH_ANNOTATION: ("uki", "ipxe", "grub")[kind - 9]}
        return hardware(f"m{number}", MACS[number].hex(":"), ip, annotations=path, osie=f"hook-{number}")
    return hardware(f"m{number}", MACS[number].hex(":"), ip, **changes.get(kind, {}))


def altered(packet: bytes, number: int) -> bytes:
    """Return the same message of another machine at another time."""
    packet = packet[:1] + bytes((number,)) * 3 + packet[4:]
    return packet.replace(EDK2_DUID, EDK2_DUID[:-1] + bytes((number,))).replace(
        IPv6Address(IPS[0]).packed, IPv6Address(IPS[number]).packed
    )


def decline(pair: Pair) -> None:
    """Decline the first machine's address; another host is found there."""
    for edge in pair.edges:
        edge.send(ask(M.DECLINE, SERVER_ID, ia(IPS[0])), link_local(MACS[0]))
        edge.look("02:00:00:00:00:99")


def test_all_messages_get_the_same_bytes_from_both_paths(make_edge: MakeEdge6) -> None:
    networks = (IPv6Network("fd00:77::/64"),)
    pair = Pair(make_edge, *(machine(number, number) for number in range(3)), networks=networks)
    by_relays = [*zip(RELAYS, LINKS, strict=False), *zip(RELAYS, reversed(LINKS), strict=False)]
    for message, _again in product(MESSAGES, range(2)):
        for (number, mac), (relay, link) in product(enumerate(MACS), by_relays):
            for packet, source in ways(altered(message, number), mac, relay, link):
                for alone in (False, True):
                    pair.send(packet, source, alone=alone)
                pair.pass_time(0.01)
    pair.assert_agree()
    assert pair.calls.answered > pair.calls.count / 5


@pytest.mark.parametrize("message", MESSAGES[:-3], ids=NAMES)
@pytest.mark.parametrize("way", range(7))
def test_message_of_another_machine_is_answered_by_the_fast_path(
    make_edge: MakeEdge6, message: bytes, way: int
) -> None:
    pair = Pair(make_edge, machine(0), machine(1))
    for number in range(2):  # heard before, so that both are compiled
        pair.send(*ways(altered(EDK2_STACK_SOLICIT, number), MACS[number])[0])
    pair.fast.responder.respond_in_full = full = Calls(pair.fast.responder.respond_in_full)
    for number in (0, 1, 0, 1):
        packet, source = ways(altered(message, number), MACS[number])[way]
        answer = pair.send(packet, source)
        if message[0] != M.INFORMATION_REQUEST:
            inner, _ = wire.parse(_inner(answer))
            assert {ip for ip, *_ in addresses(inner)} == {IPS[number]}
    pair.assert_agree()
    assert full.count <= 1


def _inner(reply: Reply) -> bytes:
    packet = reply.payload
    while packet[0] == M.RELAY_REPL:
        packet = next(value for code, value in wire.options(packet[34:]) if code == Option.RELAY_MSG)
    return packet


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in NAMES for way in ((0, 1) if name != "pxe-request" else range(7))]
)
def test_fast_path_answers_like_the_full_path_whichever_byte_differs(make_edge: MakeEdge6, name: str, way: int) -> None:
    message = MESSAGES[NAMES.index(name)]
    pair = Pair(make_edge, machine(0), machine(1), machine(2))
    packet, source = ways(message, MACS[0])[way]
    for number in (0, 1, 0, 1):
        assert pair.send(*ways(altered(message, number), MACS[number])[way])
    for at in range(len(packet)):
        pair.send(packet[:at] + bytes((packet[at] ^ (0x80, 0x01)[at % 2],)) + packet[at + 1 :], source)
        pair.pass_time(61)  # so that reports that are limited to one a minute are made again
        assert pair.send(packet, source)
    for bit in range(0, 128, 3):
        pair.send(packet, IPv6Address(int(source) ^ 1 << bit))
    pair.assert_agree()


ODD = {
    "nine associations": ask(M.SOLICIT, *[ia(iaid=bytes((0, 0, 0, number))) for number in range(9)]),
    "short association": ask(M.SOLICIT, ia(), option(Option.IA_NA, b"iaid1234567")),
    "two DUIDs": ask(M.SOLICIT, option(Option.CLIENTID, b"\0\2other"), ia()),
    "no DUID": b"\x0babc" + WANTED,
    "empty DUID": b"\x0babc" + option(Option.CLIENTID, b"") + WANTED,
    "DUID of another make": ask(M.SOLICIT, ia(), client=b"\0\2\0\1" + MACS[0]),
    "prefix": ask(M.SOLICIT, ia(), option(Option.IA_PD, b"iaid" + bytes(8))),
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_odd_messages_get_the_same_answers(make_edge: MakeEdge6, message: bytes) -> None:
    pair = Pair(make_edge, machine(0), machine(1))
    ports = option(Option.INTERFACE_ID, b"one") + option(Option.INTERFACE_ID, b"two")
    says = [option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + mac) for mac in MACS]
    for _ in range(2):
        for number in range(2):
            for packet, source in ways(altered(message, number), MACS[number]):
                pair.send(packet, source)
            for twice in (ports, says[number] + says[0], says[0] + says[number], says[number][:-1] + ports):
                packet = relayed(altered(message, number), LINKS[0], link_local(MACS[number]), twice)
                pair.send(packet, IPv6Address(RELAYS[0]))
    pair.assert_agree()


def test_message_that_was_refused_unparsed_is_not_learnt(make_edge: MakeEdge6) -> None:
    pair = Pair(make_edge, machine(0), machine(1))
    cut_off = ask(M.REQUEST, SERVER_ID, option(Option.IA_NA, b"iaid" + bytes(9)), SYSTEM)
    pair.send(ask(M.REQUEST, SERVER_ID, ia(IPS[0]), SYSTEM), link_local(MACS[0]))
    decline(pair)
    assert pair.send(cut_off, link_local(MACS[0])), "its address is refused, whatever else it says"
    assert pair.send(altered(cut_off, 1), link_local(MACS[1])) is None


def test_network_with_multicast_addresses_is_left_to_the_full_path(make_edge: MakeEdge6) -> None:
    wide = machine(0)
    wide["spec"]["networkInterfaces"][MACS[0].hex(":")]["dhcp"]["ipv6"]["prefixLength"] = 1
    pair = Pair(make_edge, wide)
    packet = relayed(EDK2_PXE_SOLICIT, "fd00:77::2", link_local(MACS[0]))
    for source in ("fd00:77::2", "fd00:77::2", "ff02::1", "fe80::9"):
        answer = pair.send(packet, IPv6Address(source))
        assert (answer is None) == (source == "ff02::1")


@st.composite
def packets(draw: st.DrawFn) -> tuple[bytes, IPv6Address]:
    """A client's packet, mostly well formed, with the things altered that an answer may depend on."""
    message = draw(st.sampled_from(MESSAGES))
    found = list(wire.options(message[4:]))
    values: dict[int, st.SearchStrategy[bytes]] = {
        Option.SERVERID: st.sampled_from([SERVER_ID[4:], SERVER_ID[4:], OTHER_SERVER[4:], b""]),
        Option.CLIENTID: st.sampled_from([*map(duid, MACS), duid(MACS[1], 1), EDK2_DUID, b"\0\2x", b""]),
        Option.IA_NA: st.sampled_from(
            [ia(each)[4:] for each in IPS] + [ia(iaid=b"wxyz")[4:], ia(*IPS)[4:], b"", b"short", ia()[4:] + b"\0"]
        ),
        Option.IA_TA: st.sampled_from([b"iaid", b""]),
        Option.IA_PD: st.sampled_from([b"iaid" + bytes(8), b""]),
        Option.ORO: st.sampled_from([b"\0\x17", b"\0\x18", b"\0\x17\0\x18", b"", b"\0"]),
        Option.ELAPSED_TIME: st.sampled_from([b"\0\0", b"\0\7", b"", b"\0"]),
        Option.RAPID_COMMIT: st.just(b""),
        Option.USER_CLASS: st.sampled_from([b"\0\4iPXE", b"\0\4x"]),
        Option.VENDOR_CLASS: st.sampled_from([b"\0\0\1\x57\0\x0aHTTPClient", b"\0\0\1\x57\0\4acme", b"\0"]),
        Option.CLIENT_ARCH_TYPE: st.sampled_from([b"\0\7", b"\0\x10", b"\0\0", b"\0\x0b", b"\0\x29", b"\0\x16"]),
        39: st.sampled_from([b"\0\4node", b"\0\4host"]),
    }
    for code in draw(st.lists(st.sampled_from(sorted(values)), max_size=3)):
        found.insert(draw(st.integers(0, len(found))), (code, draw(values[code])))
        if draw(st.booleans()):
            found = [each for at, each in enumerate(found) if each[0] not in [before for before, _ in found[:at]]]
    for code in draw(st.lists(st.sampled_from([1, 2, 3, 6, 8, 14, 15, 16, 61]), max_size=1)):
        found = [each for each in found if each[0] != code]
    packet = bytearray(message[:1] + draw(st.binary(min_size=3, max_size=3)))
    packet += b"".join(option(code, value) for code, value in found)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        packet[draw(st.integers(0, len(packet) - 1))] = draw(st.integers(0, 255))
    return draw(come(bytes(packet), draw(st.sampled_from([*MACS, *MACS, STRANGER]))))


@st.composite
def come(draw: st.DrawFn, message: bytes, mac: bytes) -> tuple[bytes, IPv6Address]:
    relay, link = draw(st.sampled_from(RELAYS)), draw(st.sampled_from(LINKS))
    packet, source = draw(st.sampled_from(ways(message, mac, relay, link)))
    if draw(st.integers(0, 4)) == 0:
        source = draw(st.sampled_from([PRIVATE, *map(IPv6Address, [*IPS, "ff02::1", "::", "::1"])]))
    at = draw(st.integers(0, 3 * len(packet)))
    if at < len(packet):
        packet = packet[:at] + draw(st.binary(min_size=1, max_size=1)) + packet[at + 1 :]
    return packet, source


def of_another_machine(draw: Callable[..., Any], known: tuple[bytes, IPv6Address]) -> tuple[bytes, IPv6Address]:
    """Return what the same firmware sends on another machine, or through another relay."""
    packet, source = known
    new = draw(st.sampled_from([*MACS, STRANGER]))
    for old in (*MACS, STRANGER):
        packet = packet.replace(link_local(old).packed, link_local(new).packed).replace(old, new)
        source = link_local(new) if source == link_local(old) else source
    for address in IPS:
        packet = packet.replace(IPv6Address(address).packed, IPv6Address(draw(st.sampled_from([address, *IPS]))).packed)
    return packet, source


@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_histories_get_the_same_answers_from_both_paths(make_edge: MakeEdge6, data: st.DataObject) -> None:
    work = [True]
    networks = data.draw(st.sampled_from([(), (IPv6Network("fd00:77::/64"),)]))
    objects = [machine(number) for number in range(3)]
    pair = Pair(make_edge, *objects, networks=networks, has_pending=lambda *_name: work[0])
    what = (data.draw, work, machine, packets(), of_another_machine)
    for packet, source in pair.history(*what, decline=lambda: decline(pair)):
        pair.send(packet, source, alone=data.draw(st.sampled_from([False, False, False, True])))
    pair.assert_agree()


def test_fast_path_does_not_assign_an_address_in_quarantine(make_edge: MakeEdge6) -> None:
    pair = Pair(make_edge, machine(0))
    solicit, renew = EDK2_PXE_SOLICIT, ask(M.RENEW, SERVER_ID, ia(IPS[0]))
    for packet in (solicit, solicit, renew, renew):
        assert pair.send(packet, link_local(MACS[0])) is not None
    decline(pair)
    assert pair.send(solicit, link_local(MACS[0])) is None
    assert pair.send(renew, link_local(MACS[0])) is not None
    pair.pass_time(700)
    assert pair.send(solicit, link_local(MACS[0])) is not None
    pair.assert_agree()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_machines_boot_by_the_path_of_their_own_hardware(make_edge: MakeEdge6, order: tuple[int, ...]) -> None:
    pair = Pair(make_edge, machine(0), machine(1, 9), machine(2, 9))
    files = [b"snponly.efi", b"osie/hook-1/uki.efi", b"osie/hook-2/uki.efi"]
    for number in order * 3:
        packet = relayed(altered(EDK2_PXE_SOLICIT, number), "::", link_local(MACS[number]))
        answer = pair.send(packet, IPv6Address(RELAYS[0]))
        assert wire.parse(_inner(answer))[0].get(Option.BOOTFILE_URL) == b"tftp://[fd00:77::1]/" + files[number]
    pair.assert_agree()
    assert pair.calls.answered == 8  # all but the first


@pytest.mark.parametrize("message", [EDK2_PXE_SOLICIT, EDK2_HTTP_SOLICIT, MESSAGES[5]], ids=["pxe", "http", "ipxe"])
def test_machine_without_pending_work_is_refused_on_the_fast_path_too(make_edge: MakeEdge6, message: bytes) -> None:
    work = [True]
    pair = Pair(make_edge, machine(0), machine(1, 5), has_pending=lambda *_name: work[0])
    told = set()
    for _ in range(2):
        for _ in range(3):
            told.add(pair.send(message, link_local(MACS[0])))
            assert pair.send(altered(message, 1), link_local(MACS[1])) is not None
        work[0] = False
    pair.assert_agree()
    assert len(told) == (1 if message is MESSAGES[5] else 2)  # the script says it itself
    assert any(event.outcome is Outcome.REFUSED and event.mac == MACS[0].hex(":") for event in pair.fast.events)


def test_mac_of_the_peer_address_comes_before_that_of_the_duid(make_edge: MakeEdge6) -> None:
    pair = Pair(make_edge, machine(0), machine(1))
    source = IPv6Address(RELAYS[0])
    named = _with_duid(EDK2_STACK_SOLICIT, duid(MACS[0]))
    for peer, ip in ((PRIVATE, IPS[0]), (PRIVATE, IPS[0]), (link_local(MACS[1]), IPS[1]), (PRIVATE, IPS[0])):
        answer = pair.send(relayed(named, LINKS[0], peer), source)
        assert [each for each, *_ in addresses(wire.parse(_inner(answer))[0])] == [ip]


def test_limit_of_replies_holds_for_both_paths_together(make_edge: MakeEdge6) -> None:
    pair = Pair(make_edge, machine(0))
    packet = relayed(EDK2_PXE_SOLICIT, "fd00:77::2")
    answered = sum(pair.send(packet, IPv6Address("2001:db8::9")) is not None for _ in range(1200))
    assert answered == 1000
    assert pair.calls.answered == 999
    assert [pair.send(packet, IPv6Address(source)) for source in ("ff02::9", "::1")] == [None, None]
    assert all(pair.send(packet, IPv6Address("fd00:77::2")) for _ in range(1200))


def test_unused_layouts_make_room_and_no_layout_is_stored_twice(make_edge: MakeEdge6) -> None:
    known = [EDK2_PXE_SOLICIT, EDK2_HTTP_SOLICIT]
    max_of_a_length = fast_path.MAX_LAYOUTS_OF_A_LENGTH
    check_layouts(make_edge, hardware(), max_of_a_length, known, lambda value: ask(M.SOLICIT, ia(), option(17, value)))


def test_number_of_networks_of_a_layout_is_limited(make_edge: MakeEdge6) -> None:
    edge = make_edge()
    for number in range(600):
        mac = b"\x02\0\0\0" + number.to_bytes(2, "big")
        edge.inventory.apply(hardware(f"m{number}", mac.hex(":"), f"fd00:{number + 1:x}::50"))
        edge.now += 0.1
        assert edge.send(EDK2_PXE_SOLICIT, link_local(mac)) is not None
        assert edge.send(EDK2_PXE_SOLICIT, link_local(mac)) is not None
    (known,) = edge.responder.fast_path.layouts.lists[len(EDK2_PXE_SOLICIT)]
    assert len(known.networks) <= fast_path.MAX_NETWORKS_OF_A_LAYOUT
