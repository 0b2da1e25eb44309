"""The networks that face machines.

follow          follows the addresses and links of this host's interfaces, and notifies the services
services        the services of one network: DHCP, TFTP, syslog, router advertisements; HTTP at its addresses
link_metadata   metadata at a link-local address that machines know without configuration
agents          the addresses of the gRPC server
"""

from edge.run.networks.agents import AgentsAddresses, at_networks
from edge.run.networks.follow import HostNetworks
from edge.run.networks.link_metadata import LinkMetadata
from edge.run.networks.services import MakeSite, NetworkServices, Sites, sites_of, tcp_advice

__all__ = [
    "AgentsAddresses",
    "HostNetworks",
    "LinkMetadata",
    "MakeSite",
    "NetworkServices",
    "Sites",
    "at_networks",
    "sites_of",
    "tcp_advice",
]
