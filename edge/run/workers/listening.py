"""What stands where an HTTP site or a TFTP server does, and has all workers serve there."""

from __future__ import annotations

import logging
import socket
from typing import Final

from edge.run.workers.pool import Place, Pool, tcp_sockets
from edge.tftp import TFTP_PORT, server_sockets

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024


class WorkerSite:
    """HTTP at one address; begun and ended like a `web.TCPSite`."""

    def __init__(self, pool: Pool, address: str, port: int) -> None:
        self._pool = pool
        self._address = address
        self._port = port
        self._place: Place | None = None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        sockets = tcp_sockets(self._address, self._port, self._pool.count, _BACKLOG)
        self._place = self._pool.listen("http", "", self._address, self._port, [*sockets])

    async def stop(self) -> None:
        """Listen no more; connections go on."""
        if self._place is not None:
            self._pool.close(self._place)


class WorkerTftp:
    """TFTP at one address of an interface; begun, moved and ended like a `TftpServer`."""

    def __init__(self, pool: Pool, interface: str, address: str) -> None:
        self._pool = pool
        self._interface = interface
        self._address = address
        self._place: Place | None = None

    async def start(self) -> None:
        """Serve. Raises TftpServerError."""
        sockets = server_sockets(self._address, TFTP_PORT, self._interface, self._pool.count)
        self._place = self._pool.listen("tftp", self._interface, self._address, TFTP_PORT, sockets)
        log.info("TFTP on %s port %d", self._interface, TFTP_PORT)

    def move_to_interface(self) -> bool:
        """The interface was removed and made anew: go on there; False where that needs new sockets."""
        if self._place is None:
            return False
        device = self._interface.encode() + b"\0"
        try:
            for sock in self._place.sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        except OSError as error:
            log.debug("TFTP on %s: sockets can't be moved to it: %s", self._interface, error.strerror)
            return False
        self._pool.move(self._place)
        return True

    async def stop(self) -> None:
        """Serve no more."""
        if self._place is not None:
            self._pool.close(self._place)
            self._place = None
