"""The DHCP server: what its door lets out. The way of a packet is told in `edge.dhcp.responder`.

    sockets/     port 67 and port 4011 on one interface: the only part that does I/O
    responder    a packet in, a reply or silence out
    fast_path/   packets of a known layout, answered by a look-up
    replies/     everything else, in full: leases, ProxyDHCP offers, PXE boot server replies
    boot/        which client asks, and what it boots
    wire/        DHCP messages and options, ARP, frames

Each uses those below it only; `edge.dhcp.wire` is a door of its own, for those who read packets.
"""

from edge.dhcp.datagram import Received, Reply
from edge.dhcp.responder import Responder
from edge.dhcp.settings import DhcpSettings, SettingsError
from edge.dhcp.sockets import DhcpServer, DhcpServerError

__all__ = [
    "DhcpServer", "DhcpServerError", "DhcpSettings", "Received", "Reply", "Responder", "SettingsError",
]  # fmt: skip
