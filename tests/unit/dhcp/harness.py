"""An edge that tests send packets to, packets of real clients, and functions that parse and alter them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from edge.dhcp import Received, Reply, Responder
from edge.dhcp.wire import MessageType, codec, options
from edge.dhcp_common import MAX_LAYOUTS, AddressClaim, Quarantine
from edge.journey.events import JourneyEvent, Recorder
from edge.machines import DiscoveryWriter, Inventory
from tests.support import objects
from tink.api.v1alpha2 import Raw

MAC = "52:54:00:12:34:56"


def _captured(length: int, header: str, mac: str, options: str) -> bytes:
    fixed = (bytes.fromhex(header) + bytes.fromhex(mac)).ljust(236, b"\0")
    return (fixed + bytes.fromhex(options)).ljust(length, b"\0")


CAPTURED = {
    name: _captured(**recorded)
    for name, recorded in yaml.safe_load((Path(__file__).parent / "captures.yaml").read_text()).items()
}
PXE_DISCOVER, PXE_REQUEST = CAPTURED["edk2_pxe_discover"], CAPTURED["edk2_pxe_request"]
REQUEST_4011 = CAPTURED["edk2_pxe_request_4011"]
ON_4011 = {"source": "10.77.0.58", "source_port": 4011, "port": 4011}
"""The way by which a client with an address requests its boot file."""
HTTP_DISCOVER = CAPTURED["edk2_http_discover"]
IPXE_BIOS, IPXE_EFI = CAPTURED["ipxe_bios_discover"], CAPTURED["ipxe_efi_discover"]
PLAIN = CAPTURED["plain_discover"]


def hardware(name: str, mac: str, ip: str | None, *, dhcp: Mapping[str, Any] | None = None, **interface: Any) -> Raw:
    """Return a Hardware with all fields of DHCP; None in `dhcp` removes one."""
    usual = {
        "netmask": "255.255.255.0",
        "gateway": "10.77.0.1",
        "hostname": name,
        "nameservers": ["10.77.0.1", "10.77.0.2", "ns.example.org"],
        "timeservers": ["10.77.0.3", "time.example.org"],
        "leaseTimeSeconds": 3600,
    }
    chosen = {key: value for key, value in {**usual, **(dhcp or {})}.items() if value is not None}
    return objects.hardware(name, mac, ip, dhcp=chosen, interface=interface)


def lab(ip: str | None = "10.77.0.58", **more: Any) -> Raw:
    """Return the Hardware of the machine that the firmware was captured on."""
    return hardware("lab-1", MAC, ip, **more)


def read(reply: Reply | None) -> codec.Message:
    assert reply is not None, "no answer"
    return codec.parse(reply.payload)


def message_type(reply: Reply | None) -> MessageType:
    return MessageType(read(reply).options[options.MESSAGE_TYPE][0])


def option_codes(payload: bytes) -> list[int]:
    """Return the option codes in the order of the wire, pads and END included."""
    codes, at = [], 240
    while True:
        codes.append(payload[at])
        if payload[at] == 255:
            return codes
        at += 1 if payload[at] == 0 else 2 + payload[at + 1]


def altered(packet: bytes, *, drop: tuple[int, ...] = (), **fields: Any) -> bytes:
    """Return a packet with other header fields or options (`options` adds, `drop` removes)."""
    message = codec.parse(packet)
    found = {code: value for code, value in message.options.items() if code not in drop}
    return codec.build(message._replace(options=found | fields.pop("options", {}), **fields))


def sent_by(mac: bytes, packet: bytes = PXE_DISCOVER) -> bytes:
    """Return the packet as the machine with this MAC sends it."""
    return packet[:28] + mac + packet[34:]


def invented(number: int) -> bytes:
    """Return the DISCOVER of a machine that no Hardware names."""
    return sent_by(b"\x02\0" + number.to_bytes(4, "big"))


def requesting(discover: bytes, offer: codec.Message) -> bytes:
    """Return the REQUEST by which the sender of a DISCOVER accepts an offer."""
    accepted = {
        options.MESSAGE_TYPE: bytes([MessageType.REQUEST]),
        options.REQUESTED_ADDRESS: offer.yiaddr,
        options.SERVER_IDENTIFIER: offer.options[options.SERVER_IDENTIFIER],
    }
    return altered(discover, options=accepted)


@dataclass
class Edge:
    """A responder with its surroundings; time stands still unless a test moves it."""

    inventory: Inventory
    responder: Responder
    quarantine: Quarantine
    now: float = 1000.0
    events: list[JourneyEvent] = field(default_factory=list)
    learnt: list[tuple[str, str]] = field(default_factory=list)
    quarantined: list[tuple[str, str, float | None]] = field(default_factory=list)

    def send(self, payload: bytes, source: str = "0.0.0.0", source_port: int = 68, port: int = 67) -> Reply | None:
        return self.responder.respond(payload, Received(source, source_port, port))

    def messages(self) -> list[str]:
        return [event.message for event in self.events]

    def look(self, *hosts: str) -> int:
        return look(self, *hosts)


MakeEdge = Callable[..., Edge]
MakeDiscovery = Callable[[Inventory, Recorder, Callable[[], float]], DiscoveryWriter]
"""Makes the admission of unknown machines of an edge, with its clock."""


def look(edge: Any, *hosts: str) -> int:
    """Probe the declined addresses; hosts with these MACs answer. Return the number of probes."""
    declined, probes = edge.responder.declines, 0
    while (wait := declined.wait) is not None:
        edge.now += wait
        for address in declined.step():
            probes += 1
            for mac in hosts:
                declined.claimed(AddressClaim(address, bytes.fromhex(mac.replace(":", ""))))
    return probes


class Calls:
    """Counts the calls of a function, and those with an answer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.count = self.answered = 0

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.count += 1
        result = self._function(*arguments, **more)
        self.answered += result is not None
        return result


class Pair:
    """Two edges that receive the same: one answers known layouts by the fast path, the other everything in full."""

    def __init__(self, make_edge: Callable[..., Any], *objects: Raw, **more: Any) -> None:
        self.edges = self.fast, self.full = [make_edge(*objects, fast_path=fast, **more) for fast in (True, False)]
        self.calls = self.fast.responder.fast_path.answer = Calls(self.fast.responder.fast_path.answer)

    def send(self, packet: bytes, *where: Any, **more: Any) -> Any:
        """Return the answer of both, which must be the same."""
        fast, full = (edge.send(packet, *where, **more) for edge in self.edges)
        assert fast == full, (packet.hex(), where, more)
        return fast

    def pass_time(self, seconds: float) -> None:
        for edge in self.edges:
            edge.now += seconds

    def assert_agree(self) -> None:
        """Check that both have reported the same, and have the same state."""
        assert self.fast.events == self.full.events
        assert self.fast.quarantined == self.full.quarantined
        assert len({frozenset(edge.responder.declines.recent_leases.newest) for edge in self.edges}) == 1

    def history(
        self,
        draw: Callable[..., Any],
        work: list[bool],
        machine: Callable[[int, int], Raw],
        new: st.SearchStrategy[Any],
        kin: Callable[[Callable[..., Any], Any], Any],
        *,
        decline: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Yield packets that are new, known, or of the same firmware on another machine (`kin`), while the Hardware
        (`machine`, by number and kind) changes, an address is declined, work comes and goes, and time passes."""
        sent: list[Any] = []
        steps = ["new", "new", "again", "again", "kin", "kin", "kin", "change", "decline", "work", "time"]
        for _ in range(draw(st.integers(4, 16))):
            match draw(st.sampled_from(steps)):
                case "change":
                    number, kind = draw(st.integers(0, 2)), draw(st.integers(0, 11))
                    for edge in self.edges:
                        (edge.inventory.remove if kind == 8 else edge.inventory.apply)(machine(number, kind))
                    continue
                case "decline":
                    decline()
                    continue
                case "work":
                    work[0] = not work[0]
                    continue
                case "time":
                    self.pass_time(400)
                    continue
                case "again" if sent:
                    packet = draw(st.sampled_from(sent))
                case "kin" if sent:
                    packet = kin(draw, draw(st.sampled_from(sent)))
                case _:
                    packet = draw(new)
            sent.append(packet)
            yield packet
            self.assert_agree()


def check_layouts(
    make_edge: Callable[..., Any], machine: Raw, max_of_a_length: int, packets: list[bytes], other: Any
) -> None:
    """Send packets of 1200 other layouts: used layouts stay known, their number is limited, and none is there twice.

    Without the fast path, each packet is answered in full.
    """
    edge, slow = (make_edge(machine, fast_path=fast) for fast in (True, False))
    calls = []
    for each in (edge, slow):
        each.responder.respond_in_full = counted = Calls(each.responder.respond_in_full)
        calls.append(counted)
        for packet in packets * 3:
            assert each.send(packet) is not None
    assert slow.responder.fast_path is None
    assert [each.answered for each in calls] == [len(packets), 3 * len(packets)]
    layouts = edge.responder.fast_path.layouts
    for number in range(1200):
        edge.now += 0.1
        edge.send(other(b"%05d" % number + b"x" * (number % 90)))
        if number % 50 == 0:
            edge.send(packets[0])
    assert len(layouts) == sum(map(len, layouts.lists.values())) <= MAX_LAYOUTS
    assert max(map(len, layouts.lists.values())) <= max_of_a_length
    assert calls[0].count == 1200 + len(packets)
