"""A host that a user installs tinkedge on: a Debian of its own, with the real systemd as its first process.

`deploy/setup.sh installed` makes the Debian once; a host lays its own disk over it, in mount, UTS, IPC, PID, network
and cgroup namespaces. systemd wants a cgroup tree that is its own: it gets a group of the unified hierarchy and sees
nothing above. It starts in half a second, and all of it ends with the host.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from edge.lab.build import default_cache
from tests.interop.rack import clean_environment
from tests.waiting import wait_until

HERE = Path(__file__).parent
KEPT = default_cache() / "installed"
ADDRESS = "172.31.78.1"
"""Of `eth1`, the interface that faces machines."""
_JOIN = ("--mount", "--uts", "--ipc", "--pid", "--net", "--cgroup")


def debian(suite: str) -> Path:
    """Its files."""
    directory = KEPT / suite
    if not directory.exists():
        pytest.fail(f"no {directory}: deploy/setup.sh installed")
    return directory


def _unified() -> Path:
    """Where cgroups of the second version are."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    pytest.fail("no cgroup2 is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup")


class Host:
    """One host; `directory` has its disk, and `boot` may be called again after `off`."""

    def __init__(self, directory: Path, suite: str = "bookworm") -> None:
        self._directory, self._system = directory, debian(suite)
        self._cgroup = _unified() / f"tinkedge-{os.getpid()}-{secrets.token_hex(3)}"
        self._started: subprocess.Popen[bytes] | None = None
        self.first = 0
        for name in ("disk", "work", "root"):
            (directory / name).mkdir(parents=True)

    def __enter__(self) -> Self:
        self.boot()
        return self

    def __exit__(self, *_: object) -> None:
        self.off()

    def boot(self) -> None:
        """Power on; returns when systemd has started all that is enabled."""
        self._cgroup.mkdir(exist_ok=True)
        script = f'echo $$ >"{self._cgroup}/cgroup.procs"; exec "$@"'
        alone = ["unshare", *_JOIN, "--fork", "--kill-child", "--propagation", "private"]
        start = ["bash", str(HERE / "boot.sh"), str(self._system), str(self._directory)]
        with (self._directory / "console").open("wb") as console:
            self._started = subprocess.Popen(
                ["bash", "-c", script, "bash", *alone, *start],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=clean_environment(),
            )  # fmt: skip
        wait_until(self._find_first, self.console, within=30)
        wait_until(
            lambda: self.run("systemctl", "is-system-running", check=False).strip() == "running",
            self.console,
            within=60,
        )
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "add", "eth1", "type", "bridge")
        self.run("ip", "address", "add", f"{ADDRESS}/24", "dev", "eth1")
        self.run("ip", "link", "set", "eth1", "up")

    def _find_first(self) -> bool:
        """The process that unshare started, once it has become systemd."""
        assert self._started is not None
        assert self._started.poll() is None, self.console()
        children = Path(f"/proc/{self._started.pid}/task/{self._started.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
            self.first = int(children[0])
        return self.first > 0

    def off(self) -> None:
        """Pull the plug."""
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

    def console(self) -> str:
        return (self._directory / "console").read_text()

    def path(self, name: str) -> Path:
        """A file of the running host, as seen from here."""
        return Path(f"/proc/{self.first}/root") / name.lstrip("/")

    def there(self, pattern: str) -> list[str]:
        """The files of the running host that match, as it names them."""
        root = self.path("/")
        return sorted(f"/{path.relative_to(root)}" for path in root.glob(pattern.lstrip("/")))

    def run(self, *command: str | Path, check: bool = True, timeout: float = 60) -> str:
        """What a command there prints; unless `check`, whatever its status."""
        inside = ["nsenter", "--target", str(self.first), *_JOIN, "--root", "env", "--chdir=/", "-i"]
        environment = [
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
            "HOME=/root",
        ]
        ran = self._call([*inside, *environment, *map(str, command)], timeout)
        assert not check or ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """This machine's kubectl, in the host's network."""
        inside = ["nsenter", "--target", str(self.first), "--net"]
        which = [f"--kubeconfig={self.path('/var/lib/tinkedge/kubeconfig')}", f"--cache-dir={self._directory}/kubectl"]
        ran = self._call([*inside, "kubectl", *which, *words], 30, stdin)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def _call(self, command: list[str], timeout: float, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=clean_environment()
        )

    def wait(self, condition: Callable[[], object], within: float = 40) -> None:
        """Until it holds; if it does not, the journal says why."""
        wait_until(
            condition, lambda: self.run("journalctl", "--no-pager", "-n", "60", check=False), within=within, every=0.2
        )
