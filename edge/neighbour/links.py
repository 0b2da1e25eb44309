"""This host's own interfaces, as the kernel knows them: whether they are there and up, and their addresses.

One interface is asked for by its name (rtnetlink(7): RTM_GETLINK, RTM_GETADDR), which takes some 50 microseconds
however many others there are. `LinkChanges` tells that something has changed; what, is found by asking again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final

from edge.neighbour.netlink import HEADER, Multicast, ask, ask_for_all, attribute, attributes_of, question

# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/if.h
_RTMGRP_LINK: Final = 1
_RTMGRP_IPV4_IFADDR: Final = 0x10
_RTMGRP_IPV6_IFADDR: Final = 0x100
_RTM_NEWLINK: Final = 16
_RTM_GETLINK: Final = 18
_RTM_NEWADDR: Final = 20
_RTM_GETADDR: Final = 22
_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_LINK: Final = 5
_IFLA_MASTER: Final = 10
_IFLA_LINK_NETNSID: Final = 37
_ARPHRD_ETHER: Final = 1  # linux/if_arp.h
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_IFA_FLAGS: Final = 8
_IFLA_ADDRESS: Final = 1
_NOT_OURS_TO_TELL: Final = 0x01 | 0x08 | 0x20 | 0x40
"""IFA_F_TEMPORARY (RFC 8981), DADFAILED, DEPRECATED, TENTATIVE: what nobody is to be told of, or not yet."""
_PERMANENT: Final = 0x80  # IFA_F_PERMANENT
_IFF_UP: Final = 1
_IFF_LOWER_UP: Final = 0x10000
_SCOPE_UNIVERSE: Final = 0
_LONGEST_NAME: Final = 15  # IFNAMSIZ, with its zero

_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBi")  # ifaddrmsg: family, prefix length, flags, scope, index

SETTLE_SECONDS: Final = 0.1
"""How long changes are gathered: an address that is replaced goes for a moment, and many tell of one thing."""


@dataclass(frozen=True, slots=True)
class Link:
    """An interface. `up`: it is switched on; `carrier`: and there is somebody at the other end of its cable.

    `index` is another one when it was removed and made anew. `addresses`, with their networks, are in the kernel's
    order, but those of this link or host alone come last. `addresses6` are those of IPv6 that others can be told, again
    in the kernel's order, but those that a router's advertisement made come last; `mac` is empty where it has none.
    """

    name: str
    index: int
    up: bool
    carrier: bool
    mtu: int
    addresses: tuple[IPv4Interface, ...] = ()
    addresses6: tuple[IPv6Interface, ...] = ()
    mac: bytes = b""

    def has(self, address: str) -> bool:
        """Whether the address (dotted) is one of this interface's."""
        return any(str(one.ip) == address for one in self.addresses)


def look(name: str) -> Link | None:
    """The interface of this name; None if there is none. Raises OSError where the kernel can't be asked."""
    encoded = name.encode(errors="surrogateescape")
    if not 0 < len(encoded) <= _LONGEST_NAME or b"\0" in encoded:
        return None
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, encoded + b"\0")
    try:
        answer = ask(question(_RTM_GETLINK, body, 1))
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EINVAL, errno.ERANGE):  # the last two: no interface can have this name
            return None
        raise
    return _read(name, answer)


def other_ethernets(names: Collection[str]) -> list[str]:
    """The Ethernet interfaces of this host, beside `names`, that are up and by which packets come to it themselves.

    Not the ports of bridges and bonds, nor what a VLAN or the like is on: their packets are seen once more on that.
    Raises OSError where the kernel can't be asked.
    """
    found: dict[int, str] = {}
    lowers: dict[int, int] = {}
    for message in ask_for_all(question(_RTM_GETLINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0), 1, dump=True)):
        if HEADER.unpack_from(message)[1] != _RTM_NEWLINK or len(message) < HEADER.size + _LINK.size:
            continue
        _, kind, index, flags, _ = _LINK.unpack_from(message, HEADER.size)
        attributes = attributes_of(message, HEADER.size + _LINK.size)
        name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="surrogateescape")
        lower = int.from_bytes(attributes.get(_IFLA_LINK, b""), sys.byteorder)
        if lower and lower != index and _IFLA_LINK_NETNSID not in attributes:
            lowers[index] = lower
        if kind == _ARPHRD_ETHER and flags & _IFF_UP and _IFLA_MASTER not in attributes and name not in names:
            found[index] = name
    # The two ends of a veth are each other's, and neither is below.
    below = {lower for index, lower in lowers.items() if lowers.get(lower) != index}
    return [name for index, name in found.items() if index not in below]


def _read(name: str, answer: bytes) -> Link | None:
    kind = HEADER.unpack_from(answer)[1]
    if kind != _RTM_NEWLINK or len(answer) < HEADER.size + _LINK.size:
        raise OSError(errno.EPROTO, "RTM_GETLINK: the kernel answers something else")
    _, _, index, flags, _ = _LINK.unpack_from(answer, HEADER.size)
    attributes = attributes_of(answer, HEADER.size + _LINK.size)
    if attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0") != name.encode(errors="surrogateescape"):
        return None  # an alternative name (ip-link(8), altname), by which sockets can't be bound
    (mtu,) = struct.unpack("=I", attributes.get(_IFLA_MTU, bytes(4)))
    up = bool(flags & _IFF_UP)
    carrier, mac = up and bool(flags & _IFF_LOWER_UP), attributes.get(_IFLA_ADDRESS, b"")
    return Link(name, index, up, carrier, mtu, _addresses(index), _addresses6(index), mac if len(mac) == 6 else b"")


def _addresses(index: int) -> tuple[IPv4Interface, ...]:
    body = _ADDRESS.pack(socket.AF_INET, 0, 0, 0, index)
    found: list[tuple[bool, IPv4Interface]] = []
    for message in ask_for_all(question(_RTM_GETADDR, body, 1, dump=True)):
        if HEADER.unpack_from(message)[1] != _RTM_NEWADDR:
            continue
        family, prefix, _, scope, of = _ADDRESS.unpack_from(message, HEADER.size)
        attributes = attributes_of(message, HEADER.size + _ADDRESS.size)
        local = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS, b"")  # of a tunnel, that is the other end's
        if family == socket.AF_INET and of == index and len(local) == 4:
            found.append((scope != _SCOPE_UNIVERSE, IPv4Interface((IPv4Address(local), prefix))))
    return tuple(address for _, address in sorted(found, key=lambda one: one[0]))


def _addresses6(index: int) -> tuple[IPv6Interface, ...]:
    body = _ADDRESS.pack(socket.AF_INET6, 0, 0, 0, index)
    found: list[tuple[bool, IPv6Interface]] = []
    try:
        messages = [*ask_for_all(question(_RTM_GETADDR, body, 1, dump=True))]
    except OSError:
        return ()  # of a kernel without IPv6
    for message in messages:
        if HEADER.unpack_from(message)[1] != _RTM_NEWADDR:
            continue
        family, prefix, flags, scope, of = _ADDRESS.unpack_from(message, HEADER.size)
        attributes = attributes_of(message, HEADER.size + _ADDRESS.size)
        local = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS, b"")
        flags |= int.from_bytes(attributes.get(_IFA_FLAGS, b""), sys.byteorder)
        is_told = scope == _SCOPE_UNIVERSE and not flags & _NOT_OURS_TO_TELL
        if family == socket.AF_INET6 and of == index and len(local) == 16 and is_told:
            found.append((not flags & _PERMANENT, IPv6Interface((IPv6Address(local), prefix))))
    return tuple(address for _, address in sorted(found, key=lambda one: one[0]))


class LinkChanges:
    """Calls `changed()` some time after links or addresses of this host have changed. Needs a running loop."""

    def __init__(self, changed: Callable[[], None], settle_seconds: float = SETTLE_SECONDS) -> None:
        """Raises OSError where the kernel has no such messages."""
        self._changed = changed
        self._settle_seconds = settle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._multicast = Multicast(_RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR, self._heard)

    def close(self) -> None:
        """Hear no more."""
        self._multicast.close()
        if self._timer is not None:
            self._timer.cancel()

    def _heard(self, _message: bytes | None) -> None:
        if self._timer is None:  # and not later with each: a link that flaps for ever is to be looked at, too
            self._timer = self._loop.call_later(self._settle_seconds, self._settled)

    def _settled(self) -> None:
        self._timer = None
        self._changed()
