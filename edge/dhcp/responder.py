"""The DHCP server's decisions: a packet in, a reply or silence out. Pure: no sockets, no waiting, the clock is given.

    bytes -> fast_path: a layout that is known, a machine that is to be served? -> Reply
          -> in full: wire.codec.parse -> is it a client's, and of a link that we serve?
                -> replies.leases (mode reservation) or replies.proxy (modes proxy, auto-proxy):
                   whose is it, what does it ask -> boot: may it, and what -> replies.assembly -> Reply

The fast path gives what the full one would give, sooner; without it everything is answered in full. Every answer, and
every refusal with its reason, goes to the journey; `edge.dhcp.sockets` owns the sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.conflict import Declined, Quarantine, Relays
from edge.dhcp.boot import BootChoice
from edge.dhcp.datagram import SERVER_PORT, Received, Reply
from edge.dhcp.fast_path import FastPath
from edge.dhcp.replies import Destinations, Learn, Leases, Proxy, Unregistered
from edge.dhcp.reports import Reports
from edge.dhcp.settings import DhcpSettings, SettingsError
from edge.dhcp.wire import Message, MessageType, codec, infiniband, options
from edge.journey.events import NoteTaker, Recorder
from edge.machines import DhcpMode, Inventory, Machine, NetbootPolicy
from ipxe.binaries import BootBinaries, BootPath

_LINKS: Final = (codec.ETHERNET, codec.INFINIBAND)
_FROM_CLIENTS: Final = {
    bytes((message_type,)): message_type
    for message_type in (
        MessageType.DISCOVER,
        MessageType.REQUEST,
        MessageType.DECLINE,
        MessageType.RELEASE,
        MessageType.INFORM,
    )
}
_FROM_SERVERS: Final = {
    bytes((message_type,)) for message_type in (MessageType.OFFER, MessageType.ACK, MessageType.NAK)
}


def _forget(mac: str, ip: str, *, relayed: bool) -> None:
    """Ignore the address."""


class Responder:
    """Answers DHCP for the machines of an inventory, in the mode that the policy has.

    Whoever makes it subscribes `machine_changed` to the inventory.
    """

    def __init__(
        self,
        inventory: Inventory,
        settings: DhcpSettings,
        record: Recorder,
        clock: Callable[[], float],
        binaries: BootBinaries,
        policy: NetbootPolicy,
        *,
        take: NoteTaker | None = None,
        quarantine: Quarantine | None = None,
        relays: Relays | None = None,
        learn: Learn = _forget,
        relay_heard: Callable[[Machine, str, str], None] = lambda _machine, _link, _relay: None,
        fast_path: bool = True,
        boot_path: Callable[[Machine], BootPath | None] = lambda machine: machine.boot_path,
    ) -> None:
        """`clock` gives seconds of any epoch; it spaces repeated events and log lines. Raises SettingsError.

        `take` is the cheap way to record a prepared step (default: by `record`). `quarantine` and `relays` may be
        shared with the responders of other networks (default: ones of its own). The proxy modes call `learn` with the
        address that a machine reports. `boot_path(machine)` returns the program that the machine boots (None: the usual
        one). `relay_heard(machine, link, relay)` is called once for each relay subnet that is not one of our
        interfaces, with the machine that the relay spoke for. Without `fast_path` every packet is answered in full,
        which changes only the time.
        """
        if policy.mode is DhcpMode.OFF:
            raise SettingsError("DHCP: the mode is off, so there is nothing to answer")
        self.settings = settings
        self._inventory = inventory
        self._reports = Reports(record, take, clock)
        unregistered = Unregistered(record, clock, settings.server_ip)
        destinations = Destinations(self._reports, clock)
        choice = BootChoice(policy, binaries, settings.tftp_ip, settings.http_base_url, boot_path)
        self.fast_path: FastPath | None = None
        """Answers what is plain, on port 67; None where everything is answered in full: in the proxy modes, too."""
        self.declined: Declined | None = None
        """What machines declined, for ARP probes to look into; None in the proxy modes, which give no address."""
        relays = relays if relays is not None else Relays()
        self._replies: Leases | Proxy
        if policy.mode is DhcpMode.RESERVATION:
            quarantine = quarantine if quarantine is not None else Quarantine(clock)
            self.declined = declined = Declined(inventory, quarantine, self._reports, clock)
            self._replies = leases = Leases(
                inventory,
                settings,
                policy,
                choice,
                self._reports,
                unregistered,
                quarantine,
                declined,
                destinations,
                relays,
                relay_heard,
            )
            if fast_path:
                self.fast_path = FastPath(
                    leases.reservations,
                    policy,
                    choice,
                    quarantine,
                    declined.acknowledged,
                    destinations,
                    relays,
                    self._reports,
                )
        else:
            unknown = policy.mode is DhcpMode.AUTO_PROXY
            self._replies = Proxy(
                inventory,
                settings,
                choice,
                self._reports,
                unregistered,
                learn,
                destinations,
                relays,
                unknown_clients=unknown,
            )

    def machine_changed(self, mac: str) -> None:
        """A Hardware with this MAC has come, changed or gone: what it is served is compiled while it is at hand."""
        if isinstance(self._replies, Leases):
            self._replies.compile(mac)

    def peers_changed(self, peers: frozenset[str], gone: frozenset[str] = frozenset()) -> None:
        """The other edges that answer for the same machines have other addresses now (dotted), and these are `gone`."""
        if isinstance(self._replies, Leases):
            self._replies.peers_changed(peers, gone)

    def respond(self, packet: bytes, received: Received) -> Reply | None:
        """The answer to one UDP payload, or None for silence. Never raises on what a packet holds."""
        if self.fast_path is not None and received.port == SERVER_PORT:
            reply = self.fast_path.answer(packet)
            if reply is not None:
                return reply
        return self.respond_in_full(packet, received)

    def respond_in_full(self, packet: bytes, received: Received) -> Reply | None:
        """The same, without the fast path, which learns from it."""
        if isinstance(self._replies, Leases) and self._replies.is_surplus(packet):
            return None
        try:
            message = codec.parse(packet)
        except codec.ParseError as error:
            self._reports.ignored(received, str(error))
            return None
        if message.op != codec.BOOTREQUEST:
            return None  # another server's reply, or our own
        if message.htype == codec.INFINIBAND:
            message = self._of_infiniband(message)
        if message.htype not in _LINKS or len(message.mac) != 6:
            self._foreign_link(message, received)
            return None
        if any(message.giaddr) and not options.is_host_address(message.giaddr):
            reason = f"its relay address (giaddr) {options.dotted(message.giaddr)} is no host's"
            self._reports.ignored(received, reason)
            return None
        value = message.options.get(options.MESSAGE_TYPE, b"")
        message_type = _FROM_CLIENTS.get(value)
        if message_type is None:
            if value not in _FROM_SERVERS:
                self._reports.ignored(received, "it has no message type (option 53) that a client sends")
            return None
        reply = self._replies.answer(message_type, message, received)
        if reply is not None and self.fast_path is not None and received.port == SERVER_PORT:
            self._learn(self.fast_path, packet, message, message_type, reply)
        return reply

    def _learn(
        self, fast_path: FastPath, packet: bytes, message: Message, message_type: MessageType, reply: Reply
    ) -> None:
        """What is answered in the place of an edge that is gone is its own again when it is back."""
        if message.htype == codec.ETHERNET and not (
            isinstance(self._replies, Leases) and self._replies.is_for_a_peer(message)
        ):
            fast_path.learn(packet, message, message_type, reply)

    def _of_infiniband(self, message: Message) -> Message:
        """Return the message with the MAC that names its port, of those that it may have one that a Hardware has.

        RFC 4390 section 2.1: such a client is answered by broadcast, for it can't say its link-layer address.
        """
        macs = infiniband.port_macs(message)
        known = (mac for mac in macs if self._inventory.claimants(mac.hex(":")))
        mac = next(known, macs[0] if macs else b"")
        return message._replace(flags=message.flags | codec.BROADCAST_FLAG, mac=mac)

    def _foreign_link(self, message: Message, received: Received) -> None:
        size = len(message.chaddr)
        if message.htype == codec.INFINIBAND:
            reason = (
                f"it is of an InfiniBand port (hlen {size}), and neither its hardware address nor its client "
                "identifier (option 61) holds the port's GUID, by which a Hardware names it; have the client send 20 "
                "and the GUID"
            )
        else:
            reason = (
                f"it is of a network interface that is neither Ethernet nor InfiniBand (hardware type {message.htype}, "
                f"{size} bytes of address), which no Hardware can describe"
            )
        self._reports.ignored(received, reason)
