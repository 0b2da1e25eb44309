"""Where the kernel sends a packet for an address: to this host itself, onto a link of ours, to a router.

The kernel is asked for the route to one address (rtnetlink, RTM_GETROUTE with a destination), as it would look it up
for a packet: that knows all interfaces, addresses that come and go (VRRP, DHCP), and networks that are routed to this
host as a whole. It takes some 20 microseconds.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from edge.neighbour.netlink import HEADER, NLMSG_ERROR, attribute, attributes_of, error_of, open_socket, question

# linux/rtnetlink.h
_RTM_NEWROUTE: Final = 24
_RTM_GETROUTE: Final = 26
_RTA_DST: Final = 1
_RTA_OIF: Final = 4
_RTA_GATEWAY: Final = 5
_RTA_VIA: Final = 18
_NO_ROUTE: Final = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EACCES,
    errno.EINVAL,
    errno.EAFNOSUPPORT,
    errno.EOPNOTSUPP,
)
"""No route; a route that says so (unreachable, prohibit, blackhole); no IPv6: nothing can be sent there."""

_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, lengths of destination and source, tos, table, ..., type, flags


class RouteKind(Enum):
    """Where a route leads."""

    OWN = "this host's own address"
    LINK = "a host on a link of ours"
    ROUTER = "behind a router"
    EVERYBODY = "all of a link"
    NONE = "none"


_KINDS: Final = {  # RTN_UNICAST, RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST
    1: RouteKind.LINK,
    2: RouteKind.OWN,
    3: RouteKind.EVERYBODY,
    4: RouteKind.EVERYBODY,
}


class Route(NamedTuple):
    """What it is, and the number of the interface that it begins with; 0: none."""

    kind: RouteKind
    interface: int = 0


def route_to(address: IPv4Address | IPv6Address) -> Route:
    """The route to `address`. Raises OSError."""
    with open_socket() as kernel:
        kernel.send(route_request(address, 1))
        return parse_route(kernel.recv(65536))


def is_own(address: IPv4Address | IPv6Address) -> bool:
    """Whether packets to `address` would not leave this host, or would go to all of a link. Raises OSError."""
    return route_to(address).kind in (RouteKind.OWN, RouteKind.EVERYBODY)


def route_request(address: IPv4Address | IPv6Address, sequence: int, interface: int = 0) -> bytes:
    """Return the rtnetlink request for the route to an address.

    `interface` is the index of the interface that the sender is bound to; 0 if the sender is not bound. For a bound
    sender Linux assumes that an IPv4 address without a route by that interface is on its link
    (ip_route_output_key_hash_rcu), and that an IPv6 address without one is unreachable (RT6_LOOKUP_F_IFACE).
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, address.packed)
    if interface:
        body += attribute(_RTA_OIF, interface.to_bytes(4, sys.byteorder))
    return question(_RTM_GETROUTE, body, sequence)


def parse_route(answer: bytes) -> Route:
    """What the kernel's answer says. Raises OSError."""
    kind = HEADER.unpack_from(answer)[1]
    if kind == NLMSG_ERROR:
        number = error_of(answer)
        if number in _NO_ROUTE:
            return Route(RouteKind.NONE)
        raise OSError(number, f"RTM_GETROUTE: {os.strerror(number)}")
    if kind != _RTM_NEWROUTE:
        raise OSError(errno.EPROTO, "RTM_GETROUTE: the kernel answers something else")
    attributes = attributes_of(answer, HEADER.size + _ROUTE.size)
    interface = int.from_bytes(attributes.get(_RTA_OIF, b""), sys.byteorder)
    to = _KINDS.get(_ROUTE.unpack_from(answer, HEADER.size)[7], RouteKind.NONE)
    if to is RouteKind.LINK and (_RTA_GATEWAY in attributes or _RTA_VIA in attributes):
        to = RouteKind.ROUTER
    return Route(to, interface)
