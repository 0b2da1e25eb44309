"""`tinkedge move` from the embedded API to another one and back, and a backup restored where nothing was.

While a machine works, with an action that runs:

    tinkedge up with its own API  ->  tinkedge apiserver elsewhere, and tinkedge up for it  ->  the first again

The services for the second API are started where those of the first were, as docs/api.md says.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import peer
from tests.api import serving
from tests.interop.rack import TINKEDGE, Process, clean_environment, tinkedge
from tests.ports import free_ports
from tests.support import objects
from tests.unit.move.test_move import paused, populate, workflows
from tests.waiting import wait_until
from tink.api.crds import generate
from tink.kube.client import KubeClient

MAC = "52:54:00:00:00:01"
ACTIONS = ("one", "two", "three")


def run(*words: str | Path) -> str:
    command = [*TINKEDGE, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def ran(*words: str | Path) -> str:
    return await asyncio.to_thread(run, *words)


class Site:
    """The processes of a site on one host; all listen on loopback."""

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
        assert "handed over" in run(*words)

    def kubectl(self, side: str, *words: str, stdin: str = "") -> str:
        which = [f"--kubeconfig={self.kubeconfig(side)}", f"--cache-dir={self._directory / 'cache'}"]
        done = subprocess.run(["kubectl", *which, *words], input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self, side: str) -> list[str]:
        """Return the states of the Workflow and of its actions."""
        path = "jsonpath={.status.state} {.status.actions[*].state}"
        return self.kubectl(side, "get", "workflow", "run", "-o", path).split()

    def begun(self) -> list[str]:
        """Return the actions that the machine has begun, each as often as it was begun."""
        return self.runs.read_text().split() if self.runs.exists() else []

    def let_end(self, action: str) -> None:
        (self._directory / f"end-{action}").touch()

    def manifests(self) -> str:
        def action(name: str) -> dict[str, Any]:
            wait = f"until test -e {self._directory}/end-{name}; do sleep 0.05; done"
            return {"name": name, "image": "i", "cmd": "/bin/sh", "args": ["-c", f"echo {name} >>{self.runs}; {wait}"]}

        actions = [action(name) for name in ACTIONS]
        made = [
            objects.hardware("machine", MAC, "127.0.0.1", dhcp={"netmask": "255.0.0.0"}),
            objects.template(*actions, name="steps"),
            objects.workflow("run", hardware="machine", template="steps"),
        ]
        return yaml.safe_dump_all(made)

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
    # No server accepts the agent's events meanwhile; the agent stores them until one does.
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


@pytest.mark.soak  # it builds that at the first time, in some minutes
@pytest.mark.timeout(0)
async def test_objects_go_to_a_real_cluster_and_back(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (api, client):
        made = await populate(client)
        with peer.running() as kubeconfig:
            cluster = await KubeClient.connect(kubeconfig)
            try:
                to = ("--data-dir", tmp_path / "a", "--to", kubeconfig)
                assert "nothing was changed" in await ran("move", *to, "--install-crds", "--dry-run")
                assert "handed over" in await ran("move", *to, "--install-crds")
                there = await workflows(cluster)
                assert there["run"]["status"]["id"] == made["run"]["metadata"]["uid"]
                assert not any(map(paused, there.values()))
                assert all(map(paused, (await workflows(client)).values()))
                await ran("move", "--from", kubeconfig, "--to", api.kubeconfig, "--delete-source")
                assert await workflows(cluster) == {}
                assert not any(map(paused, (await workflows(client)).values()))
            finally:
                await cluster.close()


async def test_backup_of_a_server_that_runs_is_served_elsewhere(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, client):
        before = await populate(client)
        await ran("backup", tmp_path / "file", "--data-dir", tmp_path / "a")
    output = await ran("restore", tmp_path / "file", "--data-dir", tmp_path / "b")
    assert "default/wait (Pending)" in output
    async with serving(tmp_path / "b") as (_, client):
        after = await workflows(client)
        assert after["run"]["status"] == before["run"]["status"]
        assert int(after["run"]["metadata"]["resourceVersion"]) < int(after["wait"]["metadata"]["resourceVersion"])
        held = {
            name for name, each in after.items() if "tinkerbell.org/hold" in each["metadata"].get("annotations", {})
        }
        assert held == {"wait", "new"}
