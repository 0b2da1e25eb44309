"""Handlers of the messages that are rare, or that only the proxy modes handle. Pure.

rare     DHCPINFORM, DHCPRELEASE, DHCPDECLINE and requests on port 4011, in mode reservation
proxy    everything in the modes proxy and auto-proxy: ProxyDHCP offers and PXE boot server replies

`edge.dhcp.responder` handles DHCPDISCOVER and DHCPREQUEST itself.
"""

from edge.dhcp.replies.proxy import Learn, Proxy
from edge.dhcp.replies.rare import RareMessages

__all__ = ["Learn", "Proxy", "RareMessages"]
