"""The sockets of the DHCP server: port 67, and 4011 for PXE clients that ask there for their boot file.

Each socket is bound to one interface, so that it hears the broadcasts of that network and no other, and so that two
networks can be served side by side. Packets go through `edge.dhcp.responder`; whatever goes wrong with one of them, or
with the network, is logged and the next one is served.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct

from edge.dhcp import options
from edge.dhcp.codec import MAX_PACKET
from edge.dhcp.responder import PXE_PORT, SERVER_PORT, Received, Reply, Responder
from edge.once_per import OncePer

log = logging.getLogger(__name__)

_PACKETS_PER_TURN = 64
"""Packets answered before the event loop may serve others: a boot storm must not starve a running TFTP transfer."""

_RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
_PAUSE_AFTER_ERROR_SECONDS = 1.0
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)  # linux/in.h; named by the socket module from Python 3.12 on


class DhcpServerError(Exception):
    """The server can't start; says which port and what to do."""


class DhcpServer:
    """Serves DHCP on one interface."""

    def __init__(self, responder: Responder, interface: str) -> None:
        self._responder = responder
        self._interface = interface
        self._sockets: dict[int, socket.socket] = {}
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._error_once = OncePer(10.0, 20)
        # Replies leave with the address that option 54 names, whichever others the interface has: clients compare.
        packet_info = struct.pack("=I4s4s", 0, options.ipv4(responder.settings.server_ip), bytes(4))
        self._ancillary = [(socket.IPPROTO_IP, _IP_PKTINFO, packet_info)]

    async def start(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        try:
            for port in (SERVER_PORT, PXE_PORT):
                self._sockets[port] = self._open(port)
        except DhcpServerError:
            await self.stop()
            raise
        for port in self._sockets:
            self._listen(port)
        log.info(
            "DHCP on %s as %s, ports %d and %d",
            self._interface,
            self._responder.settings.server_ip,
            SERVER_PORT,
            PXE_PORT,
        )

    async def stop(self) -> None:
        """Close the sockets. Clients that wait for an answer ask again."""
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for sock in self._sockets.values():
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()

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
            raise DhcpServerError(self._advice(port, error)) from error
        return sock

    def _advice(self, port: int, error: OSError) -> str:
        where = f"DHCP can't open UDP port {port} on {self._interface}"
        if error.errno == errno.EADDRINUSE:
            return (
                f"{where}: another program has it; stop that DHCP server ('ss -lunp sport = :{port}' names it), "
                "or start without DHCP (--disable dhcp)"
            )
        if error.errno in (errno.EPERM, errno.EACCES):
            return f"{where}: not permitted; run as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
        if error.errno == errno.ENODEV:
            return f"{where}: there is no such interface ('ip -brief link' lists them); name another with --interface"
        return f"{where}: {error.strerror}"

    def _listen(self, port: int) -> None:
        self._pauses.pop(port, None)
        asyncio.get_running_loop().add_reader(self._sockets[port], self._drain, port)

    def _drain(self, port: int) -> None:
        """Answer what has arrived, up to a turn's worth; the event loop calls again for the rest."""
        sock = self._sockets[port]
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet, (source, source_port) = sock.recvfrom(MAX_PACKET + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._pause(port, error)
                return
            try:
                reply = self._responder.respond(packet, Received(source, source_port, port))
            except Exception:
                # A fault of ours on one packet is not to end the service of all others.
                if self._error_once.due("respond", self._now()):
                    log.exception("DHCP: no answer to %s: internal error on packet %s", source, packet[:600].hex())
                continue
            if reply is not None:
                self._send(sock, reply)

    def _send(self, sock: socket.socket, reply: Reply) -> None:
        try:
            sock.sendmsg([reply.payload], self._ancillary, 0, (reply.address, reply.port))
        except OSError as error:
            # A full send buffer, a relay without a route, an interface that went down: the client asks again.
            if self._error_once.due((error.errno, reply.address), self._now()):
                log.warning("DHCP: reply to %s port %d was not sent: %s", reply.address, reply.port, error.strerror)

    def _pause(self, port: int, error: OSError) -> None:
        """Stop reading for a moment: an error that stays would otherwise be reported as fast as the CPU can."""
        if self._error_once.due((port, error.errno), self._now()):
            log.error("DHCP: receiving on port %d of %s: %s; going on", port, self._interface, error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sockets[port])
        self._pauses[port] = loop.call_later(_PAUSE_AFTER_ERROR_SECONDS, self._listen, port)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
