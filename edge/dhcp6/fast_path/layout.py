"""Messages recognised by their layout, so that the common ones need not be parsed. Pure.

All machines with the same firmware send the same message but for a few values, and relays add the same around it. A
`Layout` is what such packets have in common: every byte that is always the same, and the places of the values that are
not. It is learnt from one packet that was parsed and answered; a packet of the same length that has the same bytes at
the same places is known to parse the same way, and asks for the same. That is one comparison of numbers: the packet,
with the bits that may differ set to zero, against what is expected.

What may differ, and nothing else:

    in the message      the transaction, the elapsed time, the client's DUID, its name (option 39); of each IA_NA the
                        IAID, T1 and T2; of each address in one the address and its lifetimes
    around it           hop counts, link and peer addresses, and what relays say in their options of where it came from
    of these, fixed     that a DUID, a peer address or option 79 is of the make that the MAC is read from, where it is
                        (`edge.dhcp6.identity`), and the links of relays that say none

Lengths may not differ. A message that names temporary addresses or prefixes, or has an option twice that counts once,
is never learnt from.

`edge.dhcp6.responder` answers a recognised packet by the fast path, any other in full: both must give the same bytes,
and tests/unit/dhcp6/test_fast_path.py holds them to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from edge.dhcp6.identity import is_mac, is_of_infiniband, of_duid
from edge.dhcp6.wire import MAX_IAS, Message6, MessageType6, Option, Relay, is_local
from tink.mac import eui64_mac

LEARNT: Final = frozenset(
    {
        MessageType6.SOLICIT,
        MessageType6.REQUEST,
        MessageType6.RENEW,
        MessageType6.REBIND,
        MessageType6.INFORMATION_REQUEST,
    }
)
"""The messages that are answered with an address, or with the configuration alone."""

NOWHERE: Final = slice(0, 0)
_ETHERNET: Final = b"\0\1"  # The hardware type: of InfiniBand, the MAC is no part of the packet.

_RELAY_HEAD: Final = 34  # type, hop count, link-address, peer-address: RFC 8415 section 9
_HEAD: Final = 4  # type and transaction: section 8
_OPTION_HEAD: Final = 4
_IA_HEAD: Final = 12  # IAID, T1, T2: section 21.4
_IAADDR: Final = 24  # address and its two lifetimes: section 21.6
_CLIENT_FQDN: Final = 39  # RFC 4704
_VARYING: Final = frozenset({Option.ELAPSED_TIME, _CLIENT_FQDN})
_CLASSES: Final = frozenset({Option.USER_CLASS, Option.VENDOR_CLASS})  # all of them count, and none may differ

# Of a link-local address that is made of a MAC (RFC 4291 section 2.5.6 and appendix A) what tells that it is one: ten
# bits of its prefix, the bit that tells a group's MAC, and the two bytes in the middle.
_EUI64_MASK: Final = bytes.fromhex("ffc0000000000000 010000ffff000000")


class MacOf(Enum):
    """What the client's MAC is read from."""

    SOURCE = "the address that the packet came from"
    PEER = "the peer-address of its first relay"
    LINK_LAYER = "option 79 of its first relay"
    DUID = "its DUID"


class Layout:
    """What packets have in common: `int.from_bytes(packet) & mask == expected` for one of this layout.

    `transaction`, `client_id` (with code and length; empty: there is none), `iaids` and `addresses` are where these
    stand. `relays` are, from our side on, hop count to peer-address and the Interface-Id option (empty: none) of each.
    `link` is the link-address that counts (empty: none does). `mac` is where the six bytes of the MAC are, for
    LINK_LAYER and DUID (empty: for others); `peer` is the first relay's peer-address (empty: no relay).
    """

    __slots__ = (
        "addresses", "client_id", "expected", "iaids", "link", "mac", "mac_of", "mask", "peer", "relays", "transaction",
    )  # fmt: skip

    def __init__(self, packet: bytes, relays: tuple[Relay, ...]) -> None:
        """Raises _NoLayoutError."""
        mask = bytearray(b"\xff" * len(packet))
        self.mac_of = _mac_of(relays)
        self.link = self.mac = self.peer = NOWHERE
        self.relays: list[tuple[slice, slice]] = []
        begin, end = 0, len(packet)
        counts = _link_that_counts(relays)
        for number in range(len(relays)):
            _vary(mask, begin + 1, begin + (2 if number > counts else 18))
            _vary(mask, begin + 18, begin + _RELAY_HEAD)
            if number == counts:
                self.link = slice(begin + 2, begin + 18)
            begin, end = self._relay(packet, mask, begin, end, is_first=number == len(relays) - 1)
        self._message(packet, mask, begin, end)
        if self.mac_of is MacOf.DUID:
            duid = packet[self.client_id][_OPTION_HEAD:]
            if of_duid(duid) is None or duid[2:4] != _ETHERNET:
                raise _NoLayoutError
            at = self.client_id.start + _OPTION_HEAD
            mask[at : at + 4] = b"\xff" * 4  # which make of DUID it is
            self.mac = slice(self.client_id.stop - 6, self.client_id.stop)
        self.mask = int.from_bytes(mask, "big")
        self.expected = int.from_bytes(packet, "big") & self.mask

    def _relay(self, packet: bytes, mask: bytearray, begin: int, end: int, *, is_first: bool) -> tuple[int, int]:
        """Where the message in a relay's begins and ends; `is_first`: it is the one that the client's came to."""
        interface = inner = link_layer = NOWHERE
        seen: set[int] = set()
        for code, at, stop in _options(packet, begin + _RELAY_HEAD, end):
            if code in seen or code == Option.RELAY_PORT:  # the fast path does not know the packet's source port
                raise _NoLayoutError
            seen.add(code)
            value = slice(at, stop)
            if code == Option.RELAY_MSG:
                inner = value
            elif code == Option.CLIENT_LINKLAYER_ADDR:
                link_layer = value
            else:
                _vary(mask, at, stop)
                interface = slice(at - _OPTION_HEAD, stop) if code == Option.INTERFACE_ID else interface
        self.relays.append((slice(begin + 1, begin + _RELAY_HEAD), interface))
        if is_first:
            self.peer = slice(begin + 18, begin + _RELAY_HEAD)
            if self.mac_of is MacOf.LINK_LAYER:
                self.mac = slice(link_layer.start + 2, link_layer.stop)
                _vary(mask, self.mac.start, self.mac.stop)
            elif self.mac_of is MacOf.PEER:
                mask[self.peer] = _EUI64_MASK
        return inner.start, inner.stop

    def _message(self, packet: bytes, mask: bytearray, begin: int, end: int) -> None:
        self.transaction = slice(begin + 1, begin + _HEAD)
        _vary(mask, begin + 1, begin + _HEAD)
        self.client_id = NOWHERE
        iaids: list[slice] = []
        self.addresses: list[slice] = []
        seen: set[int] = set()
        for code, at, stop in _options(packet, begin + _HEAD, end):
            if code == Option.IA_NA:
                if len(iaids) == MAX_IAS or stop - at < _IA_HEAD:
                    raise _NoLayoutError
                iaids.append(slice(at, at + 4))
                _vary(mask, at, at + _IA_HEAD)
                self._association(packet, mask, at + _IA_HEAD, stop)
                continue
            if (code in seen and code not in _CLASSES) or code in (Option.IA_TA, Option.IA_PD):
                raise _NoLayoutError
            seen.add(code)
            if code == Option.CLIENTID:
                if at == stop:
                    raise _NoLayoutError  # one that is not echoed
                self.client_id = slice(at - _OPTION_HEAD, stop)
                _vary(mask, at, stop)
            elif code in _VARYING:
                _vary(mask, at, stop)
        self.iaids = tuple(iaids)

    def _association(self, packet: bytes, mask: bytearray, begin: int, end: int) -> None:
        for code, at, stop in _options(packet, begin, end):
            if code == Option.IAADDR and stop - at >= _IAADDR:
                self.addresses.append(slice(at, at + 16))
                _vary(mask, at, at + _IAADDR)


class _NoLayoutError(Exception):
    """The packet has something that no layout can say."""


def layout_of(packet: bytes, message: Message6, relays: tuple[Relay, ...]) -> Layout | None:
    """The layout of `packet`, of which `message` and `relays` were parsed; None if no layout can say what it has."""
    if message.type not in LEARNT:
        return None
    try:
        return Layout(packet, relays)
    except _NoLayoutError:
        return None


def _mac_of(relays: tuple[Relay, ...]) -> MacOf:
    """What `edge.dhcp6.identity.mac_of` reads, for a client that came through these; of its DUID, if of anything.

    Raises _NoLayoutError for an InfiniBand port, whose MAC is no part of the packet.
    """
    if not relays:
        return MacOf.SOURCE
    if is_mac(relays[-1].link_layer):
        return MacOf.LINK_LAYER
    if is_of_infiniband(relays[-1].link_layer):
        raise _NoLayoutError
    peer = relays[-1].peer
    return MacOf.PEER if peer.is_link_local and eui64_mac(peer) is not None else MacOf.DUID


def _link_that_counts(relays: tuple[Relay, ...]) -> int:
    """The number of the relay whose link-address says where the client is; -1: none does."""
    numbers = (number for number in range(len(relays) - 1, -1, -1) if not is_local(relays[number].link))
    return next(numbers, -1)


def _options(packet: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Code, begin and end of the value of each option.

    Raises _NoLayoutError if one is cut off: not everything that was answered was looked into, as where an address was
    refused for other reasons.
    """
    while at < end:
        begin = at + _OPTION_HEAD
        at = begin + int.from_bytes(packet[at + 2 : begin], "big")
        if at > end or begin > end:
            raise _NoLayoutError
        yield int.from_bytes(packet[begin - _OPTION_HEAD : begin - 2], "big"), begin, at


def _vary(mask: bytearray, begin: int, end: int) -> None:
    mask[begin:end] = bytes(end - begin)
