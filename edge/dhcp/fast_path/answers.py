"""Answers to packets of known layouts, without parsing them and without building a reply anew.

A layout (`edge.dhcp.fast_path.layout`) is learnt from each kind of packet that has been answered in full with an offer
or an acknowledgement. For the next packet of this layout everything is known but a few values, so the answer is a
look-up and one join of prepared parts:

    what the kind of client decides    order and choice of options, size limit, words for the journey
    what its network decides           mask, router, servers, lease: `_NetworkParts` for each pair of layout and network
    what its boot file decides         header fields and options: `_BootParts` for each layout and maker of machines
    what the machine decides           address, host name
    what the packet decides            transaction, flags, relay, and the options that are echoed

Nothing here is kept per machine, so a packet costs the same whether there are a hundred machines or a hundred thousand.
Whatever is not plain (a renewal, a refusal, an address in quarantine, a relay that is not known to be of a machine's
network, a reply that would be too large) is left to `edge.dhcp.replies`, which decides alone what is right: both give
the same bytes for the same packet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from edge.conflict import Acknowledged, Quarantine, Relays
from edge.dhcp.boot import NO_BOOT, PI_NAME, Boot, BootChoice, ClientKind, Verdict, identify
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, SERVER_PORT, Reply
from edge.dhcp.fast_path.layout import Layout, layout_of
from edge.dhcp.replies import Destinations, Network, Reservation, size_limit
from edge.dhcp.reports import Reports, lease_note
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.relay_agent import relay_agent_of
from edge.journey.events import Note
from edge.machines import NetbootPolicy
from ipxe.binaries import BootPath, NoBinaryError
from tink.limits.newest import UsedLists

_LAYOUTS: Final = 256
"""Layouts that are kept. A rack has a handful; what invented ones push out is learnt again from its next packet."""
_LAYOUTS_OF_A_LENGTH: Final = 8
_NETWORKS_OF_A_LAYOUT: Final = 256
_MAKERS_OF_A_LAYOUT: Final = 256

_LEAST_LIMIT_BYTES: Final = 516  # below it, padding by a step never reaches a client's limit
_PADDED_BYTES: Final = tuple(codec.padded_size(size, _LEAST_LIMIT_BYTES + 32) for size in range(_LEAST_LIMIT_BYTES))

_SHORTEST_BYTES: Final = 244  # header, cookie, option 53 and END

_REPLY_HEAD: Final = bytes((codec.BOOTREPLY, codec.ETHERNET, 6, 0))
_SECS: Final = bytes(2)
_LEASES: Final = {(MessageType.DISCOVER, MessageType.OFFER), (MessageType.REQUEST, MessageType.ACK)}
# The flags and, behind them, `ciaddr`, which must be zero.
_IS_BROADCAST: Final = {bytes(6): False, b"\x80" + bytes(5): True}


class _NetworkParts(NamedTuple):
    """Options 53, 54, the lease and the network, before and behind the host's name."""

    before: bytes
    names_host: bool
    behind: bytes


class _BootParts(NamedTuple):
    """What comes of a `Boot`: `siaddr`, the header from the padding of `chaddr` to the cookie, options, the note.

    `note` is None where it is another for each machine.
    """

    boot: Boot
    siaddr: bytes
    header: bytes
    options: bytes
    note: Note | None


class _KnownLayout:
    """How packets of one layout are answered."""

    __slots__ = (
        "acknowledges", "client", "client_identifier", "client_uuid", "expected", "fixed", "is_ipxe", "is_pi", "limit",
        "link", "message_type", "netboots", "networks", "no_boot", "parameter_request_list", "pi_name_at",
        "relay_information", "requested_address", "shared", "start", "unpack", "used",
    )  # fmt: skip

    def __init__(self, layout: Layout, message: Message, message_type: MessageType, start: bytes) -> None:
        """`message_type` is the reply's, `start` its options 53 and 54."""
        self.unpack = layout.unpack
        self.fixed = layout.fixed
        self.expected = layout.expected
        self.pi_name_at = layout.pi_name_at
        self.is_pi = layout.is_pi
        self.requested_address = layout.requested_address
        self.client_identifier = layout.client_identifier
        self.client_uuid = layout.client_uuid
        self.relay_information = layout.relay_information
        self.message_type = message_type
        self.acknowledges = message_type is MessageType.ACK
        self.client = identify(message)
        self.netboots = self.client.kind is not ClientKind.OPERATING_SYSTEM
        self.is_ipxe = self.client.kind is ClientKind.IPXE
        self.parameter_request_list = message.options.get(options.PARAMETER_REQUEST_LIST)
        self.start = start
        self.limit = size_limit(message)
        # Of the link selection; otherwise it is the relay's own.
        self.link = relay_agent_of(message._replace(giaddr=codec.NO_ADDRESS)).link
        self.networks: dict[Network, _NetworkParts] = {}
        self.no_boot = self.prepare(NO_BOOT)
        self.shared: dict[bytes, _BootParts] = {}  # by the maker's three bytes of the MAC
        self.used = False

    def parts_of(self, network: Network) -> _NetworkParts:
        """Made when a layout meets a network for the first time."""
        plan = network.plan(self.parameter_request_list)
        parts = _NetworkParts(self.start + network.lease + plan.before, plan.names_host, plan.behind)
        if len(self.networks) >= _NETWORKS_OF_A_LAYOUT:
            self.networks.clear()
        self.networks[network] = parts
        return parts

    def prepare(self, boot: Boot) -> _BootParts:
        """Made of a boot file that a client of this layout is told for the first time, or that only one is told."""
        return _BootParts(
            boot,
            boot.siaddr,
            bytes(10) + boot.sname.ljust(64, b"\0") + boot.file.ljust(128, b"\0") + codec.MAGIC_COOKIE,
            boot.spare_options + boot.options,
            lease_note(self.message_type, self.client, boot) if boot.shared or boot is NO_BOOT else None,
        )


class FastPath:
    """Answers what it has learnt from replies in full."""

    def __init__(
        self,
        reservations: Mapping[bytes, Reservation],
        policy: NetbootPolicy,
        choice: BootChoice,
        quarantine: Quarantine,
        acknowledged: Acknowledged,
        destinations: Destinations,
        relays: Relays,
        reports: Reports,
    ) -> None:
        """`reservations` are those that are compiled, by the six bytes of the MAC; the rest is that of the replies."""
        self._reservations = reservations
        self._decide = policy.decide
        self._follows_workflows = policy.follows_workflows
        self._choose = choice.choose
        self._quarantined = quarantine.macs
        self._acknowledged = acknowledged
        self._take = reports.take
        self._leased = reports.leased
        # By length and the byte that in most packets is the message's type.
        self._known: UsedLists[int, _KnownLayout] = UsedLists(_LAYOUTS, _LAYOUTS_OF_A_LENGTH)
        self._alike = self._known.lists.get
        self._relays = destinations.relays
        self._carried = relays.carried

    def answer(self, packet: bytes) -> Reply | None:
        """The offer or acknowledgement for a packet of port 67, or None: it has to be answered in full."""
        if len(packet) < _SHORTEST_BYTES:
            return None
        for known in self._alike(len(packet) << 8 | packet[242], ()):
            fields = known.unpack(packet)
            if known.fixed(fields) == known.expected and (packet[known.pi_name_at] == PI_NAME) is known.is_pi:
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
        if known.requested_address and fields[known.requested_address] != reservation.yiaddr:
            return None

        boot_parts: _BootParts | None = known.no_boot
        if known.netboots:
            may = self._decide(reservation.machine).allowed if self._follows_workflows else reservation.may_netboot
            if not may:
                return None
            if reservation.boot_path is None:
                boot_parts = known.shared.get(chaddr[:3]) or self._prepare(known, mac, chaddr)
            else:
                boot_parts = self._prepare(known, mac, chaddr, reservation.boot_path)
        if boot_parts is None:
            return None
        boot, siaddr, header, boot_options, note = boot_parts
        before, names_host, behind = known.networks.get(network) or known.parts_of(network)

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
            _PADDED_BYTES[size] if size < _LEAST_LIMIT_BYTES else codec.padded_size(size, known.limit), b"\0"
        )

        if giaddr != codec.NO_ADDRESS:
            relay = self._relays.get(giaddr)
            if relay is None:
                return None
            if known.acknowledges:
                self._carried(giaddr, chaddr)
            # What Reply() does, in half the time: one is made for each packet.
            reply = tuple.__new__(Reply, (payload, relay, SERVER_PORT, b""))
        elif broadcast:
            reply = Reply(payload, BROADCAST, CLIENT_PORT)
        else:
            reply = Reply(payload, options.dotted(reservation.yiaddr), CLIENT_PORT, chaddr)
        known.used = True
        if known.acknowledges:
            self._acknowledged.lately.add(chaddr)
        if note is not None:
            self._take(mac, note)
        else:
            self._leased(mac, known.message_type, known.client, Verdict(boot))
        return reply

    def _prepare(self, known: _KnownLayout, mac: str, chaddr: bytes, path: BootPath | None = None) -> _BootParts | None:
        """What the machine boots; None if there is nothing for it."""
        try:
            boot = self._choose(known.client, mac, path)
        except NoBinaryError:
            return None
        parts = known.prepare(boot)
        if boot.shared and path is None:
            if len(known.shared) >= _MAKERS_OF_A_LAYOUT:
                known.shared.clear()
            known.shared[chaddr[:3]] = parts
        return parts

    def learn(self, packet: bytes, message: Message, message_type: MessageType, reply: Reply) -> None:
        """Take note of a packet of port 67, a message of this type, that was answered in full with `reply`."""
        answer = reply.payload[242]  # our replies begin with options 53 and 54
        if (message_type, answer) not in _LEASES:
            return
        key = len(packet) << 8 | packet[242]
        if any(
            known.fixed(known.unpack(packet)) == known.expected and (packet[known.pi_name_at] == PI_NAME) is known.is_pi
            for known in self._alike(key, ())
        ):
            return
        layout = layout_of(packet, message)
        if layout is not None:
            self._known.add(key, _KnownLayout(layout, message, MessageType(answer), reply.payload[240:249]))
