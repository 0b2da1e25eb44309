"""Packets recognised by their layout, so that the common ones need not be parsed. Pure.

All machines with the same firmware send the same packet but for a few values: the transaction, the machine's addresses,
its UUID. A `Layout` is what such packets have in common: where the options stand, the values of all that are the same,
and the places of the few that are not. It is learnt from one packet that was parsed and answered in full; a packet of
the same length that has the same bytes at the same places is known to parse the same way, and asks for the same.

What may differ, and nothing else: the transaction, the hop count and seconds, the broadcast flag, the relay's address,
the MAC; the values of options 12, 50, 61, 81 and 97 and of the sub-options of 82 but for those that
`edge.dhcp.wire.relay_agent` reads. Their lengths may not. Option 97 begins with the name of a Raspberry Pi in all
packets of a layout, or in none of them. A packet that uses a header field or an option in a way of its own is never
learnt from.

`edge.dhcp.responder` answers a recognised packet by the fast path, any other in full: both must give the same bytes,
and tests/unit/dhcp/test_fast_path.py holds them to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from edge.dhcp.boot import PI_NAME, PI_NAME_AT
from edge.dhcp.wire import options
from edge.dhcp.wire.codec import Message

_VARYING = frozenset({options.HOST_NAME, options.REQUESTED_ADDRESS, options.CLIENT_IDENTIFIER, options.CLIENT_FQDN})
_FIXED_SUBOPTIONS = frozenset({options.LINK_SELECTION, options.SERVER_IDENTIFIER_OVERRIDE})

_NOWHERE: Final = slice(0, 0)
_OPTIONS_AT: Final = 240
# op, htype, hlen | hops | xid | secs | flags, ciaddr | yiaddr, siaddr | giaddr | chaddr and its padding | sname, file
_HEADER = "!3sx4s2x6s8x4s6s10s192x"
_FIRST_SEGMENT: Final = 236  # the cookie is the beginning of the first segment


class Layout:
    """What packets have in common. `unpack` gives their fields, of which the first six are those of the header.

    A packet is of this layout if `fixed(fields) == expected` and `packet[pi_name_at] == PI_NAME` is as `is_pi` says.
    `requested_address` is the number of the field with the value of option 50, 0 if there is none; `client_identifier`,
    `client_uuid` and `relay_information` are where options 61, 97 and 82 stand, with code and length, empty where there
    is none.
    """

    __slots__ = (
        "client_identifier", "client_uuid", "expected", "fixed", "is_pi", "pi_name_at", "relay_information",
        "requested_address", "unpack",
    )  # fmt: skip

    def __init__(self, packet: bytes, varying: list[tuple[int, int]], end: int, places: dict[int, slice]) -> None:
        """`varying` are begin and end of the values that differ, in order; `end` is behind the END option."""
        requested_at = places.get(options.REQUESTED_ADDRESS, _NOWHERE).start + 2
        pieces = [_HEADER]
        segments: list[int] = []
        number = 6
        self.requested_address = 0
        at = _FIRST_SEGMENT
        for begin, finish in (*varying, (end, len(packet))):
            if begin > at:
                pieces.append(f"{begin - at}s")
                segments.append(number)
                number += 1
            if begin == requested_at:
                pieces.append(f"{finish - begin}s")
                self.requested_address = number
                number += 1
            else:
                pieces.append(f"{finish - begin}x")
            at = finish
        self.unpack: Callable[[bytes], tuple[bytes, ...]] = struct.Struct("".join(pieces)).unpack
        self.fixed: Callable[[tuple[bytes, ...]], tuple[bytes, ...]] = itemgetter(0, 5, *segments)
        self.expected = self.fixed(self.unpack(packet))
        self.client_identifier = places.get(options.CLIENT_IDENTIFIER, _NOWHERE)
        self.client_uuid = uuid = places.get(options.CLIENT_UUID, _NOWHERE)
        name_at = slice(uuid.start + 2 + PI_NAME_AT.start, uuid.start + 2 + PI_NAME_AT.stop)
        self.pi_name_at = name_at if uuid is not _NOWHERE else _NOWHERE
        self.is_pi = packet[self.pi_name_at] == PI_NAME
        self.relay_information = places.get(options.RELAY_AGENT_INFORMATION, _NOWHERE)


def layout_of(packet: bytes, message: Message) -> Layout | None:
    """The layout of `packet`, of which `message` was parsed; None if it has something that no layout can say."""
    if options.OVERLOAD in message.options or any(packet[12:16]) or any(packet[34:44]):
        return None
    varying: list[tuple[int, int]] = []
    places: dict[int, slice] = {}
    at = _OPTIONS_AT
    while at < len(packet) and packet[at] != options.END:
        code = packet[at]
        if code == options.PAD:
            at += 1
            continue
        begin, end = at + 2, at + 2 + packet[at + 1]
        if code in places:
            return None  # in several instances (RFC 3396)
        places[code] = slice(at, end)
        if code == options.RELAY_AGENT_INFORMATION:
            inner = _varying_suboptions(packet, begin, end)
            if inner is None:
                return None
            varying += inner
        elif code == options.CLIENT_UUID:
            if end - begin != 17 or packet[begin] != 0:
                return None  # one that is not echoed
            varying.append((begin + 1, end))
        elif code in _VARYING:
            if begin == end:
                return None
            varying.append((begin, end))
        at = end
    if at >= len(packet):
        return None  # without END
    return Layout(packet, varying, at + 1, places)


def _varying_suboptions(packet: bytes, at: int, end: int) -> list[tuple[int, int]] | None:
    """Where the values inside option 82 stand that may differ; None where it is no plain list."""
    varying: list[tuple[int, int]] = []
    seen: set[int] = set()
    while at < end:
        code = packet[at]
        if code in (options.PAD, options.END) or code in seen or at + 1 >= end:
            return None
        seen.add(code)
        begin, at = at + 2, at + 2 + packet[at + 1]
        if at > end or code == options.RELAY_SOURCE_PORT:  # the fast path does not know the packet's source port
            return None
        if code not in _FIXED_SUBOPTIONS and begin < at:
            varying.append((begin, at))
    return varying
