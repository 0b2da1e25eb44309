"""A machine beside a host, from power-on to the agent: udhcpc and curl send the firmware's requests, and the real agent
runs as in an OSIE. A virtual machine with real firmware takes half a minute for the same (tests/boot).

    PXE ROM: DHCP, boot program by TFTP -> iPXE: DHCP, script, kernel and initrd by HTTP -> agent, actions as processes
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self

from tests.interop.installed import manifests
from tests.interop.installed.host import ADDRESS, Host
from tests.interop.rack import TINKEDGE, Process, clean_environment

_PXE_ROM = ("-V", "PXEClient:Arch:00000:UNDI:002001", "-x", "0x5d:0000", "-O", "66", "-O", "67")
_IPXE = ("-V", "PXEClient:Arch:00000:UNDI:002001", "-x", "0x5d:0000", "-x", "0x4d:69505845", "-O", "67")
"""Arguments of udhcpc that send options 60, 93 and 77 of a PXE ROM and of iPXE (RFC 4578, RFC 3004)."""
_OWN_SYSFS = """\
set -e
mkdir -p "$1/cgroup"
mount --rbind /sys/fs/cgroup "$1/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$1/cgroup" /sys/fs/cgroup
shift
exec "$@"
"""
"""Shows the machine's own network cards in /sys, and the cgroups that its containers need."""
_LEARN = """\
#!/bin/sh
[ "$1" = bound ] || exit 0
env >"$LEARNED"
ip -4 address replace "$ip/$mask" dev "$interface"
"""


class Site(Protocol):
    """A host or rack that a machine can be connected to."""

    def plug(self, namespace: str, mac: str) -> None: ...


class Machine:
    """A machine, switched off before and after `with`. `directory` has the files of its actions and its agent."""

    def __init__(self, directory: Path, mac: str, runtime: str = "process") -> None:
        """`runtime` is the agent's option."""
        self.directory, self.mac, self._runtime = directory, mac, runtime
        self._namespace = f"machine-{os.getpid()}-{secrets.token_hex(3)}"
        self._agent: Process | None = None
        directory.mkdir()
        self._learn = directory / "learn"
        self._learn.write_text(_LEARN)
        self._learn.chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.off()

    def on(self, site: Site) -> list[str]:
        """Connect the machine and switch it on; return the results of its boot step by step, until its agent runs."""
        subprocess.run(["ip", "netns", "add", self._namespace], check=True)
        site.plug(self._namespace, self.mac)
        rom = self._dhcp(*_PXE_ROM)
        program = self.fetch(f"tftp://{rom['siaddr']}/{rom['boot_file']}")
        ipxe = self._dhcp(*_IPXE)
        script = self.fetch(ipxe["boot_file"]).decode()
        kernel, initrd = _search(r"^kernel (\S+)(.*?) && ", script), _search(r"^initrd --name initrd (\S+)", script)
        sizes = [len(self.fetch(url)) for url in (kernel[1], initrd[1])]
        self._boot(kernel[2].strip())
        return [
            f"PXE ROM: {rom['ip']} by DHCP, {rom['boot_file']} by TFTP ({len(program)} bytes)",
            f"iPXE: script {ipxe['boot_file']}, kernel and initrd ({sizes[0]} and {sizes[1]} bytes)",
            "OSIE: the agent is started",
        ]

    def off(self) -> None:
        """Switch the machine off and delete its agent's state, which an OSIE keeps in memory."""
        if self._agent is not None:
            self._agent.end()
        self._agent = None
        subprocess.run(["ip", "netns", "delete", self._namespace], check=False, capture_output=True)

    def output(self) -> str:
        return "" if self._agent is None else self._agent.err

    def _boot(self, command_line: str) -> None:
        cmdline = self.directory / "cmdline"
        cmdline.write_text(command_line)
        state = self.directory / f"run-{secrets.token_hex(3)}"
        options = ["--kernel-command-line", cmdline, "--runtime", self._runtime, "--state-dir", state]
        enter = ["nsenter", f"--net=/run/netns/{self._namespace}", "unshare", "--mount", "--propagation", "slave"]
        enter += ["sh", "-c", _OWN_SYSFS, "sh", str(self.directory)]
        start = [*enter, *TINKEDGE, "agent", *map(str, options)]
        self._agent = Process(start, self.directory, clean_environment())

    def _dhcp(self, *options: str) -> Mapping[str, str]:
        """Return the DHCP server's answer as the variables of udhcpc's script."""
        learned = self.directory / "learned"
        ask = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "10", "-T", "1", "-s", self._learn]
        self._run(*ask, *options, LEARNED=str(learned))
        return dict(line.split("=", 1) for line in learned.read_text().splitlines() if "=" in line)

    def fetch(self, url: str) -> bytes:
        file = self.directory / "fetched"
        self._run("curl", "-sSf", "--max-time", "20", "-o", file, url)
        return file.read_bytes()

    def _run(self, *command: str | Path, **env: str) -> None:
        ran = subprocess.run(
            self._here(*command), capture_output=True, text=True, check=False, env=clean_environment() | env
        )
        assert ran.returncode == 0, f"{self.mac}: {ran.stdout}{ran.stderr}"

    def _here(self, *command: str | Path) -> list[str]:
        return ["ip", "netns", "exec", self._namespace, *map(str, command)]


def _search(pattern: str, text: str) -> re.Match[str]:
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None, text
    return match


def assert_machine_is_installed(host: Host, directory: Path, workflow: str = "first") -> None:
    """Switch a machine on and check that its Workflow succeeds."""
    files = host.path(manifests.OSIE_DIR)
    files.mkdir(exist_ok=True)
    for name in ("kernel", "initrd"):
        (files / name).write_text(name)
    host.run("chown", "-R", "tinkedge:", manifests.OSIE_DIR)
    host.apply(manifests.machine())
    host.apply(manifests.workflow(workflow))
    with Machine(directory, manifests.MAC) as machine:
        machine.on(host)
        host.wait(lambda: host.kubectl("get", "wf", workflow, "-o", "jsonpath={.status.state}") == "Succeeded")
        assert machine.fetch(f"http://{ADDRESS}:7080/2009-04-04/meta-data/instance-id")
