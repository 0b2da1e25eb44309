"""The fast path: answers a packet of a known layout (`edge.dhcp_common.layouts`) by a look-up. Pure.

A layout is learnt from a packet that was answered in full with an OFFER or ACK. The reply to the next packet of this
layout is one join of prepared parts:

    the kind of client   order and choice of options, size limit, words for the journey: `_KnownLayout`
    its network          mask, router, servers, lease: `OptionPlan` for each pair of layout and network
    its boot file        header fields and options: `_BootParts` for each pair of layout and maker of machines
    the machine          address, host name: `edge.dhcp.reservation`
    the packet           transaction, flags, relay, and the options that are echoed

These values may differ between the packets of a layout, and nothing else: the transaction, hop count and seconds, the
flags, the relay's address, the MAC; the values of options 12, 50, 61, 81 and 97; and the sub-options of option 82 that
`codec.relay_agent_of` does not read. Their lengths may not differ.

Nothing is stored per machine, so the time for a packet does not depend on the number of machines. Every other packet (a
renewal, a refusal, an address in quarantine, an unknown relay, a large reply) is left to `edge.dhcp.responder`. Both
give the same bytes for the same packet: tests/unit/dhcp/test_fast_path.py compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from edge.dhcp.boot import PI_NAME, PI_NAME_AT, identify
from edge.dhcp.context import BROADCAST, CLIENT_PORT, SERVER_PORT, DhcpContext, size_limit
from edge.dhcp.reservation import OptionPlan, Reservation, Subnet
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import relay_agent_of
from edge.dhcp_common import (
    MAX_LAYOUTS,
    NOTHING,
    NOWHERE,
    BootAnswer,
    KnownLayouts,
    NoLayoutError,
    Quarantine,
    RecentLeases,
    Reply,
    Stage,
    reply_note,
    vary,
)
from edge.journey.events import Note
from edge.machines import NetbootPolicy
from ipxe.binaries import BootPath, NoBinaryError
from tink.limits import Newest

MAX_LAYOUTS_OF_A_LENGTH: Final = 8
MAX_NETWORKS_OF_A_LAYOUT: Final = 256
MAX_MAKERS_OF_A_LAYOUT: Final = 256

_VARYING: Final = frozenset(
    {options.HOST_NAME, options.REQUESTED_ADDRESS, options.CLIENT_IDENTIFIER, options.CLIENT_FQDN}
)
_FIXED_SUBOPTIONS: Final = frozenset({options.LINK_SELECTION, options.SERVER_IDENTIFIER_OVERRIDE})
_OPTIONS_AT: Final = 240
# The header's fields that may differ: hops and xid; secs, flags, ciaddr, yiaddr, siaddr, giaddr and the MAC; sname and
# file. Fixed are op, htype and hlen, and the padding of chaddr.
_VARYING_HEADER: Final = ((3, 34), (44, 236))
# The same for `struct`, from op to file. One unpack gives the fixed bytes and the fields that a reply needs, which is
# faster than the mask: op, htype, hlen; xid; flags, ciaddr; giaddr; the MAC; the padding of chaddr.
_HEADER_FORMAT: Final = "!3sx4s2x6s8x4s6s10s192x"
_HEADER_FIELDS: Final = 6

# The sizes of small replies after padding. Below this limit, padding never reaches a client's limit.
_SMALL_BYTES: Final = 516
_PADDED_BYTES: Final = tuple(codec.padded_size(size, _SMALL_BYTES + 32) for size in range(_SMALL_BYTES))

_MIN_PACKET_BYTES: Final = 244  # header, cookie, option 53 and END

_REPLY_HEAD: Final = bytes((codec.BOOTREPLY, codec.ETHERNET, 6, 0))
_SECS: Final = bytes(2)
_LEASES: Final = {(MessageType.DISCOVER, MessageType.OFFER), (MessageType.REQUEST, MessageType.ACK)}
# The values of flags and `ciaddr` together; `ciaddr` must be zero, or it is a renewal.
_IS_BROADCAST: Final = {bytes(6): False, b"\x80" + bytes(5): True}


class _BootParts(NamedTuple):
    """The parts of a reply that a `BootAnswer` determines; `note` is None if it differs between machines."""

    boot: BootAnswer
    siaddr: bytes
    header: bytes
    options: bytes
    note: Note | None


class _KnownLayout:
    """A layout, and the prepared parts of the replies to its packets.

    client_identifier, client_uuid, relay_information: the places of options 61, 97 and 82, with code and length.
    requested_address: the place of the value of option 50.
    unpack: returns the fields of a packet. They are of this layout if `fixed(fields) == fixed_values`.
    pi_name_at: the place of PI_NAME in option 97. `is_pi`: all packets of this layout have the name there, else none.
    """

    __slots__ = (
        "acknowledges", "boots_of_makers", "client", "client_identifier", "client_uuid", "fixed", "fixed_values",
        "is_ipxe", "is_pi", "lease", "limit", "link", "netboots", "networks", "no_boot", "parameter_request_list",
        "pi_name_at", "relay_information", "report", "requested_address", "start", "unpack", "used",
    )  # fmt: skip

    def __init__(self, packet: bytes, message: Message, message_type: MessageType, start: bytes) -> None:
        """Learn from a packet with a reply of this type; `start`: its options 53 and 54. Raises NoLayoutError."""
        self.used = False
        self._learn_places(packet, message)
        self.report, self.lease = f"DHCP{message_type.name}", message_type.name.lower()
        self.acknowledges = message_type is MessageType.ACK
        self.client = identify(message)
        self.netboots = self.client.stage is not Stage.OPERATING_SYSTEM
        self.is_ipxe = self.client.stage is Stage.IPXE
        self.parameter_request_list = message.options.get(options.PARAMETER_REQUEST_LIST)
        self.start = start
        self.limit = size_limit(message)
        # The link selection of option 82; without it, the link is the relay's address of each packet.
        self.link = relay_agent_of(message._replace(giaddr=codec.NO_ADDRESS)).link
        # The plans, each with options 53 and 54 and the lease in front.
        self.networks: Newest[Subnet, OptionPlan] = Newest(MAX_NETWORKS_OF_A_LAYOUT)
        self.no_boot = self.prepare(NOTHING)
        # By the first three bytes of the MAC.
        self.boots_of_makers: Newest[bytes, _BootParts] = Newest(MAX_MAKERS_OF_A_LAYOUT)

    def _learn_places(self, packet: bytes, message: Message) -> None:
        if options.OVERLOAD in message.options or any(packet[12:16]) or any(packet[34:44]):
            raise NoLayoutError
        mask = bytearray(b"\xff" * len(packet))
        for begin, end in _VARYING_HEADER:
            vary(mask, begin, end)
        places: dict[int, slice] = {}
        at = _OPTIONS_AT
        while at < len(packet) and packet[at] != options.END:
            code = packet[at]
            if code == options.PAD:
                at += 1
                continue
            begin, end = at + 2, at + 2 + packet[at + 1]
            if code in places:
                raise NoLayoutError  # an option in several instances (RFC 3396)
            places[code] = slice(at, end)
            if code == options.RELAY_AGENT_INFORMATION:
                _vary_suboptions(packet, mask, begin, end)
            elif code == options.CLIENT_UUID:
                if end - begin != 17 or packet[begin] != 0:
                    raise NoLayoutError  # a UUID that is not echoed
                vary(mask, begin + 1, end)
            elif code in _VARYING:
                if begin == end:
                    raise NoLayoutError
                vary(mask, begin, end)
            at = end
        if at >= len(packet):
            raise NoLayoutError  # there is no END
        vary(mask, at + 1, len(packet))

        self.client_identifier = places.get(options.CLIENT_IDENTIFIER, NOWHERE)
        self.client_uuid = uuid = places.get(options.CLIENT_UUID, NOWHERE)
        self.relay_information = places.get(options.RELAY_AGENT_INFORMATION, NOWHERE)
        requested = places.get(options.REQUESTED_ADDRESS)
        self.requested_address = slice(requested.start + 2, requested.stop) if requested is not None else NOWHERE
        self.pi_name_at = NOWHERE
        if uuid is not NOWHERE:
            self.pi_name_at = slice(uuid.start + 2 + PI_NAME_AT.start, uuid.start + 2 + PI_NAME_AT.stop)
        self.is_pi = packet[self.pi_name_at] == PI_NAME

        pieces, fixed = [_HEADER_FORMAT], [0, 5]
        for is_fixed, run in groupby(mask[236:], bool):
            if is_fixed:
                fixed.append(_HEADER_FIELDS + len(fixed) - 2)
            pieces.append(f"{len(list(run))}{'s' if is_fixed else 'x'}")
        self.unpack: Callable[[bytes], tuple[bytes, ...]] = struct.Struct("".join(pieces)).unpack
        self.fixed: Callable[[tuple[bytes, ...]], tuple[bytes, ...]] = itemgetter(*fixed)
        self.fixed_values = self.fixed(self.unpack(packet))

    def fits(self, packet: bytes) -> bool:
        """Return True if the packet, which has the right length, is of this layout."""
        is_fixed = self.fixed(self.unpack(packet)) == self.fixed_values
        return is_fixed and (packet[self.pi_name_at] == PI_NAME) is self.is_pi

    def plan_of(self, network: Subnet) -> OptionPlan:
        """Prepare the parts for a network that this layout meets for the first time."""
        plan = network.plan(self.parameter_request_list)
        plan = self.networks[network] = plan._replace(before=self.start + network.lease + plan.before)
        return plan

    def prepare(self, boot: BootAnswer) -> _BootParts:
        """Return the parts of a reply that a boot file determines."""
        return _BootParts(
            boot,
            boot.siaddr,
            bytes(10) + boot.sname.ljust(64, b"\0") + boot.file.ljust(128, b"\0") + codec.MAGIC_COOKIE,
            boot.spare_options + boot.options,
            reply_note(self.report, self.client, boot, self.lease) if boot.shared else None,
        )


class FastPath:
    """Answers packets of the layouts that it has learnt."""

    def __init__(
        self,
        reservations: Mapping[bytes, Reservation],
        policy: NetbootPolicy,
        context: DhcpContext,
        quarantine: Quarantine,
        recent_leases: RecentLeases,
    ) -> None:
        """`reservations` are the compiled ones, by the six bytes of the MAC."""
        self._reservations = reservations
        self._decide = policy.decide
        self._follows_workflows = policy.follows_workflows
        self._choose = context.choice.choose
        self._quarantined = quarantine.macs
        self._recent_leases = recent_leases
        self._take = context.reports.take
        self._sent = context.reports.sent
        self._near_relays = context.near_relays
        self._carried = context.relays.carried
        self.layouts: KnownLayouts[_KnownLayout] = KnownLayouts(MAX_LAYOUTS, MAX_LAYOUTS_OF_A_LENGTH)
        """By length and the byte that is the message type in most packets."""
        self._layouts_of = self.layouts.lists.get

    def answer(self, packet: bytes) -> Reply | None:
        """Return the OFFER or ACK for a packet of port 67, or None if it must be answered in full."""
        if len(packet) < _MIN_PACKET_BYTES:
            return None
        for known in self._layouts_of(len(packet) << 8 | packet[242], ()):
            fields = known.unpack(packet)
            if known.fixed(fields) == known.fixed_values and (packet[known.pi_name_at] == PI_NAME) is known.is_pi:
                break
        else:
            return None
        _, xid, flags, giaddr, chaddr = fields[:5]

        broadcast = _IS_BROADCAST.get(flags)
        reservation = self._reservations.get(chaddr)
        if reservation is None or reservation.unserved or broadcast is None:
            return None
        mac, network = reservation.mac, reservation.network
        if (known.link or giaddr) not in network.links:
            return None
        if self._quarantined and mac in self._quarantined:
            return None
        if known.requested_address is not NOWHERE and packet[known.requested_address] != reservation.yiaddr:
            return None

        boot_parts: _BootParts | None = known.no_boot
        if known.netboots:
            may = self._decide(reservation.machine).allowed if self._follows_workflows else reservation.may_netboot
            if not may:
                return None
            if reservation.boot_path is None:
                boot_parts = known.boots_of_makers.get(chaddr[:3]) or self._prepare(known, mac, chaddr)
            else:
                boot_parts = self._prepare(known, mac, chaddr, reservation.boot_path)
        if boot_parts is None:
            return None
        boot, siaddr, header, boot_options, note = boot_parts
        before, names_host, behind, _ = known.networks.get(network) or known.plan_of(network)

        payload = b"".join(
            (
                _REPLY_HEAD, xid, _SECS, flags, reservation.yiaddr, siaddr, giaddr, chaddr, header, before,
                reservation.hostname if names_host else b"", behind, reservation.vlan if known.is_ipxe else b"",
                packet[known.client_identifier], packet[known.client_uuid], boot_options,
                packet[known.relay_information], codec.END,
            )
        )  # fmt: skip
        size = len(payload)
        if size > known.limit:
            return None
        payload = payload.ljust(
            _PADDED_BYTES[size] if size < _SMALL_BYTES else codec.padded_size(size, known.limit), b"\0"
        )

        if giaddr != codec.NO_ADDRESS:
            relay = self._near_relays.get(giaddr)
            if relay is None:
                return None
            if known.acknowledges:
                self._carried(giaddr, chaddr)
            # The same as Reply(), in half the time.
            reply = tuple.__new__(Reply, (payload, relay, SERVER_PORT, b""))
        elif broadcast:
            reply = Reply(payload, BROADCAST, CLIENT_PORT)
        else:
            reply = Reply(payload, options.dotted(reservation.yiaddr), CLIENT_PORT, chaddr)
        known.used = True
        if known.acknowledges:
            self._recent_leases.newest.add(chaddr)
        if note is not None:
            self._take(mac, note)
        else:
            self._sent(mac, known.report, known.client, boot, lease=known.lease)
        return reply

    def _prepare(self, known: _KnownLayout, mac: str, chaddr: bytes, path: BootPath | None = None) -> _BootParts | None:
        """Return the parts for what the machine boots, or None if there is no file for it."""
        try:
            boot = self._choose(known.client, mac, path)
        except NoBinaryError:
            return None
        parts = known.prepare(boot)
        if boot.shared and path is None:
            known.boots_of_makers[chaddr[:3]] = parts
        return parts

    def learn(self, packet: bytes, message: Message, message_type: MessageType, reply: Reply) -> None:
        """Learn the layout of a packet of port 67 that was answered in full with `reply`."""
        # Our replies begin with options 53 and 54.
        answer, start = reply.payload[242], reply.payload[240:249]
        key = len(packet) << 8 | packet[242]
        if (message_type, answer) not in _LEASES or any(known.fits(packet) for known in self._layouts_of(key, ())):
            return
        self.layouts.add(key, lambda: _KnownLayout(packet, message, MessageType(answer), start))


def _vary_suboptions(packet: bytes, mask: bytearray, at: int, end: int) -> None:
    """Let the sub-options of option 82 differ that do not affect the reply. Raises NoLayoutError."""
    seen: set[int] = set()
    while at < end:
        code = packet[at]
        if code in (options.PAD, options.END) or code in seen or at + 1 >= end:
            raise NoLayoutError
        seen.add(code)
        begin, at = at + 2, at + 2 + packet[at + 1]
        # The fast path does not know the packet's source port.
        if at > end or code == options.RELAY_SOURCE_PORT:
            raise NoLayoutError
        if code not in _FIXED_SUBOPTIONS:
            vary(mask, begin, at)
