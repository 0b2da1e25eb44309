"""The headers of an Ethernet frame that carries IPv4: where from, where to, and what is inside. Pure.

Frames come from `edge.diagnose.capture`, cut off where the capture cut them; `edge.diagnose.conversation` reads what is
inside.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

IPV4 = 0x0800
ARP = 0x0806
_VLAN_TAGS = (0x8100, 0x88A8)
TCP, UDP = 6, 17


class Packet(NamedTuple):
    """An IPv4 packet of TCP or UDP. `length` is that of the whole payload, `payload` what was captured of it."""

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
        return _ipv4(body) if kind == IPV4 else None
    except struct.error:
        return None


def _ipv4(body: bytes) -> Packet | None:
    version, total, fragment, protocol, source, destination = struct.unpack_from("!BxHxxHxBxx4s4s", body)
    if version >> 4 != 4 or fragment & 0x1FFF or protocol not in (TCP, UDP):
        return None
    at = (version & 15) * 4
    source_port, destination_port = struct.unpack_from("!HH", body, at)
    payload_at = at + (8 if protocol == UDP else (struct.unpack_from("!12xB", body, at)[0] >> 4) * 4)
    return Packet(
        protocol,
        _dotted(source),
        source_port,
        _dotted(destination),
        destination_port,
        body[payload_at:total],
        max(total - payload_at, 0),
    )


def _arp(body: bytes) -> ArpPacket | None:
    hardware, protocol, operation, sender_mac, sender, target = struct.unpack_from("!HHxxH6s4s6x4s", body)
    if (hardware, protocol) != (1, IPV4) or operation not in (1, 2):
        return None
    return ArpPacket(operation == 2, sender_mac.hex(":"), _dotted(sender), _dotted(target))


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))
