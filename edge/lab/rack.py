"""The rack: a network namespace with a bridge, and a tap for each machine; made for one lab and removed after it.

Nothing leads out of it: no route, no uplink, no address of this host. The lab's own process moves into the namespace,
so all it starts is inside, but for what it builds beforehand.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge.building.shell import run
from edge.lab.namespaces import NAMESPACES, enter, remove_abandoned, set_namespace

PREFIX = "tinkedge-lab-"
HTTP_PORT = 7080
"""Of the edge in the rack."""
_ETH_P_IP, _ETH_P_ARP = 0x0800, 0x0806  # linux/if_ether.h
_SOL_PACKET, _PACKET_STATISTICS = 263, 6  # linux/if_packet.h


@dataclass(frozen=True, slots=True)
class RackNetwork:
    """The addresses of the rack; the manifests in deploy/examples are written for them. `address6`: one of IPv6 beside
    an `address` of IPv4, of 64 bits' prefix; empty: none."""

    bridge: str = "rack0"
    address: str = "172.31.77.1"
    prefix: int = 24
    tap: str = "machine0"
    address6: str = ""

    @property
    def host(self) -> str:
        """The address as it stands in URLs."""
        return f"[{self.address}]" if ":" in self.address else self.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All that the edge's host has there."""
        return tuple(filter(None, (self.address, self.address6)))


IPV6 = RackNetwork(address="fd31:77::1", prefix=64)
"""A rack without IPv4; the manifests in deploy/examples/ipv6 are written for it."""

DUAL_STACK = RackNetwork(address6="fd31:77::1")
"""A rack with both; what is in deploy/examples/dual-stack is written for it."""


class Rack:
    """A network namespace named after the process that owns it."""

    def __init__(self, network: RackNetwork) -> None:
        self.network = network
        self.namespace = f"{PREFIX}{os.getpid()}"
        self._home: int | None = None
        self._ears: list[socket.socket] = []

    async def up(self) -> None:
        """Make the namespace and move this process into it. Raises CommandError, e.g. without the privilege."""
        await remove_abandoned(PREFIX)
        network = self.network
        await run(["ip", "netns", "add", self.namespace])
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(NAMESPACES / self.namespace)
        ip = ["ip", "link", "set"]
        await run([*ip, "lo", "up"])
        await run(["ip", "link", "add", network.bridge, "type", "bridge", "forward_delay", "0"])
        # No duplicate address detection: the link-local address answers router solicitations at once.
        for knob, value in (("accept_dad", "0"), ("disable_ipv6", "0")):
            Path(f"/proc/sys/net/ipv6/conf/{network.bridge}/{knob}").write_text(value)
        await run(["ip", "address", "add", f"{network.address}/{network.prefix}", "dev", network.bridge])
        if network.address6:
            await run(["ip", "address", "add", f"{network.address6}/64", "dev", network.bridge])
        await run(["ip", "tuntap", "add", "dev", network.tap, "mode", "tap"])
        await run([*ip, network.tap, "master", network.bridge])
        await run([*ip, network.tap, "up"])
        await run([*ip, network.bridge, "up"])
        if ":" in network.address:
            self.hear(network.bridge)

    def hear(self, bridge: str) -> None:
        """Count what comes in over this bridge, too (`ipv4_packets`)."""
        self._ears += [_hear(bridge, protocol) for protocol in (_ETH_P_IP, _ETH_P_ARP)]

    def ipv4_packets(self) -> int:
        """How many packets of IPv4 and ARP have come in since the last call; of a rack that has IPv6 alone."""
        # The kernel counts them, whether there was room for them or not: tpacket_stats, packets and drops.
        told = [sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8) for sock in self._ears]
        return sum(struct.unpack("=II", each)[0] for each in told)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Meanwhile this process, and what it starts, has the host's network; what was started before stays inside."""
        assert self._home is not None  # noqa: S101 - for the type checker; up() has set it
        set_namespace(self._home)
        try:
            yield
        finally:
            enter(NAMESPACES / self.namespace)

    async def down(self) -> None:
        """Leave the namespace and remove it, with everything in it."""
        if self._home is None:
            return
        while self._ears:
            self._ears.pop().close()
        set_namespace(self._home)
        os.close(self._home)
        self._home = None
        await run(["ip", "netns", "delete", self.namespace])


def _hear(interface: str, protocol: int) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind((interface, protocol))
    return sock
