"""Sends the packets of a transfer to its client, with as few system calls as possible.

`edge.tftp.session` passes on the packets of `edge.tftp.transfer`. A window of equal blocks goes to the kernel as one
datagram that the kernel cuts into packets (UDP_SEGMENT, udp(7)): with 64 blocks of Ethernet size that halves the
processor time. If the kernel or the path does not support it, the packets are sent one by one.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from typing import Any, Final, NamedTuple

from edge.listener import IP_PKTINFO, MAX_PAYLOAD_BYTES, MAX_SEGMENTS, NO_SEGMENTS, packet_info, segments_of, udp_socket
from edge.tftp import packets
from edge.tftp.blocks import Burst

log = logging.getLogger(__name__)

Address = tuple[str, int]
"""IP address (with the zone if it is link-local IPv6) and port."""

Ancillary = list[tuple[int, int, bytes]]

MIN_SEGMENTED: Final = 3
"""Number of packets from which on the kernel cuts them. Two packets cost as much either way (measured)."""
_NEVER: Final = 1 << 62
_HEADERS_BYTES: Final = {socket.AF_INET: 20 + 8 + 4, socket.AF_INET6: 40 + 8 + 4}  # IP, UDP, TFTP


class _Options(NamedTuple):
    """The numbers of a family's socket options (linux/in.h, linux/in6.h); the socket module does not have all."""

    level: int
    report_destination: int
    mtu_discover: int
    errors: int
    mtu: int


_OPTIONS: Final = {
    socket.AF_INET: _Options(socket.IPPROTO_IP, IP_PKTINFO, 10, 11, 14),
    socket.AF_INET6: _Options(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 23, 25, 24),
}
_PMTUDISC_DONT = 0
_REFUSED = struct.pack("=I", errno.ECONNREFUSED)
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOBUFS})


class UdpTransport:
    """Sends packets to one client, over its own socket or a shared one."""

    def __init__(self, sock: socket.socket, client: Address, block_bytes: int, local: str | None = None) -> None:
        """`local` is our source address if the socket is not bound to one."""
        self.client = client
        self._socket = sock
        self._ancillary: Ancillary = []
        if local is not None:
            self._ancillary.append(packet_info(socket.AF_INET6 if ":" in local else socket.AF_INET, local))
        self._packet_bytes = packet_bytes = block_bytes + 4
        self._segmented = [*self._ancillary, segments_of(packet_bytes)]
        segments = min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // packet_bytes)
        self._per_call_bytes = segments * packet_bytes
        # The kernel cuts larger bursts.
        self._uncut_bytes = (MIN_SEGMENTED - 1) * packet_bytes if segments >= MIN_SEGMENTED else _NEVER

    def send(self, burst: Burst) -> int:
        """Send packets, all but the last of a block's size. Return the number that the kernel had no room for."""
        # An OSError is an ICMP error about earlier packets, or a problem of the path.
        if isinstance(burst, memoryview):
            packets = burst
        else:
            # One copy costs less than two pieces of memory (iovecs) for each packet (measured).
            packets = memoryview(b"".join(burst))
            if len(burst) == 2:  # an OACK or an error may be longer than a block
                return self._send_one(packets)
        size = len(packets)
        if size <= self._packet_bytes:
            return self._send_one(packets)
        if size > self._uncut_bytes:
            return self._send_segmented(packets)
        return self._send_each(packets)

    def _send_one(self, packet: memoryview) -> int:
        try:
            if self._ancillary:
                self._socket.sendmsg((packet,), self._ancillary, 0, self.client)
            else:
                self._socket.sendto(packet, self.client)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return 1
            raise
        return 0

    def _send_segmented(self, packets: memoryview) -> int:
        size, step = len(packets), self._per_call_bytes
        for at in range(0, size, step):
            try:
                self._socket.sendmsg((packets[at : at + step],), self._segmented, 0, self.client)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    return self._count(size - at)
                if error.errno not in NO_SEGMENTS:
                    raise
                log.debug("TFTP to %s: the kernel does not cut windows (%s)", self.client[0], error.strerror)
                self._uncut_bytes = _NEVER
                return self._send_each(packets[at:])
        return 0

    def _send_each(self, packets: memoryview) -> int:
        size, step = len(packets), self._packet_bytes
        for at in range(0, size, step):
            if self._send_one(packets[at : at + step]):
                return self._count(size - at)
        return 0

    def _count(self, size: int) -> int:
        """Return the number of packets in `size` bytes. The last one may be short."""
        return -(-size // self._packet_bytes)


def sender(address: tuple[Any, ...]) -> Address:
    """Return address and port of a datagram's sender, without the flow label and scope of IPv6."""
    return address[0], address[1]


def transfer_socket(local: str, interface: str | None) -> socket.socket:
    """Return a socket on a new port: the transfer's identifier (RFC 1350 section 4). Raises OSError."""
    # It is not connected, so that it can send an error to a stranger. It receives ICMP errors.
    # Bind to the address that the client used. On a host with several addresses, routing alone may choose another one,
    # and clients drop answers from other addresses.
    return udp_socket(local, 0, interface, _prepare)


def _prepare(sock: socket.socket) -> None:
    options = _OPTIONS[sock.family]
    sock.setsockopt(options.level, options.errors, 1)
    allow_fragments(sock)


def allow_fragments(sock: socket.socket) -> None:
    """Send without the don't-fragment bit, and ignore ICMP messages about the path's MTU."""
    # PXE ROMs do not support path MTU discovery. Behind a router with a smaller MTU, blocks must arrive in fragments.
    options = _OPTIONS[sock.family]
    sock.setsockopt(options.level, options.mtu_discover, _PMTUDISC_DONT)


def is_port_closed(sock: socket.socket, client: Address) -> bool:
    """Read all ICMP errors of a socket. Return True if one says that the port of `client` is closed."""
    # An unreachable host or network does not count: that may be temporary (RFC 1122 section 4.2.3.9).
    found = False
    while True:
        try:
            _, ancillary, _, where = sock.recvmsg(0, 128, socket.MSG_ERRQUEUE)
        except OSError:
            return found
        for _, _, value in ancillary:  # struct sock_extended_err begins with the errno
            found = found or (where[:2] == client and value[:4] == _REFUSED)


def max_block_bytes(client: Address, local: str, interface: str | None) -> int:
    """Return the largest block that fits into one packet to the client, at least 512 bytes. Raises OSError."""
    with udp_socket(local, 0, interface, lambda _: None) as sock:
        sock.connect(client)
        options = _OPTIONS[sock.family]
        mtu = sock.getsockopt(options.level, options.mtu)
        return max(mtu - _HEADERS_BYTES[sock.family], packets.DEFAULT_BLOCK_BYTES)


def report_destinations(sock: socket.socket) -> None:
    """Make the socket report the destination address of each datagram (see `destination_address`)."""
    options = _OPTIONS[sock.family]
    sock.setsockopt(options.level, options.report_destination, 1)


def destination_address(ancillary: list[tuple[int, int, bytes]]) -> str | None:
    """Return the address that a datagram was sent to (IP_PKTINFO, ip(7)); None for a broadcast or a group."""
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IP and kind == IP_PKTINFO and len(value) >= 12:
            ours, written = value[4:8], value[8:12]
            return socket.inet_ntoa(ours) if ours == written else None
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_PKTINFO and len(value) >= 20:
            return None if value[0] == 0xFF else socket.inet_ntop(socket.AF_INET6, value[:16])
    return "0.0.0.0"  # noqa: S104 - the kernel chooses the source address
