"""The sockets of the DHCP server: port 67, and 4011 for PXE clients that ask there for their boot file.

Each socket is bound to one interface, so that it hears the broadcasts of that network and no other, and so that several
networks can be served side by side, each by a server of its own. Packets go through `edge.dhcp.responder`; whatever
goes wrong with one of them, or with the network, is logged and the next one is served. An interface that is taken away
is waited for.

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
from collections import defaultdict

from edge.dhcp import options
from edge.dhcp.codec import MAX_PACKET
from edge.dhcp.datagram import BROADCAST, PXE_PORT, SERVER_PORT, Received, Reply
from edge.dhcp.inbox import Inbox
from edge.dhcp.link import Link, NoLinkError
from edge.dhcp.prober import Prober
from edge.dhcp.responder import Responder, no_quick_answer
from edge.listener import Listener, advice
from tink.limits.once_per import OncePer

log = logging.getLogger(__name__)

# A whole row of racks that is switched on at once waits here and not in the clients' timeouts.
_RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
# Room for the replies of a turn, many times over; what lies here for ARP is lost anyhow.
_SEND_BUFFER_BYTES = 1024 * 1024
_LOOK_SECONDS = 1.0
_FRESH_SOCKET_SECONDS = 0.1

# linux/in.h, asm-generic/socket.h; those that the socket module does not name, or not before Python 3.12.
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)
_IP_FREEBIND = 15
_SO_RCVBUFFORCE = 33

_SOL_UDP = 17
_UDP_SEGMENT = 103  # linux/udp.h
_NO_SEGMENTS = {errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
_MOST_SEGMENTS = 64  # UDP_MAX_SEGMENTS of kernels before 6.9; later ones take twice as many
_MOST_BYTES = 65507  # of a UDP payload, which is what the kernel is given to take apart


class DhcpServerError(Exception):
    """The server can't start; says which port and what to do."""


class DhcpServer:
    """Serves DHCP on one interface."""

    def __init__(self, responder: Responder, interface: str) -> None:
        self._responder = responder
        self._interface = interface
        self._address = responder.settings.server_ip
        self._ports: list[_Port] = []
        self._prober: Prober | None = None
        self._index = 0
        self._timer: asyncio.TimerHandle | None = None
        self._once = OncePer(60.0, 20)

    async def start(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        self._open()
        log.info("DHCP on %s as %s, ports %d and %d", self._interface, self._address, SERVER_PORT, PXE_PORT)
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    async def stop(self) -> None:
        """Close the sockets. Clients that wait for an answer ask again."""
        if self._timer is not None:
            self._timer.cancel()
        self._close()

    def _open(self) -> None:
        index = _index(self._interface)  # before the sockets are bound to it: if it is replaced meanwhile, that is seen
        try:
            for number in (SERVER_PORT, PXE_PORT):
                port = _Port(self._interface, number, self._address, self._responder)
                self._ports.append(port)
                port.open()
        except DhcpServerError:
            self._close()
            raise
        self._index = index
        if self._responder.declined is not None:
            self._prober = Prober(self._interface, self._responder.declined)
            self._prober.start()

    def _close(self) -> None:
        if self._prober is not None:
            self._prober.stop()
            self._prober = None
        for port in self._ports:
            port.close()
        self._ports.clear()

    def _look(self) -> None:
        """See whether the interface is still the one that the sockets are bound to.

        A socket stays bound to an interface that was removed, hears nothing more and is not told; another interface of
        the same name, of a driver that was loaded anew or a VLAN that was set up anew, needs other sockets.
        """
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_SECONDS, self._look)
        if self._responder.declined is not None:
            self._responder.declined.pass_time()
        index = _index(self._interface)
        if index == self._index and self._ports:
            return
        if self._ports:
            log.warning("DHCP: the interface %s is gone; waiting until it is back", self._interface)
            self._close()
        if index:
            try:
                self._open()
            except DhcpServerError as error:
                if self._once.due(str(error), loop.time()):
                    log.error("%s; trying again", error)
            else:
                log.info("DHCP on %s again, as %s", self._interface, self._address)


class _Port:
    """One UDP port of one interface."""

    def __init__(self, interface: str, number: int, address: str, responder: Responder) -> None:
        self._interface = interface
        self._number = number
        self._address = address
        self._respond = responder.respond
        self._quick = responder.quick if number == SERVER_PORT else no_quick_answer
        self._loop = asyncio.get_running_loop()
        self._once = OncePer(10.0, 20)
        self._fresh_once = OncePer(_FRESH_SOCKET_SECONDS, 1)
        packet_info = struct.pack("=I4s4s", 0, options.ipv4(address), bytes(4))
        self._from_us = [(socket.IPPROTO_IP, _IP_PKTINFO, packet_info)]
        self._inbox = Inbox(MAX_PACKET + 1)
        self._listeners: list[Listener[list[bytes]]] = []
        self._link: Link | None = None
        self._replies: list[Reply] = []
        self._segments = True

    def open(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        try:
            # The first without SO_REUSEADDR: with it another DHCP server of this host would not be noticed, and half of
            # the clients would be its.
            self._everybodys = self._socket("0.0.0.0")  # noqa: S104 - the device is the bound
            self._listen(self._everybodys)
            self._own = self._own_socket()
            self._listen(self._own)
        except OSError as error:
            self.close()
            what = f"DHCP can't open UDP port {self._number} on {self._interface}"
            raise DhcpServerError(advice(what, error, port=self._number, disable="dhcp")) from error
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

    def _socket(self, address: str, *, shared: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            except PermissionError:  # without CAP_NET_ADMIN, as much as net.core.rmem_max lets everybody have
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((address, self._number))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                # Not yet, or, an address that moves between hosts, not here now: answers begin when it comes.
                log.warning("DHCP: %s is no address of this host yet; nothing is answered until it is", address)
                sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
                sock.bind((address, self._number))
        except OSError:
            sock.close()
            raise
        return sock

    def _own_socket(self) -> socket.socket:
        """The socket with our address. The port may be shared only while this one is bound, beside the first."""
        others = [listener.socket for listener in self._listeners]
        for sock in others:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            return self._socket(self._address, shared=True)
        finally:
            for sock in others:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def _listen(self, sock: socket.socket) -> None:
        what = f"DHCP on {self._interface} port {self._number}"
        receive, answer = self._inbox.receive, self._answer
        listener: Listener[list[bytes]] = Listener(sock, what, receive, answer, per_turn=1, after_turn=self._send_all)
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
        quick, replies = self._quick, self._replies
        for number, packet in enumerate(packets):
            try:
                reply = quick(packet)
                if reply is None:
                    reply = self._respond(packet, Received(*self._inbox.source(number), self._number))
                    if reply is None:
                        continue
            except Exception:
                if self._once.due("fault", self._loop.time()):
                    what = f"DHCP on {self._interface} port {self._number}"
                    log.exception("%s: internal error on %s", what, packet.hex())
                continue
            replies.append(reply)

    def _send_all(self) -> None:
        """Send the replies of a turn, those of one size to one relay with one system call.

        Clients get theirs singly. They read frames, for they have no address yet; and where a virtual network card
        segments UDP, frames are passed on to them that hold several replies.
        """
        replies = self._replies
        if not replies:
            return
        self._replies = []
        if len(replies) == 1 or not self._segments:
            for reply in replies:
                self._try_to_send(reply)
            return
        alike: defaultdict[tuple[int, str], list[Reply]] = defaultdict(list)
        for reply in replies:
            if reply.port == SERVER_PORT:
                alike[len(reply.payload), reply.address].append(reply)
            else:
                self._try_to_send(reply)
        for (size, _), group in alike.items():
            most = min(_MOST_SEGMENTS, _MOST_BYTES // size)
            for at in range(0, len(group), most):
                self._send_group(group[at : at + most])

    def _send_group(self, group: list[Reply]) -> None:
        """Send replies of one size to one relay. The kernel takes them apart, or they go singly."""
        payload, address, port, _ = group[0]
        refused = False
        if len(group) > 1:
            segment = (_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", len(payload)))
            payloads = [reply.payload for reply in group]
            try:
                self._own.sendmsg(payloads, [segment], 0, (address, port))
            except OSError as error:
                refused = error.errno in _NO_SEGMENTS  # or they can't be sent at all, which is said below
            else:
                return
        sent = [self._try_to_send(reply) for reply in group]
        if refused and all(sent) and self._segments:
            self._segments = False
            log.info("DHCP on %s: this kernel or interface does not segment UDP; replies go singly", self._interface)

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
            self._everybodys.sendmsg([payload], self._from_us, 0, (address, port))
            return
        try:
            self._own.sendto(payload, (address, port))
        except BlockingIOError:
            if not self._fresh_once.due("", self._loop.time()):
                raise
            self._freshen()
            self._own.sendto(payload, (address, port))

    def _freshen(self) -> None:
        """Go on with another socket than the one whose send buffer is full of replies that wait for ARP.

        They are given up by the kernel after three seconds; relays that exist are not to wait as long. The kernel
        bounds what may wait in all: for each neighbour, and the number of neighbours.
        """
        worn = self._listeners[-1]
        self._own = self._own_socket()
        self._listen(self._own)
        # New packets come to the new socket; what the other has heard already is answered in its next turns.
        self._loop.call_later(_FRESH_SOCKET_SECONDS, self._retire, worn)

    def _retire(self, worn: Listener[list[bytes]]) -> None:
        if worn in self._listeners:
            self._listeners.remove(worn)
            worn.stop()


def _index(interface: str) -> int:
    """The interface's number, 0 if there is none of this name."""
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0
