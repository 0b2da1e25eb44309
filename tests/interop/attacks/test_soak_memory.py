"""`tinkedge up` with 512 MB of memory and no more, while everything comes at once: it assert_serves, and is not killed.

The limit is a memory cgroup's, so page cache and socket buffers count, too. `make soak` keeps it up for five minutes,
or for SOAK_MEMORY_SECONDS.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.attacks.soak.crowd import address
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Namespaces, Process
from tests.waiting import wait_until

LIMIT = 512_000_000
MACHINES = 600
SECONDS = float(os.environ.get("SOAK_MEMORY_SECONDS") or 300)
CGROUP = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A memory cgroup of its own, of either version."""

    def __init__(self, limit: int) -> None:
        name = f"tinkedge-{os.getpid()}-{secrets.token_hex(3)}"
        self._old = (CGROUP / "memory").is_dir()
        self._group = (CGROUP / "memory" if self._old else CGROUP) / name
        if not self._old:
            (CGROUP / "cgroup.subtree_control").write_text("+memory")
        self._group.mkdir()
        (self._group / ("memory.limit_in_bytes" if self._old else "memory.max")).write_text(str(limit))
        swap = self._group / ("memory.memsw.limit_in_bytes" if self._old else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(limit) if self._old else "0")

    def add(self, pid: int) -> None:
        (self._group / "cgroup.procs").write_text(str(pid))

    @property
    def most(self) -> int:
        """The most that was ever used, caches included."""
        return int((self._group / ("memory.max_usage_in_bytes" if self._old else "memory.peak")).read_text())

    @property
    def kills(self) -> int:
        """How often a process was killed for want of memory."""
        lines = (self._group / ("memory.oom_control" if self._old else "memory.events")).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def remove(self) -> None:
        wait_until(lambda: not (self._group / "cgroup.procs").read_text().strip())
        self._group.rmdir()


class Full(Namespaces):
    """The rack: the edge within its limit, and everybody."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.limit: MemoryLimit | None = None
        self.data_dir = directory / "data"

    def build(self) -> None:
        self.network("full0", {"crowd": "52:54:00:ff:01:01", "one": "52:54:00:ff:01:02"}, prefix=16)
        added = "".join(f"address add {address(number)}/16 dev eth0\n" for number in range(MACHINES))
        subprocess.run(["ip", "-n", self.namespaces["crowd"], "-batch", "-"], input=added, text=True, check=True)

    def up(self, limit: int) -> Process:
        osie = self.data_dir / "osie"
        osie.mkdir(parents=True)
        for name, size in (("kernel", 1 << 20), ("initrd", 32 << 20)):
            (osie / name).write_bytes(os.urandom(size))
        words = ["up", "--interface", "full0", "--public-ip", ADDRESS, "--data-dir", self.data_dir]
        # One card plays all machines.
        words += ["--known-by-address", "172.31.0.0/16"]
        process = self.start(IN_EDGE, *TINKEDGE, *words)
        self.limit = MemoryLimit(limit)
        self.limit.add(process.popen.pid)
        self.ready(process, within=60)
        return process

    def load(self, process: Process, seconds: float) -> dict[str, Any]:
        """Run the load for `seconds`, and longer until each kind of request has happened; return its counts."""
        files = {name: str(self.data_dir / "osie" / name) for name in ("kernel", "initrd")}
        where = {name: self.namespaces[name] for name in ("crowd", "one")}
        given = {"server_ip": ADDRESS, "machines": MACHINES, "kubeconfig": str(self.data_dir / "kubeconfig")}
        words = ["-m", "tests.interop.attacks.soak.crowd", json.dumps(given | where | files)]
        crowd = self.start(IN_EDGE, sys.executable, *words)
        wait_until(lambda: bool(crowd.out) or crowd.popen.poll() is not None, lambda: crowd.err, within=90)
        begun = time.monotonic()
        while (lasts := time.monotonic() - begun) < seconds or (lasts < 90 and not _some_of_all(crowd.out)):
            assert crowd.popen.poll() is None, crowd.err[-3000:]
            assert process.popen.poll() is None, f"tinkedge ended: {process.popen.returncode}\n{process.err[-3000:]}"
            time.sleep(0.2)
        assert crowd.terminate() == 0, crowd.err[-3000:]
        found: dict[str, Any] = json.loads(crowd.out.splitlines()[-1])
        return found

    def remove(self) -> None:
        super().remove()
        if self.limit is not None:
            self.limit.remove()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    with Full(tmp_path) as rack:
        yield rack


def private(process: Process) -> int:
    """Return the anonymous memory of `tinkedge up` and its gRPC server, in bytes."""
    total, pid = 0, process.popen.pid
    for each in (str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{each}/status").read_text().splitlines())
        total += sum(1024 * int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return total


def _enough(done: dict[str, int]) -> bool:
    return all(done.get(work, 0) >= 3 for work in ("leases", "downloads", "metadata", "writes", "workflows"))


def _some_of_all(output: str) -> bool:
    """Return True if the crowd's last complete line counts some of each kind of work."""
    lines = output[: output.rfind("\n") + 1].splitlines()
    return bool(lines) and _enough(json.loads(lines[-1])["done"])


def assert_serves(full: Full, seconds: float) -> None:
    process = full.up(LIMIT)
    before = private(process)
    found = full.load(process, seconds)
    assert full.limit is not None
    memory = [round(number / 1e6) for number in (before, private(process), full.limit.most)]
    print("MB of memory at first, at last, and with caches at most:", *memory, json.dumps(found))
    assert full.limit.kills == 0
    assert full.limit.most <= LIMIT
    assert found["lost"] == []
    assert found["agents"] == MACHINES
    assert found["done"]["discovers"] > 100 * seconds
    assert _enough(found["done"]), found
    assert "Traceback" not in process.err, process.err[process.err.index("Traceback") - 500 :][:4000]
    full.ready(process)
    assert process.terminate() == 0


def test_up_serves_all_clients_with_512_mb(full: Full) -> None:
    assert_serves(full, 4)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_up_serves_all_clients_with_512_mb_for_minutes(full: Full) -> None:
    assert_serves(full, SECONDS)
