"""The DHCP server's decisions: a packet in, a reply or silence out. Pure: no sockets, no waiting, the clock is given.

The way of a packet, from top to bottom of this file:

    receive    `respond`: a packet of a known layout gets its reply from `edge.dhcp.fast_path`; any other goes on
    validate   `_client_message`: parse it; is it a client's, of a kind of network that can be served?
    identify   `_reservation_of`: the MAC in `chaddr` names the machine, and nothing else does. A machine without a
               Hardware: `edge.dhcp.unknown`
    decide     `_answer`, `_request` (RFC 2131 section 4.3): may the machine have its address now, and what does it
               boot (`edge.dhcp.boot`)? The proxy modes: `edge.dhcp.proxy`
    build      `_lease`, `_nak`: the bytes (`edge.dhcp.context`)
    send       `_destination` (section 4.1): where the reply goes; `edge.dhcp.server` has the sockets

A lease is not stored: the reservation in the Hardware is the lease. So a restart loses nothing, and several edges give
the same replies. Every reply, and every refusal with its reason, is a step of the machine's journey.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from edge.dhcp.boot import identify
from edge.dhcp.context import (
    BROADCAST,
    CLIENT_PORT,
    NO_SOURCE,
    PXE_PORT,
    SERVER_PORT,
    DhcpContext,
    DhcpSettings,
    DhcpSettingsError,
    Query,
    Received,
    several_hardware,
    to_client,
    to_relay,
)
from edge.dhcp.fast_path import FastPath
from edge.dhcp.proxy import LearnAddress, Proxy, boot_server_reply
from edge.dhcp.reservation import Compiler, Reservation
from edge.dhcp.unknown import Discovery, UnknownMachines
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import RelayAgent, infiniband_macs, relay_agent_of
from edge.dhcp_common import Declines, DhcpSite, Quarantine, Reply, Stage
from edge.journey.events import Outcome
from edge.machines import DhcpMode, Machine
from tink.mac import octets

log = logging.getLogger(__name__)

_LINK_TYPES: Final = (codec.ETHERNET, codec.INFINIBAND)
_INFINIBAND: Final = bytes((codec.INFINIBAND,))
_SERVER_TYPES: Final = (MessageType.OFFER, MessageType.ACK, MessageType.NAK)
_MESSAGES_OF_CLIENTS: Final = {bytes((each,)): each for each in MessageType if each not in _SERVER_TYPES}
_MESSAGES_OF_SERVERS: Final = {bytes((each,)) for each in _SERVER_TYPES}
_CHECK_PORT: Final = (
    "it may reach no host with that address. Check its switch port, and the Hardware's dhcp.ip and dhcp.netmask"
)
_MAX_RELAY_LINKS: Final = 1024


class Responder:
    """Answers DHCP in the mode of the policy. The owner subscribes `machine_changed` to the inventory."""

    def __init__(
        self,
        site: DhcpSite,
        settings: DhcpSettings,
        *,
        quarantine: Quarantine | None = None,
        learn: LearnAddress | None = None,
        on_relay_seen: Callable[[Machine, str, str], None] = lambda _machine, _link, _relay: None,
        discovery: Discovery | None = None,
    ) -> None:
        """Create the responder of one interface. Raises DhcpSettingsError.

        quarantine: shared with the responders of other interfaces (default: its own).
        learn: called in the proxy modes with the address that a machine reports.
        on_relay_seen: called with machine, link and relay, once for each relay subnet that is not one of our networks.
        discovery: decides about unknown netboot clients; None: they are only reported. Unused in the proxy modes.
        """
        mode = site.policy.mode
        if mode is DhcpMode.OFF:
            raise DhcpSettingsError("DHCP: the mode is off, so there is nothing to answer")
        self.settings = settings
        self._context = context = DhcpContext(site, settings)
        self._reports = context.reports
        self._clock = site.clock
        self._on_relay_seen = on_relay_seen
        self._seen_links: set[bytes] = set()
        self._compiler = Compiler(site, settings.server_ip, settings.networks)
        admits = discovery if mode is DhcpMode.RESERVATION else None
        self._unknown = UnknownMachines(site, context, self._compiler, admits)
        self._quarantine = quarantine if quarantine is not None else Quarantine(site.clock)
        self.reservations: dict[bytes, Reservation] = {}
        """The compiled reservations by the six bytes of the MAC. A reservation is compiled when its Hardware changes;
        one that is older than this server is compiled when its machine sends its first packet."""
        self.fast_path: FastPath | None = None
        """Answers packets of known layouts on port 67. None if it is off, and in the proxy modes."""
        self.declines: Declines | None = None
        """The declined addresses, to be probed by ARP. None in the proxy modes, which assign no address."""
        self.send_later: Callable[[Reply], None] | None = None
        """Sends a reply outside of the answer to a packet; the server's port sets it."""
        self._proxy: Proxy | None = None
        if mode is not DhcpMode.RESERVATION:
            self._proxy = Proxy(context, learn, unknown_clients=mode is DhcpMode.AUTO_PROXY)
            return
        self.declines = Declines(site, self._quarantine, context.reports)
        self._recent_leases = self.declines.recent_leases
        if site.fast_path:
            self.fast_path = FastPath(self.reservations, site.policy, context, self._quarantine, self._recent_leases)

    # --- changes --------------------------------------------------------------------------------------------------

    def machine_changed(self, mac: str) -> None:
        """Compile the reservation of a Hardware with this MAC that was added, changed or removed."""
        if self._proxy is not None:
            return
        reservation = self._compile(mac)
        held = self._unknown.take_held(mac) if reservation is not None else None
        if held is None or reservation is None or self.send_later is None:
            return
        # It was admitted by this REQUEST a moment ago, and need not send another one.
        message, received = held
        agent = relay_agent_of(message, received.source_port)
        reply = self._answer(Query(MessageType.REQUEST, message, reservation, agent, received))
        if reply is not None:
            self.send_later(reply)

    def peers_changed(self, peers: frozenset[str], gone: frozenset[str] = frozenset()) -> None:
        """Set the dotted addresses of the other edges that serve the same machines, and of the `gone` ones."""
        self._context.gone_peers = frozenset(map(options.ipv4, gone))
        self._context.peers = frozenset(map(options.ipv4, peers)) | self._context.gone_peers

    def _compile(self, mac: str) -> Reservation | None:
        chaddr, inventory = octets(mac), self._context.inventory
        machine = inventory.by_mac(mac)
        if mac in self._quarantine.macs:
            self._quarantine.machine_changed(mac, machine)
        if machine is None:
            self.reservations.pop(chaddr, None)
            return None
        is_sole = machine.ip is None or inventory.is_served(machine, machine.ip)
        reservation = self._compiler.compile(machine, is_sole=is_sole)
        self.reservations[chaddr] = reservation
        return reservation

    # --- receive --------------------------------------------------------------------------------------------------

    def respond(self, packet: bytes, received: Received) -> Reply | None:
        """Return the reply to one UDP payload, or None for silence. Never raises because of a packet's content."""
        if self.fast_path is not None and received.port == SERVER_PORT:
            reply = self.fast_path.answer(packet)
            if reply is not None:
                return reply
        return self.respond_in_full(packet, received)

    def respond_in_full(self, packet: bytes, received: Received) -> Reply | None:
        """Return the reply without the fast path, which learns from the packet."""
        if self._proxy is None and self.is_surplus(packet):
            return None
        parsed = self._client_message(packet, received)
        if parsed is None:
            return None
        message_type, message = parsed
        if self._proxy is not None:
            return self._proxy.answer(message_type, message, received)
        reservation = self._reservation_of(message)
        if reservation is None:
            mac = message.mac.hex(":")
            if claimants := self._context.inventory.claimants(mac):
                self._reports.refused(mac, several_hardware(mac, claimants))
                return None
            return self._unknown.answer(message_type, message, received)
        agent = relay_agent_of(message, received.source_port)
        reply = self._answer(Query(message_type, message, reservation, agent, received))
        # The fast path knows no InfiniBand. A reply in the name of a peer that is gone must not be learnt: the peer
        # answers again when it is back.
        is_learnable = message.htype == codec.ETHERNET and not self._context.is_for_a_peer(message)
        if reply is not None and self.fast_path is not None and received.port == SERVER_PORT and is_learnable:
            self.fast_path.learn(packet, message, message_type, reply)
        return reply

    def is_surplus(self, packet: bytes) -> bool:
        """Return True if `packet` exceeds the limit for machines without a Hardware."""
        return packet[28:34] not in self.reservations and self._unknown.is_surplus(packet)

    # --- validate -------------------------------------------------------------------------------------------------

    def _client_message(self, packet: bytes, received: Received) -> tuple[MessageType, Message] | None:
        """Return the message of a client, or None if `packet` is something else; report what is wrong with it."""
        try:
            message = codec.parse(packet)
        except codec.ParseError as error:
            self._reports.ignored(received.source, received.source_port, str(error))
            return None
        if message.op != codec.BOOTREQUEST:
            return None  # another server's reply, or our own
        if message.htype == codec.INFINIBAND:
            message = self._of_infiniband(message)
        reason = ""
        if message.htype not in _LINK_TYPES or len(message.mac) != 6:
            reason = _foreign_link(message)
        elif message.giaddr != codec.NO_ADDRESS and not options.is_host_address(message.giaddr):
            reason = f"its relay address (giaddr) {options.dotted(message.giaddr)} is not a host address"
        value = message.options.get(options.MESSAGE_TYPE, b"")
        message_type = _MESSAGES_OF_CLIENTS.get(value)
        if not reason and message_type is None:
            if value in _MESSAGES_OF_SERVERS:
                return None
            reason = "it has no message type (option 53) that a client sends"
        if reason or message_type is None:
            self._reports.ignored(received.source, received.source_port, reason)
            return None
        return message_type, message

    def _of_infiniband(self, message: Message) -> Message:
        """Return the message with the MAC of its port: of the possible ones, one that a Hardware has."""
        macs = infiniband_macs(message)
        known = (mac for mac in macs if self._context.inventory.claimants(mac.hex(":")))
        mac = next(known, macs[0] if macs else b"")
        # RFC 4390 section 2.1: such a client can't state its link-layer address, so replies are broadcast.
        return message._replace(flags=message.flags | codec.BROADCAST_FLAG, mac=mac)

    # --- identify -------------------------------------------------------------------------------------------------

    def _reservation_of(self, message: Message) -> Reservation | None:
        """Return the reservation of the machine that sent the message; None if not exactly one Hardware has its MAC."""
        # The MAC decides, not the client identifier: ROM, iPXE and operating system each send another one.
        return self.reservations.get(message.mac) or self._compile(message.mac.hex(":"))

    # --- decide ---------------------------------------------------------------------------------------------------

    def _answer(self, query: Query) -> Reply | None:
        message_type, context = query.type, self._context
        if query.received.port == PXE_PORT:
            return self._boot_file(query) if message_type is MessageType.REQUEST else None
        if message_type is MessageType.DECLINE:
            self._decline(query)
            return None
        if message_type is MessageType.RELEASE:
            self._release(query)
            return None
        if query.agent.giaddr and not context.may_reach_relay(query.agent, query.reservation.network):
            return None
        if message_type is MessageType.DISCOVER:  # RFC 2131 section 4.3.1
            if not context.is_served(query.reservation) or self._is_quarantined(query.reservation):
                return None
            return self._lease(MessageType.OFFER, query)
        return self._request(query) if message_type is MessageType.REQUEST else self._inform(query)

    def _request(self, query: Query) -> Reply | None:
        """Acknowledge or refuse the address (RFC 2131 section 4.3.2). The client's states are those of table 4:

        SELECTING    option 54 is us, option 50 the address    ACK, or NAK for another address
        INIT-REBOOT  option 50 is the address, no option 54    ACK, or NAK
        RENEWING     ciaddr is the address, neither option     ACK to that address, or NAK
        REBINDING    the same, by broadcast or by a relay      the same
        """
        _, message, reservation, agent, _ = query
        requested = message.options.get(options.REQUESTED_ADDRESS)
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        if server_id is not None and not self._context.is_us(server_id, agent):
            if server_id in self._context.gone_peers and requested == reservation.yiaddr:
                return self._stand_in(query, server_id)
            self._report_other_server(reservation, server_id)
            return None
        if not self._context.is_served(reservation):
            return None
        asked = requested if requested is not None else message.ciaddr
        if len(asked) != 4 or not any(asked):
            log.debug("%s asks for no address (option 50, ciaddr); not answered", reservation.machine.mac)
            return None
        if asked != reservation.yiaddr:
            return self._nak(query, options.dotted(asked))
        # A client that renews already uses the address, so a quarantine does not take it away.
        is_renewal = requested is None
        if not is_renewal:
            if self._is_quarantined(reservation):
                return None
            self._recent_leases.newest.add(message.mac)
            if reservation.network.holds(agent.giaddr):
                self._context.relays.carried(agent.giaddr, message.mac)
        return self._lease(MessageType.ACK, query, is_renewal=is_renewal)

    def _stand_in(self, query: Query, server_id: bytes) -> Reply | None:
        """Acknowledge the offer of an edge that is gone, in its name."""
        # A client that has taken an offer accepts the acknowledgement of that server only. The offer was for the same
        # address, because all edges read the same Hardware.
        reservation = query.reservation
        if not self._context.is_served(reservation) or self._is_quarantined(reservation):
            return None
        server = options.dotted(server_id)
        line = f"answered in the place of the edge {server}, which is gone"
        self._reports.once(reservation.mac, Outcome.INFO, line, server=server)
        self._recent_leases.newest.add(query.message.mac)
        return self._lease(MessageType.ACK, query._replace(agent=query.agent._replace(server_id=server_id)))

    def _is_quarantined(self, reservation: Reservation) -> bool:
        """Return True if another host was found at the address; report that."""
        if reservation.mac not in self._quarantine.macs:
            return False
        reason = self._quarantine.refusal(reservation.machine)
        if reason:
            self._reports.refused(reservation.mac, reason)
        return bool(reason)

    # --- decide: rare messages ------------------------------------------------------------------------------------

    def _inform(self, query: Query) -> Reply | None:
        """Answer a DHCPINFORM (RFC 2131 section 4.3.5): the client has an address from another source."""
        context, (_, message, reservation, agent, received) = self._context, query
        if not context.is_served(reservation):
            return None
        stated_addresses = (options.dotted(message.ciaddr), received.source)
        address = next(filter(options.is_host, stated_addresses), BROADCAST)
        if not agent.giaddr and address != BROADCAST:
            # "The server SHOULD check the network address in a DHCPINFORM message for consistency": our answer goes to
            # the address that the packet states, and is of use only in the machine's own network.
            stated = options.ipv4(address)
            if stated != reservation.yiaddr and not reservation.network.holds(stated):
                line = f"DHCPINFORM for {address}, which is not of this machine's network: not answered"
                self._reports.tallied(reservation.mac, "DHCPINFORM", f"{line}; it came from {received.source}")
                return None
            if not context.may_reach_client(address):
                return None
        client = identify(message)
        boot = context.choice.answer(reservation.machine, reservation.mac, client)
        payload = context.assemble_for(MessageType.ACK, query, client, boot, has_lease=False)
        if payload is None:
            return None
        self._reports.sent(reservation.mac, "DHCPACK (inform)", client, boot, outcome=Outcome.INFO)
        return to_relay(payload, agent) if agent.giaddr else Reply(payload, address, CLIENT_PORT)

    def _release(self, query: Query) -> None:
        """Report a DHCPRELEASE (RFC 2131 section 4.3.4). The reservation stays.

        A release counts if it comes from the released address (section 4.4.4), from another address of the same
        network, or through a trusted relay of the machine's network.
        """
        _, message, reservation, agent, received = query
        machine, network, by = reservation.machine, reservation.network, ""
        # systemd-networkd names no server, though section 4.4.4 requires it.
        is_ours = not reservation.unserved and self._context.is_for_us(message, if_missing=True)
        if not is_ours or message.ciaddr != reservation.yiaddr:
            return
        if agent.giaddr:
            is_near = network.has_link(agent.link) and not self._doubt(query)
        elif received.source in (machine.ip, NO_SOURCE):
            is_near = received.source == machine.ip or network.is_here
        else:
            is_near = network.holds(options.ipv4(received.source))
            by = f", from {received.source}"
        if is_near:
            line = f"DHCPRELEASE of {machine.ip}{by}"
            self._reports.once(machine.mac, Outcome.INFO, line, address=machine.ip or "")
        else:
            log.debug("a DHCPRELEASE of %s from %s is not the machine's own", machine.mac, received.source)

    def _decline(self, query: Query) -> None:
        """Check a DHCPDECLINE (RFC 2131 section 4.3.3): the client found another host at its address.

        A decline counts only if it names this server, declines the address that this server assigned, and comes from a
        place where the machine can be. The operator has to find the other host.
        """
        _, message, reservation, agent, received = query
        machine, network, declines = reservation.machine, reservation.network, self.declines
        requested = message.options.get(options.REQUESTED_ADDRESS)
        # On our own link every edge receives the broadcast, and offers the same address: each edge probes for itself.
        is_ours = self._context.is_for_us(message) or (not agent.giaddr and self._context.is_for_a_peer(message))
        if declines is None or reservation.unserved or requested != reservation.yiaddr or not is_ours:
            log.debug("a DHCPDECLINE of %s that is not about its reservation is ignored", machine.mac)
            return
        # The machine has no address, so it broadcasts on its link from 0.0.0.0 (sections 4.1 and 4.4.4), or its relay
        # passes the packet on. No router forwards such a packet, and no kernel accepts it if it was sent to one
        # address. So a host of another link can't decline this address.
        why = ""
        if agent.giaddr and not network.has_link(agent.link):
            why = f"its relay {options.dotted(agent.giaddr)} is not of this machine's network"
        elif not agent.giaddr and received.source != NO_SOURCE:
            why = "a machine declines by a broadcast on its link, or through its relay"
        elif not agent.giaddr and not network.is_here:
            why = "the link that it came from is not of this machine's network"
        if why:
            declines.reject(machine, received.source, why)
            return
        relayed = bool(agent.giaddr)
        doubt = self._doubt(query) if relayed else ""
        declines.check(machine, reservation.yiaddr, received.source, relayed=relayed, doubt=doubt)

    def _boot_file(self, query: Query) -> Reply | None:
        """Answer a REQUEST on port 4011: the client has its address and asks for its boot file only."""
        context, (_, message, reservation, _, received) = self._context, query
        client = identify(message)
        if client.stage is Stage.OPERATING_SYSTEM or not context.is_for_us(message, if_missing=True):
            return None
        if not context.is_served(reservation) or not context.may_reach_client(received.source):
            return None
        boot = context.choice.answer(reservation.machine, reservation.mac, client)
        return boot_server_reply(context, reservation.mac, message, received, client, boot)

    def _doubt(self, query: Query) -> str:
        """Return the reason why the relay is not trusted for this machine; empty if it is."""
        dhcp, giaddr = query.reservation.machine.interface.dhcp, query.agent.giaddr
        is_of_network, gateway = query.reservation.network.holds(giaddr), dhcp.gateway if dhcp is not None else None
        source = query.received.source
        return self._context.relays.doubt(source, giaddr, is_of_network=is_of_network, gateway=gateway)

    # --- build ----------------------------------------------------------------------------------------------------

    def _lease(self, message_type: MessageType, query: Query, *, is_renewal: bool = False) -> Reply | None:
        """Return an OFFER or ACK with the address, the network and what the machine boots."""
        client, machine = identify(query.message), query.reservation.machine
        boot = self._context.choice.answer(machine, machine.mac, client)
        payload = self._context.assemble_for(message_type, query, client, boot)
        if payload is None:
            return None
        if is_renewal:
            line = f"DHCPACK {machine.ip} (renewal)"
            self._reports.sent(machine.mac, line, client, boot, outcome=Outcome.INFO, address=machine.ip or "")
        else:
            self._reports.sent(machine.mac, f"DHCP{message_type.name}", client, boot, lease=message_type.name.lower())
        return self._destination(payload, query)

    def _nak(self, query: Query, asked: str) -> Reply:
        """Return a NAK (RFC 2131 section 4.3.2): the client drops its old address and sends a DISCOVER at once."""
        _, message, reservation, agent, _ = query
        ip = reservation.machine.ip or ""
        line = f"DHCPNAK: the client requested {asked}, but its reserved address is {ip}"
        self._reports.step(reservation.mac, Outcome.INFO, line, address=ip)
        return self._context.nak(message, agent, f"{asked} is not reserved for this machine")

    # --- send -----------------------------------------------------------------------------------------------------

    def _destination(self, payload: bytes, query: Query) -> Reply:
        """Return the reply with its destination (RFC 2131 section 4.1)."""
        _, message, reservation, agent, _ = query
        if agent.giaddr:
            self._check_relay_link(reservation, agent)
            return to_relay(payload, agent)
        if message.ciaddr == reservation.yiaddr:
            return Reply(payload, options.dotted(message.ciaddr), CLIENT_PORT)
        if not reservation.network.is_here:
            here, ip = ", ".join(map(str, self.settings.networks)), reservation.machine.ip or ""
            line = f"sent a request on a link of this edge ({here}), but its address {ip} belongs to another network"
            self._reports.once(reservation.mac, Outcome.FAILED, f"{line}: {_CHECK_PORT}", address=ip)
        return to_client(payload, query)

    def _check_relay_link(self, reservation: Reservation, agent: RelayAgent) -> None:
        """Report a machine behind a relay of another network than that of its address."""
        link, relay, ip = options.dotted(agent.link), options.dotted(agent.giaddr), reservation.machine.ip
        if not reservation.network.has_link(agent.link):
            line = f"sent a request through a relay of another network ({link}) than that of its address {ip}"
            self._reports.once(reservation.mac, Outcome.FAILED, f"{line}: {_CHECK_PORT}", relay=relay)
        elif not reservation.network.is_here and agent.link not in self._seen_links:
            if len(self._seen_links) >= _MAX_RELAY_LINKS:
                self._seen_links.clear()
            self._seen_links.add(agent.link)
            self._on_relay_seen(reservation.machine, link, relay)

    def _report_other_server(self, reservation: Reservation, server_id: bytes) -> None:
        """Report that the client accepted the offer of a server that is neither this edge nor one of its peers."""
        if len(server_id) != 4 or server_id in self._context.peers or reservation.unserved:
            return
        self._context.report_other_server(reservation.mac, server_id)


def _foreign_link(message: Message) -> str:
    """Return the reason why the message is ignored: its hardware address is none that a Hardware can have."""
    size = len(message.chaddr)
    if message.htype == codec.INFINIBAND:
        return (
            f"it is of an InfiniBand port (hlen {size}), and neither its hardware address nor its client "
            "identifier (option 61) holds the port's GUID, by which a Hardware names it; have the client send 20 "
            "and the GUID"
        )
    return (
        f"it is of a network interface that is neither Ethernet nor InfiniBand (hardware type {message.htype}, "
        f"{size} bytes of address), which no Hardware can describe"
    )
