"""The network interfaces of a Hardware, as far as its metadata speaks of them."""

from __future__ import annotations

from dataclasses import dataclass

from tink.api.v1alpha2 import DHCP, Hardware
from tink.mac import is_mac

_NO_RESERVATION = DHCP()


@dataclass(frozen=True, slots=True)
class Link:
    """One interface. `number` counts from 0, in the Hardware's order; `by_dhcp` is whether DHCP would be answered.

    `dhcp` is its reservation, an empty one where the Hardware has none.
    """

    number: int
    mac: str
    dhcp: DHCP
    by_dhcp: bool

    @property
    def is_addressed(self) -> bool:
        """Whether it has an address."""
        return self.dhcp.ip is not None or self.dhcp.ipv6 is not None


def links(hardware: Hardware) -> list[Link]:
    """All interfaces. One whose MAC is none, as older schemas let in, is none here: the inventory has logged it."""
    return [
        Link(number, mac, one.dhcp or _NO_RESERVATION, not one.disable_dhcp)
        for number, (mac, one) in enumerate(hardware.spec.network_interfaces.items())
        if is_mac(mac)
    ]


def primary(all_links: list[Link]) -> Link | None:
    """The interface whose name and address are the machine's: the first that has an address, else the first."""
    return next((link for link in all_links if link.is_addressed), all_links[0] if all_links else None)
