"""The parts that the DHCP and DHCPv6 servers (`edge.dhcp`, `edge.dhcp6`) share; a `Family` has the differences.

server      the sockets of one interface
prober      finds the host that uses a declined address
declines    judges the messages by which machines decline an address; which addresses are in quarantine
reports     the journey and the log
site        the objects that all servers share; the two address families
boot        netboot clients and what they boot
relays      which relays are trusted
layouts     packets of one layout, for the fast paths
"""

from edge.dhcp_common.boot import NOTHING, REFUSED_FILE, RPIBOOT, BootAnswer, Client, Reply, Stage, uki_path
from edge.dhcp_common.declines import AddressClaim, Changed, Declines, Quarantine, RecentLeases
from edge.dhcp_common.layouts import MAX_LAYOUTS, NOWHERE, KnownLayouts, NoLayoutError, vary
from edge.dhcp_common.prober import Prober
from edge.dhcp_common.relays import Relays
from edge.dhcp_common.reports import FREE_ADDRESS, DhcpReports, reply_note
from edge.dhcp_common.server import DhcpServerError, Port, Server
from edge.dhcp_common.site import IPV4, IPV6, DhcpSite

__all__ = [
    "FREE_ADDRESS", "IPV4", "IPV6", "MAX_LAYOUTS", "NOTHING", "NOWHERE", "REFUSED_FILE", "RPIBOOT", "AddressClaim",
    "BootAnswer", "Changed", "Client", "Declines", "DhcpReports", "DhcpServerError", "DhcpSite", "KnownLayouts",
    "NoLayoutError", "Port", "Prober", "Quarantine", "RecentLeases", "Relays", "Reply", "Server", "Stage",
    "reply_note", "uki_path", "vary",
]  # fmt: skip
