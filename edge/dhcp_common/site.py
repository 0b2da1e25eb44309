"""The objects that the DHCP servers of all networks and of both address families share; the two families. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from edge.dhcp_common.relays import Relays
from edge.journey.events import NoteTaker, Recorder
from edge.machines import Inventory, Machine, NetbootPolicy
from ipxe.binaries import BootBinaries, BootPath


@dataclass(frozen=True, slots=True)
class DhcpSite:
    """The machines of an edge, what they may boot, and the receiver of reports.

    clock: returns seconds of any epoch; it spaces repeated events and log lines.
    take: records a prepared step cheaply (None: `record` does).
    boot_path: returns the program by which a machine boots, or None for the usual one.
    fast_path: False answers every packet in full, which changes only the time.
    """

    inventory: Inventory
    policy: NetbootPolicy
    binaries: BootBinaries
    record: Recorder
    clock: Callable[[], float]
    take: NoteTaker | None = None
    relays: Relays = field(default_factory=Relays)
    boot_path: Callable[[Machine], BootPath | None] = lambda machine: machine.boot_path
    fast_path: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """An address family, in the words of reports.

    name: the protocol.
    decline: the message by which a client declines its address.
    probe: the protocol that finds the host of an address.
    field: the field of a Hardware with the machine's address.
    address: returns a machine's address, or None.
    """

    name: str
    decline: str
    probe: str
    field: str
    address: Callable[[Machine], str | None]


IPV4: Final = Family("DHCP", "DHCPDECLINE", "ARP", "dhcp.ip", lambda machine: machine.ip)
IPV6: Final = Family(
    "DHCPv6", "DHCPv6 DECLINE", "neighbour discovery", "dhcp.ipv6.address", lambda machine: machine.ipv6
)
