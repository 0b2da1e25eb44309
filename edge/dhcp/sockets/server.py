"""The sockets of the DHCP server: port 67, and 4011 for PXE clients that ask there for their boot file.

Each socket is bound to one interface, so that it hears the broadcasts of that network and no other, and so that several
networks can be served side by side, each by a server of its own. Packets go through `edge.dhcp.responder`; whatever
goes wrong with one of them, or with the network, is logged and the next one is served. A socket stays bound to an
interface that was removed, and hears nothing more: who runs this follows the interface and its address, and has another
server in its place when one of them is another one (`edge.run.networks`).
"""

from __future__ import annotations

import asyncio
import logging

from edge.dhcp.datagram import PXE_PORT, SERVER_PORT
from edge.dhcp.responder import Responder
from edge.dhcp.sockets.port import DhcpServerError, Port
from edge.dhcp.sockets.prober import ArpProber

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0


class DhcpServer:
    """Serves DHCP on one interface."""

    def __init__(self, responder: Responder, interface: str) -> None:
        self._responder = responder
        self._interface = interface
        self._address = responder.settings.server_ip
        self._ports: list[Port] = []
        self._prober: ArpProber | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        self._open()
        log.info("DHCP on %s as %s, ports %d and %d", self._interface, self._address, SERVER_PORT, PXE_PORT)
        self._tick()

    @property
    def is_unprobed(self) -> bool:
        """Return True if no probe can be sent, so declines are judged without a search for the address."""
        return self._prober is not None and not self._prober.can_probe

    async def stop(self) -> None:
        """Close the sockets. Clients that wait for an answer ask again."""
        if self._timer is not None:
            self._timer.cancel()
        self._close()

    def _open(self) -> None:
        try:
            for number in (SERVER_PORT, PXE_PORT):
                port = Port(self._interface, number, self._address, self._responder)
                self._ports.append(port)
                port.open()
        except DhcpServerError:
            self._close()
            raise
        if self._responder.declined is not None:
            self._prober = ArpProber(self._interface, self._responder.declined)
            self._prober.start()

    def _close(self) -> None:
        if self._prober is not None:
            self._prober.stop()
            self._prober = None
        for port in self._ports:
            port.close()
        self._ports.clear()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        if self._responder.declined is not None:
            self._responder.declined.pass_time()
