"""Replies put together from encoded parts, within the size that the client takes. Pure.

Nothing is dropped where there is room. Where there is not, what only repeats the header goes first, then what the
client asked for last, then the echoes; what a machine can't boot or work without goes never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from edge.dhcp import codec, options
from edge.dhcp.boot import Boot
from edge.dhcp.codec import Message

# RFC 2132 section 9.10: 576 is the least that every client takes. Whether the size counts the IP and UDP headers is
# read both ways; counting them is safe. Never more than one Ethernet frame, whatever the client says (EDK2: 65280).
_LEAST_MESSAGE: Final = 576
_LARGEST_MESSAGE: Final = 1500
_IP_AND_UDP: Final = 28


class TooSmallError(Exception):
    """The client takes too little for any reply; says how much, and what there is."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The options of a reply, encoded, in the order of the wire.

    `network` is what the reply says of the machine's network, one option each with whether it may be spared; `least`
    is what remains of it at worst. `relay` is option 82, which stands last (RFC 3046 section 2.1).
    """

    start: bytes
    network: Iterable[tuple[bytes, bool]] = ()
    least: bytes = b""
    vlan: bytes = b""
    identifier: bytes = b""
    uuid: bytes = b""
    boot: Boot | None = None
    relay: bytes = b""


def assemble(head: bytes, parts: Parts, limit: int) -> bytes:
    """The reply of at most `limit` bytes. `head` is the header with the cookie.

    Raises:
        TooSmallError: even the least is larger.
    """
    for attempt in _attempts(parts):
        payload = codec.finish([head, parts.start, *attempt, parts.relay])
        if len(payload) <= limit:
            return payload.ljust(codec.padded_size(len(payload), limit), b"\0")
    raise TooSmallError(f"the smallest DHCP reply is {len(payload)} bytes, the client takes {limit}")


def _attempts(parts: Parts) -> Iterator[list[bytes]]:
    """The options between start and relay, from all of them down to those that can't be spared."""
    echoes = [parts.vlan, parts.identifier, parts.uuid]
    boot, spare = (parts.boot.options, parts.boot.spare_options) if parts.boot is not None else (b"", b"")
    network = list(parts.network)
    yield [*(encoded for encoded, _ in network), *echoes, spare, boot]
    yield [*(encoded for encoded, _ in network), *echoes, boot]
    for at in range(len(network) - 1, -1, -1):
        if network[at][1]:
            del network[at]
            yield [*(encoded for encoded, _ in network), *echoes, boot]
    yield [parts.least, *echoes, boot]
    yield [parts.least, parts.vlan, boot]


def size_limit(message: Message) -> int:
    """Bytes of the largest UDP payload the client takes."""
    size = int.from_bytes(message.options.get(options.MAX_MESSAGE_SIZE, b""), "big")
    return min(max(size, _LEAST_MESSAGE), _LARGEST_MESSAGE) - _IP_AND_UDP


def echo_identifier(message: Message) -> bytes:
    """RFC 6842 section 3."""
    identifier = message.options.get(options.CLIENT_IDENTIFIER, b"")
    return options.option(options.CLIENT_IDENTIFIER, identifier) if 0 < len(identifier) <= 255 else b""


def echo_uuid(message: Message) -> bytes:
    """RFC 4578 section 2.3; some ROMs send none, or one of another shape, which is not worth losing a boot for."""
    uuid = message.options.get(options.CLIENT_UUID, b"")
    return options.option(options.CLIENT_UUID, uuid) if len(uuid) == 17 and uuid[0] == 0 else b""
