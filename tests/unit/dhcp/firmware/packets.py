"""Packets of real clients (`firmware.txt`, made by `record_firmware.py`), parsed and built without our codec."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from pathlib import Path

SERVER, ADDRESS = "10.77.0.1", "10.77.0.58"
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
MAGIC = bytes.fromhex("63825363")


@dataclass(frozen=True)
class Packet:
    capture: str
    source_port: int
    port: int
    payload: bytes

    @property
    def kind(self) -> int:
        return self.option(53)[0]

    @property
    def mac(self) -> str:
        return self.payload[28:34].hex(":")

    def option(self, code: int) -> bytes:
        return options_of(self.payload).get(code, b"")

    def changed(self, **fields: bytes) -> Packet:
        """With other options: `o53=b"..."`; an empty value takes it away."""
        options = options_of(self.payload)
        options.update({int(name[1:]): value for name, value in fields.items()})
        body = b"".join(bytes((code, len(value))) + value for code, value in options.items() if value)
        return Packet(self.capture, self.source_port, self.port, self.payload[:240] + body + b"\xff")

    def of(self, mac: str) -> Packet:
        payload = self.payload[:28] + bytes.fromhex(mac.replace(":", "")) + self.payload[34:]
        return Packet(self.capture, self.source_port, self.port, payload)


def options_of(payload: bytes) -> dict[int, bytes]:
    """The first instance of each option."""
    assert payload[236:240] == MAGIC
    found: dict[int, bytes] = {}
    at = 240
    while payload[at] != 255:
        if payload[at] == 0:
            at += 1
            continue
        end = at + 2 + payload[at + 1]
        assert end < len(payload), "an option runs over the end of the packet"
        found.setdefault(payload[at], payload[at + 2 : end])
        at = end
    return found


def ip(four: bytes) -> str:
    return ".".join(map(str, four))


def _recorded(capture: str, source: str, destination: str, packed: str) -> Packet:
    return Packet(capture, int(source), int(destination), zlib.decompress(base64.b64decode(packed)))


CAPTURES = [_recorded(*line.split()) for line in (Path(__file__).parent / "firmware.txt").read_text().splitlines()]


def starting(vendor_class: bytes, *, ipxe: bool | None = None) -> list[Packet]:
    """The DISCOVERs of one kind of firmware."""
    begun = [each for each in CAPTURES if each.kind == DISCOVER and each.option(60).startswith(vendor_class)]
    return [each for each in begun if ipxe is None or bool(each.option(175)) is ipxe]


ROMS = starting(b"PXEClient", ipxe=False)
HTTP_ROMS = starting(b"HTTPClient")
IPXES = starting(b"PXEClient", ipxe=True)


def ids(packets: list[Packet]) -> list[str]:
    return [f"{number}-{packet.capture}" for number, packet in enumerate(packets)]
