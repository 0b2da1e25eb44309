"""Finds the host that uses an address on the link of one interface, for both address families.

This is the shell of `edge.dhcp_common.declines`. No probe can be sent (`can_probe`) if the privilege is missing or the
interface is no Ethernet. `Declines` then believes a machine's message within its limits, and `/readyz` reports that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from ipaddress import ip_address

from edge.dhcp_common.declines import AddressClaim, Declines
from edge.listener import DatagramListener
from edge.neighbour.route import RouteKind, route_to

log = logging.getLogger(__name__)


class Prober(ABC):
    """Probes for declined addresses. It belongs to the event loop in which it was created."""

    def __init__(self, interface: str, declines: Declines) -> None:
        self._interface = interface
        self.declines = declines
        self._what = f"{declines.family.probe} on {interface}"
        self._loop = asyncio.get_running_loop()
        self._listener: DatagramListener[AddressClaim | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.can_probe = False
        """False if this process can't open the socket for probes."""

    @abstractmethod
    def _open(self) -> socket.socket:
        """Open the non-blocking socket for probes. Raises OSError."""

    @abstractmethod
    def _send(self, sock: socket.socket, address: bytes) -> None:
        """Send a probe for `address`. Raises OSError."""

    @abstractmethod
    def _receive(self, sock: socket.socket) -> AddressClaim | None:
        """Return the claim of the next packet, or None. Raises OSError; BlockingIOError if there is no packet."""

    def start(self) -> None:
        """Start to probe on request, if this process may open the socket."""
        try:
            self._open().close()
        except OSError as error:
            text = "%s: no probe can be sent for a declined address, so a decline is accepted for a minute: %s"
            log.warning(text, self._what, error.strerror)
            return
        self.can_probe = True
        self.declines.is_on_link = self._is_on_link
        self.declines.wake = self._soon

    def stop(self) -> None:
        """Stop probing."""
        self.can_probe = False
        self.declines.wake = None
        self._rest()

    def _is_on_link(self, address: bytes) -> bool:
        """Return True if the address is on the link of this interface."""
        # For any other address each host of this link could answer a probe.
        try:
            route = route_to(ip_address(address))
            return route.kind is RouteKind.LINK and route.interface == socket.if_nametoindex(self._interface)
        except OSError:
            return False

    def _soon(self) -> None:
        self._at(self._loop.time())

    def _at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._step)

    def _step(self) -> None:
        self._timer = None
        for address in self.declines.step():
            self._probe(address)
        wait = self.declines.wait
        if wait is not None:
            self._at(self._loop.time() + wait)
        else:
            self._rest()

    def _probe(self, address: bytes) -> None:
        try:
            # A host does not answer ARP to itself.
            if route_to(ip_address(address)).kind is RouteKind.OWN:
                self.declines.is_ours(address)
                return
            # The socket is open only during a probe, because each ARP packet of the link costs time.
            if self._listener is None:
                self._listener = DatagramListener(self._open(), self._what, self._receive, self._received)
                self._listener.start()
            self._send(self._listener.socket, address)
        except OSError as error:
            # The interface is down or gone, so the decline is judged without a probe.
            log.info("%s: no probe can be sent for %s: %s", self._what, ip_address(address), error.strerror)
            self.declines.probe_failed(address)

    def _received(self, _sock: socket.socket, claim: AddressClaim | None) -> None:
        if claim is not None:
            self.declines.claimed(claim)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
