"""The parts that the responder and the fast path share: settings, policy, limits. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from edge.dhcp6.boot import BootChoice6
from edge.dhcp6.wire import MessageType6, Option, option
from edge.dhcp_common import FREE_ADDRESS, IPV6, BootAnswer, Client, Declines, DhcpReports, DhcpSite, Quarantine
from tink.limits import Allowance

MAX_REPLIES_TO_ONE, MAX_REPLIES = 1000, 20000
"""Replies a second to one address and to all, except to relays of their machines' own network.

A client sends at most one request a second.
"""


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


def report_of(kind: MessageType6, *, renews: bool) -> str:
    """Return the name of a DHCPv6 message in reports. A renewal has a name of its own: it is no step of a boot."""
    return f"DHCPv6 {kind.name}" + (" (renewal)" if renews else "")


class Context6:
    """The objects that both paths use."""

    def __init__(self, site: DhcpSite, settings: Settings6, quarantine: Quarantine | None) -> None:
        """`quarantine` None: its own."""
        self.inventory = site.inventory
        self.settings = settings
        self.policy = site.policy
        self.choice = BootChoice6(site, str(settings.address), settings.http_base_url)
        prefix = next((str(each.network_address) for each in settings.networks), "2001:db8::")
        self.reports = DhcpReports(IPV6, site, "ipv6:", f"  address: {prefix}50  # {FREE_ADDRESS}")
        self.relays = site.relays
        self.quarantine = quarantine if quarantine is not None else Quarantine(site.clock, family=IPV6)
        self.declines: Final = Declines(site, self.quarantine, self.reports)
        self.server_id = option(Option.SERVERID, settings.duid)
        """Our option 2, encoded."""
        self.replies = Allowance(MAX_REPLIES_TO_ONE, MAX_REPLIES)
        self.clock = site.clock

    def report_sent(
        self, mac: str, kind: MessageType6, client: Client, boot: BootAnswer, *, lease: bool, renews: bool = False
    ) -> None:
        """Report that a message was sent to `client`; `lease`: with an address that the client did not have before."""
        self.reports.sent(mac, report_of(kind, renews=renews), client, boot, lease=kind.name.lower() if lease else "")
