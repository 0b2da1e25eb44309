"""What goes between the sockets and the decisions: a datagram that came, a datagram to send. Pure.

`edge.dhcp.sockets.port` makes `Received` and sends `Reply`; `edge.dhcp.responder` makes one of the other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SERVER_PORT: Final = 67
CLIENT_PORT: Final = 68
PXE_PORT: Final = 4011
"""PXE boot servers (PXE 2.1 section 2.2.1, "Boot Server discovery")."""

BROADCAST: Final = "255.255.255.255"

NO_SOURCE: Final = "0.0.0.0"  # noqa: S104 - nothing is bound to it
"""The source of a client without an address (RFC 2131 section 4.1). Linux takes a packet from it only if it was sent to
BROADCAST (ip_route_input_slow), and no router forwards it (RFC 1812 section 5.3.7): it is from our own link."""


class Received(NamedTuple):
    """Where a packet came from, and on which of our ports (67 or 4011) it arrived."""

    source: str
    source_port: int
    port: int = SERVER_PORT


class Reply(NamedTuple):
    """A packet to send from the port that the question arrived on; `address` may be BROADCAST.

    `ethernet` is set where the client does not answer ARP yet: the packet goes as a frame made by hand to this
    hardware address, or, where that is not possible, to everybody.
    """

    payload: bytes
    address: str
    port: int
    ethernet: bytes = b""
