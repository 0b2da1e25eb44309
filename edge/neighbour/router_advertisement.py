"""Answers router solicitations with "I am no router", so that iPXE does not wait for one.

iPXE configures IPv4 and IPv6 together and is done when both are: on a network without an IPv6 router it goes on
soliciting for 13 s after it has its DHCP lease, at each of its stages. Any router advertisement ends that. The one sent
here has a router lifetime of 0, no prefix and neither of the DHCPv6 flags: to every host on the network it says that
the sender is not a default router and that there is nothing to configure (RFC 4861 section 4.2), so it changes nothing
for those that listen.

Off unless asked for: a network with an IPv6 router of its own has no need of it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from typing import Final

from edge.listener import Listener, advice

log = logging.getLogger(__name__)

ROUTER_SOLICITATION: Final = 133
ROUTER_ADVERTISEMENT: Final = 134
HOP_LIMIT: Final = 255  # RFC 4861 section 6.1: a packet with less has passed a router and is not believed
ALL_NODES: Final = "ff02::1"

_ICMP6_FILTER = 1  # linux/icmpv6.h; a bitmap of 256 types, a set bit blocks
_MULTICAST_INTERVAL_SECONDS = 3.0  # RFC 4861 section 10, MIN_DELAY_BETWEEN_RAS


class RouterAdvertiserError(Exception):
    """Router solicitations can't be answered; says why and what to do."""


def is_router_solicitation(packet: bytes, hop_limit: int) -> bool:
    """Whether an ICMPv6 message is a valid router solicitation: RFC 4861 section 6.1.1 (the kernel checks the sum)."""
    if len(packet) < 8 or packet[0] != ROUTER_SOLICITATION or packet[1] != 0 or hop_limit != HOP_LIMIT:
        return False
    at = 8
    while at < len(packet):  # options: type, length in units of eight bytes, never 0
        if at + 1 >= len(packet) or packet[at + 1] == 0:
            return False
        at += packet[at + 1] * 8
    return at == len(packet)


def router_advertisement() -> bytes:
    """An ICMPv6 router advertisement that offers nothing (RFC 4861 section 4.2). The kernel fills in the checksum.

    Zero stands for "unspecified" in hop limit, reachable time and retransmission timer, and for "not a default router"
    in the router lifetime.
    """
    return struct.pack("!BBHBBHII", ROUTER_ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0)


class RouterAdvertiser:
    """Answers router solicitations on one interface."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._listener: Listener[tuple[bytes, int, str]] | None = None
        self._scope = 0
        self._multicast_at = float("-inf")

    async def start(self) -> None:
        """Open the socket and serve. Raises RouterAdvertiserError."""
        try:
            sock = self._open()
        except OSError as error:
            raise RouterAdvertiserError(self._advice(error)) from error
        what = f"router solicitations on {self._interface}"
        self._listener = Listener(sock, what, self._receive, self._heard)
        self._listener.start()
        log.info("router solicitations on %s are answered with router lifetime 0", self._interface)

    async def stop(self) -> None:
        """Close the socket."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _open(self) -> socket.socket:
        self._scope = socket.if_nametoindex(self._interface)
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
            wanted = bytearray(b"\xff" * 32)
            word, bit = divmod(ROUTER_SOLICITATION, 32)
            struct.pack_into("=I", wanted, word * 4, 0xFFFFFFFF & ~(1 << bit))
            sock.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, bytes(wanted))
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
            # Solicitations go to all routers, a group that a host is not in by itself.
            group = socket.inet_pton(socket.AF_INET6, "ff02::2") + struct.pack("=I", self._scope)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        except OSError:
            sock.close()
            raise
        return sock

    def _advice(self, error: OSError) -> str:
        what = f"router solicitations on {self._interface} can't be answered"
        if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return f"{what}: IPv6 is off there; switch it on (sysctl net.ipv6.conf.{self._interface}.disable_ipv6=0)"
        return advice(what, error)

    @staticmethod
    def _receive(sock: socket.socket) -> tuple[bytes, int, str]:
        packet, ancillary, _flags, source = sock.recvmsg(1500, 64)
        return packet, _hop_limit(ancillary), source[0]

    def _heard(self, sock: socket.socket, arrived: tuple[bytes, int, str]) -> None:
        packet, hop_limit, source = arrived
        if is_router_solicitation(packet, hop_limit):
            self._answer(sock, source)

    def _answer(self, sock: socket.socket, source: str) -> None:
        address = source.partition("%")[0]
        if not address.lower().startswith("fe80:"):
            # From a host without an address, or with one that would make the kernel answer from an address that is
            # not link-local, which RFC 4861 section 6.1.2 forbids: to all nodes then, at most every three seconds.
            now = asyncio.get_running_loop().time()
            if now - self._multicast_at < _MULTICAST_INTERVAL_SECONDS:
                return
            self._multicast_at = now
            address = ALL_NODES
        try:
            sock.sendto(router_advertisement(), (address, 0, 0, self._scope))
        except OSError as error:
            log.debug("router advertisement to %s on %s was not sent: %s", address, self._interface, error.strerror)


def _hop_limit(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_HOPLIMIT and len(value) >= 4:
            return int(struct.unpack("=i", value[:4])[0])
    return -1
