"""Hears from the kernel that an entry of its neighbour table has changed (RTNLGRP_NEIGH): what it said is forgotten.

Whoever takes an address over on a link of ours must first let the kernel know its MAC, and the kernel tells so before
it hands on what comes from there. So nobody is taken for the one who had the address a moment ago.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from edge.neighbour.table import changed_address

_RTMGRP_NEIGH: Final = 4  # linux/rtnetlink.h
_PER_TURN: Final = 256


class NeighbourChanges:
    """Calls `changed(ip)` for each change, `changed(None)` when some were missed. Needs a running loop."""

    def __init__(self, changed: Callable[[str | None], None]) -> None:
        """Raises OSError where the kernel has no such messages."""
        self._changed = changed
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        try:
            self._socket.bind((0, _RTMGRP_NEIGH))
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._hear)

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _hear(self) -> None:
        for _ in range(_PER_TURN):
            try:
                message = self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # more than the queue holds: which they were is not known
                    raise
                self._changed(None)
                continue
            ip = changed_address(message)
            if ip is not None:
                self._changed(ip)
