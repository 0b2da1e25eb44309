"""The messages of neighbour discovery (RFC 4861) that this host sends or reads, as bytes. Pure.

`edge.listener.icmp6_socket` opens the socket. The kernel fills in and checks the checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from tink.mac import eui64_mac
from tink.net.addresses import is_link_local

ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT = 133, 134
NEIGHBOR_SOLICITATION, NEIGHBOR_ADVERTISEMENT = 135, 136
HOP_LIMIT: Final = 255  # section 6.1: a packet with less has passed a router and is not believed

_MANAGED, _OTHER = 0x80, 0x40
_ON_LINK: Final = 0x80
_PREFIX_SECONDS: Final = 86400
_SOURCE_LINK_LAYER, _TARGET_LINK_LAYER, _PREFIX_INFORMATION = 1, 2, 3
_NEIGHBOR = struct.Struct("!BBHI16s")  # type, code, checksum, flags, target
_ETHERNET = struct.Struct("!BB6s")


def _options(packet: bytes, at: int) -> dict[int, bytes] | None:
    """Return the options from `at` to the end by type, the first one of each, or None if a length is wrong."""
    found: dict[int, bytes] = {}
    while at < len(packet):
        # An option is type, length in units of eight bytes (never 0) and value.
        if at + 1 >= len(packet) or packet[at + 1] == 0:
            return None
        end = at + packet[at + 1] * 8
        found.setdefault(packet[at], packet[at + 2 : end])
        at = end
    return found if at == len(packet) else None


# --- neighbours -------------------------------------------------------------------------------------------------------


def neighbor_solicitation(hardware: bytes, address: bytes) -> bytes:
    """Return the neighbor solicitation from our `hardware` (six bytes) for `address` (sixteen)."""
    # Section 7.2.2. The source is this host's own link-local address, so caches of other hosts stay right.
    return _NEIGHBOR.pack(NEIGHBOR_SOLICITATION, 0, 0, 0, address) + _ETHERNET.pack(_SOURCE_LINK_LAYER, 1, hardware)


def group_of(address: bytes) -> IPv6Address:
    """Return the solicited-node multicast address of `address` (RFC 4291 section 2.7.1)."""
    return IPv6Address(IPv6Address("ff02::1:ff00:0").packed[:13] + address[13:])


def advertised_neighbor(packet: bytes, hop_limit: int) -> tuple[bytes, bytes] | None:
    """Return the address and the MAC in a valid neighbor advertisement (section 7.1.2), or None."""
    if len(packet) < _NEIGHBOR.size or hop_limit != HOP_LIMIT:
        return None
    kind, code, _, _, target = _NEIGHBOR.unpack_from(packet)
    if kind != NEIGHBOR_ADVERTISEMENT or code != 0 or target[0] == 0xFF:
        return None
    # Section 7.2.4: the answer to a multicast solicitation must have the MAC.
    mac = (_options(packet, _NEIGHBOR.size) or {}).get(_TARGET_LINK_LAYER, b"")
    return (target, mac) if len(mac) == 6 else None


# --- routers ----------------------------------------------------------------------------------------------------------


def is_router_solicitation(packet: bytes, hop_limit: int) -> bool:
    """Return True if an ICMPv6 message is a valid router solicitation (section 6.1.1)."""
    is_one = len(packet) >= 8 and packet[:2] == bytes((ROUTER_SOLICITATION, 0)) and hop_limit == HOP_LIMIT
    return is_one and _options(packet, 8) is not None


def soliciting_mac(packet: bytes, source: str) -> str:
    """Return the MAC of the host that sent a valid router solicitation, or "" if the message does not contain it."""
    # Linux gives its MAC in the option source link-layer address. iPXE gives no option, and makes its link-local
    # address of its MAC (RFC 4291 appendix A).
    mac = (_options(packet, 8) or {}).get(_SOURCE_LINK_LAYER, b"")
    if len(mac) == 6:
        return mac.hex(":")
    return eui64_mac(IPv6Address(source)) or "" if is_link_local(source) else ""


def is_of_a_router(packet: bytes, hop_limit: int, source: str) -> bool:
    """Return True if an ICMPv6 message is a valid router advertisement (section 6.1.2) of a real router."""
    # A real router offers a way out (its lifetime is not 0), addresses by DHCPv6 (M, O) or prefixes. An advertisement
    # that offers none of them is one of another edge.
    if len(packet) < 16 or packet[:2] != bytes((ROUTER_ADVERTISEMENT, 0)) or hop_limit != HOP_LIMIT:
        return False
    if not is_link_local(source) or _options(packet, 16) is None:
        return False
    flags, lifetime = struct.unpack_from("!BH", packet, 5)
    return bool(lifetime or flags & (_MANAGED | _OTHER) or len(packet) > 16)


@dataclass(frozen=True, slots=True)
class Advertised:
    """The content of a router advertisement; by default it offers nothing.

    managed: hosts get addresses and all else by DHCPv6 (flags M and O).
    lifetime: seconds for which this host is a router; 0: it is none.
    prefixes: the prefixes that are on the link.
    mac: the interface's hardware address; empty if it has none.
    """

    managed: bool = False
    lifetime: int = 0
    prefixes: Sequence[IPv6Network] = ()
    mac: bytes = b""


NOTHING_OFFERED: Final = Advertised()


def router_advertisement(content: Advertised = NOTHING_OFFERED) -> bytes:
    """Return an ICMPv6 router advertisement (section 4.2)."""
    flags = _MANAGED | _OTHER if content.managed else 0
    # Zero stands for "unspecified" in hop limit, reachable time and retransmission timer.
    message = struct.pack("!BBHBBHII", ROUTER_ADVERTISEMENT, 0, 0, 0, flags, content.lifetime, 0, 0)
    if len(content.mac) == 6:
        message += _ETHERNET.pack(_SOURCE_LINK_LAYER, 1, content.mac)
    for prefix in content.prefixes:
        head = (_PREFIX_INFORMATION, 4, prefix.prefixlen, _ON_LINK, _PREFIX_SECONDS, _PREFIX_SECONDS, 0)
        message += struct.pack("!BBBBIII", *head) + prefix.network_address.packed
    return message
