"""What arrives on a link of ours for our ports, whatever this host's firewall makes of it.

A packet socket sees packets before netfilter does (packet(7)), so "arrived, and never reached us" can be told from
"never arrived". It is open while somebody asks and no longer: each packet of the interface costs a look by the filter.
Of TCP only what opens a connection is counted, and of our answers to it that there was one.
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
from tink.limits.newest import Newest

log = logging.getLogger(__name__)

MACHINES: Final = 1024
"""Addresses of which is counted."""
_PER_TURN: Final = 64
_KEPT: Final = 16  # of the packets of one machine to one port
_BACKLOG_BYTES: Final = 128 * 1024

# linux/if_ether.h
_ETH_P_ALL: Final = 0x0003
_IPV6: Final = b"\x86\xdd"
_IN_IPV6: Final = 14 + 40
_PACKET_OUTGOING: Final = 4  # linux/if_packet.h
_SYN: Final = 0x02
_TFTP: Final = 69


def _times() -> deque[float]:
    return deque(maxlen=_KEPT)


def count(times: deque[float], since: float) -> int:
    """How many are later."""
    return sum(1 for at in times if at > since)


@dataclass(slots=True)
class _Knocks:
    """Of one machine at one port of ours: when. `source` is the port that its last connection comes from."""

    asked: deque[float] = field(default_factory=_times)
    answered: deque[float] = field(default_factory=_times)
    source: int = 0

    def opened(self, source: int, now: float) -> None:
        """It asks for a connection, once more or for another one."""
        if self.source != source:
            self.source = source
            self.asked.clear()
            self.answered.clear()
        self.asked.append(now)


class Arrivals:
    """Counts for one interface. Belongs to the event loop that it is made in."""

    def __init__(self, interface: str, *tcp_ports: int, clock: Callable[[], float] = time.time) -> None:
        """`tcp_ports`: those of ours that are looked at, beside udp/69. Raises OSError: no privilege, no interface."""
        self._tcp_ports = frozenset(tcp_ports)
        self._clock = clock
        self._knocks: Newest[str, dict[str, _Knocks]] = Newest(MACHINES)
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
        """Count no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def asked(self, ip: str, since: float) -> dict[str, int]:
        """How often an address knocked at which port of ours (`udp/69`, `tcp/7080`) after that time.

        Of TCP, how often it asked for the connection that it wanted last: only one that was not heard asks again.
        """
        return {port: count(knocks.asked, since) for port, knocks in self._knocks.get(ip, {}).items()}

    def repeated(self) -> list[str]:
        """The addresses that knocked at one port more than once."""
        return [ip for ip, ports in self._knocks.items() if any(len(knocks.asked) > 1 for knocks in ports.values())]

    def answered(self, ip: str, since: float) -> dict[str, int]:
        """How often this host answered that, as far as it is TCP's."""
        return {port: count(knocks.answered, since) for port, knocks in self._knocks.get(ip, {}).items()}

    def _readable(self) -> None:
        for _ in range(_PER_TURN):
            try:
                frame, where = self._socket.recvfrom(128)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.debug("packets can't be looked at: %s", error.strerror)
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

    def _at(self, address: bytes, port: str) -> _Knocks:
        ip = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
        ports = self._knocks[ip] = self._knocks.get(ip, {})
        return ports.setdefault(port, _Knocks())


def program(*tcp_ports: int) -> bytes:
    """The filter: UDP to port 69, and TCP with SYN to or from these ports; no later fragments, no IPv6 extensions."""
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
