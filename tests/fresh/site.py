"""A host with a real systemd and an emulated machine on its network, for tests of whole installations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edge.building.shell import run
from edge.lab.machine import MachineSettings, VirtualMachine
from tests.interop.installed.host import ROOT, Host

BOOT_SECONDS = 400
"""Limit for one netboot with an emulated processor, on a machine that does other things meanwhile."""


def package(suite: str, out: Path) -> Path:
    """Build the Debian package as `make deb` does, with the quickest compression."""
    command = [sys.executable, "-m", "deploy.package", "deb", "--suite", suite, "--out", str(out)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    (made,) = out.glob("*.deb")
    return made


class Plugged(VirtualMachine):
    """An emulated machine whose network cable leads to a host's `eth1`."""

    def __init__(self, host: Host, settings: MachineSettings, directory: Path) -> None:
        directory.mkdir()
        super().__init__(settings, directory)
        self._network = f"--net=/proc/{host.first}/ns/net"

    async def plug(self) -> None:
        for command in (
            f"tuntap add dev {self.settings.tap} mode tap",
            f"link set {self.settings.tap} master eth1 up",
        ):
            await run(["nsenter", self._network, "ip", *command.split()])

    def _command(self) -> list[str | Path]:
        return ["nsenter", self._network, *super()._command()]


class WithDisk(Plugged):
    """The same with a SATA-style disk, `/dev/sda`, and an Intel network card, as real machines have them."""

    def _command(self) -> list[str | Path]:
        devices = {"virtio-blk-pci,drive=disk,bootindex=1": "ide-hd,drive=disk,bootindex=1"}
        card = f"virtio-net-pci,netdev=net,mac={self.settings.mac}"
        words = [devices.get(str(word), word) for word in super()._command()]
        return [str(word).replace(card, card.replace("virtio-net-pci", "e1000")) for word in words]


@asynccontextmanager
async def switched_on(machine: Plugged) -> AsyncIterator[Plugged]:
    """Plug the machine in and power it on for the block."""
    await machine.plug()
    await machine.power_on()
    try:
        yield machine
    finally:
        await machine.power_off()
