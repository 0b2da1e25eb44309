"""How the fleet's DHCP packets get onto the wire, and answers back to the machine that they are for.

Two ways, and a run has one of them:

    relay     all machines are behind one relay agent, which is the fleet: packets go by unicast from port 67 of the
              relay's address, with that as `giaddr`, and answers come there (RFC 1542 section 4, RFC 2131 section 4.1)
    direct    machines are on the server's link: each packet is an Ethernet frame with the machine's own MAC, broadcast;
              answers come to that MAC or to all. ARP for a machine's address is answered with its MAC, too

An answer is given to the machine whose hardware address (`chaddr`) it has, while that listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final, Protocol

from edge.dhcp.wire import frames, options

SERVER_PORT: Final = 67
CLIENT_PORT: Final = 68
_CHADDR: Final = slice(28, 34)
_EVERYBODY: Final = b"\xff" * 6
_ETH_P_ALL: Final = 3
_IPV4: Final = b"\x08\x00"
_ARP: Final = b"\x08\x06"
_UDP: Final = 17
_LARGEST: Final = 2048
_SOL_PACKET, _ADD_MEMBERSHIP, _PROMISCUOUS = 263, 1, 1  # linux/if_packet.h
_MEMBERSHIP = struct.Struct("=iH10x")
"""struct packet_mreq; ends with the socket."""
_PER_TURN: Final = 256
_BUFFER_BYTES: Final = 4 << 20

Listener = Callable[[bytes], None]


class PortError(Exception):
    """DHCP can't be spoken here; the text says why."""


class DhcpPort(Protocol):
    """One of the two ways."""

    giaddr: bytes
    """For the packets, four bytes; zero if there is no relay."""

    def listen(self, chaddr: bytes, listener: Listener | None) -> None:
        """Give what comes for this hardware address to `listener`; None: to nobody any more."""

    def send(self, chaddr: bytes, payload: bytes, /) -> None:
        """Send a machine's packet."""

    def close(self) -> None:
        """Close."""


class _Listeners:
    __slots__ = ("_by_chaddr",)

    def __init__(self) -> None:
        self._by_chaddr: dict[bytes, Listener] = {}

    def listen(self, chaddr: bytes, listener: Listener | None) -> None:
        if listener is None:
            self._by_chaddr.pop(chaddr, None)
        else:
            self._by_chaddr[chaddr] = listener

    def deliver(self, payload: bytes) -> None:
        listener = self._by_chaddr.get(payload[_CHADDR])
        if listener is not None:
            listener(payload)


class RelayPort(_Listeners):
    """The relay agent."""

    __slots__ = ("_loop", "_server", "_socket", "giaddr")

    def __init__(self, address: str, server: str) -> None:
        """`address`: the relay's, in the machines' network. Raises PortError."""
        super().__init__()
        self.giaddr = options.ipv4(address)
        self._server = (server, SERVER_PORT)
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.bind((address, SERVER_PORT))
        except OSError as error:
            self._socket.close()
            raise PortError(f"can't be a relay agent at {address}:{SERVER_PORT}: {error.strerror}") from error
        self._loop.add_reader(self._socket, self._readable)

    def send(self, _chaddr: bytes, payload: bytes) -> None:
        """Send a machine's packet."""
        with contextlib.suppress(OSError):  # what is not sent is lost, as any datagram, and is repeated
            self._socket.sendto(payload, self._server)

    def close(self) -> None:
        """Close."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        for _ in range(_PER_TURN):
            try:
                payload = self._socket.recv(_LARGEST)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error of what was sent before
            self.deliver(payload)


class FramePort(_Listeners):
    """Ethernet frames on one interface. `machines`: address (four bytes) to MAC, for ARP."""

    __slots__ = ("_loop", "_machines", "_socket", "giaddr")

    def __init__(self, interface: str, machines: dict[bytes, bytes]) -> None:
        """Raises PortError."""
        super().__init__()
        self.giaddr = bytes(4)
        self._machines = machines
        self._loop = asyncio.get_running_loop()
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.bind((interface, _ETH_P_ALL))
            # A real card passes frames to other MACs by, unless it is told.
            promiscuous = _MEMBERSHIP.pack(socket.if_nametoindex(interface), _PROMISCUOUS)
            self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, promiscuous)
        except OSError as error:
            raise PortError(f"can't send frames on {interface}: {error.strerror}") from error
        self._loop.add_reader(self._socket, self._readable)

    def send(self, chaddr: bytes, payload: bytes) -> None:
        """Send a machine's packet."""
        made = frames.Framer(chaddr, bytes(4), CLIENT_PORT).frame(payload, _EVERYBODY, b"\xff" * 4, SERVER_PORT)
        with contextlib.suppress(OSError):
            self._socket.send(made)

    def close(self) -> None:
        """Close."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        for _ in range(_PER_TURN):
            try:
                got, (_, _, kind, *_) = self._socket.recvfrom(_LARGEST)
            except BlockingIOError:
                return
            except OSError:
                continue
            if kind == socket.PACKET_OUTGOING:
                continue
            if got[12:14] == _ARP:
                self._answer_arp(got)
            elif got[12:14] == _IPV4 and got[23] == _UDP:
                payload = 14 + (got[14] & 0x0F) * 4 + 8
                if got[payload - 6 : payload - 4] == CLIENT_PORT.to_bytes(2, "big"):
                    self.deliver(got[payload:])

    def _answer_arp(self, got: bytes) -> None:
        answer = arp_answer(got, self._machines)
        if answer is not None:
            with contextlib.suppress(OSError):
                self._socket.send(answer)


_ARP_PACKET = struct.Struct("!6s6s2sHHBBH6s4s6s4s")


def arp_answer(got: bytes, machines: dict[bytes, bytes]) -> bytes | None:
    """The reply to an ARP request for the address of one of the machines (RFC 826); None: it is for none."""
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
    """The MAC of whoever has `address` on the link, asked by ARP without an address of ours; None: nobody answers.

    Raises PortError.
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
        raise PortError(f"can't send frames on {interface}: {error.strerror}") from error
    return None
