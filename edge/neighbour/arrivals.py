"""Counts the packets for our ports that arrive on a link, whether or not this host's firewall drops them.

A packet socket receives packets before netfilter does (packet(7)). So a packet that the firewall dropped can be
distinguished from one that never arrived. nft could count them, too, but needs CAP_NET_ADMIN, which an edge does not
have, and rules in the host's rule set. The socket is open only while a machine is overdue, because the filter runs for
each packet of the interface. Of TCP, the segments with SYN are counted, and the answers to them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from edge.neighbour import packet_filter as bpf
from tink.limits import Newest

log = logging.getLogger(__name__)

MAX_MACHINES: Final = 1024
_MAX_PACKETS_A_TURN: Final = 64
_MAX_TIMES: Final = 16
"""The most times that are remembered of the packets of one machine to one port."""
_BACKLOG_BYTES: Final = 128 * 1024

# linux/if_ether.h
_ETH_P_ALL: Final = 0x0003
_IPV6: Final = b"\x86\xdd"
_IN_IPV6: Final = 14 + 40
_PACKET_OUTGOING: Final = 4  # linux/if_packet.h
_SYN: Final = 0x02
_TFTP: Final = 69


@dataclass(slots=True)
class _Packets:
    """The times of packets between one machine and one port of ours. `source` is the port of its last connection."""

    asked: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_TIMES))
    answered: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_TIMES))
    source: int = 0

    def opened(self, source: int, now: float) -> None:
        """Record a segment with SYN, of the same connection or of a new one."""
        if self.source != source:
            self.source = source
            self.asked.clear()
            self.answered.clear()
        self.asked.append(now)


class Arrivals:
    """Counts the packets on one interface. Belongs to the event loop that it is made in."""

    def __init__(self, interface: str, *tcp_ports: int, clock: Callable[[], float] = time.time) -> None:
        """Count packets to udp/69 and to `tcp_ports`. Raises OSError without the privilege or the interface."""
        self._tcp_ports = frozenset(tcp_ports)
        self._clock = clock
        self._packets: Newest[str, dict[str, _Packets]] = Newest(MAX_MACHINES)
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BACKLOG_BYTES)
            bpf.attach(self._socket, program(*tcp_ports))
            self._socket.bind((interface, _ETH_P_ALL))
        except OSError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._readable)

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def asked(self, ip: str, since: float) -> dict[str, int]:
        """Return how many packets an address sent after that time, by our port (`udp/69`, `tcp/7080`)."""
        # Of TCP, these are the segments with SYN of its last connection: more than one means that SYNs were lost.
        return {port: sum(at > since for at in packets.asked) for port, packets in self._packets.get(ip, {}).items()}

    def repeated(self) -> list[str]:
        """Return the addresses that sent more than one packet to one port."""
        return [ip for ip, ports in self._packets.items() if any(len(packets.asked) > 1 for packets in ports.values())]

    def answered(self, ip: str, since: float) -> dict[str, int]:
        """Return how many segments with SYN this host sent back after that time, by our TCP port."""
        return {port: sum(at > since for at in packets.answered) for port, packets in self._packets.get(ip, {}).items()}

    def _readable(self) -> None:
        for _ in range(_MAX_PACKETS_A_TURN):
            try:
                frame, where = self._socket.recvfrom(128)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.debug("can't read packets that arrive: %s", error.strerror)
                return
            self._count(frame, outgoing=where[2] == _PACKET_OUTGOING)

    def _count(self, frame: bytes, *, outgoing: bool) -> None:
        if frame[12:14] == _IPV6:
            ports, protocol, sender, receiver = _IN_IPV6, frame[20], frame[22:38], frame[38:54]
        else:
            ports, protocol, sender, receiver = 14 + 4 * (frame[14] & 0x0F), frame[23], frame[26:30], frame[30:34]
        if len(frame) < ports + 4:
            return
        source, target = struct.unpack_from("!HH", frame, ports)
        if outgoing:
            if protocol == socket.IPPROTO_TCP and source in self._tcp_ports:
                self._at(receiver, f"tcp/{source}").answered.append(self._clock())
        elif protocol == socket.IPPROTO_UDP:
            self._at(sender, "udp/69").asked.append(self._clock())
        elif target in self._tcp_ports:
            self._at(sender, f"tcp/{target}").opened(source, self._clock())

    def _at(self, address: bytes, port: str) -> _Packets:
        ip = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
        ports = self._packets[ip] = self._packets.get(ip, {})
        return ports.setdefault(port, _Packets())


def program(*tcp_ports: int) -> bytes:
    """Return the BPF program that accepts UDP to port 69 and TCP with SYN to or from these ports."""
    # It accepts no fragments but the first, and no packets with IPv6 extension headers.
    return bpf.assemble(
        [
            (bpf.LOAD_HALF, 12),
            (bpf.EQUAL, 0x86DD, "ipv6", ""),
            (bpf.EQUAL, 0x0800, "", "drop"),
            (bpf.LOAD_HALF, 20),
            (bpf.BITS, 0x1FFF, "drop", ""),
            (bpf.X_IP_HEADER_BYTES, 14),
            (bpf.LOAD_BYTE, 23),
            (bpf.EQUAL, socket.IPPROTO_UDP, "udp", ""),
            (bpf.EQUAL, socket.IPPROTO_TCP, "", "drop"),
            (bpf.LOAD_BYTE_AT_X, 14 + 13),
            (bpf.BITS, _SYN, "", "drop"),
            (bpf.LOAD_HALF_AT_X, 16),
            *((bpf.EQUAL, port, "take", "") for port in tcp_ports),
            (bpf.LOAD_HALF_AT_X, 14),
            *((bpf.EQUAL, port, "take", "") for port in tcp_ports),
            (bpf.RETURN, 0),
            "udp",
            (bpf.LOAD_HALF_AT_X, 16),
            (bpf.EQUAL, _TFTP, "take", "drop"),
            "ipv6",
            (bpf.LOAD_BYTE, 20),
            (bpf.EQUAL, socket.IPPROTO_UDP, "udp6", ""),
            (bpf.EQUAL, socket.IPPROTO_TCP, "", "drop"),
            (bpf.LOAD_BYTE, _IN_IPV6 + 13),
            (bpf.BITS, _SYN, "", "drop"),
            (bpf.LOAD_HALF, _IN_IPV6 + 2),
            *((bpf.EQUAL, port, "take", "") for port in tcp_ports),
            (bpf.LOAD_HALF, _IN_IPV6),
            *((bpf.EQUAL, port, "take", "") for port in tcp_ports),
            (bpf.RETURN, 0),
            "udp6",
            (bpf.LOAD_HALF, _IN_IPV6 + 2),
            (bpf.EQUAL, _TFTP, "take", ""),
            "drop",
            (bpf.RETURN, 0),
            "take",
            (bpf.RETURN, 128),
        ]
    )
