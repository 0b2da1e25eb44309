"""Looks by neighbour discovery who has an address on the link of one interface."""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

from edge.conflict import Claim, Declined, Prober
from edge.dhcp6 import solicitation
from edge.neighbour.links import look

_ICMP6_FILTER: Final = 1  # linux/icmpv6.h; a bitmap of 256 types, a set bit blocks


class NeighbourProber(Prober):
    """By a raw ICMPv6 socket, which hears the neighbor advertisements that reach this host."""

    def __init__(self, interface: str, declined: Declined) -> None:
        super().__init__(interface, declined)
        self._mac, self._index = b"", 0

    def _open(self) -> socket.socket:
        link = look(self._interface)
        if link is None or not link.mac:
            raise OSError(errno.ENODEV, f"{self._interface} has no hardware address")
        self._mac, self._index = link.mac, link.index
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
            wanted = bytearray(b"\xff" * 32)
            word, bit = divmod(solicitation.NEIGHBOR_ADVERTISEMENT, 32)
            struct.pack_into("=I", wanted, word * 4, 0xFFFFFFFF & ~(1 << bit))
            sock.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, bytes(wanted))
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, solicitation.HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        except OSError:
            sock.close()
            raise
        return sock

    def _send(self, sock: socket.socket, address: bytes) -> None:
        to = (str(solicitation.group_of(address)), 0, 0, self._index)
        sock.sendto(solicitation.solicitation(self._mac, address), to)

    def _receive(self, sock: socket.socket) -> Claim | None:
        packet, ancillary, _, _ = sock.recvmsg(solicitation.LARGEST_BYTES, 64)
        for level, kind, value in ancillary:
            if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_HOPLIMIT and len(value) >= 4:
                return solicitation.claim(packet, struct.unpack("=i", value[:4])[0])
        return None
