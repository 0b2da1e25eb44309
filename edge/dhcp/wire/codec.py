"""DHCPv4 messages on the wire, and what they state about the relay and the client's InfiniBand port. Pure.

The format is RFC 2131 section 2: a BOOTP header of 236 bytes, a magic cookie, and options of one byte code, one byte
length and the value. An option longer than 255 bytes is split over several instances (RFC 3396), and the header's
`sname` and `file` may hold options (option 52). Any host may send anything: `parse` raises only ParseError, in time
proportional to the packet.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from edge.dhcp.wire import options
from tink.mac import guid_mac

BOOTREQUEST: Final = 1
BOOTREPLY: Final = 2
ETHERNET: Final = 1
INFINIBAND: Final = 32
_INFINIBAND_BYTES: Final = 20  # RFC 4391 section 9.1.1
BROADCAST_FLAG: Final = 0x8000

MAGIC_COOKIE: Final = b"\x63\x82\x53\x63"
MIN_PACKET_BYTES: Final = 300
"""Size of the smallest BOOTP message (RFC 951 section 3). Some clients, e.g. Linux' ip=, drop shorter ones."""
_SIZE_STEP_BYTES: Final = 32
MAX_PACKET_BYTES: Final = 4096
"""Size of the largest accepted message. Clients send up to one Ethernet frame; a relay adds some hundred bytes."""

_HEADER = struct.Struct("!BBBB4sHH4s4s4s4s16s64s128s4s")
_OPTIONS_AT = _HEADER.size

NO_ADDRESS: Final = bytes(4)
END: Final = bytes((options.END,))


class ParseError(options.DhcpError):
    """A packet is no DHCPv4 message; the text says what is wrong with it."""


class MessageType(IntEnum):
    """The values of option 53 (RFC 2132 section 9.6)."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    DECLINE = 4
    ACK = 5
    NAK = 6
    RELEASE = 7
    INFORM = 8


class Message(NamedTuple):
    """A DHCPv4 message.

    Addresses are four bytes; `chaddr` has the length that `hlen` states. `mac` is the MAC by which a Hardware names the
    client's network card: `chaddr`, except for InfiniBand (`infiniband_macs`).
    """

    # One is made per packet, and a tuple costs a fifth of a dataclass.

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
    """Return the message in a UDP payload. Raises ParseError.

    `sname` and `file` have no NUL padding; they are empty if they held options.
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
        # Linux' ip=dhcp writes its whole address, past the end of the field, and compares the whole address with that
        # of the reply (net/ipv4/ipconfig.c).
        chaddr, sname = chaddr + sname[: hlen - 16], b""
    elif hlen > 16:
        raise ParseError(f"hardware address of {hlen} bytes (hlen); the field has 16")
    found: dict[int, bytes] = {}
    _parse_options(packet, _OPTIONS_AT, found, "the options field")
    overload = found.get(options.OVERLOAD)
    if overload is not None:
        # RFC 2132 section 9.3: the header's fields hold options. RFC 3396 section 5: they are joined in the order
        # options field, file, sname.
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
    """Add the options of `field` to `found`, joining repeated ones (RFC 3396 section 7)."""
    length = len(field)
    # A missing END is accepted, because some firmware omits it.
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
    """Return the header and cookie of a reply to `message`, with the fields that RFC 2131 table 3 copies.

    `sname` and `file` must be shorter than their fields (64, 128), because they end with a NUL. A hardware address that
    is longer than its field continues in `sname`, as in the request.
    """
    if len(sname) > 63 or len(file) > 127:
        raise options.OptionError(f"sname of {len(sname)} or file of {len(file)} bytes does not fit its header field")
    return _HEADER.pack(
        BOOTREPLY, message.htype, len(message.chaddr), 0, message.xid, 0, message.flags if flags is None else flags,
        ciaddr, yiaddr, siaddr, message.giaddr, message.chaddr, message.chaddr[16:] or sname, file, MAGIC_COOKIE,
    )  # fmt: skip


def finish(parts: list[bytes]) -> bytes:
    """Return header and encoded options with END, padded to the smallest size that every client accepts."""
    return b"".join((*parts, END)).ljust(MIN_PACKET_BYTES, b"\0")


def padded_size(size: int, limit: int) -> int:
    """Return the size to which a reply of `size` bytes is padded, if the client takes `limit` bytes."""
    # There are few sizes, because replies of one size to one relay leave with one system call (`Port`).
    steps = (size - MIN_PACKET_BYTES + _SIZE_STEP_BYTES - 1) // _SIZE_STEP_BYTES
    return min(MIN_PACKET_BYTES + max(steps, 0) * _SIZE_STEP_BYTES, limit)


def build(message: Message) -> bytes:
    """Return the bytes of a whole message, its options in the order of the mapping. Raises OptionError."""
    # Values of more than 255 bytes are split (RFC 3396 section 6).
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


# --- relays (RFC 3046) --------------------------------------------------------------------------------------------


class RelayAgent(NamedTuple):
    """The relay that passed a message on; addresses have four bytes, or are empty.

    giaddr: the relay's address, to which the reply goes.
    link: an address of the client's subnet: `giaddr`, or the link selection of a relay in another subnet (RFC 3527).
    server_id: the value of option 54 that the relay wants (RFC 5107), so that renewals go through it.
    echo: option 82 for the reply, encoded; empty if the message had none.
    """

    giaddr: bytes
    link: bytes
    server_id: bytes
    echo: bytes
    port: int = 0
    """The port to which the relay wants its replies (RFC 8357); 0 for port 67."""


NO_RELAY = RelayAgent(b"", b"", b"", b"")
"""The relay of a client on our own link."""


def relay_agent_of(message: Message, source_port: int = 0) -> RelayAgent:
    """Return the relay of `message`, which came from `source_port`. Invalid addresses in option 82 are ignored."""
    information = message.options.get(options.RELAY_AGENT_INFORMATION)
    giaddr = message.giaddr if any(message.giaddr) else b""
    if information is None:
        return RelayAgent(giaddr, giaddr, b"", b"") if giaddr else NO_RELAY
    # A switch that snoops adds option 82 without being a relay, so `giaddr` may be zero here. RFC 3046 section 2.2: the
    # option is echoed in any case.
    found = options.suboptions(information) or {}
    link = found.get(options.LINK_SELECTION, b"")
    server_id = found.get(options.SERVER_IDENTIFIER_OVERRIDE, b"")
    return RelayAgent(
        giaddr,
        link if _is_address(link) else giaddr,
        server_id if _is_address(server_id) else b"",
        options.instances(options.RELAY_AGENT_INFORMATION, information),
        source_port if options.RELAY_SOURCE_PORT in found else 0,
    )


def _is_address(value: bytes) -> bool:
    # A subnet may be named by its own number, e.g. 10.1.0.0, which is accepted as an address here.
    return len(value) == 4 and options.is_host_address(value)


# --- InfiniBand (RFC 4390) ----------------------------------------------------------------------------------------
#
# A port's address has 20 bytes (RFC 4391 section 9.1.1): flags and queue pair, which change with each driver, and the
# GID, whose last eight bytes are the port's GUID. That does not fit into `chaddr`, so most clients leave it empty and
# put the GUID into option 61, in different ways:
#
#     FlexBoot, dhclient of MLNX_OFED     ff, IAID 0, DUID-EN of enterprise 713 with 00 and the GUID
#     NetworkManager, FlexBoot's option   20 (the hardware type) and the GUID; gPXE: 20 and the whole address
#     RFC 4361, as dhcpcd                 ff, IAID, DUID-LL or DUID-LLT of hardware type 32 with GUID or address
#     old iPXE                            the GUID in `chaddr` (hlen 8)
#     Linux' ip=dhcp                      the whole address in `chaddr` and the following field `sname` (hlen 20)
#     FlexBoot                            the MAC that is made of the GUID in `chaddr` (hlen 6)
#
# iPXE since 2016 declares Ethernet, with that MAC; `tink.mac.guid_mac` makes it.

_HARDWARE_TYPE: Final = INFINIBAND.to_bytes(2, "big")
_MELLANOX: Final = bytes.fromhex("0002 000002c9 00")  # DUID-EN, the enterprise's number, and the byte before the GUID
_KNOWN_DUIDS: Final = frozenset(range(1, 5))  # RFC 8415 section 11, RFC 6355


def infiniband_macs(message: Message) -> tuple[bytes, ...]:
    """Return the possible MACs (six bytes) of the InfiniBand port that sent the message, the most likely one first."""
    found = [*_in_identifier(message.options.get(options.CLIENT_IDENTIFIER, b""))]
    if len(message.chaddr) in (8, 20):
        found += _of_port(message.chaddr)
    elif len(message.chaddr) == 6:
        found.append(message.chaddr)
    return tuple(dict.fromkeys(found))


def _in_identifier(identifier: bytes) -> tuple[bytes, ...]:
    kind, value = identifier[:1], identifier[1:]
    if kind in (b"\0", bytes((INFINIBAND,))):
        return _of_port(value)
    if kind != b"\xff":
        return ()
    duid = value[4:]  # RFC 4361 section 6.1: behind the IAID
    if duid.startswith(_MELLANOX):
        return _of_port(duid[len(_MELLANOX) :])
    duid_type, hardware_type = int.from_bytes(duid[:2], "big"), duid[2:4]
    if duid_type in (1, 3) and hardware_type == _HARDWARE_TYPE:
        return _of_port(duid[8 if duid_type == 1 else 4 :])
    if duid_type in _KNOWN_DUIDS or len(duid) < 8:
        return ()  # it identifies the machine, or another card
    return guid_mac(duid[-8:]), duid[-6:]


def _of_port(address: bytes) -> tuple[bytes, ...]:
    """Return the MAC of a GUID, alone or at the end of a whole address."""
    return (guid_mac(address[-8:]),) if len(address) in (8, 20) else ()
