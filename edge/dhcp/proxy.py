"""Proxy modes: beside another DHCP server, which gives the addresses, this one says what to boot (PXE 2.1 section 2.2).

A netboot client hears two offers to its DISCOVER: the other server's, with an address, and ours, with none (`yiaddr` 0)
but with a boot file. It takes the address from the one and the file from the other:

- EDK2's PXE driver takes an offer of the class PXEClient with a discovery control (43.6) and a boot file as final, and
  asks nobody else (PxeBcSelectDhcp4Offer). Its HTTP Boot driver wants the class HTTPClient and a URI.
- iPXE wants the class PXEClient; with `siaddr` and a boot file it asks no further (dhcp_has_pxeopts).
- All of them send their REQUEST to the other server. It is never answered here: an ACK would be one for an address that
  is not ours to give. A client that asks on port 4011 is answered there (`edge.dhcp.pxe`).

What a client says to the other server tells which address it has; `learn` is told, so that TFTP and HTTP know who
calls. In the mode `proxy` machines are answered that have a Hardware; in `auto-proxy`, all.
"""

from __future__ import annotations

from collections.abc import Callable

from edge.dhcp import codec, options, relay
from edge.dhcp.assembly import Parts, TooSmallError, assemble, echo_identifier, echo_uuid, size_limit
from edge.dhcp.client import identify
from edge.dhcp.codec import Message, MessageType
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, NO_SOURCE, PXE_PORT, SERVER_PORT, Received, Reply
from edge.dhcp.destinations import Destinations
from edge.dhcp.netboot import Netboot
from edge.dhcp.pxe import boot_server_reply
from edge.dhcp.reports import Reports
from edge.dhcp.settings import DhcpSettings
from edge.dhcp.unregistered import Unregistered
from edge.journey.events import Outcome
from edge.machines import Inventory, Machine

_NO_ANSWER = "ProxyDHCP offer"

Learn = Callable[[str, str], None]
"""`learn(mac, ip)`: the machine with this MAC says that it has this address (`edge.callers.Callers.learn`)."""


class Proxy:
    """Answers netboot clients, as a ProxyDHCP server and as a PXE boot server."""

    def __init__(
        self,
        inventory: Inventory,
        settings: DhcpSettings,
        netboot: Netboot,
        reports: Reports,
        unregistered: Unregistered,
        learn: Learn,
        destinations: Destinations,
        *,
        strangers: bool,
    ) -> None:
        """`strangers`: machines without a Hardware are answered, too."""
        self._inventory = inventory
        self._netboot = netboot
        self._reports = reports
        self._unregistered = unregistered
        self._learn = learn
        self._destinations = destinations
        self._strangers = strangers
        self._server_id = options.ipv4(settings.server_ip)

    def answer(self, kind: MessageType, message: Message, received: Received) -> Reply | None:
        """The answer to a client's message, or None for silence."""
        mac = message.chaddr.hex(":")
        machine = self._inventory.by_mac(mac)
        if machine is None and not self._may_be_answered(mac, kind, message):
            return None
        if kind is MessageType.REQUEST:
            self._listen(mac, message, received)
            if received.port == PXE_PORT:
                return self._boot_server(machine, mac, message, received)
        elif kind is MessageType.DISCOVER and received.port == SERVER_PORT:
            return self._discover(machine, mac, message)
        return None

    def _discover(self, machine: Machine | None, mac: str, message: Message) -> Reply | None:
        client, agent = identify(message), relay.relay_of(message)
        if not client.netboots or (agent.address and not self._destinations.relay(agent.address, None)):
            return None
        if machine is not None and machine.disable_dhcp:
            reason = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{mac}].disableDhcp is true"
            self._reports.refused(mac, _NO_ANSWER, reason)
            return None
        verdict = self._netboot.verdict(machine, mac, client, proxy=True)
        boot = verdict.boot
        if not boot.options:
            self._reports.refused(mac, _NO_ANSWER, verdict.refusal)
            return None
        head = codec.header(
            message,
            # No address to unicast to, and a relay must not try.
            flags=message.flags | codec.BROADCAST_FLAG,
            siaddr=boot.siaddr,
            sname=boot.sname,
            file=boot.file,
        )
        parts = Parts(
            start=options.option(options.MESSAGE_TYPE, bytes((MessageType.OFFER,)))
            + options.option(options.SERVER_IDENTIFIER, agent.server_id or self._server_id),
            identifier=echo_identifier(message),
            uuid=echo_uuid(message),
            boot=boot,
            relay=relay.echo(message),
        )
        try:
            payload = assemble(head, parts, size_limit(message))
        except TooSmallError as error:
            self._reports.refused(mac, _NO_ANSWER, str(error))
            return None
        if machine is None:
            self._unregistered.heard(mac, MessageType.DISCOVER, message, client, answer=verdict.boot.text)
        else:
            self._reports.told(mac, "ProxyDHCP offer", client, verdict)
        if agent.address:
            return Reply(payload, options.dotted(agent.address), SERVER_PORT)
        return Reply(payload, BROADCAST, CLIENT_PORT)

    def _boot_server(self, machine: Machine | None, mac: str, message: Message, received: Received) -> Reply | None:
        client = identify(message)
        server_id = message.options.get(options.SERVER_IDENTIFIER, self._server_id)
        if not client.netboots or server_id != self._server_id:
            return None
        if (machine is not None and machine.disable_dhcp) or not self._destinations.client(received.source):
            return None
        verdict = self._netboot.verdict(machine, mac, client, proxy=True)
        return boot_server_reply(self._reports, mac, message, received, client, verdict, self._server_id)

    def _listen(self, mac: str, message: Message, received: Received) -> None:
        """Learn from a REQUEST which address its sender has or is about to have.

        Only one that was broadcast on our link or came by a relay can be the machine's: any host of a routed network
        can send us one in a machine's name, and would be taken for it at its own address from then on.
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
        if options.is_ipv4(address) and options.is_host_address(options.ipv4(address)):
            self._learn(mac, address)

    def _may_be_answered(self, mac: str, kind: MessageType, message: Message) -> bool:
        """Whether a machine may be that has no Hardware, or more than one."""
        claimants = self._inventory.claimants(mac)
        if claimants:
            names = ", ".join(sorted(f"{machine.namespace}/{machine.name}" for machine in claimants))
            self._reports.refused(mac, _NO_ANSWER, f"MAC {mac} is claimed by several Hardware: {names}")
            return False
        if not self._strangers and identify(message).netboots:
            self._unregistered.heard(mac, kind, message, identify(message))
        return self._strangers
