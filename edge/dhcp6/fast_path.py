"""The fast path: answers a message of a known layout (`edge.dhcp_common.layouts`) by a look-up. Pure.

A layout is learnt from a message that was answered in full. The reply to the next message of this layout is one join of
prepared parts:

    the kind of client   the reply's type, the requested options, words for the journey: `_KnownLayout`
    its network          name servers and search list: `_NetworkParts` for each pair of layout and network
    its boot path        the boot file of ROMs that get it by TFTP; each other machine gets its own: `_BootParts`
    the machine          the address and its lifetimes: `edge.dhcp6.reservation`
    the packet           transaction, DUID, IAIDs, and the options that are sent back to relays

These values may differ between the packets of a layout, and nothing else:

    in the message      the transaction, the elapsed time, the client's DUID, its name (option 39); of each IA_NA the
                        IAID, T1 and T2; of each address in it the address and its lifetimes
    around it           hop counts, link and peer addresses, and the relays' options about the client's place

Their lengths may not differ. If the MAC is read from a DUID, a peer address or option 79 (`edge.dhcp6.wire.mac_of`),
the kind of that value is fixed. A message with temporary addresses, prefixes, or a repeated option is never learnt.

Nothing is stored per machine. Every other message (an address that is not the machine's, one in quarantine, another
link, a MAC that only the neighbour table knows, a unicast) is left to `edge.dhcp6.responder`. Both give the same bytes
for the same packet: tests/unit/dhcp6/test_fast_path.py compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from edge.dhcp6 import wire
from edge.dhcp6.boot import identify, is_netboot
from edge.dhcp6.context import Context6, report_of
from edge.dhcp6.reservation import Network6, Reservation6
from edge.dhcp6.wire import CLIENT_PORT, RENEWALS, SERVER_PORT, Message6, MessageType6, Option, Relay, text_of
from edge.dhcp_common import (
    MAX_LAYOUTS,
    NOTHING,
    NOWHERE,
    BootAnswer,
    KnownLayouts,
    NoLayoutError,
    Reply,
    Stage,
    reply_note,
    vary,
)
from edge.journey.events import Note
from edge.machines import Machine
from ipxe.binaries import BootPath
from tink.limits import Newest
from tink.mac import eui64_mac
from tink.net.addresses import is_link_local_packed

MAX_LAYOUTS_OF_A_LENGTH: Final = 16
MAX_NETWORKS_OF_A_LAYOUT: Final = 256

_LEARNABLE: Final = RENEWALS | {MessageType6.SOLICIT, MessageType6.REQUEST, MessageType6.INFORMATION_REQUEST}
"""The messages that are answered with an address, or with the configuration alone."""

_ETHERNET: Final = b"\0\1"  # hardware type; the packet of an InfiniBand port does not contain the MAC

_RELAY_HEAD: Final = 34  # type, hop count, link-address, peer-address: RFC 8415 section 9
_HEAD: Final = 4  # type and transaction: section 8
_OPTION_HEAD: Final = 4
_IA_HEAD: Final = 12  # IAID, T1, T2: section 21.4
_IAADDR: Final = 24  # address and its two lifetimes: section 21.6
_CLIENT_FQDN: Final = 39  # RFC 4704
_VARYING: Final = frozenset({Option.ELAPSED_TIME, _CLIENT_FQDN})
_CLASSES: Final = frozenset({Option.USER_CLASS, Option.VENDOR_CLASS})  # may be repeated, and all of them count

# The bits by which a link-local address is known to be made of a MAC (RFC 4291 section 2.5.6 and appendix A): ten bits
# of prefix, the group bit of the MAC, and the two bytes in the middle.
_EUI64_MASK: Final = bytes.fromhex("ffc0000000000000 010000ffff000000")

_IA_NA_BYTES: Final = 44
_IA_NA_HEAD: Final = wire.option(Option.IA_NA, bytes(40))[:4]  # IAID, T1, T2 and one IA Address option
_RELAY_REPL: Final = bytes((MessageType6.RELAY_REPL,))
_RELAY_MSG: Final = Option.RELAY_MSG.to_bytes(2, "big")
_EUI64: Final = b"\xff\xfe"
_INVERTED: Final = tuple(bytes((byte ^ 2,)) for byte in range(256))  # RFC 4291 appendix A
_NO_HOST_PREFIX: Final = bytes(2)  # :: and ::1 begin with it, and no address of a host does


class _NetworkParts(NamedTuple):
    """The parts of a reply that the network determines; `is_here`: it may be the network of this link."""

    is_here: bool
    options: bytes


class _BootParts(NamedTuple):
    """The parts of a reply that a `BootAnswer` determines. `note` is None if it differs between machines."""

    boot: BootAnswer
    options: bytes
    note: Note | None


class MacOf(Enum):
    """The source of the client's MAC."""

    SOURCE = "the address that the packet came from"
    PEER = "the peer-address of its first relay"
    LINK_LAYER = "option 79 of its first relay"
    DUID = "its DUID"


class _KnownLayout:
    """A layout: the places of the values that differ between its packets, and the prepared parts of the replies.

    transaction: of the message.
    client_id: option 1, with code and length; empty if there is none.
    iaids, addresses: of each IA_NA, and of each address in one.
    relays: for each relay, the one nearest to us first: the bytes from hop count to peer-address, the Interface-Id
        option (empty if there is none), and the number of bytes that the relays inside it add to the message.
    link: the link-address that counts; empty if none does.
    peer: the first relay's peer-address; empty if there is no relay.
    mac: the six bytes of the MAC, if it is read from option 79 or the DUID; else empty.
    """

    __slots__ = (
        "acknowledges", "addresses", "before", "boots", "client", "client_id", "expected", "iaids", "is_by_duid",
        "lease", "link", "mac", "mac_of", "mask", "names_boot", "netboots", "networks", "no_boot", "peer", "relays",
        "report", "requested", "size", "start", "transaction", "used",
    )  # fmt: skip

    def __init__(self, packet: bytes, message: Message6, relays: tuple[Relay, ...], server_id: bytes) -> None:
        """Learn from a packet, parsed to `message` and `relays`; `server_id` is our option 2. Raises NoLayoutError."""
        if message.type not in _LEARNABLE:
            raise NoLayoutError
        self.used = False
        self._learn_places(packet, relays)
        self.is_by_duid = self.mac_of is MacOf.DUID
        self.client = identify(message)
        self.netboots = is_netboot(self.client)
        self.requested = message.requested
        at_once = message.type is MessageType6.SOLICIT and message.get(Option.RAPID_COMMIT) is not None
        advertises = message.type is MessageType6.SOLICIT and not at_once
        kind = MessageType6.ADVERTISE if advertises else MessageType6.REPLY
        self.start = bytes((kind,))
        renews = message.type in RENEWALS
        self.report, self.lease = report_of(kind, renews=renews), kind.name.lower() if self.iaids and not renews else ""
        self.before = wire.option(Option.RAPID_COMMIT, b"") if at_once else wire.PREFERRED if advertises else b""
        client_id_bytes = self.client_id.stop - self.client_id.start
        self.size = 4 + client_id_bytes + len(server_id) + _IA_NA_BYTES * len(self.iaids) + len(self.before)
        self.acknowledges = bool(self.iaids) and not advertises and not renews
        # The report of a renewal does not state what the machine boots.
        self.names_boot = not renews
        self.no_boot = self.prepare(NOTHING)
        self.boots: dict[BootPath | None, _BootParts] = {}
        self.networks: Newest[Network6, _NetworkParts] = Newest(MAX_NETWORKS_OF_A_LAYOUT)

    def prepare(self, boot: BootAnswer) -> _BootParts:
        """Return the parts of a reply that a boot file determines."""
        named = boot if self.names_boot else NOTHING
        note = reply_note(self.report, self.client, named, self.lease) if named.shared else None
        return _BootParts(boot, boot.options, note)

    def fits(self, packet: bytes) -> bool:
        """Return True if the packet, which has the right length, is of this layout."""
        return int.from_bytes(packet, "big") & self.mask == self.expected

    def _learn_places(self, packet: bytes, relays: tuple[Relay, ...]) -> None:
        mask = bytearray(b"\xff" * len(packet))
        self.mac_of = _mac_of(relays)
        self.link = self.mac = self.peer = NOWHERE
        places: list[tuple[slice, slice]] = []
        begin, end = 0, len(packet)
        # The number of the relay whose link-address is the client's link, or -1.
        counts = max((number for number, relay in enumerate(relays) if not wire.is_local(relay.link)), default=-1)
        for number in range(len(relays)):
            vary(mask, begin + 1, begin + (2 if number > counts else 18))
            vary(mask, begin + 18, begin + _RELAY_HEAD)
            if number == counts:
                self.link = slice(begin + 2, begin + 18)
            head = slice(begin + 1, begin + _RELAY_HEAD)
            interface, begin, end = self._relay(packet, mask, begin, end, is_first=number == len(relays) - 1)
            places.append((head, interface))
        self._message(packet, mask, begin, end)
        # A relay adds its type, the returned fields, and the head of the Relay Message option.
        sizes = [1 + (head.stop - head.start) + (interface.stop - interface.start) + 4 for head, interface in places]
        self.relays = tuple((*place, sum(sizes[number + 1 :])) for number, place in enumerate(places))
        if self.mac_of is MacOf.DUID:
            duid = packet[self.client_id][_OPTION_HEAD:]
            if wire.of_duid(duid) is None or duid[2:4] != _ETHERNET:
                raise NoLayoutError
            at = self.client_id.start + _OPTION_HEAD
            mask[at : at + 4] = b"\xff" * 4  # the type of DUID, and the hardware type
            self.mac = slice(self.client_id.stop - 6, self.client_id.stop)
        self.mask = int.from_bytes(mask, "big")
        self.expected = int.from_bytes(packet, "big") & self.mask

    def _relay(self, packet: bytes, mask: bytearray, begin: int, end: int, *, is_first: bool) -> tuple[slice, int, int]:
        """Return the place of the Interface-Id, and the ends of the inner message; `is_first`: next to the client."""
        interface = inner = link_layer = NOWHERE
        seen: set[int] = set()
        for code, at, stop in _options(packet, begin + _RELAY_HEAD, end):
            # The fast path does not know the packet's source port.
            if code in seen or code == Option.RELAY_PORT:
                raise NoLayoutError
            seen.add(code)
            value = slice(at, stop)
            if code == Option.RELAY_MSG:
                inner = value
            elif code == Option.CLIENT_LINKLAYER_ADDR:
                link_layer = value
            else:
                vary(mask, at, stop)
                interface = slice(at - _OPTION_HEAD, stop) if code == Option.INTERFACE_ID else interface
        if is_first:
            self.peer = slice(begin + 18, begin + _RELAY_HEAD)
            if self.mac_of is MacOf.LINK_LAYER:
                self.mac = slice(link_layer.start + 2, link_layer.stop)
                vary(mask, self.mac.start, self.mac.stop)
            elif self.mac_of is MacOf.PEER:
                mask[self.peer] = _EUI64_MASK
        return interface, inner.start, inner.stop

    def _message(self, packet: bytes, mask: bytearray, begin: int, end: int) -> None:
        self.transaction = slice(begin + 1, begin + _HEAD)
        vary(mask, begin + 1, begin + _HEAD)
        self.client_id = NOWHERE
        iaids: list[slice] = []
        self.addresses: list[slice] = []
        seen: set[int] = set()
        for code, at, stop in _options(packet, begin + _HEAD, end):
            if code == Option.IA_NA:
                if len(iaids) == wire.MAX_IAS or stop - at < _IA_HEAD:
                    raise NoLayoutError
                iaids.append(slice(at, at + 4))
                vary(mask, at, at + _IA_HEAD)
                for inner_code, inner_at, inner_stop in _options(packet, at + _IA_HEAD, stop):
                    if inner_code == Option.IAADDR and inner_stop - inner_at >= _IAADDR:
                        self.addresses.append(slice(inner_at, inner_at + 16))
                        vary(mask, inner_at, inner_at + _IAADDR)
                continue
            if (code in seen and code not in _CLASSES) or code in (Option.IA_TA, Option.IA_PD):
                raise NoLayoutError
            seen.add(code)
            if code == Option.CLIENTID:
                if at == stop:
                    raise NoLayoutError  # a DUID that is not echoed
                self.client_id = slice(at - _OPTION_HEAD, stop)
                vary(mask, at, stop)
            elif code in _VARYING:
                vary(mask, at, stop)
        self.iaids = tuple(iaids)


def _mac_of(relays: tuple[Relay, ...]) -> MacOf:
    """Return where `edge.dhcp6.wire.mac_of` finds the MAC of a client behind these relays. Raises NoLayoutError."""
    # The packet of an InfiniBand port does not contain the MAC. The DUID is the last choice.
    if not relays:
        return MacOf.SOURCE
    if wire.is_mac(relays[-1].link_layer):
        return MacOf.LINK_LAYER
    if wire.is_of_infiniband(relays[-1].link_layer):
        raise NoLayoutError
    peer = relays[-1].peer
    return MacOf.PEER if peer.is_link_local and eui64_mac(peer) is not None else MacOf.DUID


def _options(packet: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the code of each option, and begin and end of its value. Raises NoLayoutError if one is cut off."""
    # A message may have been answered without a look into all of its options.
    while at < end:
        begin = at + _OPTION_HEAD
        at = begin + int.from_bytes(packet[at + 2 : begin], "big")
        if at > end or begin > end:
            raise NoLayoutError
        yield int.from_bytes(packet[begin - _OPTION_HEAD : begin - 2], "big"), begin, at


class FastPath6:
    """Answers messages of the layouts that it has learnt."""

    def __init__(self, reservations: Mapping[bytes, Reservation6], context: Context6) -> None:
        """`reservations` are the compiled ones, by the six bytes of the MAC."""
        self._reservation = reservations.get
        self._decide = context.policy.decide
        self._choice = context.choice
        self._quarantined = context.quarantine.macs
        self._recent_leases = context.declines.recent_leases
        self._reports = context.reports
        self._take_reply = context.replies.take
        self._clock = context.clock
        self._server_id = context.server_id
        self._here = context.settings.networks
        self._carried = context.relays.carried
        self.layouts: KnownLayouts[_KnownLayout] = KnownLayouts(MAX_LAYOUTS, MAX_LAYOUTS_OF_A_LENGTH)
        """By length."""
        self._layouts_of = self.layouts.lists.get

    def answer(self, packet: bytes, source: bytes, *, is_unicast: bool) -> Reply | None:
        """Return the reply to a packet from `source`, or None. `is_unicast`: it was not sent to a group."""
        layouts = self._layouts_of(len(packet))
        if layouts is None:
            return None
        number = int.from_bytes(packet, "big")
        for known in layouts:
            if number & known.mask == known.expected:
                break
        else:
            return None

        if known.mac is not NOWHERE:
            # This peer address may be made of a MAC, which counts more than the DUID.
            if known.is_by_duid and packet[known.peer][11:13] == _EUI64:
                return None
            mac = packet[known.mac]
        else:
            address = packet[known.peer] if known.relays else source
            if not known.relays and (
                # A link-local address that is made of a MAC, as `tink.mac.eui64_mac` defines it.
                is_unicast or source[11:13] != _EUI64 or source[8] & 1 or not is_link_local_packed(source)
            ):
                return None
            # RFC 4291 appendix A: the MAC with one bit inverted and two bytes in its middle.
            mac = _INVERTED[address[8]] + address[9:11] + address[13:16]
        reservation = self._reservation(mac)
        if reservation is None or reservation.unserved:
            return None
        machine, network = reservation.machine, reservation.network
        if not network.is_plain or (known.link is not NOWHERE and not network.holds(packet[known.link])):
            return None
        if self._quarantined and machine.mac in self._quarantined:
            return None
        for at in known.addresses:
            if packet[at] != reservation.packed:
                return None
        is_here, network_options = known.networks.get(network) or self._parts_of(known, network)
        if not (known.relays or is_here):
            return None
        boot, boot_options, note = self._boot_of(known, machine) if known.netboots else known.no_boot

        # RFC 8415 section 19.3: each relay's message goes around the next one, so the sizes are needed first.
        pieces: list[bytes] = []
        size = known.size + len(network_options) + len(boot_options)
        for head, interface, inner in known.relays:
            length = (size + inner).to_bytes(2, "big")
            pieces += (_RELAY_REPL, packet[head], packet[interface], _RELAY_MSG, length)
        pieces += (known.start, packet[known.transaction], packet[known.client_id], self._server_id)
        for at in known.iaids:
            pieces += (_IA_NA_HEAD, packet[at], reservation.lease)
        pieces += (known.before, network_options, boot_options)
        payload = b"".join(pieces)

        # A relay of the machine's own network may serve a whole site. A client's link-local address is in no network.
        is_own = network.holds(source)
        if not is_own and (
            # Neither a group, nor :: or ::1, is a host's address.
            source[0] == 0xFF or source.startswith(_NO_HOST_PREFIX) or not self._take_reply(source, self._clock())
        ):
            return None
        known.used = True
        if known.acknowledges:
            self._recent_leases.newest.add(mac)
            if is_own and known.relays:
                self._carried(source, mac)
        if note is not None:
            self._reports.take(machine.mac, note)
        else:
            named = boot if known.names_boot else NOTHING
            self._reports.sent(machine.mac, known.report, known.client, named, lease=known.lease)
        # The same as Reply(), in half the time.
        return tuple.__new__(Reply, (payload, text_of(source), SERVER_PORT if known.relays else CLIENT_PORT, b""))

    def _parts_of(self, known: _KnownLayout, network: Network6) -> _NetworkParts:
        """Prepare the parts for a network that this layout meets for the first time."""
        is_here = not self._here or any(network.subnet.overlaps(each) for each in self._here)
        parts = _NetworkParts(is_here, network.requested(known.requested))
        known.networks[network] = parts
        return parts

    def _boot_of(self, known: _KnownLayout, machine: Machine) -> _BootParts:
        """Return the parts for what the machine boots, or for its refusal."""
        is_shared = known.client.stage is Stage.PXE_ROM and self._decide(machine).allowed
        path = self._choice.path(machine) if is_shared else None
        parts = known.boots.get(path) if is_shared else None
        if parts is None:
            boot = self._choice.choose(machine, known.client)
            parts = known.prepare(boot)
            if is_shared and boot.shared:
                known.boots[path] = parts
        return parts

    def learn(self, packet: bytes, message: Message6, relays: tuple[Relay, ...]) -> None:
        """Learn the layout of a packet, parsed to `message` and `relays`, that was answered in full."""
        if not any(known.fits(packet) for known in self._layouts_of(len(packet), ())):
            self.layouts.add(len(packet), lambda: _KnownLayout(packet, message, relays, self._server_id))
