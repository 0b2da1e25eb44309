"""Whether what we send to an address, by one interface, can get there, as far as this host knows.

DHCP's sockets are bound to their interface, so the kernel takes an address that it has no route to for one of that
link, and asks there by ARP in vain. The same question without the bound interface tells what is so (`route`), and the
neighbour table whether anybody has answered.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address

from edge.neighbour.route import RouteKind, route_to
from edge.neighbour.table import NeighbourTable


def trouble(address: str, interfaces: Collection[str]) -> str:
    """Why answers to `address` (dotted) that leave by one of `interfaces` are lost, in a clause; empty: not known.

    `interfaces` are those that machines are served on. To be asked when answers have been sent already.
    """
    try:
        route = route_to(IPv4Address(address))
        name = socket.if_indextoname(route.interface) if route.interface else ""
        if route.kind is RouteKind.NONE:
            return f"this host has no route to it ('ip route get {address}')"
        if route.kind not in (RouteKind.LINK, RouteKind.ROUTER):
            return f"{address} is {route.kind.value}"
        if interfaces and name not in interfaces:
            here = ", ".join(sorted(interfaces))
            return f"this host's route to it leads by {name}, and its answers leave by {here}"
        if route.kind is RouteKind.LINK and not _has_answered(address, name):
            return f"nobody answers ARP for it on {name}"
    except (OSError, ValueError):
        pass  # it can't be told: a kernel that does not say, or an interface that has just gone
    return ""


def _has_answered(address: str, interface: str) -> bool:
    """Raises OSError."""
    table = NeighbourTable((interface,))
    try:
        return table.mac(address) is not None
    finally:
        table.close()
