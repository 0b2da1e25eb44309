"""An edge that tests of DHCPv6 send messages to, messages of real clients, and functions that parse the replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from edge.dhcp6 import Received6, Responder6, Settings6, server_duid, wire
from edge.dhcp6.wire import Message6, MessageType6, Option, option
from edge.dhcp_common import IPV6, DhcpSite, Quarantine, Relays, Reply
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.machines import BootPaths, DhcpMode, Inventory, Machine, NetbootPolicy, NetbootWhen
from ipxe.binaries import BootBinaries, BootPath
from tests.support import objects
from tests.unit.dhcp.harness import look
from tink.api.v1alpha2 import Raw

MAC = "52:54:00:fa:00:2a"
LINK_LOCAL = IPv6Address("fe80::5054:ff:fefa:2a")
ADDRESS = "fd00:77::50"
DUID = server_duid(bytes.fromhex("f6d72c298166"))
SERVER_ID = option(Option.SERVERID, DUID)

# OVMF 2022.11; the machine's UUID is 12345678-9abc-def0-1234-56789abcdef0.
EDK2_DUID = bytes.fromhex("000478563412bc9af0de123456789abcdef0")
EDK2_STACK_SOLICIT = bytes.fromhex(
    "017515b200010012000478563412bc9af0de123456789abcdef00008000200000003000cfacaff5affffffffffffffff000600020017"
)
EDK2_HTTP_SOLICIT = bytes.fromhex(
    "01ebd53800010012000478563412bc9af0de123456789abcdef00008000200000003000c6e35544bffffffffffffffff00060008003b003c"
    "00170010003e0003010300003d000200100010002700000157002148545450436c69656e743a417263683a30303031363a554e44493a3030"
    "33303030"
)
EDK2_PXE_SOLICIT = EDK2_HTTP_SOLICIT.replace(bytes.fromhex("003d00020010"), bytes.fromhex("003d00020007")).replace(
    b"\x00\x27\x00\x00\x01\x57\x00\x21HTTPClient:Arch:00016", b"\x00\x26\x00\x00\x01\x57\x00\x20PXEClient:Arch:00007"
)


def ia(*addresses: str, iaid: bytes = b"\0\0\0\1") -> bytes:
    inner = b"".join(wire.address(IPv6Address(each), 3600, 3600) for each in addresses)
    return option(Option.IA_NA, iaid + bytes(8) + inner)


def ask(kind: MessageType6, *options: bytes, client: bytes = EDK2_DUID) -> bytes:
    return wire.message(kind, b"abc", option(Option.CLIENTID, client) + b"".join(options))


def relayed(packet: bytes, link: str, peer: IPv6Address = LINK_LOCAL, *options: bytes, hops: int = 0) -> bytes:
    """Return the message in that of a relay (RFC 8415 section 19.1)."""
    head = bytes((MessageType6.RELAY_FORW, hops)) + IPv6Address(link).packed + peer.packed
    return head + b"".join(options) + option(Option.RELAY_MSG, packet)


def hardware(name: str = "m1", mac: str = MAC, ipv6: str | None = ADDRESS, **more: Any) -> Raw:
    """Return a Hardware; `dhcp` and `metadata` add to its reservation and metadata, `osie` is a name."""
    reserved = {"ipv6": {"address": ipv6, "nameservers": ["fd00:77::1"]}} if ipv6 is not None else {}
    dhcp = {"hostname": f"{name}.example.org", "leaseTimeSeconds": 1000, **reserved, **more.pop("dhcp", {})}
    osie, about = more.pop("osie", ""), {key: more.pop(key) for key in ("annotations", "metadata") if key in more}
    spec = {"osie": {"name": osie}} if osie else {}
    return objects.hardware(name, mac, None, dhcp=dhcp, interface=more, **about, **spec)


@dataclass
class Edge6:
    """A responder with its surroundings; time stands still unless a test moves it."""

    inventory: Inventory
    responder: Responder6
    events: list[JourneyEvent]
    boot_paths: BootPaths
    now: float = 1000.0
    neighbours: dict[str, str] = field(default_factory=dict)
    quarantined: list[tuple[str, str, float | None]] = field(default_factory=list)
    """MAC, address and end of each quarantine that began (or, None, ended)."""

    def send(
        self, packet: bytes, source: IPv6Address = LINK_LOCAL, *, alone: bool = False, port: int = 546
    ) -> Reply | None:
        return self.responder.respond(packet, Received6(source, port, alone))

    def answer(self, packet: bytes, source: IPv6Address = LINK_LOCAL, *, alone: bool = False) -> Message6:
        reply = self.send(packet, source, alone=alone)
        assert reply is not None, "no answer"
        return wire.parse(reply.payload)[0]

    def boot_url(self, packet: bytes, source: IPv6Address = LINK_LOCAL) -> str | None:
        """Return the URL of the program that the answer names."""
        found = self.answer(packet, source).get(Option.BOOTFILE_URL)
        return None if found is None else found.decode()

    def address(self, packet: bytes, source: IPv6Address = LINK_LOCAL) -> str:
        """Return the first address that the answer gives."""
        return addresses(self.answer(packet, source))[0][0]

    def look(self, *hosts: str) -> int:
        return look(self, *hosts)

    def lines(self) -> list[str]:
        return [f"{event.step} {event.outcome}: {event.message}" for event in self.events]


MakeEdge6 = Callable[..., Edge6]


def make(
    binaries: BootBinaries,
    *objects: dict[str, Any],
    networks: tuple[IPv6Network, ...] = (),
    has_pending: Callable[[str, str], bool] | None = None,
    looks: bool = True,
    usual: BootPath = BootPath.IPXE,
    fast_path: bool = True,
    relays: str = "",
) -> Edge6:
    """`looks`: neighbour discovery can find the host of an address. `usual` is --boot-path.

    `fast_path` is that of `DhcpSite`; `relays` is --relays, separated by spaces.
    """
    inventory, events = Inventory(), []
    when = NetbootWhen.WORKFLOW if has_pending is not None else NetbootWhen.ALLOWED
    policy = NetbootPolicy(DhcpMode.RESERVATION, when, has_pending or (lambda _namespace, _name: True))

    def record(mac: str, step: Step, outcome: Outcome, message: str, **detail: Any) -> None:
        events.append(JourneyEvent(edge.now, mac, step, outcome, message, detail))

    known_relays = tuple(map(IPv6Network, relays.split()))
    settings = Settings6(IPv6Address("fd00:77::1"), "http://[fd00:77::1]:7080", DUID, networks)

    def changed(machine: Machine, address: str, until: float | None) -> None:
        edge.quarantined.append((machine.mac, address, until))

    paths = BootPaths(
        inventory, record, usual, has_grub=binaries.has_grub, changed=lambda mac: responder.machine_changed(mac)
    )
    site = DhcpSite(
        inventory,
        policy,
        binaries,
        record,
        lambda: edge.now,
        relays=Relays(known_relays, lambda address: bool(inventory.claimants_of_ip(address))),
        boot_path=paths.of,
        fast_path=fast_path,
    )
    quarantine = Quarantine(lambda: edge.now, changed=changed, family=IPV6)
    responder = Responder6(site, settings, lambda ip: edge.neighbours.get(ip), quarantine)
    edge = Edge6(inventory, responder, events, paths)
    if looks:
        responder.declines.wake = lambda: None
    inventory.on_change(responder.machine_changed)
    for each in objects:
        inventory.apply(each)
    return edge


def addresses(message: Message6) -> list[tuple[str, int, int]]:
    """Return address, preferred and valid lifetime of each IA_NA."""
    found = []
    for association in message.all(Option.IA_NA):
        for code, value in wire.options(association[12:]):
            if code == Option.IAADDR:
                times = int.from_bytes(value[16:20], "big"), int.from_bytes(value[20:24], "big")
                found.append((str(IPv6Address(value[:16])), *times))
    return found


def status(value: bytes) -> int:
    return int.from_bytes(value[:2], "big")
