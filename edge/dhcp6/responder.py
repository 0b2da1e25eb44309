"""The DHCPv6 server's decisions: a message in, a reply or silence out. Pure: no sockets, the clock is an argument.

The way of a message, from top to bottom of this file:

    receive    `respond`: a message of a known layout gets its reply from `edge.dhcp6.fast_path`; any other goes on
    validate   `_is_answerable` (RFC 8415 section 16), after `wire.parse` has taken off the relays' messages
    identify   `_reservation`: the MAC (`wire.mac_of`) names the machine
    decide     `_answer`, by the message's type (section 18.3); `edge.dhcp6.boot` chooses what the machine boots
    build      `_reply`, and back through the relays (section 19.3)

A machine without a Hardware gets silence, because another DHCPv6 server may serve it. No lease is stored, only the
declines of addresses (`edge.dhcp_common`). Each reply depends on the Hardware alone. So several edges give the same
replies, and each can renew the lease of another.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final, NamedTuple
from uuid import UUID

from edge.dhcp6 import wire
from edge.dhcp6.boot import identify
from edge.dhcp6.context import Context6, Settings6
from edge.dhcp6.fast_path import FastPath6
from edge.dhcp6.reservation import Reservation6, compile_reservation
from edge.dhcp6.wire import Message6, MessageType6, Option, Received6, Relay, Status
from edge.dhcp_common import NOTHING, Client, DhcpSite, Quarantine, Reply
from edge.journey.events import Value
from edge.machines import Machine
from tink.limits import Newest
from tink.mac import octets

MAX_RESERVATIONS: Final = 131072
"""Maximum number of compiled reservations: some 0.6 kB each, compiled in 0.1 ms."""

_TO_ALL_SERVERS: Final = frozenset({MessageType6.SOLICIT, MessageType6.CONFIRM, MessageType6.REBIND})
_TO_ONE_SERVER: Final = frozenset(
    {MessageType6.REQUEST, MessageType6.RENEW, MessageType6.RELEASE, MessageType6.DECLINE}
)
_FROM_CLIENTS: Final = _TO_ALL_SERVERS | _TO_ONE_SERVER | {MessageType6.INFORMATION_REQUEST}


class Query6(NamedTuple):
    """A message of a machine with a reservation, and the way by which it came."""

    message: Message6
    reservation: Reservation6
    relays: tuple[Relay, ...]
    received: Received6

    @property
    def link(self) -> IPv6Address | None:
        """The link-address of the relay nearest to the client that states one (RFC 8415 section 19.1.1), or None."""
        links = (relay.link for relay in reversed(self.relays))
        return next((link for link in links if not wire.is_local(link)), None)

    @property
    def is_by_own_relay(self) -> bool:
        """True if a relay of the machine's own network passed the message on."""
        return bool(self.relays) and self.received.source in self.reservation.network.subnet

    @property
    def reply_port(self) -> int:
        """The port to which the reply goes."""
        if not self.relays:
            return wire.CLIENT_PORT
        # RFC 8357 section 5.2: with option 135 it is the port from which the nearest relay has sent. A source port 0
        # means that there is no port for replies (RFC 768), and no kernel sends there.
        return self.received.source_port or wire.SERVER_PORT if self.relays[0].port is not None else wire.SERVER_PORT

    @property
    def associations(self) -> list[bytes]:
        """The values of the message's IA_NA options."""
        return [ia for ia in self.message.all(Option.IA_NA) if len(ia) >= 12][: wire.MAX_IAS]


class Responder6:
    """Answers DHCPv6 for the machines of an inventory. The owner subscribes `machine_changed` to the inventory."""

    def __init__(
        self,
        site: DhcpSite,
        settings: Settings6,
        neighbour: wire.Neighbour6 = lambda _: None,
        quarantine: Quarantine | None = None,
    ) -> None:
        """Create the responder of one interface.

        neighbour: returns the MAC that the kernel knows for a link-local address.
        quarantine (of IPv6): shared with the responders of other interfaces (default: its own).
        """
        self.settings = settings
        self._context = context = Context6(site, settings, quarantine)
        self._inventory = site.inventory
        self._neighbour = neighbour
        self._reports = context.reports
        self._quarantine = context.quarantine
        self._reservations: Newest[bytes, Reservation6] = Newest(MAX_RESERVATIONS)
        self.declines: Final = context.declines
        """The declined addresses, to be probed by neighbour discovery."""
        self.fast_path = FastPath6(self._reservations, context) if site.fast_path else None
        """Answers messages of known layouts. None if it is off."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def machine_changed(self, mac: str) -> None:
        """Compile the reservation of a Hardware with this MAC that was added, changed or removed."""
        self._reservations.pop(octets(mac), None)
        machine = self._inventory.by_mac(mac)
        if machine is not None and machine.ipv6 is not None:
            self._compile(machine)
        self._quarantine.machine_changed(mac, machine)

    def _compile(self, machine: Machine) -> Reservation6:
        sole = machine.ipv6 is None or self._inventory.is_served(machine, machine.ipv6)
        reservation = compile_reservation(machine, self.settings.address, is_sole=sole)
        self._reservations[octets(machine.mac)] = reservation
        return reservation

    # --- receive ------------------------------------------------------------------------------------------------------

    def respond(self, packet: bytes, received: Received6) -> Reply | None:
        """Return the reply to one UDP payload, or None for silence. Never raises because of a packet's content."""
        if self.fast_path is not None:
            reply = self.fast_path.answer(packet, received.source.packed, is_unicast=received.is_unicast)
            if reply is not None:
                return reply
        return self.respond_in_full(packet, received)

    def respond_in_full(self, packet: bytes, received: Received6) -> Reply | None:
        """Return the reply without the fast path, which learns from the packet."""
        try:
            message, relays = wire.parse(packet)
            if not self._is_answerable(message, relays, received):
                return None
            reservation = self._reservation(message, relays, received)
            if reservation is None:
                return None
            query = Query6(message, reservation, relays, received)
            # A relay of the machine's own network may serve a whole site, so it has no limit (as with `edge.dhcp`).
            # With RFC 8357 the relay names the port, which may be any service of any host: such replies are limited.
            is_limited = not query.is_by_own_relay or query.reply_port != wire.SERVER_PORT
            if is_limited and not self._context.replies.take(received.source.packed, self._context.clock()):
                return None
            answer = self._answer(query)
        except wire.ParseError as error:
            self._reports.ignored(received.source, received.source_port, str(error))
            return None
        if answer is None:
            return None
        if self.fast_path is not None:
            self.fast_path.learn(packet, message, relays)
        return Reply(wire.relayed(answer, relays), wire.text_of(received.source.packed), query.reply_port)

    # --- validate -----------------------------------------------------------------------------------------------------

    def _is_answerable(self, message: Message6, relays: tuple[Relay, ...], received: Received6) -> bool:
        """Return True for a valid message to us (RFC 8415 section 16), from a client's link or from a relay."""
        kind, source = message.type, received.source
        if kind not in _FROM_CLIENTS or source.is_multicast or source.is_unspecified or source.is_loopback:
            return False
        if not relays and not source.is_link_local:
            return False
        # Section 16: a message to all servers has no Server Identifier, one to a single server has ours. A DECLINE to
        # another edge is accepted from the link, because that edge gives the same address.
        client, server = message.get(Option.CLIENTID), message.get(Option.SERVERID)
        if kind in _TO_ALL_SERVERS and (server is not None or not client):
            return False
        if kind in _TO_ONE_SERVER and (server != self.settings.duid or not client):
            return kind is MessageType6.DECLINE and bool(server and client) and not relays and not received.is_unicast
        if kind is MessageType6.INFORMATION_REQUEST:
            has_ia = any(message.get(code) is not None for code in (Option.IA_NA, Option.IA_TA, Option.IA_PD))
            return not has_ia and server in (None, self.settings.duid)
        # Section 18.4: a unicast message of these types is invalid.
        return not (kind in _TO_ALL_SERVERS and received.is_unicast and not relays)

    # --- identify -----------------------------------------------------------------------------------------------------

    def _reservation(self, message: Message6, relays: tuple[Relay, ...], received: Received6) -> Reservation6 | None:
        """Return the reservation of the machine that sent the message; None if there is none, or it is not served."""
        mac = wire.mac_of(message, relays, received, self._neighbour)
        if mac is None:
            return None
        machine = self._inventory.by_mac(mac)
        if machine is None:
            if not self._inventory.claimants(mac):
                self._report_unknown(mac, message, identify(message), relays)
            return None
        reservation = self._reservations.get(octets(mac))
        if reservation is None:
            reservation = self._compile(machine)
        if reservation.unserved:
            if not reservation.silent:
                self._reports.refused(machine.mac, reservation.unserved)
            return None
        return reservation

    def _report_unknown(self, mac: str, message: Message6, client: Client, relays: tuple[Relay, ...]) -> None:
        detail: dict[str, Value] = {}
        duid = message.get(Option.CLIENTID) or b""
        if duid[:2] == b"\0\4" and len(duid) == 18:
            # iPXE and operating systems write the UUID in network order, EDK2 in SMBIOS' mixed order. The bytes do not
            # say which one it is, so the client decides.
            is_network_order = client.architectures == () or "iPXE" in client.description
            detail["uuid"] = str(UUID(bytes=duid[2:]) if is_network_order else UUID(bytes_le=duid[2:]))
        relay = str(relays[0].link) if relays else ""
        self._reports.unregistered(mac, f"DHCPv6 {message.type.name}", client.description, relay, **detail)

    # --- decide, by the message's type --------------------------------------------------------------------------------

    def _answer(self, query: Query6) -> bytes | None:
        """Return the message for the client, without relays, or None. Raises ParseError."""
        message, reservation, relays, received = query
        if received.is_unicast and not relays:
            return self._reply(message, wire.status(Status.USE_MULTICAST))  # section 18.4
        match message.type:
            case MessageType6.RELEASE:
                # Section 18.3.7. The address stays reserved: firmware releases it before each stage.
                return self._reply(message, wire.status(Status.SUCCESS))
            case MessageType6.DECLINE:
                return self._declined(query)
            case MessageType6.CONFIRM:  # section 18.3.3
                has = [ip for ia in query.associations for ip in wire.addresses_in(ia)]
                if not has:
                    return None
                is_right = self._is_on_link(query) and all(ip == reservation.ip for ip in has)
                return self._reply(message, wire.status(Status.SUCCESS if is_right else Status.NOT_ON_LINK))
            case MessageType6.INFORMATION_REQUEST:  # section 18.3.6
                client = identify(message)
                boot = self._context.choice.choose(reservation.machine, client)
                self._context.report_sent(reservation.machine.mac, MessageType6.REPLY, client, boot, lease=False)
                return self._reply(message, reservation.network.requested(message.requested) + boot.options)
        return self._leased(query)

    def _leased(self, query: Query6) -> bytes | None:
        """Give the address to each identity association (sections 18.3.1, 18.3.2, 18.3.4 and 18.3.5)."""
        message, reservation, _, received = query
        machine, network, client = reservation.machine, reservation.network, identify(message)
        asks, renews = bool(message.get(Option.IA_NA)), message.type in wire.RENEWALS
        if not self._is_on_link(query):
            reason = f"{reservation.ip} is in {network.subnet}, and the machine is on another network"
            return self._refused(query, reason, Status.NOT_ON_LINK)  # another server may serve that network
        # A client that renews already uses the address, so a quarantine does not take it away.
        if asks and not renews and (reason := self._quarantine.refusal(machine)):
            return self._refused(query, reason, Status.NO_ADDRS_AVAIL)
        # Section 18.3.1: with Rapid Commit a SOLICIT gets its lease at once, without ADVERTISE and REQUEST.
        at_once = message.type is MessageType6.SOLICIT and message.get(Option.RAPID_COMMIT) is not None
        kind = MessageType6.ADVERTISE if message.type is MessageType6.SOLICIT and not at_once else MessageType6.REPLY
        body = b"".join([self._ia_na(ia, reservation) for ia in query.associations]) + _not_had(message)
        body += wire.option(Option.RAPID_COMMIT, b"") if at_once else b""
        body += wire.PREFERRED if kind is MessageType6.ADVERTISE else b""
        boot = self._context.choice.choose(machine, client)
        body += network.requested(message.requested) + boot.options
        if asks and not renews and kind is MessageType6.REPLY:
            mac = octets(machine.mac)
            self.declines.recent_leases.newest.add(mac)
            if query.is_by_own_relay:
                self._context.relays.carried(received.source.packed, mac)
        named = NOTHING if renews else boot
        self._context.report_sent(machine.mac, kind, client, named, lease=asks and not renews, renews=renews)
        return self._reply(message, body, kind)

    def _refused(self, query: Query6, reason: str, why: Status) -> bytes | None:
        """Return each identity association with a status and no address, or None if the message was no REQUEST."""
        self._reports.refused(query.reservation.machine.mac, reason)
        if query.message.type is not MessageType6.REQUEST:
            return None
        status = bytes(8) + wire.status(why)
        associations = [wire.option(Option.IA_NA, ia[:4] + status) for ia in query.associations]
        return self._reply(query.message, b"".join(associations))

    def _ia_na(self, association: bytes, reservation: Reservation6) -> bytes:
        """Return an identity association with the reserved address."""
        others = {ip for ip in wire.addresses_in(association) if ip != reservation.ip} if len(association) > 12 else ()
        # Lifetimes of 0 make the client stop to use its other addresses.
        gone = b"".join(wire.address(ip, 0, 0) for ip in sorted(others))
        return wire.option(Option.IA_NA, association[:4] + reservation.lease + gone)

    def _declined(self, query: Query6) -> bytes | None:
        """Check a decline (section 18.3.8): the client found another host at the address.

        A decline counts only for the address that we gave the machine, and only from a place where the machine can be:
        its link, or a relay that states the machine's network.
        """
        message, reservation, relays, received = query
        # On the link every edge receives it, and gives the same address. Each edge probes for itself, and the one that
        # the message names answers.
        machine, ip, source = reservation.machine, reservation.ip, str(received.source)
        if any(ip in wire.addresses_in(ia) for ia in query.associations):
            if not self._is_on_link(query) or (relays and query.link is None):
                where = f"its relay {source}" if relays else "the link that it came from"
                self.declines.reject(machine, source, f"{where} is not of this machine's network")
            else:
                doubt = ""
                # A machine on our link sends from its own address, and the answer goes to that address.
                if relays:
                    is_of_network = query.is_by_own_relay
                    doubt = self._context.relays.doubt(source, received.source.packed, is_of_network=is_of_network)
                self.declines.check(machine, ip.packed, source, relayed=bool(relays), doubt=doubt)
        if message.get(Option.SERVERID) != self.settings.duid:
            return None
        return self._reply(message, wire.status(Status.SUCCESS))

    # --- build --------------------------------------------------------------------------------------------------------

    def _is_on_link(self, query: Query6) -> bool:
        """Return True if the machine is on a link of its address's network, or if that is not known."""
        subnet, ours = query.reservation.network.subnet, self.settings.networks
        if query.link is not None:
            return query.link in subnet
        return bool(query.relays) or not ours or any(subnet.overlaps(each) for each in ours)

    def _reply(self, message: Message6, body: bytes, kind: MessageType6 = MessageType6.REPLY) -> bytes:
        client = message.get(Option.CLIENTID)
        head = (wire.option(Option.CLIENTID, client) if client else b"") + self._context.server_id
        return wire.message(kind, message.transaction, head + body)


def _not_had(message: Message6) -> bytes:
    """Refuse temporary addresses and prefixes, which no Hardware has (sections 18.3.2, 21.5 and 21.21)."""
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
