"""The filter that shows what arrives before the firewall sees it: run here as the kernel runs it."""

from __future__ import annotations

import socket
import struct

import pytest

from edge.neighbour.arrivals import program

HTTP, GRPC = 7080, 42113


UDP, TCP = socket.IPPROTO_UDP, socket.IPPROTO_TCP


def payload(protocol: int, source: int, target: int, flags: int) -> bytes:
    ports = struct.pack("!HH", source, target)
    return ports + (bytes(4) if protocol == UDP else bytes(8) + bytes((0x50, flags)) + bytes(6))


def frame(protocol: int, source: int, target: int, *, flags: int = 0x02, options: int = 0, offset: int = 0) -> bytes:
    """Return an Ethernet frame of IPv4 with so many bytes of options, at this fragment offset."""
    length = 0x45 + options // 4
    header = struct.pack("!BBHHHBBH8x", length, 0, 40, 0, offset, 64, protocol, 0) + bytes(options)
    return bytes(12) + b"\x08\x00" + header + payload(protocol, source, target, flags)


def frame6(protocol: int, source: int, target: int, *, flags: int = 0x02) -> bytes:
    header = struct.pack("!IHBB32x", 6 << 28, 20, protocol, 64)
    return bytes(12) + b"\x86\xdd" + header + payload(protocol, source, target, flags)


def taken(packet: bytes) -> bool:
    """Classic BPF, as far as the filter uses it (linux/filter.h)."""
    instructions = list(struct.iter_unpack("=HBBI", program(HTTP, GRPC)))
    at, accumulator, index = 0, 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x28:
                accumulator = int.from_bytes(packet[operand : operand + 2], "big")
            case 0x30:
                accumulator = packet[operand]
            case 0x48:
                accumulator = int.from_bytes(packet[index + operand : index + operand + 2], "big")
            case 0x50:
                accumulator = packet[index + operand]
            case 0xB1:
                index = 4 * (packet[operand] & 0x0F)
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x45:
                at += if_true if accumulator & operand else if_false
            case 0x06:
                return operand > 0


COUNTED = [
    frame(UDP, 2000, 69),
    frame(UDP, 2000, 69, options=8),
    frame(TCP, 2000, HTTP),
    frame(TCP, 2000, GRPC),
    frame(TCP, HTTP, 2000, flags=0x12),
    frame(TCP, GRPC, 2000, flags=0x12, options=4),
    frame6(UDP, 2000, 69),
    frame6(TCP, 2000, HTTP),
    frame6(TCP, GRPC, 2000, flags=0x12),
]
OTHERS = [
    frame(UDP, 69, 2000),
    frame(UDP, 2000, HTTP),
    frame(UDP, 2000, 69, offset=100),
    frame(TCP, 2000, 22),
    frame(TCP, 2000, 69),
    frame(TCP, 2000, HTTP, flags=0x10),
    frame(1, 2000, 69),
    bytes(12) + b"\x08\x06" + bytes(46),
    frame6(UDP, 69, 2000),
    frame6(UDP, 2000, HTTP),
    frame6(TCP, 2000, HTTP, flags=0x10),
    frame6(TCP, 2000, 443),
    frame6(58, 2000, 69),
]


@pytest.mark.parametrize(
    ("packet", "wanted"), [*((each, True) for each in COUNTED), *((each, False) for each in OTHERS)]
)
def test_questions_to_our_ports_and_answers_of_tcp_are_counted_and_nothing_else(packet: bytes, wanted: bool) -> None:
    assert taken(packet) is wanted
