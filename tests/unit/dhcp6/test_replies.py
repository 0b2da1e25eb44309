"""Replies of the DHCPv6 server: whose message it is, which address, what to boot, and the way back."""

from __future__ import annotations

from functools import partial
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp6 import DHCP6_Advertise

from edge.dhcp6 import wire
from edge.dhcp6.context import MAX_REPLIES_TO_ONE
from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, Status, option
from edge.journey.events import Milestone, Outcome, milestone
from ipxe.binaries import BootBinaries, BootPath
from tests.support.objects import CREATED, OTHER_MAC
from tests.unit.dhcp6.harness import (
    ADDRESS,
    DUID,
    EDK2_DUID,
    EDK2_HTTP_SOLICIT,
    EDK2_PXE_SOLICIT,
    EDK2_STACK_SOLICIT,
    LINK_LOCAL,
    MAC,
    SERVER_ID,
    Edge6,
    MakeEdge6,
    addresses,
    ask,
    hardware,
    ia,
    make,
    relayed,
    status,
)
from tink.api.annotations import BOOT_PATH_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.mac import eui64_mac

# --- which address, by each kind of message: RFC 8415 section 18.3 ----------------------------------------------------

LEASE = [(ADDRESS, 1000, 1000)]


def test_all_clients_of_one_boot_get_the_one_address_whatever_their_duids_and_iaids(edge: Edge6) -> None:
    ipxe = ask(M.SOLICIT, ia(iaid=b"ipxe"), client=b"\0\4" + bytes(range(16)))
    both = ask(M.SOLICIT, ia(iaid=b"one."), ia(iaid=b"two."))
    for packet, count in ((EDK2_STACK_SOLICIT, 1), (EDK2_HTTP_SOLICIT, 1), (ipxe, 1), (both, 2)):
        answer = edge.answer(packet)
        assert answer.type is M.ADVERTISE
        assert answer.transaction == packet[1:4]
        assert addresses(answer) == LEASE * count
        asked = wire.parse(packet)[0].all(Option.IA_NA)
        assert [each[:4] for each in answer.all(Option.IA_NA)] == [each[:4] for each in asked], "each under its IAID"
        assert answer.get(Option.SERVERID) == DUID


@pytest.mark.parametrize(("lease", "renew", "rebind"), [(1000, 500, 800), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)])
def test_identity_association_has_the_times_to_renew(make_edge: MakeEdge6, lease: int, renew: int, rebind: int) -> None:
    (association,) = make_edge(hardware(dhcp={"leaseTimeSeconds": lease})).answer(EDK2_HTTP_SOLICIT).all(Option.IA_NA)
    assert (int.from_bytes(association[4:8], "big"), int.from_bytes(association[8:12], "big")) == (renew, rebind)


@pytest.mark.parametrize("kind", [M.REQUEST, M.RENEW])
def test_request_and_renewal_are_answered_by_the_server_that_they_name_alone(edge: Edge6, kind: M) -> None:
    answer = edge.answer(ask(kind, SERVER_ID, ia(ADDRESS)))
    assert (answer.type, addresses(answer)) == (M.REPLY, LEASE)
    assert edge.send(ask(kind, option(Option.SERVERID, b"another"), ia(ADDRESS))) is None
    assert edge.send(ask(kind, ia(ADDRESS))) is None


@pytest.mark.parametrize("kind", [M.RENEW, M.REBIND])
def test_report_of_a_renewal_is_no_step_of_a_boot(edge: Edge6, kind: M) -> None:
    rapid = option(Option.RAPID_COMMIT, b"")
    server_id = (SERVER_ID,) if kind is M.RENEW else ()
    for _ in range(3):  # in full at first, then by the fast path
        edge.answer(ask(M.SOLICIT, ia(), rapid))
        edge.answer(ask(kind, *server_id, ia(ADDRESS)))
    reports = [(event.message.partition(" to ")[0], event.detail.get("dhcp")) for event in edge.events]
    assert reports == [("DHCPv6 REPLY", "reply"), ("DHCPv6 REPLY (renewal)", None)] * 3


def test_any_edge_rebinds_the_lease_of_another_and_replaces_other_addresses(
    edge: Edge6,
) -> None:
    answer = edge.answer(ask(M.REBIND, ia(ADDRESS)))
    assert (answer.type, addresses(answer)) == (M.REPLY, LEASE)
    assert addresses(edge.answer(ask(M.RENEW, SERVER_ID, ia("fd00:77::99")))) == [*LEASE, ("fd00:77::99", 0, 0)]


@pytest.mark.parametrize(
    ("has", "said"), [((ADDRESS,), Status.SUCCESS), (("fd00:77::99",), Status.NOT_ON_LINK), ((), None)]
)
def test_confirm_says_whether_the_address_is_right_here(edge: Edge6, has: tuple[str, ...], said: Status | None) -> None:
    packet = ask(M.CONFIRM, ia(*has))
    if said is None:
        assert edge.send(packet) is None
    else:
        assert status(edge.answer(packet).get(Option.STATUS_CODE)) == said


def test_no_other_server_is_waited_for_a_commit_is_rapid_if_asked_and_a_release_changes_nothing(edge: Edge6) -> None:
    assert edge.answer(EDK2_HTTP_SOLICIT).get(Option.PREFERENCE) == b"\xff"
    rapid = option(Option.RAPID_COMMIT, b"")
    at_once = edge.answer(ask(M.SOLICIT, ia(), rapid))
    assert (at_once.type, at_once.get(Option.RAPID_COMMIT), addresses(at_once)) == (M.REPLY, b"", LEASE)
    asked = edge.answer(ask(M.REQUEST, SERVER_ID, ia(), rapid))
    assert (asked.get(Option.RAPID_COMMIT), asked.get(Option.PREFERENCE)) == (None, None)
    assert status(edge.answer(ask(M.RELEASE, SERVER_ID, ia(ADDRESS))).get(Option.STATUS_CODE)) == Status.SUCCESS
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == LEASE


def test_temporary_addresses_and_prefixes_are_refused(edge: Edge6) -> None:
    answer = edge.answer(ask(M.SOLICIT, ia(), option(Option.IA_TA, b"temp"), option(Option.IA_PD, b"pref" + bytes(8))))
    temporary, prefix = answer.get(Option.IA_TA), answer.get(Option.IA_PD)
    assert (temporary[:4], status(temporary[8:])) == (b"temp", Status.NO_ADDRS_AVAIL)
    assert (prefix[:4], status(prefix[16:])) == (b"pref", Status.NO_PREFIX_AVAIL)


def test_information_without_an_address(edge: Edge6) -> None:
    answer = edge.answer(ask(M.INFORMATION_REQUEST, option(Option.ORO, bytes.fromhex("00170018"))))
    assert (answer.type, answer.get(Option.IA_NA)) == (M.REPLY, None)
    assert answer.get(Option.DNS_SERVERS) == bytes.fromhex("fd00007700000000") + bytes(7) + b"\1"
    assert answer.get(Option.DOMAIN_LIST) == b"\7example\3org\0"
    assert edge.answer(ask(M.INFORMATION_REQUEST)).get(Option.DNS_SERVERS) is None, "only what is asked for"
    edge.inventory.apply(hardware(dhcp={"ipv6": {"address": ADDRESS}}))
    asks = ask(M.INFORMATION_REQUEST, option(Option.ORO, bytes.fromhex("00170018")))
    assert edge.answer(asks).get(Option.DNS_SERVERS) is None


def test_machine_on_another_network_gets_not_on_link_and_is_reported(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(), networks=(IPv6Network("fd00:88::/64"),))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    (association,) = edge.answer(ask(M.REQUEST, SERVER_ID, ia())).all(Option.IA_NA)
    assert status(association[16:]) == Status.NOT_ON_LINK
    assert "fd00:77::50 is in fd00:77::/64" in edge.lines()[0]
    here = make_edge(hardware(), networks=(IPv6Network("fd00:77::/64"),))
    assert addresses(here.answer(EDK2_HTTP_SOLICIT)) == LEASE


def test_machine_with_ipv4_alone_gets_silence_and_one_that_is_not_served_its_reason(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(ipv6=None, dhcp={"ip": "10.0.0.1"}))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    assert edge.lines() == []
    for obj, said in (
        (hardware(ipv6=None), "dhcp.ipv6 is not set"),
        (hardware(disableDhcp=True), "disableDhcp is true"),
    ):
        edge = make_edge(obj)
        assert edge.send(EDK2_HTTP_SOLICIT) is None
        assert said in edge.lines()[0]


def test_answer_follows_a_changed_hardware(edge: Edge6) -> None:
    edge.answer(EDK2_HTTP_SOLICIT)
    edge.inventory.apply(hardware(ipv6="fd00:77::51"))
    assert edge.address(EDK2_HTTP_SOLICIT) == "fd00:77::51"
    edge.inventory.remove(hardware())
    assert edge.send(EDK2_HTTP_SOLICIT) is None


def test_address_of_two_hardware_is_assigned_to_neither(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(), hardware("m2", OTHER_MAC, "fd00:77:0:0:0:0:0:50"))
    assert edge.send(EDK2_HTTP_SOLICIT) is None
    assert "is claimed by several Hardware" in edge.lines()[0]
    edge.inventory.remove(hardware("m2"))
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == LEASE


def test_interfaces_of_one_hardware_share_its_address_until_another_hardware_claims_it(make_edge: MakeEdge6) -> None:
    two = hardware()
    two["spec"]["networkInterfaces"][OTHER_MAC] = two["spec"]["networkInterfaces"][MAC]
    edge, other = make_edge(two), IPv6Address("fe80::5054:ff:fe00:2")
    for _ in range(3):
        assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == addresses(edge.answer(EDK2_HTTP_SOLICIT, other)) == LEASE
    edge.inventory.apply(hardware("m2", "52:54:00:fa:00:2c"))
    assert edge.send(EDK2_HTTP_SOLICIT) is edge.send(EDK2_HTTP_SOLICIT, other) is None


def test_address_shared_with_a_terminating_hardware_is_assigned_to_the_other(make_edge: MakeEdge6) -> None:
    leaving, other = {"deletionTimestamp": CREATED}, ("m2", OTHER_MAC, "fd00:77:0:0:0:0:0:50")
    edge = make_edge(hardware(*other, metadata=leaving), hardware())
    assert addresses(edge.answer(EDK2_HTTP_SOLICIT)) == LEASE
    edge.inventory.apply(hardware(metadata=leaving))
    edge.inventory.apply(hardware(*other))
    assert edge.send(EDK2_HTTP_SOLICIT) is None


def test_unicast_message_gets_the_status_use_multicast(edge: Edge6) -> None:
    answer = edge.answer(ask(M.RENEW, SERVER_ID, ia(ADDRESS)), alone=True)
    assert status(answer.get(Option.STATUS_CODE)) == Status.USE_MULTICAST
    assert edge.send(EDK2_HTTP_SOLICIT, alone=True) is None


def test_unregistered_machine_gets_no_answer_and_is_reported_with_a_manifest(make_edge: MakeEdge6) -> None:
    edge = make_edge(networks=(IPv6Network("fd00:77::/64"),))
    for _ in range(3):
        assert edge.send(EDK2_HTTP_SOLICIT) is None
    (event,) = edge.events
    assert event.message == "seen, not registered: DHCPv6 SOLICIT from UEFI x86-64 HTTP Boot ROM"
    assert "address: fd00:77::50" in str(event.detail["manifest"])
    assert event.detail["uuid"] == "12345678-9abc-def0-1234-56789abcdef0"


def test_reply_goes_to_the_client_on_its_own_port(edge: Edge6) -> None:
    reply = edge.send(EDK2_HTTP_SOLICIT)
    assert (reply.address, reply.port) == (str(LINK_LOCAL), 546)
    assert EDK2_DUID in reply.payload


# --- whose message it is, and the way back through relays: RFC 8415 sections 9 and 19, RFC 6939 -----------------------

RELAY = IPv6Address("fd00:88::2")
PRIVATE = IPv6Address("fe80::1c2d:3e4f:5a6b:7c8d")
LINK_LAYER = option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + bytes.fromhex(MAC.replace(":", "")))


@given(st.binary(min_size=6, max_size=6))
def test_mac_is_found_in_the_address_that_was_made_of_it(mac: bytes) -> None:
    made = IPv6Address(b"\xfe\x80" + bytes(6) + bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])
    assert eui64_mac(made) == (mac.hex(":") if not mac[0] & 1 else None)


def test_system_with_a_random_link_local_address_is_identified_by_the_neighbour_table(edge: Edge6) -> None:
    packet = ask(M.SOLICIT, ia(), client=b"\0\2\0\0\xab\x11machine")
    assert edge.send(packet, PRIVATE) is None
    edge.neighbours[str(PRIVATE)] = MAC
    assert edge.address(packet, PRIVATE) == ADDRESS


@pytest.mark.parametrize("duid", ["00030001", "0001000101234567"])
def test_duid_with_a_mac_is_the_last_choice(edge: Edge6, duid: str) -> None:
    packet = ask(M.SOLICIT, ia(), client=bytes.fromhex(duid + MAC.replace(":", "")))
    assert edge.address(packet, PRIVATE) == ADDRESS
    assert edge.send(packet, IPv6Address("fe80::5054:ff:fefa:99")) is None, "the address it asks from says more"


@pytest.mark.parametrize("address", ["7cfe900300292652", "a0000027fe800000000000007cfe900300292652"])
@pytest.mark.parametrize("fast_path", [True, False])
def test_infiniband_port_is_known_by_its_guid(make_edge: MakeEdge6, address: str, fast_path: bool) -> None:
    edge = make_edge(hardware(mac="7c:fe:90:29:26:52"), fast_path=fast_path)
    port = b"\0\x20" + bytes.fromhex(address)
    said = option(Option.CLIENT_LINKLAYER_ADDR, port)
    for _ in range(2):
        assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", PRIVATE, said), RELAY) is not None
        for duid in (b"\0\3" + port, b"\0\1" + port[:2] + b"time" + port[2:]):
            assert edge.address(ask(M.SOLICIT, ia(), client=duid), PRIVATE) == ADDRESS
            assert edge.send(relayed(ask(M.SOLICIT, ia(), client=duid), "fd00:77::2", PRIVATE), RELAY) is not None


def test_answer_goes_back_through_each_relay_with_its_interface(edge: Edge6) -> None:
    inner = relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", LINK_LOCAL, option(Option.INTERFACE_ID, b"ge-0/0/7"))
    outer = relayed(inner, "::", IPv6Address("fe80::9"), option(Option.INTERFACE_ID, b"vlan7"), hops=1)
    reply = edge.send(outer, RELAY)
    assert (reply.address, reply.port) == (str(RELAY), 547)
    message = reply.payload
    for sent, hops, interface in ((outer, 1, b"vlan7"), (inner, 0, b"ge-0/0/7")):
        assert message[:34] == bytes((M.RELAY_REPL, hops)) + sent[2:34]
        found = dict(wire.options(message[34:]))
        assert found[Option.INTERFACE_ID] == interface
        message = found[Option.RELAY_MSG]
    assert addresses(wire.parse(message)[0])[0][0] == ADDRESS


@pytest.mark.parametrize(
    ("of_outer", "source_port", "port"), [("0007", 40000, 40000), ("", 40000, 547), ("0007", 0, 547)]
)
def test_nearest_relay_with_a_relay_port_is_answered_at_its_source_port(
    edge: Edge6, of_outer: str, source_port: int, port: int
) -> None:
    """RFC 8357: option 135 also goes back to each relay that sent it."""
    own = [option(Option.RELAY_PORT, bytes.fromhex(each)) if each else b"" for each in ("0000", of_outer)]
    packet = relayed(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", LINK_LOCAL, own[0]), "::", RELAY, own[1], hops=1)
    for _ in range(3):  # none of them is answered as known
        reply = edge.send(packet, RELAY, port=source_port)
        assert reply.port == port
        outer = dict(wire.options(reply.payload[34:]))
        inner = dict(wire.options(outer[Option.RELAY_MSG][34:]))
        assert [found.get(Option.RELAY_PORT, b"").hex() for found in (inner, outer)] == ["0000", of_outer]


def test_option_79_of_the_relay_identifies_the_client_first(edge: Edge6) -> None:
    packet = relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", PRIVATE, LINK_LAYER)
    assert edge.send(packet, RELAY) is not None
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", PRIVATE), RELAY) is None
    another = option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + bytes(6))
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", LINK_LOCAL, another), RELAY) is None


def test_relay_of_another_network_than_the_reservations_gets_no_answer(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(), networks=(IPv6Network("fd00:88::/64"),))
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2"), RELAY) is not None
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:99::2"), RELAY) is None
    assert "the machine is on another network" in edge.lines()[-1]


def test_number_of_relays_is_limited(edge: Edge6) -> None:
    packet = EDK2_HTTP_SOLICIT
    for hops in range(8):
        packet = relayed(packet, "fd00:77::2", LINK_LOCAL, hops=hops)
    assert edge.send(packet, RELAY) is not None
    assert edge.send(relayed(packet, "fd00:77::2", LINK_LOCAL, hops=8), RELAY) is None


# --- boot files of firmware and iPXE: RFC 5970, in the format that EDK2 and iPXE accept ------------------------------

IPXE = (
    option(Option.USER_CLASS, b"\0\4iPXE"),
    option(Option.CLIENT_ARCH_TYPE, b"\0\7"),
    option(Option.VENDOR_CLASS, b"\0\0\x01\x57\0\x20PXEClient:Arch:00007:UNDI:003010"),
    option(Option.ORO, bytes.fromhex("00170018003b003c")),
)
OSIE = option(Option.USER_CLASS, b"\0\x0dtinkedge-osie")
SYSTEM = b"\0\2\0\0\xab\x11machine"
"""The DUID of an operating system."""
TFTP, HTTP = "tftp://[fd00:77::1]", "http://[fd00:77::1]:7080"
SCRIPT = f"{HTTP}/ipxe/script/{MAC}/auto.ipxe"


def of_architecture(architecture: int) -> bytes:
    """Return the SOLICIT of a PXE ROM of this architecture."""
    kind = bytes.fromhex("003d0002")
    return EDK2_PXE_SOLICIT.replace(kind + b"\0\7", kind + architecture.to_bytes(2, "big"))


def test_each_client_gets_its_program_in_its_format(edge: Edge6) -> None:
    assert edge.boot_url(EDK2_PXE_SOLICIT) == f"{TFTP}/snponly.efi"
    assert edge.boot_url(EDK2_HTTP_SOLICIT) == f"{HTTP}/ipxe/binary/{MAC}/snponly.efi"
    http_class = edge.answer(EDK2_HTTP_SOLICIT).get(Option.VENDOR_CLASS)
    assert http_class == bytes.fromhex("00000157000a") + b"HTTPClient", "the class that it looks for"
    for message in (ask(M.SOLICIT, ia(), *IPXE), ask(M.REQUEST, SERVER_ID, ia(), *IPXE)):
        assert edge.boot_url(message) == SCRIPT


def vendor(*names: bytes, enterprise: int = 343) -> bytes:
    """Return a Vendor Class option: RFC 8415 section 21.16."""
    classes = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return option(Option.VENDOR_CLASS, enterprise.to_bytes(4, "big") + classes)


def arch(value: bytes) -> bytes:
    return option(Option.CLIENT_ARCH_TYPE, value)


WANTS_FILE = option(Option.ORO, b"\0\x3b")
UNDI = option(Option.NII, b"\1\3\0")
PXE, ANOTHER = vendor(b"PXEClient:Arch:00007:UNDI:003000"), vendor(b"acme", enterprise=5703)
BY_HTTP = f"{HTTP}/ipxe/binary/{MAC}"
CLIENTS = {
    "no class": ((arch(b"\0\7"), WANTS_FILE), f"{TFTP}/snponly.efi", "UEFI x86-64 PXE ROM"),
    "no class, by HTTP": ((arch(b"\0\x10"), WANTS_FILE), f"{BY_HTTP}/snponly.efi", "UEFI x86-64 HTTP Boot ROM"),
    "BlueField": (
        (vendor(b"NVIDIA/BF/PXE", enterprise=5703), arch(b"\0\7"), WANTS_FILE),
        f"{TFTP}/snponly.efi",
        "PXE ROM",
    ),
    "one byte": ((PXE, arch(b"\7")), f"{TFTP}/snponly.efi", "UEFI x86-64 PXE ROM"),
    "two options": ((ANOTHER, PXE), f"{TFTP}/snponly.efi", "UEFI x86-64 PXE ROM"),
    "two options, the other order": ((PXE, ANOTHER), f"{TFTP}/snponly.efi", "UEFI x86-64 PXE ROM"),
    "two classes in one option": (
        (vendor(b"acme", b"HTTPClient"), arch(b"\0\x10")),
        f"{BY_HTTP}/snponly.efi",
        "HTTP Boot ROM",
    ),
    "PXE and HTTP, architecture of PXE": (
        (PXE, vendor(b"HTTPClient"), arch(b"\0\7")),
        f"{TFTP}/snponly.efi",
        "PXE ROM",
    ),
    "PXE and HTTP, architecture of HTTP": (
        (PXE, vendor(b"HTTPClient"), arch(b"\0\x10")),
        f"{BY_HTTP}/snponly.efi",
        "HTTP",
    ),
    "iPXE in the second user class": ((option(Option.USER_CLASS, b"\0\4acme\0\4iPXE"), PXE), SCRIPT, "iPXE"),
    "Smee's iPXE": ((option(Option.USER_CLASS, b"\0\x0aTinkerbell"), PXE), SCRIPT, "iPXE"),
    "gPXE": ((option(Option.USER_CLASS, b"\0\4gPXE"), PXE), f"{TFTP}/snponly.efi", "PXE ROM"),
    "Raspberry Pi": (
        (WANTS_FILE, arch(b"\0\x29")),
        f"{TFTP}/",
        "Raspberry Pi (boot ROM), Raspberry Pi firmware by TFTP",
    ),
    "Raspberry Pi of class PXE": ((vendor(b"PXEClient"), arch(b"\0\x29")), f"{TFTP}/", "Raspberry Pi (boot ROM)"),
    "U-Boot": ((WANTS_FILE, arch(b"\0\x16")), f"{TFTP}/boot.scr.uimg", "U-Boot (U-Boot ARM 64-bit), boot script"),
    "U-Boot by its class": ((vendor(b"U-Boot.armv8"), WANTS_FILE), f"{TFTP}/boot.scr.uimg", "U-Boot"),
    "U-Boot on RISC-V": ((arch(b"\0\x1b"), WANTS_FILE), f"{TFTP}/boot.scr.uimg", "U-Boot"),
    "UEFI on RISC-V": ((arch(b"\0\x1b"), UNDI, WANTS_FILE), f"{TFTP}/netboot-not-allowed", "RISC-V 64-bit PXE ROM"),
    "a system that asks for a boot file": ((WANTS_FILE,), None, "operating system"),
    "a system that names its architecture": ((arch(b"\0\7"), option(Option.ORO, b"\0\x17")), None, "operating system"),
    "a class cut off": ((option(Option.VENDOR_CLASS, b"\0\0\1\x57\0\x40PXEClient"),), None, "operating system"),
}


@pytest.mark.parametrize(("options", "url", "words"), CLIENTS.values(), ids=CLIENTS)
def test_client_is_identified_by_its_declaration_not_by_its_name(
    edge: Edge6, options: tuple[bytes, ...], url: str | None, words: str
) -> None:
    for message in (ask(M.SOLICIT, ia(), *options), ask(M.REQUEST, SERVER_ID, ia(), *options)) * 2:
        assert edge.boot_url(message) == url
    assert words in edge.events[0].message
    stages = [milestone(event.step, event.outcome, event.detail) for event in edge.events[:2]]
    assert None not in stages or "netboot-not-allowed" in str(url)


def test_refused_raspberry_pi_gets_no_server_and_refused_u_boot_its_script(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(disableNetboot=True))
    assert edge.boot_url(ask(M.SOLICIT, ia(), WANTS_FILE, arch(b"\0\x29"))) is None
    assert ", nothing to boot: " in edge.events[0].message
    assert edge.boot_url(ask(M.SOLICIT, ia(), WANTS_FILE, arch(b"\0\x16"))) == f"{TFTP}/boot.scr.uimg"
    assert all(event.outcome is Outcome.REFUSED and "disableNetboot" in event.message for event in edge.events)


def test_osie_with_its_user_class_gets_the_url_of_its_parameters(edge: Edge6) -> None:
    for message in (ask(M.SOLICIT, ia(), OSIE), ask(M.REQUEST, SERVER_ID, ia(), OSIE)):
        assert edge.boot_url(message) == f"{HTTP}/auto/parameters"
    first, second = edge.events
    assert "DHCPv6 ADVERTISE to the OSIE, its parameters at http://[fd00:77::1]" in first.message
    is_what = milestone(second.step, second.outcome, second.detail)
    assert is_what is Milestone.OS_LEASED, "not a new boot of the firmware"


@pytest.mark.parametrize("packet", [EDK2_STACK_SOLICIT, ask(M.SOLICIT, ia(), client=SYSTEM)])
def test_client_that_does_not_boot_gets_no_boot_file(edge: Edge6, packet: bytes) -> None:
    answer = edge.answer(packet)
    assert (answer.get(Option.BOOTFILE_URL), answer.get(Option.VENDOR_CLASS)) == (None, None)


def test_refused_rom_gets_the_name_of_a_missing_file_and_tries_its_next_device(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(disableNetboot=True))
    assert edge.boot_url(EDK2_PXE_SOLICIT) == f"{TFTP}/netboot-not-allowed"
    assert edge.boot_url(EDK2_HTTP_SOLICIT) == f"{HTTP}/ipxe/binary/{MAC}/netboot-not-allowed"
    assert edge.boot_url(ask(M.SOLICIT, ia(), *IPXE)) == SCRIPT, "which shows why"
    assert all(event.outcome is Outcome.REFUSED and "disableNetboot" in event.message for event in edge.events)


def test_architecture_without_a_program_is_refused_by_name(edge: Edge6) -> None:
    assert edge.boot_url(of_architecture(11)) == f"{TFTP}/netboot-not-allowed"
    assert "arm64" in edge.lines()[0]


def test_each_stage_is_a_milestone_and_the_firmwares_own_lease_is_none(edge: Edge6) -> None:
    stages = {
        EDK2_STACK_SOLICIT: None,
        EDK2_PXE_SOLICIT: Milestone.OFFERED,
        b"\3" + EDK2_PXE_SOLICIT[1:] + SERVER_ID: Milestone.LEASED,
        ask(M.SOLICIT, ia(), *IPXE): Milestone.IPXE_OFFERED,
        ask(M.REQUEST, SERVER_ID, ia(), *IPXE): Milestone.IPXE_LEASED,
        ask(M.SOLICIT, ia(), client=SYSTEM): Milestone.OS_OFFERED,
        ask(M.REQUEST, SERVER_ID, ia(), client=SYSTEM): Milestone.OS_LEASED,
    }
    for packet in stages:
        edge.answer(packet)
    found = [milestone(event.step, event.outcome, event.detail) for event in edge.events]
    assert found == [*stages.values()]
    assert edge.lines()[1] == f"dhcp ok: DHCPv6 ADVERTISE to UEFI x86-64 PXE ROM, boot file {TFTP}/snponly.efi"


# --- boot path auto: a machine that did not run what it was named is named the other program from then on -------------

BY_IPXE, BY_SHIM = f"{TFTP}/snponly.efi", f"{TFTP}/shimx64.efi"
BIOS_SOLICIT = of_architecture(0)


@pytest.fixture
def make_with_shim(tmp_path: Path) -> MakeEdge6:
    for name in ("undionly.kpxe", "snponly.efi", "shimx64.efi", "grubx64.efi"):
        (tmp_path / name).write_bytes(b"GET %s HTTP/1.1")
    return partial(make, BootBinaries(tmp_path, tmp_path, BootPath.AUTO), usual=BootPath.AUTO)


def by_path(path: str, **more: Any) -> Raw:
    return hardware(annotations={BOOT_PATH_ANNOTATION: path}, **more)


def test_firmware_that_did_not_run_ipxe_gets_the_shim_and_then_ipxe_again(make_with_shim: MakeEdge6) -> None:
    edge = make_with_shim(hardware())
    assert edge.boot_url(EDK2_PXE_SOLICIT) == BY_IPXE
    edge.boot_paths.not_started(MAC)
    assert edge.boot_url(EDK2_PXE_SOLICIT) == BY_SHIM
    assert edge.boot_url(EDK2_HTTP_SOLICIT) == f"{HTTP}/ipxe/binary/{MAC}/shimx64.efi"
    assert any("iPXE was not started, so it is offered shim and GRUB" in line for line in edge.lines())
    assert edge.boot_url(BIOS_SOLICIT) == f"{TFTP}/undionly.kpxe", "a BIOS goes on with iPXE"
    edge.boot_paths.not_started(MAC)
    assert edge.boot_url(EDK2_PXE_SOLICIT) == BY_IPXE


# --- boot path uki: the OSIE as one program, for firmware that is UEFI ------------------------------------------------


def test_uefi_boots_the_osie_itself_by_tftp_or_http_and_a_bios_ipxe(make_edge: MakeEdge6) -> None:
    edge = make_edge(by_path("uki", osie="lab"))
    assert edge.boot_url(EDK2_HTTP_SOLICIT) == f"{HTTP}/osie/lab/uki.efi"
    http_class = edge.answer(EDK2_HTTP_SOLICIT).get(Option.VENDOR_CLASS)
    assert http_class == bytes.fromhex("00000157000a") + b"HTTPClient"
    assert edge.boot_url(EDK2_PXE_SOLICIT) == f"{TFTP}/osie/lab/uki.efi"
    assert edge.boot_url(BIOS_SOLICIT) == f"{TFTP}/undionly.kpxe"


def test_machine_without_an_osie_is_refused_with_a_report_of_the_missing_field(
    make_edge: MakeEdge6,
) -> None:
    edge = make_edge(by_path("uki"))
    assert edge.boot_url(EDK2_HTTP_SOLICIT) == f"{HTTP}/ipxe/binary/{MAC}/netboot-not-allowed"
    assert "spec.osie.name is not set" in edge.lines()[0]


# --- what anybody can send --------------------------------------------------------------------------------------------

FIXTURES = [HealthCheck.function_scoped_fixture]
PACKETS = [
    EDK2_HTTP_SOLICIT,
    EDK2_PXE_SOLICIT,
    EDK2_STACK_SOLICIT,
    ask(M.RENEW, SERVER_ID, ia(ADDRESS)),
    relayed(relayed(EDK2_PXE_SOLICIT, "fd00:77::2"), "::", IPv6Address("fe80::9"), option(Option.INTERFACE_ID, b"1")),
]
SOURCES = st.one_of(st.just(LINK_LOCAL), st.binary(min_size=16, max_size=16).map(IPv6Address))


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=FIXTURES)
def test_no_message_raises_and_no_answer_is_more_than_one_message_of_a_server(edge: Edge6, data: st.DataObject) -> None:
    packet = bytearray(data.draw(st.sampled_from(PACKETS)))
    for _ in range(data.draw(st.integers(0, 6))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packet[: data.draw(st.integers(0, len(packet)))])
    reply = edge.send(cut, data.draw(SOURCES), alone=data.draw(st.booleans()))
    if reply is not None:
        assert reply.payload[0] in (M.ADVERTISE, M.REPLY, M.RELAY_REPL)
        assert not IPv6Address(reply.address).is_multicast
        assert len(reply.payload) <= len(cut) + 400
        assert edge.send(reply.payload, IPv6Address(reply.address)) is None
    edge.send(data.draw(st.binary(max_size=600)), data.draw(SOURCES))


@given(junk=st.binary(max_size=400), kind=st.sampled_from(list(M)))
@settings(max_examples=200, deadline=None, suppress_health_check=FIXTURES)
def test_options_with_wrong_lengths_are_never_answered(edge: Edge6, junk: bytes, kind: M) -> None:
    reply = edge.send(ask(kind, SERVER_ID, ia(), junk))
    if reply is not None:
        given = {each for each, *times in addresses(wire.parse(reply.payload)[0]) if any(times)}
        assert given <= {ADDRESS}


@pytest.mark.parametrize("kind", [M.ADVERTISE, M.REPLY, M.RECONFIGURE, M.RELAY_REPL])
def test_replies_of_servers_are_never_answered(edge: Edge6, kind: M) -> None:
    assert edge.send(ask(kind, SERVER_ID, ia())) is None
    assert edge.send(relayed(ask(kind, SERVER_ID, ia()), "fd00:77::2"), IPv6Address("fd00:77::2")) is None


@pytest.mark.parametrize("source", ["ff02::1:2", "::", "::1", "fd00:77::50", "2001:db8::1"])
def test_sender_that_is_neither_on_the_link_nor_a_relay_gets_no_answer(edge: Edge6, source: str) -> None:
    assert edge.send(EDK2_HTTP_SOLICIT, IPv6Address(source)) is None
    named = bytes.fromhex("00030001" + MAC.replace(":", ""))
    assert edge.send(ask(M.SOLICIT, ia(), client=named), IPv6Address(source)) is None


@pytest.mark.parametrize(
    "packet",
    [
        b"\1abc" + ia(),  # without a client's DUID
        ask(M.SOLICIT, SERVER_ID, ia()),
        ask(M.REBIND, SERVER_ID, ia()),
        ask(M.INFORMATION_REQUEST, ia()),
        ask(M.REQUEST, ia()),
    ],
)
def test_invalid_messages_get_no_answer(edge: Edge6, packet: bytes) -> None:
    assert edge.send(packet) is None


def test_number_of_answered_identity_associations_is_limited(edge: Edge6) -> None:
    reply = edge.send(ask(M.SOLICIT, *[ia(iaid=bytes((0, 0, 0, number))) for number in range(200)]))
    assert len(reply.payload) < 700
    assert edge.send(ask(M.SOLICIT, *[ia()] * 300)) is None


def test_replies_to_one_client_are_limited_per_second(edge: Edge6) -> None:
    answered = sum(edge.send(EDK2_HTTP_SOLICIT) is not None for _ in range(MAX_REPLIES_TO_ONE + 200))
    assert answered == MAX_REPLIES_TO_ONE
    edge.now += 1.5
    assert edge.send(EDK2_HTTP_SOLICIT) is not None


def test_replies_to_a_relay_of_the_machines_network_are_not_limited(edge: Edge6) -> None:
    own, other = (IPv6Address(each) for each in ("fd00:77::2", "fd00:88::2"))
    packet = relayed(EDK2_PXE_SOLICIT, "fd00:77::2")
    assert all(edge.send(packet, own) is not None for _ in range(MAX_REPLIES_TO_ONE + 50))
    assert sum(edge.send(packet, other) is not None for _ in range(MAX_REPLIES_TO_ONE + 50)) == MAX_REPLIES_TO_ONE
    at_its_port = relayed(EDK2_PXE_SOLICIT, "fd00:77::2", LINK_LOCAL, option(Option.RELAY_PORT, bytes(2)))
    assert (
        sum(edge.send(at_its_port, own, port=53) is not None for _ in range(MAX_REPLIES_TO_ONE + 50))
        == MAX_REPLIES_TO_ONE
    )


def test_other_programs_read_our_answers_as_meant(edge: Edge6) -> None:
    reply = edge.send(EDK2_HTTP_SOLICIT)
    read = DHCP6_Advertise(reply.payload)
    assert read.trid == 0xEBD538
    (address,) = read["DHCP6OptIA_NA"].ianaopts
    assert (address.addr, address.preflft, address.validlft) == (ADDRESS, 1000, 1000)
