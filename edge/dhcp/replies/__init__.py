"""Replies in full: what each kind of message gets, and what is said to the operator about it. Pure.

leases         with an address, for machines that reserve one (mode reservation)
proxy          beside another DHCP server (modes proxy and auto-proxy)
boot_server    on port 4011, for PXE clients that have an address
reservation    what one machine is served, compiled when its Hardware changes
assembly       a reply's bytes, within the size that the client takes
destinations   how many replies go where a packet says
unregistered   machines without a Hardware
"""

from edge.dhcp.replies.assembly import size_limit
from edge.dhcp.replies.destinations import Destinations
from edge.dhcp.replies.leases import Leases
from edge.dhcp.replies.proxy import Learn, Proxy
from edge.dhcp.replies.reservation import Network, Reservation
from edge.dhcp.replies.unregistered import Unregistered

__all__ = [
    "Destinations", "Learn", "Leases", "Network", "Proxy", "Reservation", "Unregistered", "size_limit",
]  # fmt: skip
