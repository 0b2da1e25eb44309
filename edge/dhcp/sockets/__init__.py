"""The DHCP server's sockets: UDP ports, the frames that it sends by hand, and the ARP probes."""

from edge.dhcp.sockets.port import DhcpServerError
from edge.dhcp.sockets.server import DhcpServer

__all__ = ["DhcpServer", "DhcpServerError"]
