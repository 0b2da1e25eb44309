"""Replies of the DHCP server: which message in which state, what is in it, how large it is, and where it goes."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from edge.dhcp import DhcpSettings, Reply
from edge.dhcp.context import (
    BROADCAST,
    MAX_CLIENT_REPLIES,
    MAX_RELAY_REPLIES,
    MAX_REPLIES,
    DhcpContext,
    size_limit,
)
from edge.dhcp.wire import MessageType, codec, options
from edge.dhcp.wire.codec import relay_agent_of
from edge.dhcp_common import BootAnswer, DhcpSite
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode, Inventory, NetbootPolicy, NetbootWhen
from ipxe.binaries import BootBinaries
from tests.support import objects
from tests.unit.dhcp.harness import (
    CAPTURED,
    HTTP_DISCOVER,
    IPXE_BIOS,
    IPXE_EFI,
    MAC,
    ON_4011,
    PLAIN,
    PXE_DISCOVER,
    PXE_REQUEST,
    REQUEST_4011,
    Edge,
    MakeEdge,
    altered,
    hardware,
    invented,
    lab,
    message_type,
    option_codes,
    read,
)

MODES = [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY]
OTHER_MAC, OTHER_CHADDR = "52:54:00:12:34:57", bytes.fromhex("525400123457")

# --- states: RFC 2131 sections 4.1 and 4.3 as a table -----------------------------------------------------------------

CHADDR = bytes.fromhex("525400123456")
OURS, OTHERS, RELAY = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2", b"\x0a\x4d\0\3"
ADDRESS, WRONG = b"\x0a\x4d\0\x3a", b"\x0a\x4d\0\x63"
NONE, BROADCASTS = bytes(4), codec.BROADCAST_FLAG
DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE, INFORM = (bytes((n,)) for n in range(1, 9))
TO_FRAME = ("10.77.0.58", 68, CHADDR)
TO_ADDRESS = ("10.77.0.58", 68, b"")
TO_ALL = (BROADCAST, 68, b"")
TO_RELAY = ("10.77.0.3", 67, b"")
# What the client sends: message, 54, 50, ciaddr. What it gets: message, and where to if it does not want broadcasts, if
# it does, and through a relay.
TABLE: dict[str, tuple[bytes, bytes | None, bytes | None, bytes, bytes | None, Any, Any, Any]] = {
    "DISCOVER": (DISCOVER, None, None, NONE, OFFER, TO_FRAME, TO_ALL, TO_RELAY),
    "DISCOVER with a wish": (DISCOVER, None, WRONG, NONE, OFFER, TO_FRAME, TO_ALL, TO_RELAY),
    "DISCOVER from an address": (DISCOVER, None, None, WRONG, OFFER, TO_FRAME, TO_ALL, TO_RELAY),
    "SELECTING": (REQUEST, OURS, ADDRESS, NONE, ACK, TO_FRAME, TO_ALL, TO_RELAY),
    "SELECTING another address": (REQUEST, OURS, WRONG, NONE, NAK, TO_ALL, TO_ALL, TO_RELAY),
    "SELECTING another server": (REQUEST, OTHERS, ADDRESS, NONE, None, None, None, None),
    "SELECTING another server's address": (REQUEST, OTHERS, WRONG, NONE, None, None, None, None),
    "INIT-REBOOT": (REQUEST, None, ADDRESS, NONE, ACK, TO_FRAME, TO_ALL, TO_RELAY),
    "INIT-REBOOT, moved": (REQUEST, None, WRONG, NONE, NAK, TO_ALL, TO_ALL, TO_RELAY),
    "RENEWING or REBINDING": (REQUEST, None, None, ADDRESS, ACK, TO_ADDRESS, TO_ADDRESS, TO_RELAY),
    "RENEWING, moved": (REQUEST, None, None, WRONG, NAK, TO_ALL, TO_ALL, TO_RELAY),
    "RENEWING with 54": (REQUEST, OURS, None, ADDRESS, ACK, TO_ADDRESS, TO_ADDRESS, TO_RELAY),
    "REQUEST for nothing": (REQUEST, None, None, NONE, None, None, None, None),
    "REQUEST for half an address": (REQUEST, OURS, b"\x0a\x4d", NONE, None, None, None, None),
    "REQUEST of nobody": (REQUEST, b"", ADDRESS, NONE, None, None, None, None),
    "INFORM": (INFORM, None, None, WRONG, ACK, ("10.77.0.99", 68, b""), ("10.77.0.99", 68, b""), TO_RELAY),
    "INFORM without an address": (INFORM, None, None, NONE, ACK, TO_ALL, TO_ALL, TO_RELAY),
    "DECLINE": (DECLINE, OURS, ADDRESS, NONE, None, None, None, None),
    "RELEASE": (RELEASE, OURS, None, ADDRESS, None, None, None, None),
    "OFFER": (OFFER, OURS, None, NONE, None, None, None, None),
    "ACK": (ACK, OURS, None, NONE, None, None, None, None),
    "NAK": (NAK, OURS, None, NONE, None, None, None, None),
    "no message type": (b"", None, None, NONE, None, None, None, None),
    "a message type that is none": (b"\x20", None, None, NONE, None, None, None, None),
}


def question(row: str, client: bytes = PLAIN, *, flags: int = 0, relay: bytes = NONE) -> bytes:
    kind, server, requested, ciaddr = TABLE[row][:4]
    changes = {code: value for code, value in ((53, kind), (54, server), (50, requested)) if value is not None}
    return altered(client, drop=(50, 53, 54), options=changes, ciaddr=ciaddr, flags=flags, giaddr=relay)


CLIENTS = pytest.mark.parametrize(
    "client", [PXE_DISCOVER, IPXE_EFI, HTTP_DISCOVER, PLAIN], ids=["pxe", "ipxe", "http", "plain"]
)


@CLIENTS
@pytest.mark.parametrize("row", TABLE)
def test_each_client_state_gets_its_answer_at_the_right_destination(edge: Edge, row: str, client: bytes) -> None:
    *_, answer, direct, wants_broadcast, relayed = TABLE[row]
    ways = ((0, NONE, direct), (BROADCASTS, NONE, wants_broadcast), (0, RELAY, relayed), (BROADCASTS, RELAY, relayed))
    for flags, relay, where in ways:
        for _ in range(3):  # in full, then as a packet that is known
            reply = edge.send(question(row, client, flags=flags, relay=relay))
            if answer is None:
                assert reply is None
                continue
            found = read(reply)
            assert (reply.address, reply.port, reply.ethernet) == where
            assert (found.options[53], found.options[54], found.giaddr) == (answer, OURS, relay)
            leases = answer in (OFFER, ACK) and "INFORM" not in row
            assert found.yiaddr == (ADDRESS if leases else NONE)
            assert ({51, 58, 59} <= found.options.keys()) is leases
            # RFC 2131 table 3: an ACK repeats ciaddr, an offer and a refusal do not.
            assert found.ciaddr == (TABLE[row][3] if answer == ACK else NONE)
            assert found.flags == (flags | BROADCASTS if answer == NAK and relay != NONE else flags)


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
@pytest.mark.parametrize("row", TABLE)
def test_proxy_answers_discovers_of_netboot_clients_and_no_requests(
    make_edge: MakeEdge, row: str, mode: DhcpMode
) -> None:
    edge = make_edge(lab(), mode=mode)
    for flags, relay, where in ((0, NONE, TO_ALL), (BROADCASTS, NONE, TO_ALL), (0, RELAY, TO_RELAY)):
        assert edge.send(question(row, flags=flags, relay=relay)) is None
        for client in (PXE_DISCOVER, IPXE_EFI, HTTP_DISCOVER):
            reply = edge.send(question(row, client, flags=flags, relay=relay))
            if not row.startswith("DISCOVER"):
                assert reply is None
                continue
            found = read(reply)
            assert (reply.address, reply.port, reply.ethernet) == where
            assert (found.options[53], found.yiaddr) == (OFFER, NONE)
            assert found.flags & BROADCASTS  # there is no address to which a relay could send it
            assert not {1, 3, 6, 12, 15, 28, 42, 51, 58, 59} & found.options.keys()


def test_nak_has_the_server_and_the_reason(edge: Edge) -> None:
    found = read(edge.send(question("INIT-REBOOT, moved", IPXE_EFI)))
    assert found.options[56] == b"10.77.0.99 is not reserved for this machine"
    assert found.options[61] == codec.parse(IPXE_EFI).options[61]
    assert (found.siaddr, found.file) == (NONE, b"")
    assert edge.messages() == ["DHCPNAK: the client requested 10.77.0.99, but its reserved address is 10.77.0.58"]


def test_renewals_do_not_look_like_boots_in_the_journey(edge: Edge) -> None:
    edge.send(question("RENEWING or REBINDING"))
    edge.send(question("SELECTING"))
    assert [(event.outcome, event.message) for event in edge.events] == [
        (Outcome.INFO, "DHCPACK 10.77.0.58 (renewal) to operating system"),
        (Outcome.OK, "DHCPACK to operating system"),
    ]


def test_inform_without_ciaddr_is_answered_at_its_source(edge: Edge) -> None:
    packet = question("INFORM without an address")
    reply = edge.send(packet, source="10.77.0.80")
    assert (reply.address, reply.port) == ("10.77.0.80", 68)
    for source in ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"):
        assert edge.send(packet, source=source).address == BROADCAST
    assert edge.send(altered(packet, ciaddr=b"\xe0\0\0\1"), source="10.77.0.80").address == "10.77.0.80"


def test_release_for_us_is_reported_once_a_minute(edge: Edge) -> None:
    packet = question("RELEASE")
    edge.send(altered(packet, options={54: OTHERS}))
    assert edge.events == []
    for _ in range(3):
        edge.send(packet)
    assert edge.messages() == ["DHCPRELEASE of 10.77.0.58"]
    edge.now += 60
    edge.send(altered(packet, drop=(54,)))  # as systemd-networkd does
    assert edge.messages() == ["DHCPRELEASE of 10.77.0.58"] * 2


def test_uuid_is_echoed_and_a_malformed_one_does_not_prevent_the_boot(edge: Edge) -> None:
    good = b"\0" + bytes(range(16))
    for uuid in (good, b"\1" + good[1:], b"\1short", b"") * 2:
        answer = read(edge.send(altered(PXE_DISCOVER, options={97: uuid})))
        assert answer.options.get(97) == (uuid if uuid == good else None)
        assert answer.file == b"snponly.efi"


@CLIENTS
@pytest.mark.parametrize("state", ["SELECTING", "INIT-REBOOT"])
def test_a_known_packet_that_asks_for_another_address_is_refused(edge: Edge, state: str, client: bytes) -> None:
    right = question(state, client)
    wrong = altered(right, options={50: WRONG})
    for _ in range(3):
        assert message_type(edge.send(right)) is MessageType.ACK
        assert message_type(edge.send(wrong)) is MessageType.NAK


# --- what a Hardware's `dhcp` becomes on the wire, in which order, and what of it is left out -------------------------


def options_for(make_edge: MakeEdge, packet: bytes, **dhcp: Any) -> dict[int, bytes]:
    """Return the options of the reply to a packet; `dhcp` changes fields of the Hardware."""
    return read(make_edge(lab(dhcp=dhcp)).send(packet)).options


def test_host_name_with_a_domain_is_sent_whole_and_the_domain_in_option_15(make_edge: MakeEdge) -> None:
    found = options_for(make_edge, PLAIN, hostname="node1.rack2.example.org")
    assert (found[options.HOST_NAME], found[options.DOMAIN_NAME]) == (b"node1.rack2.example.org", b"rack2.example.org")
    plain = options_for(make_edge, PLAIN, hostname="node1")
    assert (plain[options.HOST_NAME], plain.get(options.DOMAIN_NAME)) == (b"node1", None)


def test_unset_fields_are_left_out(make_edge: MakeEdge) -> None:
    unset = dict.fromkeys(("netmask", "gateway", "hostname", "nameservers", "timeservers"))
    assert option_codes(make_edge(lab(dhcp=unset)).send(PLAIN).payload) == [53, 54, 51, 58, 59, 255]


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        pytest.param(None, [1, 3, 6, 12, 15, 28, 42], id="no list"),
        pytest.param(b"", [1, 3, 6], id="empty list"),
        pytest.param(bytes((42, 6, 12, 3, 1)), [1, 42, 6, 12, 3], id="mask last"),  # RFC 2132 section 3.3
        pytest.param(bytes((12, 15)), [1, 12, 15, 3, 6], id="names only"),
        pytest.param(bytes((28, 28, 200, 51, 53, 54, 255, 0)), [1, 28, 3, 6], id="odd codes"),
        pytest.param(bytes((3, 6, 12, 15, 17, 42, 43, 60)), [1, 3, 6, 12, 15, 42], id="no mask, like a Raspberry Pi"),
    ],
)
def test_client_gets_the_requested_options_in_its_order_and_the_indispensable_ones(
    make_edge: MakeEdge, asked: bytes | None, order: list[int]
) -> None:
    edge, order = make_edge(lab(dhcp={"hostname": "node1.example.org"})), [53, 54, 51, 58, 59, *order]
    for packet in (PLAIN, PXE_DISCOVER) * 2:
        listed = altered(packet, drop=(55,), options={} if asked is None else {55: asked})
        codes = option_codes(edge.send(listed).payload)
        assert codes[: len(order)] == order
        if packet is PLAIN:
            assert codes == [*order, 255]
        else:
            assert {60, 43, 66, 67} <= set(codes)  # to boot it needs no permission


def test_vlan_is_text_in_option_43_for_ipxe_only(make_edge: MakeEdge) -> None:
    edge = make_edge(lab(dhcp={"vlanId": "100"}))
    for _ in range(2):
        for packet in (IPXE_BIOS, IPXE_EFI):
            assert read(edge.send(packet)).options[43] == b"\x74\x03100\xff"
        assert options.VLAN_ID not in options.suboptions(read(edge.send(PXE_DISCOVER)).options[43])
        assert 43 not in read(edge.send(PLAIN)).options


def test_lease_times_of_infinite_zero_and_short_leases(make_edge: MakeEdge, caplog: pytest.LogCaptureFixture) -> None:
    assert options_for(make_edge, PXE_DISCOVER, leaseTimeSeconds=0)[51] == (86400).to_bytes(4, "big")
    assert "leaseTimeSeconds is 0" in caplog.text
    found = options_for(make_edge, PXE_DISCOVER, leaseTimeSeconds=0xFFFFFFFF)
    assert (found[51], {58, 59} & found.keys()) == (b"\xff" * 4, set())
    for seconds in (1, 2, 7, 0xFFFFFFFE):
        found = options_for(make_edge, PLAIN, leaseTimeSeconds=seconds)
        lease, renew, rebind = (int.from_bytes(found[code], "big") for code in (51, 58, 59))
        assert renew <= rebind <= lease == seconds


@pytest.mark.parametrize(
    ("ip", "interface", "reason"),
    [
        ("10.77.0.58", {"disableDhcp": True}, "disableDhcp is true"),
        (None, {}, "dhcp.ip is not set"),
        ("10.77.0.1", {}, "10.77.0.1 is this server's own address"),
        ("224.0.0.1", {}, "224.0.0.1 is no address of a host"),
    ],
)
def test_unserved_machine_gets_no_answer_and_the_journey_has_the_reason(
    make_edge: MakeEdge, ip: str | None, interface: dict[str, Any], reason: str
) -> None:
    edge = make_edge(lab(ip, **interface))
    for packet in (PXE_DISCOVER, PXE_REQUEST, IPXE_BIOS):
        assert edge.send(packet) is None
    (event,) = edge.events
    assert event.outcome is Outcome.REFUSED
    assert event.message.startswith("no DHCP answer: Hardware default/lab-1: spec.networkInterfaces[")
    assert reason in event.message


def test_machine_is_served_exactly_while_it_is_registered(make_edge: MakeEdge) -> None:
    edge = make_edge()
    assert edge.send(PXE_DISCOVER) is None
    for ip in ("10.77.0.58", "10.77.0.59"):
        edge.inventory.apply(lab(ip))
        for _ in range(2):
            assert options.dotted(read(edge.send(PXE_DISCOVER)).yiaddr) == ip
    edge.inventory.remove(lab("10.77.0.59"))
    assert edge.send(PXE_DISCOVER) is None


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("netmask", "255.255.0.0", 1),
        ("gateway", "10.77.0.2", 3),
        ("nameservers", ["10.77.0.9"], 6),
        ("hostname", "lab.other.org", 12),
        ("timeservers", ["10.77.0.9"], 42),
        ("leaseTimeSeconds", 7, 51),
    ],
)
def test_changed_field_is_served_at_once_and_machines_keep_their_own(
    make_edge: MakeEdge, field: str, value: Any, code: int
) -> None:
    usual, changed = {"hostname": "lab.example.org"}, {"hostname": "lab.example.org", field: value}
    edge = make_edge(lab(dhcp=usual))
    before = read(edge.send(PLAIN)).options
    edge.inventory.apply(lab(dhcp=changed))
    assert read(edge.send(PLAIN)).options[code] != before[code]
    edge.inventory.apply(lab(dhcp=usual))
    neighbour = hardware("b", OTHER_MAC, "10.77.0.59", dhcp=changed)
    edge.inventory.apply(neighbour)
    theirs = altered(PLAIN, chaddr=OTHER_CHADDR)
    alone = read(make_edge(neighbour).send(theirs)).options
    for _ in range(2):
        first, second = (read(edge.send(packet)).options for packet in (PLAIN, theirs))
        assert second == alone != first


def test_address_of_two_hardware_is_not_assigned_until_one_releases_it(edge: Edge) -> None:
    assert edge.send(PXE_DISCOVER) is not None
    edge.inventory.apply(hardware("lab-9", OTHER_MAC, "10.77.0.58"))
    assert edge.send(PXE_DISCOVER) is None
    assert edge.messages()[1:] == ["no DHCP answer: IP 10.77.0.58 is claimed by several Hardware, so none is served"]
    edge.inventory.apply(hardware("lab-9", OTHER_MAC, "10.77.0.59"))
    assert edge.send(PXE_DISCOVER) is not None


@pytest.mark.parametrize("fast_path", [True, False])
def test_interfaces_of_one_hardware_share_its_address_until_another_hardware_claims_it(
    make_edge: MakeEdge, fast_path: bool
) -> None:
    two = lab()
    cards = two["spec"]["networkInterfaces"]
    cards[OTHER_MAC] = cards[MAC]
    edge = make_edge(two, fast_path=fast_path)
    for _ in range(3):
        for chaddr in (CHADDR, OTHER_CHADDR):
            for packet in (PXE_DISCOVER, PXE_REQUEST, PLAIN):
                assert read(edge.send(altered(packet, chaddr=chaddr))).yiaddr == ADDRESS
    edge.inventory.apply(hardware("lab-9", "52:54:00:00:00:09", "10.77.0.58"))
    assert not any(edge.send(altered(PXE_DISCOVER, chaddr=chaddr)) for chaddr in (CHADDR, OTHER_CHADDR))


@pytest.mark.parametrize("order", [1, -1], ids=["terminating first", "terminating last"])
def test_address_shared_with_a_terminating_hardware_is_assigned_to_the_other_one(
    make_edge: MakeEdge, order: int
) -> None:
    leaving = hardware("thief", OTHER_MAC, "10.77.0.58")
    leaving["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    edge = make_edge(*[leaving, lab()][::order])
    assert edge.send(PXE_DISCOVER) is not None
    of_thief = altered(PXE_DISCOVER, chaddr=OTHER_CHADDR)
    assert edge.send(of_thief) is None
    edge.inventory.remove(lab())
    assert edge.send(of_thief) is not None


@pytest.mark.parametrize("mode", MODES)
def test_mac_of_two_hardware_gets_no_answer_and_the_report_names_both(make_edge: MakeEdge, mode: DhcpMode) -> None:
    edge = make_edge(lab(), hardware("lab-2", MAC, "10.77.0.59"), mode=mode)
    for _ in range(2):
        assert edge.send(PXE_DISCOVER) is None
    (event,) = edge.events
    assert event.outcome is Outcome.REFUSED
    assert "claimed by several Hardware" in event.message
    assert event.message.endswith(": default/lab-1, default/lab-2")


def test_too_many_servers_or_a_too_long_name_do_not_prevent_the_boot(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    many, long = [f"10.0.0.{n}" for n in range(1, 71)], ".".join(["label"] * 43)
    found = options_for(make_edge, PXE_REQUEST, nameservers=many, hostname=long)
    assert len(found[6]) == 4 * 63
    assert not {options.HOST_NAME, options.DOMAIN_NAME} & found.keys()
    assert "only the first 63 of 70 are served" in caplog.text
    assert "hostname is left out" in caplog.text


# --- how large replies are, and what goes first -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "limit"),
    [
        (None, 548),
        (b"\x02\x40", 548),
        (b"\0\x80", 548),  # RFC 2132 section 9.10: 576 is the smallest valid value
        (b"", 548),
        (b"\x04\x00", 996),
        (b"\x05\xdc", 1472),
        (b"\xff\x00", 1472),  # EDK2
    ],
)
def test_size_limit_is_the_clients_within_one_ethernet_frame(says: bytes | None, limit: int) -> None:
    changes = {"drop": (57,)} if says is None else {"options": {57: says}}
    assert size_limit(codec.parse(altered(PLAIN, **changes))) == limit


def test_nak_and_short_lease_are_padded_to_300_bytes(make_edge: MakeEdge) -> None:
    edge = make_edge(objects.hardware(mac=MAC, ip="10.77.0.58"))
    refusal = edge.send(altered(PXE_REQUEST, options={50: b"\1\2\3\4"}))
    assert message_type(refusal) is MessageType.NAK
    assert [len(reply.payload) for reply in (refusal, edge.send(PLAIN), edge.send(PLAIN))] == [300, 300, 300]


def test_client_with_a_small_limit_gets_the_indispensable_options(make_edge: MakeEdge) -> None:
    many = {"nameservers": [f"10.0.0.{n}" for n in range(1, 31)], "timeservers": [f"10.0.1.{n}" for n in range(1, 31)]}
    edge = make_edge(lab(dhcp=many))
    packet = altered(PLAIN, options={55: bytes((1, 42, 3, 6, 12))})
    for _ in range(2):
        large = read(edge.send(altered(packet, options={57: b"\x05\xdc"}))).options
        assert (len(large[6]), len(large[42])) == (120, 120)
        small = edge.send(packet)
        found = read(small).options
        assert len(small.payload) <= 548
        assert (found[1], found[3], len(found[6])) == (bytes((255, 255, 255, 0)), b"\x0a\x4d\0\1", 120)
        # The name was asked for last, and is the first to go; where that is enough, the rest stays.
        assert (12 in found, len(found.get(42, b""))) in ((False, 120), (False, 0), (True, 120))


def test_client_with_a_small_limit_gets_its_boot_file(edge: Edge) -> None:
    packet = altered(PXE_DISCOVER, drop=(57,), options={61: b"\xff" * 255, 82: b"\1\x3c" + bytes(60)})
    for _ in range(2):
        reply = edge.send(packet)
        found = read(reply)
        assert len(reply.payload) <= 548
        assert (found.file, len(found.options[82])) == (b"snponly.efi", 62)
        assert options.suboptions(found.options[43]) == {6: b"\x08"}


def test_name_servers_are_cut_to_two_before_the_boot_file_is_dropped(make_edge: MakeEdge) -> None:
    edge = make_edge(lab(dhcp={"nameservers": [f"10.0.0.{n}" for n in range(1, 64)]}))
    for _ in range(2):
        reply = edge.send(altered(PXE_DISCOVER, drop=(57,)))
        found = read(reply).options
        assert len(reply.payload) <= 548
        assert (found[6], found[67]) == (bytes((10, 0, 0, 1, 10, 0, 0, 2)), b"snponly.efi\0")


@pytest.mark.parametrize(
    ("mode", "packet", "where", "information"),
    [
        (DhcpMode.RESERVATION, PXE_DISCOVER, {}, bytes(400)),
        (DhcpMode.RESERVATION, REQUEST_4011, ON_4011, bytes(400)),
        (DhcpMode.PROXY, PXE_DISCOVER, {}, b"\1\xc8" + bytes(400)),
    ],
    ids=["lease", "boot server", "proxy"],
)
def test_reply_that_can_not_be_made_small_enough_is_refused_with_the_reason(
    make_edge: MakeEdge, mode: DhcpMode, packet: bytes, where: dict[str, Any], information: bytes
) -> None:
    edge = make_edge(lab(), mode=mode)
    for _ in range(2):
        assert edge.send(altered(packet, drop=(57,), options={82: information}), **where) is None
    (message,) = edge.messages()
    assert "the client takes 548" in message


def test_repeated_options_are_dropped_first_and_boot_options_never(binaries: BootBinaries) -> None:
    refusals: list[str] = []

    def record(_mac: str, _step: Step, _outcome: Outcome, message: str, **_detail: Any) -> None:
        refusals.append(message)

    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.ALLOWED, lambda _namespace, _name: True)
    site = DhcpSite(Inventory(), policy, binaries, record, lambda: 0.0)
    context = DhcpContext(site, DhcpSettings("10.77.0.1", "10.77.0.1", "http://10.77.0.1:7080"))

    def numbered(code: int, size: int = 30) -> bytes:
        return options.option(code, bytes(size))

    boot = BootAnswer(numbered(67), spare_options=numbered(66))
    request = codec.parse(altered(PLAIN, drop=(12, 55), options={61: bytes(30), 97: bytes(17)}))
    least = numbered(1) + numbered(6)

    def assembled(limit: int) -> bytes | None:
        return context.assemble(
            MAC,
            request._replace(options={**request.options, 57: (limit + 28).to_bytes(2, "big")}),
            MessageType.OFFER,
            boot,
            network=numbered(1) + numbered(12) + numbered(6) + numbered(42),
            fewer=lambda: [numbered(1) + numbered(12) + numbered(6), least, numbered(1) + numbered(6, 8)],
            vlan=numbered(43, 150),
            relay=numbered(82, 150),
        )

    seen: list[list[int]] = []
    limit = 900
    while len(seen) < 6:
        payload = assembled(limit)
        assert payload is not None
        assert len(payload) <= limit
        at, codes = 240, []
        while payload[at] != 255:
            codes.append(payload[at])
            at += 2 + payload[at + 1]
        seen.append(codes)
        limit = at  # one byte less than the reply needs, with its END and without padding
    assert assembled(limit) is None
    assert refusals == [f"no DHCP answer: the smallest DHCP reply is {limit + 1} bytes, the client takes {limit}"]
    assert seen == [
        [53, 54, 1, 12, 6, 42, 43, 61, 97, 66, 67, 82],
        [53, 54, 1, 12, 6, 42, 43, 61, 97, 67, 82],
        [53, 54, 1, 12, 6, 43, 61, 97, 67, 82],
        [53, 54, 1, 6, 43, 61, 97, 67, 82],
        [53, 54, 1, 6, 43, 61, 97, 67, 82],  # with fewer name servers
        [53, 54, 1, 6, 43, 67, 82],
    ]


def test_replies_have_few_sizes_and_never_more_than_the_client_takes() -> None:
    padded = {250: 300, 300: 300, 301: 332, 332: 332, 333: 364, 530: 548, 548: 548}
    assert {size: codec.padded_size(size, 548) for size in padded} == padded


# --- a reservation of another network than the interface's ------------------------------------------------------------

HERE = (IPv4Network("10.77.6.0/24"),)


@pytest.mark.parametrize("fast_path", [True, False])
def test_machine_on_the_wrong_link_is_reported_and_one_behind_its_relay_is_not(
    make_edge: MakeEdge, fast_path: bool
) -> None:
    heard: list[tuple[str, str, str]] = []
    edge = make_edge(lab(), networks=HERE, on_relay_seen=lambda *seen: heard.append(seen), fast_path=fast_path)

    def warnings() -> list[str]:
        return [message for message in edge.messages() if "another network" in message]

    for _ in range(3):
        assert edge.send(altered(PXE_DISCOVER, giaddr=RELAY)) is not None
    ((machine, *where),) = heard
    assert (warnings(), machine.mac, where) == ([], MAC, ["10.77.0.3", "10.77.0.3"]), "once, not with each packet"
    for _ in range(3):
        assert edge.send(PXE_DISCOVER) is not None, "it is served all the same"
    (line,) = warnings()
    assert line.startswith(
        "sent a request on a link of this edge (10.77.6.0/24), but its address 10.77.0.58 belongs to"
    )
    edge = make_edge(lab(), networks=(*HERE, IPv4Network("10.77.0.0/25")), fast_path=fast_path)
    assert edge.send(PXE_DISCOVER) is not None
    assert warnings() == []


# --- several edges answer for the same machines: one stands in for another that is gone -------------------------------

PEER, NAMED = OTHERS, {54: OTHERS}
GONE = frozenset({"10.77.0.2"})


@pytest.mark.parametrize("name", ["edk2_pxe_request", "ipxe_bios_request"])
def test_request_to_an_edge_that_is_gone_is_answered_in_its_name(edge: Edge, name: str) -> None:
    edge.responder.peers_changed(frozenset(), GONE)
    answer, own = (read(edge.send(altered(CAPTURED[name], options=named))) for named in (NAMED, {}))
    assert (answer.options[53], answer.options[54], own.options[54]) == (ACK, PEER, OURS)
    assert (answer.yiaddr, answer.siaddr, answer.file) == (own.yiaddr, own.siaddr, own.file)
    assert answer.options[67] == own.options[67]
    told = [event for event in edge.events if "in the place of the edge 10.77.0.2" in event.message]
    assert [event.outcome for event in told] == [Outcome.INFO]


def test_requests_to_a_living_edge_or_an_unknown_server_are_not_answered(edge: Edge) -> None:
    """The fast path must not have learnt the answer in the other edge's name."""
    request = altered(PXE_REQUEST, options=NAMED)
    peers = [(frozenset(), frozenset()), (frozenset(), GONE), (GONE, frozenset()), (GONE, frozenset({"10.77.0.3"}))]
    for here, gone in peers:
        edge.responder.peers_changed(here, gone)
        for _ in range(3):
            assert (edge.send(request) is not None) is (gone == GONE)


def test_no_nak_and_no_quarantined_address_in_the_name_of_another_edge(edge: Edge) -> None:
    edge.responder.peers_changed(frozenset(), GONE)
    assert edge.send(altered(PXE_REQUEST, options=NAMED | {50: WRONG})) is None
    edge.quarantine.begin(edge.inventory.by_mac(MAC))
    assert edge.send(altered(PXE_REQUEST, options=NAMED)) is None


def test_decline_to_another_edge_is_probed_here_too(edge: Edge) -> None:
    """All edges offer the same address, so the machine would go from one edge to the next."""
    decline = altered(PXE_REQUEST, options={53: DECLINE, 50: ADDRESS} | NAMED)
    edge.send(decline)
    assert edge.look("52:54:00:00:00:99") == 0  # of a stranger's
    edge.responder.peers_changed(GONE)
    edge.send(decline)
    assert edge.look("52:54:00:00:00:99") == 1
    assert edge.quarantine.holds(MAC)


# --- answers go where a packet says: so many to each, and so many in all ----------------------------------------------

LOOPBACK_RELAY, VICTIM = b"\xac\x10\0\1", b"\xc0\0\2\1"


def answered(edge: Edge, packet: bytes, count: int, **where: Any) -> int:
    return sum(edge.send(packet, **where) is not None for _ in range(count))


def test_replies_to_a_relay_of_the_machines_network_are_not_limited(edge: Edge) -> None:
    packet = altered(PXE_DISCOVER, giaddr=RELAY)
    assert answered(edge, packet, 3 * MAX_REPLIES) == 3 * MAX_REPLIES


@pytest.mark.parametrize("link", [{}, {82: b"\5\4\x0a\x4d\0\0"}], ids=["plain", "it names the machine's link"])
def test_replies_to_other_relays_are_limited_per_second(edge: Edge, caplog, link) -> None:
    packet = altered(PXE_DISCOVER, giaddr=LOOPBACK_RELAY, options=link)
    assert answered(edge, packet, MAX_RELAY_REPLIES + 50) == MAX_RELAY_REPLIES
    edge.now += 1
    assert answered(edge, packet, MAX_RELAY_REPLIES + 50) == MAX_RELAY_REPLIES
    assert caplog.text.count("the relay 172.16.0.1, which is not of its machine's network (1000 a second)") == 1
    edge.now += 60
    answered(edge, packet, MAX_RELAY_REPLIES + 1)
    assert "(99 more times since this was last said)" in caplog.text


def test_other_relays_share_a_limit_that_does_not_affect_the_machines_relay(edge: Edge) -> None:
    before, behind = PXE_DISCOVER[:24] + b"\xc0\0", PXE_DISCOVER[28:]
    relays = (number.to_bytes(2, "big") for number in range(1, MAX_REPLIES + 500))
    assert sum(edge.send(before + relay + behind) is not None for relay in relays) == MAX_REPLIES
    assert edge.send(altered(PXE_DISCOVER, giaddr=RELAY)) is not None
    assert edge.send(PXE_DISCOVER) is not None


@pytest.mark.parametrize("kind", [1, 3, 8])
def test_limit_of_relays_holds_for_every_message_type(edge: Edge, kind: int) -> None:
    packet = altered(PLAIN, giaddr=VICTIM, options={53: bytes((kind,)), 50: WRONG})
    assert answered(edge, packet, MAX_RELAY_REPLIES + 50) == MAX_RELAY_REPLIES


def test_limit_of_relays_holds_in_the_proxy_modes(make_edge: MakeEdge) -> None:
    edge = make_edge(lab(), mode=DhcpMode.AUTO_PROXY)
    assert answered(edge, altered(PXE_DISCOVER, giaddr=VICTIM), MAX_RELAY_REPLIES + 50) == MAX_RELAY_REPLIES
    where = ON_4011 | {"source": "192.0.2.1"}
    assert answered(edge, REQUEST_4011, MAX_CLIENT_REPLIES + 5, **where) == MAX_CLIENT_REPLIES


def test_replies_to_an_address_that_the_client_states_are_limited_per_second(edge: Edge) -> None:
    inform = altered(PLAIN, options={53: INFORM}, ciaddr=WRONG)
    assert answered(edge, inform, MAX_CLIENT_REPLIES + 5) == MAX_CLIENT_REPLIES
    assert answered(edge, REQUEST_4011, MAX_CLIENT_REPLIES + 5, **ON_4011) == MAX_CLIENT_REPLIES


@pytest.mark.parametrize("source", ["192.0.2.1", "10.77.0.58"])
def test_inform_for_an_address_of_another_network_is_reported_and_not_answered(edge: Edge, source: str) -> None:
    inform = altered(PLAIN, options={53: INFORM}, ciaddr=VICTIM)
    assert answered(edge, inform, 20, source=source) == 0
    (event,) = edge.events
    assert (event.mac, event.outcome) == (MAC, Outcome.INFO)
    assert "DHCPINFORM for 192.0.2.1" in event.message
    assert source in event.message


# --- InfiniBand: RFC 4390 ---------------------------------------------------------------------------------------------

GUID, PORT = bytes.fromhex("7cfe900300292652"), bytes.fromhex("7cfe90292652")
GID = bytes.fromhex("a0000027fe80000000000000") + GUID
MELLANOX = bytes.fromhex("ff000000000002000002c900")
# How clients name a port: chaddr and option 61.
PORTS = {
    "NetworkManager, FlexBoot's HW type IB": (b"", b"\x20" + GUID),
    "gPXE": (b"", b"\x20" + GID),
    "no hardware type": (b"", b"\0" + GUID),
    "dhclient of MLNX_OFED": (b"", MELLANOX + GUID),
    "FlexBoot": (PORT, MELLANOX + GUID),
    "the same of another MAC": (b"\2" + PORT[1:], MELLANOX + GUID),
    "RFC 4361 with DUID-LL": (b"", b"\xffiaid\0\3\0\x20" + GUID),
    "RFC 4361 with DUID-LLT": (b"", b"\xffiaid\0\1\0\x20time" + GID),
    "a DUID of no known type": (b"", b"\xff" + bytes(7) + PORT),
    "the MAC alone": (PORT, None),
    "old iPXE": (GUID, None),
    "Linux' ip=dhcp": (GID, None),
    "a GUID and a DUID of the machine": (GUID, b"\xffiaid\0\2\0\0\xab\x11machine!"),
}


def of_port(packet: bytes, port: str, **more: Any) -> bytes:
    chaddr, identifier = PORTS[port]
    found = {61: identifier} if identifier is not None else {}
    return altered(
        packet, drop=(61,), htype=32, chaddr=chaddr, flags=0, options=found | more.pop("options", {}), **more
    )


@pytest.mark.parametrize("port", PORTS)
def test_infiniband_port_is_identified_by_its_guid_and_answered_by_broadcast(make_edge: MakeEdge, port: str) -> None:
    edge = make_edge(hardware("ib", PORT.hex(":"), "10.77.0.58"))
    for packet, kind in (
        (PXE_DISCOVER, MessageType.OFFER),
        (PXE_REQUEST, MessageType.ACK),
        (IPXE_EFI, MessageType.OFFER),
    ):
        for relay, where in ((NONE, TO_ALL), (RELAY, TO_RELAY)):
            for _ in range(2):
                reply = edge.send(sent := of_port(packet, port, giaddr=relay))
                found, asked = read(reply), codec.parse(sent)
                assert (message_type(reply), found.yiaddr) == (kind, ADDRESS)
                assert (reply.address, reply.port, reply.ethernet) == where
                assert found.flags & BROADCASTS, "the relay has to broadcast it, too"
                assert (found.htype, found.chaddr) == (32, asked.chaddr), "the client compares them"
                assert found.options.get(61) == asked.options.get(61)
    assert f"/ipxe/script/{PORT.hex(':')}/auto.ipxe" in read(edge.send(of_port(IPXE_EFI, port))).options[67].decode()


@pytest.mark.parametrize(
    "identifier", [b"\xffiaid\0\2\0\0\xab\x11machine!", b"\xffiaid\0\3\0\1" + CHADDR, b"\x20", b"\xff"]
)
def test_infiniband_port_without_a_guid_is_not_mistaken_for_another_card(
    edge: Edge, caplog: pytest.LogCaptureFixture, identifier: bytes
) -> None:
    packet = altered(PXE_DISCOVER, htype=32, chaddr=b"", options={61: identifier})
    assert edge.send(packet) is None
    assert "(option 61) holds the port's GUID, by which a Hardware names it" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_unregistered_infiniband_port_is_reported_with_a_manifest(make_edge: MakeEdge, mode: DhcpMode) -> None:
    edge = make_edge(mode=mode)
    reply = edge.send(of_port(PXE_DISCOVER, "FlexBoot"))
    assert (reply is not None) == (mode is DhcpMode.AUTO_PROXY)
    assert PORT.hex(":") in edge.events[0].detail["manifest"]


# --- Relays: where replies go, what of option 82 comes back, and what a relay may ask for in it -----------------------


GIADDR = b"\x0a\x4d\0\2"
CIRCUIT = b"\x01\x04eth7\x02\x06\x02\0\0\0\0\7"
INFORMATION = [CIRCUIT, b"\x01\x04eth7\x01\x01x", b"", b"\x01\xff", b"\xff", b"\0\0"]


def twice(edge: Edge, packet: bytes, **where: Any) -> Reply | None:
    """Return the answer in full, which must also be the answer to a known packet."""
    first = edge.send(packet, **where)
    assert edge.send(packet, **where) == first
    return first


@pytest.mark.parametrize("giaddr", [GIADDR, bytes(4)], ids=["relay", "switch that snoops"])
@pytest.mark.parametrize("name", ["edk2_pxe_discover", "ipxe_efi_discover", "edk2_http_request", "plain_discover"])
@pytest.mark.parametrize("information", INFORMATION)
def test_relay_information_comes_back_unchanged_as_the_last_option(
    edge: Edge, giaddr: bytes, name: str, information: bytes
) -> None:
    reply = twice(edge, altered(CAPTURED[name], giaddr=giaddr, options={82: information}))
    assert read(reply).options[82] == information
    assert option_codes(reply.payload)[-2:] == [82, 255]


def test_long_relay_information_comes_back_whole(edge: Edge) -> None:
    information = (b"\x01\xf0" + bytes(240)) * 2
    reply = twice(edge, altered(PXE_DISCOVER, giaddr=GIADDR, options={82: information}))
    assert read(reply).options[82] == information


def test_refusal_carries_the_relay_information_too(edge: Edge) -> None:
    reply = edge.send(altered(PXE_REQUEST, giaddr=GIADDR, options={50: b"\x0a\x4d\0\x63", 82: CIRCUIT}))
    assert message_type(reply) is MessageType.NAK
    assert read(reply).options[82] == CIRCUIT


def test_relay_with_a_server_identifier_override_is_named_in_option_54(edge: Edge) -> None:
    """RFC 5107: renewals go through the relay, which can add option 82 to them."""
    override = b"\x0b\x04\x0a\x4d\0\2"
    discover = altered(PXE_DISCOVER, giaddr=GIADDR, options={82: CIRCUIT + override})
    assert read(twice(edge, discover)).options[54] == GIADDR
    request = altered(PXE_REQUEST, giaddr=GIADDR, options={54: GIADDR, 82: CIRCUIT + override})
    assert message_type(twice(edge, request)) is MessageType.ACK
    assert read(twice(edge, request)).options[54] == GIADDR
    # Without the sub-option the same REQUEST is for another server, and one for us is for us with it, too.
    assert edge.send(altered(request, options={82: CIRCUIT})) is None
    assert message_type(edge.send(altered(request, options={54: b"\x0a\x4d\0\1"}))) is MessageType.ACK


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY])
def test_relay_with_a_source_port_is_answered_at_that_port(make_edge: MakeEdge, mode: DhcpMode) -> None:
    """RFC 8357: sub-option 19."""
    edge = make_edge(lab(), mode=mode)
    ports = {b"\x13\0": (40000, 40000), b"\x13\0" + CIRCUIT: (40001, 40001), b"": (40000, 67), b"\x13\0\xff": (0, 67)}
    for information, (source_port, port) in ports.items():
        for kind, client in ((DISCOVER, PXE_DISCOVER), (REQUEST, PXE_REQUEST), (INFORM, PLAIN)):
            packet = altered(client, giaddr=GIADDR, options={53: kind, 82: information})
            for _ in range(3):
                reply = edge.send(packet, source_port=source_port)
                assert reply is None if mode is DhcpMode.PROXY and kind != DISCOVER else reply.port == port
        refused = edge.send(altered(PXE_REQUEST, giaddr=GIADDR, options={50: WRONG, 82: information}), "10.77.0.2", 7)
        assert refused is None or refused.port == (7 if information and mode is DhcpMode.RESERVATION else 67)


def test_replies_to_a_relays_own_port_are_limited_in_every_network(edge: Edge, caplog) -> None:
    packet = altered(PXE_DISCOVER, giaddr=RELAY, options={82: b"\x13\0"})
    assert answered(edge, packet, MAX_RELAY_REPLIES + 50, source_port=53) == MAX_RELAY_REPLIES
    assert "the relay 10.77.0.3, at port 53 (RFC 8357) (1000 a second)" in caplog.text
    assert edge.send(altered(PXE_DISCOVER, giaddr=RELAY)).port == 67, "the relay itself is answered without end"


@pytest.mark.parametrize("value", [b"\x0a\x4d\0", b"\xff\xff\xff\xff", bytes(4), b"\x7f\0\0\1", b""])
def test_server_override_that_is_no_address_is_ignored(edge: Edge, value: bytes) -> None:
    information = b"\x0b" + bytes((len(value),)) + value
    reply = twice(edge, altered(PXE_DISCOVER, giaddr=GIADDR, options={82: information}))
    assert read(reply).options[54] == b"\x0a\x4d\0\1"
    assert read(reply).options[82] == information


def test_link_is_that_of_suboption_5_or_of_the_relay() -> None:
    def link(**fields: Any) -> bytes:
        return relay_agent_of(codec.parse(altered(PXE_DISCOVER, **fields))).link

    assert link() == b""
    assert link(giaddr=GIADDR) == GIADDR
    assert link(giaddr=GIADDR, options={82: b"\5\4\x0a\1\0\0"}) == b"\x0a\1\0\0"
    assert link(options={82: b"\5\4\x0a\1\0\0"}) == b"\x0a\1\0\0"
    assert link(giaddr=GIADDR, options={82: b"\5\3\x0a\1\0"}) == GIADDR


@pytest.mark.parametrize(
    ("giaddr", "information", "of_another_network"),
    [
        (GIADDR, b"", None),
        (b"\x0a\x4d\1\2", b"", "10.77.1.2"),
        (b"\x0a\x4d\1\2", b"\5\4\x0a\x4d\0\0", None),
        (GIADDR, b"\5\4\x0a\x4d\2\0", "10.77.2.0"),
        (bytes(4), b"\5\4\x0a\x4d\2\0", None),  # no relay would send that; a switch that snoops has no say in it
    ],
)
def test_machine_behind_a_relay_of_another_network_is_served_and_the_operator_warned_once(
    edge: Edge, giaddr: bytes, information: bytes, of_another_network: str | None
) -> None:
    packet = altered(PXE_DISCOVER, giaddr=giaddr, options={82: information})
    for _ in range(3):
        assert message_type(edge.send(packet)) is MessageType.OFFER
    warnings = [event for event in edge.events if event.outcome is Outcome.FAILED]
    assert len(warnings) == (of_another_network is not None)
    for warning in warnings:
        words = f"a relay of another network ({of_another_network}) than that of its address 10.77.0.58"
        assert words in warning.message
        assert warning.detail["relay"] == codec.options.dotted(giaddr)


def test_link_selection_counts_on_the_fast_path_too(edge: Edge) -> None:
    plain = altered(PXE_DISCOVER, giaddr=GIADDR)
    for _ in range(3):
        edge.send(plain)
        edge.send(altered(plain, options={82: b"\5\4\x0a\x4d\2\0"}))
        edge.now += 60
    assert len([event for event in edge.events if event.outcome is Outcome.FAILED]) == 3


def test_every_relay_is_accepted_without_a_netmask(make_edge: MakeEdge) -> None:
    edge = make_edge(lab(dhcp={"netmask": None, "gateway": None}))
    edge.send(altered(PXE_DISCOVER, giaddr=b"\x0a\x09\1\2"))
    assert {event.outcome for event in edge.events} == {Outcome.OK}


def test_invented_relays_are_answered_but_fill_neither_log_nor_memory(edge: Edge) -> None:
    def send(giaddr: bytes) -> None:
        edge.send(PXE_DISCOVER[:24] + giaddr + PXE_DISCOVER[28:])

    for number in range(3000):
        send(b"\x0a\x63" + number.to_bytes(2, "big"))
    warnings = [event for event in edge.events if event.outcome is Outcome.FAILED]
    assert len(warnings) == 30
    assert len(edge.responder.fast_path._near_relays) <= 1024
    for number in range(3000):
        send(b"\x0a\x4d\0" + bytes((number % 255,)))
    reservation = next(iter(edge.responder.reservations.values()))
    assert len(reservation.network.links) <= 64
    send(GIADDR)
    assert GIADDR in reservation.network.links, "what was invented keeps nobody out who is real"


@pytest.mark.parametrize("giaddr", [b"\xff\xff\xff\xff", b"\xe0\0\0\1", b"\x7f\0\0\1", b"\0\0\0\1"])
def test_nothing_is_sent_to_addresses_that_are_no_hosts(
    edge: Edge, giaddr: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    edge.send(PXE_DISCOVER)  # so that the packet is a known one
    for source in ("10.77.0.2", "10.77.0.2", "10.77.0.4"):
        assert edge.send(altered(PXE_DISCOVER, giaddr=giaddr), source=source) is None
    assert caplog.text.count("is ignored") == 2
    assert "its relay address (giaddr)" in caplog.text


# --- ProxyDHCP and port 4011: what to boot, beside another server's lease ---------------------------------------------


FIRMWARE = ["edk2_pxe_discover", "edk2_http_discover", "ipxe_bios_discover", "ipxe_efi_discover"]


@pytest.fixture
def proxy(make_edge: MakeEdge) -> Edge:
    return make_edge(lab(), mode=DhcpMode.PROXY)


@pytest.fixture
def open_house(make_edge: MakeEdge) -> Edge:
    return make_edge(mode=DhcpMode.AUTO_PROXY)


@pytest.mark.parametrize("name", FIRMWARE)
def test_offer_names_class_server_and_file_and_no_address(proxy: Edge, name: str) -> None:
    reply = proxy.send(CAPTURED[name])
    found, asked = read(reply), codec.parse(CAPTURED[name])
    assert (reply.address, reply.port, reply.ethernet) == (BROADCAST, 68, b"")
    assert (found.yiaddr, found.ciaddr, found.siaddr, found.options[54]) == (bytes(4), bytes(4), OURS, OURS)
    assert found.options[60] == (b"HTTPClient" if "http" in name else b"PXEClient")
    assert (found.options[97], found.options.get(61)) == (asked.options[97], asked.options.get(61))
    assert found.options[67].rstrip(b"\0") == found.file
    assert option_codes(reply.payload).count(60) == 1


def test_proxy_never_answers_messages_to_the_other_server(proxy: Edge) -> None:
    for name in ("edk2_pxe_request", "ipxe_bios_request", "edk2_http_request"):
        for server in (OURS, OTHERS):
            for kind in (3, 4, 7, 8):
                packet = altered(CAPTURED[name], options={53: bytes((kind,)), 54: server})
                assert proxy.send(packet, source="10.77.0.58") is None
        assert proxy.send(altered(CAPTURED[name], drop=(54,), options={50: b"\x0a\x4d\0\x63"})) is None
    assert proxy.send(PLAIN) is None
    assert proxy.quarantined == []


def test_proxy_learns_addresses_from_requests_to_the_other_server(proxy: Edge) -> None:
    proxy.send(altered(PXE_REQUEST, options={54: OTHERS, 50: b"\x0a\x4d\0\x80"}))
    proxy.send(altered(PLAIN, options={53: REQUEST, 50: b"\x0a\x4d\0\x81"}))  # INIT-REBOOT
    proxy.send(altered(PLAIN, options={53: REQUEST}, ciaddr=b"\x0a\x4d\0\x82"))  # renewal
    relayed = altered(PLAIN, options={53: REQUEST, 50: b"\x0a\x4d\0\x83"}, giaddr=b"\x0a\x4d\0\3")
    proxy.send(relayed, source="10.77.0.3", source_port=67)
    assert proxy.learnt == [(MAC, f"10.77.0.{n}") for n in (128, 129, 130, 131)]


def test_routed_host_can_not_report_a_machines_address(proxy: Edge) -> None:
    claim = altered(PLAIN, options={53: REQUEST}, ciaddr=b"\x0a\x63\0\x09")
    proxy.send(claim, source="10.99.0.9")
    where = ON_4011 | {"source": "10.99.0.9"}
    proxy.send(altered(claim, drop=(60,)), **where)
    for ciaddr in (b"\x0a\x63\0\x09", bytes(4)):
        proxy.send(altered(REQUEST_4011, ciaddr=ciaddr), **where)
    assert proxy.learnt == []


def test_only_listed_relays_report_a_machines_address(make_edge: MakeEdge) -> None:
    """Without --relays, a host of a routed network can name itself as a relay."""
    proxy = make_edge(lab(), mode=DhcpMode.PROXY, relays="192.0.2.9")
    claim = altered(PLAIN, options={53: REQUEST, 50: b"\x0a\x63\0\x09"}, giaddr=b"\x0a\x63\0\x08")
    for _ in range(20):
        proxy.send(claim, source="10.99.0.8", source_port=67)
    assert proxy.learnt == []
    assert proxy.messages() == [
        "that it has 10.99.0.9 is not believed: the packet comes from 10.99.0.8, which --relays does not name"
    ]
    proxy.send(claim, source="192.0.2.9", source_port=67)
    assert proxy.learnt == [(MAC, "10.99.0.9")]
    proxy.send(altered(claim, giaddr=bytes(4)))
    assert len(proxy.learnt) == 2, "on the link no relay is needed"


def test_proxy_learns_nothing_from_unknown_machines_discovers_or_invalid_addresses(proxy: Edge) -> None:
    request = altered(PXE_REQUEST, options={54: OTHERS})
    proxy.send(altered(request, chaddr=b"\2\0\0\0\0\1"))
    proxy.send(altered(request, ciaddr=b"\x7f\0\0\1"))
    for odd in ({50: b"\xe0\0\0\1"}, {50: b"\x0a"}, {53: b"\1"}):
        proxy.send(altered(request, options=odd))
    assert proxy.learnt == []


def test_reservation_mode_learns_nothing(edge: Edge) -> None:
    edge.send(PXE_REQUEST)
    edge.send(REQUEST_4011, **ON_4011)
    assert edge.learnt == []


def test_client_that_takes_the_proxy_for_its_server_is_reported_once_a_minute(proxy: Edge) -> None:
    for _ in range(3):
        assert proxy.send(PXE_REQUEST) is None
    (event,) = proxy.events
    assert (event.outcome, proxy.learnt) == (Outcome.FAILED, [])
    assert "is there no DHCP server on its network?" in event.message


def test_offer_through_a_relay_goes_to_the_relay_and_says_broadcast(proxy: Edge) -> None:
    relay = b"\x0a\x4d\0\3"
    reply = proxy.send(altered(IPXE_EFI, giaddr=relay, options={82: b"\1\1x\x0b\4" + relay}))
    assert (reply.address, reply.port) == ("10.77.0.3", 67)
    found = read(reply)
    assert found.flags & codec.BROADCAST_FLAG
    assert found.options[54] == relay
    assert option_codes(reply.payload)[-2:] == [82, 255]


def test_proxy_reports_a_machine_without_hardware_and_does_not_answer(make_edge: MakeEdge) -> None:
    edge = make_edge(mode=DhcpMode.PROXY)
    for name in (*FIRMWARE, "plain_discover"):
        assert edge.send(CAPTURED[name]) is None
    assert [(event.step, event.mac) for event in edge.events] == [(Step.SEEN, MAC)]
    assert edge.learnt == []


@pytest.mark.parametrize("name", FIRMWARE)
def test_auto_proxy_boots_machines_without_hardware_and_reports_the_boot_file(open_house: Edge, name: str) -> None:
    for _ in range(3):
        assert message_type(open_house.send(CAPTURED[name])) is MessageType.OFFER
    (event,) = open_house.events
    assert (event.step, event.outcome) == (Step.SEEN, Outcome.INFO)
    assert event.message.startswith("seen, not registered: DHCPDISCOVER from ")
    assert ", boot file in the answer: " in event.message
    open_house.send(altered(PXE_REQUEST, options={54: OTHERS}))
    assert open_house.learnt == [(MAC, "10.77.0.58")]


def test_auto_proxy_leaves_operating_systems_alone(open_house: Edge) -> None:
    assert open_house.send(PLAIN) is None
    assert open_house.events == []


def test_flood_of_invented_machines_is_answered_but_fills_no_journey(open_house: Edge) -> None:
    for number in range(1500):
        assert open_house.send(invented(number)) is not None
    assert [event.step for event in open_house.events] == [Step.SEEN] * 600


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_registered_machine_follows_its_hardware(make_edge: MakeEdge, mode: DhcpMode) -> None:
    edge = make_edge(lab(None, disableNetboot=True), mode=mode)
    rom = read(edge.send(PXE_DISCOVER))
    assert rom.file == b""
    assert options.suboptions(rom.options[43]).get(6) != b"\x08"
    # iPXE gets its script, which shows the reason.
    script = read(edge.send(IPXE_EFI))
    assert script.file.endswith(b"auto.ipxe")
    assert script.options[60] == b"PXEClient"
    assert {event.outcome for event in edge.events} == {Outcome.REFUSED}
    assert all("disableNetboot is true" in message for message in edge.messages())
    edge.inventory.apply(lab(None, disableDhcp=True))
    edge.events.clear()
    for _ in range(2):
        assert edge.send(PXE_DISCOVER) is None
        assert edge.send(IPXE_EFI) is None
        assert edge.send(REQUEST_4011, source="10.77.0.58", port=4011) is None
    (message,) = edge.messages()
    assert "disableDhcp is true" in message


def test_machine_without_an_address_in_its_hardware_boots(make_edge: MakeEdge) -> None:
    edge = make_edge(lab(None), mode=DhcpMode.PROXY)
    assert read(edge.send(PXE_DISCOVER)).file == b"snponly.efi"
    assert edge.messages() == ["ProxyDHCP offer to UEFI x86-64 PXE ROM, boot file snponly.efi"]


# --- port 4011: clients that have an address and ask for their boot file only -----------------------------------------


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY])
@pytest.mark.parametrize(
    ("name", "port", "file"),
    [
        ("edk2_pxe_request_4011", 4011, b"snponly.efi"),
        ("ipxe_efi_request_4011", 68, f"http://10.77.0.1:7080/ipxe/script/{MAC}/auto.ipxe".encode()),
    ],
)
def test_request_on_4011_is_answered_at_its_source_with_the_file_and_no_lease(
    make_edge: MakeEdge, mode: DhcpMode, name: str, port: int, file: bytes
) -> None:
    edge = make_edge(lab(), mode=mode)
    packet = altered(CAPTURED[name], drop=(54,))
    for server in ({}, {54: OURS}):
        reply = edge.send(altered(packet, options=server), source="10.77.0.58", source_port=port, port=4011)
        answer = read(reply)
        assert (reply.address, reply.port, reply.ethernet) == ("10.77.0.58", port, b"")
        assert message_type(reply) is MessageType.ACK
        assert (answer.yiaddr, answer.ciaddr) == (bytes(4), b"\x0a\x4d\0\x3a")
        assert not {51, 58, 59, 1, 3, 6, 12} & answer.options.keys()
        assert (answer.options[54], answer.file) == (OURS, file)
        if mode is DhcpMode.PROXY:
            assert answer.options[60] == b"PXEClient"


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY])
def test_request_for_another_server_or_from_nowhere_is_not_answered(make_edge: MakeEdge, mode: DhcpMode) -> None:
    edge = make_edge(lab(), mode=mode)
    for_another = CAPTURED["ipxe_efi_request_4011"]  # names 10.77.0.2
    assert edge.send(for_another, source="10.77.0.58", source_port=68, port=4011) is None
    for source in ("0.0.0.0", "127.0.0.1", "255.255.255.255"):
        assert edge.send(REQUEST_4011, source=source, source_port=68, port=4011) is None
    if mode is DhcpMode.RESERVATION:
        stranger = altered(REQUEST_4011, chaddr=b"\2\0\0\0\0\1")
        assert edge.send(stranger, source="10.77.0.9", port=4011) is None
    assert edge.send(PXE_DISCOVER, source="10.77.0.58", port=4011) is None


def test_only_requests_of_netboot_clients_belong_on_this_port(edge: Edge) -> None:
    for packet in (PXE_DISCOVER, PXE_REQUEST, PLAIN):
        edge.send(packet)  # known packets are none here
    where = ON_4011 | {"source_port": 68}
    request = altered(PLAIN, options={53: REQUEST, 50: b"\x0a\x4d\0\x3a"})
    edge.send(request)
    for packet in (PXE_DISCOVER, PLAIN, request):
        assert edge.send(packet, **where) is None
    assert read(edge.send(PXE_REQUEST, **where)).yiaddr == bytes(4)
    assert read(edge.send(PXE_REQUEST)).yiaddr == b"\x0a\x4d\0\x3a"
    for_nothing = altered(PXE_REQUEST, drop=(50, 54))
    assert edge.send(for_nothing, **where) is not None
    assert edge.send(for_nothing) is None
    for kind in (4, 7, 8):
        assert edge.send(altered(REQUEST_4011, options={53: bytes((kind,))}), **where) is None


@pytest.mark.parametrize("field", ["disableNetboot", "disableDhcp"])
def test_machine_that_may_not_boot_gets_no_file_and_the_journey_says_why(make_edge: MakeEdge, field: str) -> None:
    edge = make_edge(lab(**{field: True}))
    reply = edge.send(REQUEST_4011, **ON_4011)
    assert reply is None or (field == "disableNetboot" and read(reply).file == b"")
    (event,) = edge.events
    assert event.outcome is Outcome.REFUSED
    assert f"{field} is true" in event.message
