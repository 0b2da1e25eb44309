"""Requests that arrive on an interface of this host as those of a machine do, past this host's packet filter.

A packet that a host sends to its own address goes by lo, past all rules for packets that arrive by another interface.
So the frames are given to the kernel as frames that the interface has received: bpf(2), BPF_PROG_RUN with
BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18; Documentation/bpf/bpf_prog_run.rst), with an XDP program that returns XDP_PASS.
The interface is not changed. The answers leave for a random hardware address, and a packet socket sees them.

Why a program of two instructions, and not nft: nft's counters, `nft monitor trace` and `meta nftrace` show what happens
to a packet that arrives, but cannot make one arrive, and they change the rule set of the host. A dummy interface whose
frames tc redirects (mirred ingress) would make one arrive, but it needs iproute2, adds an interface that network
managers and the running edge notice, and replaces only the 40 lines of `Injector`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from edge.doctor.extra import DiagnoseError
from edge.doctor.findings import Finding, note, passed, problem
from edge.doctor.frames import ArpPacket, parse
from edge.doctor.host import BOOT_PROGRAMS
from edge.doctor.ports import Port, holders
from edge.neighbour.host import Network
from edge.neighbour.links import look

_ANSWERING: Final = ("tftp", "http", "server")
"""The services that answer every host. DHCP does not answer unknown machines."""
_ANSWER_SECONDS: Final = 1.0
_ARP_SECONDS: Final = 0.3
_MAX_CANDIDATES: Final = 8

_BPF_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
# linux/bpf.h
_BPF_PROG_LOAD, _BPF_PROG_RUN, _PROG_TYPE_XDP, _LIVE_FRAMES = 5, 10, 6, 2
_RETURN_XDP_PASS: Final = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0)  # r0 = 2; exit
_ATTRIBUTE_BYTES: Final = 128

_ARPHRD_ETHER: Final = 1  # linux/if_arp.h
_ETH_P_ALL, _PACKET_OUTGOING = 0x0003, 4  # linux/if_ether.h, linux/if_packet.h
_ETH_P_IP, _ETH_P_ARP = b"\x08\x00", b"\x08\x06"
_SYN, _RST, _SYN_ACK = 0x02, 0x04, 0x12


def check_from_outside(network: Network, ports: Sequence[Port]) -> Iterator[Finding]:
    """Check that the ports of the services that run here answer requests that arrive on the interface."""
    running = [port for port in ports if not port.address and port.name in _ANSWERING and any(holders(port))]
    if not running:
        return
    name = f"what arrives on {network.interface}"
    try:
        with outside(network.interface, network.address) as machine:
            if not machine.is_heard():
                yield note(name, f"not tried: {network.interface} answers no ARP for {network.address}")
                return
            for port in running:
                is_tftp = port.name == "tftp"
                answers = machine.tftp(port.number, BOOT_PROGRAMS[0]) if is_tftp else machine.tcp(port.number)
                yield _finding(port, network.interface, answers=answers)
    except (DiagnoseError, OSError) as error:
        yield note(name, f"not tried: {error}")


def _finding(port: Port, interface: str, *, answers: bool) -> Finding:
    name = f"{port.number}/{port.protocol} ({port.service}) from outside on {interface}"
    if answers:
        return passed(name, "answers what arrives there")
    seen = f"{port.service} runs here, and does not answer what arrives on {interface}"
    filters = "this host's packet filter drops it ('nft list ruleset'), or rp_filter"
    return problem(name, seen, f"{filters} (sysctl net.ipv4.conf.all.rp_filter)")


class Injector:
    """Gives frames to the kernel as frames that one interface has received. Must be closed."""

    def __init__(self, index: int) -> None:
        """`index` is the interface's number. Raises DiagnoseError."""
        self._index = index
        number = _BPF_SYSCALL.get(platform.machine())
        if number is None:
            raise DiagnoseError(f"this can't be tried on {platform.machine()}")
        self._number = number
        self._libc = ctypes.CDLL(None, use_errno=True)
        program, licence = ctypes.create_string_buffer(_RETURN_XDP_PASS), ctypes.create_string_buffer(b"GPL")
        places = (ctypes.addressof(program), ctypes.addressof(licence))
        self._program = self._bpf(_BPF_PROG_LOAD, struct.pack("=IIQQ", _PROG_TYPE_XDP, 2, *places))

    def close(self) -> None:
        """Remove the program."""
        os.close(self._program)

    def inject(self, frame: bytes) -> None:
        """Let a frame arrive. Raises DiagnoseError."""
        content = ctypes.create_string_buffer(frame, len(frame))
        # struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
        context = ctypes.create_string_buffer(struct.pack("=IIIIII", 0, len(frame), 0, self._index, 0, 0), 24)
        self._bpf(
            _BPF_PROG_RUN,
            struct.pack(
                "=IIIIQQIIIIQQIII",
                *(self._program, 0, len(frame), 0, ctypes.addressof(content), 0, 1, 0),
                *(24, 0, ctypes.addressof(context), 0, _LIVE_FRAMES, 0, 1),
            ),
        )

    def _bpf(self, command: int, attribute: bytes) -> int:
        buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
        result = int(self._libc.syscall(self._number, command, buffer, _ATTRIBUTE_BYTES))
        if result < 0:
            reason = os.strerror(ctypes.get_errno())
            raise DiagnoseError(f"the kernel takes no frames by bpf(2): {reason} (it needs root, and Linux 5.18)")
        return result


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """The frames of a machine that does not exist, on the network of one interface. Addresses are bytes."""

    hardware: bytes
    address: bytes
    our_hardware: bytes
    our_address: bytes

    def arp(self) -> bytes:
        """Return an ARP request for our address, which also tells the kernel the machine's hardware address."""
        return _arp(self.hardware, self.address, self.our_address)

    def udp(self, port: int, source: int, payload: bytes) -> bytes:
        """Return one datagram, without a checksum, which is optional for UDP."""
        return self._ip(socket.IPPROTO_UDP, struct.pack("!HHHH", source, port, 8 + len(payload), 0) + payload)

    def tcp(self, port: int, source: int, sequence: int, flags: int) -> bytes:
        """Return a segment that opens (SYN) or resets (RST) a connection."""
        segment = struct.pack("!HHIIBBHHH", source, port, sequence, 0, 5 << 4, flags, 64240, 0, 0)
        pseudo = self.address + self.our_address + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(segment))
        checksum = _checksum(pseudo + segment)
        return self._ip(socket.IPPROTO_TCP, segment[:16] + struct.pack("!H", checksum) + segment[18:])

    def _ip(self, protocol: int, payload: bytes) -> bytes:
        length, addresses = 20 + len(payload), self.address + self.our_address
        head = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0, 64, protocol, 0) + addresses
        head = head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
        return (self.our_hardware + self.hardware + _ETH_P_IP + head + payload).ljust(60, b"\0")


def _arp(hardware: bytes, address: bytes, wanted: bytes) -> bytes:
    """Return an ARP request for `wanted`. An all-zero `address` makes it an ARP probe (RFC 5227 section 2.1.1)."""
    head = b"\xff" * 6 + hardware + _ETH_P_ARP + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
    return (head + hardware + address + bytes(6) + wanted).ljust(60, b"\0")


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True)
class Outside:
    """Sends requests that arrive on one interface, and waits for the answers. Made by `outside`."""

    _injector: Injector
    _socket: socket.socket  # a packet socket on the interface
    _machine: SimulatedMachine

    def is_heard(self) -> bool:
        """Return whether the kernel takes our frames at all: it answers ARP. Raises DiagnoseError."""
        self._injector.inject(self._machine.arp())
        hardware = self._machine.hardware
        return self._wait_for(lambda frame: frame[12:14] == _ETH_P_ARP and frame[:6] == hardware) is not None

    def tftp(self, port: int, name: str) -> bool:
        """Return whether the TFTP server sends the file or an error. Raises DiagnoseError."""
        source = 1024 + secrets.randbelow(60000)
        self._injector.inject(self._machine.udp(port, source, b"\0\1%s\0octet\0blksize\x001468\0" % name.encode()))
        answer = self._answer(socket.IPPROTO_UDP, source)
        if answer is not None:  # An error ends the transfer (RFC 1350 section 5).
            peer = struct.unpack_from("!H", answer)[0]
            self._injector.inject(self._machine.udp(peer, source, b"\0\5\0\0tried\0"))
        return answer is not None

    def tcp(self, port: int) -> bool:
        """Return whether the port accepts a connection, or refuses it with RST. Raises DiagnoseError."""
        source, sequence = 1024 + secrets.randbelow(60000), secrets.randbelow(1 << 31)
        self._injector.inject(self._machine.tcp(port, source, sequence, _SYN))
        answer = self._answer(socket.IPPROTO_TCP, source)
        if answer is not None and answer[13] & _SYN_ACK == _SYN_ACK:
            self._injector.inject(self._machine.tcp(port, source, sequence + 1, _RST))
        return answer is not None

    def _answer(self, protocol: int, port: int) -> bytes | None:
        """Return the UDP or TCP header, with the payload, of the answer to a port of the machine, or None."""

        def is_answer(frame: bytes) -> bool:
            ours = frame[12:14] == _ETH_P_IP and frame[30:34] == self._machine.address and frame[23] == protocol
            return ours and struct.unpack_from("!H", frame, 14 + 4 * (frame[14] & 15) + 2)[0] == port

        frame = self._wait_for(is_answer)
        return frame[14 + 4 * (frame[14] & 15) :] if frame is not None else None

    def _wait_for(self, is_wanted: Callable[[bytes], bool]) -> bytes | None:
        end = time.monotonic() + _ANSWER_SECONDS
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left)[0]:
                return None
            frame, where = self._socket.recvfrom(2048)
            if where[2] == _PACKET_OUTGOING and len(frame) >= 42 and is_wanted(frame):
                return frame
        return None


@contextmanager
def outside(interface: str, address: str) -> Iterator[Outside]:
    """Simulate a machine that sends to `address` (dotted) of this host, on an interface. Raises DiagnoseError."""
    link = look(interface)
    own = next((one for one in link.addresses if str(one.ip) == address), None) if link is not None else None
    if link is None or own is None:
        raise DiagnoseError(f"{interface} does not have {address}")
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError as error:
        raise DiagnoseError(f"packets can't be captured: {error.strerror} (it needs root)") from error
    with sock:
        sock.bind((interface, _ETH_P_ALL))
        *_, kind, our_hardware = sock.getsockname()
        if kind != _ARPHRD_ETHER:
            raise DiagnoseError(f"{interface} is no Ethernet interface")
        hardware = bytes((secrets.randbelow(256) & 0xFC | 0x02, *secrets.token_bytes(5)))
        machine = SimulatedMachine(hardware, _free_address(sock, own), our_hardware, own.ip.packed)
        injector = Injector(link.index)
        try:
            yield Outside(injector, sock, machine)
        finally:
            injector.close()


def _free_address(sock: socket.socket, own: IPv4Interface) -> bytes:
    """Return an address of the network for which no host answers ARP. Raises DiagnoseError."""
    last = int(own.network.broadcast_address) - 1
    candidates = range(last, max(last - _MAX_CANDIDATES, int(own.network.network_address)), -1)
    for candidate in (IPv4Address(number) for number in candidates if number != int(own.ip)):
        sock.send(_arp(sock.getsockname()[4], bytes(4), candidate.packed))
        end, is_taken = time.monotonic() + _ARP_SECONDS, False
        while not is_taken and (left := end - time.monotonic()) > 0:
            if select.select([sock], [], [], left)[0]:
                with suppress(OSError):
                    packet = parse(sock.recv(2048))
                    is_taken = isinstance(packet, ArpPacket) and packet.sender == str(candidate)
        if not is_taken:
            return candidate.packed
    raise DiagnoseError(f"no free address of {own.network} was found")
