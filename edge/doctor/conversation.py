"""What one machine and the servers say to each other: a line for each packet that decides something. Pure.

Frames of `edge.doctor.capture` go in, in the order of their arrival, lines come out. Of a TFTP transfer, the request,
the agreed options, the first and the last block and errors are told; of HTTP, what is asked and how it is answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge.doctor import dhcp_words, headers
from edge.doctor.headers import ArpPacket, Packet
from tink.limits.newest import Newest
from tink.net.addresses import join_host_port

_DHCP_PORTS: Final = frozenset({67, 68, 4011})
_TFTP_PORT: Final = 69
_RRQ, _WRQ, _DATA, _ACK, _ERROR, _OACK = 1, 2, 3, 4, 5, 6
_MAX_TRANSFERS = 64
_SHOWN = 200

_HTTP_HEADERS = re.compile(
    rb"\r\n(Content-Length|Content-Type|Content-Range|Range|Location|User-Agent): *([^\r\n]{0,100})", re.IGNORECASE
)
_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT) [^\r\n]*|HTTP/1\.[^\r\n]*")

_Place = tuple[str, int]


@dataclass(slots=True)
class _Transfer:
    """A TFTP transfer, as far as it was seen. `acknowledged` counts blocks, beyond 65535 too."""

    name: str
    began: float
    block_bytes: int = 512
    acknowledged: int = 0
    blocks: int = 0
    size: int = 0


class Conversation:
    """Reads the frames of one machine."""

    def __init__(self, other: Callable[[bytes], str] = lambda _: "") -> None:
        """`other` puts a frame into words that nothing here knows; "" says nothing about it."""
        self._other = other
        self._transfers: Newest[_Place, _Transfer] = Newest(_MAX_TRANSFERS)

    def lines(self, time: float, frame: bytes) -> list[str]:
        """What to say of a frame that was seen at `time` (seconds); often nothing. Never raises on what it holds."""
        match headers.parse(frame):
            case ArpPacket() as arp:
                return [_arp(arp)]
            case Packet() as packet if packet.protocol == headers.UDP:
                found = self._udp(time, packet)
            case Packet() as packet:
                found = _tcp(packet)
            case _:
                found = None
        if found is None:
            words = self._other(frame)
            return [words] if words else []
        return found

    def _udp(self, time: float, packet: Packet) -> list[str] | None:
        if packet.source_port in _DHCP_PORTS or packet.destination_port in _DHCP_PORTS:
            return [f"{_way(packet)} {dhcp_words.describe(packet.payload)}"]
        if len(packet.payload) < 4:
            return None
        operation = int.from_bytes(packet.payload[:2], "big")
        if packet.destination_port == _TFTP_PORT and operation in (_RRQ, _WRQ):
            return [self._request(time, packet, operation)]
        for place, by_client in (
            ((packet.source, packet.source_port), True),
            ((packet.destination, packet.destination_port), False),
        ):
            transfer = self._transfers.get(place)
            if transfer is not None:
                return [f"{_way(packet)} {line}" for line in self._part(time, packet, place, transfer, by_client)]
        return None

    def _request(self, time: float, packet: Packet, operation: int) -> str:
        name, _mode, *asked = [_text(part) for part in packet.payload[2:].removesuffix(b"\0").split(b"\0")] + [""] * 2
        place = packet.source, packet.source_port
        self._transfers[place] = _Transfer(name, time)
        return f'{_way(packet)} TFTP {"reads" if operation == _RRQ else "WRITES"} "{name}"{_pairs(asked)}'

    def _part(self, time: float, packet: Packet, place: _Place, transfer: _Transfer, by_client: bool) -> list[str]:
        operation, number = (int.from_bytes(packet.payload[at : at + 2], "big") for at in (0, 2))
        if operation == _ERROR:
            del self._transfers[place]
            return [f'TFTP error {number} "{_text(packet.payload[4:].partition(bytes(1))[0])}", {transfer.name}']
        if operation == _OACK:
            agreed = [_text(part) for part in packet.payload[2:].removesuffix(b"\0").split(b"\0")]
            for option, value in zip(agreed[::2], agreed[1::2], strict=False):
                if option.lower() == "blksize" and value.isdigit():
                    transfer.block_bytes = max(int(value), 1)
            return [f"TFTP agrees to{_pairs(agreed)}"]
        if operation == _DATA and not by_client:
            return _block(packet, transfer, number)
        if operation == _ACK and by_client:
            ahead = (number - transfer.acknowledged) & 0xFFFF
            if ahead < 0x8000:
                transfer.acknowledged += ahead
            if transfer.blocks and transfer.acknowledged >= transfer.blocks:
                del self._transfers[place]
                took = time - transfer.began
                return [f"TFTP has all of {transfer.name}: {transfer.size} bytes in {took:.3f} s"]
        return []


def _block(packet: Packet, transfer: _Transfer, number: int) -> list[str]:
    """The first block and the last. A window that the kernel cuts into packets only later comes here in one piece."""
    whole = transfer.block_bytes + 4
    if packet.length % whole and packet.length < 65000:
        short = max(packet.length % whole - 4, 0)
        # The number is that of the first block in this piece; blocks are counted on from what is acknowledged.
        first = transfer.acknowledged + ((number - transfer.acknowledged) & 0xFFFF)
        again = transfer.blocks > 0
        transfer.blocks = first + packet.length // whole
        transfer.size = (transfer.blocks - 1) * transfer.block_bytes + short
        return [f"TFTP last block {transfer.blocks}, {short} bytes{' (again)' if again else ''}"]
    if number == 1 and transfer.acknowledged == 0:
        return [f"TFTP first block, {transfer.block_bytes} bytes"]
    return []


def _tcp(packet: Packet) -> list[str] | None:
    if packet.payload.startswith(b"PRI * HTTP/2"):
        return [f"{_way(packet)} HTTP/2 connection (gRPC)"]
    found = _HTTP.match(packet.payload)
    if found is None:
        return None
    head = packet.payload.partition(b"\r\n\r\n")[0]
    details = [f"{_text(name).lower()} {_text(value)}" for name, value in _HTTP_HEADERS.findall(head)]
    return [f"{_way(packet)} {_text(found[0])}" + (f" ({', '.join(details)})" if details else "")]


def _arp(packet: ArpPacket) -> str:
    if packet.is_answer:
        return f"ARP {packet.sender} is at {packet.sender_mac}"
    if packet.sender == "0.0.0.0":  # noqa: S104 - RFC 5227 section 1.1
        return f"ARP probe: does anybody have {packet.target}? ({packet.sender_mac})"
    if packet.sender == packet.target:
        return f"ARP {packet.sender_mac} announces {packet.sender}"
    return f"ARP who has {packet.target}? asks {packet.sender} ({packet.sender_mac})"


def _way(packet: Packet) -> str:
    ends = (packet.source, packet.source_port), (packet.destination, packet.destination_port)
    return " > ".join(join_host_port(*end) for end in ends)


def _pairs(words: list[str]) -> str:
    return "".join(f" {name}={value}" for name, value in zip(words[::2], words[1::2], strict=False) if name)


def _text(value: bytes) -> str:
    shown = re.sub(rb"[^ -~]", b"?", value[:_SHOWN]).decode()
    return shown if len(value) <= _SHOWN else f"{shown}..."
