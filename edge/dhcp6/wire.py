"""DHCPv6 messages and options as bytes. Pure.

RFC 8415 sections 8, 9 and 21; RFC 5970 (boot), RFC 6939 (option 79), RFC 8357 (option 135).

Nothing here is larger than the datagram that it was read from, and relays are counted before they are opened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

MAX_MESSAGE_BYTES: Final = 4096
"""What is longer is none of a client's: one fits into a packet of 1280 bytes, and each relay adds some dozens."""
MAX_RELAYS: Final = 8
"""HOP_COUNT_LIMIT, RFC 8415 section 7.6."""
MAX_IAS: Final = 8
"""Identity associations that one message is answered for: a client has one or two."""

INFINITY: Final = 0xFFFFFFFF
_OPTION: Final = struct.Struct("!HH")

ENTERPRISE: Final = 343
"""Intel's number, which UEFI writes into option 16 (UEFI 2.10 section 24.7.3, EDK2 HttpBootDhcp6.c)."""


class MessageType6(IntEnum):
    """RFC 8415 section 7.3."""

    SOLICIT = 1
    ADVERTISE = 2
    REQUEST = 3
    CONFIRM = 4
    RENEW = 5
    REBIND = 6
    REPLY = 7
    RELEASE = 8
    DECLINE = 9
    RECONFIGURE = 10
    INFORMATION_REQUEST = 11
    RELAY_FORW = 12
    RELAY_REPL = 13


class Option(IntEnum):
    """IANA's codes, of the options that are read or written here."""

    CLIENTID = 1
    SERVERID = 2
    IA_NA = 3
    IA_TA = 4
    IAADDR = 5
    ORO = 6
    PREFERENCE = 7
    ELAPSED_TIME = 8
    RELAY_MSG = 9
    STATUS_CODE = 13
    RAPID_COMMIT = 14
    USER_CLASS = 15
    VENDOR_CLASS = 16
    INTERFACE_ID = 18
    DNS_SERVERS = 23
    DOMAIN_LIST = 24
    IA_PD = 25
    BOOTFILE_URL = 59
    CLIENT_ARCH_TYPE = 61
    NII = 62
    CLIENT_LINKLAYER_ADDR = 79
    RELAY_PORT = 135


class Status(IntEnum):
    """RFC 8415 section 21.13."""

    SUCCESS = 0
    NO_ADDRS_AVAIL = 2
    NO_BINDING = 3
    NOT_ON_LINK = 4
    USE_MULTICAST = 5
    NO_PREFIX_AVAIL = 6


RENEWALS: Final = frozenset({MessageType6.RENEW, MessageType6.REBIND})
"""The messages of a client that has its address."""


class ParseError(ValueError):
    """Bytes that are no message; the text says where."""


Options = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Message6:
    """A client's message: its type, transaction id (three bytes) and options in their order."""

    type: MessageType6
    transaction: bytes
    options: Options

    def get(self, code: int) -> bytes | None:
        """The first option of this code."""
        for each, value in self.options:
            if each == code:
                return value
        return None

    def all(self, code: int) -> list[bytes]:
        """All options of this code."""
        return [value for each, value in self.options if each == code]

    @property
    def requested(self) -> tuple[int, ...]:
        """The codes of its Option Request option (RFC 8415 section 21.7)."""
        value = self.get(Option.ORO) or b""
        return struct.unpack(f"!{len(value) // 2}H", value[: len(value) // 2 * 2])


@dataclass(frozen=True, slots=True)
class Relay:
    """One relay on the message's way: RFC 8415 section 9. `interface_id` and `port` are to be sent back as they are."""

    hop_count: int
    link: IPv6Address
    peer: IPv6Address
    interface_id: bytes | None
    link_layer: bytes
    """Option 79: hardware type (two bytes) and address; empty where the relay says none."""
    port: bytes | None = None
    """Option 135: the port of the relay below this one; this one is answered at the port that it has sent from."""


def parse(packet: bytes) -> tuple[Message6, tuple[Relay, ...]]:
    """The client's message and the relays that it came through, the nearest to us first. Raises ParseError."""
    if len(packet) > MAX_MESSAGE_BYTES:
        raise ParseError(f"it has {len(packet)} bytes, more than {MAX_MESSAGE_BYTES}")
    relays: list[Relay] = []
    while packet[:1] == bytes((MessageType6.RELAY_FORW,)):
        if len(relays) == MAX_RELAYS:
            raise ParseError(f"it came through more than {MAX_RELAYS} relays")
        relay, packet = _relay(packet)
        relays.append(relay)
    if len(packet) < 4:
        raise ParseError("it has less than four bytes")
    try:
        kind = MessageType6(packet[0])
    except ValueError:
        raise ParseError(f"message type {packet[0]} is unknown") from None
    return Message6(kind, packet[1:4], tuple(options(packet[4:]))), tuple(relays)


def _relay(packet: bytes) -> tuple[Relay, bytes]:
    if len(packet) < 34:
        raise ParseError("a relay's message is cut off")
    found: dict[int, bytes] = {}
    for code, value in options(packet[34:]):
        found.setdefault(code, value)  # the first counts
    inner = found.get(Option.RELAY_MSG)
    if inner is None:
        raise ParseError("a relay's message has nothing in it")
    interface_id, link_layer = found.get(Option.INTERFACE_ID), found.get(Option.CLIENT_LINKLAYER_ADDR, b"")
    link, peer, port = address_of(packet[2:18]), address_of(packet[18:34]), found.get(Option.RELAY_PORT)
    return Relay(packet[1], link, peer, interface_id, link_layer, port), inner


@lru_cache(maxsize=1024)  # a site has some dozens of relays; a flood of invented ones evicts, never grows
def address_of(packed: bytes) -> IPv6Address:
    """The address of these sixteen bytes, made once."""
    return IPv6Address(packed)


def is_local(address: IPv6Address) -> bool:
    """Whether it says no link: as a relay's link-address it does not count (RFC 8415 section 19.1.1)."""
    return address.is_unspecified or address.is_link_local or address.is_loopback or address.is_multicast


def options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The options of a message or within an option. Raises ParseError."""
    at, end = 0, len(data)
    while at < end:
        if at + 4 > end:
            raise ParseError("an option is cut off")
        code, length = _OPTION.unpack_from(data, at)
        at += 4
        if at + length > end:
            raise ParseError(f"option {code} is cut off")
        yield code, data[at : at + length]
        at += length


def option(code: int, value: bytes) -> bytes:
    """One option, encoded. `value` has at most 65535 bytes."""
    return _OPTION.pack(code, len(value)) + value


def status(code: Status, message: str = "") -> bytes:
    """The Status Code option."""
    return option(Option.STATUS_CODE, struct.pack("!H", code) + message.encode())


def address(ip: IPv6Address, preferred: int, valid: int) -> bytes:
    """An IA Address option; lifetimes in seconds."""
    return option(Option.IAADDR, ip.packed + struct.pack("!II", preferred, valid))


def addresses_in(association: bytes) -> list[IPv6Address]:
    """The addresses that a client names in an IA_NA. Raises ParseError."""
    inner = options(association[12:])
    return [IPv6Address(value[:16]) for code, value in inner if code == Option.IAADDR and len(value) >= 24]


PREFERRED: Final = option(Option.PREFERENCE, b"\xff")
"""Section 21.8: whoever hears it waits for no other server. The machine is registered here, and EDK2 would wait 5 s."""


def message(kind: MessageType6, transaction: bytes, body: bytes) -> bytes:
    """A whole message of a server."""
    return bytes((kind,)) + transaction + body


def relayed(payload: bytes, relays: tuple[Relay, ...]) -> bytes:
    """The same on its way back through relays: RFC 8415 section 19.3, RFC 8357 section 5.2. The nearest to us is the
    outermost.
    """
    for relay in reversed(relays):
        head = bytes((MessageType6.RELAY_REPL, relay.hop_count)) + relay.link.packed + relay.peer.packed
        interface = option(Option.INTERFACE_ID, relay.interface_id) if relay.interface_id is not None else b""
        port = option(Option.RELAY_PORT, relay.port) if relay.port is not None else b""
        payload = head + interface + port + option(Option.RELAY_MSG, payload)
    return payload


def classes(value: bytes) -> list[bytes]:
    """The texts of a User Class option, or of a Vendor Class option behind its number; what is cut off is left out."""
    found, at = [], 0
    while at + 2 <= len(value):
        end = at + 2 + int.from_bytes(value[at : at + 2], "big")
        if end > len(value):
            break
        found.append(value[at + 2 : end])
        at = end
    return found


def domain(name: str) -> bytes:
    """A domain name as in DNS (RFC 1035 section 3.1); empty where it can't be one."""
    labels = [label.encode("ascii", "ignore") for label in name.strip(".").split(".")]
    if not all(0 < len(label) <= 63 for label in labels):
        return b""
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
