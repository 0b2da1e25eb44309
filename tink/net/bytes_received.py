"""The kernel's count of the bytes that were received on a TCP connection."""

from __future__ import annotations

import socket
import struct
from typing import Final

_COUNT: Final = struct.Struct("=Q")
_AT: Final = 128
"""Offset of tcpi_bytes_received in struct tcp_info (linux/tcp.h), since Linux 4.1."""


def bytes_received(sock: socket.socket) -> int:
    """Return the number of received bytes, read or not; 0 if the kernel does not count them.

    Raises OSError if the socket is closed, or not a TCP socket.
    """
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AT + _COUNT.size)
    if len(info) < _AT + _COUNT.size:
        return 0
    count: int = _COUNT.unpack_from(info, _AT)[0]
    return count
