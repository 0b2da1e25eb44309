"""Address conflicts: what a machine declines (RFC 2131 section 4.3.3), whether it is so, and for how long it counts."""

from edge.dhcp.conflict.declined import Acknowledged, Declined
from edge.dhcp.conflict.quarantine import Changed, Quarantine

__all__ = ["Acknowledged", "Changed", "Declined", "Quarantine"]
