"""The sockets of the DHCP server: port 67, and 4011 for PXE clients that ask there for their boot file.

Each socket is bound to one interface, so that it hears the broadcasts of that network and no other, and so that two
networks can be served side by side. Packets go through `edge.dhcp.responder`; whatever goes wrong with one of them, or
with the network, is logged and the next one is served.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import struct

from edge.dhcp import options
from edge.dhcp.codec import MAX_PACKET
from edge.dhcp.responder import PXE_PORT, SERVER_PORT, Received, Reply, Responder
from edge.listener import Listener, advice
from edge.once_per import OncePer

log = logging.getLogger(__name__)

_RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)  # linux/in.h; named by the socket module from Python 3.12 on


class DhcpServerError(Exception):
    """The server can't start; says which port and what to do."""


class DhcpServer:
    """Serves DHCP on one interface."""

    def __init__(self, responder: Responder, interface: str) -> None:
        self._responder = responder
        self._interface = interface
        self._listeners: list[Listener[tuple[bytes, Received]]] = []
        self._error_once = OncePer(10.0, 20)
        # Replies leave with the address that option 54 names, whichever others the interface has: clients compare.
        packet_info = struct.pack("=I4s4s", 0, options.ipv4(responder.settings.server_ip), bytes(4))
        self._ancillary = [(socket.IPPROTO_IP, _IP_PKTINFO, packet_info)]

    async def start(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        try:
            for port in (SERVER_PORT, PXE_PORT):
                receive = functools.partial(self._receive, port=port)
                self._listeners.append(
                    Listener(self._open(port), f"DHCP on {self._interface} port {port}", receive, self._answer)
                )
        except DhcpServerError:
            await self.stop()
            raise
        for listener in self._listeners:
            listener.start()
        log.info(
            "DHCP on %s as %s, ports %d and %d",
            self._interface,
            self._responder.settings.server_ip,
            SERVER_PORT,
            PXE_PORT,
        )

    async def stop(self) -> None:
        """Close the sockets. Clients that wait for an answer ask again."""
        for listener in self._listeners:
            listener.stop()
        self._listeners.clear()

    def _open(self, port: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
            # No SO_REUSEADDR: with it a second DHCP server on this host would not be noticed, and half of the
            # clients would be its.
            sock.bind(("0.0.0.0", port))  # noqa: S104 - broadcasts are addressed to nobody; the device is the bound
        except OSError as error:
            sock.close()
            what = f"DHCP can't open UDP port {port} on {self._interface}"
            raise DhcpServerError(advice(what, error, port=port, disable="dhcp")) from error
        return sock

    def _receive(self, sock: socket.socket, port: int) -> tuple[bytes, Received]:
        packet, (source, source_port) = sock.recvfrom(MAX_PACKET + 1)
        return packet, Received(source, source_port, port)

    def _answer(self, sock: socket.socket, arrived: tuple[bytes, Received]) -> None:
        reply = self._responder.respond(*arrived)
        if reply is not None:
            self._send(sock, reply)

    def _send(self, sock: socket.socket, reply: Reply) -> None:
        try:
            sock.sendmsg([reply.payload], self._ancillary, 0, (reply.address, reply.port))
        except OSError as error:
            # A full send buffer, a relay without a route, an interface that went down: the client asks again.
            if self._error_once.due((error.errno, reply.address), self._now()):
                log.warning("DHCP: reply to %s port %d was not sent: %s", reply.address, reply.port, error.strerror)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
