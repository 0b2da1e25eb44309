"""LLDP (IEEE 802.1AB): which port of which switch each network card is connected to.

`neighbour_of` reads a frame and `Neighbours` keeps what was received; both are pure. `LldpListener` receives frames
by AF_PACKET. Frames come from the network and are hostile: every length is checked, texts are cut off, and the numbers
of cards and of neighbours are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from tink.api.inventory import clean_text

log = logging.getLogger(__name__)

ETHERTYPE: Final = 0x88CC
GROUPS: Final = tuple(bytes.fromhex(f"0180c20000{last}") for last in ("0e", "03", "00"))
"""Nearest bridge, nearest non-TPMR bridge, nearest customer bridge (IEEE 802.1AB-2016 table 7-1)."""
FRAME_BYTES: Final = 1600
MAX_TLVS: Final = 128
MAX_CARDS: Final = 64
MAX_NEIGHBOURS_PER_CARD: Final = 8
MAX_FRAMES_A_SECOND: Final = 32
"""Frames that are read at once from one card. After them the card rests for a second."""
PRESENT_SECONDS: Final = 65.0
"""A neighbour that was silent for longer yields to one that sends: the cable has moved. Switches send every 30 s."""

_ETHERNET_HEADER: Final = 14

_PORT_VLAN: Final = b"\x00\x80\xc2\x01"  # IEEE 802.1Q annex D.2.1: port VLAN ID
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_MR_MULTICAST, _PACKET_OUTGOING = 263, 1, 0, 4


@dataclass(frozen=True, slots=True)
class LldpNeighbour:
    """The port of a switch.

    facts: in the shape of `tink.api.v1alpha2.LldpNeighbour`, at least with chassisID and portID.
    ttl: seconds for which the information is valid; 0: the switch closes the port.
    """

    facts: dict[str, Any]
    ttl: int

    @property
    def key(self) -> tuple[str, str]:
        """The chassis and its port, which identify a neighbour (section 6.3)."""
        return self.facts["chassisID"], self.facts["portID"]


def neighbour_of(frame: bytes) -> LldpNeighbour | None:
    """Return the neighbour that sent an Ethernet frame; None if the frame has no valid LLDPDU (section 9.2.7)."""
    if frame[12:_ETHERNET_HEADER] != ETHERTYPE.to_bytes(2, "big"):
        return None
    chassis = port = ""
    ttl: int | None = None
    optional: dict[str, Any] = {}
    for number, (kind, value) in enumerate(_tlvs(frame[_ETHERNET_HEADER:])):
        if number < 3 and kind != number + 1:  # the first three are mandatory and in this order (section 9.2.7.7.1)
            return None
        match kind:
            case 1:
                chassis = _identifier(value, mac=4, network=5)
            case 2:
                port = _identifier(value, mac=3, network=4)
            case 3:
                ttl = int.from_bytes(value[:2], "big") if len(value) >= 2 else None
            case 4:
                optional["portDescription"] = clean_text(value.decode(errors="replace"))
            case 5:
                optional["systemName"] = clean_text(value.decode(errors="replace"))
            case 127 if value.startswith(_PORT_VLAN) and len(value) == 6:
                # 0: the port has no untagged VLAN. 0xFFF is reserved.
                vlan = int.from_bytes(value[4:], "big")
                optional["vlanID"] = vlan if vlan < 0xFFF else 0
    if not chassis or not port or ttl is None:
        return None
    facts = {"chassisID": chassis, "portID": port} | {name: value for name, value in optional.items() if value}
    return LldpNeighbour(facts, ttl)


def _tlvs(unit: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield types and values (section 8.4) up to the end of the LLDPDU, or to the first that is cut off."""
    position = 0
    for _ in range(MAX_TLVS):
        if len(unit) < position + 2:
            return
        kind, size = unit[position] >> 1, int.from_bytes(unit[position : position + 2], "big") & 0x1FF
        value = unit[position + 2 : position + 2 + size]
        if kind == 0 or len(value) < size:
            return
        yield kind, value
        position += 2 + size


def _identifier(value: bytes, *, mac: int, network: int) -> str:
    """Return a chassis ID or port ID as text; `mac` and `network` are the subtypes of addresses (8.5.2, 8.5.3)."""
    subtype, octets = value[:1], value[1:]
    if subtype == bytes((mac,)):
        return octets.hex(":") if len(octets) == 6 else ""
    if subtype == bytes((network,)):
        # The first byte is the IANA address family: 1 is IPv4, 2 is IPv6.
        if octets[:1] == b"\x01" and len(octets) == 5:
            return str(IPv4Address(octets[1:]))
        return str(IPv6Address(octets[1:])) if octets[:1] == b"\x02" and len(octets) == 17 else octets.hex(":")
    return clean_text(octets.decode(errors="replace"))


@dataclass(slots=True)
class _Received:
    neighbour: LldpNeighbour
    first: float
    last: float


class Neighbours:
    """The neighbours of all cards. Pure; times are in seconds of one clock."""

    def __init__(self) -> None:
        self._cards: dict[str, dict[tuple[str, str], _Received]] = {}

    def receive(self, card: str, frame: bytes, now: float) -> bool:
        """Store the neighbour that sent a frame. Return True if the frame is valid LLDP."""
        neighbour = neighbour_of(frame)
        if neighbour is None or (card not in self._cards and len(self._cards) >= MAX_CARDS):
            return False
        known = self._cards.setdefault(card, {})
        if neighbour.ttl == 0:
            known.pop(neighbour.key, None)
            return True
        entry = known.get(neighbour.key)
        if entry is None and len(known) >= MAX_NEIGHBOURS_PER_CARD:
            del known[min(known, key=lambda key: known[key].last)]
        known[neighbour.key] = _Received(neighbour, entry.first if entry is not None else now, now)
        return True

    def present(self, now: float) -> dict[str, dict[str, Any]]:
        """Return the neighbour of each card that has one.

        Of several the one that sent first counts, while it sends: two switches on a hub do not take turns.
        """
        found = {}
        for card, known in self._cards.items():
            for key in [key for key, each in known.items() if now >= each.last + each.neighbour.ttl]:
                del known[key]
            if known:
                first = min(known.values(), key=lambda each: (now > each.last + PRESENT_SECONDS, each.first))
                found[card] = first.neighbour.facts
        return found


class LldpListener:
    """Receives the LLDP frames of cards. Use it in one event loop, and close it."""

    def __init__(self, on_frame: Callable[[str, bytes], None]) -> None:
        """`on_frame` is called with the name of the card and each frame that arrives there."""
        self._on_frame = on_frame
        self._sockets: dict[str, socket.socket] = {}

    def listen(self, cards: Iterable[str]) -> None:
        """Receive at these cards, too. A card that can't be opened is logged, and left out.

        Each card has its own socket: the kernel delivers frames of a bond's or bridge's port only to such sockets.
        """
        loop = asyncio.get_running_loop()
        for card in cards:
            if card not in self._sockets and len(self._sockets) < MAX_CARDS:
                try:
                    self._sockets[card] = opened = _open(card)
                except OSError as error:
                    log.info("inventory: no LLDP on %s: %s", card, error.strerror)
                    continue
                loop.add_reader(opened, self._readable, card, opened)

    def close(self) -> None:
        """Close all sockets; the kernel then leaves the multicast groups."""
        loop = asyncio.get_running_loop()
        for opened in self._sockets.values():
            loop.remove_reader(opened)
            opened.close()
        self._sockets.clear()

    def _readable(self, card: str, opened: socket.socket) -> None:
        for _ in range(MAX_FRAMES_A_SECOND):
            try:
                frame, address = opened.recvfrom(FRAME_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # ENETDOWN: the card was set down, and may come up again
                log.debug("inventory: LLDP on %s: %s", card, error.strerror)
                return
            if address[2] != _PACKET_OUTGOING:
                self._on_frame(card, frame)
        # More frames than any switch sends: the kernel drops what its buffer does not hold meanwhile.
        loop = asyncio.get_running_loop()
        loop.remove_reader(opened)
        loop.call_later(1.0, self._resume, card, opened)

    def _resume(self, card: str, opened: socket.socket) -> None:
        if self._sockets.get(card) is opened:
            asyncio.get_running_loop().add_reader(opened, self._readable, card, opened)


def _open(card: str) -> socket.socket:
    """Return a socket for the LLDP frames of a card. Raises OSError."""
    index = socket.if_nametoindex(card)
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0: receives nothing before it is bound
    try:
        opened.setblocking(False)
        for group in GROUPS:
            membership = struct.pack("iHH8s", index, _PACKET_MR_MULTICAST, len(group), group)
            with suppress(OSError):  # a card without filters receives the frames anyway
                opened.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        opened.bind((card, ETHERTYPE))
    except OSError:
        opened.close()
        raise
    return opened
