"""The filter that shows what arrives before the firewall sees it: run here as the kernel runs it."""

from __future__ import annotations

import socket
import struct

import pytest

from edge.neighbour.arrivals import program

HTTP, GRPC = 7080, 42113


def frame(
    protocol: int, source: int, target: int, *, flags: int = 0x02, options: bytes = b"", offset: int = 0
) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45 + len(options) // 4, 0, 40, 0, offset, 64, protocol, 0, bytes(4), bytes(4)
    )
    ports = struct.pack("!HH", source, target)
    body = ports + (bytes(4) if protocol == socket.IPPROTO_UDP else bytes(8) + bytes((0x50, flags)) + bytes(6))
    return bytes(12) + b"\x08\x00" + header + options + body


def frame6(protocol: int, source: int, target: int, *, flags: int = 0x02) -> bytes:
    header = struct.pack("!IHBB16s16s", 6 << 28, 20, protocol, 64, bytes(16), bytes(16))
    ports = struct.pack("!HH", source, target)
    body = ports + (bytes(4) if protocol == socket.IPPROTO_UDP else bytes(8) + bytes((0x50, flags)) + bytes(6))
    return bytes(12) + b"\x86\xdd" + header + body


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


UDP, TCP = socket.IPPROTO_UDP, socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("packet", "wanted"),
    [
        (frame(UDP, 2000, 69), True),
        (frame6(UDP, 2000, 69), True),
        (frame6(UDP, 69, 2000), False),
        (frame6(UDP, 2000, HTTP), False),
        (frame6(TCP, 2000, HTTP), True),
        (frame6(TCP, GRPC, 2000, flags=0x12), True),
        (frame6(TCP, 2000, HTTP, flags=0x10), False),
        (frame6(TCP, 2000, 443), False),
        (frame6(58, 2000, 69), False),
        (frame(UDP, 69, 2000), False),
        (frame(UDP, 2000, HTTP), False),
        (frame(UDP, 2000, 69, options=bytes(8)), True),
        (frame(UDP, 2000, 69, offset=100), False),
        (frame(TCP, 2000, HTTP), True),
        (frame(TCP, 2000, GRPC), True),
        (frame(TCP, 2000, 22), False),
        (frame(TCP, 2000, 69), False),
        (frame(TCP, 2000, HTTP, flags=0x10), False),
        (frame(TCP, HTTP, 2000, flags=0x12), True),
        (frame(TCP, GRPC, 2000, flags=0x12, options=bytes(4)), True),
        (frame(1, 2000, 69), False),
        (bytes(12) + b"\x08\x06" + bytes(46), False),
    ],
)
def test_questions_to_our_ports_and_answers_of_tcp_are_counted_and_nothing_else(packet: bytes, wanted: bool) -> None:
    assert taken(packet) is wanted
