"""Which frames of an interface belong to one machine: a program for the kernel's packet filter. Pure.

A machine's frames come from its MAC or go to it; what is broadcast to it, as DHCP is before it has an address, names it
inside. Of a download of hundreds of megabytes only the beginning is worth a line, and the kernel throws the rest away
where it costs least.
"""

from __future__ import annotations

import struct
from typing import Final

from edge.neighbour import packet_filter as bpf

SNAP_BYTES: Final = 2048
"""How much of a frame is kept for reading: a frame of Ethernet and more."""
WHOLE_BYTES: Final = 262144

_DHCP_PORTS = (67, 68, 4011)
_REQUEST_WORDS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"HTTP", b"PRI ")
# Full blocks of TFTP in the sizes that firmware asks for, as the total length of IP: 512, 1024, 1428, 1432, 1456, 1468.
_FULL_BLOCKS = (544, 1056, 1460, 1464, 1488, 1500)
# The same over IPv6, where EDK2 asks for 1228: what the header says is without itself.
_FULL_BLOCKS_6 = (524, 1036, 1240, 1420, 1440, 1460)

_ETHERTYPE, _IP = 12, 14
_IPV6, _IN_IPV6 = 0x86DD, _IP + 40  # of packets without extension headers, as all of firmware's are
_CHADDR = 8 + 28  # behind the IP header: UDP's, and what BOOTP has before chaddr


def everything_of(mac: bytes) -> bytes:
    """A program that takes all frames of a machine. `mac` has six bytes."""
    return bpf.assemble([*_is_of(mac), "its", (bpf.RETURN, WHOLE_BYTES), "none", (bpf.RETURN, 0)])


def conversation_of(mac: bytes) -> bytes:
    """A program that takes what says something: not what is in the middle of a download."""
    return bpf.assemble(
        [
            *_is_of(mac),
            "its",
            (bpf.LOAD_HALF, _ETHERTYPE),
            (bpf.EQUAL, _IPV6, "ipv6", ""),
            (bpf.EQUAL, 0x0800, "", "all"),
            (bpf.LOAD_HALF, _IP + 6),
            (bpf.BITS, 0x1FFF, "none", ""),
            (bpf.X_IP_HEADER_BYTES, _IP),
            (bpf.LOAD_BYTE, _IP + 9),
            (bpf.EQUAL, 17, "udp", ""),
            (bpf.EQUAL, 6, "", "all"),
            (bpf.LOAD_BYTE_AT_X, _IP + 12),
            (bpf.AND, 0xF0),
            (bpf.SHIFT_RIGHT, 2),
            (bpf.ADD_X, 0),
            (bpf.A_TO_X, 0),
            (bpf.LOAD_AT_X, _IP),
            *((bpf.EQUAL, int.from_bytes(word, "big"), "all", "") for word in _REQUEST_WORDS),
            (bpf.RETURN, 0),
            "udp",
            (bpf.LOAD_AT_X, _IP + 8),
            (bpf.EQUAL, 0x0003_0001, "all", ""),  # TFTP: the first block
            (bpf.LOAD_HALF_AT_X, _IP + 8),
            (bpf.EQUAL, 3, "", "all"),
            (bpf.LOAD_HALF, _IP + 2),
            *((bpf.EQUAL, length, "none", "") for length in _FULL_BLOCKS),
            (bpf.RETURN, SNAP_BYTES),
            *_says_something_in_ipv6(),
            "all",
            (bpf.RETURN, SNAP_BYTES),
            "none",
            (bpf.RETURN, 0),
        ]
    )


def _says_something_in_ipv6() -> list[bpf.Line]:
    """Goes to "all" or "none", or falls through to what comes behind it."""
    return [
        "ipv6",
        (bpf.LOAD_BYTE, _IP + 6),
        (bpf.EQUAL, 17, "udp6", ""),
        (bpf.EQUAL, 6, "", "all"),
        (bpf.LOAD_BYTE, _IN_IPV6 + 12),
        (bpf.AND, 0xF0),
        (bpf.SHIFT_RIGHT, 2),
        (bpf.A_TO_X, 0),
        (bpf.LOAD_AT_X, _IN_IPV6),
        *((bpf.EQUAL, int.from_bytes(word, "big"), "all", "") for word in _REQUEST_WORDS),
        (bpf.RETURN, 0),
        "udp6",
        (bpf.LOAD, _IN_IPV6 + 8),
        (bpf.EQUAL, 0x0003_0001, "all", ""),
        (bpf.LOAD_HALF, _IN_IPV6 + 8),
        (bpf.EQUAL, 3, "", "all"),
        (bpf.LOAD_HALF, _IP + 4),
        *((bpf.EQUAL, length, "none", "") for length in _FULL_BLOCKS_6),
    ]


def _is_of(mac: bytes) -> list[bpf.Line]:
    """Goes to "its" or "none"."""
    high, low = struct.unpack("!IH", mac)
    return [
        (bpf.LOAD, 0),
        (bpf.EQUAL, high, "", "from"),
        (bpf.LOAD_HALF, 4),
        (bpf.EQUAL, low, "its", ""),
        "from",
        (bpf.LOAD, 6),
        (bpf.EQUAL, high, "", "inside"),
        (bpf.LOAD_HALF, 10),
        (bpf.EQUAL, low, "its", ""),
        "inside",
        (bpf.LOAD_HALF, _ETHERTYPE),
        (bpf.EQUAL, 0x0800, "", "none"),
        (bpf.LOAD_BYTE, _IP + 9),
        (bpf.EQUAL, 17, "", "none"),
        (bpf.LOAD_HALF, _IP + 6),
        (bpf.BITS, 0x1FFF, "none", ""),
        (bpf.X_IP_HEADER_BYTES, _IP),
        (bpf.LOAD_HALF_AT_X, _IP + 2),
        *((bpf.EQUAL, port, "dhcp", "") for port in _DHCP_PORTS),
        (bpf.RETURN, 0),
        "dhcp",
        (bpf.LOAD_AT_X, _IP + _CHADDR),
        (bpf.EQUAL, high, "", "none"),
        (bpf.LOAD_HALF_AT_X, _IP + _CHADDR + 4),
        (bpf.EQUAL, low, "its", "none"),
    ]
