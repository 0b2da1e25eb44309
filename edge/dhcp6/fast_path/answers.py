"""Answers to messages of known layouts, without parsing them and without building a reply anew. Pure.

A layout (`edge.dhcp6.fast_path.layout`) is learnt from each kind of message that has been answered in full. For the
next one of this layout everything is known but a few values, so the answer is a look-up and a join of prepared parts:

    what the kind of client decides    the reply's type, which options it wants, words for the journey
    what its network decides           name servers and search list: made for each pair of layout and network
    what its boot path decides         the boot file, for ROMs that get it by TFTP; of the others each gets its own
    what the machine decides           the address and its lifetimes: `edge.dhcp6.reservation`
    what the packet decides            transaction, DUID, IAIDs, and what is sent back to relays

Nothing here is kept per machine. Whatever is not plain (another address than the machine's, one in quarantine, another
link, a MAC that only the neighbour table can tell, a message that was not sent to a group) is left to
`edge.dhcp6.responder`, which decides alone what is right: both give the same bytes for the same packet, and tell the
journey the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv6Network
from typing import Final, NamedTuple

from edge.conflict import Acknowledged, Quarantine, Relays
from edge.dhcp6 import wire
from edge.dhcp6.boot import NOTHING, Boot6, BootChoice6, Stage, identify
from edge.dhcp6.datagram import CLIENT_PORT, SERVER_PORT, Reply6, text_of
from edge.dhcp6.fast_path.layout import NOWHERE, Layout, MacOf, layout_of
from edge.dhcp6.reports import Reports6, prepared
from edge.dhcp6.reservation import Network6, Reservation6
from edge.dhcp6.wire import RENEWALS, Message6, MessageType6, Option, Relay
from edge.journey.events import Note
from edge.machines import Machine, NetbootPolicy
from ipxe.binaries import BootPath
from tink.limits.allowance import Allowance
from tink.limits.newest import UsedLists
from tink.net.addresses import is_link_local_packed

_LAYOUTS: Final = 256
"""Layouts that are kept. A rack has a handful; what invented ones push out is learnt again from its next packet."""
_LAYOUTS_OF_A_LENGTH: Final = 16
_NETWORKS_OF_A_LAYOUT: Final = 256

_IA_NA_BYTES: Final = 44
_IA_NA_HEAD: Final = wire.option(Option.IA_NA, bytes(40))[:4]  # IAID, T1, T2 and one IA Address option
_RELAY_REPL: Final = bytes((MessageType6.RELAY_REPL,))
_RELAY_MSG: Final = Option.RELAY_MSG.to_bytes(2, "big")
_EUI64: Final = b"\xff\xfe"
_INVERTED: Final = tuple(bytes((byte ^ 2,)) for byte in range(256))  # RFC 4291 appendix A
_NOT_A_HOSTS: Final = bytes(2)  # how :: and ::1 begin, and no address of a host


class _NetworkParts(NamedTuple):
    """What clients of one layout get in one network: `told` are its options, `is_here` that it may be the link's."""

    is_here: bool
    told: bytes


class _BootParts(NamedTuple):
    """What comes of a `Boot6`. `note` is None where it is another for each machine."""

    boot: Boot6
    options: bytes
    note: Note | None


class _KnownLayout:
    """How messages of one layout are answered."""

    __slots__ = (
        "acknowledges", "addresses", "before", "boots", "client", "client_id", "expected", "iaids", "is_by_duid",
        "kind", "lease", "link", "mac", "mask", "netboots", "networks", "no_boot", "peer", "relays", "requested",
        "size", "start", "tells_boot", "transaction", "used",
    )  # fmt: skip

    def __init__(self, layout: Layout, message: Message6, server_id: bytes) -> None:
        self.mask = layout.mask
        self.expected = layout.expected
        self.transaction = layout.transaction
        self.client_id = layout.client_id
        self.iaids = layout.iaids
        self.addresses = layout.addresses
        self.relays = tuple(_inside(layout.relays))
        self.link = layout.link
        self.peer = layout.peer
        self.mac = layout.mac
        self.is_by_duid = layout.mac_of is MacOf.DUID
        self.client = identify(message)
        self.requested = message.requested
        at_once = message.type is MessageType6.SOLICIT and message.get(Option.RAPID_COMMIT) is not None
        advertises = message.type is MessageType6.SOLICIT and not at_once
        self.kind = MessageType6.ADVERTISE if advertises else MessageType6.REPLY
        self.start = bytes((self.kind,))
        self.before = (wire.option(Option.RAPID_COMMIT, b"") if at_once else b"") + (
            wire.PREFERRED if advertises else b""
        )
        self.lease = bool(layout.iaids)
        self.size = 4 + _length(layout.client_id) + len(server_id) + _IA_NA_BYTES * len(layout.iaids) + len(self.before)
        self.acknowledges = self.lease and not advertises and message.type not in RENEWALS
        self.netboots = self.client.netboots
        self.tells_boot = message.type not in RENEWALS
        self.no_boot = self.prepare(NOTHING)
        self.boots: dict[BootPath | None, _BootParts] = {}
        self.networks: dict[Network6, _NetworkParts] = {}
        self.used = False

    def prepare(self, boot: Boot6) -> _BootParts:
        """Made of a boot file that a client of this layout is told for the first time, or that only one is told."""
        said = boot if self.tells_boot else NOTHING
        return _BootParts(
            boot, boot.options, prepared(self.kind, self.client, said, lease=self.lease) if said.shared else None
        )


class FastPath6:
    """Answers what it has learnt from replies in full."""

    def __init__(
        self,
        reservations: Mapping[bytes, Reservation6],
        policy: NetbootPolicy,
        choice: BootChoice6,
        quarantine: Quarantine,
        acknowledged: Acknowledged,
        reports: Reports6,
        answers: Allowance,
        clock: Callable[[], float],
        server_id: bytes,
        networks: Sequence[IPv6Network],
        relays: Relays,
    ) -> None:
        """`reservations` are those that are compiled, by the six bytes of the MAC; `server_id` is the option, encoded;
        `networks` are those of the interface (none: unknown); the rest is that of the responder."""
        self._reservation = reservations.get
        self._decide = policy.decide
        self._choice = choice
        self._quarantined = quarantine.macs
        self._acknowledged = acknowledged
        self._reports = reports
        self._answers = answers
        self._clock = clock
        self._server_id = server_id
        self._here = tuple(networks)
        self._carried = relays.carried
        self._known: UsedLists[int, _KnownLayout] = UsedLists(_LAYOUTS, _LAYOUTS_OF_A_LENGTH)
        self._alike = self._known.lists.get  # by length

    def answer(self, packet: bytes, source: bytes, *, to_us_alone: bool) -> Reply6 | None:
        """The reply to a packet from `source` (sixteen bytes), or None: it has to be answered in full.

        `to_us_alone`: it was not sent to a group.
        """
        alike = self._alike(len(packet))
        if alike is None:
            return None
        number = int.from_bytes(packet, "big")
        for known in alike:
            if number & known.mask == known.expected:
                break
        else:
            return None

        if known.mac is not NOWHERE:
            if known.is_by_duid and packet[known.peer][11:13] == _EUI64:
                return None
            mac = packet[known.mac]
        else:
            address = packet[known.peer] if known.relays else source
            if not known.relays and (to_us_alone or not _is_of_a_mac(source)):
                return None
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
        is_here, told = known.networks.get(network) or self._parts_of(known, network)
        if not (known.relays or is_here):
            return None
        boot, boot_options, note = self._boot_of(known, machine) if known.netboots else known.no_boot

        pieces: list[bytes] = []
        size = known.size + len(told) + len(boot_options)
        for head, interface, inner in known.relays:
            length = (size + inner).to_bytes(2, "big")
            pieces += (_RELAY_REPL, packet[head], packet[interface], _RELAY_MSG, length)
        pieces += (known.start, packet[known.transaction], packet[known.client_id], self._server_id)
        for at in known.iaids:
            pieces += (_IA_NA_HEAD, packet[at], reservation.lease)
        pieces += (known.before, told, boot_options)
        payload = b"".join(pieces)

        # A relay of the machine's own network may carry a whole site; a client's link-local address is in none.
        is_own = network.holds(source)
        if not is_own and not self._may_answer(source):
            return None
        known.used = True
        if known.acknowledges:
            self._acknowledged.lately.add(mac)
            if is_own and known.relays:
                self._carried(source, mac)
        if note is not None:
            self._reports.take(machine.mac, note)
        else:
            said = boot if known.tells_boot else NOTHING
            self._reports.sent(machine.mac, known.kind, known.client, said, lease=known.lease)
        # What Reply6() does, in half the time: one is made for each packet.
        return tuple.__new__(Reply6, (payload, text_of(source), SERVER_PORT if known.relays else CLIENT_PORT))

    def _may_answer(self, source: bytes) -> bool:
        """As `Responder6._may_answer`, and whether that is a host's address, which one of the own network is."""
        if source[0] == 0xFF or source.startswith(_NOT_A_HOSTS):
            return False
        return self._answers.take(source, self._clock())

    def _parts_of(self, known: _KnownLayout, network: Network6) -> _NetworkParts:
        """Made when a layout meets a network for the first time."""
        is_here = not self._here or any(network.subnet.overlaps(each) for each in self._here)
        parts = _NetworkParts(is_here, network.told(known.requested))
        if len(known.networks) >= _NETWORKS_OF_A_LAYOUT:
            known.networks.clear()
        known.networks[network] = parts
        return parts

    def _boot_of(self, known: _KnownLayout, machine: Machine) -> _BootParts:
        """What the machine boots, or why it may not."""
        is_alike = known.client.stage is Stage.PXE_ROM and self._decide(machine).allowed
        path = self._choice.path(machine) if is_alike else None
        parts = known.boots.get(path) if is_alike else None
        if parts is None:
            boot = self._choice.choose(machine, known.client)
            parts = known.prepare(boot)
            if is_alike and boot.shared:
                known.boots[path] = parts
        return parts

    def learn(self, packet: bytes, message: Message6, relays: tuple[Relay, ...]) -> None:
        """Take note of a packet, parsed to `message` and `relays`, that was answered in full."""
        number = int.from_bytes(packet, "big")
        if any(number & known.mask == known.expected for known in self._alike(len(packet), ())):
            return
        layout = layout_of(packet, message, relays)
        if layout is not None:
            self._known.add(len(packet), _KnownLayout(layout, message, self._server_id))


def _is_of_a_mac(address: bytes) -> bool:
    """Return True if the address is link-local and made from a MAC, as `tink.mac.eui64_mac` defines it."""
    return is_link_local_packed(address) and address[11:13] == _EUI64 and not address[8] & 1


def _inside(relays: list[tuple[slice, slice]]) -> Iterator[tuple[slice, slice, int]]:
    """The same, each with how many bytes the relays inside it add to the message that goes to the client."""
    inner = sum(_size_of(*relay) for relay in relays)
    for head, interface in relays:
        inner -= _size_of(head, interface)
        yield head, interface, inner


def _size_of(head: slice, interface: slice) -> int:
    """Of a relay's message around another: its type, what is sent back, and the head of the option with the other."""
    return 1 + _length(head) + _length(interface) + 4


def _length(place: slice) -> int:
    return int(place.stop - place.start)
