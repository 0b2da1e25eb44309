"""How much has come in on a TCP connection, by the kernel's count: whether its client has begun to speak, how fast."""

from __future__ import annotations

import socket
import struct
from typing import Final

_COUNT: Final = struct.Struct("=Q")
_AT: Final = 128
"""tcpi_bytes_received in struct tcp_info (linux/tcp.h), since Linux 4.1."""


def bytes_received(sock: socket.socket) -> int:
    """In bytes, read or not; 0 where the kernel does not say. Raises OSError if the socket is closed or none of TCP."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AT + _COUNT.size)
    if len(info) < _AT + _COUNT.size:
        return 0
    count: int = _COUNT.unpack_from(info, _AT)[0]
    return count
