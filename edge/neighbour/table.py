"""Reads the kernel's neighbour table: the hardware address behind an IP address on one of our links.

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
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from edge.neighbour.netlink import (
    HEADER,
    NLMSG_ERROR,
    Multicast,
    ask_for_all,
    attribute,
    attributes_of,
    error_of,
    open_socket,
    question,
)
from edge.neighbour.route import Route, RouteKind, parse_route, route_request
from tink.mac import guid_mac
from tink.net.addresses import is_link_local_packed

# linux/rtnetlink.h, linux/neighbour.h, linux/if_arp.h, netdevice(7)
_RTM_NEWNEIGH: Final = 28
_RTM_DELNEIGH: Final = 29
_RTM_GETNEIGH: Final = 30
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFHWADDR: Final = 0x8927
_IFF_NOARP: Final = 0x80
_ARPHRD_ETHER: Final = 1
_ARPHRD_INFINIBAND: Final = 32
_INFINIBAND_BYTES: Final = 20  # RFC 4391 section 9.1.1; the last eight are the port's GUID
_NDA_DST: Final = 1
_NDA_LLADDR: Final = 2
_NTF_PROXY: Final = 0x08
_NUD_KNOWN: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x80
"""Reachable, stale, delay, probe, permanent: the states in which the kernel would use the hardware address."""

_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, interface, state, flags, type
_INTERFACE_REQUEST = struct.Struct("=16sH238x")  # ifreq: name, and flags or the family of the hardware address


_RTMGRP_NEIGH: Final = 4  # linux/rtnetlink.h


def neighbour_changes(changed: Callable[[str | None], None]) -> Multicast:
    """Call `changed(ip)` for each change, `changed(None)` when some were missed. Needs a running loop. Raises OSError
    where the kernel has no such messages.
    """

    def heard(message: bytes | None) -> None:
        try:
            ip = changed_address(message) if message is not None else None
        except OSError:  # of a link that has gone: it may be back under its name
            message = ip = None
        if message is None or ip is not None:
            changed(ip)

    return Multicast(_RTMGRP_NEIGH, heard)


class NeighbourTable:
    """Answers from the table of this network namespace, for `interfaces` only."""

    def __init__(self, interfaces: Iterable[str]) -> None:
        """Raises OSError if the kernel can't be asked for single entries."""
        self._interfaces = tuple(interfaces)
        self._socket = open_socket()
        self._indexes: dict[str, int] = {}
        self._sequence = 0
        self._ask(socket.if_nametoindex("lo"), socket.inet_aton("127.0.0.1"))

    def close(self) -> None:
        """Ask no more."""
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
            return self._mac_on(self._link_of_zone(zone or interface), address)
        try:
            route = self._route(address, interface)
            if route.kind is RouteKind.LINK and socket.if_indextoname(route.interface) in self._interfaces:
                return self._ask(route.interface, address)
        except OSError:
            pass  # The interface has just gone, or the kernel's answer was lost.
        return None

    def _link_of_zone(self, zone: str) -> str:
        """Return the interface of a link-local address; empty if it is unknown or not one of ours."""
        if not zone and len(self._interfaces) == 1:
            return self._interfaces[0]
        return zone if zone in self._interfaces else ""

    def _mac_on(self, name: str, address: bytes) -> str | None:
        index = self._indexes.get(name)
        found = self._ask(index, address) if index is not None else None
        if found is None and name and self._look_up(name) != index:
            found = self._ask(self._indexes[name], address) if name in self._indexes else None
        return found

    def _look_up(self, name: str) -> int | None:
        """The number of an interface; None: it is gone, and may come back, with another one."""
        try:
            index = self._indexes[name] = socket.if_nametoindex(name)
        except OSError:
            self._indexes.pop(name, None)
            return None
        return index

    def on_link(self, ip: str, interface: str = "") -> bool:
        """Return True if `ip` is on a link of ours, so that ARP or neighbour discovery finds the host.

        Return True as well while the kernel can't answer, so that no address is believed meanwhile. `interface` is as
        for `mac`.
        """
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
        answer = self._answer_to(request(interface, address, self._next()))
        return hardware_address(answer, interface, address) if answer is not None else None

    def _next(self) -> int:
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        return self._sequence

    def _answer_to(self, question: bytes) -> bytes | None:
        """The answer; None if it was lost. Raises OSError."""
        self._socket.send(question)
        while True:
            try:
                answer = self._socket.recv(65536)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # answers were lost; the next question gets its own
                    return None
                raise
            if len(answer) >= HEADER.size and HEADER.unpack_from(answer)[3] == self._sequence:
                return answer


def _packed(ip: str) -> bytes | None:
    """The four or sixteen bytes of an address; None if it is none."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    except OSError:
        return None


def _family(address: bytes) -> int:
    return socket.AF_INET if len(address) == 4 else socket.AF_INET6


def request(interface: int, address: bytes, sequence: int) -> bytes:
    """The question for one entry."""
    body = _NEIGHBOUR.pack(_family(address), interface, 0, 0, 0) + attribute(_NDA_DST, address)
    return question(_RTM_GETNEIGH, body, sequence)


Neighbours4 = Mapping[int, frozenset[tuple[str, str]]]
"""IPv4 and hardware address (lower case, colons) of the neighbours in use, by the number of the interface."""


def neighbours4() -> Neighbours4:
    """All that the kernel knows at this moment. Raises OSError."""
    found: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    asked = question(_RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_INET, 0, 0, 0, 0), 1, dump=True)
    for message in ask_for_all(asked):
        if HEADER.unpack_from(message)[1] != _RTM_NEWNEIGH or len(message) < HEADER.size + _NEIGHBOUR.size:
            continue
        family, index, *_ = _NEIGHBOUR.unpack_from(message, HEADER.size)
        address = attributes_of(message, HEADER.size + _NEIGHBOUR.size).get(_NDA_DST, b"")
        if family != socket.AF_INET or len(address) != 4:
            continue
        mac = hardware_address(message, index, address)
        if mac is not None:
            found[index].add((socket.inet_ntop(family, address), mac))
    return {index: frozenset(pairs) for index, pairs in found.items()}


def hardware_address(answer: bytes, interface: int, address: bytes) -> str | None:
    """The hardware address in the kernel's answer, if it is one for that entry and in use.

    That of an InfiniBand port is the MAC of its GUID, which names it in a Hardware.

    Raises OSError for what the kernel can't do; an entry that is not there is no error.
    """
    kind = HEADER.unpack_from(answer)[1]
    if kind == NLMSG_ERROR:
        number = error_of(answer)
        if number in (0, errno.ENOENT, errno.ENODEV):
            return None
        raise OSError(number, f"RTM_GETNEIGH: {os.strerror(number)}")
    if kind != _RTM_NEWNEIGH:
        return None
    family, found, state, flags, _ = _NEIGHBOUR.unpack_from(answer, HEADER.size)
    if family != _family(address) or found != interface or not state & _NUD_KNOWN or flags & _NTF_PROXY:
        return None
    attributes = attributes_of(answer, HEADER.size + _NEIGHBOUR.size)
    mac = attributes.get(_NDA_LLADDR, b"")
    if len(mac) == _INFINIBAND_BYTES:
        mac = guid_mac(mac[-8:])
    if attributes.get(_NDA_DST) != address or len(mac) != 6:
        return None
    return mac.hex(":")


def changed_address(message: bytes) -> str | None:
    """The address whose entry a message of the kernel tells a change of, a link-local one with the name of its link as
    its zone; None if it is about none.
    """
    if len(message) < HEADER.size + _NEIGHBOUR.size:
        return None
    family, interface, *_ = _NEIGHBOUR.unpack_from(message, HEADER.size)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if HEADER.unpack_from(message)[1] not in (_RTM_NEWNEIGH, _RTM_DELNEIGH):
        return None
    address = attributes_of(message, HEADER.size + _NEIGHBOUR.size).get(_NDA_DST, b"")
    if len(address) != (4 if family == socket.AF_INET else 16):
        return None
    ip = socket.inet_ntop(family, address)
    return f"{ip}%{socket.if_indextoname(interface)}" if is_link_local_packed(address) else ip
