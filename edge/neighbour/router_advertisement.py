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
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from edge.listener import DatagramListener, advice, icmp6_socket, receive_icmp6
from edge.neighbour import discovery
from edge.neighbour.discovery import NOTHING_OFFERED, Advertised
from tink.errors import TinkedgeError
from tink.limits import Allowance, Newest
from tink.net.addresses import is_link_local

log = logging.getLogger(__name__)

ALL_NODES: Final = "ff02::1"

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


class RouterAdvertiserError(TinkedgeError):
    """Router solicitations can't be answered. The message says why and what to do."""


class Solicitations(Newest[str, float]):
    """The time of the last router solicitation of each machine. A machine that goes on soliciting got no answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds of any epoch."""
        super().__init__(MAX_SOLICITING)
        self._clock = clock

    def record(self, mac: str) -> None:
        """Record that this machine solicits now."""
        self[mac] = self._clock()


class Solicited:
    """Decides the destination and the time of the answer to a solicitation. Pure."""

    def __init__(self) -> None:
        self._unicast = Allowance(UNICAST_ANSWERS, UNICAST_ANSWERS_IN_ALL)
        self._to_all_at = float("-inf")

    def answer(self, source: str, now: float) -> tuple[str, float] | None:
        """Return the destination of the answer and its delay in seconds, or None if an answer to all nodes is due."""
        # A host without a link-local address is answered by one to all nodes: the kernel would answer it from an
        # address that is not link-local, which RFC 4861 section 6.1.2 forbids.
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


@dataclass(eq=False)
class RouterAdvertiser:
    """Answers router solicitations on one interface.

    only: `only(mac)` returns whether this machine gets an answer if no router is present; None: every host gets one.
    on_solicitation: `on_solicitation(mac)` is called for each solicitation that contains its sender's MAC.
    """

    interface: str
    content: Advertised = NOTHING_OFFERED
    _: KW_ONLY
    only: Callable[[str], bool] | None = None
    on_solicitation: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self._router_until = float("-inf")
        self._pending: dict[str, asyncio.TimerHandle] = {}
        """The answers that wait for a router to answer first, by the host's address; limited by `Solicited`."""
        self._timer: asyncio.TimerHandle | None = None
        self._listener: DatagramListener[tuple[bytes, int, str]] | None = None
        self._scope = 0
        self._solicited = Solicited()
        self._soon: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the socket and serve. Raises RouterAdvertiserError."""
        try:
            sock = self._open()
        except OSError as error:
            if self.only is not None:  # The default, not an operator's option: iPXE waits.
                log.info("%s; iPXE waits 16 s for a router there", self._advice(error))
                return
            raise RouterAdvertiserError(self._advice(error)) from error
        what = f"router solicitations on {self.interface}"
        self._listener = DatagramListener(sock, what, receive_icmp6, self._received)
        self._listener.start()
        log.info(
            "router solicitations%s on %s are answered with router lifetime %d%s",
            " of iPXE" if self.only is not None else "",
            self.interface,
            self.content.lifetime,
            ", addresses by DHCPv6" if self.content.managed else "",
        )
        if self.content.managed or self.content.lifetime:
            self._advertise_to_all()

    async def stop(self) -> None:
        """Close the socket. If this host was a router, advertise first that it is none any more."""
        for timer in (self._timer, self._soon, *self._pending.values()):
            if timer is not None:
                timer.cancel()
        self._timer = self._soon = None
        self._pending.clear()
        if self._listener is not None:
            if self.content.lifetime:
                self._send(self._listener.socket, ALL_NODES, NOTHING_OFFERED)
            self._listener.stop()
            self._listener = None

    def _open(self) -> socket.socket:
        self._scope = socket.if_nametoindex(self.interface)
        routers = (discovery.ROUTER_ADVERTISEMENT,) if self.only is not None else ()
        sock = icmp6_socket(self.interface, discovery.ROUTER_SOLICITATION, *routers)
        # Solicitations go to the group of all routers, which a host has to join.
        group = socket.inet_pton(socket.AF_INET6, "ff02::2") + struct.pack("=I", self._scope)
        try:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        except OSError:
            sock.close()
            raise
        return sock

    def _advice(self, error: OSError) -> str:
        what = f"router solicitations on {self.interface} can't be answered"
        if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return f"{what}: IPv6 is off there; switch it on (sysctl net.ipv6.conf.{self.interface}.disable_ipv6=0)"
        return advice(what, error)

    def _received(self, sock: socket.socket, arrived: tuple[bytes, int, str]) -> None:
        packet, hop_limit, source = arrived[0], arrived[1], arrived[2].partition("%")[0]
        if discovery.is_router_solicitation(packet, hop_limit):
            mac = discovery.soliciting_mac(packet, source)
            if mac and self.on_solicitation is not None:
                self.on_solicitation(mac)
            if self.only is None:
                self._answer(sock, source)
            elif mac and self.only(mac):
                self._answer_unless_a_router_does(sock, source)
        elif discovery.is_of_a_router(packet, hop_limit, source):
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
            self._send(sock, source, self.content)

    def _answer(self, sock: socket.socket, source: str) -> None:
        loop = asyncio.get_running_loop()
        address, wait = self._solicited.answer(source, loop.time()) or ("", 0.0)
        if wait > 0:
            self._soon = loop.call_later(wait, self._send, sock, address, self.content)
        elif address:
            self._send(sock, address, self.content)

    def _advertise_to_all(self) -> None:
        """Advertise to all nodes, again and again, before their knowledge expires."""
        if self._listener is not None:
            self._send(self._listener.socket, ALL_NODES, self.content)
            self._solicited.sent_to_all(asyncio.get_running_loop().time())
            later = random.uniform(*_UNASKED_SECONDS)  # noqa: S311 - so that routers do not send all at once
            self._timer = asyncio.get_running_loop().call_later(later, self._advertise_to_all)

    def _send(self, sock: socket.socket, address: str, content: Advertised) -> None:
        try:
            sock.sendto(discovery.router_advertisement(content), (address, 0, 0, self._scope))
        except OSError as error:
            log.debug("router advertisement to %s on %s was not sent: %s", address, self.interface, error.strerror)
