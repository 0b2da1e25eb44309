"""Port 547 of one interface: what it hears goes to the responder, and the replies leave from the same socket."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from edge.dhcp6.datagram import ALL_RELAYS_AND_SERVERS, ALL_SERVERS, SERVER_PORT, Received6
from edge.dhcp6.prober import NeighbourProber
from edge.dhcp6.responder import Responder6
from edge.dhcp6.wire import MAX_MESSAGE_BYTES
from edge.listener import Listener, advice, enlarge_buffer, udp_socket
from tink.limits.once_per import OncePer

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 1.0
_RECEIVE_BUFFER_BYTES: Final = 4 * 1024 * 1024
_PACKET_INFO: Final = struct.Struct("=16si")
_MULTICAST: Final = 0xFF
"""The first byte of a group's address: RFC 4291 section 2.7."""

_Arrived = tuple[bytes, Received6]


class Dhcp6ServerError(Exception):
    """The server can't start; says which port and what to do."""


class Dhcp6Server:
    """Serves DHCPv6 on one interface."""

    def __init__(self, responder: Responder6, interface: str) -> None:
        self._responder = responder
        self._interface = interface
        self._scope = 0
        self._listener: Listener[_Arrived] | None = None
        self._prober: NeighbourProber | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._once = OncePer(10.0, 20)

    async def start(self) -> None:
        """Open the socket and serve. Raises Dhcp6ServerError."""
        what = f"DHCPv6 on {self._interface} port {SERVER_PORT}"
        try:
            self._scope = socket.if_nametoindex(self._interface)
            sock = udp_socket("::", SERVER_PORT, self._interface, self._prepare)
        except OSError as error:
            problem = f"DHCPv6 can't open UDP port {SERVER_PORT} on {self._interface}"
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                problem = f"{problem}: IPv6 is off there (sysctl net.ipv6.conf.{self._interface}.disable_ipv6)"
                raise Dhcp6ServerError(problem) from error
            raise Dhcp6ServerError(advice(problem, error, port=SERVER_PORT, without="without --ipv6")) from error
        self._listener = Listener(sock, what, _receive, self._answer)
        self._listener.start()
        self._prober = NeighbourProber(self._interface, self._responder.declined)
        self._prober.start()
        self._tick()
        log.info("DHCPv6 on %s as %s, port %d", self._interface, self._responder.settings.address, SERVER_PORT)

    async def stop(self) -> None:
        """Close the socket. Clients that wait for an answer ask again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._prober is not None:
            self._prober.stop()
            self._prober = None
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        self._responder.declined.pass_time()

    def _prepare(self, sock: socket.socket) -> None:
        enlarge_buffer(sock, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        for group in (ALL_RELAYS_AND_SERVERS, ALL_SERVERS):
            request = group.packed + struct.pack("=I", self._scope)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)

    def _answer(self, sock: socket.socket, arrived: _Arrived) -> None:
        reply = self._responder.respond(*arrived)
        if reply is None:
            return
        scope = self._scope if _is_link_local(reply.address) else 0
        try:
            sock.sendto(reply.payload, (reply.address, reply.port, 0, scope))
        except OSError as error:
            # A full send buffer, a relay without a route, an interface that went down: the client asks again.
            if self._once.due((error.errno, reply.address), asyncio.get_running_loop().time()):
                log.warning("DHCPv6: reply to %s was not sent: %s", reply.address, error.strerror)


def _receive(sock: socket.socket) -> _Arrived:
    packet, ancillary, _, source = sock.recvmsg(MAX_MESSAGE_BYTES + 1, 64)
    alone = any(
        level == socket.IPPROTO_IPV6
        and kind == socket.IPV6_PKTINFO
        and len(value) >= _PACKET_INFO.size
        and value[0] != _MULTICAST
        for level, kind, value in ancillary
    )
    return packet, Received6(_address(source[0]), source[1], alone)


@lru_cache(maxsize=1024)
def _is_link_local(text: str) -> bool:
    return IPv6Address(text).is_link_local


@lru_cache(maxsize=1024)
def _address(text: str) -> IPv6Address:
    """What the kernel says of a source, made once for each."""
    return IPv6Address(text.partition("%")[0])
