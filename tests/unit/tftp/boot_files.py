"""An edge's files as TFTP serves them: registered machines, an OSIE whose cache is played, and the operator's files."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

from edge.artifacts import Artifact, ArtifactError, Source
from edge.callers import Callers
from edge.journey.recorder import Journey
from edge.machines import DhcpMode, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from edge.tftp import BootFiles
from edge.tftp.source import Refusal, TftpFile, TftpRequest
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tests.support import objects

MAC, IP = "52:54:00:12:34:56", "10.0.0.50"
LOCKED, LOCKED_IP = "52:54:00:00:00:02", "10.0.0.51"
OTHER, OTHER_IP = "52:54:00:00:00:03", "10.0.0.52"
STRANGER_IP = "10.9.9.9"
PI = "1a2b3c4d"
KERNEL = b"kernel" * 1000


def hardware(name: str, mac: str, ip: str, **more: Any) -> dict[str, Any]:
    return objects.hardware(name, mac, ip, osie={"name": "lab"}, **more)


class Cache:
    """In place of the artifact cache: opens the file that it is told to, with the bytes that have arrived."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.arrived = asyncio.Event()
        self.arrived.set()
        self.error: ArtifactError | None = None
        self.source = Source.CACHE
        self.opened: list[Artifact] = []
        self.asked: list[str] = []
        self.waiting = 0

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        self.asked.append(url)
        if self.error is not None:
            raise self.error
        artifact = Artifact(url, os.open(self.path, os.O_RDONLY), self.size, "v", self.source, self)
        self.opened.append(artifact)
        return artifact

    async def filled(self, offset: int) -> int:
        self.waiting += 1
        await self.arrived.wait()
        if self.error is not None:
            raise self.error
        return self.size

    def progress(self) -> Any:
        return None

    def put(self, content: bytes, size: int | None = None) -> None:
        self.path.write_bytes(content)
        self.size = len(content) if size is None else size


@dataclass
class Edge:
    files: BootFiles
    inventory: Inventory
    journey: Journey
    cache: Cache
    extra: Path
    osies: dict[tuple[str, str], dict[str, Any]]

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


def make_edge(path: Path, mode: DhcpMode = DhcpMode.RESERVATION, **how: Any) -> Edge:
    """`how` may be default_osie, extra, pi_firmware and resolution."""
    write(path, {"secret": "secret", "ipxe/snponly.efi": "snponly", "ipxe/notes.txt": "no boot file"})
    extra = path / "tftp"
    extra.mkdir()
    inventory = Inventory()
    inventory.apply(hardware("lab-1", MAC, IP))
    inventory.apply(hardware("lab-2", LOCKED, LOCKED_IP, interface={"disableNetboot": True}))
    inventory.apply(hardware("lab-3", OTHER, OTHER_IP))
    policy, journey, cache = NetbootPolicy(mode), Journey(time.time), Cache(path / "artifact")
    cache.put(KERNEL)
    osies = {("default", "lab"): objects.osie(kernelUrl="http://u/k", initrdUrl="http://u/i")}
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
        osie_files=OsieFiles(osie_of, cache),  # type: ignore[arg-type]
        **{"extra": extra, **how},
    )
    inventory.on_change(scripts.machine_changed)
    inventory.on_change(files.machine_changed)
    return Edge(files, inventory, journey, cache, extra, osies)


def write(directory: Path, files: dict[str, str | bytes]) -> None:
    """Write files below a directory, by name."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
