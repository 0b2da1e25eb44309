"""A machine whose operating system starts a real cloud-init: a root file system of its own, a disk, boots.

`deploy/setup.sh cloud-init` makes a small Debian 12 without cloud-init and unpacks releases of cloud-init beside it; a
boot lays a release and the machine's own disk over that, in mount, UTS and PID namespaces that end with the boot, so
that nothing of this host can change. Any other directory there with the files of a package of cloud-init is taken for
one more release.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge.building.builder import default_cache
from tests.interop.rack import Namespaces

HERE = Path(__file__).parent
KEPT = default_cache() / "cloud-init"
DEBIANS = ("bullseye", "bookworm", "trixie", "forky")
"""The Debian releases whose cloud-init `deploy/setup.sh cloud-init` fetches: of 2020, 2022, 2025, and the newest."""

BOOT = (
    "/usr/lib/cloud-init/ds-identify",
    "cloud-init init --local",
    "cloud-init init",
    "cloud-init modules --mode=config",
    "cloud-init modules --mode=final",
)
"""The stages of a boot: choose the datasource; without a network, check for the same instance; with a network,
identify the instance; and the rest."""

_MODULES = """\
# What distributions run at boot, less what a machine of a test has no use for (packages, disks, locales).
ssh_genkeytypes: [ed25519]
cloud_init_modules: [bootcmd, write-files, set_hostname, update_hostname, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-vendor, scripts-per-boot, scripts-per-instance, scripts-user, phone-home]
"""


def releases() -> list[str]:
    """Return the releases of cloud-init: those of Debian that must be installed, and any others that are."""
    installed = {path.name for path in KEPT.glob("*") if (path / "usr/bin/cloud-init").exists()}
    return [*DEBIANS, *sorted(installed - set(DEBIANS))]


def release(name: str) -> Path:
    """Return the directory of a release. Without it, the test fails, or is skipped if mirrors may have dropped it."""
    directory = KEPT / name
    if not directory.exists():
        (pytest.fail if name == "bookworm" else pytest.skip)(f"no {directory}: deploy/setup.sh cloud-init")
    return directory


def version(directory: Path) -> tuple[int, int]:
    """Return the year and the number of a release."""
    package = directory / "usr/lib/python3/dist-packages/cloudinit"
    # The newer ones are built by meson.
    files = [package / name for name in ("version.py", "meson_versions.py")]
    match = re.search(r'VERSION(?:__)? = "(\d+)\.(\d+)', "".join(file.read_text() for file in files if file.exists()))
    assert match, directory
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class Boot:
    """How a boot ended: the status of the last failed stage, the output, and cloud-init's own result."""

    status: int
    output: str
    hostname: str
    result: dict[str, Any]


class Computer:
    """One machine with one release of cloud-init; `where` is its namespace in `rack`."""

    def __init__(self, rack: Namespaces, where: str, system: Path, disk: Path, renderer: str = "netplan") -> None:
        self._rack, self._where, self.system, self.disk = rack, where, system, disk
        (disk / "changes").mkdir(parents=True)
        self.configure("05-modules", _MODULES)
        self.configure("06-renderer", f"system_info: {{network: {{renderers: [{renderer}]}}}}\n")

    def configure(self, name: str, text: str) -> None:
        """Write a file into the machine's image, as builders of images do."""
        self.write(f"etc/cloud/cloud.cfg.d/{name}.cfg", text)

    def write(self, path: str, text: str) -> None:
        file = self.disk / "changes" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mainboard(self, **values: str) -> None:
        """Set SMBIOS values, by the names of the files in /sys/class/dmi/id. Without them, no cloud is detected."""
        (self.disk / "dmi").mkdir(exist_ok=True)
        for name, value in values.items():
            (self.disk / "dmi" / name).write_text(f"{value}\n")

    def read(self, path: str) -> str:
        """Return a file that a boot wrote; empty if it wrote none."""
        file = self.disk / "changes" / path
        return file.read_text() if file.exists() else ""

    def log(self) -> str:
        return self.read("var/log/cloud-init.log")

    def boot(self, cmdline: str = "", stages: tuple[str, ...] = BOOT) -> Boot:
        """Boot from power-on to the end of the last stage."""
        (self.disk / "cmdline").write_text(f"BOOT_IMAGE=/vmlinuz root=LABEL=root ro {cmdline}\n")
        status, output = self.run(*self._together(stages))
        report = self.disk / "report"
        result = report / "result.json"
        return Boot(
            status=status,
            output=output,
            hostname=(report / "hostname").read_text().strip(),
            result=json.loads(result.read_text())["v1"] if result.exists() else {},
        )

    def _together(self, commands: tuple[str, ...]) -> list[str]:
        """Merge successive stages of cloud-init into one run of `stages.py`."""
        stages = [command for command in commands if command.startswith("cloud-init ")]
        if len(stages) < 2:
            return [*commands]
        self.write("srv/stages.py", (HERE / "stages.py").read_text())
        arguments = [stage.removeprefix("cloud-init ").replace(" ", ",") for stage in stages]
        others = [command for command in commands if command not in stages]
        return [*others, " ".join(["python3 /srv/stages.py", *arguments])]

    def run(self, *commands: str) -> tuple[int, str]:
        """Run commands on the machine; return status and output."""
        (self.disk / "cmdline").touch()
        alone = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        process = self._rack.run(
            self._where, *alone, "bash", HERE / "boot.sh", self.disk, self.system, KEPT / "base", *commands
        )
        return process.popen.returncode, process.out + process.err
