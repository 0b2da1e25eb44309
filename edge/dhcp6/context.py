"""The parts that the responder and the fast path share: settings, policy, limits. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from edge.dhcp6.boot import BootChoice6
from edge.dhcp6.reports import Reports6
from edge.dhcp_common import Quarantine, RecentLeases, Relays
from edge.machines import NetbootPolicy
from tink.limits.allowance import Allowance


@dataclass(frozen=True, slots=True)
class Settings6:
    """The addresses that the DHCPv6 server states in its replies.

    address: this edge's address on the machines' network.
    http_base_url: the edge's HTTP server, e.g. `http://[fd00::1]:7080`.
    duid: the server's own.
    networks: the networks of the interface; empty if they are not known.
    """

    address: IPv6Address
    http_base_url: str
    duid: bytes
    networks: tuple[IPv6Network, ...] = ()


def server_duid(mac: bytes) -> bytes:
    """Return the server's own DUID, which is made of its link-layer address (RFC 8415 section 11.4)."""
    # It stays the same without being stored.
    return b"\x00\x03\x00\x01" + (mac or bytes(6))


@dataclass(frozen=True, slots=True)
class Context6:
    """The objects that both paths use.

    server_id: our option 2, encoded.
    replies: limits the replies a second.
    """

    settings: Settings6
    policy: NetbootPolicy
    choice: BootChoice6
    reports: Reports6
    relays: Relays
    quarantine: Quarantine
    recent_leases: RecentLeases
    server_id: bytes
    replies: Allowance
    clock: Callable[[], float]

    def may_reach(self, address: bytes) -> bool:
        """Return True if a reply may go to this address (sixteen bytes) now."""
        return self.replies.take(address, self.clock())
