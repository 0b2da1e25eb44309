"""What `tinkedge doctor` looks at, a module for each thing; `edge.doctor.doctor` puts them together."""

from edge.doctor.checks.backups import check_backups
from edge.doctor.checks.certificates import agents_certificates
from edge.doctor.checks.clock import check_clock, kernel_unsynchronised
from edge.doctor.checks.colleagues import api_addresses, api_users
from edge.doctor.checks.ethernets import check_ethernets
from edge.doctor.checks.findings import Finding, Severity, note, warning
from edge.doctor.checks.firewall import Packet, check_firewall
from edge.doctor.checks.ipv6 import check_ipv6
from edge.doctor.checks.link_metadata import check_link_metadata, probe_link_metadata
from edge.doctor.checks.links import check_links
from edge.doctor.checks.names import osie_names
from edge.doctor.checks.running import running_edge
from edge.doctor.checks.space import check_space
from edge.doctor.checks.upstream import upstream_edge

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
