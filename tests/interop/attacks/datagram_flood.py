"""Sends a flood of datagrams with invented source MACs and addresses from a machine's interface.

    python -m tests.interop.attacks.datagram_flood SERVICE RATE EDGE_MAC EDGE_ADDRESS REGISTERED_MAC [SENDERS]

SERVICE is a key of `POOLS`, RATE the maximum number of datagrams a second. Prints the number of sent datagrams about
every second. Ends by a signal, or after COUNT. Every other DISCOVER has the registered MAC, so DHCP answers it; all
other packets come from unregistered MACs.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address

from tests.interop.attacks.soak.boot import DISCOVER, packet

COUNT = 600_000
PAUSE_SECONDS = 0.02
SENDERS = 120
"""Invented addresses of a service, from .100 on.

All namespaces of this host share the neighbour table, which has room for 1,024 entries (gc_thresh3). No other test may
be disturbed.
"""
_IPV4, _IPV6 = b"\x08\0", b"\x86\xdd"
_GROUP_MAC, _GROUP = bytes.fromhex("333300010002"), socket.inet_pton(socket.AF_INET6, "ff02::1:2")  # RFC 8415, 7.1

Pool = Callable[[random.Random, "Edge", int], Iterator[bytes]]


class Edge:
    def __init__(self, mac: str, address: str, registered: str) -> None:
        self.mac = bytes.fromhex(mac.replace(":", ""))
        self.address = IPv4Address(address)
        self.registered = registered


def solicit(rng: random.Random) -> bytes:
    """Return a Solicit (RFC 8415 section 16.2) of an unregistered client."""
    duid = struct.pack("!HH", 3, 1) + b"\x02" + rng.randbytes(5)
    options = ((1, duid), (3, struct.pack("!III", 1, 0, 0)), (8, bytes(2)))  # client identifier, IA_NA, elapsed time
    head = struct.pack("!I", 1 << 24 | rng.randrange(1 << 24))
    return head + b"".join(struct.pack("!HH", number, len(value)) + value for number, value in options)


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _invented(rng: random.Random) -> bytes:
    return b"\x02" + rng.randbytes(5)


def _ipv4(macs: bytes, source: IPv4Address, target: IPv4Address, ports: tuple[int, int], payload: bytes) -> bytes:
    """Return a frame; `macs` are its target and source. UDP has no checksum, as RFC 768 allows."""
    head = struct.pack("!BBHIBBH", 0x45, 0, 28 + len(payload), 0, 64, socket.IPPROTO_UDP, 0)
    head += source.packed + target.packed
    head = head[:10] + _checksum(head).to_bytes(2, "big") + head[12:]
    return macs + _IPV4 + head + struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload


def _discovers(rng: random.Random, edge: Edge, _senders: int) -> Iterator[bytes]:
    everybody, nowhere = IPv4Address("255.255.255.255"), IPv4Address("0.0.0.0")
    for number in range(4096):
        mac = _invented(rng)
        asks = packet(DISCOVER, edge.registered if number % 2 else mac.hex(":"), rng.getrandbits(32))
        yield _ipv4(b"\xff" * 6 + mac, nowhere, everybody, (68, 67), asks)


def _solicits(rng: random.Random, _edge: Edge, senders: int) -> Iterator[bytes]:
    for number in range(senders):
        message = solicit(rng)
        source = b"\xfe\x80" + bytes(10) + struct.pack("!I", 0x100 + number)
        udp = struct.pack("!HHH", 546, 547, 8 + len(message))
        pseudo = source + _GROUP + struct.pack("!II", 8 + len(message), socket.IPPROTO_UDP)  # RFC 8200 section 8.1
        udp += _checksum(pseudo + udp + bytes(2) + message).to_bytes(2, "big") + message
        head = struct.pack("!IHBB", 6 << 28, len(udp), socket.IPPROTO_UDP, 255) + source + _GROUP
        yield _GROUP_MAC + _invented(rng) + _IPV6 + head + udp


def _to_port(port: int, payload: Callable[[int], bytes]) -> Pool:
    def frames(rng: random.Random, edge: Edge, senders: int) -> Iterator[bytes]:
        network = int(edge.address) & ~0xFF
        for number in range(senders):
            macs, source = edge.mac + _invented(rng), IPv4Address(network + 100 + number)
            yield _ipv4(macs, source, edge.address, (20_000 + number % 40_000, port), payload(number))

    return frames


POOLS: dict[str, Pool] = {
    "dhcp": _discovers,
    "dhcpv6": _solicits,
    "syslog": _to_port(514, lambda number: b"<30>flood: line %d" % number),
    "tftp": _to_port(69, lambda number: b"\0\1%d\0octet\0tsize\x000\0" % number),
}


def main(service: str, rate: str, mac: str, address: str, registered: str, senders: str = str(SENDERS)) -> None:
    pool = list(POOLS[service](random.Random(service), Edge(mac, address, registered), int(senders)))
    frames = itertools.cycle(pool)
    burst = max(1, int(int(rate) * PAUSE_SECONDS))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind(("eth0", 0))
        for number in range(COUNT // burst):
            for frame in itertools.islice(frames, burst):
                sock.send(frame)
            if number % 50 == 0:
                print((number + 1) * burst, flush=True)
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
