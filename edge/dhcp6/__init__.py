"""The DHCPv6 server: what its door lets out. The way of a message is told in `edge.dhcp6.responder`.

    sockets      port 547 on one interface
    prober       who has an address that a machine declined; these two do I/O, and nothing below them
    responder    a message in, a reply or silence out
    fast_path    answers messages of a known layout by a look-up
    boot         which client asks, and what it boots
    reservation  what a machine is told of its address and network
    identity     whose message it is: the MAC
    wire         messages, options, relays
    solicitation neighbour discovery
    reports      what operators hear

Each uses those below it only.
"""

from edge.dhcp6.datagram import Received6, Reply6
from edge.dhcp6.responder import Responder6, Settings6, server_duid
from edge.dhcp6.sockets import Dhcp6Server, Dhcp6ServerError

__all__ = ["Dhcp6Server", "Dhcp6ServerError", "Received6", "Reply6", "Responder6", "Settings6", "server_duid"]
