"""The kernel's neighbour table: the hardware address behind an IP address on one of our links.

A host that sends packets to this host on a link has an entry, made from its ARP packets or, with IPv6, from neighbour
discovery (RFC 4861). The kernel makes such an entry on any link the packet came from, and does not check whether the
address belongs there: a host on one link can make entries for the addresses of all other links. So an entry counts only
on the link by which our answer to the address leaves. The route tells that link (RTM_GETROUTE). The host of that entry
receives the answer, and no other host does.

    an unbound socket (TCP)                 the route to the address
    a socket bound to an interface (TFTP)   the route by that interface, as the kernel looks it up for that socket

Both queries use rtnetlink (RTM_GETNEIGH with a destination needs Linux 5.0) and take some microseconds however large
the tables are. Of several routes the kernel's preferred one counts; of a multipath route, the next hop that the kernel
picks for the address. Routing rules for source addresses, marks or kinds of packets are not followed.

A host that has not asked for us by ARP, because it remembers us or has just taken another host's address, has no entry.
`AddressResolution` and `LinkLocalResolution` make the kernel ask for it, before it gets the data of one machine.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from ipaddress import IPv4Address, ip_address
from typing import Final

from edge.listener import packet_info
from edge.neighbour import netlink
from edge.neighbour.netlink import HEADER
from edge.neighbour.route import Route, RouteKind, parse_route, route_request, route_to
from tink.limits import Allowance
from tink.mac import guid_mac
from tink.net.addresses import is_link_local_packed

log = logging.getLogger(__name__)

RESOLUTION_SECONDS: Final = 1.0
"""The time limit for an answer; the kernel asks three times, a second apart, and a host answers at once."""
MAX_SOLICITATIONS_A_SECOND: Final = 100
"""A limit, because a host can send packets from any number of link-local addresses."""
_POLL_SECONDS: Final = 0.01
_DISCARD_PORT: Final = 9  # RFC 863

# linux/rtnetlink.h, linux/neighbour.h, linux/if_arp.h, netdevice(7)
_RTMGRP_NEIGH: Final = 4
_RTM_NEWNEIGH, _RTM_DELNEIGH, _RTM_GETNEIGH = 28, 29, 30
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFHWADDR: Final = 0x8927
_IFF_NOARP: Final = 0x80
_ARPHRD_ETHER: Final = 1
_ARPHRD_INFINIBAND: Final = 32
_INFINIBAND_BYTES: Final = 20  # RFC 4391 section 9.1.1; the last eight are the port's GUID
_NDA_DST, _NDA_LLADDR = 1, 2
_NTF_PROXY: Final = 0x08
_NUD_KNOWN: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x80
"""Reachable, stale, delay, probe, permanent: the states in which the kernel would use the hardware address."""

_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, interface, state, flags, type
_INTERFACE_REQUEST = struct.Struct("=16sH238x")  # ifreq: name, and flags or the family of the hardware address


def neighbour_changes(on_change: Callable[[str | None], None]) -> netlink.Notifications:
    """Call `on_change(ip)` for each entry that changes; None: any entry may have. Raises OSError."""

    def notify(message: bytes | None) -> None:
        try:
            ip = changed_address(message) if message is not None else None
        except OSError:  # The link has gone, and may come back under its name.
            message = ip = None
        if message is None or ip is not None:
            on_change(ip)

    return netlink.Notifications(_RTMGRP_NEIGH, notify)


class NeighbourTable:
    """Answers queries from the table of this network namespace, for `interfaces` only."""

    def __init__(self, interfaces: Iterable[str]) -> None:
        """Raises OSError if the kernel does not answer queries for single entries."""
        self._interfaces = tuple(interfaces)
        self._socket = netlink.open_socket()
        self._indexes: dict[str, int] = {}
        self._sequence = 0
        self._ask(socket.if_nametoindex("lo"), socket.inet_aton("127.0.0.1"))

    def close(self) -> None:
        """Close the socket to the kernel."""
        self._socket.close()

    def mac(self, ip: str, interface: str = "") -> str | None:
        """Return the hardware address (lower case, colons) of the host that receives packets to `ip`.

        `interface` is the interface that the sending socket is bound to; empty if it is not bound. Return None if the
        host is not on a link of ours, or the kernel does not know its hardware address.

        A link-local address is looked up on the interface of its zone, `fe80::1%eth1`. Without a zone it is looked up
        only if there is one interface: on another link the address is another host's.
        """
        bare, _, zone = ip.partition("%")
        address = _packed(bare)
        if address is None:
            return None
        if is_link_local_packed(address):
            name = zone or interface or (self._interfaces[0] if len(self._interfaces) == 1 else "")
            return self._mac_on(name, address) if name in self._interfaces else None
        try:
            route = self._route(address, interface)
            if route.kind is RouteKind.LINK and socket.if_indextoname(route.interface) in self._interfaces:
                return self._ask(route.interface, address)
        except OSError:
            pass  # The interface has just gone, or the kernel's answer was lost.
        return None

    def _mac_on(self, name: str, address: bytes) -> str | None:
        """Return the hardware address at a link-local address on one of our interfaces."""
        index = self._indexes.get(name)
        found = self._ask(index, address) if index is not None else None
        if found is None:
            try:
                now = self._indexes[name] = socket.if_nametoindex(name)
            except OSError:
                self._indexes.pop(name, None)  # the interface is gone; it may come back with another number
                return None
            found = self._ask(now, address) if now != index else None
        return found

    def on_link(self, ip: str, interface: str = "") -> bool:
        """Return True if `ip` is on a link of ours, so that ARP or neighbour discovery finds the host."""
        # True as well while the kernel can't answer, so that no address is believed meanwhile.
        address = _packed(ip.partition("%")[0])
        if address is None:
            return False
        if is_link_local_packed(address):
            return True  # No route tells the link.
        try:
            route = self._route(address, interface)
            if route.kind is not RouteKind.LINK:
                return False
            name = socket.if_indextoname(route.interface)
            return name in self._interfaces and self._has_arp(name)
        except OSError:
            return True

    def link(self, ip: str) -> str:
        """Return our interface on whose link the address is (not a link-local one), or ""."""
        address = _packed(ip)
        try:
            route = self._route(address) if address is not None else Route(RouteKind.NONE)
            name = socket.if_indextoname(route.interface) if route.kind is RouteKind.LINK else ""
        except OSError:
            return ""
        return name if name in self._interfaces else ""

    def _route(self, address: bytes, interface: str = "") -> Route:
        """Query the kernel. Raises OSError if the interface has gone or the kernel's answer was lost."""
        index = socket.if_nametoindex(interface) if interface else 0
        answer = self._answer_to(route_request(ip_address(address), self._next(), index))
        if answer is None:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return parse_route(answer)

    def _has_arp(self, name: str) -> bool:
        """Return True if it is an Ethernet or InfiniBand, and not a tunnel, say. Raises OSError."""
        wanted = _INTERFACE_REQUEST.pack(name.encode(), 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            _, flags = _INTERFACE_REQUEST.unpack(fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, wanted))
            _, kind = _INTERFACE_REQUEST.unpack(fcntl.ioctl(probe.fileno(), _SIOCGIFHWADDR, wanted))
        return kind in (_ARPHRD_ETHER, _ARPHRD_INFINIBAND) and not flags & _IFF_NOARP

    def _ask(self, interface: int, address: bytes) -> str | None:
        answer = self._answer_to(neighbour_request(interface, address, self._next()))
        return hardware_address(answer, interface, address) if answer is not None else None

    def _next(self) -> int:
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        return self._sequence

    def _answer_to(self, question: bytes) -> bytes | None:
        """Return the answer, or None if it was lost. Raises OSError."""
        self._socket.send(question)
        while True:
            try:
                answer = self._socket.recv(65536)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # Answers were lost; the next query gets its own.
                    return None
                raise
            if len(answer) >= HEADER.size and HEADER.unpack_from(answer)[3] == self._sequence:
                return answer


def _packed(ip: str) -> bytes | None:
    """Return the four or sixteen bytes of an address, or None if the text is no address."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    except OSError:
        return None


def _family(address: bytes) -> int:
    return socket.AF_INET if len(address) == 4 else socket.AF_INET6


def neighbour_request(interface: int, address: bytes, sequence: int) -> bytes:
    """Build the rtnetlink request for one entry."""
    body = _NEIGHBOUR.pack(_family(address), interface, 0, 0, 0) + netlink.attribute(_NDA_DST, address)
    return netlink.request(_RTM_GETNEIGH, body, sequence)


Neighbours4 = Mapping[int, frozenset[tuple[str, str]]]
"""IPv4 and hardware addresses (lower case, colons) of neighbours, by the number of the interface."""


def neighbours4() -> Neighbours4:
    """Return all IPv4 neighbours that the kernel knows now. Raises OSError."""
    found: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for message in netlink.dump(_RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0), _RTM_NEWNEIGH):
        family, index, *_ = _NEIGHBOUR.unpack_from(message, HEADER.size)
        address = netlink.attributes_of(message, HEADER.size + _NEIGHBOUR.size).get(_NDA_DST, b"")
        if family != socket.AF_INET or len(address) != 4:
            continue
        mac = hardware_address(message, index, address)
        if mac is not None:
            found[index].add((socket.inet_ntop(family, address), mac))
    return {index: frozenset(pairs) for index, pairs in found.items()}


def hardware_address(answer: bytes, interface: int, address: bytes) -> str | None:
    """Return the hardware address in the kernel's answer, if that is a valid entry of the neighbour. Raises OSError."""
    # For an InfiniBand port it is the MAC of its GUID, by which a Hardware names it.
    kind = HEADER.unpack_from(answer)[1]
    if kind == netlink.NLMSG_ERROR:
        number = netlink.error_of(answer)
        if number in (0, errno.ENOENT, errno.ENODEV):
            return None
        raise OSError(number, f"RTM_GETNEIGH: {os.strerror(number)}")
    if kind != _RTM_NEWNEIGH:
        return None
    family, found, state, flags, _ = _NEIGHBOUR.unpack_from(answer, HEADER.size)
    if family != _family(address) or found != interface or not state & _NUD_KNOWN or flags & _NTF_PROXY:
        return None
    attributes = netlink.attributes_of(answer, HEADER.size + _NEIGHBOUR.size)
    mac = attributes.get(_NDA_LLADDR, b"")
    if len(mac) == _INFINIBAND_BYTES:
        mac = guid_mac(mac[-8:])
    if attributes.get(_NDA_DST) != address or len(mac) != 6:
        return None
    return mac.hex(":")


def changed_address(message: bytes) -> str | None:
    """Return the address (with zone, if link-local) of a notification, or None. Raises OSError if the link has gone."""
    if len(message) < HEADER.size + _NEIGHBOUR.size:
        return None
    family, interface, *_ = _NEIGHBOUR.unpack_from(message, HEADER.size)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if HEADER.unpack_from(message)[1] not in (_RTM_NEWNEIGH, _RTM_DELNEIGH):
        return None
    address = netlink.attributes_of(message, HEADER.size + _NEIGHBOUR.size).get(_NDA_DST, b"")
    if len(address) != (4 if family == socket.AF_INET else 16):
        return None
    ip = socket.inet_ntop(family, address)
    return f"{ip}%{socket.if_indextoname(interface)}" if is_link_local_packed(address) else ip


# --- hosts that have no entry yet -------------------------------------------------------------------------------------


def _solicit(ip: str, interface: str = "") -> bool:
    """Send a packet, so that the kernel asks for the host at `ip`. Return False if that is not possible.

    A link-local `ip` has its link as its zone. `interface` is the one to send by; if it is empty, the route decides.
    """
    bare, _, zone = ip.partition("%")
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            scope = (0, socket.if_nametoindex(zone)) if zone else ()
            is_by = bool(interface) and not zone
            by = [packet_info(sock.family, interface=socket.if_nametoindex(interface))] if is_by else []
            sock.sendmsg([b""], by, 0, (bare, _DISCARD_PORT, *scope))
        except OSError as error:
            log.debug("can't send a packet that resolves %s: %s", ip, error.strerror)
            return False
    return True


class AddressResolution:
    """Makes the kernel ask for the hardware address of a host on one of our links."""

    def __init__(self, is_hidden: Callable[[str], bool], interface: str = "") -> None:
        """`is_hidden(ip)` returns True if the host at `ip` (dotted) is on a link of ours and its MAC is not known yet.

        The link is that of `interface`; if it is empty, the link that the route to the address uses.
        """
        self.is_due = is_hidden
        self._interface = interface

    async def resolve(self, ip: str) -> bool:
        """Ask for the host at `ip`, and return whether it is known then. A link-local `ip` has its link as its zone."""
        if not _solicit(ip, self._interface):
            return False
        for _ in range(int(RESOLUTION_SECONDS / _POLL_SECONDS)):
            if not self.is_due(ip):
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False


class LinkLocalResolution:
    """Resolves link-local addresses (without zone) on one interface, because some do not contain the MAC (RFC 7217)."""

    def __init__(self, interface: str, mac: Callable[[str], str | None], clock: Callable[[], float]) -> None:
        """`mac(ip)` returns what the kernel knows now of an address with zone; `clock` returns seconds of any epoch."""
        self._interface = interface
        self._mac = mac
        self._clock = clock
        self._allowance = Allowance(1, MAX_SOLICITATIONS_A_SECOND)

    def __call__(self, ip: str) -> str | None:
        """Return the MAC at this address. None if it is not known: the kernel asks for it now, so call again soon."""
        known = self._mac(f"{ip}%{self._interface}")
        if known is None and self._allowance.take(ip, self._clock()):
            _solicit(f"{ip}%{self._interface}")
        return known


# --- answers that do not arrive ---------------------------------------------------------------------------------------


def delivery_problem(address: str, interfaces: Collection[str]) -> str:
    """Return why our answers to `address` (dotted) are lost, as a clause; empty if no reason is known."""
    # DHCP's sockets are bound to their interface, so the kernel takes an address without a route for one of that link,
    # and asks for it by ARP. The route without a bound interface shows the truth, and the neighbour table whether a
    # host has answered ARP.
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
        if route.kind is RouteKind.LINK:
            with closing(NeighbourTable((name,))) as table:
                if table.mac(address) is None:
                    return f"no host answers ARP for it on {name}"
    except (OSError, ValueError):
        pass  # The kernel does not answer, or the interface has just gone.
    return ""
