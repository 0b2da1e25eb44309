"""Make `firmware.txt`: what real clients sent as DHCP, from packet captures (classic pcap, Ethernet).

    python tests/unit/dhcp/firmware/record_firmware.py DIRECTORY/*.pcap > tests/unit/dhcp/firmware/firmware.txt

One line a packet: the capture, source and destination port, and the UDP payload (deflate, base 64). Packets that differ
in nothing but transaction and seconds are kept once, and of the two that a load generator sends, one of each.
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

_PORTS = (67, 4011)


def payloads(capture: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Source port, destination port and payload of each UDP datagram in a pcap file."""
    order = "<" if capture[:4] == b"\xd4\xc3\xb2\xa1" else ">"
    at = 24
    while at + 16 <= len(capture):
        kept = struct.unpack_from(f"{order}8xI", capture, at)[0]
        frame = capture[at + 16 : at + 16 + kept]
        at += 16 + kept
        if frame[12:14] != b"\x08\x00" or len(frame) < 42 or frame[23] != 17:
            continue
        udp = 14 + (frame[14] & 15) * 4
        source, destination, length = struct.unpack_from("!HHH", frame, udp)
        if len(frame) >= udp + length:  # else the capture has only the beginning
            yield source, destination, frame[udp + 8 : udp + length]


def main() -> None:
    """The captures are the arguments."""
    seen = set()
    for name in sys.argv[1:]:
        path = Path(name)
        for source, destination, payload in payloads(path.read_bytes()):
            if destination not in _PORTS or payload[:1] != b"\x01":
                continue
            same = (source, destination, payload[:4] + payload[10:28] + payload[34:])
            if path.stem == "dhcpc-perfdhcp":  # each packet has another MAC; the message type tells the kind
                same = (source, destination, payload[236:243])
            if same not in seen:
                seen.add(same)
                packed = base64.b64encode(zlib.compress(payload, 9)).decode()
                print(path.stem, source, destination, packed)


main()
