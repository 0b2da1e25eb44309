"""One UDP port of the DHCP server on one interface: what it hears goes to the responder, the replies leave together.

A port has two sockets. One hears what is sent to everybody and broadcasts, the other has this server's address: what it
sends comes from the address that option 54 names, whichever others the interface has, for clients compare. That they
are two also keeps apart what must not wait for each other: a reply to an address on this link that nobody answers ARP
for lies in its socket's send buffer for seconds, and forged relay addresses could fill it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Sequence

from edge.dhcp.datagram import BROADCAST, SERVER_PORT, Received, Reply
from edge.dhcp.responder import Responder
from edge.dhcp.sockets.link import Link, NoLinkError
from edge.dhcp.wire import codec, options
from edge.listener import ModeratedListener, ReceiveBuffers, Segments, advice, enlarge_buffer, udp_socket
from tink.errors import TinkedgeError
from tink.limits.once_per import OncePer

log = logging.getLogger(__name__)

# A whole row of racks that is switched on at once waits here and not in the clients' timeouts.
_RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
# Room for the replies of a turn, many times over; what lies here for ARP is lost anyhow.
_SEND_BUFFER_BYTES = 1024 * 1024
_REPLACED_SECONDS = 0.1

# linux/in.h, asm-generic/socket.h; those that the socket module does not name, or not before Python 3.12.
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)


class DhcpServerError(TinkedgeError):
    """The server can't start; says which port and what to do."""


class Port:
    """One UDP port of one interface."""

    def __init__(self, interface: str, number: int, address: str, responder: Responder) -> None:
        self._interface = interface
        self._number = number
        self._address = address
        self._fast_path = responder.fast_path if number == SERVER_PORT else None
        self._respond_in_full = responder.respond_in_full
        self._loop = asyncio.get_running_loop()
        self._once = OncePer(10.0, 20)
        self._replaced_once = OncePer(_REPLACED_SECONDS, 1)
        packet_info = struct.pack("=I4s4s", 0, options.ipv4(address), bytes(4))
        self._from_us = [(socket.IPPROTO_IP, _IP_PKTINFO, packet_info)]
        self._buffers = ReceiveBuffers(codec.MAX_PACKET_BYTES + 1)
        self._listeners: list[ModeratedListener] = []
        self._link: Link | None = None
        what = f"DHCP on {interface}"
        self._segments: Segments[Reply] = Segments(what, SERVER_PORT, self._try_to_send, self._send_together)

    def open(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        try:
            # The first without SO_REUSEADDR: with it another DHCP server of this host would not be noticed, and half of
            # the clients would be its.
            self._broadcast_socket = self._open_socket("0.0.0.0")  # noqa: S104 - the device is the bound
            self._listen(self._broadcast_socket)
            self._unicast_socket = self._open_unicast_socket()
            self._listen(self._unicast_socket)
        except OSError as error:
            self.close()
            what = f"DHCP can't open UDP port {self._number} on {self._interface}"
            raise DhcpServerError(advice(what, error, port=self._number, without="--disable dhcp")) from error
        if self._number == SERVER_PORT:
            self._link = self._open_link()

    def close(self) -> None:
        """Close the sockets."""
        for listener in self._listeners:
            listener.stop()
        self._listeners.clear()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _open_socket(self, address: str, *, shared: bool = False) -> socket.socket:
        def prepare(sock: socket.socket) -> None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            enlarge_buffer(sock, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)

        return udp_socket(address, self._number, self._interface, prepare)

    def _open_unicast_socket(self) -> socket.socket:
        """The socket with our address. The port may be shared only while this one is bound, beside the first."""
        others = [listener.socket for listener in self._listeners]
        for sock in others:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            return self._open_socket(self._address, shared=True)
        finally:
            for sock in others:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def _listen(self, sock: socket.socket) -> None:
        what = f"DHCP on {self._interface} port {self._number}"
        receive, answer = self._buffers.receive, self._answer
        listener = ModeratedListener(sock, what, receive, answer, after_turn=self._segments.send_all)
        listener.start()
        self._listeners.append(listener)

    def _open_link(self) -> Link | None:
        try:
            return Link(self._interface, options.ipv4(self._address), self._number, self._loop.time())
        except NoLinkError as error:
            log.warning(
                "DHCP on %s: clients without an address are answered by broadcast, for %s", self._interface, error
            )
            return None

    def _answer(self, _sock: socket.socket, packets: list[bytes]) -> None:
        fast_path, replies = self._fast_path, self._segments.waiting
        for number, packet in enumerate(packets):
            try:
                reply = fast_path.answer(packet) if fast_path is not None else None
                if reply is None:
                    received = Received(*self._buffers.source(number), self._number)
                    reply = self._respond_in_full(packet, received)
            except Exception:
                if self._once.due("fault", self._loop.time()):
                    what = f"DHCP on {self._interface} port {self._number}"
                    log.exception("%s: internal error on %s", what, packet.hex())
                continue
            if reply is not None:
                replies.append(reply)

    def _send_together(self, payloads: Sequence[bytes], ancillary: list[tuple[int, int, bytes]], first: Reply) -> None:
        self._unicast_socket.sendmsg(payloads, ancillary, 0, (first.address, first.port))

    def _try_to_send(self, reply: Reply) -> bool:
        """Whether it was sent."""
        try:
            self._send(reply)
        except OSError as error:
            # A full send buffer, a relay without a route, an interface that went down: the client asks again.
            if self._once.due((error.errno, reply.address), self._loop.time()):
                hint = f"; is {self._address} an address of {self._interface}?" if error.errno == errno.EINVAL else ""
                log.warning(
                    "DHCP: reply to %s port %d was not sent: %s%s", reply.address, reply.port, error.strerror, hint
                )
            return False
        return True

    def _send(self, reply: Reply) -> None:
        payload, address, port, ethernet = reply
        if ethernet:
            if self._link is not None and self._link.send(payload, ethernet, address, port, self._loop.time()):
                return
            address = BROADCAST
        if address == BROADCAST:
            self._broadcast_socket.sendmsg([payload], self._from_us, 0, (address, port))
            return
        try:
            self._unicast_socket.sendto(payload, (address, port))
        except BlockingIOError:
            if not self._replaced_once.due("", self._loop.time()):
                raise
            self._replace_unicast_socket()
            self._unicast_socket.sendto(payload, (address, port))

    def _replace_unicast_socket(self) -> None:
        """Go on with another socket than the one whose send buffer is full of replies that wait for ARP.

        They are given up by the kernel after three seconds; relays that exist are not to wait as long. The kernel
        bounds what may wait in all: for each neighbour, and the number of neighbours.
        """
        worn = self._listeners[-1]
        self._unicast_socket = self._open_unicast_socket()
        self._listen(self._unicast_socket)
        # New packets come to the new socket; what the other has heard already is answered in its next turns.
        self._loop.call_later(_REPLACED_SECONDS, self._retire, worn)

    def _retire(self, worn: ModeratedListener) -> None:
        if worn in self._listeners:
            self._listeners.remove(worn)
            worn.stop()
