"""The sockets of the DHCP server: port 67, and port 4011 for PXE clients that ask there for their boot file."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence
from typing import Final

from edge.dhcp.context import BROADCAST, PXE_PORT, SERVER_PORT, Received
from edge.dhcp.responder import Responder
from edge.dhcp.wire import codec, frames, options
from edge.dhcp_common import AddressClaim, DhcpServerError, Port, Prober, Reply, Server
from edge.listener import ModeratedListener, ReceiveBuffers, advice, packet_info, udp_socket
from tink.limits import OncePer

log = logging.getLogger(__name__)

_ARPHRD_ETHER: Final = 1  # linux/if_arp.h; netdevice(7) calls it the device's type
_HARDWARE_AGE_SECONDS: Final = 1.0
"""Maximum age of the interface's hardware address. Bonds and bridges change theirs when a port leaves."""
_ARP_BACKLOG_BYTES: Final = 256 * 1024
_REPLACED_SECONDS = 0.1


class NoLinkError(options.DhcpError):
    """Frames can't be sent on this interface; the text says why, and what to do."""


class DhcpServer(Server):
    """Serves DHCP on one interface."""

    def __init__(self, responder: Responder, interface: str) -> None:
        super().__init__(
            f"DHCP on {interface} as {responder.settings.server_ip}, ports {SERVER_PORT} and {PXE_PORT}",
            [DhcpPort(responder, interface, number) for number in (SERVER_PORT, PXE_PORT)],
            ArpProber(interface, responder.declines) if responder.declines is not None else None,
        )


class DhcpPort(Port):
    """One UDP port, with two sockets.

    One socket receives and sends broadcasts. The other one has the server's address: its packets come from the address
    that option 54 names, even if the interface has others, because clients compare the two.

    Two sockets also have two send buffers. A reply to an address on this link that no host answers ARP for stays in the
    send buffer for seconds, and forged relay addresses could fill it.
    """

    def __init__(self, responder: Responder, interface: str, number: int) -> None:
        super().__init__("DHCP", interface, number, SERVER_PORT, ReceiveBuffers(codec.MAX_PACKET_BYTES + 1))
        self._address = responder.settings.server_ip
        self._fast_path = responder.fast_path if number == SERVER_PORT else None
        self._respond_in_full = responder.respond_in_full
        self._replaced_once = OncePer(_REPLACED_SECONDS, 1)
        self._from_us = [packet_info(socket.AF_INET, self._address)]
        self._link: FrameSender | None = None
        if number == SERVER_PORT:
            responder.send_later = self._send_later

    def _send_later(self, reply: Reply) -> None:
        """Send a reply that answers no packet of this turn."""
        if self._listeners:
            self._waiting.append(reply)
            self._loop.call_soon(self._send_all)

    def open(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        try:
            # Without SO_REUSEADDR. With it, another DHCP server of this host would not be noticed, and would receive
            # half of the clients' packets.
            self._broadcast_socket = self._open_socket("0.0.0.0")  # noqa: S104 - the device is the bound
            self._listen(self._broadcast_socket)
            self._unicast_socket = self._open_unicast_socket()
            self._listen(self._unicast_socket)
        except OSError as error:
            self.close()
            what = f"DHCP can't open UDP port {self._number} on {self._interface}"
            raise DhcpServerError(advice(what, error, port=self._number, without="--disable dhcp")) from error
        if self._number == SERVER_PORT:
            try:
                self._link = FrameSender(self._interface, options.ipv4(self._address), self._number, self._loop.time())
            except NoLinkError as error:
                text = "DHCP on %s: clients without an address are answered by broadcast, for %s"
                log.warning(text, self._interface, error)

    def close(self) -> None:
        """Close the sockets."""
        super().close()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _open_socket(self, address: str, *, shared: bool = False) -> socket.socket:
        def prepare(sock: socket.socket) -> None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self._prepare(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)

        return udp_socket(address, self._number, self._interface, prepare)

    def _open_unicast_socket(self) -> socket.socket:
        """Open the socket with our address. The others share the port only while this one is bound."""
        others = [listener.socket for listener in self._listeners]
        for sock in others:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            return self._open_socket(self._address, shared=True)
        finally:
            for sock in others:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def _answer(self, _sock: socket.socket, packets: list[bytes]) -> None:
        fast_path, replies = self._fast_path, self._waiting
        for number, packet in enumerate(packets):
            try:
                reply = fast_path.answer(packet) if fast_path is not None else None
                if reply is None:
                    received = Received(*self._buffers.source(number), self._number)
                    reply = self._respond_in_full(packet, received)
            except Exception as error:
                self._log_fault(packet, error)
                continue
            if reply is not None:
                replies.append(reply)

    def _send_together(self, payloads: Sequence[bytes], ancillary: list[tuple[int, int, bytes]], first: Reply) -> None:
        self._unicast_socket.sendmsg(payloads, ancillary, 0, (first.address, first.port))

    def _hint(self, error: OSError) -> str:
        return f"; is {self._address} an address of {self._interface}?" if error.errno == errno.EINVAL else ""

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
        """Replace the socket whose send buffer is full of replies that wait for ARP."""
        # The kernel drops these replies after three seconds; replies to relays that exist do not wait that long. The
        # kernel limits the replies that wait for each neighbour, and the number of neighbours.
        old = self._listeners[-1]
        self._unicast_socket = self._open_unicast_socket()
        self._listen(self._unicast_socket)
        # New packets arrive at the new socket; those that the old one received are answered in its next turns.
        self._loop.call_later(_REPLACED_SECONDS, self._retire, old)

    def _retire(self, old: ModeratedListener) -> None:
        if old in self._listeners:
            self._listeners.remove(old)
            old.stop()


class ArpProber(Prober):
    """Probes by a packet socket, which receives all ARP packets of the link."""

    def _open(self) -> socket.socket:
        return packet_socket(self._interface, frames.ARP_ETHERTYPE, _ARP_BACKLOG_BYTES)

    def _send(self, sock: socket.socket, address: bytes) -> None:
        sock.send(frames.arp_probe(sock.getsockname()[4], address))

    def _receive(self, sock: socket.socket) -> AddressClaim | None:
        return frames.arp_claim(sock.recv(frames.MAX_ARP_BYTES))


class FrameSender:
    """Sends UDP frames on one Ethernet interface, past the kernel's ARP (`edge.dhcp.wire.frames`)."""

    def __init__(self, interface: str, address: bytes, port: int, now: float) -> None:
        """Open the link for frames from `address` (four bytes) and `port`. Raises NoLinkError."""
        self._address = address
        self._port = port
        try:
            # With protocol 0 no received frame is copied to the socket (packet(7)).
            self._socket = packet_socket(interface, 0)
        except OSError as error:
            why = "CAP_NET_RAW is missing" if isinstance(error, PermissionError) else error.strerror
            raise NoLinkError(why) from error
        self._read_hardware_address(now)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, payload: bytes, hardware: bytes, address: str, port: int, now: float) -> bool:
        """Send one frame; return False if the payload does not fit into one. Raises OSError."""
        if now >= self._read_again_at:
            self._read_hardware_address(now)
        try:
            self._socket.send(self._framer.frame(payload, hardware, socket.inet_aton(address), port))
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                return False
            raise
        return True

    def _read_hardware_address(self, now: float) -> None:
        self._framer = frames.Framer(self._socket.getsockname()[4], self._address, self._port)
        self._read_again_at = now + _HARDWARE_AGE_SECONDS


def packet_socket(interface: str, protocol: int, receive_bytes: int | None = None) -> socket.socket:
    """Open a non-blocking socket for frames of this protocol (0: to send only) on an Ethernet. Raises OSError."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        sock.setblocking(False)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.bind((interface, protocol))
        if sock.getsockname()[3] != _ARPHRD_ETHER:
            raise OSError(0, f"{interface} is no Ethernet interface")
    except OSError:
        sock.close()
        raise
    return sock
