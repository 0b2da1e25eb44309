"""Replies put together from encoded parts, within the size that the client takes. Pure.

Nothing is dropped where there is room. Where there is not, what only repeats the header goes first, then what the
client asked for last, then the echoes; what a machine can't boot or work without goes never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from edge.dhcp.boot import Boot
from edge.dhcp.wire import Message, MessageType, codec, options

# RFC 2132 section 9.10: 576 is the least that every client takes. Whether the size counts the IP and UDP headers is
# read both ways; counting them is safe. Never more than one Ethernet frame, whatever the client says (EDK2: 65280).
_LEAST_MESSAGE_BYTES: Final = 576
_LARGEST_MESSAGE_BYTES: Final = 1500
_IP_AND_UDP_BYTES: Final = 28


class TooSmallError(Exception):
    """The client takes too little for any reply; says how much, and what there is."""


def assemble(
    request: Message,
    message_type: MessageType,
    server_id: bytes,
    boot: Boot,
    *,
    yiaddr: bytes = codec.NO_ADDRESS,
    ciaddr: bytes = codec.NO_ADDRESS,
    flags: int | None = None,
    lease: bytes = b"",
    network: bytes = b"",
    fewer: Callable[[], Iterable[bytes]] = tuple,
    vlan: bytes = b"",
    relay: bytes = b"",
) -> bytes:
    """The reply to `request`, its options encoded and in this order.

    `network` is what the reply says of the machine's network; `fewer()` gives the same with less and less, the least
    last, where it is too much. `flags` are those of the request unless they are given. `relay` is option 82, which
    stands last (RFC 3046 section 2.1).

    Raises:
        TooSmallError: even the least is larger than what the client takes.
    """
    head = codec.header(
        request, yiaddr=yiaddr, ciaddr=ciaddr, siaddr=boot.siaddr, sname=boot.sname, file=boot.file, flags=flags
    )
    start, end = head + first_options(message_type, server_id) + lease, relay + codec.END
    echoes = echo_client_identifier(request) + _echo_client_uuid(request)
    limit = size_limit(request)
    payload = start + network + vlan + echoes + boot.spare_options + boot.options + end
    if len(payload) > limit:
        for attempt in _attempts(network, fewer(), vlan, echoes, boot.options):
            payload = start + attempt + end
            if len(payload) <= limit:
                break
        else:
            raise TooSmallError(f"the smallest DHCP reply is {len(payload)} bytes, the client takes {limit}")
    return payload.ljust(codec.padded_size(len(payload), limit), b"\0")


def _attempts(network: bytes, fewer: Iterable[bytes], vlan: bytes, echoes: bytes, boot: bytes) -> Iterator[bytes]:
    """What stands between the lease and option 82, from all but what repeats the header to what can't be spared."""
    least = network
    yield network + vlan + echoes + boot
    for least in fewer:
        yield least + vlan + echoes + boot
    yield least + vlan + boot


def first_options(message_type: MessageType, server_id: bytes) -> bytes:
    """Options 53 and 54, with which our replies begin."""
    return options.option(options.MESSAGE_TYPE, bytes((message_type,))) + options.option(
        options.SERVER_IDENTIFIER, server_id
    )


def size_limit(request: Message) -> int:
    """Bytes of the largest UDP payload the client takes."""
    size = int.from_bytes(request.options.get(options.MAX_MESSAGE_SIZE, b""), "big")
    return min(max(size, _LEAST_MESSAGE_BYTES), _LARGEST_MESSAGE_BYTES) - _IP_AND_UDP_BYTES


def echo_client_identifier(request: Message) -> bytes:
    """RFC 6842 section 3."""
    identifier = request.options.get(options.CLIENT_IDENTIFIER, b"")
    return options.option(options.CLIENT_IDENTIFIER, identifier) if 0 < len(identifier) <= 255 else b""


def _echo_client_uuid(request: Message) -> bytes:
    """RFC 4578 section 2.3; some ROMs send none, or one of another shape, which is not worth losing a boot for."""
    uuid = request.options.get(options.CLIENT_UUID, b"")
    return options.option(options.CLIENT_UUID, uuid) if len(uuid) == 17 and uuid[0] == 0 else b""
