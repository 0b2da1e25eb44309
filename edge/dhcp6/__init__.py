"""The DHCPv6 server. `edge.dhcp6.responder` shows the way of a message from top to bottom.

    server       port 547 on one interface, and probes for declined addresses: the only part that does I/O
    responder    a message in, a reply or silence out
    fast_path    replies to messages of a known layout, by a look-up
    context      settings and objects that both paths share
    boot         which client asks, and what it boots
    reservation  the parts of a machine's replies that do not depend on the message
    wire         messages, options, relays, and whose message it is

Each part uses only those below it. `edge.dhcp_common` has what DHCPv4 shares.
"""

from edge.dhcp6.context import Settings6, server_duid
from edge.dhcp6.responder import Responder6
from edge.dhcp6.server import Dhcp6Server
from edge.dhcp6.wire import Received6

__all__ = ["Dhcp6Server", "Received6", "Responder6", "Settings6", "server_duid"]
