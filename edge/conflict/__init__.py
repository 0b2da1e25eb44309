"""Address conflicts: what a machine declines (RFC 2131 section 4.3.3, RFC 8415 section 18.3.8), whether it is so, and
for how long it counts. For `edge.dhcp` and `edge.dhcp6`, each of which looks in its own way.
"""

from edge.conflict.declined import Acknowledged, Claim, Declined
from edge.conflict.family import IPV4, IPV6, Family
from edge.conflict.prober import Prober
from edge.conflict.quarantine import Changed, Quarantine
from edge.conflict.relays import Relays

__all__ = ["IPV4", "IPV6", "Acknowledged", "Changed", "Claim", "Declined", "Family", "Prober", "Quarantine", "Relays"]
