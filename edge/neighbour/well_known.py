"""An IPv6 address that this host has on a link only while it holds it: taken, kept, looked at and given up.

Taken for some seconds at a time (RTM_NEWADDR with a valid lifetime, rtnetlink(7)), so that the kernel takes it back if
whoever holds it is killed. The kernel asks the link first whether somebody has it (duplicate address detection, RFC
4862 section 5.4). It is deprecated from the start: nothing that this host begins comes from it. Needs CAP_NET_ADMIN.
"""

from __future__ import annotations

import socket
import struct
from enum import StrEnum
from ipaddress import IPv6Address
from typing import Final

from edge.neighbour.netlink import HEADER, NLM_F_REQUEST, ask, ask_for_all, attribute, attributes_of, question

# linux/netlink.h, linux/rtnetlink.h, linux/if_addr.h
_NLM_F_ACK: Final = 0x4
_NLM_F_REPLACE: Final = 0x100
_NLM_F_CREATE: Final = 0x400
_RTM_NEWADDR: Final = 20
_RTM_DELADDR: Final = 21
_RTM_GETADDR: Final = 22
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_IFA_CACHEINFO: Final = 6
_IFA_FLAGS: Final = 8
_DADFAILED: Final = 0x08
_TENTATIVE: Final = 0x40
_PERMANENT: Final = 0x80
_NOPREFIXROUTE: Final = 0x200

METADATA_ADDRESS: Final = IPv6Address("fe80::a9fe:a9fe")
"""OpenStack's for metadata over IPv6, on each link; and its port."""
METADATA_PORT: Final = 80

_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_CACHEINFO = struct.Struct("=IIII")  # ifa_cacheinfo: preferred, valid (seconds), created, updated


class Held(StrEnum):
    """How it is with the address on a link."""

    NOT = "not there"
    TRIED = "tried"  # the link is being asked
    REFUSED = "refused"  # another host has it
    OURS = "ours"  # for a time
    FIXED = "fixed"  # whoever looks after this host's addresses has given it to the link


def hold(index: int, address: IPv6Address, seconds: int) -> None:
    """Have the link of this number have the address for so long, from now on. Raises OSError."""
    lifetime = attribute(_IFA_CACHEINFO, _CACHEINFO.pack(0, seconds, 0, 0))
    # Without a route to its prefix, which would end with it and be the link's own.
    flags = attribute(_IFA_FLAGS, struct.pack("=I", _NOPREFIXROUTE))
    _change(_RTM_NEWADDR, _NLM_F_CREATE | _NLM_F_REPLACE, index, address, lifetime + flags)


def give_up(index: int, address: IPv6Address) -> None:
    """Have the link have it no more. Raises OSError, also where it has not."""
    _change(_RTM_DELADDR, 0, index, address, b"")


def look_at(index: int, address: IPv6Address) -> Held:
    """How it is now. Raises OSError."""
    body = _ADDRESS.pack(socket.AF_INET6, 0, 0, 0, index)
    for message in ask_for_all(question(_RTM_GETADDR, body, 1, dump=True)):
        if HEADER.unpack_from(message)[1] != _RTM_NEWADDR:
            continue
        family, _, short, _, of = _ADDRESS.unpack_from(message, HEADER.size)
        attributes = attributes_of(message, HEADER.size + _ADDRESS.size)
        if (family, of, attributes.get(_IFA_ADDRESS)) != (socket.AF_INET6, index, address.packed):
            continue
        flags = short | struct.unpack("=I", attributes.get(_IFA_FLAGS, bytes(4)))[0]
        if flags & _DADFAILED:
            return Held.REFUSED
        if flags & _TENTATIVE:
            return Held.TRIED
        return Held.FIXED if flags & _PERMANENT else Held.OURS
    return Held.NOT


def _change(kind: int, flags: int, index: int, address: IPv6Address, more: bytes) -> None:
    body = _ADDRESS.pack(socket.AF_INET6, 128, 0, 0, index)
    body += attribute(_IFA_LOCAL, address.packed) + attribute(_IFA_ADDRESS, address.packed) + more
    ask(HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | _NLM_F_ACK | flags, 1, 0) + body)
