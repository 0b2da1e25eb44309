"""The machines' side of the wire: where a fleet may run, how its machines are attached, and their sockets.

A thousand booting machines are an attack on a site that does not expect them. So machines are never in the host's own
network namespace, where their addresses would be the host's. A run starts only in these cases:

- the target is an address of the namespace, or on a link of it, so packets can't leave it
- the command line allows the target (--allow); a namespace with an uplink (`uplink`) always needs that

In the namespace all addresses of the machines' network are local (`attach`). DHCP goes one of two ways:

    relay     the fleet is one relay agent for all machines: packets go by unicast from port 67 of the relay's address,
              which is also `giaddr`, and answers come there (RFC 1542 section 4, RFC 2131 section 4.1)
    direct    machines are on the server's link: each packet is a broadcast Ethernet frame with the machine's own MAC.
              Answers come to that MAC or by broadcast. `FramePort` answers ARP requests for a machine's address

The port delivers an answer to the machine with that hardware address (`chaddr`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from edge.building.shell import CommandError, run
from edge.dhcp.wire import frames, options
from edge.lab.namespaces import NAMESPACES, remove_abandoned
from edge.neighbour.route import Route, RouteKind, route_to
from tink.errors import TinkedgeError

_FIRST = Path("/proc/1/ns/net")
_OWN = Path("/proc/thread-self/ns/net")
_NAMED = Path("/run/netns")


class FleetError(TinkedgeError):
    """The run can't be done; the message has the cause and, where there is one, the option that allows it."""


def is_hosts_namespace(first: Path = _FIRST, own: Path = _OWN, named: Path = _NAMED) -> bool:
    """Return True if the calling thread is in the network namespace of process 1.

    If /proc does not show that namespace, return False for a named namespace (ip netns) and True for any other.
    """
    here = own.stat().st_ino
    try:
        return here == first.stat().st_ino
    except OSError:
        others = [*named.iterdir()] if named.is_dir() else []
        return here not in {other.stat().st_ino for other in others if other.exists()}


def check(
    target: IPv4Address,
    allowed: tuple[IPv4Network, ...],
    *,
    is_hosts: bool,
    by_uplink: bool = False,
    route: Callable[[IPv4Address], Route] = route_to,
) -> None:
    """Raise FleetError unless a fleet may run against `target`. `is_hosts`: this is the host's network namespace."""
    if is_hosts:
        raise FleetError(
            f"this is the host's own network namespace, where no machine may run: run inside another one (ip netns "
            f"exec), name one (--netns), or have one created (--interface, --uplink-address, --allow {target})"
        )
    if any(target in network for network in allowed):
        return
    if by_uplink:
        raise FleetError(
            f"{target} is reached by an interface of the host: add --allow {target} if that is the site to test"
        )
    kind = route(target).kind
    if kind not in (RouteKind.OWN, RouteKind.LINK):
        raise FleetError(
            f"{target} is {kind.value} as seen from this network namespace, and not on a link of it: add "
            f"--allow {target} if that is the site to test"
        )


_TABLE: Final = "tinkedge-fleet"
_RULES: Final = """
table netdev {table} {{
  chain frames {{
    type filter hook ingress device "{interface}" priority 0
    meta pkttype set host
  }}
}}
"""
_RESOLVE_SECONDS: Final = 3.0
_SETTINGS: Final = Path("/proc/sys/net/ipv4/conf")


class MachineLink(StrEnum):
    """How machines reach the server."""

    RELAY = "relay"
    DIRECT = "direct"


async def attach(stack: AsyncExitStack, link: MachineLink, interface: str, network: IPv4Network, server: str) -> None:
    """Attach the machines' network, from inside their namespace; `stack` detaches it.

    `interface` leads to the edge, which has the address `server`. Raises FleetError.
    """
    try:
        if link is MachineLink.DIRECT:
            await _see_each_mac(stack, interface, server)
        await run(["ip", "route", "add", "local", str(network), "dev", "lo"])
        stack.push_async_callback(run, ["ip", "route", "delete", "local", str(network), "dev", "lo"])
    except (CommandError, OSError) as error:
        raise FleetError(f"can't attach machines to {interface}: {error}") from error


async def _see_each_mac(stack: AsyncExitStack, interface: str, server: str) -> None:
    mac = resolve(interface, server, _RESOLVE_SECONDS)
    if mac is None:
        raise FleetError(f"no host on {interface} answers ARP for {server}")
    # The kernel would send ARP requests from a machine's address with the interface's MAC: so the entry is fixed.
    await run(["ip", "neighbour", "replace", server, "lladdr", mac.hex(":"), "nud", "permanent", "dev", interface])
    # The server's address is in the machines' network, which is local: this longer prefix comes first.
    route = ["unicast", f"{server}/32", "dev", interface, "table", "local"]
    await run(["ip", "route", "add", *route])
    stack.push_async_callback(run, ["ip", "route", "delete", *route])
    # 8: the kernel answers no ARP request. FramePort answers, with the machine's MAC.
    answers = _SETTINGS / interface / "arp_ignore"
    stack.callback(answers.write_text, answers.read_text())
    answers.write_text("8")
    await run(["nft", "-f", "-"], stdin=_RULES.format(table=_TABLE, interface=interface).encode())
    stack.push_async_callback(run, ["nft", "delete", "table", "netdev", _TABLE])


SERVER_PORT: Final = 67
CLIENT_PORT: Final = 68
_CHADDR: Final = slice(28, 34)
_BROADCAST: Final = b"\xff" * 6
_ETH_P_ALL: Final = 3
_IPV4: Final = b"\x08\x00"
_ARP: Final = b"\x08\x06"
_UDP: Final = 17
_MAX_DHCP_PACKET: Final = 2048
_SOL_PACKET, _ADD_MEMBERSHIP, _PROMISCUOUS = 263, 1, 1  # linux/if_packet.h
_MEMBERSHIP = struct.Struct("=iH10x")
"""struct packet_mreq (packet(7)); closing the socket ends the membership."""
_MAX_PACKETS_PER_TURN: Final = 256
_BUFFER_BYTES: Final = 4 << 20

Listener = Callable[[bytes], None]


class DhcpPort(ABC):
    """The DHCP port of all machines. `giaddr`: the relay's address, four bytes; zero without a relay."""

    __slots__ = ("_listeners", "_loop", "_socket", "giaddr")

    def __init__(self, sock: socket.socket, giaddr: bytes) -> None:
        self.giaddr = giaddr
        self._socket = sock
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._listeners: dict[bytes, Listener] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    def listen(self, chaddr: bytes, listener: Listener | None) -> None:
        """Deliver packets for this hardware address to `listener`; None: drop them."""
        if listener is None:
            self._listeners.pop(chaddr, None)
        else:
            self._listeners[chaddr] = listener

    @abstractmethod
    def send(self, chaddr: bytes, payload: bytes) -> None:
        """Send a machine's packet."""

    @abstractmethod
    def _payload(self, got: bytes) -> bytes | None:
        """Return the DHCP packet in received bytes, or None."""

    def close(self) -> None:
        """Close."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        for _ in range(_MAX_PACKETS_PER_TURN):
            try:
                got, sender = self._socket.recvfrom(_MAX_DHCP_PACKET)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error for an earlier packet
            if len(sender) > 2 and sender[2] == socket.PACKET_OUTGOING:
                continue
            payload = self._payload(got)
            listener = self._listeners.get(payload[_CHADDR]) if payload is not None else None
            if payload is not None and listener is not None:
                listener(payload)


class RelayPort(DhcpPort):
    """The DHCP port of machines behind a relay agent, which is the fleet."""

    __slots__ = ("_server",)

    def __init__(self, address: str, server: str) -> None:
        """`address`: the relay's address, in the machines' network. Raises FleetError."""
        self._server = (server, SERVER_PORT)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.bind((address, SERVER_PORT))
        except OSError as error:
            sock.close()
            raise FleetError(f"can't be a relay agent at {address}:{SERVER_PORT}: {error.strerror}") from error
        super().__init__(sock, options.ipv4(address))

    def send(self, chaddr: bytes, payload: bytes) -> None:  # noqa: ARG002 - the packet has it
        """Send a machine's packet."""
        with contextlib.suppress(OSError):  # a lost datagram: the client repeats it
            self._socket.sendto(payload, self._server)

    def _payload(self, got: bytes) -> bytes:
        return got


class FramePort(DhcpPort):
    """The DHCP port of machines on the server's link. `machines`: address (four bytes) to MAC, for ARP."""

    __slots__ = ("_machines",)

    def __init__(self, interface: str, machines: dict[bytes, bytes]) -> None:
        """Raises FleetError."""
        self._machines = machines
        try:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            sock.bind((interface, _ETH_P_ALL))
            # A real card drops frames to other MACs, except in promiscuous mode.
            promiscuous = _MEMBERSHIP.pack(socket.if_nametoindex(interface), _PROMISCUOUS)
            sock.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, promiscuous)
        except OSError as error:
            raise FleetError(f"can't send frames on {interface}: {error.strerror}") from error
        super().__init__(sock, bytes(4))

    def send(self, chaddr: bytes, payload: bytes) -> None:
        """Send a machine's packet."""
        made = frames.Framer(chaddr, bytes(4), CLIENT_PORT).frame(payload, _BROADCAST, b"\xff" * 4, SERVER_PORT)
        with contextlib.suppress(OSError):
            self._socket.send(made)

    def _payload(self, got: bytes) -> bytes | None:
        if got[12:14] == _ARP:
            answer = arp_answer(got, self._machines)
            if answer is not None:
                with contextlib.suppress(OSError):
                    self._socket.send(answer)
        elif got[12:14] == _IPV4 and got[23] == _UDP:
            payload = 14 + (got[14] & 0x0F) * 4 + 8
            if got[payload - 6 : payload - 4] == CLIENT_PORT.to_bytes(2, "big"):
                return got[payload:]
        return None


_ARP_PACKET = struct.Struct("!6s6s2sHHBBH6s4s6s4s")


def arp_answer(got: bytes, machines: dict[bytes, bytes]) -> bytes | None:
    """Return the reply to an ARP request for a machine's address (RFC 826); None for any other frame."""
    if len(got) < _ARP_PACKET.size:
        return None
    _, asker, _, link, protocol, link_bytes, protocol_bytes, operation, mac, address, _, wanted = (
        _ARP_PACKET.unpack_from(got)
    )
    own = machines.get(wanted)
    if own is None or own == asker or (link, protocol, link_bytes, protocol_bytes, operation) != (1, 0x0800, 6, 4, 1):
        return None
    return _ARP_PACKET.pack(asker, own, _ARP, 1, 0x0800, 6, 4, 2, own, wanted, mac, address)


def resolve(interface: str, address: str, seconds: float) -> bytes | None:
    """Return the MAC of the host with `address` on the link; None if no host answers.

    Sends ARP probes (RFC 5227), which carry no sender address. Raises FleetError.
    """
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(frames.ARP_ETHERTYPE)) as sock:
            sock.bind((interface, frames.ARP_ETHERTYPE))
            own = sock.getsockname()[4]
            for _ in range(3):
                sock.send(frames.arp_probe(own, options.ipv4(address)))
                sock.settimeout(seconds / 3)
                with contextlib.suppress(TimeoutError):
                    while True:
                        claim = frames.arp_claim(sock.recv(frames.MAX_ARP_BYTES))
                        if claim is not None and claim.address == options.ipv4(address):
                            return claim.hardware
    except OSError as error:
        raise FleetError(f"can't send frames on {interface}: {error.strerror}") from error
    return None


_MAX_DATAGRAM: Final = 65_535


class DatagramSocket:
    """A UDP socket with a machine's own address, for TFTP.

    `lost()` is called once per datagram, sent or received, and returns True if the fault injection drops it.
    """

    __slots__ = ("_loop", "_lost", "_readable", "_socket")

    def __init__(self, address: str, lost: Callable[[], bool]) -> None:
        """Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._readable = asyncio.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind((address, 0))
        except OSError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._readable.set)

    def send(self, datagram: bytes, to: tuple[str, int]) -> None:
        """Send a datagram, unless the fault injection drops it."""
        if not self._lost():
            with contextlib.suppress(OSError):
                self._socket.sendto(datagram, to)

    async def receive(self) -> tuple[bytes, tuple[str, int]]:
        """Wait for the next datagram; return it with its sender."""
        while True:
            try:
                datagram, sender = self._socket.recvfrom(_MAX_DATAGRAM)
            except BlockingIOError:
                self._readable.clear()
                await self._readable.wait()
            except OSError:
                continue  # an ICMP error for an earlier datagram
            else:
                if not self._lost():
                    return datagram, sender

    def close(self) -> None:
        """Close."""
        self._loop.remove_reader(self._socket)
        self._socket.close()


PREFIX: Final = "tinkedge-fleet-"


async def uplink(stack: AsyncExitStack, interface: str, address: str) -> Path:
    """Create a namespace for machines that reach a site by an interface of this host; return its path.

    The namespace has a macvlan on that interface, of the same name, with `address` (with a prefix length).
    `stack` removes it. Raises CommandError.
    """
    await remove_abandoned(PREFIX)
    name = f"{PREFIX}{os.getpid()}-machines"
    await run(["ip", "netns", "add", name])
    stack.push_async_callback(run, ["ip", "netns", "delete", name])
    await run(["ip", "-n", name, "link", "set", "lo", "up"])
    temporary = f"fleet{os.getpid() % 100_000}"
    await run(["ip", "link", "add", temporary, "link", interface, "type", "macvlan", "mode", "bridge"])
    try:
        await run(["ip", "link", "set", temporary, "netns", name, "name", interface])
    except BaseException:
        await run(["ip", "link", "delete", temporary])
        raise
    await run(["ip", "-n", name, "address", "add", address, "dev", interface])
    await run(["ip", "-n", name, "link", "set", interface, "up"])
    return NAMESPACES / name
