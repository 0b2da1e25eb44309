"""Ethernet frames that the kernel does not make for us: UDP to a host that does not answer ARP yet, and ARP. Pure.

RFC 2131 section 4.1: a reply goes by unicast to the address that the client is offered. The client has no such address
before it has taken the offer, so the kernel's ARP request for it would get no answer. `edge.dhcp.server` sends these
frames.
"""

from __future__ import annotations

import struct
from typing import Final

from edge.dhcp_common import AddressClaim

HEADERS_BYTES: Final = 14 + 20 + 8
"""Size of the headers before a frame's payload."""

_HEADERS = struct.Struct("!6s6sHHHHHBBH4s4sHHHH")
_IPV4_ETHERTYPE = 0x0800
_VERSION_AND_LENGTH = 0x4500
# With this flag the identification may be 0: RFC 6864 section 4.1.
_DONT_FRAGMENT = 0x4000
_TTL = 64
_UDP = 17

ARP_ETHERTYPE: Final = 0x0806
MAX_ARP_BYTES: Final = 64
"""Number of bytes of an ARP frame that are read: the packet has 28 behind a header of 14."""

_ARP = struct.Struct("!6s6sHHHBBH6s4s6s4s")
_ETHERNET, _REQUEST = 1, 1
_BROADCAST = b"\xff" * 6


class Framer:
    """Makes UDP frames from one hardware address, IPv4 address and port of ours."""

    def __init__(self, hardware: bytes, address: bytes, port: int) -> None:
        """`hardware` has six bytes, `address` four."""
        self._hardware = hardware
        self._address = address
        self._port = port
        source = int.from_bytes(address, "big")
        # The constant part of both checksums, which are sums of 16-bit words modulo 65535. Modulo 65535 a number of any
        # length equals the sum of its words, because 65536 is 1 there.
        self._ip_sum = _VERSION_AND_LENGTH + _DONT_FRAGMENT + (_TTL << 8 | _UDP) + source
        self._udp_sum = source + _UDP + port

    def frame(self, payload: bytes, hardware: bytes, address: bytes, port: int) -> bytes:
        """Return the frame with `payload` to a hardware address (six bytes), IPv4 address (four) and port."""
        # It is not fragmented, so the payload must fit into the link's MTU with the headers.
        length = 8 + len(payload)
        destination = int.from_bytes(address, "big")
        words = int.from_bytes(payload, "big")
        if length & 1:
            words <<= 8  # RFC 768: padded with a zero byte at the end
        # RFC 791 section 3.1 (IP) and RFC 768 (UDP).
        ip_sum = (self._ip_sum + 20 + length + destination) % 65535
        udp_sum = (self._udp_sum + destination + 2 * length + port + words) % 65535
        return (
            _HEADERS.pack(
                hardware, self._hardware, _IPV4_ETHERTYPE,
                _VERSION_AND_LENGTH, 20 + length, 0, _DONT_FRAGMENT, _TTL, _UDP, 65535 - (ip_sum or 65535),
                self._address, address,
                self._port, port, length, 65535 - udp_sum,  # never 0, which would mean "no checksum"
            )
            + payload
        )  # fmt: skip


def arp_probe(hardware: bytes, address: bytes) -> bytes:
    """Return the ARP probe (RFC 5227 section 2.1.1) from our `hardware` (six bytes) for `address` (four)."""
    # The sender's address is 0. So no host changes its ARP table, and routers do not answer for others ("proxy ARP").
    return _ARP.pack(
        _BROADCAST, hardware, ARP_ETHERTYPE, _ETHERNET, _IPV4_ETHERTYPE, 6, 4, _REQUEST,
        hardware, bytes(4), bytes(6), address,
    )  # fmt: skip


def arp_claim(frame: bytes) -> AddressClaim | None:
    """Return the sender of an ARP packet; None for a probe, and for other frames than ARP of Ethernet and IPv4."""
    # Requests count as much as replies (RFC 5227 section 2.1.1: "any ARP packet").
    if len(frame) < _ARP.size:
        return None
    _, _, ethertype, link, protocol, link_bytes, protocol_bytes, _, hardware, address, _, _ = _ARP.unpack_from(frame)
    if (ethertype, link, protocol, link_bytes, protocol_bytes) != (ARP_ETHERTYPE, _ETHERNET, _IPV4_ETHERTYPE, 6, 4):
        return None
    return AddressClaim(address, hardware) if any(address) else None
