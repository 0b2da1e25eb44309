"""DHCPv4 messages on the wire: `parse` bytes into a `Message`, `build` bytes from one. Pure.

The format is RFC 2131 section 2: a BOOTP header of 236 bytes, a magic cookie, options of one byte code, one byte length
and the value. Three things make it harder than that: an option longer than 255 bytes is split over several instances
that are to be joined (RFC 3396); the header's `sname` and `file` may hold options instead of names (option 52, RFC 2132
section 9.3); and anybody on the network may send anything. `parse` raises ParseError and nothing else, in time
proportional to the packet.

Datagrams come from `edge.dhcp.sockets`; replies are assembled from parts that were encoded beforehand, with `header`
and `finish` of this module (`edge.dhcp.replies`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from edge.dhcp.wire import options

BOOTREQUEST: Final = 1
BOOTREPLY: Final = 2
ETHERNET: Final = 1
INFINIBAND: Final = 32
_INFINIBAND_BYTES: Final = 20  # RFC 4391 section 9.1.1
BROADCAST_FLAG: Final = 0x8000

MAGIC_COOKIE: Final = b"\x63\x82\x53\x63"
MIN_PACKET_BYTES: Final = 300
"""Bytes of the smallest BOOTP message (RFC 951 section 3); some clients, Linux' ip= among them, drop shorter ones."""
_SIZE_STEP_BYTES: Final = 32
MAX_PACKET_BYTES: Final = 4096
"""Bytes of the largest message taken. Clients send up to one Ethernet frame; a relay adds some hundred bytes."""

_HEADER = struct.Struct("!BBBB4sHH4s4s4s4s16s64s128s4s")
_OPTIONS_AT = _HEADER.size

NO_ADDRESS: Final = bytes(4)
END: Final = bytes((options.END,))


class ParseError(Exception):
    """A packet that is no DHCPv4 message; says what is wrong with it."""


class MessageType(IntEnum):
    """Option 53 (RFC 2132 section 9.6)."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7
    INFORM = 8


class Message(NamedTuple):
    """A DHCPv4 message. Addresses are four bytes, `chaddr` is as long as `hlen` says.

    `mac` is what names the client's network card in a Hardware: `chaddr`, but for InfiniBand
    (`edge.dhcp.wire.infiniband`).

    A tuple and not a dataclass: one is made per packet, and a tuple costs a fifth.
    """

    op: int
    htype: int
    hops: int
    xid: bytes
    secs: int
    flags: int
    ciaddr: bytes
    yiaddr: bytes
    siaddr: bytes
    giaddr: bytes
    chaddr: bytes
    sname: bytes
    file: bytes
    options: Mapping[int, bytes]
    mac: bytes = b""


def parse(packet: bytes) -> Message:
    """The message in a UDP payload.

    `sname` and `file` come without their NUL padding, and empty where they held options.

    Raises:
        ParseError: too short, too long, no DHCP, or options that lie about their length.
    """
    if len(packet) < _OPTIONS_AT:
        raise ParseError(f"{len(packet)} bytes is less than a DHCP header ({_OPTIONS_AT})")
    if len(packet) > MAX_PACKET_BYTES:
        raise ParseError(f"longer than {MAX_PACKET_BYTES} bytes")
    (op, htype, hlen, hops, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr, sname, file, cookie) = (
        _HEADER.unpack_from(packet)
    )
    if cookie != MAGIC_COOKIE:
        raise ParseError("no DHCP magic cookie (plain BOOTP is not answered)")
    if htype == INFINIBAND and hlen == _INFINIBAND_BYTES:
        # Linux' ip=dhcp writes all of its address, over the end of the field (net/ipv4/ipconfig.c), and compares all.
        chaddr, sname = chaddr + sname[: hlen - 16], b""
    elif hlen > 16:
        raise ParseError(f"hardware address of {hlen} bytes (hlen); the field has 16")
    found: dict[int, bytes] = {}
    _parse_options(packet, _OPTIONS_AT, found, "the options field")
    overload = found.get(options.OVERLOAD)
    if overload is not None:
        # RFC 3396 section 5: options are joined in the order options field, file, sname.
        if overload not in (b"\x01", b"\x02", b"\x03"):
            raise ParseError(f"option 52 (overload) is {overload[:8].hex() or 'empty'}; 1, 2 and 3 exist")
        if overload[0] & 1:
            _parse_options(file, 0, found, "the field file")
            file = b""
        if overload[0] & 2:
            _parse_options(sname, 0, found, "the field sname")
            sname = b""
    return Message(
        op, htype, hops, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr[:hlen],
        sname.partition(b"\0")[0], file.partition(b"\0")[0], found, chaddr[:hlen],
    )  # fmt: skip


def _parse_options(field: bytes, at: int, found: dict[int, bytes], where: str) -> None:
    """Add the options of `field` to `found`, joining repeated ones (RFC 3396 section 7).

    A missing END is forgiven: firmware forgets it, and what came before it is whole.
    """
    length = len(field)
    while at < length:
        code = field[at]
        if code == 0:  # PAD
            at += 1
            continue
        if code == 255:  # END
            return
        if at + 1 >= length:
            raise ParseError(f"option {code} in {where} is cut off before its length")
        end = at + 2 + field[at + 1]
        if end > length:
            raise ParseError(f"option {code} in {where} says {field[at + 1]} bytes, {length - at - 2} are left")
        value = field[at + 2 : end]
        found[code] = found[code] + value if code in found else value
        at = end


def header(
    message: Message, *, yiaddr: bytes = NO_ADDRESS, ciaddr: bytes = NO_ADDRESS, siaddr: bytes = NO_ADDRESS,
    sname: bytes = b"", file: bytes = b"", flags: int | None = None,
) -> bytes:  # fmt: skip
    """The header and cookie of a reply to `message`: what RFC 2131 table 3 says to copy is copied.

    `sname` and `file` must be shorter than their fields (64, 128), for they end with a NUL. A hardware address that is
    longer than its field takes the place of `sname`, as it came.
    """
    if len(sname) > 63 or len(file) > 127:
        raise options.OptionError(f"sname of {len(sname)} or file of {len(file)} bytes does not fit its header field")
    return _HEADER.pack(
        BOOTREPLY, message.htype, len(message.chaddr), 0, message.xid, 0, message.flags if flags is None else flags,
        ciaddr, yiaddr, siaddr, message.giaddr, message.chaddr, message.chaddr[16:] or sname, file, MAGIC_COOKIE,
    )  # fmt: skip


def finish(parts: list[bytes]) -> bytes:
    """Join header and encoded options, put END behind them and pad to the smallest size that every client takes."""
    return b"".join((*parts, END)).ljust(MIN_PACKET_BYTES, b"\0")


def padded_size(size: int, limit: int) -> int:
    """The size to pad a reply of `size` bytes to, where the client takes `limit`.

    Few sizes instead of many: replies of one size to one place leave with one system call (`edge.dhcp.sockets.port`).
    """
    steps = (size - MIN_PACKET_BYTES + _SIZE_STEP_BYTES - 1) // _SIZE_STEP_BYTES
    return min(MIN_PACKET_BYTES + max(steps, 0) * _SIZE_STEP_BYTES, limit)


def build(message: Message) -> bytes:
    """The bytes of a whole message, options in the order of the mapping; the inverse of `parse`.

    Values beyond 255 bytes are split (RFC 3396 section 6). Raises OptionError where a field does not fit.
    """
    if len(message.chaddr) > _INFINIBAND_BYTES or len(message.sname) > 64 or len(message.file) > 128:
        raise options.OptionError(
            "chaddr (16, of InfiniBand 20), sname (64) or file (128) is longer than its header field"
        )
    parts = [
        _HEADER.pack(
            message.op, message.htype, len(message.chaddr), message.hops, message.xid, message.secs, message.flags,
            message.ciaddr, message.yiaddr, message.siaddr, message.giaddr, message.chaddr,
            message.chaddr[16:] or message.sname,
            message.file, MAGIC_COOKIE,
        )
    ]  # fmt: skip
    for code, value in message.options.items():
        if not 0 < code < 255:
            raise options.OptionError(f"option code {code}; codes are 1 to 254")
        parts.append(options.instances(code, value))
    return finish(parts)
