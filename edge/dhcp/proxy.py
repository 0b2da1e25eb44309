"""Proxy modes: another DHCP server assigns the addresses, this one states what to boot (PXE 2.1 section 2.2). Pure.

A netboot client receives two offers to its DISCOVER: the other server's, with an address, and ours, without one
(`yiaddr` is 0) but with a boot file. It takes the address from the one and the boot file from the other. All clients
send their REQUEST to the other server, and it is never answered here on port 67: a DHCPACK would acknowledge an address
that is not ours. A client that sends its request to port 4011 is answered there.

Mode `proxy` answers machines that have a Hardware; `auto-proxy` answers all.
"""

from __future__ import annotations

from collections.abc import Callable

from edge.dhcp.boot import identify
from edge.dhcp.context import (
    BROADCAST,
    CLIENT_PORT,
    NO_SOURCE,
    PXE_PORT,
    SERVER_PORT,
    DhcpContext,
    Received,
    several_hardware,
    to_relay,
)
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.codec import relay_agent_of
from edge.dhcp_common import BootAnswer, Client, Reply, Stage
from edge.journey.events import Outcome
from edge.machines import Machine

_OFFER = "ProxyDHCP offer"
_BOOT_SERVER_ANSWER = "answer as PXE boot server"
# These clients take their boot file only from the server of their address. U-Boot takes the first offer for a lease,
# also one without an address (net/bootp.c).
_NEED_A_LEASE = (Stage.OPERATING_SYSTEM, Stage.U_BOOT)


LearnAddress = Callable[[str, str, bool], None]
"""`learn(mac, ip, relayed)`: a machine reported its address, on our link or through a relay (`edge.callers`)."""


class Proxy:
    """Answers netboot clients as a ProxyDHCP server and as a PXE boot server."""

    def __init__(self, context: DhcpContext, learn: LearnAddress | None, *, unknown_clients: bool) -> None:
        """Create the handler. With `unknown_clients`, machines without a Hardware are answered, too."""
        self._context = context
        self._learn = learn
        self._unknown_clients = unknown_clients

    def answer(self, message_type: MessageType, message: Message, received: Received) -> Reply | None:
        """Return the reply to a client's message, or None for silence."""
        mac = message.mac.hex(":")
        machine = self._context.inventory.by_mac(mac)
        if machine is None and not self._may_be_answered(mac, message_type, message):
            return None
        if message_type is MessageType.REQUEST:
            self._learn_address(mac, message, received)
            if received.port == PXE_PORT:
                return self._boot_server(machine, mac, message, received)
        elif message_type is MessageType.DISCOVER and received.port == SERVER_PORT:
            return self._discover(machine, mac, message, received)
        return None

    def _discover(self, machine: Machine | None, mac: str, message: Message, received: Received) -> Reply | None:
        """Offer a boot file."""
        # EDK2's PXE driver takes an offer of class PXEClient with a discovery control (43.6) and a boot file as final
        # (PxeBcSelectDhcp4Offer). Its HTTP Boot driver requires class HTTPClient and a URI. iPXE requires class
        # PXEClient; with `siaddr` and a boot file it sends no request to port 4011 (dhcp_has_pxeopts).
        context, reports = self._context, self._context.reports
        client, agent = identify(message), relay_agent_of(message, received.source_port)
        if client.stage in _NEED_A_LEASE:
            return None
        if agent.giaddr and not context.may_reach_relay(agent, None):
            return None
        if machine is not None and machine.disable_dhcp:
            reason = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{mac}].disableDhcp is true"
            reports.refused(mac, reason, _OFFER)
            return None
        boot = context.choice.answer(machine, mac, client, proxy=True)
        if not boot.options:
            reports.refused(mac, boot.refusal, _OFFER)
            return None
        # There is no address to unicast to, and the flag tells a relay not to try.
        flags = message.flags | codec.BROADCAST_FLAG
        payload = context.assemble(
            mac, message, MessageType.OFFER, boot, what=_OFFER, server_id=agent.server_id, flags=flags, relay=agent.echo
        )
        if payload is None:
            return None
        if machine is None:
            context.report_unknown(MessageType.DISCOVER, message, client, boot.text)
        else:
            reports.sent(mac, _OFFER, client, boot)
        return to_relay(payload, agent) if agent.giaddr else Reply(payload, BROADCAST, CLIENT_PORT)

    def _boot_server(self, machine: Machine | None, mac: str, message: Message, received: Received) -> Reply | None:
        context, client = self._context, identify(message)
        server_id = message.options.get(options.SERVER_IDENTIFIER, context.server_id)
        if client.stage in _NEED_A_LEASE or server_id != context.server_id:
            return None
        if (machine is not None and machine.disable_dhcp) or not context.may_reach_client(received.source):
            return None
        boot = context.choice.answer(machine, mac, client, proxy=True)
        return boot_server_reply(context, mac, message, received, client, boot)

    def _learn_address(self, mac: str, message: Message, received: Received) -> None:
        """Learn from a REQUEST to the other server which address its sender has or is about to have.

        Only a REQUEST that was broadcast on our link or came through a relay counts. Any host of a routed network can
        send a REQUEST in a machine's name, and would be taken for that machine at its own address from then on. Such a
        host can invent a relay, too; `--relays` prevents that. The machine's own network is unknown here: another
        server assigns the address.
        """
        context = self._context
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        if received.port == SERVER_PORT and server_id == context.server_id:
            line = (
                "asked this ProxyDHCP server for an address, which it does not give: "
                "is there no DHCP server on its network?"
            )
            context.reports.once(mac, Outcome.FAILED, line)
            return
        relayed = any(message.giaddr)
        # A machine's messages to its server are broadcast, or a relay passes them on.
        if received.port != SERVER_PORT or (received.source != NO_SOURCE and not relayed):
            return
        requested = message.options.get(options.REQUESTED_ADDRESS, b"")
        address = options.dotted(message.ciaddr if any(message.ciaddr) or len(requested) != 4 else requested)
        if not options.is_host(address):
            return
        if relayed and context.relays.configured and not context.relays.names(received.source):
            if context.inventory.by_mac(mac) is not None:
                line = f"that it has {address} is not believed: the packet comes from {received.source}, which --relays"
                context.reports.tallied(mac, "not from a relay", f"{line} does not name")
            return
        if self._learn is not None:
            self._learn(mac, address, relayed)

    def _may_be_answered(self, mac: str, message_type: MessageType, message: Message) -> bool:
        """Return True if the machine may be answered although not exactly one Hardware has its MAC."""
        claimants = self._context.inventory.claimants(mac)
        if claimants:
            self._context.reports.refused(mac, several_hardware(mac, claimants), _OFFER)
            return False
        client = identify(message)
        if not self._unknown_clients and client.stage not in _NEED_A_LEASE:
            self._context.report_unknown(message_type, message, client)
        return self._unknown_clients


def boot_server_reply(
    context: DhcpContext, mac: str, message: Message, received: Received, client: Client, boot: BootAnswer
) -> Reply | None:
    """Return the ACK to a REQUEST on port 4011 (PXE 2.1 section 2.2.3), or None if there is nothing to boot.

    The reply has no address and no network, because the client has both. EDK2 sends this request after an offer of
    class PXEClient without a boot file or menu (PxeBcRetryBinlOffer), iPXE after a ProxyDHCP offer without a boot file
    (dhcp_proxy_tx). EDK2 sends it from port 4011, iPXE from 68; each expects the reply at that port.
    """
    if not options.is_host(received.source):
        return None
    if not boot.options:
        context.reports.refused(mac, boot.refusal, _BOOT_SERVER_ANSWER)
        return None
    ciaddr, relay = message.ciaddr, relay_agent_of(message).echo
    payload = context.assemble(
        mac, message, MessageType.ACK, boot, what=_BOOT_SERVER_ANSWER, ciaddr=ciaddr, relay=relay
    )
    if payload is None:
        return None
    context.reports.sent(mac, "PXE boot server ACK", client, boot)
    return Reply(payload, received.source, received.source_port)
