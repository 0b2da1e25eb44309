"""An edge's files as TFTP serves them: registered machines, an OSIE in the artifact cache, and the operator's files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

from edge.artifacts import ArtifactCache
from edge.callers import Callers
from edge.journey.recorder import Journey
from edge.machines import DhcpMode, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from edge.tftp import BootFiles
from edge.tftp.source import Refusal, TftpFile, TftpRequest
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tests.support import objects
from tests.unit.artifacts.conftest import Upstream

MAC, IP = "52:54:00:12:34:56", "10.0.0.50"
LOCKED, LOCKED_IP = "52:54:00:00:00:02", "10.0.0.51"
OTHER, OTHER_IP = "52:54:00:00:00:03", "10.0.0.52"
STRANGER_IP = "10.9.9.9"
PI = "1a2b3c4d"
KERNEL = b"kernel" * 1000


def hardware(name: str, mac: str, ip: str, **more: Any) -> dict[str, Any]:
    return objects.hardware(name, mac, ip, osie={"name": "lab"}, **more)


@dataclass
class Edge:
    files: BootFiles
    inventory: Inventory
    journey: Journey
    upstream: Upstream
    extra: Path
    osies: dict[tuple[str, str], dict[str, Any]]

    @property
    def asked(self) -> list[str]:
        """The files that the upstream of the OSIE was asked for."""
        return [request.path for request in self.upstream.requests]

    async def get(self, name: str, ip: str = IP) -> TftpFile | Refusal:
        opened = self.files(TftpRequest(name, ip))
        if isawaitable(opened):
            opened = await opened
        assert isinstance(opened, TftpFile | Refusal)
        return opened

    async def file(self, name: str, ip: str = IP) -> TftpFile:
        answer = await self.get(name, ip)
        assert isinstance(answer, TftpFile), answer
        return answer

    async def refused(self, name: str, ip: str = IP) -> Refusal:
        answer = await self.get(name, ip)
        assert isinstance(answer, Refusal), answer
        return answer

    async def text(self, name: str, ip: str = IP) -> str:
        return bytes((await self.file(name, ip)).content).decode()


def make_edge(
    path: Path, cache: ArtifactCache, upstream: Upstream, mode: DhcpMode = DhcpMode.RESERVATION, **how: Any
) -> Edge:
    """`how` may be default_osie, extra, pi_firmware and resolution."""
    write(path, {"secret": "secret", "ipxe/snponly.efi": "snponly", "ipxe/notes.txt": "no boot file"})
    extra = path / "tftp"
    extra.mkdir()
    inventory = Inventory()
    inventory.apply(hardware("lab-1", MAC, IP))
    inventory.apply(hardware("lab-2", LOCKED, LOCKED_IP, interface={"disableNetboot": True}))
    inventory.apply(hardware("lab-3", OTHER, OTHER_IP))
    policy, journey = NetbootPolicy(mode), Journey(time.time)
    upstream.content = KERNEL
    urls = {f"{part}Url": upstream.url.replace("/kernel", f"/{part}") for part in ("kernel", "initrd")}
    osies = {("default", "lab"): objects.osie(**urls)}
    default_osie = how.get("default_osie")

    def osie_of(namespace: str, name: str) -> dict[str, Any] | None:
        return osies.get((namespace, name))

    scripts = MachineScripts(inventory, policy, osie_of, Scripts(BootSettings()), journey.record, default_osie)
    files = BootFiles(
        BootBinaries(path / "ipxe"),
        inventory,
        Callers(inventory),
        policy,
        address="10.0.0.1",
        scripts=scripts,
        osie_files=OsieFiles(osie_of, cache),
        **{"extra": extra, **how},
    )
    inventory.on_change(scripts.machine_changed)
    inventory.on_change(files.machine_changed)
    return Edge(files, inventory, journey, upstream, extra, osies)


def write(directory: Path, files: dict[str, str | bytes]) -> None:
    """Write files below a directory, by name."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
