"""ProxyDHCP and port 4011: what to boot, beside another server's lease."""

from __future__ import annotations

import pytest

from edge.dhcp.datagram import BROADCAST
from edge.dhcp.wire import MessageType, codec, options
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import (
    CAPTURED,
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
    invented,
    lab,
    message_type,
    option_codes,
    read,
)

OURS, OTHERS = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"
REQUEST = b"\3"
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


def test_other_server_is_never_spoken_over(proxy: Edge) -> None:
    for name in ("edk2_pxe_request", "ipxe_bios_request", "edk2_http_request"):
        for server in (OURS, OTHERS):
            for kind in (3, 4, 7, 8):
                packet = altered(CAPTURED[name], options={53: bytes((kind,)), 54: server})
                assert proxy.send(packet, source="10.77.0.58") is None
        assert proxy.send(altered(CAPTURED[name], drop=(54,), options={50: b"\x0a\x4d\0\x63"})) is None
    assert proxy.send(PLAIN) is None
    assert proxy.quarantined == []


def test_addresses_are_learnt_from_what_machines_tell_the_other_server(proxy: Edge) -> None:
    proxy.send(altered(PXE_REQUEST, options={54: OTHERS, 50: b"\x0a\x4d\0\x80"}))
    proxy.send(altered(PLAIN, options={53: REQUEST, 50: b"\x0a\x4d\0\x81"}))  # INIT-REBOOT
    proxy.send(altered(PLAIN, options={53: REQUEST}, ciaddr=b"\x0a\x4d\0\x82"))  # renewal
    relayed = altered(PLAIN, options={53: REQUEST, 50: b"\x0a\x4d\0\x83"}, giaddr=b"\x0a\x4d\0\3")
    proxy.send(relayed, source="10.77.0.3", source_port=67)
    assert proxy.learnt == [(MAC, f"10.77.0.{n}") for n in (128, 129, 130, 131)]


def test_host_of_a_routed_network_can_not_have_itself_taken_for_a_machine(proxy: Edge) -> None:
    claim = altered(PLAIN, options={53: REQUEST}, ciaddr=b"\x0a\x63\0\x09")
    proxy.send(claim, source="10.99.0.9")
    where = ON_4011 | {"source": "10.99.0.9"}
    proxy.send(altered(claim, drop=(60,)), **where)
    for ciaddr in (b"\x0a\x63\0\x09", bytes(4)):
        proxy.send(altered(REQUEST_4011, ciaddr=ciaddr), **where)
    assert proxy.learnt == []


def test_only_listed_relays_report_where_a_machine_is(make_edge: MakeEdge) -> None:
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


def test_nothing_is_learnt_from_strangers_from_nonsense_or_from_wishes(proxy: Edge) -> None:
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


def test_machine_without_hardware_hears_nothing_from_a_proxy_and_is_shown_to_the_operator(make_edge: MakeEdge) -> None:
    edge = make_edge(mode=DhcpMode.PROXY)
    for name in (*FIRMWARE, "plain_discover"):
        assert edge.send(CAPTURED[name]) is None
    assert [(event.step, event.mac) for event in edge.events] == [(Step.SEEN, MAC)]
    assert edge.learnt == []


@pytest.mark.parametrize("name", FIRMWARE)
def test_auto_proxy_boots_machines_without_hardware_and_says_what_they_were_told(open_house: Edge, name: str) -> None:
    for _ in range(3):
        assert message_type(open_house.send(CAPTURED[name])) is MessageType.OFFER
    (event,) = open_house.events
    assert (event.step, event.outcome) == (Step.SEEN, Outcome.INFO)
    assert event.message.startswith("seen, not registered: DHCPDISCOVER from ")
    assert ", told to boot: " in event.message
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
def test_request_is_answered_where_it_came_from_with_the_file_and_no_lease(
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
