"""What each client is answered: packets that real clients sent go in, and the reply is read by others' rules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp import codec, options
from edge.dhcp.codec import MessageType
from edge.dhcp.responder import BROADCAST, DhcpSettings, Reply, SettingsError
from edge.journey.events import Outcome, Step

Edge = Any
Hardware = Callable[..., dict[str, Any]]

FIRMWARE_MAC = "52:54:00:12:34:56"
SCRIPT_URL = f"http://10.77.0.1:7080/ipxe/script/{FIRMWARE_MAC}/auto.ipxe"


def read(reply: Reply | None) -> codec.Message:
    assert reply is not None
    return codec.parse(reply.payload)


def kind(reply: Reply | None) -> MessageType:
    return MessageType(read(reply).options[options.MESSAGE_TYPE][0])


def order(payload: bytes) -> list[int]:
    """Option codes in the order of the wire, pads and END included."""
    codes, at = [], 240
    while True:
        codes.append(payload[at])
        if payload[at] == 255:
            return codes
        at += 1 if payload[at] == 0 else 2 + payload[at + 1]


def altered(packet: bytes, *, flags: int | None = None, drop: tuple[int, ...] = (), **fields: Any) -> bytes:
    """A captured packet with other header fields or options (`options` adds, `drop` removes)."""
    message = codec.parse(packet)
    found = {code: value for code, value in message.options.items() if code not in drop} | fields.pop("options", {})
    return codec.build(message._replace(options=found, flags=message.flags if flags is None else flags, **fields))


# --- the rules of the firmware, written anew from its sources --------------------------------------------------------


def edk2_pxe(payload: bytes) -> tuple[str, str, str]:
    """How EDK2's PXE driver takes a DHCP offer (PxeBcParseDhcp4Packet, PxeBcSelectOffer): verdict, server, file.

    It reads the first instance of each option, and for a boot file name without a NUL it writes one behind it, into
    whatever stands there; a second look at the packet (it looks again at the ACK) must find the same options.
    """
    if len(payload) > 1472:
        return "too large", "", ""
    packet = bytearray(payload)

    def first_instances() -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        at = 240
        while at < len(packet) and packet[at] != 255:
            if packet[at] == 0:
                at += 1
                continue
            found.setdefault(packet[at], (at + 2, packet[at + 1]))
            at += 2 + packet[at + 1]
        return found

    found = first_instances()
    value = {code: bytes(packet[at : at + length]) for code, (at, length) in found.items()}
    if 67 in found:
        at, length = found[67]
        if packet[at + length - 1] != 0:
            packet[at + length] = 0
        if first_instances().keys() != found.keys():
            return "destroyed its own packet", "", ""
        file = value[67]
    else:
        file = bytes(packet[108:236])
    name = file.partition(b"\0")[0].decode()
    server = options.dotted(bytes(packet[20:24]) if packet[20] else value[54])
    if packet[16:20] == bytes(4):
        return "proxy", server, name
    pxe = value.get(60, b"").startswith(b"PXEClient")
    vendor: dict[int, bytes] = {}
    if pxe and 43 in value:
        raw, at = value[43], 0
        while at < len(raw) and raw[at] != 255:
            vendor[raw[at]] = raw[at + 2 : at + 2 + raw[at + 1]]
            at += 2 + raw[at + 1]
    if any(tag in vendor for tag in (6, 8, 9, 10)):
        return ("direct boot" if vendor.get(6, b"\0")[0] & 8 and name else "boot menu"), server, name
    if pxe:
        return "asks port 4011", server, name
    return ("direct boot" if name else "nothing to boot"), server, name


def edk2_http(payload: bytes) -> tuple[str, str]:
    """How EDK2's HTTP Boot driver takes an offer (HttpBootParseDhcp4Packet): verdict and URI."""
    found = codec.parse(payload).options
    if not found.get(60, b"").startswith(b"HTTPClient"):
        return "plain DHCP offer", ""
    uri = found.get(67, codec.parse(payload).file).partition(b"\0")[0].decode()
    if not uri.startswith(("http://", "https://")):
        return "no URI", uri
    host = uri.split("/")[2].split(":")[0]
    return ("boots" if options.is_ipv4(host) or 6 in found else "no name server"), uri


def ipxe(payload: bytes, question: bytes) -> tuple[str, str]:
    """How iPXE takes an offer (net/udp/dhcp.c, dhcp_rx): how it goes on, and what it loads."""
    answer, asked = codec.parse(payload), codec.parse(question)
    if (answer.xid, answer.chaddr) != (asked.xid, asked.chaddr) or 54 not in answer.options:
        return "ignored", ""
    if answer.options.get(60, b"").startswith(b"PXEClient"):
        return "counted as a proxy offer", ""
    encapsulated = answer.options.get(175, b"")
    waits = encapsulated[:3] != b"\xb0\x01\x01"
    file = answer.options.get(67, answer.file).decode()
    return ("waits 2 s for a proxy" if waits else "requests at once"), file


# --- firmware ---------------------------------------------------------------------------------------------------


def test_edk2_boots_the_binary_for_its_architecture_from_our_offer_and_ack(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    for name, answer in (("edk2_pxe_discover", MessageType.OFFER), ("edk2_pxe_request", MessageType.ACK)):
        reply = edge.send(captured[name])
        assert kind(reply) is answer
        assert edk2_pxe(reply.payload) == ("direct boot", "10.77.0.1", "snponly.efi")


def test_edk2_oracle_tells_good_offers_from_bad(edge: Edge, captured: dict[str, bytes]) -> None:
    offer = read(edge.send(captured["edk2_pxe_discover"]))
    without_43 = offer._replace(op=2, options={k: v for k, v in offer.options.items() if k != 43})
    assert edk2_pxe(codec.build(without_43))[0] == "asks port 4011"
    bare_name = {**{k: v for k, v in offer.options.items() if k != 67}, 67: b"snponly.efi", 3: b"\1\2\3\4"}
    ending = codec.build(offer._replace(options={67: bare_name.pop(67), **bare_name}))
    assert edk2_pxe(ending)[0] == "destroyed its own packet"


def test_shim_and_u_boot_find_server_and_file_in_the_header(edge: Edge, captured: dict[str, bytes]) -> None:
    offer = read(edge.send(captured["edk2_pxe_discover"]))
    assert options.dotted(offer.siaddr) == "10.77.0.1"
    assert (offer.sname, offer.file) == (b"10.77.0.1", b"snponly.efi")
    assert offer.options[options.TFTP_SERVER_NAME] == b"10.77.0.1"


def test_uefi_http_boot_gets_a_url_of_a_binary_and_its_class_back(edge: Edge, captured: dict[str, bytes]) -> None:
    for name in ("edk2_http_discover", "edk2_http_request"):
        url = f"http://10.77.0.1:7080/ipxe/binary/{FIRMWARE_MAC}/snponly.efi"
        assert edk2_http(edge.send(captured[name]).payload) == ("boots", url)
        assert read(edge.send(captured[name])).file == url.encode()


@pytest.mark.parametrize("name", ["ipxe_bios_discover", "ipxe_bios_request", "ipxe_efi_discover"])
def test_ipxe_gets_its_script_and_does_not_wait_for_a_proxy(edge: Edge, captured: dict[str, bytes], name: str) -> None:
    reply = edge.send(captured[name])
    assert ipxe(reply.payload, captured[name]) == ("requests at once", SCRIPT_URL)
    assert read(reply).file == SCRIPT_URL.encode()


def test_bios_pxe_rom_gets_undionly(edge: Edge, captured: dict[str, bytes]) -> None:
    # The ROM of QEMU is iPXE; a BIOS ROM that is not sends the same without option 175 and user class.
    reply = edge.send(altered(captured["ipxe_bios_discover"], drop=(175, 77)))
    assert edk2_pxe(reply.payload) == ("direct boot", "10.77.0.1", "undionly.kpxe")
    assert edge.messages() == ["DHCPOFFER 10.77.0.58 to x86 BIOS PXE ROM, boot file undionly.kpxe"]


@pytest.mark.parametrize(
    "user_class",
    [b"iPXE", b"\x04iPXE", b"\x03foo\x04iPXE"],
    ids=["raw, as iPXE sends it", "RFC 3004", "RFC 3004, second class"],
)
def test_ipxe_is_known_by_its_user_class_alone(edge: Edge, captured: dict[str, bytes], user_class: bytes) -> None:
    packet = altered(captured["ipxe_bios_discover"], drop=(175,), options={77: user_class})
    assert read(edge.send(packet)).options[67].decode() == SCRIPT_URL


def test_ipxe_with_an_overridden_user_class_is_known_by_option_175_and_does_not_loop(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    packet = altered(captured["ipxe_bios_discover"], options={77: b"PXEROM"})
    assert read(edge.send(packet)).options[67].decode() == SCRIPT_URL


def test_architecture_without_a_binary_gets_its_address_and_the_journey_says_why(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    reply = edge.send(altered(captured["edk2_pxe_discover"], options={93: b"\0\x0b"}))
    answer = read(reply)
    assert options.dotted(answer.yiaddr) == "10.77.0.58"
    assert not {43, 60, 66, 67} & answer.options.keys()
    assert (answer.file, answer.siaddr) == (b"", bytes(4))
    assert edge.events[0].outcome is Outcome.REFUSED
    assert "no iPXE binary for architecture 11 (UEFI ARM 64-bit)" in edge.events[0].message


def test_rom_that_names_several_architectures_gets_the_first_that_has_a_binary(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    reply = edge.send(altered(captured["edk2_pxe_discover"], options={93: b"\0\x0b\0\x07"}))
    assert read(reply).file == b"snponly.efi"


def test_rom_that_names_its_architecture_only_in_the_vendor_class_is_served(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    assert read(edge.send(altered(captured["edk2_pxe_discover"], drop=(93,)))).file == b"snponly.efi"


def test_disabled_netboot_gives_an_address_without_boot_options(
    make_edge: Callable[..., Edge], make_hardware: Hardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.58", disableNetboot=True))
    for name in ("edk2_pxe_discover", "ipxe_bios_discover", "edk2_http_discover"):
        answer = read(edge.send(captured[name]))
        assert options.dotted(answer.yiaddr) == "10.77.0.58"
        assert not {43, 60, 66, 67} & answer.options.keys()
        assert answer.file == answer.sname == b""
    assert {event.outcome for event in edge.events} == {Outcome.REFUSED}
    assert all("disableNetboot is true" in message for message in edge.messages())


def test_mac_that_two_hardware_claim_gets_no_answer_and_both_are_named(
    make_edge: Callable[..., Edge], make_hardware: Hardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(
        make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.58"), make_hardware("lab-2", FIRMWARE_MAC, "10.77.0.59")
    )
    assert edge.send(captured["edk2_pxe_discover"]) is None
    (event,) = edge.events
    assert event.outcome is Outcome.REFUSED
    assert "default/lab-1, default/lab-2" in event.message


def test_operating_system_gets_no_boot_options(os_edge: Edge, captured: dict[str, bytes]) -> None:
    answer = read(os_edge.send(captured["dhclient_discover"]))
    assert not {43, 60, 66, 67, 97, 175} & answer.options.keys()
    assert answer.siaddr == bytes(4)


def test_uuid_comes_back_as_sent_and_one_of_another_shape_costs_no_boot(edge: Edge, captured: dict[str, bytes]) -> None:
    uuid = codec.parse(captured["edk2_pxe_discover"]).options[97]
    assert read(edge.send(captured["edk2_pxe_discover"])).options[97] == uuid
    answer = read(edge.send(altered(captured["edk2_pxe_discover"], options={97: b"\1short"})))
    assert 97 not in answer.options
    assert answer.file == b"snponly.efi"


# --- port 4011 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "port"), [("edk2_pxe_request_4011", 4011), ("ipxe_efi_request_4011", 68)])
def test_boot_server_request_is_answered_where_it_came_from(
    edge: Edge, captured: dict[str, bytes], name: str, port: int
) -> None:
    packet = altered(captured[name], drop=(54,))
    reply = edge.send(packet, source="10.77.0.58", source_port=port, port=4011)
    answer = read(reply)
    assert (reply.address, reply.port) == ("10.77.0.58", port)
    assert kind(reply) is MessageType.ACK
    assert answer.yiaddr == bytes(4)
    assert not {51, 58, 59, 1, 3} & answer.options.keys()
    assert answer.file == (b"snponly.efi" if port == 4011 else SCRIPT_URL.encode())


def test_boot_server_request_for_another_server_or_of_a_stranger_is_not_answered(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    for_another = captured["ipxe_efi_request_4011"]  # names 10.77.0.2
    assert edge.send(for_another, source="10.77.0.58", source_port=68, port=4011) is None
    assert edge.send(captured["edk2_pxe_request_4011"], source="0.0.0.0", source_port=68, port=4011) is None
    assert edge.send(captured["dhclient_discover"], source="10.77.0.9", port=4011) is None


# --- addresses and leases ------------------------------------------------------------------------------------------


def test_every_field_of_the_hardware_reaches_the_client(os_edge: Edge, captured: dict[str, bytes]) -> None:
    reply = os_edge.send(captured["dhclient_discover"])
    found = dict(option[:2] for option in BOOTP(reply.payload)[DHCP].options if isinstance(option, tuple))
    assert BOOTP(reply.payload).yiaddr == "10.77.6.227"
    assert found["subnet_mask"] == "255.255.255.0"
    assert found["broadcast_address"] == "10.77.6.255"
    assert found["router"] == "10.77.0.1"
    assert found["hostname"] == b"lab-2"
    assert found["lease_time"] == 3600
    assert (found["renewal_time"], found["rebinding_time"]) == (1800, 3150)
    assert found["server_id"] == "10.77.6.1"
    raw = read(reply).options
    # Names can't be carried, addresses next to them can.
    assert raw[options.DOMAIN_NAME_SERVER] == bytes((10, 77, 0, 1, 10, 77, 0, 2))
    assert raw[options.NTP_SERVERS] == bytes((10, 77, 0, 3))


def test_request_that_selects_us_is_acknowledged_with_the_same_lease(os_edge: Edge, captured: dict[str, bytes]) -> None:
    for name in ("dhclient_request", "udhcpc_request"):
        reply = os_edge.send(captured[name])
        assert kind(reply) is MessageType.ACK
        assert read(reply).xid == codec.parse(captured[name]).xid
        assert (reply.address, reply.port) == (BROADCAST, 68)
    assert os_edge.messages()[0] == "DHCPACK 10.77.6.227 to operating system"


def test_request_that_selects_another_server_is_left_to_that_server(os_edge: Edge, captured: dict[str, bytes]) -> None:
    packet = altered(captured["dhclient_request"], options={54: b"\x0a\x4d\x06\x02"})
    assert os_edge.send(packet) is None
    assert os_edge.events == []


@pytest.mark.parametrize("selecting", [True, False], ids=["SELECTING", "INIT-REBOOT"])
def test_client_that_asks_for_an_old_address_gets_a_nak(
    os_edge: Edge, captured: dict[str, bytes], selecting: bool
) -> None:
    packet = altered(captured["dhclient_request"], options={50: b"\x0a\x4d\x06\x09"}, drop=() if selecting else (54,))
    reply = os_edge.send(packet)
    answer = read(reply)
    assert kind(reply) is MessageType.NAK
    assert (reply.address, reply.port) == (BROADCAST, 68)
    assert (answer.yiaddr, answer.ciaddr, answer.siaddr) == (bytes(4), bytes(4), bytes(4))
    assert answer.options[options.SERVER_IDENTIFIER] == bytes((10, 77, 6, 1))
    assert options.LEASE_TIME not in answer.options


def test_client_with_a_saved_lease_that_is_right_is_acknowledged_at_once(
    os_edge: Edge, captured: dict[str, bytes]
) -> None:
    assert kind(os_edge.send(altered(captured["dhclient_request"], drop=(54,)))) is MessageType.ACK


def test_renewal_is_answered_to_the_client_and_noted_as_information(os_edge: Edge, captured: dict[str, bytes]) -> None:
    packet = altered(captured["dhclient_request"], drop=(54, 50), ciaddr=bytes((10, 77, 6, 227)))
    reply = os_edge.send(packet, source="10.77.6.227")
    assert kind(reply) is MessageType.ACK
    assert (reply.address, reply.port) == ("10.77.6.227", 68)
    assert read(reply).ciaddr == bytes((10, 77, 6, 227))
    assert os_edge.events[0].outcome is Outcome.INFO


def test_renewal_of_an_address_that_is_no_longer_reserved_gets_a_broadcast_nak(
    os_edge: Edge, captured: dict[str, bytes]
) -> None:
    packet = altered(captured["dhclient_request"], drop=(54, 50), ciaddr=bytes((10, 77, 6, 9)))
    reply = os_edge.send(packet, source="10.77.6.9")
    assert kind(reply) is MessageType.NAK
    assert reply.address == BROADCAST


def test_inform_gets_configuration_but_no_lease(os_edge: Edge, captured: dict[str, bytes]) -> None:
    packet = altered(captured["dhclient_discover"], drop=(50,), options={53: b"\x08"}, ciaddr=bytes((10, 77, 6, 80)))
    reply = os_edge.send(packet, source="10.77.6.80")
    answer = read(reply)
    assert kind(reply) is MessageType.ACK
    assert (reply.address, reply.port) == ("10.77.6.80", 68)
    assert answer.yiaddr == bytes(4)
    assert not {51, 58, 59} & answer.options.keys()
    assert answer.options[options.SUBNET_MASK] == bytes((255, 255, 255, 0))


def test_release_is_noted_and_not_answered(os_edge: Edge, captured: dict[str, bytes]) -> None:
    assert os_edge.send(captured["networkd_release"], source="10.77.6.227") is None
    assert os_edge.messages() == ["DHCPRELEASE of 10.77.6.227"]


def test_decline_is_a_failure_that_the_operator_sees(os_edge: Edge, captured: dict[str, bytes]) -> None:
    packet = altered(captured["dhclient_request"], options={53: b"\x04"})
    assert os_edge.send(packet) is None
    assert os_edge.events[0].outcome is Outcome.FAILED
    assert "another host already uses 10.77.6.227" in os_edge.events[0].message


def test_zero_lease_time_does_not_make_clients_ask_without_end(
    make_edge: Callable[..., Edge],
    make_hardware: Hardware,
    captured: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    obj = make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.58")
    obj["spec"]["networkInterfaces"][FIRMWARE_MAC]["dhcp"]["leaseTimeSeconds"] = 0
    edge = make_edge(obj)
    assert read(edge.send(captured["edk2_pxe_discover"])).options[51] == (86400).to_bytes(4, "big")
    assert "leaseTimeSeconds is 0" in caplog.text


def test_infinite_lease_has_nothing_to_renew(
    make_edge: Callable[..., Edge], make_hardware: Hardware, captured: dict[str, bytes]
) -> None:
    obj = make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.58")
    obj["spec"]["networkInterfaces"][FIRMWARE_MAC]["dhcp"]["leaseTimeSeconds"] = 0xFFFFFFFF
    found = read(make_edge(obj).send(captured["edk2_pxe_discover"])).options
    assert found[51] == b"\xff\xff\xff\xff"
    assert not {58, 59} & found.keys()


# --- relays, addressing, size --------------------------------------------------------------------------------------


def test_offer_to_relay_goes_to_giaddr_port_67(os_edge: Edge, captured: dict[str, bytes]) -> None:
    reply = os_edge.send(captured["perfdhcp_discover"], source="10.77.6.2", source_port=67)
    assert (reply.address, reply.port) == ("10.77.6.2", 67)
    assert read(reply).giaddr == bytes((10, 77, 6, 2))


def test_nak_through_a_relay_tells_it_to_broadcast(os_edge: Edge, captured: dict[str, bytes]) -> None:
    packet = altered(captured["perfdhcp_discover"], options={53: b"\x03", 50: b"\x0a\x4d\x06\x63"})
    reply = os_edge.send(packet, source="10.77.6.2", source_port=67)
    assert kind(reply) is MessageType.NAK
    assert (reply.address, reply.port) == ("10.77.6.2", 67)
    assert read(reply).flags & codec.BROADCAST_FLAG


def test_relay_information_comes_back_unchanged_as_the_last_option(edge: Edge, captured: dict[str, bytes]) -> None:
    information = b"\x01\x04eth7\x05\x04\x0a\x4d\x06\x00"
    # A switch that snoops adds it without being a relay (giaddr 0).
    for giaddr in (bytes((10, 77, 0, 2)), bytes(4)):
        for name in ("edk2_pxe_discover", "ipxe_efi_discover", "edk2_http_request"):
            reply = edge.send(altered(captured[name], giaddr=giaddr, options={82: information}), source="10.77.0.2")
            assert read(reply).options[82] == information
            assert order(reply.payload)[-2:] == [82, 255]


def test_client_that_sent_no_relay_information_gets_none(os_edge: Edge, captured: dict[str, bytes]) -> None:
    assert 82 not in read(os_edge.send(captured["dhclient_discover"])).options


def test_client_identifier_comes_back_and_does_not_decide_who_a_machine_is(
    os_edge: Edge, captured: dict[str, bytes]
) -> None:
    answer = read(os_edge.send(captured["networkd_discover"]))
    assert answer.options[61] == codec.parse(captured["networkd_discover"]).options[61]
    assert answer.yiaddr == read(os_edge.send(captured["dhclient_discover"])).yiaddr


def test_xid_flags_and_hardware_address_are_those_of_the_question(edge: Edge, captured: dict[str, bytes]) -> None:
    for name in ("edk2_pxe_discover", "ipxe_bios_discover"):
        asked, answer = codec.parse(captured[name]), read(edge.send(captured[name]))
        assert (answer.op, answer.hops, answer.secs) == (2, 0, 0)
        assert (answer.xid, answer.flags, answer.chaddr) == (asked.xid, asked.flags, asked.chaddr)


def test_no_reply_is_shorter_than_300_bytes_or_longer_than_the_client_takes(
    make_edge: Callable[..., Edge], make_hardware: Hardware, captured: dict[str, bytes]
) -> None:
    obj = make_hardware("lab-2", "52:54:00:cc:00:01", "10.77.6.227")
    dhcp = obj["spec"]["networkInterfaces"]["52:54:00:cc:00:01"]["dhcp"]
    edge = make_edge(obj, server_ip="10.77.6.1")
    nak = edge.send(altered(captured["dhclient_request"], options={50: bytes(4)}))
    assert kind(nak) is MessageType.NAK
    assert len(nak.payload) == 300
    dhcp["nameservers"] = [f"10.0.0.{n}" for n in range(1, 71)]
    dhcp["timeservers"] = [f"10.0.1.{n}" for n in range(1, 71)]
    edge.inventory.apply(obj)
    large = read(edge.send(altered(captured["udhcpc_discover"], options={57: b"\x05\xdc"})))
    assert len(large.options[6]) == 4 * 63
    small = edge.send(captured["udhcpc_discover"])  # takes 576 bytes
    assert len(small.payload) <= 576 - 28
    assert len(read(small).options[6]) == 4 * 2
    assert read(small).options[options.SUBNET_MASK] == bytes((255, 255, 255, 0))


def test_boot_file_survives_in_a_reply_to_a_client_that_takes_little(edge: Edge, captured: dict[str, bytes]) -> None:
    packet = altered(captured["edk2_pxe_discover"], drop=(57,), options={61: b"\xff" * 255, 82: b"\1\x3c" + bytes(60)})
    reply = edge.send(packet)
    assert len(reply.payload) <= 576 - 28
    assert edk2_pxe(reply.payload)[0] == "direct boot"
    assert len(read(reply).options[82]) == 62


def test_reply_that_can_not_be_made_small_enough_is_refused_with_the_reason(
    edge: Edge, captured: dict[str, bytes]
) -> None:
    assert edge.send(altered(captured["edk2_pxe_discover"], drop=(57,), options={82: bytes(400)})) is None
    assert "the client takes 548" in edge.messages()[0]


def test_server_is_not_led_to_send_to_addresses_that_are_no_hosts(edge: Edge, captured: dict[str, bytes]) -> None:
    for giaddr in (b"\xff\xff\xff\xff", b"\xe0\0\0\1", b"\x7f\0\0\1", b"\0\0\0\1"):
        assert edge.send(altered(captured["edk2_pxe_discover"], giaddr=giaddr)) is None


# --- who is served -------------------------------------------------------------------------------------------------


def test_unregistered_machine_hears_nothing_and_the_operator_gets_a_manifest_once_a_minute(
    make_edge: Callable[..., Edge], captured: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    edge = make_edge()
    with caplog.at_level(logging.WARNING):
        for second in range(0, 59, 4):
            edge.now = 1000.0 + second
            assert edge.send(captured["edk2_pxe_discover"]) is None
    assert len(edge.events) == 1
    event = edge.events[0]
    assert (event.step, event.outcome, event.mac) == (Step.SEEN, Outcome.INFO, FIRMWARE_MAC)
    assert event.message == "seen, not registered: DHCPDISCOVER from UEFI x86-64 PXE ROM"
    assert f'"{FIRMWARE_MAC}":' in str(event.detail["manifest"])
    assert len([record for record in caplog.records if FIRMWARE_MAC in record.getMessage()]) == 1
    edge.now = 1060.0
    edge.send(captured["edk2_pxe_discover"])
    assert len(edge.events) == 2


def test_a_flood_of_invented_machines_fills_neither_log_nor_memory(
    make_edge: Callable[..., Edge], captured: dict[str, bytes]
) -> None:
    edge = make_edge()
    for number in range(5000):
        edge.send(altered(captured["edk2_pxe_discover"], chaddr=b"\x02\0" + number.to_bytes(4, "big")))
    assert len(edge.events) == 600


def test_machine_is_served_as_soon_as_it_is_registered_and_no_longer_when_it_is_not(
    make_edge: Callable[..., Edge], make_hardware: Hardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge()
    obj = make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.58")
    assert edge.send(captured["edk2_pxe_discover"]) is None
    edge.inventory.apply(obj)
    assert options.dotted(read(edge.send(captured["edk2_pxe_discover"])).yiaddr) == "10.77.0.58"
    edge.inventory.apply(make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.59"))
    assert options.dotted(read(edge.send(captured["edk2_pxe_discover"])).yiaddr) == "10.77.0.59"
    edge.inventory.remove(obj)
    assert edge.send(captured["edk2_pxe_discover"]) is None


@pytest.mark.parametrize(
    ("ip", "interface", "reason"),
    [
        ("10.77.0.58", {"disableDhcp": True}, "disableDhcp is true"),
        (None, {}, "dhcp.ip is not set"),
        ("10.77.0.1", {}, "10.77.0.1 is this server's own address"),
        ("224.0.0.1", {}, "224.0.0.1 is no address of a host"),
    ],
)
def test_machine_that_is_not_to_be_served_hears_nothing_and_the_journey_says_why(
    make_edge: Callable[..., Edge],
    make_hardware: Hardware,
    captured: dict[str, bytes],
    ip: str | None,
    interface: dict[str, Any],
    reason: str,
) -> None:
    edge = make_edge(make_hardware("lab-1", FIRMWARE_MAC, ip, **interface))
    for name in ("edk2_pxe_discover", "edk2_pxe_request", "ipxe_bios_discover"):
        assert edge.send(captured[name]) is None
    assert len(edge.events) == 1
    assert edge.events[0].outcome is Outcome.REFUSED
    assert edge.events[0].message.startswith("no DHCP answer: Hardware default/lab-1: spec.networkInterfaces[")
    assert reason in edge.events[0].message


def test_address_that_two_hardware_claim_is_given_to_neither(
    make_edge: Callable[..., Edge], make_hardware: Hardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", FIRMWARE_MAC, "10.77.0.58"))
    edge.inventory.apply(make_hardware("lab-9", "52:54:00:00:00:09", "10.77.0.58"))
    assert edge.send(captured["edk2_pxe_discover"]) is None
    assert edge.messages() == ["no DHCP answer: IP 10.77.0.58 is claimed by several Hardware, so none is served"]


def test_replies_of_other_servers_and_foreign_links_are_passed_over(edge: Edge, captured: dict[str, bytes]) -> None:
    for change in ({"op": 2}, {"htype": 32}, {"chaddr": b"12345678"}, {"options": {53: b"\x02"}}):
        assert edge.send(altered(captured["edk2_pxe_discover"], **change)) is None
    assert edge.events == []


@given(st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_packet_raises_and_no_garbage_is_answered(
    edge: Edge, captured: dict[str, bytes], data: st.DataObject
) -> None:
    packet = bytearray(captured[data.draw(st.sampled_from(sorted(captured)))])
    for _ in range(data.draw(st.integers(0, 6))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packet[: data.draw(st.integers(0, len(packet)))])
    reply = edge.send(cut, source="10.77.0.58", port=data.draw(st.sampled_from([67, 4011])))
    if reply is not None:
        answer = codec.parse(reply.payload)
        assert answer.chaddr == bytes.fromhex(FIRMWARE_MAC.replace(":", ""))
        assert 300 <= len(reply.payload) <= 1472
        BOOTP(reply.payload)
    assert edge.send(data.draw(st.binary(max_size=600))) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server_ip", "edge.example.org"),
        ("tftp_ip", "0.0.0.0"),
        ("http_base_url", "172.31.0.1:7080"),
        ("http_base_url", "http://172.31.0.1:7080/"),
        ("http_base_url", "http://" + "x" * 150),
    ],
)
def test_settings_that_can_not_work_are_refused_at_start(field: str, value: str) -> None:
    good = {"server_ip": "172.31.0.1", "tftp_ip": "172.31.0.1", "http_base_url": "http://172.31.0.1:7080"}
    with pytest.raises(SettingsError, match=field):
        DhcpSettings(**{**good, field: value})
