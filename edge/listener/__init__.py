"""The UDP sockets of the datagram servers: DHCP, DHCPv6, TFTP, syslog and the answers to router solicitations.

turns        a socket on the event loop that reads a limited number of datagrams a turn; the time budget of a
             turn, which all sockets share; opening a socket, and the error if that fails; dropped datagrams
moderation   gathers fast packets for a moment before they are read
recvmmsg     receives many datagrams with one system call
"""

from edge.listener.moderation import ModeratedListener
from edge.listener.recvmmsg import ReceiveBuffers
from edge.listener.turns import (
    IP_PKTINFO,
    MAX_PAYLOAD_BYTES,
    MAX_SEGMENTS,
    NO_SEGMENTS,
    DatagramListener,
    advice,
    enlarge_buffer,
    icmp6_socket,
    listener_metrics,
    packet_info,
    receive_icmp6,
    segments_of,
    turn_budget,
    udp_socket,
)

__all__ = [
    "IP_PKTINFO", "MAX_PAYLOAD_BYTES", "MAX_SEGMENTS", "NO_SEGMENTS", "DatagramListener", "ModeratedListener",
    "ReceiveBuffers", "advice", "enlarge_buffer", "icmp6_socket", "listener_metrics", "packet_info", "receive_icmp6",
    "segments_of", "turn_budget", "udp_socket",
]  # fmt: skip
