"""The agent's connections to its server, as the kernel has them: asked every few seconds whether the other end is
there.

gRPC asks every 20 s, which costs the server a message each. An address that moves to another host (a VIP) is noticed by
the kernel's own question (tcp(7), TCP_KEEPIDLE): the new host knows of no such connection and says so, and the agent
connects anew. That costs no process anything. gRPC's Python has no option for it; its sockets are found in /proc.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

_IDLE_SECONDS: Final = 5
_AGAIN_SECONDS: Final = 2
_TIMES: Final = 5
_DESCRIPTORS: Final = "/proc/self/fd"


def probe_often(port: int) -> int:
    """Have the kernel ask on all connections to that port; how many there are. One that ends meanwhile is none."""
    found = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers are enough
            with contextlib.suppress(OSError, ValueError):
                found += _probe(int(name), port)
    return found


def _probe(fd: int, port: int) -> bool:
    """Raises OSError for what is no such socket."""
    copy = os.dup(fd)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return False
        if sock.getpeername()[1] != port:
            return False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, _IDLE_SECONDS),
            (socket.TCP_KEEPINTVL, _AGAIN_SECONDS),
            (socket.TCP_KEEPCNT, _TIMES),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return True
