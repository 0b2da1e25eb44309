"""The headers of an Ethernet frame that carries IPv4 or IPv6: where from, where to, and what is inside. Pure.

Frames come from `edge.doctor.capture`, cut off where the capture cut them; `edge.doctor.conversation` reads what is
inside.
"""

from __future__ import annotations

import struct
from ipaddress import IPv6Address
from typing import NamedTuple

IPV4 = 0x0800
IPV6 = 0x86DD
ARP = 0x0806
_VLAN_TAGS = (0x8100, 0x88A8)
TCP, UDP = 6, 17


class Packet(NamedTuple):
    """An IP packet of TCP or UDP. `length` is that of the whole payload, `payload` what was captured of it."""

    protocol: int
    source: str
    source_port: int
    destination: str
    destination_port: int
    payload: bytes
    length: int


class ArpPacket(NamedTuple):
    """An ARP packet (RFC 826): a question, or an answer."""

    is_answer: bool
    sender_mac: str
    sender: str
    target: str


def parse(frame: bytes) -> Packet | ArpPacket | None:
    """What the frame holds; None where it is something else, or too short to tell."""
    at = 12
    kind = int.from_bytes(frame[at : at + 2], "big")
    while kind in _VLAN_TAGS:
        at += 4
        kind = int.from_bytes(frame[at : at + 2], "big")
    body = frame[at + 2 :]
    try:
        if kind == ARP:
            return _arp(body)
        if kind == IPV6:
            return _ipv6(body)
        return _ipv4(body) if kind == IPV4 else None
    except struct.error:
        return None


def _ipv4(body: bytes) -> Packet | None:
    version, total, fragment, protocol, source, destination = struct.unpack_from("!BxHxxHxBxx4s4s", body)
    if version >> 4 != 4 or fragment & 0x1FFF or protocol not in (TCP, UDP):
        return None
    return _packet(body, (version & 15) * 4, total, protocol, _dotted(source), _dotted(destination))


def _ipv6(body: bytes) -> Packet | None:
    """Without extension headers: a machine that boots sends none before UDP and TCP."""
    version, length, protocol, source, destination = struct.unpack_from("!B3xHBx16s16s", body)
    if version >> 4 != 6 or protocol not in (TCP, UDP):
        return None
    return _packet(body, 40, 40 + length, protocol, str(IPv6Address(source)), str(IPv6Address(destination)))


def _packet(body: bytes, at: int, total: int, protocol: int, source: str, destination: str) -> Packet:
    source_port, destination_port = struct.unpack_from("!HH", body, at)
    payload_at = at + (8 if protocol == UDP else (struct.unpack_from("!12xB", body, at)[0] >> 4) * 4)
    payload, length = body[payload_at:total], max(total - payload_at, 0)
    return Packet(protocol, source, source_port, destination, destination_port, payload, length)


def _arp(body: bytes) -> ArpPacket | None:
    hardware, protocol, operation, sender_mac, sender, target = struct.unpack_from("!HHxxH6s4s6x4s", body)
    if (hardware, protocol) != (1, IPV4) or operation not in (1, 2):
        return None
    return ArpPacket(operation == 2, sender_mac.hex(":"), _dotted(sender), _dotted(target))


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))
