"""Our edge with one machine, the other DHCP server of the proxy modes beside it, and what firmware says to them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from edge.machines import DhcpMode
from tests.unit.dhcp.firmware.clients import Booted, Edk2Http, Edk2Pxe, Ipxe
from tests.unit.dhcp.firmware.packets import ACK, ADDRESS, MAGIC, OFFER, REQUEST, Packet, options_of
from tests.unit.dhcp.harness import MakeEdge, hardware


class Site:
    """`dhcp` and `interface` are fields of the machine's Hardware."""

    def __init__(
        self,
        make_edge: MakeEdge,
        mode: DhcpMode = DhcpMode.RESERVATION,
        *,
        when_workflow: bool = False,
        dhcp: dict[str, Any] | None = None,
        **interface: Any,
    ) -> None:
        self.has_work = True
        self.mode = mode
        self.edge = make_edge(mode=mode, has_pending=(lambda *_name: self.has_work) if when_workflow else None)
        self._hardware = {"dhcp": dhcp, **interface}

    def register(self, mac: str) -> None:
        self.edge.inventory.apply(hardware("m1", mac, ADDRESS, **self._hardware))

    def ask(self, packet: Packet, source: str = "0.0.0.0") -> bytes | None:
        reply = self.edge.send(packet.payload, source, packet.source_port, packet.port)
        return reply.payload if reply is not None else None

    def offer(self, packet: Packet) -> bytes:
        """Register the machine that sent a packet. Return our answer to it."""
        self.register(packet.mac)
        offer = self.ask(packet)
        assert offer is not None, "no answer"
        return offer

    def offers(self, packet: Packet) -> list[bytes]:
        """All offers that a client hears to its DISCOVER."""
        ours = self.ask(packet)
        offers = [] if ours is None else [ours]
        return offers if self.mode is DhcpMode.RESERVATION else [*offers, other_servers(packet, OFFER)]

    def acks(self, packet: Packet, offer: bytes) -> list[bytes]:
        """What comes to the REQUEST with which a client takes `offer`."""
        request = packet.changed(o53=bytes((REQUEST,)), o54=options_of(offer)[54], o50=offer[16:20])
        ours = self.ask(request)
        acks = [] if ours is None else [ours]
        return acks if self.mode is DhcpMode.RESERVATION else [*acks, other_servers(packet, ACK)]


def other_servers(packet: Packet, kind: int) -> bytes:
    """The plain answer of the DHCP server beside which ours is a proxy."""
    asked = packet.payload
    lease = struct.pack("!4s4s4s", bytes(4), bytes((10, 77, 0, 99)), bytes(4))
    head = b"\x02" + asked[1:12] + lease + asked[24:28] + asked[28:44] + bytes(192) + MAGIC
    server = bytes((10, 77, 0, 254))
    options = bytes((53, 1, kind, 54, 4)) + server + bytes.fromhex("330400000e100104ffffff0003040a4d00fe")
    return (head + options + b"\xff").ljust(300, b"\0")


def pxe(site: Site, packet: Packet) -> Booted:
    """The whole conversation of EDK2's PXE driver."""
    return _converse(site, packet, Edk2Pxe(packet))


def http(site: Site, packet: Packet) -> Booted:
    """The whole conversation of EDK2's HTTP boot driver."""
    return _converse(site, packet, Edk2Http(packet))


def _converse(site: Site, packet: Packet, firmware: Edk2Pxe | Edk2Http) -> Booted:
    for offer in site.offers(packet):
        firmware.hear(offer)
    if site.mode is DhcpMode.RESERVATION:
        (ack,) = site.acks(packet, bytes(firmware.offers[0]))
        firmware.confirm(bytes(firmware.offers[0]), ack)
    return firmware.boot()


def ipxe(site: Site, packet: Packet) -> Booted:
    offers = site.offers(packet)
    lease = next(offer for offer in offers if any(offer[16:20]))
    return Ipxe(packet).boot(offers, site.acks(packet, lease))


MakeSite = Callable[..., Site]
