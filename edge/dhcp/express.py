"""The fast way to a lease: packets of a known layout, answered without parsing them and without building a reply anew.

A layout (`edge.dhcp.layout`) is learnt from each kind of packet that `edge.dhcp.leases` has answered with an offer or
an acknowledgement. For the next packet of this layout everything is known but a few values, so the answer is a
look-up and one join of prepared parts:

    what the kind of client decides    order and choice of options, size limit, words for the journey
    what its network decides           mask, router, servers, lease: one `Plan` for each pair of layout and network
    what its boot file decides         header fields and options: one `_Prepared` for each layout and maker of machines
    what the machine decides           address, host name
    what the packet decides            transaction, flags, relay, and the options that are echoed

Nothing here is kept per machine, so a packet costs the same whether there are a hundred machines or a hundred thousand.
Whatever is not plain (a renewal, a refusal, an address in quarantine, a relay that is not known to be of a machine's
network, a reply that would be too large) is left to `leases`, which decides alone what is right: both give the same
bytes for the same packet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from edge.dhcp import codec, options
from edge.dhcp.assembly import size_limit
from edge.dhcp.boot import NO_BOOT, Boot, BootChoice
from edge.dhcp.client import Client, identify
from edge.dhcp.codec import Message, MessageType
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, SERVER_PORT, Reply
from edge.dhcp.declined import Given
from edge.dhcp.destinations import Destinations
from edge.dhcp.layout import Layout, layout_of
from edge.dhcp.leases import Leases
from edge.dhcp.netboot import allowed
from edge.dhcp.quarantine import Quarantine
from edge.dhcp.relay import relay_of
from edge.dhcp.reports import Reports, lease_note
from edge.dhcp.reservation import Network
from edge.journey.events import Note
from edge.machines import NetbootPolicy
from ipxe.binaries import NoBinaryError

_LAYOUTS: Final = 256
"""Layouts that are kept. A rack has a handful; what invented ones push out is learnt again from its next packet."""
_LAYOUTS_OF_A_LENGTH: Final = 8
_NETWORKS_OF_A_LAYOUT: Final = 256
_MAKERS_OF_A_LAYOUT: Final = 256

_LEAST_LIMIT: Final = 516  # below it, padding by a step never reaches a client's limit
_PADDED: Final = tuple(codec.padded_size(size, _LEAST_LIMIT + 32) for size in range(_LEAST_LIMIT))

_SHORTEST: Final = 244  # header, cookie, option 53 and END

_REPLY_HEAD: Final = bytes((codec.BOOTREPLY, codec.ETHERNET, 6, 0))
_SECONDS: Final = bytes(2)
_END: Final = bytes((options.END,))
_LEASES: Final = {(MessageType.DISCOVER, MessageType.OFFER), (MessageType.REQUEST, MessageType.ACK)}
# The flags and, behind them, `ciaddr`, which must be zero.
_IS_BROADCAST: Final = {bytes(6): False, b"\x80" + bytes(5): True}


class _Plan(NamedTuple):
    """Options 53, 54, the lease and the network, before and behind the host's name."""

    before: bytes
    names_host: bool
    behind: bytes


class _Prepared(NamedTuple):
    """What comes of a `Boot`: `siaddr`, the header from the padding of `chaddr` to the cookie, options, the note.

    `note` is None where it is another for each machine.
    """

    boot: Boot
    siaddr: bytes
    header: bytes
    options: bytes
    note: Note | None


class _Known:
    """How packets of one layout are answered."""

    __slots__ = (
        "client", "expected", "fixed", "gives", "identifier", "is_ipxe", "kind", "limit", "link", "netboots", "nothing",
        "plans", "relay", "requested", "shared", "start", "unpack", "used", "uuid", "wanted",
    )  # fmt: skip

    def __init__(self, layout: Layout, message: Message, kind: MessageType, start: bytes) -> None:
        self.unpack = layout.unpack
        self.fixed = layout.fixed
        self.expected = layout.expected
        self.requested = layout.requested
        self.identifier = layout.identifier
        self.uuid = layout.uuid
        self.relay = layout.relay
        self.kind = kind
        self.gives = kind is MessageType.ACK
        self.client: Client = identify(message)
        self.netboots = self.client.netboots
        self.wanted = message.options.get(options.PARAMETER_REQUEST_LIST)
        self.start = start
        self.limit = size_limit(message)
        self.link = relay_of(message._replace(giaddr=codec.NO_ADDRESS)).link  # of sub-option 5; else the relay's own
        self.is_ipxe = self.client.is_ipxe
        self.plans: dict[Network, _Plan] = {}
        self.nothing = self.prepare(NO_BOOT)
        self.shared: dict[bytes, _Prepared] = {}  # by the maker's three bytes of the MAC
        self.used = False

    def plan(self, network: Network) -> _Plan:
        """Made when a layout meets a network for the first time."""
        plan = network.plan(self.wanted)
        known = _Plan(self.start + network.lease + plan.before, plan.names_host, plan.behind)
        if len(self.plans) >= _NETWORKS_OF_A_LAYOUT:
            self.plans.clear()
        self.plans[network] = known
        return known

    def prepare(self, boot: Boot) -> _Prepared:
        """Made of a boot file that a client of this layout is told for the first time, or that only one is told."""
        return _Prepared(
            boot,
            boot.siaddr,
            bytes(10) + boot.sname.ljust(64, b"\0") + boot.file.ljust(128, b"\0") + codec.MAGIC_COOKIE,
            boot.spare_options + boot.options,
            lease_note(self.kind, self.client, boot) if boot.shared or boot is NO_BOOT else None,
        )


class Express:
    """Answers packets of known layouts for `leases`."""

    def __init__(
        self,
        leases: Leases,
        policy: NetbootPolicy,
        choice: BootChoice,
        quarantine: Quarantine,
        given: Given,
        destinations: Destinations,
        reports: Reports,
    ) -> None:
        self._reservations = leases.reservations
        self._decide = policy.decide
        self._follows_workflows = policy.follows_workflows
        self._choose = choice.choose
        self._quarantined = quarantine.macs
        self._given = given
        self._take = reports.take
        self._leased = reports.leased
        self._known: dict[int, list[_Known]] = {}  # by length and the byte that in most packets is the message's type
        self._relays = destinations.relays
        self._count = 0

    def answer(self, packet: bytes) -> Reply | None:
        """The offer or acknowledgement for a packet of port 67, or None: it has to be answered in full."""
        if len(packet) < _SHORTEST:
            return None
        for known in self._known.get(len(packet) << 8 | packet[242], ()):
            fields = known.unpack(packet)
            if known.fixed(fields) == known.expected:
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
        if known.requested and fields[known.requested] != reservation.yiaddr:
            return None

        prepared: _Prepared | None = known.nothing
        if known.netboots:
            may = self._decide(reservation.machine).allowed if self._follows_workflows else reservation.may_netboot
            if not may:
                return None
            prepared = known.shared.get(chaddr[:3]) or self._prepare(known, mac, chaddr)
        if prepared is None:
            return None
        boot, siaddr, header, boot_options, note = prepared
        before, names_host, behind = known.plans.get(network) or known.plan(network)

        payload = b"".join(
            (
                _REPLY_HEAD, xid, _SECONDS, flags, reservation.yiaddr, siaddr, giaddr, chaddr, header, before,
                reservation.hostname if names_host else b"", behind, reservation.vlan if known.is_ipxe else b"",
                packet[known.identifier], packet[known.uuid], boot_options, packet[known.relay], _END,
            )
        )  # fmt: skip
        size = len(payload)
        if size > known.limit:
            return None
        payload = payload.ljust(_PADDED[size] if size < _LEAST_LIMIT else codec.padded_size(size, known.limit), b"\0")

        if giaddr != codec.NO_ADDRESS:
            relay = self._relays.get(giaddr)
            if relay is None:
                return None
            # What Reply() does, in half the time: one is made for each packet.
            reply = tuple.__new__(Reply, (payload, relay, SERVER_PORT, b""))
        elif broadcast:
            reply = Reply(payload, BROADCAST, CLIENT_PORT)
        else:
            reply = Reply(payload, options.dotted(reservation.yiaddr), CLIENT_PORT, chaddr)
        known.used = True
        if known.gives:
            self._given.lately.add(chaddr)
        if note is not None:
            self._take(mac, note)
        else:
            self._leased(mac, known.kind, known.client, allowed(boot))
        return reply

    def _prepare(self, known: _Known, mac: str, chaddr: bytes) -> _Prepared | None:
        """What the machine boots; None if there is nothing for it."""
        try:
            boot = self._choose(known.client, mac)
        except NoBinaryError:
            return None
        prepared = known.prepare(boot)
        if boot.shared:
            if len(known.shared) >= _MAKERS_OF_A_LAYOUT:
                known.shared.clear()
            known.shared[chaddr[:3]] = prepared
        return prepared

    def learn(self, kind: MessageType, packet: bytes, message: Message, reply: Reply) -> None:
        """Take note of a packet, a message of this kind, that was answered in full with `reply`."""
        answer = reply.payload[242]  # our replies begin with options 53 and 54
        if (kind, answer) not in _LEASES:
            return
        alike = self._known.get(len(packet) << 8 | packet[242], [])
        if any(known.fixed(known.unpack(packet)) == known.expected for known in alike):
            return
        layout = layout_of(packet, message)
        if layout is None:
            return
        if len(alike) >= _LAYOUTS_OF_A_LENGTH:
            del alike[0]
            self._count -= 1
        alike.append(_Known(layout, message, MessageType(answer), reply.payload[240:249]))
        self._known[len(packet) << 8 | packet[242]] = alike
        self._count += 1
        if self._count > _LAYOUTS:
            self._forget()

    def _forget(self) -> None:
        """Make room: layouts go that were not met since the last time."""
        self._count = 0
        for key, alike in list(self._known.items()):
            kept = [known for known in alike if known.used]
            if kept:
                self._known[key] = kept
                self._count += len(kept)
            else:
                del self._known[key]
            for known in kept:
                known.used = False
