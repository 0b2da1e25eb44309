"""The networks that face machines, followed while this host's interfaces change (`follow`), and what each is served:
DHCP, TFTP, syslog, router advertisements and HTTP (`services`), metadata at the link-local address that machines know
(`link_metadata`), and the gRPC server's addresses (`agents`).
"""

from edge.run.networks.agents import AgentsAddresses, at_networks
from edge.run.networks.arriving import Arriving
from edge.run.networks.follow import HostNetworks
from edge.run.networks.link_metadata import LinkMetadata
from edge.run.networks.services import (
    MakeSite,
    NetworkServices,
    ServingError,
    Sites,
    sites_of,
    tcp_advice,
)

__all__ = [
    "AgentsAddresses",
    "Arriving",
    "HostNetworks",
    "LinkMetadata",
    "MakeSite",
    "NetworkServices",
    "ServingError",
    "Sites",
    "at_networks",
    "sites_of",
    "tcp_advice",
]
