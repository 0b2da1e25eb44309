"""An edge that tests send packets to, and what reads its replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edge.conflict import Claim, Quarantine
from edge.dhcp import Received, Reply, Responder
from edge.dhcp.wire import MessageType, codec, options
from edge.journey.events import JourneyEvent
from edge.machines import Inventory


def hardware(name: str, mac: str, ip: str | None, **interface: Any) -> dict[str, Any]:
    dhcp = {
        "ip": ip,
        "netmask": "255.255.255.0",
        "gateway": "10.77.0.1",
        "hostname": name,
        "nameservers": ["10.77.0.1", "10.77.0.2", "ns.example.org"],
        "timeservers": ["10.77.0.3", "time.example.org"],
        "leaseTimeSeconds": 3600,
    }
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"networkInterfaces": {mac: {"dhcp": {k: v for k, v in dhcp.items() if v is not None}, **interface}}},
    }


class Wire:
    """Reading and altering packets."""

    @staticmethod
    def read(reply: Reply | None) -> codec.Message:
        assert reply is not None, "no answer"
        return codec.parse(reply.payload)

    @classmethod
    def kind(cls, reply: Reply | None) -> MessageType:
        return MessageType(cls.read(reply).options[options.MESSAGE_TYPE][0])

    @staticmethod
    def order(payload: bytes) -> list[int]:
        """Option codes in the order of the wire, pads and END included."""
        codes, at = [], 240
        while True:
            codes.append(payload[at])
            if payload[at] == 255:
                return codes
            at += 1 if payload[at] == 0 else 2 + payload[at + 1]

    @staticmethod
    def altered(packet: bytes, *, drop: tuple[int, ...] = (), **fields: Any) -> bytes:
        """A captured packet with other header fields or options (`options` adds, `drop` removes)."""
        message = codec.parse(packet)
        found = {code: value for code, value in message.options.items() if code not in drop}
        return codec.build(message._replace(options=found | fields.pop("options", {}), **fields))


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
        """Look by ARP who has the addresses that were declined: hosts with these MACs say that they do.

        How many probes were sent.
        """
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
MakeHardware = Callable[..., dict[str, Any]]
