"""What goes between the socket and the decisions: a datagram that came, a datagram to send. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final, NamedTuple

SERVER_PORT: Final = 547
CLIENT_PORT: Final = 546
ALL_RELAYS_AND_SERVERS: Final = IPv6Address("ff02::1:2")
"""All_DHCP_Relay_Agents_and_Servers: RFC 8415 section 7.1."""
ALL_SERVERS: Final = IPv6Address("ff05::1:3")
"""All_DHCP_Servers, to which relays may send."""


class Received6(NamedTuple):
    """Where a message came from, and whether it was sent to an address of ours alone, or to a group."""

    source: IPv6Address
    source_port: int
    to_us_alone: bool = False


class Reply6(NamedTuple):
    """A message to send from port 547; `address`, as text, may be link-local, of the interface that was asked by."""

    payload: bytes
    address: str
    port: int


@lru_cache(maxsize=1024)
def text_of(address: bytes) -> str:
    """An address of sixteen bytes as text (RFC 5952), made once for each."""
    return str(IPv6Address(address))
