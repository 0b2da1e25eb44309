"""What `tinkedge doctor` looks at, a module for each thing; `edge.composition.doctor` puts them together."""

from edge.composition.checks.backups import backups
from edge.composition.checks.certificates import agents_certificates
from edge.composition.checks.clock import clock
from edge.composition.checks.colleagues import api_addresses, api_users
from edge.composition.checks.findings import Finding, Severity
from edge.composition.checks.firewall import firewall
from edge.composition.checks.links import links
from edge.composition.checks.names import osie_names
from edge.composition.checks.running import running_edge
from edge.composition.checks.space import space

__all__ = [
    "Finding",
    "Severity",
    "agents_certificates",
    "api_addresses",
    "api_users",
    "backups",
    "clock",
    "firewall",
    "links",
    "osie_names",
    "running_edge",
    "space",
]
