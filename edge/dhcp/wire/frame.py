"""A UDP datagram as a whole Ethernet frame, made by hand: what reaches a machine that does not answer ARP yet. Pure.

A client that was offered an address is to be answered there by unicast (RFC 2131 section 4.1), but has no address until
it has taken the offer, so the kernel's own path, which begins with an ARP request, ends in silence.
`edge.dhcp.sockets.link` sends what is made here.
"""

from __future__ import annotations

import struct
from typing import Final

HEADERS_BYTES: Final = 14 + 20 + 8
"""Bytes that a frame has before its payload."""

_HEADERS = struct.Struct("!6s6sHHHHHBBH4s4sHHHH")
_IPV4_ETHERTYPE = 0x0800
_VERSION_AND_LENGTH = 0x4500
_DONT_FRAGMENT = 0x4000  # and with it, the identification may be 0: RFC 6864 section 4.1
_TTL = 64
_UDP = 17


class Framer:
    """Makes frames that come from one hardware address, IPv4 address and UDP port of ours."""

    def __init__(self, hardware: bytes, address: bytes, port: int) -> None:
        """`hardware` has six bytes, `address` four."""
        self._hardware = hardware
        self._address = address
        self._port = port
        source = int.from_bytes(address, "big")
        # What is the same in every frame. Both checksums are sums of 16-bit words modulo 65535; there, a number of any
        # length is the sum of its words, for 65536 is 1.
        self._ip_sum = _VERSION_AND_LENGTH + _DONT_FRAGMENT + (_TTL << 8 | _UDP) + source
        self._udp_sum = source + _UDP + port

    def frame(self, payload: bytes, hardware: bytes, address: bytes, port: int) -> bytes:
        """`payload` to this hardware address (six bytes), IPv4 address (four) and port.

        The IPv4 header's checksum is that of RFC 791 section 3.1, UDP's that of RFC 768. The payload must fit into the
        link's MTU with the headers; there is no fragmentation here.
        """
        length = 8 + len(payload)
        destination = int.from_bytes(address, "big")
        words = int.from_bytes(payload, "big")
        if length & 1:
            words <<= 8  # RFC 768: padded with a zero byte at the end
        ip_sum = (self._ip_sum + 20 + length + destination) % 65535
        udp_sum = (self._udp_sum + destination + 2 * length + port + words) % 65535
        return (
            _HEADERS.pack(
                hardware, self._hardware, _IPV4_ETHERTYPE,
                _VERSION_AND_LENGTH, 20 + length, 0, _DONT_FRAGMENT, _TTL, _UDP, 65535 - (ip_sum or 65535),
                self._address, address,
                self._port, port, length, 65535 - udp_sum,  # never 0, which would mean that there is no checksum
            )
            + payload
        )  # fmt: skip
