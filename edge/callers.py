"""Who is calling: from the address of a packet or connection to the machine.

Where this edge gives out the addresses, a machine is at the address that its Hardware reserves, and nowhere else. Where
another DHCP server does (`DhcpMode.PROXY` and the like), the address is what was learnt from the machine's own DHCP
conversation, or what the kernel's neighbour table says about it. TFTP, HTTP and the metadata service all ask here.
"""

from __future__ import annotations

from edge.inventory import Inventory, Machine
from edge.policy import DhcpMode


class Callers:
    """Knows machines by where they call from."""

    def __init__(self, inventory: Inventory, mode: DhcpMode = DhcpMode.RESERVATION) -> None:
        self._inventory = inventory
        self._mode = mode

    def machine(self, ip: str) -> Machine | None:
        """The machine that calls from this IPv4 address; None if no Hardware is known to be there."""
        return self._inventory.by_ip(ip)

    def mac(self, ip: str) -> str | None:
        """The MAC of whoever calls from this address, registered or not; None if it is not known."""
        machine = self.machine(ip)
        return machine.mac if machine is not None else None

    def is_at(self, machine: Machine, ip: str) -> bool:
        """Whether `machine` calls from this address."""
        return machine.ip == ip

    def learn(self, mac: str, ip: str) -> None:
        """Take note that the machine with this MAC has this address, as its DHCP conversation says."""
