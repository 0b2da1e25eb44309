"""Looks by ARP who has an address on the link of one interface."""

from __future__ import annotations

import socket
from typing import Final

from edge.conflict import Claim, Prober
from edge.dhcp.sockets.link import packet_socket
from edge.dhcp.wire import arp

_BACKLOG_BYTES: Final = 256 * 1024


class ArpProber(Prober):
    """By a packet socket, which hears all ARP packets of the link."""

    def _open(self) -> socket.socket:
        return packet_socket(self._interface, arp.ETHERTYPE, _BACKLOG_BYTES)

    def _send(self, sock: socket.socket, address: bytes) -> None:
        sock.send(arp.probe(sock.getsockname()[4], address))

    def _receive(self, sock: socket.socket) -> Claim | None:
        return arp.claim(sock.recv(arp.LARGEST_BYTES))
