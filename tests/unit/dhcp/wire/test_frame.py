"""Frames made by hand must be what the kernel would have sent, to the byte that firmware checks; scapy is the judge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from edge.dhcp.wire.frame import HEADERS_BYTES, Framer

OURS, THEIRS = bytes.fromhex("0200000000aa"), bytes.fromhex("525400cc0001")
SERVER, CLIENT = bytes((10, 77, 6, 1)), bytes((10, 77, 6, 50))

address = st.binary(min_size=4, max_size=4)
port = st.integers(0, 65535)


def test_frame_goes_to_the_machine_and_comes_from_us() -> None:
    frame = Ether(Framer(OURS, SERVER, 67).frame(b"payload", THEIRS, CLIENT, 68))
    assert (frame.src, frame.dst, frame.type) == ("02:00:00:00:00:aa", "52:54:00:cc:00:01", 0x0800)
    assert (frame[IP].src, frame[IP].dst, frame[IP].proto) == ("10.77.6.1", "10.77.6.50", 17)
    assert (frame[UDP].sport, frame[UDP].dport, bytes(frame[UDP].payload)) == (67, 68, b"payload")


def test_frame_is_whole_and_not_to_be_fragmented() -> None:
    # Identification 0 means nothing without don't-fragment (RFC 6864 section 4.1).
    frame = Ether(Framer(OURS, SERVER, 67).frame(bytes(300), THEIRS, CLIENT, 68))
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
    seen = set()
    for word in range(65536):
        payload = word.to_bytes(2, "big") + bytes(length - 2)
        seen.add(framer.frame(payload, THEIRS, CLIENT, 68)[40:42])
    assert b"\0\0" not in seen
    assert b"\xff\xff" in seen


def test_ip_checksum_of_a_header_that_sums_to_nothing_is_zero() -> None:
    # 0xffff would be the same number to an adder, but not to a receiver that computes and compares.
    frames = (
        Framer(OURS, SERVER, 67).frame(b"", THEIRS, bytes((10, 0, high, low)), 68)
        for high in range(256)
        for low in range(256)
    )
    sums = {frame[24:26] for frame in frames}
    assert b"\0\0" in sums
    assert b"\xff\xff" not in sums
