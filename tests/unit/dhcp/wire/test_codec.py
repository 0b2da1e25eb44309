"""The wire format of DHCPv4: scapy's dissector is the independent oracle, hypothesis the adversary."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import ParseError

HEADER = bytes((1, 1, 6, 0)) + b"\xde\xad\xbe\xef" + bytes(20) + bytes.fromhex("525400123456").ljust(16, b"\0")
BARE = HEADER + bytes(192) + codec.MAGIC_COOKIE


def message(**fields: object) -> Message:
    plain: dict[str, object] = {
        "op": 1, "htype": 1, "hops": 0, "xid": b"\1\2\3\4", "secs": 0, "flags": 0,
        "ciaddr": bytes(4), "yiaddr": bytes(4), "siaddr": bytes(4), "giaddr": bytes(4),
        "chaddr": bytes.fromhex("525400123456"), "sname": b"", "file": b"", "options": {53: b"\1"},
    }  # fmt: skip
    return Message(**{**plain, **fields})  # type: ignore[arg-type]  # the table above has every field


def test_every_captured_packet_reads_the_same_as_scapy_reads_it(captured: dict[str, bytes]) -> None:
    for name, packet in captured.items():
        ours, theirs = codec.parse(packet), BOOTP(packet)
        assert (ours.op, ours.htype, ours.hops, ours.secs) == (theirs.op, theirs.htype, theirs.hops, theirs.secs), name
        assert int.from_bytes(ours.xid, "big") == theirs.xid
        assert ours.flags == theirs.flags.value
        for field in ("ciaddr", "yiaddr", "siaddr", "giaddr"):
            assert options.dotted(getattr(ours, field)) == getattr(theirs, field)
        assert ours.chaddr == theirs.chaddr[:6]
        kinds = [value for option in theirs[DHCP].options if option[0] == "message-type" for value in option[1:]]
        assert list(ours.options[options.MESSAGE_TYPE]) == kinds


@given(st.binary(max_size=700))
@example(b"")
@example(BARE)
@example(BARE + b"\x35")
@example(BARE + b"\x34\x01\x03")
@settings(max_examples=300)
def test_garbage_from_the_network_raises_nothing_but_parse_error(packet: bytes) -> None:
    for candidate in (packet, BARE + packet, HEADER + packet.ljust(192, b"\0")[:192] + BARE[-4:] + b"\x34\x01\x03\xff"):
        with suppress(ParseError):
            codec.parse(candidate)


@given(st.data())
def test_a_damaged_real_packet_raises_nothing_but_parse_error(captured: dict[str, bytes], data: st.DataObject) -> None:
    packet = bytearray(captured[data.draw(st.sampled_from(sorted(captured)))])
    for _ in range(data.draw(st.integers(1, 8))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ParseError):
        codec.parse(bytes(packet[: data.draw(st.integers(0, len(packet)))]))


@given(st.dictionaries(st.integers(1, 254).filter(lambda code: code != options.OVERLOAD), st.binary(max_size=600)))
def test_what_is_built_reads_back_with_long_options_split_and_joined(values: dict[int, bytes]) -> None:
    built = codec.build(message(options=values))
    if len(built) <= codec.MAX_PACKET_BYTES:
        assert codec.parse(built) == message(options=values)
    assert len(built) >= codec.MIN_PACKET_BYTES


def test_scapy_reads_what_is_built() -> None:
    built = codec.build(message(options={53: b"\1", 61: b"\1abcdef", 82: b"\1\3foo"}, sname=b"host", file=b"f.efi"))
    theirs = BOOTP(built)
    assert theirs.sname.rstrip(b"\0") == b"host"
    assert theirs.file.rstrip(b"\0") == b"f.efi"
    read = [option[0] for option in theirs[DHCP].options if isinstance(option, tuple)]
    assert read == ["message-type", "client_id", "relay_agent_information"]


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        (BARE[:-1], "less than a DHCP header"),
        (BARE + bytes(codec.MAX_PACKET_BYTES), "longer than"),
        (BARE[:-4] + b"\0\0\0\0", "magic cookie"),
        (BARE[:2] + b"\x11" + BARE[3:], "hardware address of 17 bytes"),
        (BARE + b"\x0c", "option 12 in the options field is cut off"),
        (BARE + b"\x0c\x05abc", "option 12 in the options field says 5 bytes, 3 are left"),
        (BARE + b"\x34\x01\x04\xff", "option 52 (overload) is 04"),
        (BARE + b"\x34\x00\xff", "option 52 (overload) is empty"),
    ],
)
def test_a_bad_packet_is_refused_with_the_reason(packet: bytes, complaint: str) -> None:
    with pytest.raises(ParseError, match=complaint.replace("(", r"\(").replace(")", r"\)")):
        codec.parse(packet)


def test_an_option_in_an_overloaded_field_that_lies_about_its_length_is_refused() -> None:
    packet = bytearray(BARE + b"\x34\x01\x01\xff")
    packet[108 + 126 : 108 + 128] = b"\x0c\x40"
    packet[108 : 108 + 126] = bytes(126)
    with pytest.raises(ParseError, match="option 12 in the field file says 64 bytes, 0 are left"):
        codec.parse(bytes(packet))


def test_options_in_overloaded_fields_are_joined_in_the_order_options_file_sname() -> None:
    packet = bytearray(BARE + b"\x34\x01\x03" + b"\x0c\x01a" + b"\xff")
    packet[108:112] = b"\x0c\x01b\xff"
    packet[44:48] = b"\x0c\x01c\xff"
    parsed = codec.parse(bytes(packet))
    assert parsed.options[options.HOST_NAME] == b"abc"
    assert (parsed.sname, parsed.file) == (b"", b"")


def test_file_is_not_read_as_options_where_only_sname_is_overloaded() -> None:
    packet = bytearray(BARE + b"\x34\x01\x02\xff")
    packet[108:113] = b"a.efi"
    assert codec.parse(bytes(packet)).file == b"a.efi"


def test_firmware_that_forgets_the_end_option_is_understood() -> None:
    assert codec.parse(BARE + b"\x35\x01\x01").options == {53: b"\1"}


def test_a_thousand_tiny_instances_of_one_option_are_joined_in_time() -> None:
    parsed = codec.parse(BARE + b"\x0c\x01x" * 1200)
    assert parsed.options[12] == b"x" * 1200


@pytest.mark.parametrize(
    "field", [{"sname": b"x" * 65}, {"file": b"x" * 129}, {"options": {0: b""}}, {"options": {255: b""}}]
)
def test_what_does_not_fit_is_not_built(field: dict[str, object]) -> None:
    with pytest.raises(options.OptionError):
        codec.build(message(**field))


@pytest.mark.parametrize("address", ["", "1.2.3", "1.2.3.4.5", "256.1.1.1", "a.b.c.d", "1.2.3.-4", "١.2.3.4", "1..2.3"])
def test_what_is_no_address_is_no_option_value(address: str) -> None:
    assert not options.is_ipv4(address)
    with pytest.raises(options.OptionError, match="is not an IPv4 address"):
        options.ipv4(address)


@given(st.integers(0, 2**32 - 1))
def test_addresses_survive_the_way_there_and_back(number: int) -> None:
    assert options.ipv4(options.dotted(struct.pack("!I", number))) == struct.pack("!I", number)


def test_message_types_are_those_of_the_rfc() -> None:
    assert [kind.name for kind in MessageType] == [
        "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM",
    ]  # fmt: skip
