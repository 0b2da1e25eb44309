"""Decides which DHCP relays are trusted to confirm that a message comes from a machine. Pure.

Any host can send a message with the address of a relay in it (giaddr; link-address of DHCPv6). A whole exchange proves
nothing, because a client does not have to send back a value of our answer. So a relayed message counts in two cases:

- The packet comes from an address of `--relays`.
- `--relays` is empty, the packet comes from the very address that the relay names as its own, that address is in the
  machine's network, and no Hardware reserves it. The address is also the gateway of the machine's Hardware, or several
  registered machines got leases through it.

Relays that send from another address than they name (RFC 3527, and relays that use the address towards this server)
have to be listed in `--relays`. Leases are assigned through any relay: this check is only for messages that take
something from a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from tink.limits import Newest

MIN_MACHINES: Final = 3
"""Minimum number of registered machines that got leases through a relay before the relay is trusted."""
MAX_RELAYS: Final = 1024


class Relays:
    """The trusted relays of both address families. The responders of several networks may share it."""

    def __init__(
        self,
        configured: tuple[IPv4Network | IPv6Network, ...] = (),
        is_reserved: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        """`configured` are those of `--relays`; `is_reserved(address)` returns True if a Hardware reserves it."""
        self.configured = configured
        self._is_reserved = is_reserved
        self._machines: Newest[bytes, set[bytes]] = Newest(MAX_RELAYS)
        """At most `MIN_MACHINES` MACs of machines that got a lease through a relay, by its packed address."""

    def carried(self, relay: bytes, mac: bytes) -> None:
        """Record that a registered machine got a lease through a relay of its own network."""
        machines = self._machines.get(relay)
        if machines is None:
            machines = self._machines[relay] = set()
        if len(machines) < MIN_MACHINES:
            machines.add(mac)

    def names(self, source: str) -> bool:
        """Return True if `--relays` contains the address."""
        address = ip_address(source)
        return any(address in network for network in self.configured)

    def doubt(self, source: str, relay: bytes, *, is_of_network: bool, gateway: str | None = None) -> str:
        """Return the reason why a relayed message from `source` is not trusted, or "" if it is.

        `relay` is the packed address that the relay names. `is_of_network` is True if that address is in the machine's
        network, whose router is `gateway`.
        """
        if self.names(source):
            return ""
        if self.configured:
            return f"it comes from {source}, which --relays does not name"
        name = str(ip_address(relay))
        # A host elsewhere can't send from the relay's own address unless routers let it forge one.
        if name != source:
            return (
                f"it comes from {source} and not from its relay {name}; name {source} in --relays if it is the relay's"
            )
        if not is_of_network:
            return f"its relay {name} is not of this machine's network; name it in --relays if it is a relay"
        if self._is_reserved(name):
            return f"its relay {name} has an address that a Hardware reserves"
        if name == gateway or len(self._machines.get(relay, ())) >= MIN_MACHINES:
            return ""
        return (
            f"its relay {name} is not known yet to serve {MIN_MACHINES} machines; name it in --relays if it is a relay"
        )
