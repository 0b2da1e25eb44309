"""Service during an outage of a central part: the API for an hour, or the host with the servers' floating address.

"edge": rack0 172.31.77.1, API and controller --- node1 172.31.77.2, node2 172.31.77.3: an edge and a server each
                                              --- m1 172.31.77.50, m2 172.31.77.51: machines

In `make soak`, the API is away for an hour, or OUTAGE_SECONDS; in `make test`, only until the checks are done.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, Process, ip, manifest
from tests.waiting import wait_until

pytestmark = pytest.mark.long

OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "3600"))
EVERY_SECONDS = 20.0
"""Number of boots of each machine during the outage."""
KERNEL = "a kernel"


NODES = {"node1": "172.31.77.2", "node2": "172.31.77.3"}
MACS = {"m1": "52:54:00:77:00:01", "m2": "52:54:00:77:00:02"}
ADDRESSES = {"m1": "172.31.77.50", "m2": "172.31.77.51"}
VIP = "172.31.77.250"
GUIDE = Path(__file__).parents[2] / "docs" / "cluster.md"
WITH_US = ["setpriv", "--pdeathsig", "KILL"]


def killed(*processes: Process) -> None:
    for process in processes:
        process.popen.kill()
        process.status()


class Site(Namespaces):
    """A cluster of one API, one controller and two nodes."""

    def build(self) -> None:
        self.network("rack0", {**{node: f"52:54:00:77:01:0{at}" for at, node in enumerate(NODES)}, **MACS})
        for node, address in NODES.items():
            self.address(node, f"{address}/24")
        for machine, address in ADDRESSES.items():
            self.address(machine, f"{address}/24")
        self.ipxe = self.directory / "ipxe"
        self.ipxe.mkdir()
        (self.ipxe / "snponly.efi").write_bytes(b"MZ")
        self.kubeconfig = self.directory / "nodes.kubeconfig"

    # --- the operator's side ---

    def come(self) -> None:
        """Start the API and the controller."""
        data = self.directory / "api"
        options = ["--data-dir", data, "--api-address", ADDRESS]
        self.api = self.started(self.tinkedge(IN_EDGE, "apiserver", *options))
        self.kubectl = Kubectl(self, data / "kubeconfig")
        if not self.kubeconfig.exists():
            url = ["--server", f"https://{ADDRESS}:6443", "--role", "cluster-admin", "--out", self.kubeconfig]
            result = self.tinkedge(IN_EDGE, "kubeconfig", "--user", "nodes", "--data-dir", data, *url)
            assert result.status() == 0, result.err
        alone = ["--kubeconfig", data / "kubeconfig", "--no-leader-elect"]
        self.controller = self.started(self.tinkedge(IN_EDGE, "controller", *alone))

    def go(self) -> None:
        killed(self.controller, self.api)

    def upstream(self, kernel: str) -> None:
        """Start the upstream server of the OSIEs' files."""
        files = self.directory / "upstream"
        files.mkdir()
        for name in ("kernel", "initrd"):
            (files / name).write_text(kernel)
        command = ["-m", "http.server", "--bind", ADDRESS, "--directory", files, "80"]
        upstream = self.start(IN_EDGE, *WITH_US, sys.executable, *command)
        wait_until(lambda: self.run(IN_EDGE, "curl", "-sf", f"http://{ADDRESS}/").popen.returncode == 0, upstream.err)

    def secrets(self, node: str) -> Iterator[Path]:
        """Those that an edge keeps; none of them can be read."""
        for file in (self.directory / f"data-{node}" / "checkpoint" / "secrets").glob("*"):
            assert b"I am" not in file.read_bytes()
            yield file

    def edge(self, node: str, *options: str) -> Process:
        files = ["--data-dir", self.directory / f"data-{node}", "--ipxe-dir", self.ipxe]
        words = ["--interface", "eth0", "--kubeconfig", self.kubeconfig, *files, *options]
        return self.started(self.tinkedge(node, "edge", *words))

    def server(self, node: str, *options: str) -> Process:
        words = ["--interface", "eth0", "--kubeconfig", self.kubeconfig, *options]
        return self.started(self.tinkedge(node, "server", *words))

    def readiness(self, node: str, port: int) -> str:
        return self.curl(node, f"http://127.0.0.1:{port}/readyz").strip()

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.kubectl.apply(manifest(kind, name, spec))

    def prepare(self) -> None:
        """Create two machines, and a Workflow for one. Its actions record their run; the first waits for a file."""
        self.apply("OSIE", "lab", {"kernelUrl": f"http://{ADDRESS}/kernel", "initrdUrl": f"http://{ADDRESS}/initrd"})
        for machine, mac in MACS.items():
            dhcp = {"ip": ADDRESSES[machine], "netmask": "255.255.255.0", "gateway": ADDRESS}
            spec: dict[str, Any] = {"networkInterfaces": {mac: {"dhcp": dhcp}}, "osie": {"name": "lab"}}
            self.apply("Hardware", machine, spec | {"instance": {"userdata": f"I am {machine}"}})
        steps = [f"while [ ! -e {self.word} ]; do sleep 0.1; done", "true", "true"]
        actions = [
            {"name": f"a{at}", "image": "none", "cmd": "/bin/sh", "args": ["-c", f"echo {at} >> {self.runs}; {step}"]}
            for at, step in enumerate(steps)
        ]
        self.apply("Template", "t", {"actions": actions})
        self.apply("Workflow", "w", {"hardwareRef": {"name": "m1"}, "templateRef": {"name": "t"}})

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def word(self) -> Path:
        return self.directory / "go"

    def ran(self) -> list[str]:
        return self.runs.read_text().split() if self.runs.exists() else []

    def state(self) -> str:
        return self.kubectl.state("w")

    # --- the machines' side ---

    def agent(self, server: str) -> Process:
        options = ["--agent-id", MACS["m1"], "--server", server, "--runtime", "process"]
        return self.tinkedge("m1", "agent", *options, "--state-dir", self.directory / "agent")

    def lease(self, machine: str) -> dict[str, str]:
        """Request a lease with one retry; return it as the variables of udhcpc, empty if no server answered."""
        return self.udhcpc(machine, tries=2, seconds=3)

    def fetch(self, machine: str, edge: str, path: str) -> str:
        return self.curl(machine, f"http://{edge}:7080{path}", "-f")

    def keepalived(self, node: str, role: str, priority: int) -> Process:
        """Start keepalived as configured in docs/cluster.md; it moves the floating address between the nodes."""
        (text,) = re.findall(r"^    (vrrp_instance .*?\n    \})$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
        changes = {"eth1": "eth0", "10.1.0.250": VIP, "state MASTER": f"state {role}"}
        for word, other in {**changes, "priority 100": f"priority {priority}"}.items():
            assert word in text, f"docs/cluster.md: {word}"
            text = text.replace(word, other)
        file = self.directory / f"keepalived-{node}.conf"
        file.write_text(text)
        pids = [f"--{which}={self.directory}/{node}-{which}" for which in ("pid", "vrrp_pid")]
        return self.start(node, *WITH_US, "keepalived", "-n", "-l", "-P", "-f", file, *pids)

    def has_the_address(self, node: str) -> bool:
        return VIP in self.run(node, "ip", "-4", "-o", "address", "show", "dev", "eth0").out

    def die(self, node: str) -> None:
        """Take the host off the network, so that its peers do not learn that their connections ended."""
        ip("-n", self.namespaces[node], "link", "set", "eth0", "down")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        site.come()
        yield site


def has_checkpoint(site: Site, node: str) -> bool:
    path = site.directory / f"data-{node}" / "checkpoint" / "objects.db"
    if not path.exists():
        return False
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            collections = {name for (name,) in database.execute("SELECT DISTINCT collection FROM object")}
            known = database.execute("SELECT value FROM meta WHERE name = 'known'").fetchone()
        except sqlite3.OperationalError:  # the edge has created the file, but not its tables
            return False
    return collections == {"hardware", "osies", "workflows"} and known not in (None, ("0",))


def test_while_the_api_is_away_machines_boot_from_a_restarted_edge_and_dispatched_actions_run_once(
    site: Site,
) -> None:
    site.prepare()
    edge, server = site.edge("node1"), site.server("node1")
    agent = site.agent(f"{NODES['node1']}:42113")
    wait_until(lambda: site.ran() == ["0"], lambda: agent.err)
    wait_until(lambda: site.state() == "Running")
    wait_until(lambda: has_checkpoint(site, "node1"), lambda: edge.err)
    site.go()
    killed(edge, server)
    edge = site.edge("node1", "--netboot-when", "workflow")
    server = site.server("node1")
    message = "serving from what was known at 20"
    assert site.readiness("node1", 7081).startswith(f"ok: {message}"), edge.err
    wait_until(lambda: message in edge.err, lambda: edge.err)
    assert "has not" in site.readiness("node1", 7092), "agents are not served, and the server waits"
    metrics = site.curl("node1", "http://127.0.0.1:7081/metrics")
    known = re.search(r"^tinkedge_api_known_timestamp_seconds (\S+)$", metrics, re.MULTILINE)
    assert known
    assert time.time() - 3600 < float(known[1]) < time.time()
    # A registered machine boots, also in the middle of its Workflow.
    for machine in MACS:
        assert site.lease(machine)["ip"] == ADDRESSES[machine]
    script = site.fetch("m1", NODES["node1"], f"/ipxe/script/{MACS['m1']}/auto.ipxe")
    assert "kernel" in script
    assert site.fetch("m2", NODES["node1"], "/latest/user-data") == "I am m2"
    # For an unknown machine, the log notes that the edge's data may be old.
    site.add("stranger")
    site.card("stranger", "eth0", "02:54:00:77:00:09", "rack0")
    assert site.udhcpc("stranger", tries=1) == {}
    old = "Hardware objects known here, which may be out of date: the Kubernetes API has not answered since 20"
    wait_until(lambda: old in edge.err, lambda: edge.err[-2000:])
    # The agent runs all its actions and stores the events on disk, although it is killed before it could send them.
    site.word.touch()
    wait_until(lambda: site.ran() == ["0", "1", "2"], lambda: agent.err)
    wait_until(lambda: re.search(r"workflow \S+: Succeeded\n", agent.err), lambda: agent.err)
    killed(agent)
    agent = site.agent(f"{NODES['node1']}:42113")
    site.come()
    wait_until(lambda: site.state() in ("Succeeded", "Failed"), lambda: agent.err + server.err)
    assert site.state() == "Succeeded", agent.err
    assert site.ran() == ["0", "1", "2"], "nothing runs twice"
    wait_until(lambda: site.readiness("node1", 7081) == "ok", lambda: edge.err)


def test_agents_and_dhcp_go_on_with_the_host_that_takes_the_address(site: Site) -> None:
    site.prepare()
    edges = [site.edge(node, "--grpc-authority", f"{VIP}:42113") for node in NODES]
    servers = {node: site.server(node, "--grpc-address", VIP) for node in NODES}
    assert f"ok: {VIP} is not here" in site.readiness("node1", 7092)
    site.keepalived("node1", "MASTER", 100)
    site.keepalived("node2", "BACKUP", 90)
    wait_until(lambda: f"listening on {VIP}:42113" in servers["node1"].err, lambda: servers["node1"].err)
    agent = site.agent(f"{VIP}:42113")
    wait_until(lambda: site.ran() == ["0"], lambda: agent.err)
    wait_until(lambda: "keepalive" in site.run("m1", "ss", "-Htno", "dport", "=", ":42113").out)
    begin = time.monotonic()
    site.die("node1")
    assert site.lease("m2")["serverid"] == NODES["node2"], "".join(edge.err for edge in edges)
    wait_until(lambda: agent.err.count("connected to the server") == 2, lambda: agent.err)
    print(f"the agent was back after {time.monotonic() - begin:.1f} s")
    assert site.has_the_address("node2")
    site.word.touch()
    wait_until(lambda: site.state() == "Succeeded", lambda: agent.err + servers["node2"].err)
    assert site.ran() == ["0", "1", "2"]
    assert site.readiness("node2", 7092) == "ok"


class Outage:
    """Repeated boots of both machines while the API is away."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._began = time.monotonic()
        self.boots = 0
        self.failed: list[str] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def lasts(self, seconds: float) -> None:
        """Wait until the outage has lasted `seconds`."""
        while self.seconds < seconds:
            for machine in MACS:
                self.failed += [f"{self.seconds:.0f} s: {missing}" for missing in missed(self._site, machine)]
                self.boots += 1
            time.sleep(min(EVERY_SECONDS, OUTAGE_SECONDS / 10))


def missed(site: Site, machine: str) -> list[str]:
    """Return the parts of its boot that a machine does not receive."""
    found = {
        "lease": (site.lease(machine).get("ip"), ADDRESSES[machine]),
        "kernel": (site.fetch(machine, NODES["node1"], "/osie/lab/kernel"), KERNEL),
        "user-data": (site.fetch(machine, NODES["node1"], "/latest/user-data"), f"I am {machine}"),
    }
    missing = [f"{machine}: {what}: {got!r}" for what, (got, right) in found.items() if got != right]
    script = site.fetch(machine, NODES["node1"], f"/ipxe/script/{MACS[machine]}/auto.ipxe")
    return missing if "/osie/lab/kernel" in script else [*missing, f"{machine}: script: {script!r}"]


@pytest.mark.soak
@pytest.mark.timeout(2 * OUTAGE_SECONDS + 600)
def test_an_hour_without_the_api_and_a_restart_of_the_edge_in_it(site: Site) -> None:
    site.upstream(KERNEL)
    site.prepare()
    site.kubectl("create", "secret", "generic", "hush", "--from-literal=userData=I am m2")
    site.kubectl("annotate", "hardware", "m2", "tinkerbell.org/userdata-secret=hush")
    first, server = site.edge("node1", "--checkpoint-secrets"), site.server("node1")
    before = site.agent(f"{NODES['node1']}:42113")
    wait_until(lambda: site.ran() == ["0"] and site.state() == "Running", lambda: before.err)
    wait_until(lambda: has_checkpoint(site, "node1") and len(list(site.secrets("node1"))) == 1, lambda: first.err)
    wait_until(lambda: not [missing for machine in MACS for missing in missed(site, machine)], lambda: first.err)
    site.go()
    outage = Outage(site)
    outage.lasts(OUTAGE_SECONDS / 2)
    assert outage.failed == [], first.err
    killed(first)
    edge = site.edge("node1", "--checkpoint-secrets")
    assert site.readiness("node1", 7081).startswith("ok: serving from what was known at 20"), edge.err
    outage.lasts(OUTAGE_SECONDS * 3 / 4)
    site.word.touch()
    wait_until(lambda: re.search(r"workflow \S+: Succeeded\n", before.err), lambda: before.err)
    killed(before)
    agent = site.agent(f"{NODES['node1']}:42113")
    outage.lasts(OUTAGE_SECONDS)
    away = outage.seconds
    assert outage.failed == [], edge.err
    site.come()
    wait_until(lambda: site.state() in ("Succeeded", "Failed"), lambda: agent.err + server.err)
    back = outage.seconds - away
    assert site.state() == "Succeeded", agent.err
    assert site.ran() == ["0", "1", "2"], "nothing runs twice"
    for port in (7081, 7092):
        wait_until(lambda: site.readiness("node1", port) == "ok", lambda: edge.err + server.err)  # noqa: B023 - at once
    logs = [len(process.err) for process in (first, edge, server, before, agent)]
    sys.stderr.write(
        f"\nthe API was away for {away:.0f} s: {outage.boots} boots, none failed; the Workflow Succeeded {back:.1f} s "
        f"after the API began to start; characters of logs: edge {logs[0]} + {logs[1]}, server {logs[2]}, "
        f"agent {logs[3]} + {logs[4]}\n"
    )
