"""An edge that tests send packets to, packets that real clients sent, and what reads and alters them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from edge.conflict import Claim, Quarantine
from edge.dhcp import Received, Reply, Responder
from edge.dhcp.wire import MessageType, codec, options
from edge.journey.events import JourneyEvent
from edge.machines import Inventory
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
"""How a client with an address asks for its boot file."""
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
        """Probe the declined addresses by ARP; hosts with these MACs answer. Return the number of probes."""
        declined, probes = self.responder.declined, 0
        assert declined is not None
        while (wait := declined.wait) is not None:
            self.now += wait
            for address in declined.step():
                probes += 1
                for mac in hosts:
                    declined.claimed(Claim(address, bytes.fromhex(mac.replace(":", ""))))
        return probes


MakeEdge = Callable[..., Edge]


class Calls:
    """A function, and how often it was called and gave an answer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.count = self.answered = 0

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.count += 1
        result = self._function(*arguments, **more)
        self.answered += result is not None
        return result
