"""DHCPv6 messages, options and relays as bytes, and the client's MAC that they state in one of several ways. Pure.

RFC 8415 sections 8, 9 and 21; RFC 5970 (boot), RFC 6939 (option 79), RFC 8357 (option 135). Nothing here is larger than
the datagram that it was read from, and the number of relays is limited before they are parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from tink.errors import TinkedgeError
from tink.mac import eui64_mac, guid_mac

SERVER_PORT: Final = 547
CLIENT_PORT: Final = 546
ALL_RELAYS_AND_SERVERS: Final = IPv6Address("ff02::1:2")
"""All_DHCP_Relay_Agents_and_Servers: RFC 8415 section 7.1."""
ALL_SERVERS: Final = IPv6Address("ff05::1:3")
"""All_DHCP_Servers, to which relays may send."""

MAX_MESSAGE_BYTES: Final = 4096
"""Size of the largest accepted message. A client's fits into a packet of 1280 bytes; each relay adds some dozens."""
MAX_RELAYS: Final = 8
"""HOP_COUNT_LIMIT, RFC 8415 section 7.6."""
MAX_IAS: Final = 8
"""Maximum number of identity associations that are answered in one message; a client has one or two."""

INFINITY: Final = 0xFFFFFFFF
_OPTION: Final = struct.Struct("!HH")

ENTERPRISE: Final = 343
"""Intel's number, which UEFI writes into option 16 (UEFI 2.10 section 24.7.3, EDK2 HttpBootDhcp6.c)."""


class MessageType6(IntEnum):
    """The message types of RFC 8415 section 7.3."""

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
    """IANA's codes of the options that this server reads or writes."""

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
    """The status codes of RFC 8415 section 21.13."""

    SUCCESS = 0
    NO_ADDRS_AVAIL = 2
    NO_BINDING = 3
    NOT_ON_LINK = 4
    USE_MULTICAST = 5
    NO_PREFIX_AVAIL = 6


RENEWALS: Final = frozenset({MessageType6.RENEW, MessageType6.REBIND})
"""The messages of a client that extends its lease."""


class ParseError(TinkedgeError, ValueError):
    """The bytes are no message; the text says where."""


Options = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Message6:
    """A client's message: its type, transaction id (three bytes) and options in their order."""

    type: MessageType6
    transaction: bytes
    options: Options

    def get(self, code: int) -> bytes | None:
        """Return the value of the first option of this code, or None."""
        for each, value in self.options:
            if each == code:
                return value
        return None

    def all(self, code: int) -> list[bytes]:
        """Return the values of all options of this code."""
        return [value for each, value in self.options if each == code]

    @property
    def requested(self) -> tuple[int, ...]:
        """The codes of its Option Request option (RFC 8415 section 21.7)."""
        value = self.get(Option.ORO) or b""
        return struct.unpack(f"!{len(value) // 2}H", value[: len(value) // 2 * 2])


@dataclass(frozen=True, slots=True)
class Relay:
    """One relay on the message's way (RFC 8415 section 9).

    interface_id: sent back unchanged.
    link_layer: option 79: hardware type (two bytes) and address of the client; empty if the relay does not state it.
    port: option 135, sent back unchanged: the source port of the relay below this one. A relay that sends it receives
        its reply at the port that it has sent from.
    """

    hop_count: int
    link: IPv6Address
    peer: IPv6Address
    interface_id: bytes | None
    link_layer: bytes
    port: bytes | None = None


class Received6(NamedTuple):
    """The sender of a message. `is_unicast` is False if it was sent to a group."""

    source: IPv6Address
    source_port: int
    is_unicast: bool = False


def parse(packet: bytes) -> tuple[Message6, tuple[Relay, ...]]:
    """Return the client's message and its relays, the one nearest to us first. Raises ParseError."""
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
        found.setdefault(code, value)  # the first one of a code counts
    inner = found.get(Option.RELAY_MSG)
    if inner is None:
        raise ParseError("a relay's message has nothing in it")
    interface_id, link_layer = found.get(Option.INTERFACE_ID), found.get(Option.CLIENT_LINKLAYER_ADDR, b"")
    link, peer, port = address_of(packet[2:18]), address_of(packet[18:34]), found.get(Option.RELAY_PORT)
    return Relay(packet[1], link, peer, interface_id, link_layer, port), inner


# A site has some dozens of relays. A flood of invented ones evicts others, and the cache does not grow.
@lru_cache(maxsize=1024)
def address_of(packed: bytes) -> IPv6Address:
    """Return the address of these sixteen bytes."""
    return IPv6Address(packed)


def is_local(address: IPv6Address) -> bool:
    """Return True if the address identifies no link, so it does not count as link-address (RFC 8415 section 19.1.1)."""
    return address.is_unspecified or address.is_link_local or address.is_loopback or address.is_multicast


def options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield code and value of the options of a message, or within an option. Raises ParseError."""
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
    """Return one encoded option. `value` has at most 65535 bytes."""
    return _OPTION.pack(code, len(value)) + value


def status(code: Status, message: str = "") -> bytes:
    """Return the Status Code option."""
    return option(Option.STATUS_CODE, struct.pack("!H", code) + message.encode())


def address(ip: IPv6Address, preferred: int, valid: int) -> bytes:
    """Return an IA Address option; the lifetimes are in seconds."""
    return option(Option.IAADDR, ip.packed + struct.pack("!II", preferred, valid))


def addresses_in(association: bytes) -> list[IPv6Address]:
    """Return the addresses that a client states in an IA_NA. Raises ParseError."""
    inner = options(association[12:])
    return [IPv6Address(value[:16]) for code, value in inner if code == Option.IAADDR and len(value) >= 24]


# Section 21.8: the client waits for no other server. The machine is registered here, and EDK2 would wait 5 s.
PREFERRED: Final = option(Option.PREFERENCE, b"\xff")


def message(kind: MessageType6, transaction: bytes, body: bytes) -> bytes:
    """Return a whole message of a server."""
    return bytes((kind,)) + transaction + body


def relayed(payload: bytes, relays: tuple[Relay, ...]) -> bytes:
    """Return the message for its way back through relays (RFC 8415 section 19.3, RFC 8357 section 5.2)."""
    # The relay nearest to us is the outermost one.
    for relay in reversed(relays):
        head = bytes((MessageType6.RELAY_REPL, relay.hop_count)) + relay.link.packed + relay.peer.packed
        interface = option(Option.INTERFACE_ID, relay.interface_id) if relay.interface_id is not None else b""
        port = option(Option.RELAY_PORT, relay.port) if relay.port is not None else b""
        payload = head + interface + port + option(Option.RELAY_MSG, payload)
    return payload


def classes(value: bytes) -> list[bytes]:
    """Return the whole classes of a User Class option, or of a Vendor Class option behind its enterprise number."""
    found, at = [], 0
    while at + 2 <= len(value):
        end = at + 2 + int.from_bytes(value[at : at + 2], "big")
        if end > len(value):
            break
        found.append(value[at + 2 : end])
        at = end
    return found


def domain(name: str) -> bytes:
    """Return a domain name in DNS encoding (RFC 1035 section 3.1); empty if the text can't be one."""
    labels = [label.encode("ascii", "ignore") for label in name.strip(".").split(".")]
    if not all(0 < len(label) <= 63 for label in labels):
        return b""
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


@lru_cache(maxsize=1024)
def text_of(address: bytes) -> str:
    """Return an address of sixteen bytes as text (RFC 5952)."""
    return str(IPv6Address(address))


# --- whose message it is ------------------------------------------------------------------------------------------
#
# One boot has several DUIDs and IAIDs (firmware and iPXE even write the machine's UUID in different byte orders), so
# neither can identify a machine. These can, the most trustworthy first:
#
# 1. The first relay states the client's link-layer address (RFC 6939, option 79).
# 2. The client's link-local address is made of its MAC (RFC 4291 appendix A). It is the packet's source or, behind
#    relays, the `peer-address` of the first relay. All boot programs have such an address.
# 3. The neighbour table has the MAC of this link-local address, for systems that make up theirs (RFC 7217).
# 4. The DUID contains a link-layer address (RFC 8415 sections 11.2 and 11.4), which may be another card's.
#
# An InfiniBand port has no MAC: a Hardware names it by the one that is made of its GUID, the end of its address.

_ETHERNET = b"\x00\x01"
_INFINIBAND = b"\x00\x20"

Neighbour6 = Callable[[str], str | None]
"""Returns the MAC of the host with a link-local address on the interface, or None if it is not known."""


def mac_of(
    message: Message6, relays: tuple[Relay, ...], received: Received6, neighbour: Neighbour6 = lambda _: None
) -> str | None:
    """Return the MAC of the client, in lower case with colons, or None if it is not known."""
    at = received.source
    if relays:
        first = relays[-1]
        if (mac := _mac_of_address(first.link_layer)) is not None:
            return mac
        at = first.peer
    if at.is_link_local:
        mac = eui64_mac(at) or (None if relays else neighbour(str(at)))
        if mac is not None:
            return mac
    return of_duid(message.get(Option.CLIENTID) or b"")


def is_mac(link_layer: bytes) -> bool:
    """Return True if these are the hardware type and address of an Ethernet card (the value of option 79)."""
    return len(link_layer) == 8 and link_layer[:2] == _ETHERNET


def of_duid(duid: bytes) -> str | None:
    """Return the MAC in a DUID that contains a link-layer address, or None."""
    if duid[:2] == b"\x00\x03":
        return _mac_of_address(duid[2:])
    if duid[:2] == b"\x00\x01":
        return _mac_of_address(duid[2:4] + duid[8:])
    return None


def is_of_infiniband(link_layer: bytes) -> bool:
    """Return True if these are the hardware type and address of an InfiniBand port: a GUID, or ending with one."""
    return link_layer[:2] == _INFINIBAND and len(link_layer) in (10, 22)


def _mac_of_address(link_layer: bytes) -> str | None:
    """Return the MAC of a hardware type (two bytes) and address; None if it is of another kind of network."""
    if is_of_infiniband(link_layer):
        return guid_mac(link_layer[-8:]).hex(":")
    return link_layer[2:].hex(":") if is_mac(link_layer) else None
