"""ARP on Ethernet, as far as DHCP needs it: asking who has an address without claiming it, and hearing who says so.

The question is the probe of RFC 5227 section 2.1.1: its sender's address is 0, so that it changes nobody's ARP table,
and routers that answer ARP for others ("proxy ARP") leave it alone. Pure; `edge.dhcp.sockets.prober` sends and hears.
"""

from __future__ import annotations

import struct
from typing import Final

from edge.conflict import Claim

ETHERTYPE: Final = 0x0806
LARGEST_BYTES: Final = 64
"""Bytes of a frame that are looked at: the packet has 28 behind a header of 14."""

_FRAME = struct.Struct("!6s6sHHHBBH6s4s6s4s")
_ETHERNET, _IPV4, _REQUEST = 1, 0x0800, 1
_EVERYBODY = b"\xff" * 6


def probe(hardware: bytes, address: bytes) -> bytes:
    """The frame that asks from `hardware` (six bytes), which is ours, who has `address` (four)."""
    return _FRAME.pack(
        _EVERYBODY, hardware, ETHERTYPE, _ETHERNET, _IPV4, 6, 4, _REQUEST, hardware, bytes(4), bytes(6), address
    )


def claim(frame: bytes) -> Claim | None:
    """What an ARP packet says of its sender; None if it claims nothing: a probe, or no ARP of Ethernet and IPv4.

    Requests claim as much as replies do (RFC 5227 section 2.1.1: "any ARP packet").
    """
    if len(frame) < _FRAME.size:
        return None
    _, _, ethertype, link, protocol, link_bytes, protocol_bytes, _, hardware, address, _, _ = _FRAME.unpack_from(frame)
    if (ethertype, link, protocol, link_bytes, protocol_bytes) != (ETHERTYPE, _ETHERNET, _IPV4, 6, 4):
        return None
    return Claim(address, hardware) if any(address) else None
