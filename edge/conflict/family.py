"""What is different between IPv4 and IPv6 in an address conflict: which address of a machine, and the words. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from edge.machines import Machine


@dataclass(frozen=True, slots=True)
class Family:
    """`message` is what clients decline with, `protocol` that by which the link tells who has an address, `field` where
    a Hardware says a machine's; `address(machine)` is that, None without.
    """

    message: str
    protocol: str
    field: str
    address: Callable[[Machine], str | None]


IPV4: Final = Family("DHCPDECLINE", "ARP", "dhcp.ip", lambda machine: machine.ip)
IPV6: Final = Family("DHCPv6 DECLINE", "neighbour discovery", "dhcp.ipv6.address", lambda machine: machine.ipv6)


def text(address: bytes) -> str:
    """An address of four or sixteen bytes, as people write it."""
    return str(ip_address(address))
