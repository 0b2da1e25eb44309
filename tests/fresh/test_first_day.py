"""README's section "Your first machine", typed on a fresh Debian, until the machine has booted the Debian that it got.

The commands are read from README.md. What differs: `make deb` was run before, the network is 172.31.78.0/24, and
`tinkedge prepare` has this machine's network, for the host has no route to a Debian mirror.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from edge.building.builder import default_cache
from edge.lab.machine import Firmware, MachineSettings
from tests.fresh.site import WithDisk, package, switched_on
from tests.interop.installed.host import ADDRESS, ROOT, Host
from tests.waiting import until

pytestmark = pytest.mark.timeout(2400)

SECTION = "## Your first machine"
MAC = "52:54:00:12:34:56"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl operator\n"
BUILD_SECONDS = 1200
INSTALL_SECONDS = 900


def typed() -> list[str]:
    """Return the commands of the section, in order, without comments, with this test's addresses."""
    section = (ROOT / "README.md").read_text().partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^ {7,}(\S.*)$", section.replace("\\\n", ""), re.MULTILINE)
    network = ADDRESS.rpartition(".")[0]
    return [re.sub(r"\s+# .*", "", line).replace("192.168.10.", f"{network}.") for line in lines]


def position(commands: list[str], beginning: str) -> int:
    found = [number for number, command in enumerate(commands) if command.startswith(beginning)]
    assert len(found) == 1, f"README has {len(found)} commands that begin with {beginning!r}: {commands}"
    return found[0]


def type_in(host: Host, command: str) -> str:
    """Type a command and return its output. `tinkedge doctor` may warn, but must not find a problem."""
    is_doctor = command == "tinkedge doctor"
    answer = host.run("bash", "-c", command, check=not is_doctor)
    assert not (is_doctor and "PROBLEM" in answer), answer
    print(f"# {command}\n{answer}", flush=True)
    return answer


def with_route(host: Host, command: str) -> str:
    """Run a command on the host, but with this machine's network, which has a route to the Debian mirror."""
    own = host.path("/etc/resolv.conf")
    before = own.read_text()
    own.write_text(Path("/etc/resolv.conf").read_text())
    inside = ["nsenter", "--target", str(host.first), "--mount", "--uts", "--ipc", "--pid", "--root", "--wd=/"]
    environment = [
        "env",
        "-i",
        "HOME=/root",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG=C.UTF-8",
        "bash",
        "-c",
        command,
    ]
    try:
        done = subprocess.run(
            [*inside, *environment],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=BUILD_SECONDS,
        )  # fmt: skip
    finally:
        own.write_text(before)
    print(f"# {command}\n{done.stdout}", flush=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def field(host: Host, kind: str, name: str, path: str) -> str:
    return host.run("kubectl", "get", kind, name, "-o", f"jsonpath={{{path}}}", check=False)


async def test_commands_of_the_readme_lead_from_an_empty_debian_to_an_installed_machine() -> None:
    commands = typed()
    install, start = position(commands, "apt install"), position(commands, "systemctl enable")
    prepare, apply = position(commands, "tinkedge prepare"), position(commands, "kubectl apply")
    position(commands, "tinkedge watch")
    with tempfile.TemporaryDirectory(prefix="first-day.", dir=default_cache()) as kept:
        directory = Path(kept)
        made = package("bookworm", directory / "deb")
        with Host(directory / "host", "bookworm") as host:
            host.path("/root/dist").mkdir()
            shutil.copy(made, host.path("/root/dist"))
            host.path("/root/.ssh").mkdir(mode=0o700, exist_ok=True)
            host.path("/root/.ssh/id_ed25519.pub").write_text(KEY)
            for command in commands[install : start + 1]:
                type_in(host, command)
            with_route(host, commands[prepare])
            # All is built: this time it applies the OSIE to the API, which only the host's own network reaches.
            assert "osie" in type_in(host, commands[prepare]).lower()
            type_in(host, " && ".join(commands[prepare + 1 : apply + 1]))
            settings = MachineSettings(MAC, "machine0", Firmware.BIOS, processors=2, memory_mib=2048, disk_mib=8192)
            async with switched_on(WithDisk(host, settings, directory / "machine")) as machine:
                name = host.kubectl("get", "hardware", "-o", "jsonpath={.items[0].metadata.name}")
                workflow = host.kubectl("get", "workflows", "-o", "jsonpath={.items[0].metadata.name}")

                def why() -> str:
                    watched = host.run("tinkedge", "watch", "--once", name, check=False)
                    return "\n".join([watched, *machine.last_lines(40), host.journal("-n", "40")])

                def state() -> str:
                    assert machine.ended is None, machine.ended
                    return field(host, "workflow", workflow, ".status.state")

                await until(lambda: state() in ("Succeeded", "Failed"), why, within=INSTALL_SECONDS, every=2.0)
                assert state() == "Succeeded", why()
                # cloud-init of the installed system reports its end to the edge.
                await until(
                    lambda: "cloud-init finished" in host.run("tinkedge", "watch", "--once", name, check=False),
                    why, within=INSTALL_SECONDS, every=5.0,
                )  # fmt: skip
                print(host.run("tinkedge", "watch", "--once", name), flush=True)
