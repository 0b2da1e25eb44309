"""The Ethernet link of one interface, for frames that are sent past the kernel's own path (`edge.dhcp.wire.frame`).

A packet socket that hears nothing. Without the privilege for it, or where the interface is no Ethernet, there is none,
and the server broadcasts instead.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from edge.dhcp.wire.frame import Framer

_ARPHRD_ETHER: Final = 1  # linux/if_arp.h; what netdevice(7) calls the device's type
_HARDWARE_AGE_SECONDS: Final = 1.0
"""How old the interface's hardware address may be. Bonds and bridges change theirs when a port leaves."""


class NoLinkError(Exception):
    """Frames can't be sent on this interface; says why, and what to do."""


def packet_socket(interface: str, protocol: int, receive_bytes: int | None = None) -> socket.socket:
    """A non-blocking socket for the frames of this protocol on an Ethernet interface; 0: of none, to send only.

    `receive_bytes` may wait there. Raises OSError.
    """
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


class Link:
    """Sends frames from `address` (four bytes) and `port` on one interface."""

    def __init__(self, interface: str, address: bytes, port: int, now: float) -> None:
        """Raises NoLinkError. `now` is in seconds, of the clock that `send` is given too."""
        self._address = address
        self._port = port
        try:
            self._socket = packet_socket(interface, 0)  # nothing that arrives is copied to it (packet(7))
        except OSError as error:
            why = "CAP_NET_RAW is missing" if isinstance(error, PermissionError) else error.strerror
            raise NoLinkError(why) from error
        self._read_hardware_address(now)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, payload: bytes, hardware: bytes, address: str, port: int, now: float) -> bool:
        """Whether the payload has left for that hardware address; False where it does not fit into one frame, and is
        to be sent in another way. Raises OSError where the interface is down, gone or busy."""
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
        """Read the interface's hardware address."""
        self._framer = Framer(self._socket.getsockname()[4], self._address, self._port)
        self._read_again_at = now + _HARDWARE_AGE_SECONDS
