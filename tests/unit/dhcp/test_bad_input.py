"""What anybody can send: nothing raises, nonsense is not answered, and other programs read our answers as meant."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp.wire import MessageType, codec
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
CHADDR = bytes.fromhex("525400123456")
FIXTURES = [HealthCheck.function_scoped_fixture]


@pytest.fixture(params=list(DhcpMode)[:3])
def any_edge(request: pytest.FixtureRequest, make_edge: MakeEdge, make_hardware: MakeHardware) -> Edge:
    return make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), mode=request.param)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=FIXTURES)
def test_no_packet_raises_and_no_garbage_is_answered(
    any_edge: Edge, captured: dict[str, bytes], data: st.DataObject
) -> None:
    packet = bytearray(captured[data.draw(st.sampled_from(sorted(captured)))])
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
def test_options_that_lie_are_never_answered_as_if_they_were_true(
    edge: Edge, captured: dict[str, bytes], junk: bytes, overload: bytes
) -> None:
    head = captured["edk2_pxe_discover"][:44] + junk[:192].ljust(192, b"\0") + codec.MAGIC_COOKIE
    reply = edge.send(head + b"\x35\1\1" + overload + junk + b"\xff")
    if reply is not None:
        assert codec.parse(reply.payload).yiaddr == b"\x0a\x4d\0\x3a"


def test_overloaded_fields_that_overload_again_are_read_once(edge: Edge, captured: dict[str, bytes]) -> None:
    fields = (b"\x34\1\3" * 20).ljust(64, b"\0") + (b"\x34\1\3" * 40).ljust(128, b"\0")
    packet = captured["edk2_pxe_discover"][:44] + fields + codec.MAGIC_COOKIE + b"\x35\1\1\x34\1\3\xff"
    assert MessageType(codec.parse(edge.send(packet).payload).options[53][0]) is MessageType.OFFER


def test_packet_of_nothing_but_options_is_read_in_time(edge: Edge, captured: dict[str, bytes]) -> None:
    for body in (b"\x0c\0" * 1900, b"\x0c\1x" * 1200, b"\0" * 3800, b"\x52\2\1\0" * 900, b"\x4d\2\1x" * 900):
        edge.send(captured["edk2_pxe_discover"][:240] + b"\x35\1\1" + body + b"\xff")
    assert edge.send(captured["edk2_pxe_discover"][:240] + b"\x35\1\1" + bytes(4096)) is None


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
def test_what_scapy_builds_reads_as_it_was_meant(
    fields: dict[str, Any], giaddr: str, ciaddr: str, xid: int, flags: int
) -> None:
    kinds = {"discover": 1, "request": 3, "decline": 4, "release": 7, "inform": 8}
    options = [(name, *value) if name == "param_req_list" else (name, value) for name, value in fields.items()]
    bootp = BOOTP(op=1, chaddr=CHADDR, giaddr=giaddr, ciaddr=ciaddr, xid=xid, flags=flags)
    read = codec.parse(bytes(bootp / DHCP(options=[*options, "end"])))
    assert (read.xid, read.flags) == (xid.to_bytes(4, "big"), flags)
    assert (codec.options.dotted(read.giaddr), codec.options.dotted(read.ciaddr)) == (giaddr, ciaddr)
    expected = {
        53: bytes((kinds[fields["message-type"]],)),
        54: codec.options.ipv4(fields["server_id"]) if "server_id" in fields else None,
        50: codec.options.ipv4(fields["requested_addr"]) if "requested_addr" in fields else None,
        12: fields["hostname"].encode() if "hostname" in fields else None,
        57: fields["max_dhcp_size"].to_bytes(2, "big") if "max_dhcp_size" in fields else None,
        60: fields.get("vendor_class_id"),
        61: fields.get("client_id"),
        55: bytes(fields["param_req_list"]) if "param_req_list" in fields else None,
        82: fields.get("relay_agent_information"),
    }
    assert read.options == {code: value for code, value in expected.items() if value is not None}


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize(
    "name", ["edk2_pxe_discover", "edk2_pxe_request", "edk2_http_discover", "ipxe_bios_request", "plain_discover"]
)
def test_scapy_reads_in_our_replies_what_we_meant(
    edge: Edge, wire: Wire, captured: dict[str, bytes], name: str, relay: bool
) -> None:
    changes = {"giaddr": b"\x0a\x4d\0\2", "options": {82: b"\1\4eth7"}} if relay else {}
    for _ in range(2):
        payload = edge.send(wire.altered(captured[name], **changes)).payload
        theirs, asked = BOOTP(payload), codec.parse(captured[name])
        found = {option[0]: option[1:] for option in theirs[DHCP].options if isinstance(option, tuple)}
        assert (theirs.op, theirs.htype, theirs.hlen, theirs.hops, theirs.secs) == (2, 1, 6, 0, 0)
        assert theirs.xid == int.from_bytes(asked.xid, "big")
        assert (theirs.yiaddr, theirs.giaddr) == ("10.77.0.58", "10.77.0.2" if relay else "0.0.0.0")
        assert theirs.chaddr == CHADDR + bytes(10)
        assert found["message-type"] == (5 if "request" in name else 2,)
        assert found["server_id"] == ("10.77.0.1",)
        assert found["subnet_mask"] == ("255.255.255.0",)
        assert found["name_server"] == ("10.77.0.1", "10.77.0.2")
        assert (found["lease_time"], found["renewal_time"], found["rebinding_time"]) == ((3600,), (1800,), (3150,))
        assert ("relay_agent_information" in found) is relay
        if "pxe_" in name and "ipxe" not in name:
            assert theirs.file.rstrip(b"\0") == b"snponly.efi"
            assert found["boot-file-name"] == (b"snponly.efi\0",)
