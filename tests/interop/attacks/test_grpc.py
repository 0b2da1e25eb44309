"""Attacks on the gRPC port of a running `tinkedge up`, and how an honest agent is served meanwhile.

During an attack, the server must serve connected agents and accept new ones. Memory grows by less than 100 MB and
returns to normal. The server disconnects attackers and logs their addresses. Before there were these limits, one
connection that cancelled its requests at once (3 MB in 6 s) made the edge grow from 149 to 2,359 MB, and one in three
new agents was refused.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.interop.authority import Authority
from tests.interop.rack import ADDRESS, IN_EDGE, Process, ip
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, boots_lab, running
from tests.waiting import wait_until

MB_GROWN = 100
MB_KEPT = 50
METRICS = "http://127.0.0.1:7081/metrics"
PORT = 42113
SERVER = "edge.run.server_process"


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has ended."""
    return sum(int(kilobytes) / 1000 for kilobytes in re.findall(r"VmRSS:\s+(\d+)", _read(pid, "status")))


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class Outcome:
    """The result of an attack: memory in MB (before, maximum, and afterwards), and the service of the honest agent."""

    before: float
    peak: float
    after: float
    cpu: float
    """CPU seconds of the edge for each second."""
    calls: dict[str, float]
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
    """An edge with the machines "near", which has the honest agent, and "stranger", the attacker."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.parent = edge.process.popen.pid
        self._addresses = 0
        ip("-n", edge.namespaces[IN_EDGE], "route", "add", "172.31.78.0/24", "dev", "rack0")
        edge.register("near", ADDRESSES["near"])
        for name in ("near", "stranger"):
            edge.machine(name, address=ADDRESSES[name])

    def attackers(self, count: int) -> list[str]:
        """Add addresses that were not used for an attack yet, and return them."""
        self._addresses += count
        addresses = [f"172.31.78.{number + 1}" for number in range(self._addresses - count, self._addresses)]
        for address in addresses:
            ip("-n", self.edge.namespaces["stranger"], "address", "add", f"{address}/16", "dev", "eth0")
        return addresses

    def servers(self) -> list[int]:
        """Return the processes of the gRPC server; none during its restart."""
        children = Path(f"/proc/{self.parent}/task/{self.parent}/children").read_text().split()
        return [int(pid) for pid in children if SERVER in _read(int(pid), "cmdline")]

    def connections(self) -> int:
        """Return the number of open files of the gRPC server."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.servers())

    def memory(self) -> float:
        """The resident memory of the edge and its gRPC server in MB."""
        return sum(map(memory_of, (self.parent, *self.servers())))

    def cpu(self) -> float:
        """Return the CPU seconds of the edge and its gRPC server so far."""
        stats = [_read(pid, "stat").rpartition(")")[2].split() for pid in (self.parent, *self.servers())]
        return sum((int(stat[11]) + int(stat[12])) / 100 for stat in stats if stat)

    def attack(self, kind: str, seconds: float, **options: Any) -> Process:
        settings = json.dumps({"kind": kind, "address": ADDRESS, "port": PORT, "seconds": seconds, **options})
        return self.edge.start("stranger", sys.executable, "-m", "tests.interop.attacks.grpc_attacker", settings)

    def honest(self, seconds: float, **options: Any) -> Process:
        """Start an honest agent and wait until its command stream is open."""
        settings = {"target": f"{ADDRESS}:{PORT}", "agent_id": MACS["near"], "seconds": seconds, **options}
        process = self.edge.start(
            "near", sys.executable, "-m", "tests.interop.attacks.grpc_honest", json.dumps(settings)
        )
        wait_until(lambda: "open" in process.out or process.popen.poll() is not None, lambda: process.err)
        assert process.popen.poll() is None, process.err
        return process

    def endure(
        self, kind: str, seconds: float, *, settle: float = 0.2, agent: dict[str, Any] | None = None, **options: Any
    ) -> Outcome:
        """Attack for `seconds`, while the honest agent works; return the outcome."""
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
    """Processes that are started in this context may open `soft` files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard or before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("attacked")) as edge:
        yield Site(edge)


WITHIN = 5.0
"""Seconds, beside all other tests: an agent that is shut out waits at least ten."""


def assert_serves(outcome: Outcome) -> None:
    """Check that the server answered all calls of the honest agent in time, and most new connections."""
    assert outcome.calls["refused"] == 0, outcome
    assert outcome.connected["refused"] <= max(1, outcome.connected["count"] // 10), outcome
    assert outcome.breaks == 0, outcome
    assert outcome.calls["median"] < WITHIN, outcome
    assert outcome.connected["median"] < WITHIN, outcome


def assert_memory_is_bounded(site: Site, outcome: Outcome, grown: float = MB_GROWN, kept: float = MB_KEPT) -> None:
    assert outcome.grown < grown, outcome
    wait_until(lambda: site.memory() - outcome.before < kept, lambda: (site.memory(), outcome))


def test_address_that_attacks_repeatedly_is_blocked(site: Site) -> None:
    attacker = site.attackers(1)
    outcome = site.endure("rapid_reset", 2, connections=20, local=attacker)
    assert_serves(outcome)
    assert_memory_is_bounded(site, outcome)
    wait_until(lambda: f"no new connections from {attacker[0]}/32 for a while" in site.edge.process.err)
    assert outcome.attack["refused"] > 0


OLDER = ["contexts", "reports", "unended_polls"]
"""Attacks on the methods of older agents, except `polls`, which is with the others."""
FLOODS = ["rapid_reset", "polls", "reset_after_message", "calls", "unknown_method", "continuations"]
FLOODS += ["pings", "settings", "windows"]
HELD = ["unended", "watches", "reflections", "outputs", "slow_bodies", "metadata", "indexed_bomb", "empty_data"]


def test_floods_of_every_kind_at_once_are_disconnected_and_logged_once(site: Site) -> None:
    (attacker,) = site.attackers(1)
    others = {kind: site.attack(kind, 6, local=site.attackers(1)) for kind in FLOODS[1:]}
    outcome = site.endure(FLOODS[0], 2, local=[attacker])
    assert_serves(outcome)
    assert_memory_is_bounded(site, outcome)
    assert outcome.attack["closed"] >= 1
    wait_until(lambda: re.search(rf"{attacker}: \d+ connections ended: ", site.edge.process.err))
    assert site.edge.process.err.count(f"{attacker}: ") <= 4, "it is not logged each time"
    for kind, attack in others.items():
        assert attack.status() == 0, attack.err
        assert json.loads(attack.out)["closed"] >= 1, kind


def test_unfinished_calls_block_no_other_client(site: Site) -> None:
    others = [site.attack(kind, 2, local=site.attackers(1), connections=5) for kind in HELD[1:]]
    outcome = site.endure(HELD[0], 2, local=site.attackers(1), connections=5)
    assert_serves(outcome)
    assert_memory_is_bounded(site, outcome)
    assert all(attack.status() == 0 for attack in others)


def test_address_that_reconnects_continuously_is_blocked(site: Site) -> None:
    attacker = site.attackers(1)
    outcome = site.endure("calls", 3, connections=3, churn=True, local=attacker)
    assert outcome.calls["refused"] == 0, outcome
    assert outcome.breaks == 0, outcome
    # Up to 14,000 connections arrive before the address is blocked, depending on the machine's speed.
    assert_memory_is_bounded(site, outcome, grown=200, kept=130)
    wait_until(lambda: f"no new connections from {attacker[0]}/32 for a while" in site.edge.process.err)


# --- memory -----------------------------------------------------------------------------------------------------------

LIMIT_MB = 400
WORKFLOW = """
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: commands}
spec:
  actions:
    - {name: write, image: none, cmd: /bin/sh, args: [-c, "echo done > {{ .Params.file }}"]}
---
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: run}
spec:
  hardwareRef: {name: near}
  templateRef: {name: commands}
  templateParams: {file: FILE}
"""


def everything_but_agents_is_served(edge: Edge) -> None:
    """Check that DHCP, HTTP and the API each answer once."""
    assert edge.udhcpc("near").get("ip") == ADDRESSES["near"]
    assert boots_lab(edge.script("near"))
    assert "near" in edge.kubectl("get", "hardware", "-o", "name")


def a_workflow_succeeds(site: Site) -> None:
    edge, file = site.edge, site.edge.directory / "written"
    options = ["--agent-id", MACS["near"], "--server", f"{ADDRESS}:{PORT}", "--runtime", "process"]
    agent = edge.tinkedge("near", "agent", *options, "--state-dir", edge.directory / "agent")
    edge.kubectl.apply(WORKFLOW.replace("FILE", str(file)))
    wait_until(lambda: edge.kubectl.state("run") == "Succeeded", lambda: agent.err + edge.process.err, every=0.3)
    assert file.read_text() == "done\n"
    agent.end()


def test_header_bombs_do_not_affect_booting_machines(tmp_path: Path) -> None:
    """HPACK bombs: 84 kB of one connection became 300 MB and more of the process that serves all machines."""
    with running(tmp_path, "--grpc-memory", f"{LIMIT_MB}MB") as edge:
        site = Site(edge)
        everything_but_agents_is_served(edge)
        before, resting = memory_of(site.parent), site.attackers(3)
        attacks = [site.attack("resting_bomb", 240, local=[address], connections=5) for address in resting]
        attacks += [site.attack("resting_bomb", 240, local=[address], churn=True) for address in site.attackers(3)]
        peak, parent, rounds = 0.0, before, 0

        def are_kept_away() -> bool:
            nonlocal peak, parent, rounds
            everything_but_agents_is_served(edge)
            peak = max(peak, *map(memory_of, site.servers()), 0.0)
            parent, rounds = max(parent, memory_of(site.parent)), rounds + 1
            away = [f"no new connections from {address}/32 for a while" in edge.process.err for address in resting]
            return rounds > 5 and all(away)

        wait_until(are_kept_away, lambda: edge.process.err)
        assert {attack.popen.poll() for attack in attacks} == {None}, [attack.err for attack in attacks]
        for attack in attacks:
            attack.end()
        assert parent - before < 30, (before, parent)
        assert peak < 1.3 * LIMIT_MB, "its limit, and stacks of threads"
        a_workflow_succeeds(site)
        assert edge.process.err.count("hpack_encoder.cc") <= 20, "lines of gRPC's core, once a minute of each process"


def test_idle_connections_block_no_agent_and_a_killed_grpc_server_is_started_again(tmp_path: Path) -> None:
    with files(1024), running(tmp_path) as edge:
        site = Site(edge)
        (attacker,) = site.attackers(1)
        # With the default limit of 1,024 files, the server accepted only 768 connections.
        outcome = site.endure("idle", 3, connections=900, local=[attacker])
        assert_serves(outcome)
        assert outcome.attack["closed"] > 0
        assert site.connections() < 768
        why = rf"{attacker}: \d+ connections ended: \d+ connections of one address are the most"
        assert re.search(why, edge.process.err)

        (server,) = site.servers()
        os.kill(server, signal.SIGKILL)
        everything_but_agents_is_served(edge)
        wait_until(lambda: "agents are served again" in edge.process.err, lambda: edge.process.err)
        assert "the gRPC server's process ended by signal SIGKILL: it is started again" in edge.process.err
        metrics = edge.run(IN_EDGE, "curl", "-sf", METRICS).out
        assert "tinkedge_server_up 1.0" in metrics
        assert "tinkedge_server_restarts_total 1.0" in metrics
        wait_until(lambda: "tinkedge_agents_served 1.0" in edge.run(IN_EDGE, "curl", "-sf", METRICS).out)
        a_workflow_succeeds(site)
        os.kill(site.parent, signal.SIGKILL)
        wait_until(lambda: not edge.inside(IN_EDGE), "the gRPC server outlives its parent")


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_attackers_with_and_without_a_certificate_block_no_agent(tmp_path: Path) -> None:
    """Unfinished handshakes, short connections, and cancelled requests."""
    authority = Authority(tmp_path)
    chain, key = authority.sign("tls", x509.IPAddress(ipaddress.ip_address(ADDRESS)))
    tls = ["--grpc-tls-cert", chain, "--grpc-tls-key", key, "--grpc-client-ca", authority.file]

    def signed(name: str) -> dict[str, str]:
        certificate, key = authority.sign(name, x509.DNSName(name))
        return {"certificate": str(certificate), "key": str(key)}

    agent = {"ca": str(authority.file), **signed(MACS["near"].replace(":", "-"))}
    with running(tmp_path, "--agent-auth", "mtls", *tls) as edge:
        site = Site(edge)
        (certified,) = site.attackers(1)
        attacks = [
            site.attack("rapid_reset", 240, tls=True, local=[certified], **signed("stranger")),
            site.attack("half_handshake", 2, connections=600, local=site.attackers(1)),
            site.attack("preface", 2, connections=600, local=site.attackers(1)),
            site.attack("rapid_reset", 2, connections=2, tls=True, local=site.attackers(1)),
        ]
        outcome = site.endure("preface", 2, connections=3, churn=True, tls=True, local=site.attackers(1), agent=agent)
        assert_serves(outcome)
        assert_memory_is_bounded(site, outcome)
        assert {attack.status() for attack in attacks[1:]} == {0}
        wait_until(lambda: re.search(rf"{certified}: \d+ connections ended: ", edge.process.err))


# --- longer and larger attacks ----------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("connections", [1, 50])
@pytest.mark.parametrize("kind", [*FLOODS, *HELD, *OLDER])
def test_half_a_minute_of_one_attack(site: Site, kind: str, connections: int) -> None:
    outcome = site.endure(kind, 30, connections=connections, local=site.attackers(1))
    assert_serves(outcome)
    assert outcome.calls["p99"] < WITHIN, outcome
    assert outcome.connected["p99"] < WITHIN, outcome
    assert_memory_is_bounded(site, outcome)


@pytest.mark.soak
def test_fifteen_thousand_idle_connections_of_one_address(site: Site) -> None:
    outcome = site.endure("idle", 30, connections=15_000, local=site.attackers(1))
    assert_serves(outcome)
    assert outcome.connected["p99"] < WITHIN, outcome
    assert site.connections() < 2000


@pytest.mark.soak
def test_fifty_attacking_addresses_are_disconnected_one_by_one(site: Site) -> None:
    """The attack exceeds the documented limits: new agents may have to retry, but connected agents work."""
    outcome = site.endure("rapid_reset", 20, connections=100, local=site.attackers(50))
    assert outcome.calls["refused"] == 0, outcome
    assert outcome.breaks == 0, outcome
    assert_memory_is_bounded(site, outcome)
