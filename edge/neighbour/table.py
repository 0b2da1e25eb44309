"""The kernel's neighbour table: which hardware address answers for an IPv4 address on one of our links.

Whoever talks to this host on a link has an entry there, made of its ARP packets. One entry is asked for over rtnetlink
(RTM_GETNEIGH with a destination, Linux 5.0 and later), which takes some microseconds however large the table is.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable
from typing import Final

# linux/rtnetlink.h, linux/netlink.h, linux/neighbour.h
_NLMSG_ERROR: Final = 2
_NLM_F_REQUEST: Final = 1
_RTM_NEWNEIGH: Final = 28
_RTM_GETNEIGH: Final = 30
_NDA_DST: Final = 1
_NDA_LLADDR: Final = 2
_NTF_PROXY: Final = 0x08
_NUD_KNOWN: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x80
"""Reachable, stale, delay, probe, permanent: the states in which the kernel would use the hardware address."""

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, interface, state, flags, type
_ATTRIBUTE = struct.Struct("=HH")


class NeighbourTable:
    """Answers from the table of this network namespace, for `interfaces` only."""

    def __init__(self, interfaces: Iterable[str]) -> None:
        """Raises OSError if the kernel can't be asked for single entries."""
        self._interfaces = tuple(interfaces)
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        # The kernel puts its answer into our queue before `send` returns; there is nothing to wait for.
        self._socket.setblocking(False)
        self._sequence = 0
        self._ask(socket.if_nametoindex("lo"), socket.inet_aton("127.0.0.1"))

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()

    def mac(self, ip: str) -> str | None:
        """The hardware address (lower case, colons) of `ip` (dotted) on one of the interfaces; None if it has none."""
        for name in self._interfaces:
            try:
                index = socket.if_nametoindex(name)
            except OSError:
                continue  # it is gone, and may come back
            found = self._ask(index, socket.inet_aton(ip))
            if found is not None:
                return found
        return None

    def _ask(self, interface: int, address: bytes) -> str | None:
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        self._socket.send(request(interface, address, self._sequence))
        while True:
            try:
                answer = self._socket.recv(65536)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.ENOBUFS:  # answers were lost; the next question gets its own
                    return None
                raise
            if len(answer) >= _HEADER.size and _HEADER.unpack_from(answer)[3] == self._sequence:
                return hardware_address(answer, interface, address)


def request(interface: int, address: bytes, sequence: int) -> bytes:
    """The question for one entry."""
    body = _NEIGHBOUR.pack(socket.AF_INET, interface, 0, 0, 0) + _ATTRIBUTE.pack(4 + len(address), _NDA_DST) + address
    return _HEADER.pack(_HEADER.size + len(body), _RTM_GETNEIGH, _NLM_F_REQUEST, sequence, 0) + body


def hardware_address(answer: bytes, interface: int, address: bytes) -> str | None:
    """The hardware address in the kernel's answer, if it is one for that entry and in use.

    Raises OSError for what the kernel can't do; an entry that is not there is no error.
    """
    length, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if code in (0, -errno.ENOENT, -errno.ENODEV):
            return None
        raise OSError(-code, f"RTM_GETNEIGH: {os.strerror(-code)}")
    if kind != _RTM_NEWNEIGH:
        return None
    family, found, state, flags, _ = _NEIGHBOUR.unpack_from(answer, _HEADER.size)
    if family != socket.AF_INET or found != interface or not state & _NUD_KNOWN or flags & _NTF_PROXY:
        return None
    attributes: dict[int, bytes] = {}
    at = _HEADER.size + _NEIGHBOUR.size
    while at + _ATTRIBUTE.size <= min(length, len(answer)):
        size, name = _ATTRIBUTE.unpack_from(answer, at)
        if size < _ATTRIBUTE.size:
            break
        attributes[name] = answer[at + _ATTRIBUTE.size : at + size]
        at += size + 3 & ~3
    mac = attributes.get(_NDA_LLADDR, b"")
    if attributes.get(_NDA_DST) != address or len(mac) != 6:
        return None
    return mac.hex(":")
