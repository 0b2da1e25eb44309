"""Whose an address is, as far as a stranger sees: what bounds are counted by."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address

Block = IPv4Network | IPv6Network


def block_of(address: str) -> Block:
    """What one subscriber of a network has: an IPv4 address, or 64 bits of IPv6. Raises ValueError."""
    found = ip_address(address.partition("%")[0])
    if found.version == 4:
        return IPv4Network(address)
    return IPv6Network((int(found) >> 64 << 64, 64))
