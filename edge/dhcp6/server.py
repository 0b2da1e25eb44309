"""The socket of the DHCPv6 server: port 547 on one interface, and the probes by neighbour discovery."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence
from typing import Final

from edge.dhcp6 import wire
from edge.dhcp6.responder import Responder6
from edge.dhcp6.wire import SERVER_PORT, Received6, address_of
from edge.dhcp_common import AddressClaim, DhcpServerError, Port, Prober, Reply, Server
from edge.listener import ReceiveBuffers, advice, icmp6_socket, receive_icmp6, udp_socket
from edge.neighbour import discovery
from edge.neighbour.links import look
from tink.net.addresses import is_link_local

_MULTICAST: Final = 0xFF
"""The first byte of a group's address (RFC 4291 section 2.7)."""


class Dhcp6Server(Server):
    """Serves DHCPv6 on one interface."""

    def __init__(self, responder: Responder6, interface: str) -> None:
        super().__init__(
            f"DHCPv6 on {interface} as {responder.settings.address}, port {SERVER_PORT}",
            [Dhcp6Port(responder, interface)],
            NeighbourProber(interface, responder.declines),
        )


class Dhcp6Port(Port):
    """Port 547. One socket receives what is sent to the groups and to this host, and sends the replies."""

    def __init__(self, responder: Responder6, interface: str) -> None:
        buffers = ReceiveBuffers(wire.MAX_MESSAGE_BYTES + 1, socket.AF_INET6)
        super().__init__("DHCPv6", interface, SERVER_PORT, SERVER_PORT, buffers)
        self._responder = responder
        self._fast_path = responder.fast_path
        self._scope = 0

    def open(self) -> None:
        """Open the socket and serve. Raises DhcpServerError."""
        try:
            self._scope = socket.if_nametoindex(self._interface)
            self._socket = udp_socket("::", SERVER_PORT, self._interface, self._prepare)
        except OSError as error:
            problem = f"DHCPv6 can't open UDP port {SERVER_PORT} on {self._interface}"
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                problem = f"{problem}: IPv6 is off there (sysctl net.ipv6.conf.{self._interface}.disable_ipv6)"
                raise DhcpServerError(problem) from error
            raise DhcpServerError(advice(problem, error, port=SERVER_PORT, without="without --ipv6")) from error
        self._listen(self._socket)

    def _prepare(self, sock: socket.socket) -> None:
        super()._prepare(sock)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        for group in (wire.ALL_RELAYS_AND_SERVERS, wire.ALL_SERVERS):
            request = group.packed + struct.pack("=I", self._scope)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)

    def _answer(self, _sock: socket.socket, packets: list[bytes]) -> None:
        fast_path, buffers, replies = self._fast_path, self._buffers, self._waiting
        for number, packet in enumerate(packets):
            source, is_unicast = buffers.address(number), buffers.destination(number)[0] != _MULTICAST
            try:
                reply = fast_path.answer(packet, source, is_unicast=is_unicast) if fast_path is not None else None
                if reply is None:
                    received = Received6(address_of(source), buffers.source(number)[1], is_unicast)
                    reply = self._responder.respond_in_full(packet, received)
            except Exception as error:
                self._log_fault(packet, error)
                continue
            if reply is not None:
                replies.append(reply)

    def _send_together(self, payloads: Sequence[bytes], ancillary: list[tuple[int, int, bytes]], first: Reply) -> None:
        self._socket.sendmsg(payloads, ancillary, 0, self._destination(first))

    def _send(self, reply: Reply) -> None:
        self._socket.sendto(reply.payload, self._destination(reply))

    def _destination(self, reply: Reply) -> tuple[str, int, int, int]:
        return reply.address, reply.port, 0, self._scope if is_link_local(reply.address) else 0


class NeighbourProber(Prober):
    """Probes by a raw ICMPv6 socket, which receives the neighbor advertisements that reach this host."""

    _mac, _index = b"", 0

    def _open(self) -> socket.socket:
        link = look(self._interface)
        if link is None or not link.mac:
            raise OSError(errno.ENODEV, f"{self._interface} has no hardware address")
        self._mac, self._index = link.mac, link.index
        return icmp6_socket(self._interface, discovery.NEIGHBOR_ADVERTISEMENT)

    def _send(self, sock: socket.socket, address: bytes) -> None:
        to = (str(discovery.group_of(address)), 0, 0, self._index)
        sock.sendto(discovery.neighbor_solicitation(self._mac, address), to)

    def _receive(self, sock: socket.socket) -> AddressClaim | None:
        packet, hop_limit, _source = receive_icmp6(sock)
        found = discovery.advertised_neighbor(packet, hop_limit)
        return AddressClaim(*found) if found is not None else None
