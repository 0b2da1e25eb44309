"""UDP as the datagram servers share it: DHCP, DHCPv6, TFTP, syslog, and what answers router solicitations.

turns        a socket on the event loop, a turn's worth at a time; the budget of a turn, which all of them
             share; opening a socket, and what to do where that fails
moderation   packets that come fast gather for a moment before they are read (interval_timer: the kernel's)
recvmmsg     many datagrams with one system call
segments     many replies with one system call
metrics      how many datagrams found no room
"""

from edge.listener.metrics import listener_metrics
from edge.listener.moderation import ModeratedListener
from edge.listener.recvmmsg import ReceiveBuffers
from edge.listener.segments import Segments
from edge.listener.turns import Listener, advice, enlarge_buffer, turn_budget, udp_socket

__all__ = [
    "Listener",
    "ModeratedListener",
    "ReceiveBuffers",
    "Segments",
    "advice",
    "enlarge_buffer",
    "listener_metrics",
    "turn_budget",
    "udp_socket",
]
