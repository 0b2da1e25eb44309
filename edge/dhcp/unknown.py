"""Machines without a Hardware, with rules of `--discover`: offers from memory, and admission by a REQUEST. Pure.

    DISCOVER   an OFFER of a free address, if a rule fits. Nothing is created, and no address is held
    REQUEST    of an OFFER of this edge: the machine is admitted, and its Hardware is created. The ACK follows as soon
               as the Hardware is there; a NAK, if the address was taken meanwhile
    others     silence (RFC 2131 section 4.3.2: INIT-REBOOT and RENEWING of a client that the server does not know)

`tink.discovery.admission` decides. `is_surplus` drops most of a flood before it is parsed.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final, NamedTuple, Protocol

from edge.dhcp.boot import identify
from edge.dhcp.context import NO_SOURCE, SERVER_PORT, DhcpContext, Query, Received, to_client
from edge.dhcp.reservation import Compiler
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import relay_agent_of
from edge.dhcp_common import Client, DhcpSite, Reply, Stage
from tink.discovery.admission import (
    AdmissionReason,
    Admitted,
    Candidate,
    Decision,
    Offered,
    Refused,
    Waiting,
    discovered_hardware,
)
from tink.limits import Newest, TokenBuckets
from tink.mac import octets

MAX_PACKETS_AT_ONCE: Final = 1000.0
PACKETS_A_SECOND: Final = 500.0
"""Maximum rate of packets of machines without a Hardware that are parsed; the rest of a flood is dropped before.

Machines that send again have the same rate for themselves, and so have machines that take an offer."""
MAX_LISTED_AT_ONCE: Final = 10.0
LISTED_PACKETS_A_SECOND: Final = 1.0
"""Maximum rate of packets of each machine on a list of expected machines that are parsed in a flood of others."""
HOLD_SECONDS: Final = 10.0
"""Time for which a REQUEST is held until the Hardware of its machine is there.

Firmware and systemd-networkd repeat a REQUEST after 4 s, iPXE after 1 s; the repetition is held in its place."""
MAX_HELD: Final = 1024
"""Maximum number of REQUESTs that are held."""

_INFINIBAND: Final = bytes((codec.INFINIBAND,))
_OPTIONS_AT: Final = 240
_REQUEST_OPTION: Final = options.option(options.MESSAGE_TYPE, bytes((MessageType.REQUEST,)))


class Discovery(Protocol):
    """Decides which unknown machines are admitted (`edge.machines.DiscoveryWriter`)."""

    def is_returning(self, mac: bytes) -> bool:
        """Return True if the MAC address (six bytes) was seen at least a second ago, and note that it was seen."""

    def is_listed(self, mac: bytes) -> bool:
        """Return True if a list of expected machines has the MAC address (six bytes)."""

    def has_offer(self, mac: bytes) -> bool:
        """Return True if a REQUEST of the MAC address (six bytes) may admit it, or has admitted it."""

    def offer(self, candidate: Candidate) -> Decision:
        """Decide about a machine that has sent a DISCOVER. Nothing is created."""

    def request(self, candidate: Candidate, address: IPv4Address) -> Decision:
        """Decide about a machine that has sent a REQUEST for an address, and register it if it is admitted."""


class _Held(NamedTuple):
    """A REQUEST that waits for the Hardware of its machine, and the time at which it arrived."""

    message: Message
    received: Received
    at: float


class UnknownMachines:
    """Answers machines without a Hardware."""

    def __init__(self, site: DhcpSite, context: DhcpContext, compiler: Compiler, discovery: Discovery | None) -> None:
        """Create the handler of one interface.

        discovery: decides about netboot clients; None: they are only reported.
        """
        self._inventory = site.inventory
        self._clock = site.clock
        self._context = context
        self._compiler = compiler
        self._discovery = discovery
        self._packets = TokenBuckets(MAX_PACKETS_AT_ONCE, PACKETS_A_SECOND)
        self._listed = TokenBuckets(MAX_LISTED_AT_ONCE, LISTED_PACKETS_A_SECOND)
        self._held: Newest[bytes, _Held] = Newest(MAX_HELD)
        """The last REQUEST of each machine whose Hardware is being created, by MAC."""

    def is_surplus(self, packet: bytes) -> bool:
        """Return True if a packet of a machine without a reservation exceeds the limits."""
        # The MAC and the message type decide, before the packet is parsed: a packet of a flood of invented MACs costs
        # little more than its receipt.
        # The MAC of an InfiniBand port is not at a fixed place, so such packets have a limit of their own.
        link, chaddr = ("InfiniBand", b"") if packet[1:2] == _INFINIBAND else ("", packet[28:34])  # RFC 2131 section 2
        discovery, now = self._discovery if chaddr else None, self._clock()
        # A machine that sends again must be heard in a flood of machines that send once.
        is_returning = discovery is not None and discovery.is_returning(chaddr)
        if self._packets.allows(link, now):
            return False
        if chaddr and self._inventory.claimants(chaddr.hex(":")):
            return False
        if discovery is not None:
            # A REQUEST of a machine without an offer is a part of the flood.
            takes_offer = packet.find(_REQUEST_OPTION, _OPTIONS_AT) >= 0 and discovery.has_offer(chaddr)
            if takes_offer and self._packets.allows(self._key("takes an offer", packet), now):
                return False
            if is_returning and self._packets.allows(self._key("returning", packet), now):
                return False
            # MAC addresses of one delivery are easy to guess, so all of them together have a limit, too.
            if discovery.is_listed(chaddr):
                return not (self._listed.allows(chaddr, now) and self._packets.allows("listed", now))
        line = "DHCP packets of machines without a Hardware come too fast: most are dropped"
        self._context.reports.dropped("unread", line)
        return True

    def _key(self, kind: str, packet: bytes) -> str:
        """Return the key of the limit for a kind of machines behind the packet's relay (giaddr, RFC 2131 section 2).

        A flood on one side of the relays must not silence the other one. A relay has its own limit only if a registered
        machine is behind it, because a flood can invent any number of relays.
        """
        relay = packet[24:28]
        if relay == codec.NO_ADDRESS:
            return kind
        return f"{kind} {relay.hex() if relay in self._context.near_relays else 'relayed'}"

    def answer(self, message_type: MessageType, message: Message, received: Received) -> Reply | None:
        """Return the reply to a machine without a Hardware, or None for silence."""
        client, discovery = identify(message), self._discovery
        if discovery is not None and received.port == SERVER_PORT and client.stage is not Stage.OPERATING_SYSTEM:
            if message_type is MessageType.DISCOVER:
                return self._offer(discovery, message, client, received)
            if message_type is MessageType.REQUEST:
                return self._request(discovery, message, client, received)
        self._context.report_unknown(message_type, message, client)
        return None

    def _offer(self, discovery: Discovery, message: Message, client: Client, received: Received) -> Reply | None:
        """Answer a DISCOVER: as it will be answered when the Hardware is there (RFC 2131 section 4.3.1)."""
        candidate = self._candidate(message, received)
        decision = candidate if isinstance(candidate, Refused) else discovery.offer(candidate)
        # The step of the journey is the one of an unknown machine, once a minute: any host can invent machines.
        self._context.report_unknown(MessageType.DISCOVER, message, client, admission=decision)
        if not isinstance(decision, Offered):
            return None
        agent = relay_agent_of(message, received.source_port)
        if agent.giaddr and not self._context.may_reach_relay(agent, None):
            return None
        mac = message.mac.hex(":")
        machine = self._inventory.preview(discovered_hardware(mac, decision.rule, decision.address))
        reservation = self._compiler.compile(machine, is_sole=True)
        query = Query(MessageType.DISCOVER, message, reservation, agent, received)
        boot = self._context.choice.answer(machine, mac, client)
        payload = self._context.assemble_for(MessageType.OFFER, query, client, boot)
        return to_client(payload, query) if payload is not None else None

    def _request(self, discovery: Discovery, message: Message, client: Client, received: Received) -> Reply | None:
        """Answer a REQUEST by which a machine accepts an offer (RFC 2131 section 4.3.2, SELECTING)."""
        context, agent = self._context, relay_agent_of(message, received.source_port)
        server_id = message.options.get(options.SERVER_IDENTIFIER, b"")
        requested = message.options.get(options.REQUESTED_ADDRESS, b"")
        is_ours = context.is_us(server_id, agent)
        # A peer that is gone may have offered the same address; the ACK is then in its name.
        if not (is_ours or server_id in context.gone_peers) or len(requested) != 4:
            context.report_unknown(MessageType.REQUEST, message, client)
            if len(server_id) == 4 and server_id not in context.peers and discovery.has_offer(message.mac):
                context.report_other_server(message.mac.hex(":"), server_id)
            return None
        candidate = self._candidate(message, received)
        if isinstance(candidate, Refused):
            context.report_unknown(MessageType.REQUEST, message, client, admission=candidate)
            return None
        decision = discovery.request(candidate, IPv4Address(requested))
        context.report_unknown(MessageType.REQUEST, message, client, admission=decision)
        if isinstance(decision, Admitted | Waiting):
            self._held[message.mac] = _Held(message, received, self._clock())
            return None
        may_reach = not agent.giaddr or context.may_reach_relay(agent, None)
        if not isinstance(decision, Refused) or not is_ours or not may_reach:
            return None
        return context.nak(message, agent, f"{options.dotted(requested)} is not reserved for this machine")

    def take_held(self, mac: str) -> tuple[Message, Received] | None:
        """Return the REQUEST of a machine whose Hardware has arrived, if it is not too old. It is no longer held."""
        if not self._held:
            return None
        held = self._held.pop(octets(mac), None)
        return held[:2] if held is not None and self._clock() - held.at <= HOLD_SECONDS else None

    def _candidate(self, message: Message, received: Received) -> Candidate | Refused:
        """Return the machine and the way of its packet, or the reason why this way admits no machine."""
        agent, relays = relay_agent_of(message, received.source_port), self._context.relays
        if agent.giaddr and relays.configured and not relays.names(received.source):
            relay = f"{options.dotted(agent.giaddr)} from {received.source}"
            return Refused(AdmissionReason.OTHER_RELAY, f"it came through relay {relay}; name that address in --relays")
        if not agent.giaddr and received.source != NO_SOURCE:
            # Only such a packet is certain to be from our own link (see NO_SOURCE).
            text = f"its packet came from {received.source}, and a machine without an address sends from {NO_SOURCE}"
            return Refused(AdmissionReason.NO_RULE, f"{text}; create its Hardware if the machine is yours")
        information = options.suboptions(message.options.get(options.RELAY_AGENT_INFORMATION, b"")) or {}
        return Candidate(
            message.mac.hex(":"),
            self._context.settings.networks,
            IPv4Address(agent.giaddr) if agent.giaddr else None,
            IPv4Address(agent.link) if agent.link else None,
            information.get(options.CIRCUIT_ID, b""),
        )
