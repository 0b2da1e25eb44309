"""The sockets of the DHCP server: port 67, and 4011 for PXE clients that ask there for their boot file.

Each socket is bound to one interface, so that it hears the broadcasts of that network and no other, and so that several
networks can be served side by side, each by a server of its own. Packets go through `edge.dhcp.responder`; whatever
goes wrong with one of them, or with the network, is logged and the next one is served. An interface that is taken away
is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from edge.dhcp.datagram import PXE_PORT, SERVER_PORT
from edge.dhcp.responder import Responder
from edge.dhcp.sockets.port import DhcpServerError, Port
from edge.dhcp.sockets.prober import Prober
from tink.limits.once_per import OncePer

log = logging.getLogger(__name__)

_INTERFACE_CHECK_SECONDS = 1.0


class DhcpServer:
    """Serves DHCP on one interface."""

    def __init__(self, responder: Responder, interface: str) -> None:
        self._responder = responder
        self._interface = interface
        self._address = responder.settings.server_ip
        self._ports: list[Port] = []
        self._prober: Prober | None = None
        self._index = 0
        self._timer: asyncio.TimerHandle | None = None
        self._once = OncePer(60.0, 20)

    async def start(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        self._open()
        log.info("DHCP on %s as %s, ports %d and %d", self._interface, self._address, SERVER_PORT, PXE_PORT)
        self._timer = asyncio.get_running_loop().call_later(_INTERFACE_CHECK_SECONDS, self._check_interface)

    async def stop(self) -> None:
        """Close the sockets. Clients that wait for an answer ask again."""
        if self._timer is not None:
            self._timer.cancel()
        self._close()

    def _open(self) -> None:
        index = _index(self._interface)  # before the sockets are bound to it: if it is replaced meanwhile, that is seen
        try:
            for number in (SERVER_PORT, PXE_PORT):
                port = Port(self._interface, number, self._address, self._responder)
                self._ports.append(port)
                port.open()
        except DhcpServerError:
            self._close()
            raise
        self._index = index
        if self._responder.declined is not None:
            self._prober = Prober(self._interface, self._responder.declined)
            self._prober.start()

    def _close(self) -> None:
        if self._prober is not None:
            self._prober.stop()
            self._prober = None
        for port in self._ports:
            port.close()
        self._ports.clear()

    def _check_interface(self) -> None:
        """See whether the interface is still the one that the sockets are bound to.

        A socket stays bound to an interface that was removed, hears nothing more and is not told; another interface of
        the same name, of a driver that was loaded anew or a VLAN that was set up anew, needs other sockets.
        """
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_INTERFACE_CHECK_SECONDS, self._check_interface)
        if self._responder.declined is not None:
            self._responder.declined.pass_time()
        index = _index(self._interface)
        if index == self._index and self._ports:
            return
        if self._ports:
            log.warning("DHCP: the interface %s is gone; waiting until it is back", self._interface)
            self._close()
        if index:
            try:
                self._open()
            except DhcpServerError as error:
                if self._once.due(str(error), loop.time()):
                    log.error("%s; trying again", error)
            else:
                log.info("DHCP on %s again, as %s", self._interface, self._address)


def _index(interface: str) -> int:
    """The interface's number, 0 if there is none of this name."""
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0
