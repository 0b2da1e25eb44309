"""The syslog server: UDP port 514 on one network (RFC 5426). It receives and never sends."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from edge.callers import other_end
from edge.listener import DatagramListener, advice, udp_socket
from edge.syslog.message import MAX_BYTES
from tink.errors import TinkedgeError

log = logging.getLogger(__name__)

SYSLOG_PORT = 514
_BUFFER_BYTES = 1 << 20

_Arrived = tuple[bytes, tuple[str, int]]


class SyslogServerError(TinkedgeError):
    """The server can't start; the text names the port and what to do."""


class SyslogServer:
    """Passes each datagram and its source address to `take`."""

    def __init__(
        self, take: Callable[[bytes, str], None], *, host: str, interface: str | None = None, port: int = SYSLOG_PORT
    ) -> None:
        """`port` 0 chooses a free port (`port` after `start`). `interface` None receives on all interfaces."""
        self.port = port
        self._take = take
        self._host = host
        self._interface = interface
        self._listener: DatagramListener[_Arrived] | None = None

    async def start(self) -> None:
        """Open the socket and receive. Raises SyslogServerError."""
        try:
            sock = udp_socket(
                self._host,
                self.port,
                self._interface,
                lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES),
            )
        except OSError as error:
            where = f"syslog can't open UDP port {self.port} on {self._interface or self._host}"
            raise SyslogServerError(advice(where, error, port=self.port, without="--syslog off")) from error
        self.port = sock.getsockname()[1]
        self._listener = DatagramListener(sock, f"syslog on port {self.port}", _receive, self._arrived)
        self._listener.start()
        log.info("syslog on %s port %d", self._interface or self._host, self.port)

    async def stop(self) -> None:
        """Close the socket."""
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _arrived(self, _sock: socket.socket, arrived: _Arrived) -> None:
        datagram, where = arrived
        self._take(datagram, where[0])


def _receive(sock: socket.socket) -> _Arrived:
    datagram, name = sock.recvfrom(MAX_BYTES)
    return datagram, (other_end(name), int(name[1]))
