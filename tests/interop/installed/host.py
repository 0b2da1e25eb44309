"""A host that tinkedge runs on: a Debian of its own, with the real systemd as its first process.

`deploy/setup.sh installed` makes the Debian once; a host lays its own disk over it, in mount, UTS, IPC, PID, network
and cgroup namespaces. systemd needs its own cgroup tree: it gets a group of the unified hierarchy and sees nothing
above. It starts in half a second, and all its processes end with the host. Machines are connected to its `eth1`
(`machine`). The tests install a package there, or use the checkout (`Checkout`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

from edge.building.builder import default_cache
from tests.interop.rack import Process, clean_environment
from tests.waiting import PATIENCE_SECONDS, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
UNITS = ROOT / "deploy" / "systemd"
KEPT = default_cache() / "installed"
ADDRESS = "172.31.78.1"
"""The address of `eth1`, the interface that faces machines."""
_JOIN = ("--mount", "--uts", "--ipc", "--pid", "--net", "--cgroup")
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/test",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/root",
    "KUBECONFIG": "/var/lib/tinkedge/kubeconfig",
}
"""The environment of a login shell on the host."""


def debian(suite: str) -> Path:
    directory = KEPT / suite
    if not directory.exists():
        pytest.fail(f"no {directory}: deploy/setup.sh installed")
    return directory


def own_suite() -> str:
    """Return the Debian suite that runs this machine's programs: trixie on Debian 13, which has a newer libc."""
    own = Path("/etc/os-release")
    return "trixie" if own.exists() and "VERSION_CODENAME=trixie" in own.read_text() else "bookworm"


def kubectl() -> dict[Path, str]:
    """Map this machine's kubectl to its path on a host."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.fail("no kubectl: deploy/setup.sh kubectl")
    return {Path(program).resolve(): "/usr/local/test/kubectl"}


def _unified() -> Path:
    """Return the mount point of cgroups of version 2."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    pytest.fail("no cgroup2 is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup")


class Host:
    """A host. `directory` has its disk. `boot` may be called again after `off`."""

    def __init__(self, directory: Path, suite: str = "bookworm", shown: Mapping[Path, str] | None = None) -> None:
        """The host has the name of `directory`. `shown`: files of this machine that it sees, with their paths there."""
        self.directory, self.name, self._system = directory, directory.name, debian(suite)
        self.disk = directory / "disk"
        self._shown = kubectl() | dict(shown or {})
        self._cgroup = _unified() / f"tinkedge-{os.getpid()}-{secrets.token_hex(3)}"
        self._started: subprocess.Popen[bytes] | None = None
        self.first = 0
        """The process id of systemd on this machine."""
        for name in ("disk/etc/dpkg/dpkg.cfg.d", "work", "root"):
            (directory / name).mkdir(parents=True)
        (self.disk / "etc/hostname").write_text(f"{self.name}\n")
        # This disk need not survive a power cut: dpkg does not sync each file.
        (self.disk / "etc/dpkg/dpkg.cfg.d/test").write_text("force-unsafe-io\n")

    def __enter__(self) -> Self:
        try:
            self.boot()
        except BaseException:
            self.off()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.off()

    # --- power ---

    def boot(self) -> None:
        """Power on; return when systemd has started all enabled units."""
        self._cgroup.mkdir(exist_ok=True)
        script = f'echo $$ >"{self._cgroup}/cgroup.procs"; exec "$@"'
        alone = ["unshare", *_JOIN, "--fork", "--kill-child", "--propagation", "private"]
        start = ["bash", str(HERE / "boot.sh"), str(self._system), str(self.directory)]
        shown = [word for source, name in self._shown.items() for word in (str(source), name)]
        with (self.directory / "console").open("wb") as console:
            self._started = subprocess.Popen(
                ["bash", "-c", script, "bash", *alone, *start, *shown],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                env=clean_environment() | {"ADDRESS": ADDRESS},
            )  # fmt: skip
        wait_until(self._find_first, self.console)
        self.wait(lambda: self.run("systemctl", "is-system-running", check=False).strip() == "running")

    def _find_first(self) -> bool:
        """Return True once the process that unshare started has become systemd, and store its id."""
        assert self._started is not None
        assert self._started.poll() is None, self.console()
        children = Path(f"/proc/{self._started.pid}/task/{self._started.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
            self.first = int(children[0])
        return self.first > 0

    def reboot(self) -> None:
        """Reboot as a user on the host does: services end, and enabled ones start again."""
        assert self._started is not None
        self.run("systemctl", "reboot")
        self._started.wait(PATIENCE_SECONDS)
        self.off()
        self.boot()

    def off(self) -> None:
        if self._started is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._started.pid, signal.SIGKILL)
            self._started.wait()
        self._started, self.first = None, 0
        for _ in range(100):
            try:
                for group, _, _ in os.walk(self._cgroup, topdown=False):
                    Path(group).rmdir()
                break
            except OSError:
                time.sleep(0.05)  # its processes are ending

    # --- files and programs ---

    def console(self) -> str:
        return (self.directory / "console").read_text()

    def path(self, name: str) -> Path:
        """Return the path of a file of the running host on this machine."""
        return Path(f"/proc/{self.first}/root") / name.lstrip("/")

    def there(self, pattern: str) -> list[str]:
        """Return the files of the running host that match, with their paths there."""
        root = self.path("/")
        return sorted(f"/{path.relative_to(root)}" for path in root.glob(pattern.lstrip("/")))

    def run(self, *command: str | Path, check: bool = True, timeout: float = PATIENCE_SECONDS) -> str:
        """Run a command on the host; return its output. With `check`, its exit status must be 0."""
        ran = subprocess.run(
            self._inside(command),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
            check=False, env=clean_environment(),
        )  # fmt: skip
        output = ran.stdout.decode()  # keep carriage returns
        assert not check or ran.returncode == 0, f"{command}: {output}\n{self.journal('-n', '60')}"
        return output

    def start(self, *command: str | Path) -> Process:
        """Start a command on the host in the background; it ends with the host, or by a signal there."""
        return Process(self._inside(command), self.directory, clean_environment())

    def _inside(self, command: Sequence[str | Path]) -> list[str]:
        there = ["nsenter", "--target", str(self.first), *_JOIN, "--root", "env", "--chdir=/root", "-i"]
        return [*there, *(f"{name}={value}" for name, value in _ENVIRONMENT.items()), *map(str, command)]

    def kubectl(self, *words: str | Path) -> str:
        return self.run("kubectl", *words)

    def apply(self, text: str) -> str:
        file = f"/root/{secrets.token_hex(4)}.yaml"
        self.path(file).write_text(text)
        return self.kubectl("apply", "-f", file)

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def journal(self, *options: str) -> str:
        return self.run("journalctl", "--no-pager", "-q", *options, check=False)

    def answers(self, path: str, address: str = ADDRESS, port: int = 7080) -> bool:
        """Return True if the host's HTTP server answers a path with 200."""
        status = ("-o", "/dev/null", "-w", "%{http_code}", f"http://{address}:{port}{path}")
        return self.run("curl", "-s", "--max-time", "2", *status, check=False) == "200"

    def wait(self, condition: Callable[[], object], within: float = PATIENCE_SECONDS) -> None:
        """Wait until `condition` holds; fail with the journal's end if it never does."""
        wait_until(condition, lambda: self.journal("-n", "60"), within=within, every=0.2)

    # --- network ---

    def plug(self, namespace: str, mac: str) -> None:
        """Add a network card `eth0` with this MAC to a network namespace, connected to the host's `eth1`."""
        port = f"port-{secrets.token_hex(4)}"
        card = ["ip", "-n", namespace, "link", "add", "eth0", "address", mac, "type", "veth"]
        commands = [
            [*card, "peer", "name", port, "netns", str(self.first)],
            ["nsenter", "--target", str(self.first), "--net", "ip", "link", "set", port, "master", "eth1", "up"],
            ["ip", "-n", namespace, "link", "set", "lo", "up"],
            ["ip", "-n", namespace, "link", "set", "eth0", "up"],
        ]
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True)


class Checkout(Host):
    """A host whose `tinkedge` is this checkout, with the units of deploy/systemd, as after the installation."""

    def __init__(self, directory: Path) -> None:
        python, packages = Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))
        # A path that is visible to services with hidden home directories.
        shown = {python: "/opt/test/python", packages: "/opt/test/packages", ROOT: "/opt/test/project"}
        super().__init__(directory, own_suite(), shown)
        program = self.disk / "usr/bin/tinkedge"
        program.parent.mkdir(parents=True)
        program.write_text(
            "#!/bin/sh\n"
            "export PYTHONPATH=/opt/test/project:/opt/test/packages LD_LIBRARY_PATH=/opt/test/python/lib\n"
            'export PYTHONDONTWRITEBYTECODE=1\nexec /opt/test/python/bin/python3 -m edge.cli "$@"\n'
        )
        program.chmod(0o755)
        units = self.disk / "etc/systemd/system"
        shutil.copytree(UNITS, units, ignore=shutil.ignore_patterns("*.yaml", "*.default", "*.sysusers"))
        accounts = self.disk / "usr/lib/sysusers.d"
        accounts.mkdir(parents=True)
        shutil.copy(UNITS / "tinkedge.sysusers", accounts / "tinkedge.conf")
        (self.disk / "etc/tinkedge").mkdir()

    def boot(self) -> None:
        super().boot()
        self.run("systemd-sysusers", "tinkedge.conf")
