"""docs/airgap.md with real firmware: an empty Debian without a route gets from one signed file to a machine that boots.

The host has the real systemd; the machine is QEMU's, with a blank disk, plugged into the host's network. What the
commands at the site have to refuse is tried in tests/interop/test_installed_deb.py, with a machine that is quicker.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from edge.building.builder import Builder, default_cache
from edge.lab.machine import Firmware, MachineSettings
from tests.fresh.site import BOOT_SECONDS, Plugged, package, switched_on
from tests.interop.installed.empty import MAC, Bundle, emptied
from tests.interop.installed.host import Host
from tests.waiting import until

pytestmark = pytest.mark.timeout(1200)

SUITES = ("bookworm", "trixie")
SETTINGS = "TINKEDGE_INTERFACE=eth1\nTINKEDGE_MANIFESTS=/var/lib/tinkedge/manifests\n"
MACHINE = MachineSettings(MAC, "machine0", Firmware.BIOS, processors=1, disk_mib=1)


@pytest.fixture(scope="module")
def osie() -> Path:
    """The lab's, with the agent of this checkout."""
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    return asyncio.run(Builder(cache, print).build(full=False)).kernel.parent


@pytest.mark.parametrize("suite", SUITES)
async def test_machine_boots_from_the_files_of_one_signed_bundle(suite: str, osie: Path) -> None:
    # Not below /tmp, which may be in memory, and which the host's namespace does not hide.
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
            async with switched_on(Plugged(host, MACHINE, directory / "machine")) as machine:
                await until(
                    lambda: machine.ended or "Succeeded" in state(host),
                    lambda: "\n".join([*machine.last_lines(30), host.journal("-n", "40")]),
                    within=BOOT_SECONDS,
                    every=1.0,
                )
                assert machine.ended is None, machine.ended


def state(host: Host) -> str:
    """Return the state of the Workflow in the bundle."""
    command = "kubectl --kubeconfig=/var/lib/tinkedge/kubeconfig get workflow first -o jsonpath={.status.state}"
    return host.run(*command.split(), check=False)
