"""The wire format, also of hostile packets: scapy is the independent oracle, hypothesis the adversary."""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import ParseError
from edge.dhcp.wire.frames import HEADERS_BYTES, Framer
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import CAPTURED, PXE_DISCOVER, Edge, MakeEdge, altered, lab, message_type

CHADDR = bytes.fromhex("525400123456")
HEADER = bytes((1, 1, 6, 0)) + b"\xde\xad\xbe\xef" + bytes(20) + CHADDR.ljust(16, b"\0")
BARE = HEADER + bytes(192) + codec.MAGIC_COOKIE
OVERLOADED = HEADER + bytes(64 + 126) + b"\x0c\x40" + codec.MAGIC_COOKIE + b"\x34\x01\x01\xff"


def message(**fields: object) -> Message:
    zero = dict.fromkeys(("ciaddr", "yiaddr", "siaddr", "giaddr"), bytes(4))
    numbers = {"op": 1, "htype": 1, "hops": 0, "xid": b"\1\2\3\4", "secs": 0, "flags": 0}
    rest = {"chaddr": CHADDR, "sname": b"", "file": b"", "options": {53: b"\1"}, "mac": CHADDR}
    return Message(**{**numbers, **zero, **rest, **fields})


@given(st.binary(max_size=700))
@example(b"")
@example(BARE)
@example(BARE + b"\x35")
@example(BARE + b"\x34\x01\x03")
@settings(max_examples=300)
def test_garbage_from_the_network_raises_nothing_but_parse_error(packet: bytes) -> None:
    for candidate in (packet, BARE + packet, HEADER + packet.ljust(192, b"\0")[:192] + BARE[-4:] + b"\x34\x01\x03\xff"):
        with suppress(ParseError):
            assert codec.parse(candidate).op == candidate[0]


@given(st.dictionaries(st.integers(1, 254).filter(lambda code: code != options.OVERLOAD), st.binary(max_size=600)))
def test_what_is_built_reads_back_with_long_options_split_and_joined(values: dict[int, bytes]) -> None:
    built = codec.build(message(options=values))
    if len(built) <= codec.MAX_PACKET_BYTES:
        assert codec.parse(built) == message(options=values)
    assert len(built) >= codec.MIN_PACKET_BYTES


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
        (OVERLOADED, "option 12 in the field file says 64 bytes, 0 are left"),
    ],
)
def test_a_bad_packet_is_refused_with_the_reason(packet: bytes, complaint: str) -> None:
    with pytest.raises(ParseError, match=re.escape(complaint)):
        codec.parse(packet)


def overloaded(before: bytes, file: bytes = b"", sname: bytes = b"") -> bytes:
    """Return a packet with these options, and what is in the fields `file` and `sname`."""
    return HEADER + sname.ljust(64, b"\0") + file.ljust(128, b"\0") + codec.MAGIC_COOKIE + before


def test_options_in_overloaded_fields_are_joined_in_the_order_options_file_sname() -> None:
    packet = overloaded(b"\x34\x01\x03\x0c\x01a\xff", b"\x0c\x01b\xff", b"\x0c\x01c\xff")
    parsed = codec.parse(packet)
    assert (parsed.options[options.HOST_NAME], parsed.sname, parsed.file) == (b"abc", b"", b"")
    assert codec.parse(overloaded(b"\x34\x01\x02\xff", b"a.efi")).file == b"a.efi", "only sname is overloaded"


def test_missing_end_option_is_accepted() -> None:
    assert codec.parse(BARE + b"\x35\x01\x01").options == {53: b"\1"}


def test_a_thousand_tiny_instances_of_one_option_are_joined() -> None:
    assert codec.parse(BARE + b"\x0c\x01x" * 1200).options[12] == b"x" * 1200


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


# --- frames made by hand must be what the kernel would have sent ------------------------------------------------------

OURS, THEIRS = bytes.fromhex("0200000000aa"), bytes.fromhex("525400cc0001")
SERVER, CLIENT = bytes((10, 77, 6, 1)), bytes((10, 77, 6, 50))
address = st.binary(min_size=4, max_size=4)
port = st.integers(0, 65535)


def test_frame_goes_to_the_machine_comes_from_us_and_is_whole() -> None:
    frame = Ether(Framer(OURS, SERVER, 67).frame(bytes(300), THEIRS, CLIENT, 68))
    assert (frame.src, frame.dst, frame.type) == ("02:00:00:00:00:aa", "52:54:00:cc:00:01", 0x0800)
    assert (frame[IP].src, frame[IP].dst, frame[IP].proto) == ("10.77.6.1", "10.77.6.50", 17)
    assert (frame[UDP].sport, frame[UDP].dport, bytes(frame[UDP].payload)) == (67, 68, bytes(300))
    # Identification 0 means nothing without don't-fragment (RFC 6864 section 4.1).
    assert (frame[IP].flags, frame[IP].id, frame[IP].ttl, frame[IP].ihl) == ("DF", 0, 64, 5)
    assert (frame[IP].len, frame[UDP].len, len(frame)) == (328, 308, HEADERS_BYTES + 300)


@given(st.binary(max_size=600), address, address, port, port)
@settings(max_examples=300, deadline=None)
def test_checksums_are_those_that_the_client_computes(
    payload: bytes, source: bytes, destination: bytes, source_port: int, destination_port: int
) -> None:
    frame = Framer(OURS, source, source_port).frame(payload, THEIRS, destination, destination_port)
    rebuilt = Ether(frame)
    del rebuilt[IP].chksum
    del rebuilt[UDP].chksum
    assert bytes(rebuilt) == frame


@pytest.mark.parametrize("length", [2, 3])
def test_checksum_that_comes_out_as_zero_is_not_mistaken_for_none(length: int) -> None:
    # RFC 768: an all-zero checksum means that the sender made none, so all ones are sent for it.
    framer = Framer(OURS, SERVER, 67)
    payloads = (word.to_bytes(2, "big") + bytes(length - 2) for word in range(65536))
    seen = {framer.frame(payload, THEIRS, CLIENT, 68)[40:42] for payload in payloads}
    assert b"\0\0" not in seen
    assert b"\xff\xff" in seen


def test_ip_checksum_of_a_header_that_sums_to_nothing_is_zero() -> None:
    # 0xffff would be the same number to an adder, but not to a receiver that computes and compares.
    framer = Framer(OURS, SERVER, 67)
    destinations = (b"\x0a\0" + host.to_bytes(2, "big") for host in range(65536))
    sums = {framer.frame(b"", THEIRS, destination, 68)[24:26] for destination in destinations}
    assert b"\0\0" in sums
    assert b"\xff\xff" not in sums


# --- nothing that anybody sends raises, and other programs read our answers as meant ----------------------------------

FIXTURES = [HealthCheck.function_scoped_fixture]


@pytest.fixture(params=list(DhcpMode)[:3])
def any_edge(request: pytest.FixtureRequest, make_edge: MakeEdge) -> Edge:
    return make_edge(lab(), mode=request.param)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=FIXTURES)
def test_no_packet_raises_and_no_garbage_is_answered(any_edge: Edge, data: st.DataObject) -> None:
    packet = bytearray(CAPTURED[data.draw(st.sampled_from(sorted(CAPTURED)))])
    for _ in range(data.draw(st.integers(0, 6))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packet[: data.draw(st.integers(0, len(packet)))])
    reply = any_edge.send(cut, source="10.77.0.58", port=data.draw(st.sampled_from([67, 4011])))
    if reply is not None:
        answer, asked = codec.parse(reply.payload), codec.parse(cut)
        assert (answer.chaddr, answer.xid, answer.giaddr) == (asked.chaddr, asked.xid, asked.giaddr)
        assert answer.op == 2
        assert answer.options[53][0] in (2, 5, 6)
        assert answer.yiaddr in (bytes(4), b"\x0a\x4d\0\x3a")
        assert 300 <= len(reply.payload) <= 1472
        BOOTP(reply.payload)
    assert any_edge.send(data.draw(st.binary(max_size=600))) is None


@given(junk=st.binary(max_size=400), overload=st.sampled_from([b"", b"\x34\1\1", b"\x34\1\2", b"\x34\1\3"]))
@settings(max_examples=150, deadline=None, suppress_health_check=FIXTURES)
def test_options_with_wrong_lengths_are_never_answered(edge: Edge, junk: bytes, overload: bytes) -> None:
    head = PXE_DISCOVER[:44] + junk[:192].ljust(192, b"\0") + codec.MAGIC_COOKIE
    reply = edge.send(head + b"\x35\1\1" + overload + junk + b"\xff")
    if reply is not None:
        assert codec.parse(reply.payload).yiaddr == b"\x0a\x4d\0\x3a"


def test_overloaded_fields_that_overload_again_are_read_once(edge: Edge) -> None:
    packet = overloaded(b"\x35\1\1\x34\1\3\xff", b"\x34\1\3" * 40, b"\x34\1\3" * 20)
    assert message_type(edge.send(packet)) is MessageType.OFFER


def test_packet_full_of_options_is_parsed_in_linear_time(edge: Edge) -> None:
    for body in (b"\x0c\0" * 1900, b"\x0c\1x" * 1200, b"\0" * 3800, b"\x52\2\1\0" * 900, b"\x4d\2\1x" * 900):
        edge.send(PXE_DISCOVER[:240] + b"\x35\1\1" + body + b"\xff")
    assert edge.send(PXE_DISCOVER[:240] + b"\x35\1\1" + bytes(4096)) is None


_ADDRESS = st.integers(0, 2**32 - 1).map(lambda number: ".".join(map(str, struct.pack("!I", number))))
_OPTIONS = st.fixed_dictionaries(
    {"message-type": st.sampled_from(["discover", "request", "decline", "release", "inform"])},
    optional={
        "server_id": _ADDRESS,
        "requested_addr": _ADDRESS,
        "hostname": st.text("abc-", min_size=1, max_size=60),
        "max_dhcp_size": st.integers(0, 65535),
        "vendor_class_id": st.binary(min_size=1, max_size=40),
        "client_id": st.binary(min_size=1, max_size=60),
        "param_req_list": st.lists(st.integers(1, 254), min_size=1, max_size=40),
        "relay_agent_information": st.binary(min_size=1, max_size=90),
    },
)


@given(fields=_OPTIONS, giaddr=_ADDRESS, ciaddr=_ADDRESS, xid=st.integers(0, 2**32 - 1), flags=st.integers(0, 65535))
@settings(max_examples=150, deadline=None)
def test_packets_of_scapy_parse_to_the_same_fields(
    fields: dict[str, Any], giaddr: str, ciaddr: str, xid: int, flags: int
) -> None:
    kinds = {"discover": 1, "request": 3, "decline": 4, "release": 7, "inform": 8}
    options = [(name, *value) if name == "param_req_list" else (name, value) for name, value in fields.items()]
    bootp = BOOTP(op=1, chaddr=CHADDR, giaddr=giaddr, ciaddr=ciaddr, xid=xid, flags=flags)
    read = codec.parse(bytes(bootp / DHCP(options=[*options, "end"])))
    assert (read.xid, read.flags) == (xid.to_bytes(4, "big"), flags)
    assert (codec.options.dotted(read.giaddr), codec.options.dotted(read.ciaddr)) == (giaddr, ciaddr)
    written = {
        "message-type": (53, lambda value: bytes((kinds[value],))),
        "server_id": (54, codec.options.ipv4),
        "requested_addr": (50, codec.options.ipv4),
        "hostname": (12, str.encode),
        "max_dhcp_size": (57, lambda value: value.to_bytes(2, "big")),
        "vendor_class_id": (60, bytes),
        "client_id": (61, bytes),
        "param_req_list": (55, bytes),
        "relay_agent_information": (82, bytes),
    }
    assert read.options == {written[name][0]: written[name][1](value) for name, value in fields.items()}


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize(
    "name", ["edk2_pxe_discover", "edk2_pxe_request", "edk2_http_discover", "ipxe_bios_request", "plain_discover"]
)
def test_every_field_of_the_hardware_reaches_the_client_as_scapy_reads_it(edge: Edge, name: str, relay: bool) -> None:
    changes = {"giaddr": b"\x0a\x4d\0\2", "options": {82: b"\1\4eth7"}} if relay else {}
    for _ in range(2):
        payload = edge.send(altered(CAPTURED[name], **changes)).payload
        theirs, asked = BOOTP(payload), codec.parse(CAPTURED[name])
        found = {option[0]: option[1:] for option in theirs[DHCP].options if isinstance(option, tuple)}
        assert (theirs.op, theirs.htype, theirs.hlen, theirs.hops, theirs.secs) == (2, 1, 6, 0, 0)
        assert (theirs.xid, theirs.chaddr) == (int.from_bytes(asked.xid, "big"), CHADDR + bytes(10))
        assert (theirs.yiaddr, theirs.giaddr) == ("10.77.0.58", "10.77.0.2" if relay else "0.0.0.0")
        assert found["message-type"] == (5 if "request" in name else 2,)
        assert found["server_id"] == ("10.77.0.1",)
        assert found["subnet_mask"] == ("255.255.255.0",)
        # Names can't be carried, addresses next to them can.
        assert found["name_server"] == ("10.77.0.1", "10.77.0.2")
        assert (found["lease_time"], found["renewal_time"], found["rebinding_time"]) == ((3600,), (1800,), (3150,))
        assert ("relay_agent_information" in found) is relay
        if "pxe_" in name and "ipxe" not in name:
            assert theirs.file.rstrip(b"\0") == b"snponly.efi"
            assert found["boot-file-name"] == (b"snponly.efi\0",)
        if name == "plain_discover":
            assert found["broadcast_address"] == ("10.77.0.255",)
            assert found["router"] == ("10.77.0.1",)
            assert found["hostname"] == (b"lab-1",)
            assert codec.parse(payload).options[options.NTP_SERVERS] == bytes((10, 77, 0, 3))
