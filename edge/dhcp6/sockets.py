"""Port 547 of one interface: what it hears goes to the responder, and the replies leave together by the same socket."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Sequence
from typing import Final

from edge.dhcp6.datagram import ALL_RELAYS_AND_SERVERS, ALL_SERVERS, SERVER_PORT, Received6, Reply6
from edge.dhcp6.prober import NeighbourProber
from edge.dhcp6.responder import Responder6
from edge.dhcp6.wire import MAX_MESSAGE_BYTES, address_of
from edge.listener import ModeratedListener, ReceiveBuffers, Segments, advice, enlarge_buffer, udp_socket
from tink.limits.once_per import OncePer
from tink.net.addresses import is_link_local

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 1.0
_RECEIVE_BUFFER_BYTES: Final = 4 * 1024 * 1024
_SEND_BUFFER_BYTES: Final = 1024 * 1024
_MULTICAST: Final = 0xFF
"""The first byte of a group's address: RFC 4291 section 2.7."""


class Dhcp6ServerError(Exception):
    """The server can't start; says which port and what to do."""


class Dhcp6Server:
    """Serves DHCPv6 on one interface."""

    def __init__(self, responder: Responder6, interface: str) -> None:
        self._responder = responder
        self._fast_path = responder.fast_path
        self._interface = interface
        self._scope = 0
        self._listener: ModeratedListener | None = None
        self._buffers = ReceiveBuffers(MAX_MESSAGE_BYTES + 1, socket.AF_INET6)
        what = f"DHCPv6 on {interface}"
        self._segments: Segments[Reply6] = Segments(what, SERVER_PORT, self._try_to_send, self._send_together)
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
        receive, answer = self._buffers.receive, self._answer
        self._listener = ModeratedListener(sock, what, receive, answer, after_turn=self._segments.send_all)
        self._listener.start()
        self._prober = NeighbourProber(self._interface, self._responder.declined)
        self._prober.start()
        self._tick()
        log.info("DHCPv6 on %s as %s, port %d", self._interface, self._responder.settings.address, SERVER_PORT)

    @property
    def is_unprobed(self) -> bool:
        """Return True if no probe can be sent, so declines are judged without a search for the address."""
        return self._prober is not None and not self._prober.can_probe

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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        for group in (ALL_RELAYS_AND_SERVERS, ALL_SERVERS):
            request = group.packed + struct.pack("=I", self._scope)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)

    def _answer(self, _sock: socket.socket, packets: list[bytes]) -> None:
        fast_path, buffers, replies = self._fast_path, self._buffers, self._segments.waiting
        for number, packet in enumerate(packets):
            source, alone = buffers.address(number), buffers.destination(number)[0] != _MULTICAST
            try:
                reply = fast_path.answer(packet, source, to_us_alone=alone) if fast_path is not None else None
                if reply is None:
                    received = Received6(address_of(source), buffers.source(number)[1], alone)
                    reply = self._responder.respond_in_full(packet, received)
            except Exception:
                if self._once.due("fault", asyncio.get_running_loop().time()):
                    log.exception("DHCPv6 on %s: internal error on %s", self._interface, packet.hex())
                continue
            if reply is not None:
                replies.append(reply)

    def _send_together(self, payloads: Sequence[bytes], ancillary: list[tuple[int, int, bytes]], first: Reply6) -> None:
        if self._listener is not None:
            self._listener.socket.sendmsg(payloads, ancillary, 0, self._destination(first))

    def _try_to_send(self, reply: Reply6) -> bool:
        """Whether it was sent."""
        if self._listener is None:
            return False
        try:
            self._listener.socket.sendto(reply.payload, self._destination(reply))
        except OSError as error:
            # A full send buffer, a relay without a route, an interface that went down: the client asks again.
            if self._once.due((error.errno, reply.address), asyncio.get_running_loop().time()):
                log.warning("DHCPv6: reply to %s was not sent: %s", reply.address, error.strerror)
            return False
        return True

    def _destination(self, reply: Reply6) -> tuple[str, int, int, int]:
        return reply.address, reply.port, 0, self._scope if is_link_local(reply.address) else 0
