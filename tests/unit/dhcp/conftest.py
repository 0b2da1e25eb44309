"""Edges for tests to send packets to."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from edge.dhcp import DhcpSettings, Responder
from edge.dhcp_common import DhcpSite, Quarantine, Relays
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.machines import DhcpMode, Inventory, Machine, NetbootPolicy, NetbootWhen
from ipxe.binaries import BootBinaries
from tests.unit.dhcp.harness import PLAIN, Edge, MakeDiscovery, MakeEdge, altered, lab


@pytest.fixture
def binaries(tmp_path: Path) -> BootBinaries:
    directory, shims = tmp_path / "ipxe", tmp_path / "shims"
    for folder in (directory, shims):
        folder.mkdir()
    for name in ("undionly.kpxe", "snponly.efi", "ipxe.efi"):
        (directory / name).write_bytes(name.encode() * 100)
    for name in ("shimx64.efi", "grubx64.efi"):
        (shims / name).write_bytes(b"HTTP/1.1")
    return BootBinaries(directory, shims)


@pytest.fixture
def make_edge(binaries: BootBinaries) -> MakeEdge:
    def make(
        *objects: dict[str, Any],
        server_ip: str = "10.77.0.1",
        mode: DhcpMode = DhcpMode.RESERVATION,
        has_pending: Callable[[str, str], bool] | None = None,
        quarantine_seconds: float = 600.0,
        networks: tuple[IPv4Network, ...] = (),
        on_relay_seen: Callable[[Machine, str, str], None] = lambda _machine, _link, _relay: None,
        fast_path: bool = True,
        looks: bool = True,
        relays: str = "",
        discovery: MakeDiscovery | None = None,
    ) -> Edge:
        inventory = Inventory()
        for obj in objects:
            inventory.apply(obj)

        def record(mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
            edge.events.append(JourneyEvent(edge.now, mac, step, outcome, message, detail))

        def changed(machine: Machine, address: str, until: float | None) -> None:
            edge.quarantined.append((machine.mac, address, until))

        when = NetbootWhen.ALLOWED if has_pending is None else NetbootWhen.WORKFLOW
        quarantine = Quarantine(lambda: edge.now, quarantine_seconds, changed)
        known_relays = tuple(map(IPv4Network, relays.split()))
        site = DhcpSite(
            inventory,
            NetbootPolicy(mode, when, has_pending or (lambda _namespace, _name: True)),
            binaries,
            record,
            lambda: edge.now,
            relays=Relays(known_relays, lambda address: bool(inventory.claimants_of_ip(address))),
            fast_path=fast_path,
        )
        responder = Responder(
            site,
            DhcpSettings(server_ip, server_ip, f"http://{server_ip}:7080", networks),
            quarantine=quarantine,
            learn=lambda mac, ip, _relayed: edge.learnt.append((mac, ip)),
            on_relay_seen=on_relay_seen,
            discovery=discovery(inventory, record, lambda: edge.now) if discovery is not None else None,
        )
        inventory.on_change(responder.machine_changed)
        edge = Edge(inventory, responder, quarantine)
        if responder.declines is not None and looks:
            responder.declines.wake = lambda: None
        return edge

    return make


@pytest.fixture
def edge(make_edge: MakeEdge) -> Edge:
    """Serves the machine of the firmware captures, 10.77.0.58."""
    return make_edge(lab())


@pytest.fixture
def decline() -> bytes:
    """The DHCPDECLINE of the firmware captures' machine: of 10.77.0.58, given by 10.77.0.1."""
    return altered(PLAIN, drop=(55,), options={53: b"\4", 54: b"\x0a\x4d\0\1", 50: b"\x0a\x4d\0\x3a"})
