"""A whole edge under attack on its gRPC port: `tinkedge up`, an honest agent, and an attacker, each on a machine."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.rack import ADDRESS, IN_EDGE, Process, ip
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge
from tests.waiting import wait_until

PORT = 42113
SERVER = "edge.composition.server_process"


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has ended."""
    return sum(int(found) / 1000 for found in re.findall(r"VmRSS:\s+(\d+)", _read(pid, "status")))


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class Outcome:
    """What became of an attack: memory in MB (before, at most, and when it was over), and how the agent was served."""

    before: float
    peak: float
    after: float
    cpu: float
    """Processor seconds of the edge for each second."""
    asked: dict[str, float]
    connected: dict[str, float]
    breaks: int
    troubles: dict[str, int]
    attack: dict[str, int]

    @property
    def grown(self) -> float:
        return self.peak - self.before

    @property
    def kept(self) -> float:
        return self.after - self.before


class Site:
    """`edge` has the machines "near", which is honest, and "stranger", which is not."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.parent = edge.process.popen.pid
        self._addresses = 0
        ip("-n", edge.namespaces[IN_EDGE], "route", "add", "172.31.78.0/24", "dev", "rack0")
        edge.register("near", ADDRESSES["near"])
        for name in ("near", "stranger"):
            edge.machine(name, address=ADDRESSES[name])

    def attackers(self, count: int) -> list[str]:
        """So many addresses that nobody has attacked from yet, as long as there are any."""
        self._addresses += count
        made = [f"172.31.78.{number + 1}" for number in range(self._addresses - count, self._addresses)]
        for address in made:
            ip("-n", self.edge.namespaces["stranger"], "address", "add", f"{address}/16", "dev", "eth0")
        return made

    def servers(self) -> list[int]:
        """The processes of the gRPC server; none while it is replaced."""
        children = Path(f"/proc/{self.parent}/task/{self.parent}/children").read_text().split()
        return [int(pid) for pid in children if SERVER in _read(int(pid), "cmdline")]

    def connections(self) -> int:
        """The number of files that the gRPC server has open."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.servers())

    def memory(self) -> float:
        """The resident memory of the edge and its gRPC server in MB."""
        return sum(map(memory_of, (self.parent, *self.servers())))

    def cpu(self) -> float:
        """The processor seconds of both so far."""
        stats = [_read(pid, "stat").rpartition(")")[2].split() for pid in (self.parent, *self.servers())]
        return sum((int(stat[11]) + int(stat[12])) / 100 for stat in stats if stat)

    def attack(self, kind: str, seconds: float, **options: Any) -> Process:
        said = json.dumps({"kind": kind, "address": ADDRESS, "port": PORT, "seconds": seconds, **options})
        return self.edge.start("stranger", sys.executable, "-m", "tests.interop.attacks.grpc_attacker", said)

    def honest(self, seconds: float, **options: Any) -> Process:
        """An agent, whose command stream is open."""
        said = {"target": f"{ADDRESS}:{PORT}", "agent_id": MACS["near"], "seconds": seconds, **options}
        process = self.edge.start("near", sys.executable, "-m", "tests.interop.attacks.grpc_honest", json.dumps(said))
        wait_until(lambda: "open" in process.out or process.popen.poll() is not None, lambda: process.err)
        assert process.popen.poll() is None, process.err
        return process

    def endure(
        self, kind: str, seconds: float, *, settle: float = 0.2, agent: dict[str, Any] | None = None, **options: Any
    ) -> Outcome:
        """Attack for so long, while the honest agent works."""
        agent_process = self.honest(seconds, **(agent or {}))
        before, cpu, begun = self.memory(), self.cpu(), time.monotonic()
        attacker = self.attack(kind, seconds, **options)
        peak = before
        while agent_process.popen.poll() is None or attacker.popen.poll() is None:
            peak = max(peak, self.memory())
            time.sleep(0.02)
            assert time.monotonic() < begun + seconds + 60, attacker.err + agent_process.err
        used = (self.cpu() - cpu) / (time.monotonic() - begun)
        assert attacker.popen.returncode == 0, attacker.err
        assert agent_process.popen.returncode == 0, agent_process.err
        time.sleep(settle)
        measured = json.loads(agent_process.out.splitlines()[-1])
        return Outcome(before, peak, self.memory(), used, attack=json.loads(attacker.out), **measured)


@contextmanager
def files(soft: int, hard: int = 0) -> Iterator[None]:
    """What is started inside may open so many files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard or before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
