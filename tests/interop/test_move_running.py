"""`tinkedge move` while a machine works: the real agent with an action that runs, over to another API and back.

    tinkedge up with its own API  ->  tinkedge apiserver elsewhere, and tinkedge up for it  ->  the first again

The services for the second API are started where those of the first were, as docs/api.md says.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.rack import TINKEDGE, Process, clean_environment, tinkedge
from tests.ports import free_ports
from tests.waiting import wait_until

MAC = "52:54:00:00:00:01"
ACTIONS = ("one", "two", "three")


class Site:
    """What runs on one host; everything listens on loopback."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[Process] = []
        self._api_ports = dict(zip(("here", "there"), free_ports(2), strict=True))
        server, http, admin = map(str, free_ports(3))
        self._server = f"127.0.0.1:{server}"
        self._where = ["--grpc-port", server, "--http-port", http, "--admin-port", admin, "--interface", "lo=127.0.0.1"]
        self.runs = directory / "runs"

    def data(self, side: str) -> Path:
        return self._directory / side

    def kubeconfig(self, side: str) -> Path:
        return self.data(side) / "kubeconfig"

    def start(self, *words: str | Path, ready: str = "ready: ") -> Process:
        process = tinkedge(self._directory, *words)
        self._processes.append(process)
        wait_until(lambda: ready in process.err, lambda: process.err)
        return process

    def api(self, side: str) -> Process:
        """The API alone."""
        return self.start("apiserver", "--data-dir", self.data(side), "--api-port", str(self._api_ports[side]))

    def up(self, side: str) -> Process:
        """All that machines and agents need, with that API: its own, or one that runs elsewhere."""
        api = ["--api-port", str(self._api_ports[side])]
        if side == "there":
            api = ["--kubeconfig", str(self.kubeconfig(side)), "--no-leader-elect"]
        # The keys that machines know are those of this host, whatever the API.
        return self.start(
            "up", "--data-dir", self.data("here"), *api, *self._where, "--disable", "dhcp", "--disable", "tftp"
        )

    def agent(self) -> Process:
        options = ["--agent-id", MAC, "--server", self._server, "--runtime", "process"]
        return self.start("agent", *options, "--state-dir", self._directory / "agent", ready="connected to the server")

    def move(self, source: str, target: str, *options: str) -> None:
        words = ["move", "--from", self.kubeconfig(source), "--to", self.kubeconfig(target), *options]
        done = subprocess.run(
            [*TINKEDGE, *map(str, words)],
            capture_output=True, text=True, check=False, env=clean_environment(),
        )  # fmt: skip
        assert "handed over" in done.stdout, done.stdout + done.stderr

    def kubectl(self, side: str, *words: str, stdin: str = "") -> str:
        which = [f"--kubeconfig={self.kubeconfig(side)}", f"--cache-dir={self._directory / 'cache'}"]
        done = subprocess.run(["kubectl", *which, *words], input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self, side: str) -> list[str]:
        """Of the Workflow, and of its actions."""
        path = "jsonpath={.status.state} {.status.actions[*].state}"
        return self.kubectl(side, "get", "workflow", "run", "-o", path).split()

    def begun(self) -> list[str]:
        """The actions that the machine has begun, each as often as it has."""
        return self.runs.read_text().split() if self.runs.exists() else []

    def let_end(self, action: str) -> None:
        (self._directory / f"end-{action}").touch()

    def manifests(self) -> str:
        def action(name: str) -> dict[str, Any]:
            wait = f"until test -e {self._directory}/end-{name}; do sleep 0.05; done"
            return {"name": name, "image": "i", "cmd": "/bin/sh", "args": ["-c", f"echo {name} >>{self.runs}; {wait}"]}

        interface = {"dhcp": {"ip": "127.0.0.1", "netmask": "255.0.0.0"}}
        specs = {
            ("Hardware", "machine"): {"networkInterfaces": {MAC: interface}},
            ("Template", "steps"): {"actions": [action(name) for name in ACTIONS]},
            ("Workflow", "run"): {"hardwareRef": {"name": "machine"}, "templateRef": {"name": "steps"}},
        }
        head = {"apiVersion": "tinkerbell.org/v1alpha2"}
        objects = [
            {**head, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
            for (kind, name), spec in specs.items()
        ]
        return yaml.safe_dump_all(objects)

    def end(self) -> None:
        for process in reversed(self._processes):
            process.end()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.end()


def test_machine_of_a_running_workflow_goes_on_across_a_move_and_back(site: Site) -> None:
    here = site.up("here")
    site.kubectl("here", "apply", "-f", "-", stdin=site.manifests())
    agent = site.agent()
    wait_until(lambda: site.begun() == ["one"], lambda: agent.err)
    wait_until(lambda: site.states("here") == ["Running", "Running", "Pending", "Pending"])

    there = site.api("there")
    site.move("here", "there", "--install-crds")
    # What the agent has to report meanwhile nobody takes from it; it has it until somebody may.
    site.let_end("one")
    wait_until(lambda: site.begun() == ["one", "two"], lambda: agent.err)
    assert here.terminate() == 0
    services = site.up("there")
    wait_until(lambda: site.states("there") == ["Running", "Succeeded", "Running", "Pending"], lambda: agent.err)

    here = site.api("here")
    assert site.states("here") == ["Running", "Running", "Pending", "Pending"], "it is as it was handed over"
    site.move("there", "here", "--delete-source")
    site.let_end("two")
    assert site.kubectl("there", "get", "workflows,hardware,templates", "-o", "name") == ""
    assert (services.terminate(), there.terminate(), here.terminate()) == (0, 0, 0)
    site.up("here")
    wait_until(lambda: site.states("here") == ["Running", "Succeeded", "Succeeded", "Running"], lambda: agent.err)
    site.let_end("three")
    wait_until(lambda: site.states("here") == ["Succeeded"] * 4, lambda: agent.err)
    assert site.begun() == list(ACTIONS), "no action ran twice"
    assert agent.popen.poll() is None, "the agent that began it has ended it"
