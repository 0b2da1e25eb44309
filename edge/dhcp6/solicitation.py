"""The messages of neighbour discovery that find the host of an address on the link (RFC 4861). Pure.

`edge.dhcp6.server` sends and receives them, and the kernel fills in the checksums.
"""

from __future__ import annotations

import struct
from ipaddress import IPv6Address
from typing import Final

from edge.dhcp_common import AddressClaim

NEIGHBOR_ADVERTISEMENT: Final = 136
HOP_LIMIT: Final = 255
"""The hop limit of packets that did not pass a router; others are ignored (RFC 4861 section 7.1.2)."""
MAX_BYTES: Final = 1500

_NEIGHBOR_SOLICITATION: Final = 135
_SOURCE_LINK_LAYER, _TARGET_LINK_LAYER = 1, 2
_HEAD = struct.Struct("!BBHI16s")  # type, code, checksum, flags, target
_ETHERNET = struct.Struct("!BB6s")


def solicitation(hardware: bytes, address: bytes) -> bytes:
    """Return the neighbor solicitation from our `hardware` (six bytes) for `address` (sixteen)."""
    # RFC 4861 section 7.2.2. The source is this host's own link-local address, so caches of other hosts stay right.
    return _HEAD.pack(_NEIGHBOR_SOLICITATION, 0, 0, 0, address) + _ETHERNET.pack(_SOURCE_LINK_LAYER, 1, hardware)


def group_of(address: bytes) -> IPv6Address:
    """Return the solicited-node multicast address of `address` (RFC 4291 section 2.7.1)."""
    return IPv6Address(IPv6Address("ff02::1:ff00:0").packed[:13] + address[13:])


def claim(packet: bytes, hop_limit: int) -> AddressClaim | None:
    """Return the sender of a neighbor advertisement, or None if the packet is none (RFC 4861 section 7.1.2)."""
    if len(packet) < _HEAD.size or hop_limit != HOP_LIMIT:
        return None
    kind, code, _, _, target = _HEAD.unpack_from(packet)
    if kind != NEIGHBOR_ADVERTISEMENT or code != 0 or target[0] == 0xFF:
        return None
    hardware, at = b"", _HEAD.size
    # An option is type, length in units of eight bytes (never 0) and value.
    while at + 2 <= len(packet):
        option, units = packet[at], packet[at + 1]
        if units == 0 or at + units * 8 > len(packet):
            return None
        if option == _TARGET_LINK_LAYER and units == 1:
            hardware = packet[at + 2 : at + 8]
        at += units * 8
    # Section 7.2.4: the answer to a multicast solicitation must have the MAC.
    return AddressClaim(target, hardware) if hardware else None
