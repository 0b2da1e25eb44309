"""Answers router solicitations, so that iPXE does not wait for a router, or on behalf of the router.

iPXE configures IPv4 and IPv6 together and is done when both are. On a network without an IPv6 router it goes on
soliciting for 13 s after it has its DHCP lease, at each of its stages. Any router advertisement ends that. This one has
a router lifetime of 0: it tells every host that the sender is not a default router (RFC 4861 section 4.2).

- Without DHCPv6 it has no prefix and neither of the DHCPv6 flags, so it changes nothing for other hosts.
- With DHCPv6 it has the flags M and O, and the prefixes that are on the link. DHCPv6 sends no prefix length, so without
  them machines would send packets for their neighbours to a router. The flag A is not set, so no host makes itself an
  address of such a prefix.

If this host is the router (`--ipv6-router`), the lifetime is half an hour. The advertisement is then also sent
unsolicited (section 6.2.4), and withdrawn at the end (section 6.2.5).

An answer goes to the soliciting host alone, so that it need not wait. Solicitations beyond a limit are answered
together, by one advertisement to all nodes within three seconds (section 6.2.6). So a flood costs no more than that,
and a host behind the flood is answered, too.

Off by default: a network with an IPv6 router that sets M does not need it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Network
from typing import Final

from edge.listener import Listener, advice
from tink.limits.allowance import Allowance
from tink.net.link_local import is_link_local

log = logging.getLogger(__name__)

ROUTER_SOLICITATION: Final = 133
ROUTER_ADVERTISEMENT: Final = 134
HOP_LIMIT: Final = 255  # RFC 4861 section 6.1: a packet with less has passed a router and is not believed
ALL_NODES: Final = "ff02::1"

_ICMP6_FILTER = 1  # linux/icmpv6.h; a bitmap of 256 types, a set bit blocks
MULTICAST_INTERVAL_SECONDS: Final = 3.0  # RFC 4861 section 10, MIN_DELAY_BETWEEN_RAS
UNICAST_ANSWERS, UNICAST_ANSWERS_IN_ALL = 2, 100
"""Maximum number of answers a second, to one host and to all; a client solicits every few seconds."""
_UNASKED_SECONDS: Final = (200.0, 600.0)  # section 6.2.1: MinRtrAdvInterval and MaxRtrAdvInterval
ROUTER_LIFETIME_SECONDS: Final = 1800  # section 6.2.1: three times the latter
_PREFIX_SECONDS: Final = 86400
_MANAGED, _OTHER = 0x80, 0x40
_ON_LINK: Final = 0x80
_SOURCE_LINK_LAYER, _PREFIX_INFORMATION = 1, 3


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


@dataclass(frozen=True, slots=True)
class Advertised:
    """What hosts are told. `managed`: that DHCPv6 has addresses and all else. `lifetime` in seconds; 0: no router.

    `prefixes` are those of the link; `mac` is the interface's hardware address, empty where it has none.
    """

    managed: bool = False
    lifetime: int = 0
    prefixes: Sequence[IPv6Network] = ()
    mac: bytes = b""


def router_advertisement(says: Advertised = Advertised()) -> bytes:
    """An ICMPv6 router advertisement (RFC 4861 section 4.2); by default one that offers nothing.

    The kernel fills in the checksum. Zero stands for "unspecified" in hop limit, reachable time and retransmission
    timer, and for "not a default router" in the router lifetime.
    """
    flags = _MANAGED | _OTHER if says.managed else 0
    options = [struct.pack("!BB6s", _SOURCE_LINK_LAYER, 1, says.mac)] if len(says.mac) == 6 else []
    options += [
        struct.pack("!BBBBIII", _PREFIX_INFORMATION, 4, each.prefixlen, _ON_LINK, _PREFIX_SECONDS, _PREFIX_SECONDS, 0)
        + each.network_address.packed
        for each in says.prefixes
    ]
    head = struct.pack("!BBHBBHII", ROUTER_ADVERTISEMENT, 0, 0, 0, flags, says.lifetime, 0, 0)
    return head + b"".join(options)


class Solicited:
    """Decides the destination and the time of the answer to a solicitation. Pure."""

    def __init__(self) -> None:
        self._unicast = Allowance(UNICAST_ANSWERS, UNICAST_ANSWERS_IN_ALL)
        self._to_all_at = float("-inf")

    def answer(self, source: str, now: float) -> tuple[str, float] | None:
        """Return the destination of the answer and its delay in seconds, or None if an answer to all nodes is due.

        A host without a link-local address is answered by one to all nodes: the kernel would answer it from an address
        that is not link-local, which RFC 4861 section 6.1.2 forbids.
        """
        if is_link_local(source) and self._unicast.take(source, now):
            return source, 0.0
        if now < self._to_all_at:
            return None
        wait = max(self._to_all_at + MULTICAST_INTERVAL_SECONDS - now, 0.0)
        self._to_all_at = now + wait
        return ALL_NODES, wait

    def sent_to_all(self, now: float) -> None:
        """Record that an unsolicited advertisement went to all nodes."""
        self._to_all_at = now


class RouterAdvertiser:
    """Answers router solicitations on one interface."""

    def __init__(self, interface: str, says: Advertised = Advertised()) -> None:
        self._interface = interface
        self._says = says
        self._timer: asyncio.TimerHandle | None = None
        self._listener: Listener[tuple[bytes, int, str]] | None = None
        self._scope = 0
        self._solicited = Solicited()
        self._soon: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the socket and serve. Raises RouterAdvertiserError."""
        try:
            sock = self._open()
        except OSError as error:
            raise RouterAdvertiserError(self._advice(error)) from error
        what = f"router solicitations on {self._interface}"
        self._listener = Listener(sock, what, self._receive, self._heard)
        self._listener.start()
        log.info(
            "router solicitations on %s are answered with router lifetime %d%s",
            self._interface,
            self._says.lifetime,
            ", addresses by DHCPv6" if self._says.managed else "",
        )
        if self._says.managed or self._says.lifetime:
            self._tell_all()

    async def stop(self) -> None:
        """Close the socket. Where this host was the router, it is none any more."""
        for timer in (self._timer, self._soon):
            if timer is not None:
                timer.cancel()
        self._timer = self._soon = None
        if self._listener is not None:
            if self._says.lifetime:
                self._send(self._listener.socket, ALL_NODES, Advertised())
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
        loop = asyncio.get_running_loop()
        answer = self._solicited.answer(source.partition("%")[0], loop.time())
        if answer is None:
            return
        address, wait = answer
        if wait > 0:
            self._soon = loop.call_later(wait, self._send, sock, address, self._says)
        else:
            self._send(sock, address, self._says)

    def _tell_all(self) -> None:
        """What hosts have learnt ends some time: say it again before."""
        if self._listener is not None:
            self._send(self._listener.socket, ALL_NODES, self._says)
            self._solicited.sent_to_all(asyncio.get_running_loop().time())
            later = random.uniform(*_UNASKED_SECONDS)  # noqa: S311 - so that routers do not speak all at once
            self._timer = asyncio.get_running_loop().call_later(later, self._tell_all)

    def _send(self, sock: socket.socket, address: str, says: Advertised) -> None:
        try:
            sock.sendto(router_advertisement(says), (address, 0, 0, self._scope))
        except OSError as error:
            log.debug("router advertisement to %s on %s was not sent: %s", address, self._interface, error.strerror)


def _hop_limit(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_HOPLIMIT and len(value) >= 4:
            return int(struct.unpack("=i", value[:4])[0])
    return -1
