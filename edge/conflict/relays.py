"""DHCP relays that are believed, where only the relay says that a message is a machine's own. Pure.

A host anywhere can send a message with the address of a relay in it (giaddr; link-address of DHCPv6), and a whole
exchange proves nothing: no answer of this server holds anything that a client has to send back. So what a relay passes
on counts in one of two ways:

- the packet comes from an address of `--relays`;
- without `--relays`, the packet comes from the very address that the relay names as its own, that address is of the
  machine's network and no Hardware reserves it, and it is the gateway of the machine's Hardware or has brought leases
  to several registered machines. A host elsewhere can't send from such an address unless routers let it forge one.

Relays that send from another address than they name (RFC 3527, and relays that use the address towards this server)
are to be named in `--relays`. Leases are given through any relay: this is about messages that take something from a
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from tink.limits.newest import Newest

SEVERAL: Final = 3
"""Registered machines that a relay has brought leases to before its word counts."""
MAX_RELAYS: Final = 1024


class Relays:
    """Judges relays of both families. The responders of several networks may share it."""

    def __init__(
        self,
        configured: tuple[IPv4Network | IPv6Network, ...] = (),
        is_reserved: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        """`configured` are those of `--relays`; `is_reserved(address)` says whether a Hardware has an address."""
        self.configured = configured
        self._is_reserved = is_reserved
        self._machines: Newest[bytes, set[bytes]] = Newest(MAX_RELAYS)
        """MACs of machines that got a lease through a relay, at most `SEVERAL`, by the relay's packed address."""

    def carried(self, relay: bytes, mac: bytes) -> None:
        """Take note that a registered machine was acknowledged a lease through a relay of its own network."""
        machines = self._machines.get(relay)
        if machines is None:
            machines = self._machines[relay] = set()
        if len(machines) < SEVERAL:
            machines.add(mac)

    def names(self, source: str) -> bool:
        """Return whether `--relays` names the address."""
        address = ip_address(source)
        return any(address in network for network in self.configured)

    def doubt(self, source: str, relay: bytes, *, is_of_network: bool, gateway: str | None = None) -> str:
        """Return why a message from `source` does not count as passed on by the relay, or "" if it does.

        `relay` is the packed address that the relay names; `is_of_network` says whether that is of the machine's
        network, whose router is `gateway`.
        """
        if self.names(source):
            return ""
        if self.configured:
            return f"it comes from {source}, which --relays does not name"
        name = str(ip_address(relay))
        if name != source:
            return (
                f"it comes from {source} and not from its relay {name}; name {source} in --relays if it is the relay's"
            )
        if not is_of_network:
            return f"its relay {name} is not of this machine's network; name it in --relays if it is a relay"
        if self._is_reserved(name):
            return f"its relay {name} has an address that a Hardware reserves"
        if name == gateway or len(self._machines.get(relay, ())) >= SEVERAL:
            return ""
        return f"its relay {name} is not known yet to serve {SEVERAL} machines; name it in --relays if it is a relay"
