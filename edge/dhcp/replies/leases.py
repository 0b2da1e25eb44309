"""Reservation mode: each machine that has a Hardware gets the address that it reserves, and what it boots.

Whose packet it is, is told by the MAC in `chaddr` and nothing else, for ROM, iPXE and operating system each send
another client identifier. InfiniBand is the exception (`edge.dhcp.wire.infiniband`). Leases are not stored: the
reservation is the lease, so a restart forgets nothing and several edges may answer alike: one stands in for another
that is gone, in its name, for a client that has taken its offer waits for its word and no other's. What a client may
ask is RFC 2131 section 4.3; the states are those of its table 4:

    SELECTING    54 is us, 50 is the address            ACK, or NAK for another address
    INIT-REBOOT  50 is the address, no 54               ACK, or NAK
    RENEWING     ciaddr is the address, neither option  ACK to that address, or NAK
    REBINDING    the same, broadcast or by a relay      the same

A reservation is compiled when its Hardware comes or changes, while that is at hand; what was there before this server
is compiled when its machine is first heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from edge.conflict import Declined, Quarantine, Relays
from edge.dhcp.boot import BootChoice, Client, ClientKind, Verdict, identify
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, NO_SOURCE, PXE_PORT, SERVER_PORT, Received, Reply
from edge.dhcp.replies.assembly import TooSmallError, assemble, echo_client_identifier, first_options
from edge.dhcp.replies.boot_server import boot_server_reply
from edge.dhcp.replies.destinations import Destinations
from edge.dhcp.replies.reservation import Compiler, Reservation
from edge.dhcp.replies.unregistered import Unregistered
from edge.dhcp.reports import Reports
from edge.dhcp.settings import DhcpSettings
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.relay_agent import RelayAgent, relay_agent_of
from edge.journey.events import Outcome
from edge.machines import Inventory, Machine, NetbootPolicy
from tink.mac import octets

log = logging.getLogger(__name__)

_INFINIBAND = bytes((codec.INFINIBAND,))
_NO_ANSWER = "DHCP answer"
_LINKS_TOLD = 1024


class Leases:
    """Answers for the machines of an inventory, as their DHCP server."""

    def __init__(
        self,
        inventory: Inventory,
        settings: DhcpSettings,
        policy: NetbootPolicy,
        choice: BootChoice,
        reports: Reports,
        unregistered: Unregistered,
        quarantine: Quarantine,
        declined: Declined,
        destinations: Destinations,
        relays: Relays,
        relay_heard: Callable[[Machine, str, str], None],
    ) -> None:
        self.reservations: dict[bytes, Reservation] = {}
        """By the six bytes of the MAC; those that are compiled already."""
        self._inventory = inventory
        self._choice = choice
        self._reports = reports
        self._unregistered = unregistered
        self._quarantine = quarantine
        self._declined = declined
        self._destinations = destinations
        self._relays = relays
        self._relay_heard = relay_heard
        self._heard_links: set[bytes] = set()
        self._here = settings.networks
        self._ipv6 = settings.ipv6
        self._compiler = Compiler(settings.server_ip, policy, settings.networks, choice.path)
        self._server_id = options.ipv4(settings.server_ip)
        self._peers: frozenset[bytes] = frozenset()
        self._gone: frozenset[bytes] = frozenset()

    def peers_changed(self, peers: frozenset[str], gone: frozenset[str] = frozenset()) -> None:
        """Other edges answer for the same machines: that one took an offer of theirs is no news. Those that are `gone`
        answer no more. Addresses, dotted.
        """
        self._gone = frozenset(map(options.ipv4, gone))
        self._peers = frozenset(map(options.ipv4, peers)) | self._gone

    def is_for_a_peer(self, message: Message) -> bool:
        """Whether option 54 names another edge."""
        return message.options.get(options.SERVER_IDENTIFIER) in self._peers

    def compile(self, mac: str) -> Reservation | None:
        """The reservation of the machine with this MAC, made anew; None if there is no such machine."""
        chaddr = octets(mac)
        machine = self._inventory.by_mac(mac)
        self._quarantine.follow(mac, machine)
        if machine is None:
            self.reservations.pop(chaddr, None)
            return None
        is_sole = machine.ip is None or self._inventory.is_served(machine, machine.ip)
        reservation = self._compiler.compile(machine, is_sole=is_sole)
        self.reservations[chaddr] = reservation
        return reservation

    def is_surplus(self, packet: bytes) -> bool:
        """Return True if `packet` exceeds the limit for machines without a Hardware.

        The MAC alone decides, before the packet is parsed. A packet of a flood of invented MACs costs little more than
        its receipt.
        """
        if packet[1:2] == _INFINIBAND:  # Its address need not be there: such packets have an allowance of their own.
            if self._unregistered.may_send("InfiniBand"):
                return False
            self._reports.unread()
            return True
        chaddr = packet[28:34]  # RFC 2131 section 2
        if chaddr in self.reservations or self._unregistered.may_send() or self._inventory.claimants(chaddr.hex(":")):
            return False
        self._reports.unread()
        return True

    def answer(self, message_type: MessageType, message: Message, received: Received) -> Reply | None:
        """The answer to a client's message, or None for silence."""
        reservation = self.reservations.get(message.mac) or self.compile(message.mac.hex(":"))
        if reservation is None:
            self._report_unknown(message_type, message)
            return None
        if received.port == PXE_PORT:
            return self._boot_server(reservation, message, received) if message_type is MessageType.REQUEST else None
        if message_type is MessageType.DECLINE:
            self._decline(reservation, message, received)
            return None
        if message_type is MessageType.RELEASE:
            self._release(reservation, message, received)
            return None
        agent = relay_agent_of(message, received.source_port)
        if agent.giaddr and not self._destinations.relay(agent, reservation.network):
            return None
        if message_type is MessageType.DISCOVER:
            return self._discover(reservation, message, agent)
        if message_type is MessageType.REQUEST:
            return self._request(reservation, message, agent)
        return self._inform(reservation, message, agent, received)

    # --- what a client may ask --------------------------------------------------------------------------------------

    def _discover(self, reservation: Reservation, message: Message, agent: RelayAgent) -> Reply | None:
        """Section 4.3.1."""
        if not self._is_served(reservation) or self._is_quarantined(reservation):
            return None
        return self._lease(MessageType.OFFER, reservation, message, agent)

    def _request(self, reservation: Reservation, message: Message, agent: RelayAgent) -> Reply | None:
        """Section 4.3.2."""
        requested = message.options.get(options.REQUESTED_ADDRESS)
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        if server_id is not None and not self._is_us(server_id, agent):
            if server_id in self._gone and requested == reservation.yiaddr:
                return self._stand_in(reservation, message, agent, server_id)
            self._has_chosen_another(reservation, server_id)
            return None
        if not self._is_served(reservation):
            return None
        asked = requested if requested is not None else message.ciaddr
        if len(asked) != 4 or not any(asked):
            log.debug("%s asks for no address (option 50, ciaddr); not answered", reservation.machine.mac)
            return None
        if asked != reservation.yiaddr:
            return self._nak(reservation, message, agent, options.dotted(asked))
        renewing = requested is None  # it has the address and uses it: whatever others say, it is not to lose it
        if not renewing:
            if self._is_quarantined(reservation):
                return None
            self._declined.acknowledged.lately.add(message.mac)
            if reservation.network.holds(agent.giaddr):
                self._relays.carried(agent.giaddr, message.mac)
        return self._lease(MessageType.ACK, reservation, message, agent, renewing=renewing)

    def _stand_in(
        self, reservation: Reservation, message: Message, agent: RelayAgent, server_id: bytes
    ) -> Reply | None:
        """The client has taken the offer of an edge that is gone. It was for the same address, and all that follows it
        gets here. Should that edge be back, both answer the same.
        """
        if not self._is_served(reservation) or self._is_quarantined(reservation):
            return None
        server = options.dotted(server_id)
        line = f"answered in the place of the edge {server}, which is gone"
        self._reports.once(reservation.machine.mac, Outcome.INFO, line, server=server)
        self._declined.acknowledged.lately.add(message.mac)
        return self._lease(MessageType.ACK, reservation, message, agent._replace(server_id=server_id))

    def _inform(
        self, reservation: Reservation, message: Message, agent: RelayAgent, received: Received
    ) -> Reply | None:
        """Section 4.3.5: the client has an address from elsewhere; it gets the rest, and no lease.

        "The server SHOULD check the network address in a DHCPINFORM message for consistency": what we know of the
        machine's network is of no use elsewhere, and the answer goes to whatever address the client says it has.
        """
        if not self._is_served(reservation):
            return None
        address = _informed(message, received)
        if not any(message.giaddr) and address != BROADCAST:
            wanted = options.ipv4(address)
            if wanted != reservation.yiaddr and not reservation.network.holds(wanted):
                line = f"DHCPINFORM for {address}, which is not of this machine's network: not answered"
                self._reports.tallied(reservation.machine.mac, "DHCPINFORM", f"{line}; it came from {received.source}")
                return None
            if not self._destinations.client(address):
                return None
        client = identify(message)
        verdict = self._choice.verdict(reservation.machine, reservation.machine.mac, client)
        payload = self._assemble(MessageType.ACK, reservation, message, agent, client, verdict, leased=False)
        if payload is None:
            return None
        self._reports.sent(reservation.machine.mac, "DHCPACK (inform)", client, verdict, Outcome.INFO)
        if agent.giaddr:
            return Reply(payload, options.dotted(agent.giaddr), agent.port or SERVER_PORT)
        return Reply(payload, address, CLIENT_PORT)

    def _release(self, reservation: Reservation, message: Message, received: Received) -> None:
        """Handle a DHCPRELEASE (section 4.3.4). The reservation stays; the release is only reported.

        A release counts if it comes from the released address (section 4.4.4), from another address of the same
        machine, or through a trusted relay of the machine's network.
        """
        machine, network, agent = reservation.machine, reservation.network, relay_agent_of(message)
        # systemd-networkd names no server, though section 4.4.4 wants it.
        is_ours = not reservation.unserved and self._is_for_us(message, or_nobody=True)
        if not is_ours or message.ciaddr != reservation.yiaddr:
            return
        by = ""
        if agent.giaddr:
            is_near = network.has_link(agent.link) and not self._doubt(reservation, agent, received)
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

    def _decline(self, reservation: Reservation, message: Message, received: Received) -> None:
        """Handle a DHCPDECLINE (section 4.3.3): the client found another host at its address.

        The operator has to find that host.

        A decline counts only if it names this server, declines the address that this server assigned, and comes from
        where the machine can be. The machine has no address, so it broadcasts on its link from 0.0.0.0 (sections 4.1
        and 4.4.4). No router forwards such a packet, and no kernel takes it for a packet to a single address. Otherwise
        the machine's relay passes it on. Hosts of this link can't decline addresses of another link.
        """
        machine = reservation.machine
        requested = message.options.get(options.REQUESTED_ADDRESS)
        agent = relay_agent_of(message)
        # On our own link every edge hears it, and offers the same address: each looks for itself.
        is_ours = self._is_for_us(message) or (not agent.giaddr and self.is_for_a_peer(message))
        if reservation.unserved or requested != reservation.yiaddr or not is_ours:
            log.debug("a DHCPDECLINE of %s that is not about its reservation is ignored", machine.mac)
            return
        if agent.giaddr and not reservation.network.has_link(agent.link):
            why = f"its relay {options.dotted(agent.giaddr)} is not of this machine's network"
            self._declined.disbelieved(machine, received.source, why)
        elif not agent.giaddr and received.source != NO_SOURCE:
            why = "a machine declines by a broadcast on its link, or through its relay"
            self._declined.disbelieved(machine, received.source, why)
        elif not agent.giaddr and not reservation.network.is_here:
            why = "the link that it came from is not of this machine's network"
            self._declined.disbelieved(machine, received.source, why)
        else:
            doubt = self._doubt(reservation, agent, received) if agent.giaddr else ""
            relayed = bool(agent.giaddr)
            self._declined.heard(machine, reservation.yiaddr, received.source, relayed=relayed, doubt=doubt)

    def _doubt(self, reservation: Reservation, agent: RelayAgent, received: Received) -> str:
        """Return the reason why the relay is not trusted for this machine; empty if it is."""
        dhcp = reservation.machine.interface.dhcp
        return self._relays.doubt(
            received.source,
            agent.giaddr,
            is_of_network=reservation.network.holds(agent.giaddr),
            gateway=dhcp.gateway if dhcp is not None else None,
        )

    def _boot_server(self, reservation: Reservation, message: Message, received: Received) -> Reply | None:
        """A request on port 4011: the client has its address and asks for its boot file only."""
        client, machine = identify(message), reservation.machine
        if client.kind is ClientKind.OPERATING_SYSTEM or not self._is_for_us(message, or_nobody=True):
            return None
        if not self._is_served(reservation):
            return None
        if not self._destinations.client(received.source):
            return None
        verdict = self._choice.verdict(machine, machine.mac, client)
        return boot_server_reply(self._reports, machine.mac, message, received, client, verdict, self._server_id)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _lease(
        self,
        message_type: MessageType,
        reservation: Reservation,
        message: Message,
        agent: RelayAgent,
        *,
        renewing: bool = False,
    ) -> Reply | None:
        client, machine = identify(message), reservation.machine
        verdict = self._choice.verdict(machine, machine.mac, client)
        payload = self._assemble(message_type, reservation, message, agent, client, verdict, leased=True)
        if payload is None:
            return None
        if renewing:
            line = f"DHCPACK {machine.ip} (renewal)"
            self._reports.sent(machine.mac, line, client, verdict, Outcome.INFO, address=machine.ip or "")
        else:
            self._reports.leased(machine.mac, message_type, client, verdict)
        # RFC 2131 section 4.1.
        if agent.giaddr:
            self._check_link(reservation, agent)
            return Reply(payload, options.dotted(agent.giaddr), agent.port or SERVER_PORT)
        if message.ciaddr == reservation.yiaddr:
            return Reply(payload, options.dotted(message.ciaddr), CLIENT_PORT)
        if not reservation.network.is_here:
            self._is_elsewhere(reservation)
        if message.flags & codec.BROADCAST_FLAG:
            return Reply(payload, BROADCAST, CLIENT_PORT)
        return Reply(payload, options.dotted(reservation.yiaddr), CLIENT_PORT, message.mac)

    def _nak(self, reservation: Reservation, message: Message, agent: RelayAgent, asked: str) -> Reply:
        """Section 4.3.2: so that a client with an old address asks anew at once instead of using it.

        Broadcast, for the client may have no working address; a relay is told by the flag to broadcast it, too.
        """
        machine = reservation.machine
        flags = message.flags | codec.BROADCAST_FLAG if agent.giaddr else message.flags
        payload = codec.finish(
            [
                codec.header(message, flags=flags),
                first_options(MessageType.NAK, agent.server_id or self._server_id),
                options.option(options.MESSAGE, options.text(f"{asked} is not reserved for this machine")),
                echo_client_identifier(message),
                agent.echo,
            ]
        )
        line = f"DHCPNAK: it asked for {asked}, reserved for it is {machine.ip}"
        self._reports.step(machine.mac, Outcome.INFO, line, address=machine.ip or "")
        if agent.giaddr:
            return Reply(payload, options.dotted(agent.giaddr), agent.port or SERVER_PORT)
        return Reply(payload, BROADCAST, CLIENT_PORT)

    def _assemble(
        self,
        message_type: MessageType,
        reservation: Reservation,
        message: Message,
        agent: RelayAgent,
        client: Client,
        verdict: Verdict,
        *,
        leased: bool,
    ) -> bytes | None:
        """The reply, within the size that the client takes; None where even the least is too large, which is told."""
        network = reservation.network
        plan = network.plan(message.options.get(options.PARAMETER_REQUEST_LIST))
        try:
            return assemble(
                message,
                message_type,
                agent.server_id or self._server_id,  # a relay may want to be the server itself (RFC 5107)
                verdict.boot,
                yiaddr=reservation.yiaddr if leased else codec.NO_ADDRESS,
                ciaddr=codec.NO_ADDRESS if message_type is MessageType.OFFER else message.ciaddr,
                lease=network.lease if leased else b"",
                network=plan.before + (reservation.hostname if plan.names_host else b"") + plan.behind,
                fewer=partial(network.fewer, plan, reservation.hostname),
                vlan=reservation.vlan if client.kind is ClientKind.IPXE else b"",
                relay=agent.echo,
            )
        except TooSmallError as error:
            self._reports.refused(reservation.machine.mac, _NO_ANSWER, str(error))
            return None

    # --- whom, and what the operator hears ----------------------------------------------------------------------

    def _is_for_us(self, message: Message, *, or_nobody: bool = False) -> bool:
        """Whether option 54 names us; or, with `or_nobody`, is missing."""
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        return or_nobody if server_id is None else self._is_us(server_id, relay_agent_of(message))

    def _is_us(self, server_id: bytes, agent: RelayAgent) -> bool:
        """Whether `server_id` is ours, or that of the relay which we were asked to give instead."""
        return server_id == self._server_id or (server_id == agent.server_id and server_id != b"")

    def _is_served(self, reservation: Reservation) -> bool:
        machine = reservation.machine
        if reservation.unserved and not (self._ipv6 and machine.ip is None and machine.ipv6 is not None):
            self._reports.refused(machine.mac, _NO_ANSWER, reservation.unserved)
        return not reservation.unserved

    def _is_quarantined(self, reservation: Reservation) -> bool:
        reason = self._quarantine.refusal(reservation.machine)
        if reason:
            self._reports.refused(reservation.machine.mac, _NO_ANSWER, reason)
        return bool(reason)

    def _has_chosen_another(self, reservation: Reservation, server_id: bytes) -> None:
        if len(server_id) != 4 or server_id in self._peers or reservation.unserved:
            return
        server = options.dotted(server_id)
        line = (
            f"took the offer of another DHCP server, {server}: it may not boot from here. Stop that server's answers "
            "to this machine, or run the edge beside it (--dhcp-mode proxy)"
        )
        self._reports.once(reservation.machine.mac, Outcome.FAILED, line, server=server)

    def _is_elsewhere(self, reservation: Reservation) -> None:
        machine, here = reservation.machine, ", ".join(map(str, self._here))
        line = (
            f"asked on a link of this edge ({here}), and its address {machine.ip} is of another network: with it, it "
            "may reach nothing. Check its switch port, and the Hardware's dhcp.ip and dhcp.netmask"
        )
        self._reports.once(machine.mac, Outcome.FAILED, line, address=machine.ip or "")

    def _check_link(self, reservation: Reservation, agent: RelayAgent) -> None:
        if reservation.network.has_link(agent.link):
            if not reservation.network.is_here and agent.link not in self._heard_links:
                if len(self._heard_links) >= _LINKS_TOLD:
                    self._heard_links.clear()
                self._heard_links.add(agent.link)
                link, relay = options.dotted(agent.link), options.dotted(agent.giaddr)
                self._relay_heard(reservation.machine, link, relay)
            return
        machine, link = reservation.machine, options.dotted(agent.link)
        line = (
            f"asked through a relay of another network ({link}) than that of its address {machine.ip}: with it, it may "
            "reach nothing. Check its switch port, and the Hardware's dhcp.ip and dhcp.netmask"
        )
        self._reports.once(machine.mac, Outcome.FAILED, line, relay=options.dotted(agent.giaddr))

    def _report_unknown(self, message_type: MessageType, message: Message) -> None:
        mac = message.mac.hex(":")
        claimants = self._inventory.claimants(mac)
        if not claimants:
            self._unregistered.heard(mac, message_type, message, identify(message))
            return
        names = ", ".join(sorted(f"{machine.namespace}/{machine.name}" for machine in claimants))
        reason = f"MAC {mac} is claimed by several Hardware, so none is served: {names}"
        self._reports.refused(mac, _NO_ANSWER, reason)


def _informed(message: Message, received: Received) -> str:
    """Where a client that sent a DHCPINFORM says it is, or was heard; the broadcast address if neither is a host's."""
    for address in (options.dotted(message.ciaddr), received.source):
        if options.is_host(address):
            return address
    return BROADCAST
