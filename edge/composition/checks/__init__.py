"""What `tinkedge doctor` looks at, a module for each thing; `edge.composition.doctor` puts them together."""

from edge.composition.checks.backups import check_backups
from edge.composition.checks.certificates import agents_certificates
from edge.composition.checks.clock import check_clock, kernel_unsynchronised
from edge.composition.checks.colleagues import api_addresses, api_users
from edge.composition.checks.ethernets import check_ethernets
from edge.composition.checks.findings import Finding, Severity, note, warning
from edge.composition.checks.firewall import Packet, check_firewall
from edge.composition.checks.ipv6 import check_ipv6
from edge.composition.checks.link_metadata import check_link_metadata, probe_link_metadata
from edge.composition.checks.links import check_links
from edge.composition.checks.names import osie_names
from edge.composition.checks.running import running_edge
from edge.composition.checks.space import check_space
from edge.composition.checks.upstream import upstream_edge

__all__ = [
    "Finding",
    "Packet",
    "Severity",
    "agents_certificates",
    "api_addresses",
    "api_users",
    "check_backups",
    "check_clock",
    "check_ethernets",
    "check_firewall",
    "check_ipv6",
    "check_link_metadata",
    "check_links",
    "check_space",
    "kernel_unsynchronised",
    "note",
    "osie_names",
    "probe_link_metadata",
    "running_edge",
    "upstream_edge",
    "warning",
]
