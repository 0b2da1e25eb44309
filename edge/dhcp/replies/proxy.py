"""Proxy modes: beside another DHCP server, which gives the addresses, this one says what to boot (PXE 2.1 section 2.2).

A netboot client hears two offers to its DISCOVER: the other server's, with an address, and ours, with none (`yiaddr` 0)
but with a boot file. It takes the address from the one and the file from the other:

- EDK2's PXE driver takes an offer of the class PXEClient with a discovery control (43.6) and a boot file as final, and
  asks nobody else (PxeBcSelectDhcp4Offer). Its HTTP Boot driver wants the class HTTPClient and a URI.
- iPXE wants the class PXEClient; with `siaddr` and a boot file it asks no further (dhcp_has_pxeopts).
- All of them send their REQUEST to the other server. It is never answered here: an ACK would be one for an address that
  is not ours to give. A client that asks on port 4011 is answered there (`edge.dhcp.replies.boot_server`).

What a client says to the other server tells which address it has; `learn` is told, so that TFTP and HTTP know who
calls. In the mode `proxy` machines are answered that have a Hardware; in `auto-proxy`, all.
"""

from __future__ import annotations

from typing import Protocol

from edge.conflict import Relays
from edge.dhcp.boot import BootChoice, identify
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, NO_SOURCE, PXE_PORT, SERVER_PORT, Received, Reply
from edge.dhcp.replies.assembly import TooSmallError, assemble
from edge.dhcp.replies.boot_server import boot_server_reply
from edge.dhcp.replies.destinations import Destinations
from edge.dhcp.replies.unregistered import Unregistered
from edge.dhcp.reports import Reports
from edge.dhcp.settings import DhcpSettings
from edge.dhcp.wire import Message, MessageType, codec, options
from edge.dhcp.wire.relay_agent import relay_agent_of
from edge.journey.events import Outcome
from edge.machines import Inventory, Machine

_NO_ANSWER = "ProxyDHCP offer"


class Learn(Protocol):
    """Records the address of a machine (`edge.callers.Callers.learn`)."""

    def __call__(self, mac: str, ip: str, *, relayed: bool) -> None:
        """Record that the machine with this MAC reported this address, on our link or through a relay."""


class Proxy:
    """Answers netboot clients, as a ProxyDHCP server and as a PXE boot server."""

    def __init__(
        self,
        inventory: Inventory,
        settings: DhcpSettings,
        choice: BootChoice,
        reports: Reports,
        unregistered: Unregistered,
        learn: Learn,
        destinations: Destinations,
        relays: Relays,
        *,
        unknown_clients: bool,
    ) -> None:
        """`unknown_clients`: machines without a Hardware are answered, too."""
        self._inventory = inventory
        self._choice = choice
        self._reports = reports
        self._unregistered = unregistered
        self._learn = learn
        self._destinations = destinations
        self._relays = relays
        self._unknown_clients = unknown_clients
        self._server_id = options.ipv4(settings.server_ip)

    def answer(self, message_type: MessageType, message: Message, received: Received) -> Reply | None:
        """The answer to a client's message, or None for silence."""
        mac = message.mac.hex(":")
        machine = self._inventory.by_mac(mac)
        if machine is None and not self._may_be_answered(mac, message_type, message):
            return None
        if message_type is MessageType.REQUEST:
            self._listen(mac, message, received)
            if received.port == PXE_PORT:
                return self._boot_server(machine, mac, message, received)
        elif message_type is MessageType.DISCOVER and received.port == SERVER_PORT:
            return self._discover(machine, mac, message, received)
        return None

    def _discover(self, machine: Machine | None, mac: str, message: Message, received: Received) -> Reply | None:
        client, agent = identify(message), relay_agent_of(message, received.source_port)
        if not client.hears_proxies:
            return None
        if agent.giaddr and not self._destinations.relay(agent, None):
            return None
        if machine is not None and machine.disable_dhcp:
            reason = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{mac}].disableDhcp is true"
            self._reports.refused(mac, _NO_ANSWER, reason)
            return None
        verdict = self._choice.verdict(machine, mac, client, proxy=True)
        if not verdict.boot.options:
            self._reports.refused(mac, _NO_ANSWER, verdict.refusal)
            return None
        try:
            payload = assemble(
                message,
                MessageType.OFFER,
                agent.server_id or self._server_id,
                verdict.boot,
                flags=message.flags | codec.BROADCAST_FLAG,  # no address to unicast to, and a relay must not try
                relay=agent.echo,
            )
        except TooSmallError as error:
            self._reports.refused(mac, _NO_ANSWER, str(error))
            return None
        if machine is None:
            self._unregistered.heard(mac, MessageType.DISCOVER, message, client, answer=verdict.boot.text)
        else:
            self._reports.sent(mac, "ProxyDHCP offer", client, verdict)
        if agent.giaddr:
            return Reply(payload, options.dotted(agent.giaddr), agent.port or SERVER_PORT)
        return Reply(payload, BROADCAST, CLIENT_PORT)

    def _boot_server(self, machine: Machine | None, mac: str, message: Message, received: Received) -> Reply | None:
        client = identify(message)
        server_id = message.options.get(options.SERVER_IDENTIFIER, self._server_id)
        if not client.hears_proxies or server_id != self._server_id:
            return None
        if (machine is not None and machine.disable_dhcp) or not self._destinations.client(received.source):
            return None
        verdict = self._choice.verdict(machine, mac, client, proxy=True)
        return boot_server_reply(self._reports, mac, message, received, client, verdict, self._server_id)

    def _listen(self, mac: str, message: Message, received: Received) -> None:
        """Learn from a REQUEST which address its sender has or is about to have.

        Only a REQUEST that was broadcast on our link or came through a relay counts. Any host of a routed network can
        send a REQUEST in a machine's name, and would be taken for that machine at its own address from then on. Such a
        host can invent a relay, too; `--relays` prevents that. The machine's own network is unknown here: another
        server assigns the address.
        """
        server_id = message.options.get(options.SERVER_IDENTIFIER)
        if received.port == SERVER_PORT and server_id == self._server_id:
            line = (
                "asked this ProxyDHCP server for an address, which it does not give: "
                "is there no DHCP server on its network?"
            )
            self._reports.once(mac, Outcome.FAILED, line)
            return
        if received.port != SERVER_PORT or (received.source != NO_SOURCE and not any(message.giaddr)):
            return  # by unicast, from anywhere: what a machine says to its server is broadcast, or passed on by a relay
        requested = message.options.get(options.REQUESTED_ADDRESS, b"")
        address = options.dotted(message.ciaddr if any(message.ciaddr) or len(requested) != 4 else requested)
        if not options.is_host(address):
            return
        relayed = any(message.giaddr)
        if relayed and self._relays.configured and not self._relays.names(received.source):
            if self._inventory.by_mac(mac) is not None:
                line = f"that it has {address} is not believed: the packet comes from {received.source}, which --relays"
                self._reports.tallied(mac, "not from a relay", f"{line} does not name")
            return
        self._learn(mac, address, relayed=relayed)

    def _may_be_answered(self, mac: str, message_type: MessageType, message: Message) -> bool:
        """Whether a machine may be that has no Hardware, or more than one."""
        claimants = self._inventory.claimants(mac)
        if claimants:
            names = ", ".join(sorted(f"{machine.namespace}/{machine.name}" for machine in claimants))
            self._reports.refused(mac, _NO_ANSWER, f"MAC {mac} is claimed by several Hardware: {names}")
            return False
        client = identify(message)
        if not self._unknown_clients and client.hears_proxies:
            self._unregistered.heard(mac, message_type, message, client)
        return self._unknown_clients
