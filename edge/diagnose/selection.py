"""Which frames of an interface belong to one machine: a program for the kernel's packet filter. Pure, but for `attach`.

A machine's frames come from its MAC or go to it; what is broadcast to it, as DHCP is before it has an address, names it
inside. Of a download of hundreds of megabytes only the beginning is worth a line, and the kernel throws the rest away
where it costs least. (Classic BPF: Documentation/networking/filter.rst; the machine is that of McCanne and Jacobson.)
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Final

SNAP_BYTES: Final = 2048
"""How much of a frame is kept for reading: a frame of Ethernet and more."""
WHOLE_BYTES: Final = 262144

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h

# linux/bpf_common.h
_LOAD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30  # from a place in the frame
_LOAD_AT_X, _LOAD_HALF_AT_X, _LOAD_BYTE_AT_X = 0x40, 0x48, 0x50  # from X and a distance
_X_IP_HEADER_BYTES = 0xB1
_A_TO_X, _ADD_X, _AND, _SHIFT_RIGHT = 0x07, 0x0C, 0x54, 0x74
_EQUAL, _BITS, _GREATER = 0x15, 0x45, 0x25
_RETURN = 0x06

_DHCP_PORTS = (67, 68, 4011)
_REQUEST_WORDS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"HTTP", b"PRI ")
# Full blocks of TFTP in the sizes that firmware asks for, as the total length of IP: 512, 1024, 1428, 1432, 1456, 1468.
_FULL_BLOCKS = (544, 1056, 1460, 1464, 1488, 1500)

_ETHERTYPE, _IP = 12, 14
_CHADDR = 8 + 28  # behind the IP header: UDP's, and what BOOTP has before chaddr

Line = str | tuple[int, int] | tuple[int, int, str, str]
"""A label, an instruction, or a comparison with where to go if it holds and if not ("" is the next line)."""


def everything_of(mac: bytes) -> bytes:
    """A program that takes all frames of a machine. `mac` has six bytes."""
    return _assemble([*_is_of(mac), "its", (_RETURN, WHOLE_BYTES), "none", (_RETURN, 0)])


def conversation_of(mac: bytes) -> bytes:
    """A program that takes what says something: not what is in the middle of a download."""
    return _assemble(
        [
            *_is_of(mac),
            "its",
            (_LOAD_HALF, _ETHERTYPE),
            (_EQUAL, 0x0800, "", "all"),
            (_LOAD_HALF, _IP + 6),
            (_BITS, 0x1FFF, "none", ""),
            (_X_IP_HEADER_BYTES, _IP),
            (_LOAD_BYTE, _IP + 9),
            (_EQUAL, 17, "udp", ""),
            (_EQUAL, 6, "", "all"),
            (_LOAD_BYTE_AT_X, _IP + 12),
            (_AND, 0xF0),
            (_SHIFT_RIGHT, 2),
            (_ADD_X, 0),
            (_A_TO_X, 0),
            (_LOAD_AT_X, _IP),
            *((_EQUAL, int.from_bytes(word, "big"), "all", "") for word in _REQUEST_WORDS),
            (_RETURN, 0),
            "udp",
            (_LOAD_AT_X, _IP + 8),
            (_EQUAL, 0x0003_0001, "all", ""),  # TFTP: the first block
            (_LOAD_HALF_AT_X, _IP + 8),
            (_EQUAL, 3, "", "all"),
            (_LOAD_HALF, _IP + 2),
            *((_EQUAL, length, "none", "") for length in _FULL_BLOCKS),
            "all",
            (_RETURN, SNAP_BYTES),
            "none",
            (_RETURN, 0),
        ]
    )


def attach(sock: socket.socket, program: bytes) -> None:
    """Let `sock` hear only what `program` takes (socket(7)). Raises OSError."""
    code = ctypes.create_string_buffer(program)
    wanted = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, wanted)


def _is_of(mac: bytes) -> list[Line]:
    """Goes to "its" or "none"."""
    high, low = struct.unpack("!IH", mac)
    return [
        (_LOAD, 0),
        (_EQUAL, high, "", "from"),
        (_LOAD_HALF, 4),
        (_EQUAL, low, "its", ""),
        "from",
        (_LOAD, 6),
        (_EQUAL, high, "", "inside"),
        (_LOAD_HALF, 10),
        (_EQUAL, low, "its", ""),
        "inside",
        (_LOAD_HALF, _ETHERTYPE),
        (_EQUAL, 0x0800, "", "none"),
        (_LOAD_BYTE, _IP + 9),
        (_EQUAL, 17, "", "none"),
        (_LOAD_HALF, _IP + 6),
        (_BITS, 0x1FFF, "none", ""),
        (_X_IP_HEADER_BYTES, _IP),
        (_LOAD_HALF_AT_X, _IP + 2),
        *((_EQUAL, port, "dhcp", "") for port in _DHCP_PORTS),
        (_RETURN, 0),
        "dhcp",
        (_LOAD_AT_X, _IP + _CHADDR),
        (_EQUAL, high, "", "none"),
        (_LOAD_HALF_AT_X, _IP + _CHADDR + 4),
        (_EQUAL, low, "its", "none"),
    ]


def _assemble(lines: Sequence[Line]) -> bytes:
    places: dict[str, int] = {}
    steps: list[tuple[int, int] | tuple[int, int, str, str]] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(steps)
        else:
            steps.append(line)
    program = bytearray()
    for at, step in enumerate(steps):
        ways = [places[label] - at - 1 if label else 0 for label in step[2:]] or [0, 0]
        program += struct.pack("HBBI", step[0], *ways, step[1])
    return bytes(program)
