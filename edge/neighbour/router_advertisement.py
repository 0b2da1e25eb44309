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

By default (`only`) it answers no host but an iPXE that has just asked this edge for an IPv4 address, and only where no
router answers: it waits for longer than a router may take (section 6.2.6), and is silent for half an hour after any
advertisement of a router. No operating system receives one, and beside a router nothing is sent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from edge.listener import Listener, advice
from tink.errors import TinkedgeError
from tink.limits.allowance import Allowance
from tink.limits.newest import Newest
from tink.mac import eui64_mac
from tink.net.addresses import is_link_local

log = logging.getLogger(__name__)

ROUTER_SOLICITATION: Final = 133
ROUTER_ADVERTISEMENT: Final = 134
HOP_LIMIT: Final = 255  # RFC 4861 section 6.1: a packet with less has passed a router and is not believed
ALL_NODES: Final = "ff02::1"

_ICMP6_FILTER = 1  # linux/icmpv6.h; a bitmap of 256 types, a set bit blocks
MULTICAST_INTERVAL_SECONDS: Final = 3.0  # RFC 4861 section 10, MIN_DELAY_BETWEEN_RAS
UNICAST_ANSWERS, UNICAST_ANSWERS_IN_ALL = 2, 100
"""Maximum number of answers a second, to one host and to all; a client solicits every few seconds."""
ROUTER_TAKES_SECONDS: Final = 0.6
"""The time to wait for a router, which answers within 0.5 s (section 10, MAX_RA_DELAY_TIME)."""
ROUTER_IS_KNOWN_SECONDS: Final = 1800.0
"""The time for which a router counts as present after an advertisement: the longest interval (section 6.2.1)."""
MAX_SOLICITING: Final = 10_000
"""The most machines whose last solicitation is remembered."""
_UNASKED_SECONDS: Final = (200.0, 600.0)  # section 6.2.1: MinRtrAdvInterval and MaxRtrAdvInterval
ROUTER_LIFETIME_SECONDS: Final = 1800  # section 6.2.1: three times the latter
_PREFIX_SECONDS: Final = 86400
_MANAGED, _OTHER = 0x80, 0x40
_ON_LINK: Final = 0x80
_SOURCE_LINK_LAYER, _PREFIX_INFORMATION = 1, 3


class RouterAdvertiserError(TinkedgeError):
    """Router solicitations can't be answered. The message says why and what to do."""


def is_router_solicitation(packet: bytes, hop_limit: int) -> bool:
    """Return whether an ICMPv6 message is a valid router solicitation (RFC 4861 section 6.1.1).

    The kernel checks the checksum.
    """
    if len(packet) < 8 or packet[0] != ROUTER_SOLICITATION or packet[1] != 0 or hop_limit != HOP_LIMIT:
        return False
    return _are_options(packet, 8)


def is_of_a_router(packet: bytes, hop_limit: int, source: str) -> bool:
    """Return whether an ICMPv6 message is a valid router advertisement (RFC 4861 section 6.1.2) of a real router.

    A real router offers a way out (its lifetime is not 0), addresses by DHCPv6 (M, O) or prefixes. An advertisement
    that offers none of them is one of another edge.
    """
    if len(packet) < 16 or packet[0] != ROUTER_ADVERTISEMENT or packet[1] != 0 or hop_limit != HOP_LIMIT:
        return False
    if not is_link_local(source) or not _are_options(packet, 16):
        return False
    flags, lifetime = struct.unpack_from("!BH", packet, 5)
    return bool(lifetime or flags & (_MANAGED | _OTHER) or len(packet) > 16)


def _are_options(packet: bytes, at: int) -> bool:
    while at < len(packet):  # options: type, length in units of eight bytes, never 0
        if at + 1 >= len(packet) or packet[at + 1] == 0:
            return False
        at += packet[at + 1] * 8
    return at == len(packet)


def mac_of(packet: bytes, source: str) -> str:
    """Return the MAC of the host that sent a valid solicitation, or "" if the solicitation does not contain it.

    Linux gives its MAC in the option source link-layer address. iPXE gives no option, and makes its link-local address
    of its MAC (RFC 4291 appendix A).
    """
    at = 8
    while at + 8 <= len(packet):
        if packet[at] == _SOURCE_LINK_LAYER and packet[at + 1] == 1:
            return packet[at + 2 : at + 8].hex(":")
        at += packet[at + 1] * 8
    return eui64_mac(IPv6Address(source)) or "" if is_link_local(source) else ""


class Solicitations:
    """The time of the last router solicitation of each machine. A machine that goes on soliciting got no answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds of any epoch, that of `last`."""
        self._clock = clock
        self._last: Newest[str, float] = Newest(MAX_SOLICITING)

    def heard(self, mac: str) -> None:
        """Record that this machine solicits now."""
        self._last[mac] = self._clock()

    def last(self, mac: str) -> float | None:
        """Return when this machine solicited last, or None if it did not, as far as was heard."""
        return self._last.get(mac)


@dataclass(frozen=True, slots=True)
class Advertised:
    """The content of a router advertisement.

    managed: hosts get addresses and all else by DHCPv6 (flags M and O).
    lifetime: seconds for which this host is a router; 0: it is none.
    prefixes: the prefixes that are on the link.
    mac: the interface's hardware address; empty if it has none.
    """

    managed: bool = False
    lifetime: int = 0
    prefixes: Sequence[IPv6Network] = ()
    mac: bytes = b""


def router_advertisement(says: Advertised = Advertised()) -> bytes:
    """Build an ICMPv6 router advertisement (RFC 4861 section 4.2); by default one that offers nothing.

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

    def __init__(
        self,
        interface: str,
        says: Advertised = Advertised(),
        *,
        only: Callable[[str], bool] | None = None,
        heard: Callable[[str], None] | None = None,
    ) -> None:
        """`only(mac)` returns whether this machine gets an answer if no router is present; None: every host gets one.

        `heard(mac)` is called for each solicitation that contains its sender's MAC.
        """
        self._interface = interface
        self._says = says
        self._only = only
        self._report = heard
        self._router_until = float("-inf")
        self._pending: dict[str, asyncio.TimerHandle] = {}
        """The answers that wait for a router to answer first, by the host's address; limited by `Solicited`."""
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
            if self._only is not None:  # The default, not an operator's option: iPXE waits.
                log.info("%s; iPXE waits 16 s for a router there", self._advice(error))
                return
            raise RouterAdvertiserError(self._advice(error)) from error
        what = f"router solicitations on {self._interface}"
        self._listener = Listener(sock, what, self._receive, self._heard)
        self._listener.start()
        log.info(
            "router solicitations%s on %s are answered with router lifetime %d%s",
            " of iPXE" if self._only is not None else "",
            self._interface,
            self._says.lifetime,
            ", addresses by DHCPv6" if self._says.managed else "",
        )
        if self._says.managed or self._says.lifetime:
            self._advertise_to_all()

    async def stop(self) -> None:
        """Close the socket. If this host was a router, advertise first that it is none any more."""
        for timer in (self._timer, self._soon, *self._pending.values()):
            if timer is not None:
                timer.cancel()
        self._timer = self._soon = None
        self._pending.clear()
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
            types = (ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT) if self._only is not None else (ROUTER_SOLICITATION,)
            sock.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, _all_but(types))
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
            # Solicitations go to the group of all routers, which a host has to join.
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
        packet, hop_limit, source = arrived[0], arrived[1], arrived[2].partition("%")[0]
        if is_router_solicitation(packet, hop_limit):
            mac = mac_of(packet, source)
            if mac and self._report is not None:
                self._report(mac)
            if self._only is None:
                self._answer(sock, source)
            elif mac and self._only(mac):
                self._answer_unless_a_router_does(sock, source)
        elif is_of_a_router(packet, hop_limit, source):
            self._router_until = asyncio.get_running_loop().time() + ROUTER_IS_KNOWN_SECONDS

    def _answer_unless_a_router_does(self, sock: socket.socket, source: str) -> None:
        loop = asyncio.get_running_loop()
        if source in self._pending or loop.time() < self._router_until:
            return
        answer = self._solicited.answer(source, loop.time())
        if answer is not None and answer[0] == source:  # no advertisement to all nodes, which would reach other hosts
            self._pending[source] = loop.call_later(ROUTER_TAKES_SECONDS, self._answer_late, sock, source)

    def _answer_late(self, sock: socket.socket, source: str) -> None:
        self._pending.pop(source, None)
        if asyncio.get_running_loop().time() >= self._router_until:
            self._send(sock, source, self._says)

    def _answer(self, sock: socket.socket, source: str) -> None:
        loop = asyncio.get_running_loop()
        answer = self._solicited.answer(source, loop.time())
        if answer is None:
            return
        address, wait = answer
        if wait > 0:
            self._soon = loop.call_later(wait, self._send, sock, address, self._says)
        else:
            self._send(sock, address, self._says)

    def _advertise_to_all(self) -> None:
        """Advertise to all nodes, again and again, before their knowledge expires."""
        if self._listener is not None:
            self._send(self._listener.socket, ALL_NODES, self._says)
            self._solicited.sent_to_all(asyncio.get_running_loop().time())
            later = random.uniform(*_UNASKED_SECONDS)  # noqa: S311 - so that routers do not send all at once
            self._timer = asyncio.get_running_loop().call_later(later, self._advertise_to_all)

    def _send(self, sock: socket.socket, address: str, says: Advertised) -> None:
        try:
            sock.sendto(router_advertisement(says), (address, 0, 0, self._scope))
        except OSError as error:
            log.debug("router advertisement to %s on %s was not sent: %s", address, self._interface, error.strerror)


def _all_but(types: Sequence[int]) -> bytes:
    """Return the ICMPv6 filter (RFC 3542 section 3.2) that blocks all types but these."""
    blocked = (1 << 256) - 1
    for each in types:
        blocked &= ~(1 << each)
    return struct.pack("=8I", *((blocked >> 32 * word) & 0xFFFFFFFF for word in range(8)))


def _hop_limit(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_HOPLIMIT and len(value) >= 4:
            return int(struct.unpack("=i", value[:4])[0])
    return -1
