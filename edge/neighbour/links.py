"""This host's interfaces and their addresses: read, watched for changes, and an address held for a limited time.

A query for one interface by its name (rtnetlink(7): RTM_GETLINK, RTM_GETADDR) takes some 50 microseconds, however many
others there are. `LinkChanges` notifies that something has changed; a new query shows the change.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final, NamedTuple

from edge.neighbour.netlink import HEADER, Notifications, ask, attribute, attributes_of, dump, request

# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/if.h, linux/if_arp.h, linux/netlink.h
_RTMGRP_LINK: Final = 1
_RTMGRP_IPV4_IFADDR: Final = 0x10
_RTMGRP_IPV6_IFADDR: Final = 0x100
_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_RTM_NEWADDR, _RTM_DELADDR, _RTM_GETADDR = 20, 21, 22
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINK_NETNSID = 1, 3, 4, 5, 10, 37
_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 6, 8
_IFA_F_TEMPORARY: Final = 0x01  # RFC 8981
_IFA_F_DADFAILED: Final = 0x08
_IFA_F_DEPRECATED: Final = 0x20
_IFA_F_TENTATIVE: Final = 0x40
_IFA_F_PERMANENT: Final = 0x80
_IFA_F_NOPREFIXROUTE: Final = 0x200
_UNUSABLE: Final = _IFA_F_TEMPORARY | _IFA_F_DADFAILED | _IFA_F_DEPRECATED | _IFA_F_TENTATIVE
"""Flags of IPv6 addresses that machines must not use, or not yet."""
_ARPHRD_ETHER: Final = 1
_IFF_UP: Final = 1
_IFF_LOWER_UP: Final = 0x10000
_SCOPE_UNIVERSE: Final = 0
_MAX_NAME_BYTES: Final = 15  # IFNAMSIZ, without its zero
_NLM_F_ACK, _NLM_F_REPLACE, _NLM_F_CREATE = 0x4, 0x100, 0x400

_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBi")  # ifaddrmsg: family, prefix length, flags, scope, index
_CACHEINFO = struct.Struct("=IIII")  # ifa_cacheinfo: preferred, valid (seconds), created, updated

SETTLE_SECONDS: Final = 0.1
"""The delay after a change: an address that is replaced is away for a moment, and one change has many messages."""

METADATA_ADDRESS: Final = IPv6Address("fe80::a9fe:a9fe")
"""The link-local address of OpenStack's metadata service over IPv6, on each link."""
METADATA_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class HostLink:
    """An interface.

    index: its number, a new one after it was removed and created again.
    up: it is switched on.
    carrier: it is up, and connected to another device.
    addresses: its IPv4 addresses in the kernel's order; those that are valid on the link or host only come last.
    addresses6: its IPv6 addresses that machines can use, in the kernel's order; those that a router's advertisement
        made come last.
    mac: empty if it has none.
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
        """Return whether the interface has the IPv4 address (dotted)."""
        return any(str(one.ip) == address for one in self.addresses)


def look(name: str) -> HostLink | None:
    """Query the interface of this name. Return None if there is none. Raises OSError if the kernel does not answer."""
    encoded = name.encode(errors="surrogateescape")
    if not 0 < len(encoded) <= _MAX_NAME_BYTES or b"\0" in encoded:
        return None
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, encoded + b"\0")
    try:
        answer = ask(request(_RTM_GETLINK, body))
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EINVAL, errno.ERANGE):  # the last two: no interface can have this name
            return None
        raise
    if HEADER.unpack_from(answer)[1] != _RTM_NEWLINK or len(answer) < HEADER.size + _LINK.size:
        raise OSError(errno.EPROTO, "RTM_GETLINK: the kernel sent an answer of another type")
    _, _, index, flags, _ = _LINK.unpack_from(answer, HEADER.size)
    attributes = attributes_of(answer, HEADER.size + _LINK.size)
    if attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0") != encoded:
        return None  # The kernel takes alternative names (ip-link(8), altname), but sockets can't be bound by them.
    (mtu,) = struct.unpack("=I", attributes.get(_IFLA_MTU, bytes(4)))
    up = bool(flags & _IFF_UP)
    carrier, mac = up and bool(flags & _IFF_LOWER_UP), attributes.get(_IFLA_ADDRESS, b"")
    found = sorted(_addresses(socket.AF_INET, index), key=lambda each: each.scope != _SCOPE_UNIVERSE)
    ipv4 = tuple(IPv4Interface((IPv4Address(each.packed), each.prefix)) for each in found)
    return HostLink(name, index, up, carrier, mtu, ipv4, _ipv6(index), mac if len(mac) == 6 else b"")


def other_ethernets(names: Collection[str]) -> list[str]:
    """Return the Ethernet interfaces beside `names` that are up and receive packets themselves. Raises OSError."""
    # Ports of bridges and bonds, and the interfaces below VLANs and the like, are left out: their packets are received
    # again by the interface above.
    found: dict[int, str] = {}
    lowers: dict[int, int] = {}
    for message in dump(_RTM_GETLINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0), _RTM_NEWLINK):
        _, kind, index, flags, _ = _LINK.unpack_from(message, HEADER.size)
        attributes = attributes_of(message, HEADER.size + _LINK.size)
        name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="surrogateescape")
        lower = int.from_bytes(attributes.get(_IFLA_LINK, b""), sys.byteorder)
        if lower and lower != index and _IFLA_LINK_NETNSID not in attributes:
            lowers[index] = lower
        if kind == _ARPHRD_ETHER and flags & _IFF_UP and _IFLA_MASTER not in attributes and name not in names:
            found[index] = name
    # The two ends of a veth refer to each other, and neither is below the other.
    below = {lower for index, lower in lowers.items() if lowers.get(lower) != index}
    return [name for index, name in found.items() if index not in below]


class _Address(NamedTuple):
    """An address as the kernel has it."""

    packed: bytes
    prefix: int
    flags: int
    scope: int


def _addresses(family: int, index: int) -> Iterator[_Address]:
    """Yield the addresses of an interface. Raises OSError."""
    for message in dump(_RTM_GETADDR, _ADDRESS.pack(family, 0, 0, 0, index), _RTM_NEWADDR):
        found, prefix, flags, scope, interface = _ADDRESS.unpack_from(message, HEADER.size)
        if found != family or interface != index:
            continue
        attributes = attributes_of(message, HEADER.size + _ADDRESS.size)
        packed = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS, b"")  # of a tunnel: that of the other end
        flags |= int.from_bytes(attributes.get(_IFA_FLAGS, b""), sys.byteorder)
        if len(packed) == (4 if family == socket.AF_INET else 16):
            yield _Address(packed, prefix, flags, scope)


def _ipv6(index: int) -> tuple[IPv6Interface, ...]:
    try:
        found = sorted(_addresses(socket.AF_INET6, index), key=lambda each: not each.flags & _IFA_F_PERMANENT)
    except OSError:
        return ()  # a kernel without IPv6
    usable = [each for each in found if each.scope == _SCOPE_UNIVERSE and not each.flags & _UNUSABLE]
    return tuple(IPv6Interface((IPv6Address(each.packed), each.prefix)) for each in usable)


class LinkChanges:
    """Calls `on_change()` soon after links or addresses of this host have changed. Needs a running event loop."""

    def __init__(self, on_change: Callable[[], None], settle_seconds: float = SETTLE_SECONDS) -> None:
        """Raises OSError if the kernel has no such notifications."""
        self._on_change = on_change
        self._settle_seconds = settle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        groups = _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR
        self._notifications = Notifications(groups, self._on_notification)

    def close(self) -> None:
        """Stop the calls."""
        self._notifications.close()
        if self._timer is not None:
            self._timer.cancel()

    def _on_notification(self, _message: bytes | None) -> None:
        # A change does not restart the timer, so that a link that flaps all the time is reported, too.
        if self._timer is None:
            self._timer = self._loop.call_later(self._settle_seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._on_change()


# --- an address that this host holds for a limited time ---------------------------------------------------------------


class AddressState(Enum):
    """The state of an IPv6 address on a link of this host."""

    ABSENT = "absent"
    TENTATIVE = "tentative"
    """The kernel is asking the link for it (duplicate address detection, RFC 4862 section 5.4)."""
    DUPLICATE = "duplicate"
    """Another host has it."""
    HELD = "held"
    """This host has it for a limited time."""
    FIXED = "fixed"
    """This host has it without a limit: the administrator has configured it."""


def hold_address(index: int, address: IPv6Address, seconds: int) -> None:
    """Give an interface an IPv6 address for some seconds from now on. Needs CAP_NET_ADMIN. Raises OSError."""
    # The kernel removes the address when the time is over (RTM_NEWADDR with a valid lifetime), also if this process was
    # killed. It is deprecated from the start: no connection of this host uses it as the source.
    lifetime = attribute(_IFA_CACHEINFO, _CACHEINFO.pack(0, seconds, 0, 0))
    # Without a route to its prefix, which would end with it and belongs to the link.
    flags = attribute(_IFA_FLAGS, struct.pack("=I", _IFA_F_NOPREFIXROUTE))
    _change(_RTM_NEWADDR, _NLM_F_CREATE | _NLM_F_REPLACE, index, address, lifetime + flags)


def release_address(index: int, address: IPv6Address) -> None:
    """Remove an IPv6 address from the interface of this number. Raises OSError, also if it does not have it."""
    _change(_RTM_DELADDR, 0, index, address, b"")


def _change(kind: int, flags: int, index: int, address: IPv6Address, more: bytes) -> None:
    body = _ADDRESS.pack(socket.AF_INET6, 128, 0, 0, index)
    body += attribute(_IFA_LOCAL, address.packed) + attribute(_IFA_ADDRESS, address.packed) + more
    ask(request(kind, body, flags=_NLM_F_ACK | flags))


def address_state(index: int, address: IPv6Address) -> AddressState:
    """Return the state of an IPv6 address on the interface of this number. Raises OSError."""
    for each in _addresses(socket.AF_INET6, index):
        if each.packed != address.packed:
            continue
        if each.flags & _IFA_F_DADFAILED:
            return AddressState.DUPLICATE
        if each.flags & _IFA_F_TENTATIVE:
            return AddressState.TENTATIVE
        return AddressState.FIXED if each.flags & _IFA_F_PERMANENT else AddressState.HELD
    return AddressState.ABSENT
