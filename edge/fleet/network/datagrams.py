"""UDP from a machine's own address: a TFTP transfer's socket, with the datagrams that are lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

_LARGEST: Final = 65_535
_PER_TURN: Final = 16

Received = Callable[[bytes, tuple[str, int]], None]


class DatagramSocket:
    """One socket. `received(datagram, sender)` hears what comes; `lost()` says of each datagram whether it is lost."""

    __slots__ = ("_loop", "_lost", "_received", "_socket")

    def __init__(self, address: str, received: Received, lost: Callable[[], bool]) -> None:
        """Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._lost = lost
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind((address, 0))
        except OSError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._readable)

    def send(self, datagram: bytes, to: tuple[str, int]) -> None:
        """Send it, unless it is lost."""
        if not self._lost():
            with contextlib.suppress(OSError):
                self._socket.sendto(datagram, to)

    def close(self) -> None:
        """Close."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        for _ in range(_PER_TURN):
            try:
                datagram, sender = self._socket.recvfrom(_LARGEST)
            except (BlockingIOError, ValueError):
                return
            except OSError:
                continue
            if not self._lost():
                self._received(datagram, sender)
            if self._socket.fileno() < 0:
                return
