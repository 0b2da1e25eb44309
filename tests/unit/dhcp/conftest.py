"""Packets that real clients sent, and an edge to send them to.

The packets were recorded from the programs named beside them. `sname`, `file` and the end of `chaddr` are zero in all
of them and are left out here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edge.dhcp import codec, options
from edge.dhcp.arp import Claim
from edge.dhcp.codec import MessageType
from edge.dhcp.quarantine import Quarantine
from edge.dhcp.responder import DhcpSettings, Received, Reply, Responder
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.machines import DhcpMode, Inventory, Machine, NetbootPolicy, NetbootWhen
from ipxe.binaries import BootBinaries


def packet(length: int, before_chaddr: str, mac: str, *options: str) -> bytes:
    fixed = bytes.fromhex(before_chaddr) + bytes.fromhex(mac).ljust(208, b"\0")
    return (fixed + bytes.fromhex("".join(options))).ljust(length, b"\0")


CAPTURED = {
    # iPXE 2019 ROM of a QEMU BIOS machine (virtio-net)
    "ipxe_bios_discover": packet(
        400,
        "0101060078d7ab270004000000000000000000000000000000000000",
        "525400123456",
        "63825363350101390205c05d0200005e030102013c20505845436c69656e743a417263683a30303030303a554e44493a"
        "3030323030314d04695058453717010306070c0f111a2b3c4243778081828384858687afcbaf30b105011af41000eb03"
        "0100001701012201011301011101012701011901012901011001022101011501011801011201013d0701525400123456"
        "611100443322116655887799aabbccddeeff00ff",
    ),
    # the same, after an offer of 10.77.0.58 by 10.77.0.1
    "ipxe_bios_request": packet(
        412,
        "0101060078d7ab270012000000000000000000000000000000000000",
        "525400123456",
        "63825363350103390205c05d0200005e030102013c20505845436c69656e743a417263683a30303030303a554e44493a"
        "3030323030314d04695058453717010306070c0f111a2b3c4243778081828384858687afcbaf30b105011af41000eb03"
        "0100001701012201011301011101012701011901012901011001022101011501011801011201013d0701525400123456"
        "611100443322116655887799aabbccddeeff0036040a4d000132040a4d003aff",
    ),
    # OVMF 2022.11, native PXE, x86-64
    "edk2_pxe_discover": packet(
        347,
        "01010600a97e392a0000800000000000000000000000000000000000",
        "525400123456",
        "63825363350101390205c037230102030405060c0d0f111216171c28292a2b3233363a3b3c4243618081828384858687"
        "611100443322116655887799aabbccddeeff005e030103005d0200073c20505845436c69656e743a417263683a303030"
        "30373a554e44493a303033303030ff",
    ),
    # the same, after an offer of 10.77.0.58 by 10.77.0.1; says it takes 65280 bytes
    "edk2_pxe_request": packet(
        359,
        "01010600a97e392a0000800000000000000000000000000000000000",
        "525400123456",
        "6382536335010336040a4d000132040a4d003a3902ff0037230102030405060c0d0f111216171c28292a2b3233363a3b"
        "3c4243618081828384858687611100443322116655887799aabbccddeeff005e030103005d0200073c20505845436c69"
        "656e743a417263683a30303030373a554e44493a303033303030ff",
    ),
    # the same, to a ProxyDHCP server: from 10.77.0.58:4011 to port 4011
    "edk2_pxe_request_4011": packet(
        347,
        "01010600bec9e646000000000a4d003a000000000000000000000000",
        "525400123456",
        "6382536335010337230102030405060c0d0f111216171c28292a2b3233363a3b3c4243618081828384858687390205c0"
        "3c20505845436c69656e743a417263683a30303030373a554e44493a3030333030305d0200075e030103006111004433"
        "22116655887799aabbccddeeff00ff",
    ),
    # OVMF 2022.11, UEFI HTTP Boot, x86-64
    "edk2_http_discover": packet(
        340,
        "010106009b3a90cf0000800000000000000000000000000000000000",
        "525400123456",
        "63825363350101390205c0371b0102030405060c0d0f111216171c28292a2b3233363a3b3ceb43616111004433221166"
        "55887799aabbccddeeff005e030103005d0200103c2148545450436c69656e743a417263683a30303031363a554e4449"
        "3a303033303030ff",
    ),
    # the same, after an offer of 10.77.0.58 by 10.77.0.1
    "edk2_http_request": packet(
        352,
        "010106009b3a90cf0000800000000000000000000000000000000000",
        "525400123456",
        "6382536335010336040a4d000132040a4d003a390205c0371b0102030405060c0d0f111216171c28292a2b3233363a3b"
        "3ceb4361611100443322116655887799aabbccddeeff005e030103005d0200103c2148545450436c69656e743a417263"
        "683a30303031363a554e44493a303033303030ff",
    ),
    # snponly.efi 2019
    "ipxe_efi_discover": packet(
        388,
        "01010600a62e981a0004000000000000000000000000000000000000",
        "525400123456",
        "63825363350101390205c05d0200075e0301030a3c20505845436c69656e743a417263683a30303030373a554e44493a"
        "3030333031304d04695058453717010306070c0f111a2b3c4243778081828384858687afcbaf24b105011af41000eb03"
        "0100001701012401011301011101012701012901011501011201013d0701525400123456611100443322116655887799"
        "aabbccddeeff00ff",
    ),
    # the same, to the ProxyDHCP server 10.77.0.2: from 10.77.0.58:68 to port 4011
    "ipxe_efi_request_4011": packet(
        394,
        "01010600a62e981a000f80000a4d003a000000000000000000000000",
        "525400123456",
        "63825363350103390205c05d0200075e0301030a3c20505845436c69656e743a417263683a30303030373a554e44493a"
        "3030333031304d04695058453717010306070c0f111a2b3c4243778081828384858687afcbaf24b105011af41000eb03"
        "0100001701012401011301011101012701012901011501011201013d0701525400123456611100443322116655887799"
        "aabbccddeeff0036040a4d0002ff",
    ),
    # ISC dhclient 4.4.3, with a lease of 10.77.6.227 from before
    "dhclient_discover": packet(
        300,
        "0101060080b67e520000000000000000000000000000000000000000",
        "525400cc0001",
        "6382536335010132040a4d06e30c02766d370d011c02030f06770c2c2f1a792aff",
    ),
    # the same, having chosen the server 10.77.6.1
    "dhclient_request": packet(
        300,
        "0101060080b67e520000000000000000000000000000000000000000",
        "525400cc0001",
        "6382536335010336040a4d060132040a4d06e30c02766d370d011c02030f06770c2c2f1a792aff",
    ),
    # busybox 1.35 udhcpc; takes 576 bytes
    "udhcpc_discover": packet(
        300,
        "0101060040347c570000000000000000000000000000000000000000",
        "525400cc0001",
        "638253633501013902024037070103060c0f1c2a0c066665617362623c0c756468637020312e33352e30ff",
    ),
    # the same, having chosen 10.77.6.1 and 10.77.6.227
    "udhcpc_request": packet(
        300,
        "0101060040347c570000000000000000000000000000000000000000",
        "525400cc0001",
        "6382536335010332040a4d06e336040a4d06013902024037070103060c0f1c2a0c066665617362623c0c756468637020"
        "312e33352e30ff",
    ),
    # systemd-networkd 252; its client identifier is a DUID; 284 bytes
    "networkd_discover": packet(
        284,
        "010106005c210f210001000000000000000000000000000000000000",
        "525400cc0001",
        "638253633501013d13ffd870d36300020000ab110033bdebf95e192c37090103060c0f212a7879390205c00c02766dff",
    ),
    # the same, stopping
    "networkd_release": packet(
        265,
        "010106005c210f21000b00000a4d06e3000000000000000000000000",
        "525400cc0001",
        "638253633501073d13ffd870d36300020000ab110033bdebf95e192cff",
    ),
    # dhcpcd 9.4.1
    "dhcpcd_discover": packet(
        316,
        "01010600a379ad250000000000000000000000000000000000000000",
        "525400cc0001",
        "63825363350101370701031c21333a3b390205c03c366468637063642d392e342e313a4c696e75782d362e31382e3434"
        "2d66632d763636393a7838365f36343a47656e75696e65496e74656c910101ff",
    ),
    # the DISCOVER of dhclient, which asks for no address here, with the MAC of the machine of the firmware captures
    "plain_discover": packet(
        300,
        "0101060080b67e520000000000000000000000000000000000000000",
        "525400123456",
        "638253633501010c02766d370d011c02030f06770c2c2f1a792aff",
    ),
    # perfdhcp 2.2.0, a relay: giaddr 10.77.6.2, hops 1
    "perfdhcp_discover": packet(
        262,
        "0101060100000000000000000000000000000000000000000a4d0602",
        "000c01020304",
        "638253633501013707011c02030f060c3d0701000c01020304ff",
    ),
}


@pytest.fixture(scope="session")
def captured() -> dict[str, bytes]:
    return CAPTURED


FIRMWARE_MAC = "52:54:00:12:34:56"
CLIENT_MAC = "52:54:00:cc:00:01"
RELAYED_MAC = "00:0c:01:02:03:04"


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


@pytest.fixture(scope="session")
def wire() -> Wire:
    return Wire()


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


@pytest.fixture
def binaries(tmp_path: Path) -> BootBinaries:
    directory = tmp_path / "ipxe"
    directory.mkdir()
    for name in ("undionly.kpxe", "snponly.efi", "ipxe.efi"):
        (directory / name).write_bytes(name.encode() * 100)
    return BootBinaries(directory)


@pytest.fixture
def make_edge(binaries: BootBinaries) -> Callable[..., Edge]:
    def make(
        *objects: dict[str, Any],
        server_ip: str = "10.77.0.1",
        mode: DhcpMode = DhcpMode.RESERVATION,
        has_pending: Callable[[str, str], bool] | None = None,
        quarantine_seconds: float = 600.0,
        peers: frozenset[str] = frozenset(),
        express: bool = True,
        looks: bool = True,
    ) -> Edge:
        inventory = Inventory()
        for obj in objects:
            inventory.apply(obj)

        def record(mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
            edge.events.append(JourneyEvent(edge.now, mac, step, outcome, message, detail))

        def changed(machine: Machine, address: str, until: float | None) -> None:
            edge.quarantined.append((machine.mac, address, until))

        when = NetbootWhen.ALLOWED if has_pending is None else NetbootWhen.WORKFLOW
        policy = NetbootPolicy(mode, when, has_pending or (lambda _namespace, _name: True))
        quarantine = Quarantine(lambda: edge.now, quarantine_seconds, changed)
        settings = DhcpSettings(server_ip, server_ip, f"http://{server_ip}:7080", peers)
        responder = Responder(
            inventory,
            settings,
            record,
            lambda: edge.now,
            binaries,
            policy,
            quarantine=quarantine,
            learn=lambda mac, ip: edge.learnt.append((mac, ip)),
            express=express,
        )
        edge = Edge(inventory, responder, quarantine)
        if responder.declined is not None and looks:
            responder.declined.wake = lambda: None
        return edge

    return make


@pytest.fixture
def edge(make_edge: Callable[..., Edge]) -> Edge:
    """Serves the machine of the firmware captures, 10.77.0.58."""
    return make_edge(hardware("lab-1", FIRMWARE_MAC, "10.77.0.58"))


@pytest.fixture
def os_edge(make_edge: Callable[..., Edge]) -> Edge:
    """Serves the machine of the operating systems' captures and the relayed one, as server 10.77.6.1."""
    return make_edge(
        hardware("lab-2", CLIENT_MAC, "10.77.6.227"),
        hardware("lab-3", RELAYED_MAC, "10.77.6.9"),
        server_ip="10.77.6.1",
    )


@pytest.fixture
def make_hardware() -> Callable[..., dict[str, Any]]:
    return hardware
