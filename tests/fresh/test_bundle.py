"""docs/airgap.md with real firmware: an empty Debian without a route gets from one signed file to a machine that boots.

The host has the real systemd; the machine is QEMU's, with a blank disk, plugged into the host's network. What the
commands at the site have to refuse is tried in tests/interop/test_installed_deb.py, with a machine that is quicker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edge.building.builder import Builder, default_cache
from edge.building.shell import run
from edge.lab.machine import Firmware, Machine, MachineSettings
from tests.interop.installed.empty import MAC, Bundle, emptied
from tests.interop.installed.host import ROOT, Host
from tests.waiting import until

pytestmark = pytest.mark.timeout(1200)

SUITES = ("bookworm", "trixie")
BOOT_SECONDS = 400
"""With an emulated processor, on a machine that does other things meanwhile."""
SETTINGS = "TINKEDGE_INTERFACE=eth1\nTINKEDGE_MANIFESTS=/var/lib/tinkedge/manifests\n"


@pytest.fixture(scope="module")
def osie() -> Path:
    """The lab's, with the agent of this checkout."""
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    return asyncio.run(Builder(cache, print).build(full=False)).kernel.parent


def package(suite: str, out: Path) -> Path:
    """As `make deb` makes it, but for how well it is compressed."""
    command = [sys.executable, "-m", "deploy.package", "deb", "--suite", suite, "--out", str(out)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    (made,) = out.glob("*.deb")
    return made


class Plugged(Machine):
    """A machine whose cable leads into the network of a host."""

    def __init__(self, host: Host, directory: Path) -> None:
        settings = MachineSettings(MAC, "machine0", Firmware.BIOS, processors=1, disk_mib=1)
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


@asynccontextmanager
async def switched_on(host: Host, directory: Path) -> AsyncIterator[Plugged]:
    directory.mkdir()
    machine = Plugged(host, directory)
    await machine.plug()
    await machine.power_on()
    try:
        yield machine
    finally:
        await machine.power_off()


@pytest.mark.parametrize("suite", SUITES)
async def test_machine_boots_from_what_one_signed_file_brought(suite: str, osie: Path) -> None:
    # Not below /tmp, which may be a part of the memory, and is hidden from nobody there.
    with tempfile.TemporaryDirectory(prefix="bundle.", dir=default_cache()) as kept:
        directory = Path(kept)
        with Host(directory / "host", suite) as host:
            made = package(suite, directory / "deb")
            bundle = Bundle(directory, made, emptied(host), osie)
            assert "default" not in host.run("ip", "route")
            for name in ("site.bundle", "site.pgp"):
                shutil.copy(bundle.directory / name, host.path("/root"))
            for command in bundle.commands:
                host.run("sh", "-c", f"cd /root && {command}", timeout=300)
            host.path("/etc/default/tinkedge").write_text(SETTINGS)
            host.run("systemctl", "enable", "--now", "tinkedge", timeout=120)
            async with switched_on(host, directory / "machine") as machine:
                await until(
                    lambda: machine.ended or "Succeeded" in state(host),
                    lambda: "\n".join([*machine.last_lines(30), host.journal("-n", "40")]),
                    within=BOOT_SECONDS,
                    every=1.0,
                )
                assert machine.ended is None, machine.ended


def state(host: Host) -> str:
    """Of the Workflow in the bundle."""
    command = "kubectl --kubeconfig=/var/lib/tinkedge/kubeconfig get workflow first -o jsonpath={.status.state}"
    return host.run(*command.split(), check=False)
