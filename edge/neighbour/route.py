"""Queries the route to an address: to this host itself, to a host on a link of ours, or to a router.

The kernel looks the route up as it does for a packet (rtnetlink, RTM_GETROUTE with a destination). So it knows all
interfaces, addresses that come and go (VRRP, DHCP), and networks that are routed to this host as a whole. A query takes
some 20 microseconds.
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

from edge.neighbour.netlink import HEADER, NLMSG_ERROR, attribute, attributes_of, error_of, open_socket, request

# linux/rtnetlink.h
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_VIA = 1, 4, 5, 18
_NO_ROUTE: Final = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EACCES,
    errno.EINVAL,
    errno.EAFNOSUPPORT,
    errno.EOPNOTSUPP,
)
"""Errors for an address that nothing can be sent to: no route, an unreachable, prohibit or blackhole route, no IPv6."""

_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, lengths of destination and source, tos, table, ..., type, flags


class RouteKind(Enum):
    """The kind of a route, by where it leads."""

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
    """The kind of a route, and the number of the interface that it begins with (0: none)."""

    kind: RouteKind
    interface: int = 0


def route_to(address: IPv4Address | IPv6Address) -> Route:
    """Query the route to an address. Raises OSError."""
    with open_socket() as kernel:
        kernel.send(route_request(address, 1))
        return parse_route(kernel.recv(65536))


def is_own(address: IPv4Address | IPv6Address) -> bool:
    """Return whether packets to an address stay on this host or go to all hosts of a link. Raises OSError."""
    return route_to(address).kind in (RouteKind.OWN, RouteKind.EVERYBODY)


def route_request(address: IPv4Address | IPv6Address, sequence: int, interface: int = 0) -> bytes:
    """Return the rtnetlink request for the route of a sender that is bound to `interface` (0: not bound)."""
    # For a bound sender Linux assumes that an IPv4 address without a route by that interface is on its link
    # (ip_route_output_key_hash_rcu), and that an IPv6 address without one is unreachable (RT6_LOOKUP_F_IFACE).
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, address.packed)
    if interface:
        body += attribute(_RTA_OIF, interface.to_bytes(4, sys.byteorder))
    return request(_RTM_GETROUTE, body, sequence)


def parse_route(answer: bytes) -> Route:
    """Parse the kernel's answer to `route_request`. Raises OSError."""
    kind = HEADER.unpack_from(answer)[1]
    if kind == NLMSG_ERROR:
        number = error_of(answer)
        if number in _NO_ROUTE:
            return Route(RouteKind.NONE)
        raise OSError(number, f"RTM_GETROUTE: {os.strerror(number)}")
    if kind != _RTM_NEWROUTE:
        raise OSError(errno.EPROTO, "RTM_GETROUTE: the kernel sent an answer of another type")
    attributes = attributes_of(answer, HEADER.size + _ROUTE.size)
    interface = int.from_bytes(attributes.get(_RTA_OIF, b""), sys.byteorder)
    to = _KINDS.get(_ROUTE.unpack_from(answer, HEADER.size)[7], RouteKind.NONE)
    if to is RouteKind.LINK and (_RTA_GATEWAY in attributes or _RTA_VIA in attributes):
        to = RouteKind.ROUTER
    return Route(to, interface)
