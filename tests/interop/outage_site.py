"""A cluster in namespaces, of which parts go away: one API, one controller, two nodes with an edge and a server each.

"edge": rack0 172.31.77.1, API and controller --- node1 172.31.77.2, node2 172.31.77.3: an edge and a server each
                                              --- m1 172.31.77.50, m2 172.31.77.51: machines
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, Process, ip
from tests.waiting import wait_until

NODES = {"node1": "172.31.77.2", "node2": "172.31.77.3"}
MACS = {"m1": "52:54:00:77:00:01", "m2": "52:54:00:77:00:02"}
ADDRESSES = {"m1": "172.31.77.50", "m2": "172.31.77.51"}
VIP = "172.31.77.250"
_GUIDE = Path(__file__).parents[2] / "docs" / "cluster.md"
WITH_US = ["setpriv", "--pdeathsig", "KILL"]


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
        self._script = self.directory / "udhcpc"
        self._script.write_text('#!/bin/sh\nenv > "$LEARNED.$1"\n')
        self._script.chmod(0o755)
        self.kubeconfig = self.directory / "nodes.kubeconfig"

    # --- the operator's side ---

    def come(self) -> None:
        """The API and the controller."""
        data = self.directory / "api"
        options = ["--data-dir", data, "--api-address", ADDRESS]
        self.api = self.tinkedge(IN_EDGE, "apiserver", *options)
        wait_until(lambda: "ready: " in self.api.err, lambda: self.api.err)
        self.kubectl = Kubectl(self, data / "kubeconfig")
        if not self.kubeconfig.exists():
            url = ["--server", f"https://{ADDRESS}:6443", "--role", "cluster-admin", "--out", self.kubeconfig]
            made = self.tinkedge(IN_EDGE, "kubeconfig", "--user", "nodes", "--data-dir", data, *url)
            assert made.status() == 0, made.err
        self.controller = self.tinkedge(IN_EDGE, "controller", "--kubeconfig", data / "kubeconfig", "--no-leader-elect")
        wait_until(lambda: "ready: " in self.controller.err, lambda: self.controller.err)

    def go(self) -> None:
        for process in (self.controller, self.api):
            process.popen.kill()
            process.popen.wait()

    def upstream(self, kernel: str) -> None:
        """Where OSIEs' files are."""
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
        files = [
            "--data-dir",
            self.directory / f"data-{node}",
            "--ipxe-dir",
            self.ipxe,
            "--kubeconfig",
            self.kubeconfig,
        ]
        started = self.tinkedge(node, "edge", "--interface", "eth0", *files, *options)
        wait_until(lambda: re.search("(ready|started): ", started.err), lambda: started.err)
        return started

    def server(self, node: str, *options: str) -> Process:
        command = ["server", "--interface", "eth0", "--kubeconfig", self.kubeconfig, *options]
        started = self.tinkedge(node, *command)
        wait_until(lambda: re.search("(ready|started): ", started.err), lambda: started.err)
        return started

    def readiness(self, node: str, port: int) -> str:
        return self.run(node, "curl", "-s", f"http://127.0.0.1:{port}/readyz").out.strip()

    def register(self, machine: str) -> None:
        dhcp = {"ip": ADDRESSES[machine], "netmask": "255.255.255.0", "gateway": ADDRESS}
        spec: dict[str, Any] = {"networkInterfaces": {MACS[machine]: {"dhcp": dhcp}}, "osie": {"name": "lab"}}
        spec["instance"] = {"userdata": f"I am {machine}"}
        self.apply("Hardware", machine, spec)

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        obj = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.kubectl.apply(json.dumps(obj))

    def prepare(self) -> None:
        """Two machines, and a Workflow for the first: its actions note that they run, the first waits for a word."""
        self.apply("OSIE", "lab", {"kernelUrl": f"http://{ADDRESS}/kernel", "initrdUrl": f"http://{ADDRESS}/initrd"})
        for machine in MACS:
            self.register(machine)
        steps = [f"while [ ! -e {self.word} ]; do sleep 0.1; done", "true", "true"]
        actions = [
            {"name": f"a{at}", "image": "none", "cmd": "/bin/sh", "args": ["-c", f"echo {at} >> {self.runs}; {step}"]}
            for at, step in enumerate(steps)
        ]
        self.apply("Template", "t", {"actions": actions})
        self.apply("Workflow", "w", {"hardwareRef": {"name": "m1"}, "templateRef": {"name": "t"}})

    @property
    def learns(self) -> Path:
        """udhcpc's script, which writes down what it has learned."""
        return self._script

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def word(self) -> Path:
        return self.directory / "go"

    def ran(self) -> list[str]:
        return self.runs.read_text().split() if self.runs.exists() else []

    def state(self) -> str:
        return self.kubectl("get", "workflow", "w", "-o", "jsonpath={.status.state}")

    # --- the machines' side ---

    def agent(self, server: str) -> Process:
        options = ["--agent-id", MACS["m1"], "--server", server, "--runtime", "process"]
        return self.tinkedge("m1", "agent", *options, "--state-dir", self.directory / "agent")

    def lease(self, machine: str) -> dict[str, str]:
        """What DHCP told the machine at its first try, or its first retry; nothing if nobody answered."""
        learned = self.directory / secrets.token_hex(4)
        client = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "2", "-T", "3"]
        if self.start(machine, *client, "-s", self._script, LEARNED=str(learned)).status() != 0:
            return {}
        return dict(line.split("=", 1) for line in Path(f"{learned}.bound").read_text().splitlines() if "=" in line)

    def fetch(self, machine: str, edge: str, path: str) -> str:
        return self.run(machine, "curl", "-sf", "--max-time", "5", f"http://{edge}:7080{path}").out

    def keepalived(self, node: str, role: str, priority: int) -> Process:
        """The real one, with what docs/cluster.md has: it brings the floating address to one of the nodes."""
        (text,) = re.findall(r"^    (vrrp_instance .*?\n    \})$", _GUIDE.read_text(), re.DOTALL | re.MULTILINE)
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
        """The host is gone: nobody hears of its connections' end."""
        ip("-n", self.namespaces[node], "link", "set", "eth0", "down")
