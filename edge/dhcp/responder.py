"""The DHCP server's decisions: a packet in, a reply or silence out. Pure: no sockets, no waiting, the clock is given.

    bytes -> express: a layout that is known, a machine that is to be served?      -> Reply
          -> codec.parse -> is it a client's, and of a link that we serve?
                         -> leases (mode reservation) or proxy (modes proxy, auto-proxy)
                            -> whose is it, what does it ask -> netboot: may it, and what -> assembly -> Reply

Every answer, and every refusal with its reason, goes to the journey; `edge.dhcp.server` owns the sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.dhcp import codec, options
from edge.dhcp.boot import BootChoice
from edge.dhcp.codec import MessageType
from edge.dhcp.datagram import BROADCAST, CLIENT_PORT, PXE_PORT, SERVER_PORT, Received, Reply
from edge.dhcp.declined import Declined
from edge.dhcp.destinations import Destinations
from edge.dhcp.express import Express
from edge.dhcp.leases import Leases
from edge.dhcp.netboot import Netboot
from edge.dhcp.proxy import Learn, Proxy
from edge.dhcp.quarantine import Quarantine
from edge.dhcp.reports import Reports
from edge.dhcp.settings import DhcpSettings, SettingsError
from edge.dhcp.unregistered import Unregistered
from edge.journey.events import NoteTaker, Recorder
from edge.machines import DhcpMode, Inventory, NetbootPolicy
from ipxe.binaries import BootBinaries

__all__ = [
    "BROADCAST", "CLIENT_PORT", "PXE_PORT", "SERVER_PORT", "DhcpSettings", "Received", "Reply", "Responder",
    "SettingsError",
]  # fmt: skip

_INFINIBAND: Final = 32
_FROM_CLIENTS: Final = {
    bytes((kind,)): kind
    for kind in (
        MessageType.DISCOVER,
        MessageType.REQUEST,
        MessageType.DECLINE,
        MessageType.RELEASE,
        MessageType.INFORM,
    )
}
_FROM_SERVERS: Final = {bytes((kind,)) for kind in (MessageType.OFFER, MessageType.ACK, MessageType.NAK)}


def no_quick_answer(_packet: bytes) -> Reply | None:
    """Where every packet is answered in full: on port 4011, and in the proxy modes."""
    return None


class Responder:
    """Answers DHCP for the machines of an inventory, in the mode that the policy has."""

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
        learn: Learn = lambda _mac, _ip: None,
        express: bool = True,
    ) -> None:
        """`clock` gives seconds, of any epoch; it spaces repeated events and log lines. Raises SettingsError.

        `take` is the cheap way to record a prepared step (default: by `record`). `quarantine` may be shared with the
        responders of other networks (default: one of its own). `learn` is told in the proxy modes which address a
        machine says it has. Without `express` every packet is answered in full, which changes nothing but the time.
        """
        if policy.mode is DhcpMode.OFF:
            raise SettingsError("DHCP: the mode is off, so there is nothing to answer")
        self.settings = settings
        self._reports = Reports(record, take, clock)
        unregistered = Unregistered(record, clock, settings.server_ip)
        choice = BootChoice(binaries, settings.tftp_ip, settings.http_base_url)
        netboot = Netboot(policy, choice)
        self._express: Express | None = None
        self.quick: Callable[[bytes], Reply | None] = no_quick_answer
        """Answers a packet of port 67 that is plain, or gives None; the sockets ask it before `respond`."""
        destinations = Destinations(self._reports, clock)
        self.declined: Declined | None = None
        """What machines declined, for `edge.dhcp.prober` to look into; None in the proxy modes, which give nothing."""
        self._mode: Leases | Proxy
        if policy.mode is DhcpMode.RESERVATION:
            quarantine = quarantine if quarantine is not None else Quarantine(clock)
            self.declined = declined = Declined(inventory, quarantine, self._reports, clock)
            leases = Leases(
                inventory, settings, policy, netboot, self._reports, unregistered, quarantine, declined, destinations
            )
            self._mode = leases
            if express:
                self._express = Express(leases, policy, choice, quarantine, declined.given, destinations, self._reports)
                self.quick = self._express.answer
        else:
            strangers = policy.mode is DhcpMode.AUTO_PROXY
            self._mode = Proxy(
                inventory, settings, netboot, self._reports, unregistered, learn, destinations, strangers=strangers
            )  # fmt: skip

    def respond(self, packet: bytes, received: Received) -> Reply | None:
        """The answer to one UDP payload, or None for silence. Never raises on what a packet holds."""
        reply = self.quick(packet) if received.port == SERVER_PORT else None
        return reply if reply is not None else self._in_full(packet, received)

    def _in_full(self, packet: bytes, received: Received) -> Reply | None:
        try:
            message = codec.parse(packet)
        except codec.ParseError as error:
            self._reports.ignored(received, str(error))
            return None
        if message.op != codec.BOOTREQUEST:
            return None  # another server's reply, or our own
        if message.htype != codec.ETHERNET or len(message.chaddr) != 6:
            self._foreign_link(message, received)
            return None
        if any(message.giaddr) and not options.is_host_address(message.giaddr):
            reason = f"its relay address (giaddr) {options.dotted(message.giaddr)} is no host's"
            self._reports.ignored(received, reason)
            return None
        value = message.options.get(options.MESSAGE_TYPE, b"")
        kind = _FROM_CLIENTS.get(value)
        if kind is None:
            if value not in _FROM_SERVERS:
                self._reports.ignored(received, "it has no message type (option 53) that a client sends")
            return None
        reply = self._mode.answer(kind, message, received)
        if reply is not None and self._express is not None and received.port == SERVER_PORT:
            self._express.learn(kind, packet, message, reply)
        return reply

    def _foreign_link(self, message: codec.Message, received: Received) -> None:
        link = "InfiniBand" if message.htype == _INFINIBAND else f"hardware type {message.htype}"
        reason = (
            f"it is of a network interface that is not Ethernet ({link}, {len(message.chaddr)} bytes of address), "
            "which no Hardware can describe"
        )
        self._reports.ignored(received, reason)
