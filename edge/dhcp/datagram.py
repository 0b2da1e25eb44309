"""Datagrams of the DHCP server: what arrives, what is sent, and how a reply is put together. Pure.

`edge.dhcp.server` makes `Received` and sends `Reply`; `edge.dhcp.responder` makes one from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp_common import BootAnswer

SERVER_PORT: Final = 67
CLIENT_PORT: Final = 68
PXE_PORT: Final = 4011
"""The port of PXE boot servers (PXE 2.1 section 2.2.1, "Boot Server discovery")."""

BROADCAST: Final = "255.255.255.255"

NO_SOURCE: Final = "0.0.0.0"  # noqa: S104 - nothing is bound to it
"""The source of a client without an address (RFC 2131 section 4.1).

A packet from it is from our own link. Linux accepts it only if it was sent to BROADCAST (ip_route_input_slow), and no
router forwards it (RFC 1812 section 5.3.7).
"""

# RFC 2132 section 9.10: every client takes 576 bytes. The RFC does not say whether the size includes the IP and UDP
# headers; including them is safe. A reply is at most one Ethernet frame, whatever the client says (EDK2 says 65280).
_MIN_LIMIT_BYTES: Final = 576
_MAX_LIMIT_BYTES: Final = 1500
_IP_AND_UDP_BYTES: Final = 28


class Received(NamedTuple):
    """The sender of a packet, and the port of ours (67 or 4011) that received it."""

    source: str
    source_port: int
    port: int = SERVER_PORT


class Reply(NamedTuple):
    """A packet to send from the port that received the request; `address` may be BROADCAST.

    `ethernet` is the client's hardware address if the client does not answer ARP yet. Then the packet leaves as a frame
    to this address, or as a broadcast if no frame can be sent.
    """

    payload: bytes
    address: str
    port: int
    ethernet: bytes = b""


class TooSmallError(options.DhcpError):
    """The client takes less than the smallest reply; the text has both sizes."""


def assemble(
    request: Message,
    start: bytes,
    boot: BootAnswer,
    *,
    yiaddr: bytes = codec.NO_ADDRESS,
    ciaddr: bytes = codec.NO_ADDRESS,
    flags: int | None = None,
    network: bytes = b"",
    fewer: Callable[[], Iterable[bytes]] = tuple,
    vlan: bytes = b"",
    relay: bytes = b"",
) -> bytes:
    """Return the reply to `request`, its options in the order of the arguments.

    `start` are options 53, 54 and those of the lease. `network` are the options of the machine's network; `fewer()`
    returns shorter and shorter versions of it. `flags` are those of the request by default. `relay` is option 82.

    Everything is sent if there is room. Otherwise the options that repeat the header go first, then those of the
    network that the client requested last, then the echoes. What a machine needs to boot always stays.

    Raises:
        TooSmallError: even the smallest reply is larger than what the client takes.
    """
    head = codec.header(
        request, yiaddr=yiaddr, ciaddr=ciaddr, siaddr=boot.siaddr, sname=boot.sname, file=boot.file, flags=flags
    )
    start = head + start
    # RFC 3046 section 2.1: option 82 is the last option.
    end = relay + codec.END
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
    """Yield the options between the lease and option 82, shorter each time."""
    shortest = network
    yield network + vlan + echoes + boot
    for shortest in fewer:
        yield shortest + vlan + echoes + boot
    yield shortest + vlan + boot


def first_options(message_type: MessageType, server_id: bytes) -> bytes:
    """Return options 53 and 54, with which our replies begin."""
    return bytes((options.MESSAGE_TYPE, 1, message_type, options.SERVER_IDENTIFIER, 4)) + server_id


def size_limit(request: Message) -> int:
    """Return the size in bytes of the largest UDP payload that the client takes."""
    size = int.from_bytes(request.options.get(options.MAX_MESSAGE_SIZE, b""), "big")
    return min(max(size, _MIN_LIMIT_BYTES), _MAX_LIMIT_BYTES) - _IP_AND_UDP_BYTES


def echo_client_identifier(request: Message) -> bytes:
    """Return option 61 of the request for the reply (RFC 6842 section 3), or nothing."""
    identifier = request.options.get(options.CLIENT_IDENTIFIER, b"")
    length = len(identifier)
    return bytes((options.CLIENT_IDENTIFIER, length)) + identifier if 0 < length <= 255 else b""


def _echo_client_uuid(request: Message) -> bytes:
    # RFC 4578 section 2.3. Some ROMs send none, or one of another shape; that is no reason to refuse a boot.
    uuid = request.options.get(options.CLIENT_UUID, b"")
    return bytes((options.CLIENT_UUID, 17)) + uuid if len(uuid) == 17 and uuid[0] == 0 else b""
