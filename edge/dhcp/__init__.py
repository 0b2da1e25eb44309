"""The DHCP server. `edge.dhcp.responder` shows the way of a packet from top to bottom.

    server       the sockets of ports 67 and 4011 on one interface: the only part that does I/O
    responder    a packet in, a reply or silence out
    fast_path    replies to packets of a known layout, by a look-up
    proxy        the modes beside another DHCP server
    unknown      machines without a Hardware: offers, and their admission by a REQUEST
    context      settings, limits and objects that the handlers share
    reservation  the parts of a machine's replies that do not depend on the packet
    boot         which client asks, and what it boots
    wire/        DHCP messages, their options, frames; open to other packages that read packets

Each part uses only those below it. `edge.dhcp_common` has what DHCPv6 shares.
"""

from edge.dhcp.context import DhcpSettings, DhcpSettingsError, Received
from edge.dhcp.responder import Responder
from edge.dhcp.server import DhcpServer
from edge.dhcp_common import DhcpServerError, Reply

__all__ = [
    "DhcpServer", "DhcpServerError", "DhcpSettings", "DhcpSettingsError", "Received", "Reply", "Responder",
]  # fmt: skip
