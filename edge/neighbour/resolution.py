"""Getting to know who is behind an address of our link, before anything is told that is one machine's.

The neighbour table knows whoever has asked for us by ARP. A host that has not, for it remembers us from before or has
just taken another one's address, is in none: what it is told then rests on its address alone. So it is asked first, as
the kernel asks before it sends anything anyhow.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from tink.limits.allowance import Allowance

log = logging.getLogger(__name__)

SECONDS: Final = 1.0
"""How long an answer is waited for; the kernel asks three times, a second apart, and a host answers at once."""
QUESTIONS_A_SECOND: Final = 100
"""Of hosts with a link-local address, for anybody can write any in a packet's source."""
_LOOK_SECONDS: Final = 0.01
_DISCARD_PORT: Final = 9  # RFC 863
_IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)  # linux/in.h; in the socket module since Python 3.12


class AddressResolution:
    """Asks hosts of our links who they are."""

    def __init__(self, is_hidden: Callable[[str], bool], interface: str = "") -> None:
        """`is_hidden(ip)` returns True if the host at `ip` (dotted) is on a link of ours and its MAC is not known yet.

        The link is that of `interface`; if it is empty, the link that the route to the address uses.
        """
        self.is_due = is_hidden
        self._interface = interface

    async def resolve(self, ip: str) -> bool:
        """Whether the host at `ip`, a link-local one with its link as its zone, is known now."""
        bare, _, zone = ip.partition("%")
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                scope = (0, socket.if_nametoindex(zone)) if zone else ()
                by = [_packet_info(sock, self._interface)] if self._interface and not zone else []
                sock.sendmsg([b""], by, 0, (bare, _DISCARD_PORT, *scope))
            except OSError as error:
                log.debug("%s can't be asked who it is: %s", ip, error.strerror)
                return False
        for _ in range(int(SECONDS / _LOOK_SECONDS)):
            if not self.is_due(ip):
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False


def _packet_info(sock: socket.socket, interface: str) -> tuple[int, int, bytes]:
    """Return the control message that makes a datagram leave by this interface (ip(7), RFC 3542). Raises OSError."""
    index = socket.if_nametoindex(interface)
    if sock.family == socket.AF_INET6:
        return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, struct.pack("=16xI", index)
    return socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I8x", index)


class LinkLocalResolution:
    """Asks who has a link-local address (without zone) on one interface, for systems that make theirs up (RFC 7217)."""

    def __init__(self, interface: str, mac: Callable[[str], str | None], clock: Callable[[], float]) -> None:
        """`mac(ip)` gives what the kernel knows now, of an address with zone; `clock` gives seconds of any epoch."""
        self._interface = interface
        self._mac = mac
        self._clock = clock
        self._questions = Allowance(1, QUESTIONS_A_SECOND)

    def __call__(self, ip: str) -> str | None:
        """The MAC at this address. None: it is not known, and asked for now; who calls again in a second hears it."""
        known = self._mac(f"{ip}%{self._interface}")
        if known is None and self._questions.take(ip, self._clock()):
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                try:
                    sock.sendto(b"", (ip, _DISCARD_PORT, 0, socket.if_nametoindex(self._interface)))
                except OSError as error:
                    log.debug("%s on %s can't be asked who it is: %s", ip, self._interface, error.strerror)
        return known
