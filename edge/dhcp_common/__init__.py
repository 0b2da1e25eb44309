"""The parts that the DHCP and DHCPv6 servers (`edge.dhcp`, `edge.dhcp6`) share; a `Family` has the differences.

server      the sockets of one interface
prober      finds the host that uses a declined address
declines    judges the messages by which machines decline an address
relays      which relays are trusted
reports     the journey and the log
quarantine  addresses that are not offered because another host uses them
layouts     packets of one layout, for the fast paths
"""

from edge.dhcp_common.declines import Claim, Declines, RecentLeases
from edge.dhcp_common.layouts import MAX_LAYOUTS, NOWHERE, KnownLayout, KnownLayouts, Mask, NoLayoutError
from edge.dhcp_common.prober import Prober
from edge.dhcp_common.quarantine import IPV4, IPV6, Changed, Family, Quarantine
from edge.dhcp_common.relays import Relays
from edge.dhcp_common.reports import (
    FREE_ADDRESS,
    INTERVAL_SECONDS,
    MAX_PACKET_LINES,
    DhcpReports,
    boot_facts,
    boot_words,
)
from edge.dhcp_common.server import DhcpServerError, Port, Server

__all__ = [
    "FREE_ADDRESS", "INTERVAL_SECONDS", "IPV4", "IPV6", "MAX_LAYOUTS", "MAX_PACKET_LINES", "NOWHERE", "Changed",
    "Claim", "Declines", "DhcpReports", "DhcpServerError", "Family", "KnownLayout", "KnownLayouts", "Mask",
    "NoLayoutError", "Port", "Prober", "Quarantine", "RecentLeases", "Relays", "Server", "boot_facts", "boot_words",
]  # fmt: skip
