"""UDP as the datagram servers share it: DHCP, DHCPv6, TFTP, syslog, and what answers router solicitations.

turns        a socket on the event loop, a turn's worth at a time; opening one, and what to do where that fails
recvmmsg     many datagrams with one system call
segments     many replies with one system call
"""

from edge.listener.recvmmsg import ReceiveBuffers
from edge.listener.segments import Segments
from edge.listener.turns import Listener, advice, enlarge_buffer, udp_socket

__all__ = ["Listener", "ReceiveBuffers", "Segments", "advice", "enlarge_buffer", "udp_socket"]
