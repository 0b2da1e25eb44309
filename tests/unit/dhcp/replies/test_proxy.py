"""ProxyDHCP: what to boot, beside another server's lease."""

from __future__ import annotations

import pytest

from edge.dhcp.datagram import BROADCAST
from edge.dhcp.wire import MessageType, codec, options
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
FIRMWARE = ["edk2_pxe_discover", "edk2_http_discover", "ipxe_bios_discover", "ipxe_efi_discover"]


@pytest.fixture
def proxy(make_edge: MakeEdge, make_hardware: MakeHardware) -> Edge:
    return make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), mode=DhcpMode.PROXY)


@pytest.fixture
def open_house(make_edge: MakeEdge) -> Edge:
    return make_edge(mode=DhcpMode.AUTO_PROXY)


@pytest.mark.parametrize("name", FIRMWARE)
def test_offer_names_class_server_and_file_and_no_address(
    proxy: Edge, wire: Wire, captured: dict[str, bytes], name: str
) -> None:
    reply = proxy.send(captured[name])
    found, asked = wire.read(reply), codec.parse(captured[name])
    assert (reply.address, reply.port, reply.ethernet) == (BROADCAST, 68, b"")
    assert (found.yiaddr, found.ciaddr, found.siaddr) == (bytes(4), bytes(4), b"\x0a\x4d\0\1")
    assert found.options[54] == b"\x0a\x4d\0\1"
    assert found.options[60] == (b"HTTPClient" if "http" in name else b"PXEClient")
    assert found.options[97] == asked.options[97]
    assert found.options.get(61) == asked.options.get(61)
    assert found.options[67].rstrip(b"\0") == found.file
    assert wire.order(reply.payload).count(60) == 1
    if "pxe" in name and "ipxe" not in name:
        assert found.file == b"snponly.efi"
        assert options.suboptions(found.options[43]) == {6: b"\x08"}
        assert found.sname == found.options[66] == b"10.77.0.1"
    elif "ipxe" in name:
        assert found.file == f"http://10.77.0.1:7080/ipxe/script/{MAC}/auto.ipxe".encode()


def test_other_server_is_never_spoken_over(proxy: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    for name in ("edk2_pxe_request", "ipxe_bios_request", "edk2_http_request"):
        for server in (b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"):
            for kind in (3, 4, 7, 8):
                packet = wire.altered(captured[name], options={53: bytes((kind,)), 54: server})
                assert proxy.send(packet, source="10.77.0.58") is None
        assert proxy.send(wire.altered(captured[name], drop=(54,), options={50: b"\x0a\x4d\0\x63"})) is None
    assert proxy.send(captured["plain_discover"]) is None
    assert proxy.quarantined == []


def test_who_has_which_address_is_learnt_from_what_machines_tell_the_other_server(
    proxy: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    other = {54: b"\x0a\x4d\0\2"}
    proxy.send(wire.altered(captured["edk2_pxe_request"], options={**other, 50: b"\x0a\x4d\0\x80"}))
    proxy.send(wire.altered(captured["plain_discover"], options={53: b"\3", 50: b"\x0a\x4d\0\x81"}))  # INIT-REBOOT
    proxy.send(wire.altered(captured["plain_discover"], options={53: b"\3"}, ciaddr=b"\x0a\x4d\0\x82"))  # renewal
    relayed = wire.altered(
        captured["plain_discover"], options={53: b"\3", 50: b"\x0a\x4d\0\x83"}, giaddr=b"\x0a\x4d\0\3"
    )
    proxy.send(relayed, source="10.77.0.3", source_port=67)
    assert proxy.learnt == [(MAC, f"10.77.0.{n}") for n in (128, 129, 130, 131)]


def test_host_of_a_routed_network_can_not_have_itself_taken_for_a_machine(
    proxy: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    claim = wire.altered(captured["plain_discover"], options={53: b"\3"}, ciaddr=b"\x0a\x63\0\x09")
    proxy.send(claim, source="10.99.0.9")
    proxy.send(wire.altered(claim, drop=(60,)), source="10.99.0.9", source_port=4011, port=4011)
    for ciaddr in (b"\x0a\x63\0\x09", bytes(4)):
        packet = wire.altered(captured["edk2_pxe_request_4011"], ciaddr=ciaddr)
        proxy.send(packet, source="10.99.0.9", source_port=4011, port=4011)
    assert proxy.learnt == []


def test_only_listed_relays_report_where_a_machine_is(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    """Without --relays, a host of a routed network can name itself as a relay."""
    hardware = make_hardware("lab-1", MAC, "10.77.0.58")
    proxy = make_edge(hardware, mode=DhcpMode.PROXY, relays="192.0.2.9")
    options = {53: b"\3", 50: b"\x0a\x63\0\x09"}
    claim = wire.altered(captured["plain_discover"], options=options, giaddr=b"\x0a\x63\0\x08")
    for _ in range(20):
        proxy.send(claim, source="10.99.0.8", source_port=67)
    assert proxy.learnt == []
    (line,) = proxy.messages()
    assert (
        line == "that it has 10.99.0.9 is not believed: the packet comes from 10.99.0.8, which --relays does not name"
    )
    proxy.send(claim, source="192.0.2.9", source_port=67)
    assert proxy.learnt == [(MAC, "10.99.0.9")]
    proxy.send(wire.altered(claim, giaddr=bytes(4)))
    assert len(proxy.learnt) == 2, "on the link no relay is needed"


def test_nothing_is_learnt_from_strangers_from_nonsense_or_from_wishes(
    proxy: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    request = wire.altered(captured["edk2_pxe_request"], options={54: b"\x0a\x4d\0\2"})
    proxy.send(wire.altered(request, chaddr=b"\2\0\0\0\0\1"))
    proxy.send(wire.altered(request, options={50: b"\xe0\0\0\1"}))
    proxy.send(wire.altered(request, options={50: b"\x0a"}))
    proxy.send(wire.altered(request, ciaddr=b"\x7f\0\0\1"))
    proxy.send(wire.altered(request, options={53: b"\1"}))
    assert proxy.learnt == []


def test_reservation_mode_learns_nothing(edge: Edge, captured: dict[str, bytes]) -> None:
    edge.send(captured["edk2_pxe_request"])
    edge.send(captured["edk2_pxe_request_4011"], source="10.77.0.58", source_port=4011, port=4011)
    assert edge.learnt == []


def test_client_that_takes_the_proxy_for_its_server_is_reported_once_a_minute(
    proxy: Edge, captured: dict[str, bytes]
) -> None:
    for _ in range(3):
        assert proxy.send(captured["edk2_pxe_request"]) is None
    assert proxy.learnt == []
    assert [event.outcome for event in proxy.events] == [Outcome.FAILED]
    assert "is there no DHCP server on its network?" in proxy.messages()[0]


@pytest.mark.parametrize(("name", "port"), [("edk2_pxe_request_4011", 4011), ("ipxe_efi_request_4011", 68)])
def test_client_that_asks_on_port_4011_gets_its_file_there(
    proxy: Edge, wire: Wire, captured: dict[str, bytes], name: str, port: int
) -> None:
    for_another = captured["ipxe_efi_request_4011"]  # names 10.77.0.2
    assert proxy.send(for_another, source="10.77.0.58", source_port=68, port=4011) is None
    packet = wire.altered(captured[name], drop=(54,))
    reply = proxy.send(packet, source="10.77.0.58", source_port=port, port=4011)
    found = wire.read(reply)
    assert (reply.address, reply.port) == ("10.77.0.58", port)
    assert found.options[53] == b"\5"
    assert found.options[60] == b"PXEClient"
    assert found.yiaddr == bytes(4)
    assert found.file.endswith(b".efi" if port == 4011 else b"auto.ipxe")


def test_discover_on_port_4011_is_nobodys(proxy: Edge, captured: dict[str, bytes]) -> None:
    assert proxy.send(captured["edk2_pxe_discover"], source="10.77.0.58", port=4011) is None


def test_offer_through_a_relay_goes_to_the_relay_and_says_broadcast(
    proxy: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    relay = b"\x0a\x4d\0\3"
    packet = wire.altered(captured["ipxe_efi_discover"], giaddr=relay, options={82: b"\1\1x\x0b\4" + relay})
    reply = proxy.send(packet)
    assert (reply.address, reply.port) == ("10.77.0.3", 67)
    found = wire.read(reply)
    assert found.flags & codec.BROADCAST_FLAG
    assert found.options[54] == relay
    assert wire.order(reply.payload)[-2:] == [82, 255]


def test_machine_without_hardware_hears_nothing_from_a_proxy_and_is_shown_to_the_operator(
    make_edge: MakeEdge, captured: dict[str, bytes]
) -> None:
    edge = make_edge(mode=DhcpMode.PROXY)
    for name in (*FIRMWARE, "plain_discover"):
        assert edge.send(captured[name]) is None
    assert [(event.step, event.mac) for event in edge.events] == [(Step.SEEN, MAC)]
    assert edge.learnt == []


@pytest.mark.parametrize("name", FIRMWARE)
def test_auto_proxy_boots_machines_without_hardware_and_says_what_they_were_told(
    open_house: Edge, wire: Wire, captured: dict[str, bytes], name: str
) -> None:
    for _ in range(3):
        assert wire.kind(open_house.send(captured[name])) is MessageType.OFFER
    (event,) = open_house.events
    assert (event.step, event.outcome) == (Step.SEEN, Outcome.INFO)
    assert event.message.startswith("seen, not registered: DHCPDISCOVER from ")
    assert ", told to boot: " in event.message
    open_house.send(wire.altered(captured["edk2_pxe_request"], options={54: b"\x0a\x4d\0\2"}))
    assert open_house.learnt == [(MAC, "10.77.0.58")]


def test_auto_proxy_leaves_operating_systems_alone(open_house: Edge, captured: dict[str, bytes]) -> None:
    assert open_house.send(captured["plain_discover"]) is None
    assert open_house.events == []


def test_flood_of_invented_machines_is_answered_but_fills_no_journey(
    open_house: Edge, captured: dict[str, bytes]
) -> None:
    packet = captured["edk2_pxe_discover"]
    for number in range(1500):
        assert open_house.send(packet[:28] + b"\x02\0" + number.to_bytes(4, "big") + packet[34:]) is not None
    assert len(open_house.events) == 600
    assert {event.step for event in open_house.events} == {Step.SEEN}


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_registered_machine_follows_its_hardware(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes], mode: DhcpMode
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, None, disableNetboot=True), mode=mode)
    rom = wire.read(edge.send(captured["edk2_pxe_discover"]))
    assert rom.file == b""
    assert options.suboptions(rom.options[43]).get(6) != b"\x08"
    # iPXE gets its script, which shows the reason.
    script = wire.read(edge.send(captured["ipxe_efi_discover"]))
    assert script.file.endswith(b"auto.ipxe")
    assert script.options[60] == b"PXEClient"
    assert {event.outcome for event in edge.events} == {Outcome.REFUSED}
    assert all("disableNetboot is true" in message for message in edge.messages())
    edge.inventory.apply(make_hardware("lab-1", MAC, None, disableDhcp=True))
    edge.events.clear()
    for _ in range(2):
        assert edge.send(captured["edk2_pxe_discover"]) is None
        assert edge.send(captured["ipxe_efi_discover"]) is None
        assert edge.send(captured["edk2_pxe_request_4011"], source="10.77.0.58", port=4011) is None
    assert len(edge.events) == 1
    assert "disableDhcp is true" in edge.messages()[0]


def test_machine_without_an_address_in_its_hardware_boots(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, None), mode=DhcpMode.PROXY)
    assert wire.read(edge.send(captured["edk2_pxe_discover"])).file == b"snponly.efi"
    assert edge.messages() == ["ProxyDHCP offer to UEFI x86-64 PXE ROM, boot file snponly.efi"]


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_mac_that_two_hardware_claim_is_nobodys(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes], mode: DhcpMode
) -> None:
    edge = make_edge(make_hardware("a", MAC, "10.77.0.58"), make_hardware("b", MAC, "10.77.0.59"), mode=mode)
    assert edge.send(captured["edk2_pxe_discover"]) is None
    assert "claimed by several Hardware: default/a, default/b" in edge.messages()[0]


def test_architecture_without_a_binary_is_told_so_that_it_goes_on(
    proxy: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    reply = proxy.send(wire.altered(captured["edk2_pxe_discover"], options={93: b"\0\x0b"}))
    assert wire.read(reply).file == b""
    assert "no iPXE binary for architecture 11" in proxy.messages()[0]
    assert proxy.events[0].outcome is Outcome.REFUSED


def test_offer_that_can_not_be_made_small_enough_is_refused_with_the_reason(
    proxy: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = wire.altered(captured["edk2_pxe_discover"], drop=(57,), options={82: b"\1\xc8" + bytes(200) + bytes(200)})
    assert proxy.send(packet) is None
    assert "the client takes 548" in proxy.messages()[0]
