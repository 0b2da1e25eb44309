"""Looks by ARP who has an address on the link of one interface: the shell of `edge.dhcp.conflict.declined`.

A packet socket is open while there is something to look at and no longer, so that a busy network's ARP costs nothing
otherwise. Without the privilege for it, or where the interface is no Ethernet, nobody can look, and `declined` is told.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from ipaddress import IPv4Address
from typing import Final

from edge.dhcp.conflict import Declined
from edge.dhcp.sockets.link import packet_socket
from edge.dhcp.wire import arp, options
from edge.listener import Listener
from edge.neighbour.route import RouteKind, route_to

log = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 256 * 1024


class Prober:
    """Belongs to the event loop that it is made in."""

    def __init__(self, interface: str, declined: Declined) -> None:
        self._interface = interface
        self._declined = declined
        self._loop = asyncio.get_running_loop()
        self._listener: Listener[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on, where that is possible at all."""
        try:
            self._open().close()
        except OSError as error:
            log.warning(
                "DHCP on %s: nobody can look by ARP who has a declined address: %s", self._interface, error.strerror
            )
            return
        self._declined.is_on_link = _is_on_link
        self._declined.wake = self._soon

    def stop(self) -> None:
        """Look no more."""
        self._declined.wake = None
        self._rest()

    def _soon(self) -> None:
        self._at(self._loop.time())

    def _at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._step)

    def _step(self) -> None:
        self._timer = None
        for address in self._declined.step():
            self._probe(address)
        wait = self._declined.wait
        if wait is not None:
            self._at(self._loop.time() + wait)
        else:
            self._rest()

    def _probe(self, address: bytes) -> None:
        try:
            if route_to(IPv4Address(address)).kind is RouteKind.OWN:
                self._declined.is_ours(address)
                return
            if self._listener is None:
                what = f"ARP on {self._interface}"
                self._listener = Listener(self._open(), what, _receive, self._heard)
                self._listener.start()
            sock = self._listener.socket
            sock.send(arp.probe(sock.getsockname()[4], address))
        except OSError as error:
            # The interface is down or gone: without it, the machine's word is all there is.
            log.info("ARP probe for %s on %s: %s", options.dotted(address), self._interface, error.strerror)
            self._declined.probe_failed(address)

    def _heard(self, _sock: socket.socket, frame: bytes) -> None:
        claim = arp.claim(frame)
        if claim is not None:
            self._declined.claimed(claim)

    def _open(self) -> socket.socket:
        return packet_socket(self._interface, arp.ETHERTYPE, _BACKLOG_BYTES)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listener is not None:
            self._listener.stop()
            self._listener = None


def _receive(sock: socket.socket) -> bytes:
    return sock.recv(arp.LARGEST_BYTES)


def _is_on_link(address: bytes) -> bool:
    try:
        return route_to(IPv4Address(address)).kind is RouteKind.LINK
    except OSError:
        return False
