"""Questions that arrive on an interface of this host as if a machine there had asked, and whether they are answered.

What a host sends to its own address goes by lo, past all rules that it has for what comes in by another interface. So
the frames are handed to the kernel as those of the interface: bpf(2), BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES
(Linux 5.18; Documentation/bpf/bpf_prog_run.rst), with a program that passes each of them on. Nothing is changed on the
interface. The answers leave for a hardware address that nobody has, and are seen there.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from edge.doctor import headers
from edge.doctor.extra import DiagnoseError
from edge.doctor.headers import ArpPacket
from edge.neighbour.links import look

ANSWER_SECONDS: Final = 1.0
CLAIM_SECONDS: Final = 0.3
_CANDIDATES: Final = 8

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
# linux/bpf.h
_BPF_PROG_LOAD, _BPF_PROG_RUN, _PROG_TYPE_XDP, _LIVE_FRAMES = 5, 10, 6, 2
_RETURN_XDP_PASS: Final = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0)
_ATTRIBUTE_BYTES: Final = 128

_ARPHRD_ETHER: Final = 1  # linux/if_arp.h
_ETH_P_ALL, _PACKET_OUTGOING = 0x0003, 4  # linux/if_ether.h, linux/if_packet.h
_ETH_P_IP: Final = b"\x08\x00"
_SYN, _RST, _SYN_ACK = 0x02, 0x04, 0x12


class Injector:
    """Hands frames to the kernel as if they had arrived on one interface. To be closed."""

    def __init__(self, index: int) -> None:
        """`index` is the interface's number. Raises DiagnoseError."""
        self._index = index
        number = _SYSCALL.get(platform.machine())
        if number is None:
            raise DiagnoseError(f"this can't be tried on {platform.machine()}")
        self._number = number
        self._libc = ctypes.CDLL(None, use_errno=True)
        program, licence = ctypes.create_string_buffer(_RETURN_XDP_PASS), ctypes.create_string_buffer(b"GPL")
        places = (ctypes.addressof(program), ctypes.addressof(licence))
        self._program = self._bpf(_BPF_PROG_LOAD, struct.pack("=IIQQ", _PROG_TYPE_XDP, 2, *places))

    def close(self) -> None:
        """The program goes with it."""
        os.close(self._program)

    def inject(self, frame: bytes) -> None:
        """Raises DiagnoseError."""
        content = ctypes.create_string_buffer(frame, len(frame))
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
        given = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
        found = int(self._libc.syscall(self._number, command, given, _ATTRIBUTE_BYTES))
        if found < 0:
            why = os.strerror(ctypes.get_errno())
            raise DiagnoseError(f"the kernel takes no frames by bpf(2): {why} (it needs root, and Linux 5.18)")
        return found


@dataclass(frozen=True, slots=True)
class Asker:
    """A machine that there is not, on the network of one interface; addresses as bytes."""

    hardware: bytes
    address: bytes
    our_hardware: bytes
    our_address: bytes

    def arp(self) -> bytes:
        """It asks who has our address, so that the kernel knows where it is."""
        return _arp(self.hardware, self.address, self.our_address)

    def udp(self, port: int, source: int, payload: bytes) -> bytes:
        """One datagram; without a checksum, as UDP may."""
        return self._ip(socket.IPPROTO_UDP, struct.pack("!HHHH", source, port, 8 + len(payload), 0) + payload)

    def tcp(self, port: int, source: int, sequence: int, flags: int) -> bytes:
        """A segment that asks for a connection, or gives it up."""
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
    """Who has `wanted`? `address` 0 claims none, as a probe does (RFC 5227, section 2.1.1)."""
    head = b"\xff" * 6 + hardware + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
    return (head + hardware + address + bytes(6) + wanted).ljust(60, b"\0")


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Outside:
    """Asks on one interface, from outside of this host's rules. Made by `outside`."""

    def __init__(self, injector: Injector, ears: socket.socket, asker: Asker) -> None:
        self._injector = injector
        self._ears = ears
        self._asker = asker

    def tftp(self, port: int, name: str) -> bool:
        """Whether the file, or an error, is sent. Raises DiagnoseError."""
        source = 1024 + secrets.randbelow(60000)
        self._injector.inject(self._asker.udp(port, source, b"\0\1%s\0octet\0blksize\x001468\0" % name.encode()))
        answer = self._answer(socket.IPPROTO_UDP, source)
        if answer is not None:  # and no more of it, please (RFC 1350, section 5)
            peer = struct.unpack_from("!H", answer)[0]
            self._injector.inject(self._asker.udp(peer, source, b"\0\5\0\0tried\0"))
        return answer is not None

    def tcp(self, port: int) -> bool:
        """Whether a connection would be made, or refused in so many words. Raises DiagnoseError."""
        source, sequence = 1024 + secrets.randbelow(60000), secrets.randbelow(1 << 31)
        self._injector.inject(self._asker.tcp(port, source, sequence, _SYN))
        answer = self._answer(socket.IPPROTO_TCP, source)
        if answer is not None and answer[13] & _SYN_ACK == _SYN_ACK:
            self._injector.inject(self._asker.tcp(port, source, sequence + 1, _RST))
        return answer is not None

    def knows_us(self) -> bool:
        """Whether the kernel hears what is handed to it at all: it answers ARP. Raises DiagnoseError."""
        self._injector.inject(self._asker.arp())
        return self._heard(lambda frame: frame[12:14] == b"\x08\x06" and frame[:6] == self._asker.hardware) is not None

    def _answer(self, protocol: int, port: int) -> bytes | None:
        """What is sent back there: its header of UDP or TCP, and what follows; None: nothing."""

        def is_answer(frame: bytes) -> bool:
            ours = frame[12:14] == _ETH_P_IP and frame[30:34] == self._asker.address and frame[23] == protocol
            return ours and struct.unpack_from("!H", frame, 14 + 4 * (frame[14] & 15) + 2)[0] == port

        frame = self._heard(is_answer)
        return frame[14 + 4 * (frame[14] & 15) :] if frame is not None else None

    def _heard(self, wanted: Callable[[bytes], bool]) -> bytes | None:
        end = time.monotonic() + ANSWER_SECONDS
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._ears], [], [], left)[0]:
                return None
            frame, where = self._ears.recvfrom(2048)
            if where[2] == _PACKET_OUTGOING and len(frame) >= 42 and wanted(frame):
                return frame
        return None


@contextmanager
def outside(interface: str, address: str) -> Iterator[Outside]:
    """One who asks `address` (dotted), this host's, on an interface. Raises DiagnoseError."""
    link = look(interface)
    own = next((one for one in link.addresses if str(one.ip) == address), None) if link is not None else None
    if link is None or own is None:
        raise DiagnoseError(f"{interface} has not {address}")
    try:
        ears = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError as error:
        raise DiagnoseError(f"packets can't be looked at: {error.strerror} (it needs root)") from error
    with ears:
        ears.bind((interface, _ETH_P_ALL))
        *_, kind, our_hardware = ears.getsockname()
        if kind != _ARPHRD_ETHER:
            raise DiagnoseError(f"{interface} is no Ethernet interface")
        hardware = bytes((secrets.randbelow(256) & 0xFC | 0x02, *secrets.token_bytes(5)))
        asker = Asker(hardware, _free(ears, own), our_hardware, own.ip.packed)
        injector = Injector(link.index)
        try:
            yield Outside(injector, ears, asker)
        finally:
            injector.close()


def _free(ears: socket.socket, own: IPv4Interface) -> bytes:
    """An address of that network that nobody answers ARP for. Raises DiagnoseError."""
    for candidate in _candidates(own):
        ears.send(_arp(ears.getsockname()[4], bytes(4), candidate.packed))
        end, taken = time.monotonic() + CLAIM_SECONDS, False
        while not taken and (left := end - time.monotonic()) > 0:
            if select.select([ears], [], [], left)[0]:
                with suppress(OSError):
                    packet = headers.parse(ears.recv(2048))
                    taken = isinstance(packet, ArpPacket) and packet.sender == str(candidate)
        if not taken:
            return candidate.packed
    raise DiagnoseError(f"no address of {own.network} was found that nobody has")


def _candidates(own: IPv4Interface) -> Iterator[IPv4Address]:
    last = int(own.network.broadcast_address) - 1
    for number in range(last, max(last - _CANDIDATES, int(own.network.network_address)), -1):
        if number != int(own.ip):
            yield IPv4Address(number)
