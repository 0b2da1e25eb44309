"""The messages of a machine with a reservation that are rare: DHCPINFORM, DHCPRELEASE, DHCPDECLINE, port 4011. Pure."""

from __future__ import annotations

import logging

from edge.dhcp.boot import ClientKind, identify
from edge.dhcp.context import Context, to_relay
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, NO_SOURCE, Received, Reply
from edge.dhcp.replies.proxy import boot_server_reply
from edge.dhcp.reservation import Reservation
from edge.dhcp.wire import Message, MessageType, options
from edge.dhcp.wire.codec import RelayAgent, relay_agent_of
from edge.dhcp_common import Declines
from edge.journey.events import Outcome

log = logging.getLogger(__name__)


class RareMessages:
    """Handles these messages in mode reservation."""

    def __init__(self, context: Context, declines: Declines) -> None:
        self._context = context
        self._declines = declines

    def inform(self, reservation: Reservation, message: Message, agent: RelayAgent, received: Received) -> Reply | None:
        """Answer a DHCPINFORM (RFC 2131 section 4.3.5).

        The client has an address from another source; it gets everything else, and no lease.
        """
        context, machine = self._context, reservation.machine
        if not context.is_served(reservation):
            return None
        address = _informed(message, received)
        if not agent.giaddr and address != BROADCAST:
            # "The server SHOULD check the network address in a DHCPINFORM message for consistency": our answer goes to
            # the address that the packet states, and is of use only in the machine's own network.
            stated = options.ipv4(address)
            if stated != reservation.yiaddr and not reservation.network.holds(stated):
                line = f"DHCPINFORM for {address}, which is not of this machine's network: not answered"
                context.reports.tallied(machine.mac, "DHCPINFORM", f"{line}; it came from {received.source}")
                return None
            if not context.destinations.may_reach_client(address):
                return None
        client = identify(message)
        verdict = context.choice.verdict(machine, machine.mac, client)
        payload = context.assemble(MessageType.ACK, reservation, message, agent, client, verdict, has_lease=False)
        if payload is None:
            return None
        context.reports.sent(machine.mac, "DHCPACK (inform)", client, verdict, Outcome.INFO)
        return to_relay(payload, agent) if agent.giaddr else Reply(payload, address, CLIENT_PORT)

    def release(self, reservation: Reservation, message: Message, received: Received) -> None:
        """Report a DHCPRELEASE (RFC 2131 section 4.3.4). The reservation stays.

        A release counts if it comes from the released address (section 4.4.4), from another address of the same
        network, or through a trusted relay of the machine's network.
        """
        machine, network, agent = reservation.machine, reservation.network, relay_agent_of(message)
        # systemd-networkd names no server, though section 4.4.4 requires it.
        is_ours = not reservation.unserved and self._context.is_for_us(message, if_missing=True)
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
            self._context.reports.once(machine.mac, Outcome.INFO, line, address=machine.ip or "")
        else:
            log.debug("a DHCPRELEASE of %s from %s is not the machine's own", machine.mac, received.source)

    def decline(self, reservation: Reservation, message: Message, received: Received) -> None:
        """Check a DHCPDECLINE (RFC 2131 section 4.3.3): the client found another host at its address.

        A decline counts only if it names this server, declines the address that this server assigned, and comes from a
        place where the machine can be. The operator has to find the other host.
        """
        machine, network = reservation.machine, reservation.network
        requested = message.options.get(options.REQUESTED_ADDRESS)
        agent = relay_agent_of(message)
        # On our own link every edge receives the broadcast, and offers the same address: each edge probes for itself.
        is_ours = self._context.is_for_us(message) or (not agent.giaddr and self._context.is_for_a_peer(message))
        if reservation.unserved or requested != reservation.yiaddr or not is_ours:
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
            self._declines.reject(machine, received.source, why)
            return
        doubt = self._doubt(reservation, agent, received) if agent.giaddr else ""
        relayed = bool(agent.giaddr)
        self._declines.check(machine, reservation.yiaddr, received.source, relayed=relayed, doubt=doubt)

    def request_boot_file(self, reservation: Reservation, message: Message, received: Received) -> Reply | None:
        """Answer a REQUEST on port 4011: the client has its address and asks for its boot file only."""
        context, client, machine = self._context, identify(message), reservation.machine
        if client.kind is ClientKind.OPERATING_SYSTEM or not context.is_for_us(message, if_missing=True):
            return None
        if not context.is_served(reservation) or not context.destinations.may_reach_client(received.source):
            return None
        verdict = context.choice.verdict(machine, machine.mac, client)
        return boot_server_reply(context, machine.mac, message, received, client, verdict)

    def _doubt(self, reservation: Reservation, agent: RelayAgent, received: Received) -> str:
        """Return the reason why the relay is not trusted for this machine; empty if it is."""
        dhcp = reservation.machine.interface.dhcp
        return self._context.relays.doubt(
            received.source,
            agent.giaddr,
            is_of_network=reservation.network.holds(agent.giaddr),
            gateway=dhcp.gateway if dhcp is not None else None,
        )


def _informed(message: Message, received: Received) -> str:
    """Return the client's address in a DHCPINFORM: `ciaddr`, or the source, or the broadcast address."""
    for address in (options.dotted(message.ciaddr), received.source):
        if options.is_host(address):
            return address
    return BROADCAST
