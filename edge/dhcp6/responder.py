"""The DHCPv6 server's decisions: a message in, a reply or silence out. Pure: no sockets, the clock is given.

    bytes -> fast_path: a layout that is known, a machine that is to be served? -> Reply6
          -> in full: wire.parse: the client's message, its relays -> may it be answered there (RFC 8415 section 16)?
             -> identity: the MAC -> the inventory's machine -> reservation -> boot: may it, and what
             -> by the message's type (section 18.3) -> back through the relays (section 19.3)

The fast path gives what the full one would give, sooner; without it everything is answered in full.
A machine without a Hardware gets silence, for another DHCPv6 server may be its own. Nothing is remembered of clients
but that they declined an address (`edge.conflict`): each answer is made of the Hardware alone, so several edges give
the same one, and each can renew what another one gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from edge.conflict import IPV6, Declined, Quarantine, Relays
from edge.dhcp6 import wire
from edge.dhcp6.boot import NOTHING, BootChoice6, Client6, identify
from edge.dhcp6.datagram import CLIENT_PORT, SERVER_PORT, Received6, Reply6, text_of
from edge.dhcp6.fast_path import FastPath6
from edge.dhcp6.identity import Neighbour6, mac_of
from edge.dhcp6.reports import Reports6
from edge.dhcp6.reservation import Reservation6, compile_reservation
from edge.dhcp6.wire import Message6, MessageType6, Option, Relay, Status
from edge.journey.events import NoteTaker, Recorder
from edge.machines import Inventory, Machine, NetbootPolicy
from ipxe.binaries import BootBinaries, BootPath
from tink.limits.allowance import Allowance
from tink.limits.newest import Newest
from tink.mac import octets

MAX_KEPT: Final = 131072
"""Reservations that are kept compiled: some 0.6 kB each, made again in 0.1 ms."""
ANSWERS, ANSWERS_IN_ALL = 1000, 20000
"""A second, to one address and to all, but for relays of their machines' own network; a client asks every second."""

_FROM_CLIENTS: Final = frozenset(
    {
        MessageType6.SOLICIT,
        MessageType6.REQUEST,
        MessageType6.CONFIRM,
        MessageType6.RENEW,
        MessageType6.REBIND,
        MessageType6.RELEASE,
        MessageType6.DECLINE,
        MessageType6.INFORMATION_REQUEST,
    }
)
_TO_ONE_SERVER: Final = frozenset(
    {MessageType6.REQUEST, MessageType6.RENEW, MessageType6.RELEASE, MessageType6.DECLINE}
)
_TO_ALL_SERVERS: Final = frozenset({MessageType6.SOLICIT, MessageType6.CONFIRM, MessageType6.REBIND})


@dataclass(frozen=True, slots=True)
class Settings6:
    """What the server says of itself: `address` is this edge's on the machines' network, `duid` the server's own.

    `http_base_url` is like `http://[fd00::1]:7080`; `networks` are those of the interface (none: unknown).
    """

    address: IPv6Address
    http_base_url: str
    duid: bytes
    networks: tuple[IPv6Network, ...] = ()


def server_duid(mac: bytes) -> bytes:
    """The server's own DUID: its link-layer address (RFC 8415 section 11.4), which lasts without being stored."""
    return b"\x00\x03\x00\x01" + (mac or bytes(6))


class Responder6:
    """Answers DHCPv6 for the machines of an inventory. Whoever makes it subscribes `machine_changed` to that."""

    def __init__(
        self,
        inventory: Inventory,
        settings: Settings6,
        record: Recorder,
        clock: Callable[[], float],
        binaries: BootBinaries,
        policy: NetbootPolicy,
        neighbour: Neighbour6 = lambda _: None,
        quarantine: Quarantine | None = None,
        *,
        relays: Relays | None = None,
        take: NoteTaker | None = None,
        fast_path: bool = True,
        boot_path: Callable[[Machine], BootPath | None] = lambda machine: machine.boot_path,
    ) -> None:
        """`clock` gives seconds of any epoch; `neighbour` asks the kernel for the MAC of a link-local address.

        `quarantine`, of IPv6, and `relays` may be shared with the responders of other networks (default: ones of its
        own). `take` is the cheap way to record a prepared step (default: by `record`). `boot_path` returns the program
        that a machine boots (None: the usual one). Without `fast_path` every message is answered in full, which changes
        only the time.
        """
        self.settings = settings
        self._inventory = inventory
        self._clock = clock
        self._neighbour = neighbour
        prefix = next((str(each.network_address) for each in settings.networks), "2001:db8::")
        self._reports = Reports6(record, take, clock, prefix)
        self._choice = BootChoice6(policy, binaries, str(settings.address), settings.http_base_url, boot_path)
        self._server_id = wire.option(Option.SERVERID, settings.duid)
        self._reservations: Newest[bytes, Reservation6] = Newest(MAX_KEPT)
        self._answers = Allowance(ANSWERS, ANSWERS_IN_ALL)
        self._quarantine = quarantine if quarantine is not None else Quarantine(clock, family=IPV6)
        self._relays = relays if relays is not None else Relays()
        self.declined: Final = Declined(inventory, self._quarantine, self._reports, clock)
        """What machines declined, to be looked into by neighbour discovery."""
        self.fast_path: FastPath6 | None = None
        """Answers what is plain; None: everything is answered in full."""
        if fast_path:
            self.fast_path = FastPath6(
                self._reservations,
                policy,
                self._choice,
                self._quarantine,
                self.declined.acknowledged,
                self._reports,
                self._answers,
                clock,
                self._server_id,
                settings.networks,
                self._relays,
            )

    def machine_changed(self, mac: str) -> None:
        """A Hardware with this MAC has come, changed or gone: what it is served is compiled while it is at hand."""
        self._reservations.pop(octets(mac), None)
        machine = self._inventory.by_mac(mac)
        if machine is not None and machine.ipv6 is not None:
            self._compile(machine)
        self._quarantine.follow(mac, machine)

    def respond(self, packet: bytes, received: Received6) -> Reply6 | None:
        """The answer to one UDP payload, or None for silence. Never raises on what a packet holds."""
        if self.fast_path is not None:
            reply = self.fast_path.answer(packet, received.source.packed, to_us_alone=received.to_us_alone)
            if reply is not None:
                return reply
        return self.respond_in_full(packet, received)

    def respond_in_full(self, packet: bytes, received: Received6) -> Reply6 | None:
        """The same, without the fast path, which learns from it."""
        try:
            message, relays = wire.parse(packet)
            if not self._is_answerable(message, relays, received):
                return None
            reservation = self._reservation(message, relays, received)
            if reservation is None or not self._may_answer(reservation, relays, received):
                return None
            answer = self._answer(message, reservation, relays, received)
        except wire.ParseError as error:
            self._reports.ignored(received, str(error))
            return None
        if answer is None:
            return None
        if self.fast_path is not None:
            self.fast_path.learn(packet, message, relays)
        payload = wire.relayed(answer, relays)
        return Reply6(payload, text_of(received.source.packed), _port_of(relays, received))

    def _may_answer(self, reservation: Reservation6, relays: tuple[Relay, ...], received: Received6) -> bool:
        """Within bounds; but a relay of the machine's own network may carry a whole site, as with `edge.dhcp`, if it is
        answered at port 547: another port may be any service of any host.
        """
        is_own_relay = bool(relays) and received.source in reservation.network.subnet
        is_own_relay = is_own_relay and _port_of(relays, received) == SERVER_PORT
        return is_own_relay or self._answers.take(received.source.packed, self._clock())

    def _is_answerable(self, message: Message6, relays: tuple[Relay, ...], received: Received6) -> bool:
        """RFC 8415 section 16, and who may have sent it: a client speaks from its link, a relay from a host's address.

        Replies of servers, ours too, end here, whoever they were sent to.
        """
        kind, source = message.type, received.source
        if kind not in _FROM_CLIENTS or source.is_multicast or source.is_unspecified or source.is_loopback:
            return False
        if not relays and not source.is_link_local:
            return False
        client, server = message.get(Option.CLIENTID), message.get(Option.SERVERID)
        if kind in _TO_ALL_SERVERS and (server is not None or not client):
            return False
        if kind in _TO_ONE_SERVER and (server != self.settings.duid or not client):
            return kind is MessageType6.DECLINE and bool(server and client) and not relays and not received.to_us_alone
        if kind is MessageType6.INFORMATION_REQUEST:
            has_ia = any(message.get(code) is not None for code in (Option.IA_NA, Option.IA_TA, Option.IA_PD))
            return not has_ia and server in (None, self.settings.duid)
        # Section 18.4: what is for all servers and came to us alone is of somebody who looks for one.
        return not (kind in _TO_ALL_SERVERS and received.to_us_alone and not relays)

    def _reservation(self, message: Message6, relays: tuple[Relay, ...], received: Received6) -> Reservation6 | None:
        """That of the machine whose message it is; None: it is nobody's, or there is none to be served."""
        mac = mac_of(message, relays, received, self._neighbour)
        if mac is None:
            return None
        machine = self._inventory.by_mac(mac)
        if machine is None:
            if not self._inventory.claimants(mac):
                self._reports.unregistered(mac, message, identify(message), relays)
            return None
        reservation = self._reservations.get(octets(mac))
        if reservation is None:
            reservation = self._compile(machine)
        if reservation.unserved:
            if not reservation.silent:
                self._reports.refused(machine, reservation.unserved)
            return None
        return reservation

    def _answer(
        self, message: Message6, reservation: Reservation6, relays: tuple[Relay, ...], received: Received6
    ) -> bytes | None:
        """Raises ParseError."""
        client = identify(message)
        if received.to_us_alone and not relays:
            return self._reply(message, wire.status(Status.USE_MULTICAST))  # section 18.4
        match message.type:
            case MessageType6.RELEASE:
                return self._released(message)
            case MessageType6.DECLINE:
                return self._declined(message, reservation, relays, received)
            case MessageType6.CONFIRM:
                return self._confirmed(message, reservation, relays)
            case MessageType6.INFORMATION_REQUEST:
                return self._informed(message, reservation, client)
            case _:
                return self._leased(message, reservation, client, relays, received)

    def _compile(self, machine: Machine) -> Reservation6:
        sole = machine.ipv6 is None or self._inventory.is_served(machine, machine.ipv6)
        made = compile_reservation(machine, self.settings.address, is_sole=sole)
        self._reservations[octets(machine.mac)] = made
        return made

    # --- by the message's type ------------------------------------------------------------------------------------

    def _leased(
        self,
        message: Message6,
        reservation: Reservation6,
        client: Client6,
        relays: tuple[Relay, ...],
        received: Received6,
    ) -> bytes | None:
        """Sections 18.3.1, 18.3.2, 18.3.4 and 18.3.5: the address, for each identity association."""
        asks = bool(message.get(Option.IA_NA))
        renews = message.type in wire.RENEWALS
        if not self._is_on_link(reservation, relays):
            reason = f"{reservation.ip} is in {reservation.network.subnet}, and the machine is on another network"
            self._reports.refused(reservation.machine, reason)
            if message.type is not MessageType6.REQUEST:
                return None  # another server may know better
            return self._reply(message, self._refused(message, Status.NOT_ON_LINK))
        if asks and not renews and (reason := self._quarantine.refusal(reservation.machine)):
            self._reports.refused(reservation.machine, reason)
            if message.type is not MessageType6.REQUEST:
                return None  # as where it is on another network
            return self._reply(message, self._refused(message, Status.NO_ADDRS_AVAIL))
        at_once = message.type is MessageType6.SOLICIT and message.get(Option.RAPID_COMMIT) is not None
        kind = MessageType6.ADVERTISE if message.type is MessageType6.SOLICIT and not at_once else MessageType6.REPLY
        body = b"".join([self._ia_na(ia, reservation) for ia in self._associations(message)]) + _not_had(message)
        body += wire.option(Option.RAPID_COMMIT, b"") if at_once else b""
        body += wire.PREFERRED if kind is MessageType6.ADVERTISE else b""
        boot = self._choice.choose(reservation.machine, client)
        body += reservation.network.told(message.requested) + boot.options
        if asks and not renews and kind is MessageType6.REPLY:
            mac = octets(reservation.machine.mac)
            self.declined.acknowledged.lately.add(mac)
            if relays and received.source in reservation.network.subnet:
                self._relays.carried(received.source.packed, mac)
        self._reports.sent(reservation.machine.mac, kind, client, NOTHING if renews else boot, lease=asks)
        return self._reply(message, body, kind)

    def _refused(self, message: Message6, why: Status) -> bytes:
        """No address for any of its identity associations."""
        status = bytes(8) + wire.status(why)
        return b"".join(wire.option(Option.IA_NA, ia[:4] + status) for ia in self._associations(message))

    def _ia_na(self, association: bytes, reservation: Reservation6) -> bytes:
        others = {ip for ip in wire.addresses_in(association) if ip != reservation.ip} if len(association) > 12 else ()
        gone = b"".join(map(reservation.taken, sorted(others)))
        return wire.option(Option.IA_NA, association[:4] + reservation.lease + gone)

    def _confirmed(self, message: Message6, reservation: Reservation6, relays: tuple[Relay, ...]) -> bytes | None:
        """Section 18.3.3: whether what it has is right where it is now."""
        has = [ip for ia in self._associations(message) for ip in wire.addresses_in(ia)]
        if not has:
            return None
        right = self._is_on_link(reservation, relays) and all(ip == reservation.ip for ip in has)
        return self._reply(message, wire.status(Status.SUCCESS if right else Status.NOT_ON_LINK))

    def _informed(self, message: Message6, reservation: Reservation6, client: Client6) -> bytes:
        """Section 18.3.6."""
        boot = self._choice.choose(reservation.machine, client)
        self._reports.sent(reservation.machine.mac, MessageType6.REPLY, client, boot, lease=False)
        return self._reply(message, reservation.network.told(message.requested) + boot.options)

    def _released(self, message: Message6) -> bytes:
        """Section 18.3.7. The address stays reserved; firmware gives it back before each of its next stages."""
        return self._reply(message, wire.status(Status.SUCCESS))

    def _declined(
        self, message: Message6, reservation: Reservation6, relays: tuple[Relay, ...], received: Received6
    ) -> bytes | None:
        """Section 18.3.8: the client found somebody else at the address. That is looked into before anybody loses it.

        It is listened to only of the address that we gave the machine, and only from where the machine can be: on its
        link, or through a relay that names the machine's network. On the link every edge hears it, and gives the same
        address: each looks for itself, and the one that is named answers.
        """
        machine, ip = reservation.machine, reservation.ip
        if any(ip in wire.addresses_in(ia) for ia in self._associations(message)):
            link = _link_of(relays)
            if not self._is_on_link(reservation, relays) or (relays and link is None):
                where = f"its relay {received.source}" if relays else "the link that it came from"
                why = f"{where} is not of this machine's network"
                self.declined.disbelieved(machine, str(received.source), why)
            else:
                source, doubt = str(received.source), ""
                if relays:  # The machine sends from its own address, and the answer goes to that address.
                    is_of_network = received.source in reservation.network.subnet
                    doubt = self._relays.doubt(source, received.source.packed, is_of_network=is_of_network)
                self.declined.heard(machine, ip.packed, source, relayed=bool(relays), doubt=doubt)
        if message.get(Option.SERVERID) != self.settings.duid:
            return None
        return self._reply(message, wire.status(Status.SUCCESS))

    # --- what they have in common ---------------------------------------------------------------------------------

    @staticmethod
    def _associations(message: Message6) -> list[bytes]:
        return [ia for ia in message.all(Option.IA_NA) if len(ia) >= 12][: wire.MAX_IAS]

    def _is_on_link(self, reservation: Reservation6, relays: tuple[Relay, ...]) -> bool:
        """Whether the machine is where its address is of use; yes where that is not known."""
        link = _link_of(relays)
        if link is not None:
            return link in reservation.network.subnet
        return bool(relays) or _overlap(reservation.network.subnet, self.settings.networks)

    def _reply(self, message: Message6, body: bytes, kind: MessageType6 = MessageType6.REPLY) -> bytes:
        client = message.get(Option.CLIENTID)
        head = (wire.option(Option.CLIENTID, client) if client else b"") + self._server_id
        return wire.message(kind, message.transaction, head + body)


def _port_of(relays: tuple[Relay, ...], received: Received6) -> int:
    """Return the port that the answer goes to.

    RFC 8357 section 5.2: the port that the nearest relay has sent from, if it says so by option 135. Port 0 says that
    there is nowhere to reply to (RFC 768), and no kernel sends there.
    """
    if not relays:
        return CLIENT_PORT
    return received.source_port or SERVER_PORT if relays[0].port is not None else SERVER_PORT


def _link_of(relays: tuple[Relay, ...]) -> IPv6Address | None:
    """The link's address, as the relay nearest to the client says it (RFC 8415 section 19.1.1); None: none does."""
    links = (relay.link for relay in reversed(relays))
    return next((link for link in links if not wire.is_local(link)), None)


def _overlap(network: IPv6Network, ours: Sequence[IPv6Network]) -> bool:
    return not ours or any(network.overlaps(each) for each in ours)


def _not_had(message: Message6) -> bytes:
    """Temporary addresses and prefixes, which no Hardware has: sections 18.3.2, 21.5 and 21.21."""
    if not (message.get(Option.IA_TA) or message.get(Option.IA_PD)):
        return b""
    temporary = b"".join(
        wire.option(Option.IA_TA, ia[:4] + wire.status(Status.NO_ADDRS_AVAIL))
        for ia in message.all(Option.IA_TA)[: wire.MAX_IAS]
        if len(ia) >= 4
    )
    prefixes = b"".join(
        wire.option(Option.IA_PD, ia[:4] + bytes(8) + wire.status(Status.NO_PREFIX_AVAIL))
        for ia in message.all(Option.IA_PD)[: wire.MAX_IAS]
        if len(ia) >= 12
    )
    return temporary + prefixes
