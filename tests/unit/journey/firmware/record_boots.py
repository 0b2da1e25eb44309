"""Make `boots.txt`: when real firmware asked for what, from packet captures (classic pcap, Ethernet), one boot each.

    python tests/unit/journey/firmware/record_boots.py DIRECTORY/*.pcap > tests/unit/journey/firmware/boots.txt

A line for each thing that a machine sends which a server of ours would tell of, and for the end of each transfer: the
capture, milliseconds since its first packet, and then

    dhcp PORT PAYLOAD        to port 67 or 4011 (deflate, base 64)
    tftp begun|ended|aborted|missing NAME
    http METHOD PATH STATUS  as the server of then answered

TFTP's data and HTTP's bodies are not kept: of a transfer, the first and the last packet of the machine count.
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

_UDP, _TCP = 17, 6
_RRQ, _ERROR = b"\0\1", b"\0\5"
_NOT_FOUND = 1


def packets(capture: bytes) -> Iterator[tuple[float, int, tuple[bytes, int], tuple[bytes, int], bytes]]:
    """Seconds, protocol, source, destination and payload of each IPv4 packet of a pcap file."""
    order = "<" if capture[:4] == b"\xd4\xc3\xb2\xa1" else ">"
    at = 24
    while at + 16 <= len(capture):
        seconds, micros, kept = struct.unpack_from(f"{order}III", capture, at)
        frame = capture[at + 16 : at + 16 + kept]
        at += 16 + kept
        if frame[12:14] != b"\x08\x00" or len(frame) < 42 or frame[23] not in (_UDP, _TCP):
            continue
        head = 14 + (frame[14] & 15) * 4
        source, destination = struct.unpack_from("!HH", frame, head)
        payload = frame[head + 8 :] if frame[23] == _UDP else frame[head + (frame[head + 12] >> 4) * 4 :]
        if frame[23] == _UDP:
            payload = payload[: struct.unpack_from("!H", frame, head + 4)[0] - 8]
        yield seconds + micros / 1e6, frame[23], (frame[26:30], source), (frame[30:34], destination), payload


class Boot:
    """The lines of one capture."""

    def __init__(self, capture: bytes) -> None:
        self.lines: list[tuple[float, str]] = []
        self._transfers: dict[tuple[bytes, int], list[object]] = {}  # by the machine's port: name, last time, how
        self._asked: dict[tuple[bytes, int], tuple[float, str]] = {}
        for packet in packets(capture):
            (self._udp if packet[1] == _UDP else self._tcp)(*packet)
        for name, last, how in self._transfers.values():
            self.lines.append((float(str(last)), f"tftp {how} {name}"))
        self.lines += [(at, f"{asked} 0") for at, asked in self._asked.values()]

    def _udp(self, at: float, _: int, source: tuple[bytes, int], to: tuple[bytes, int], payload: bytes) -> None:
        if to[1] in (67, 4011) and payload[:1] == b"\x01" and payload.rstrip(b"\0")[-1:] == b"\xff":  # the whole of it
            packed = base64.b64encode(zlib.compress(payload, 9)).decode()
            self.lines.append((at, f"dhcp {to[1]} {packed}"))
        elif to[1] == 69 and payload[:2] == _RRQ and source not in self._transfers:
            name = payload[2:].split(b"\0")[0].decode()
            self._transfers[source] = [name, at, "ended"]
            self.lines.append((at, f"tftp begun {name}"))
        elif source in self._transfers:
            self._transfers[source][1] = at
            if payload[:2] == _ERROR:
                self._transfers[source][2] = "aborted"
        elif to in self._transfers and payload[:2] == _ERROR:
            self._transfers[to][1:] = [at, "missing" if payload[3] == _NOT_FOUND else "aborted"]

    def _tcp(self, at: float, _: int, source: tuple[bytes, int], to: tuple[bytes, int], payload: bytes) -> None:
        words = payload.split(b"\r\n")[0].decode("latin-1").split()
        if len(words) == 3 and words[2].startswith("HTTP/1"):
            self._asked[source] = at, f"http {words[0]} {words[1].split('?')[0]}"
        elif words and words[0].startswith("HTTP/1") and to in self._asked:
            began, asked = self._asked.pop(to)
            self.lines.append((began, f"{asked} {words[1]}"))


def main() -> None:
    """The captures are the arguments."""
    for name in sys.argv[1:]:
        boot = Boot(Path(name).read_bytes())
        lines = sorted(boot.lines)
        for at, line in lines:
            print(Path(name).stem, round((at - lines[0][0]) * 1000), line)


main()
