"""Neighbour discovery, as far as DHCPv6 needs it: asking hosts of a link who has an address, and hearing who says so.

The question is a neighbor solicitation to the address's solicited-node group (RFC 4861 section 7.2.2), from this host's
own link-local address, so that it changes nobody's cache of anybody else. Pure; `edge.dhcp6.prober` sends and hears,
and the kernel fills in checksums.
"""

from __future__ import annotations

import struct
from ipaddress import IPv6Address
from typing import Final

from edge.conflict import Claim

NEIGHBOR_ADVERTISEMENT: Final = 136
HOP_LIMIT: Final = 255
"""RFC 4861 section 7.1.2: a packet with less has passed a router and is not believed."""
LARGEST_BYTES: Final = 1500

_NEIGHBOR_SOLICITATION: Final = 135
_SOURCE_LINK_LAYER, _TARGET_LINK_LAYER = 1, 2
_HEAD = struct.Struct("!BBHI16s")  # type, code, checksum, flags, target
_ETHERNET = struct.Struct("!BB6s")


def solicitation(hardware: bytes, address: bytes) -> bytes:
    """The ICMPv6 message that asks from `hardware` (six bytes), which is ours, who has `address` (sixteen)."""
    return _HEAD.pack(_NEIGHBOR_SOLICITATION, 0, 0, 0, address) + _ETHERNET.pack(_SOURCE_LINK_LAYER, 1, hardware)


def group_of(address: bytes) -> IPv6Address:
    """The solicited-node multicast address of those that may have `address` (RFC 4291 section 2.7.1)."""
    return IPv6Address(IPv6Address("ff02::1:ff00:0").packed[:13] + address[13:])


def claim(packet: bytes, hop_limit: int) -> Claim | None:
    """What a neighbor advertisement says of its sender (RFC 4861 section 7.1.2); None if it is none, or names no MAC,
    which an answer to a multicast solicitation has to (section 7.2.4).
    """
    if len(packet) < _HEAD.size or hop_limit != HOP_LIMIT:
        return None
    kind, code, _, _, target = _HEAD.unpack_from(packet)
    if kind != NEIGHBOR_ADVERTISEMENT or code != 0 or target[0] == 0xFF:
        return None
    hardware, at = b"", _HEAD.size
    while at + 2 <= len(packet):  # options: type, length in units of eight bytes, never 0
        option, units = packet[at], packet[at + 1]
        if units == 0 or at + units * 8 > len(packet):
            return None
        if option == _TARGET_LINK_LAYER and units == 1:
            hardware = packet[at + 2 : at + 8]
        at += units * 8
    return Claim(target, hardware) if hardware else None
