"""`tinkedge move` from the embedded API to a real kube-apiserver and back, and a backup restored where nothing was."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests import peer
from tests.api import serving
from tests.unit.move.test_move import paused, populate, workflows
from tink.api.crds import generate
from tink.kube.client import KubeClient


async def tinkedge(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "edge.cli", *map(str, arguments)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak  # it builds that at the first time, in some minutes
@pytest.mark.timeout(0)
async def test_objects_go_to_a_real_cluster_and_back(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (api, client):
        made = await populate(client)
        with peer.running() as kubeconfig:
            cluster = await KubeClient.connect(kubeconfig)
            try:
                to = ("--data-dir", tmp_path / "a", "--to", kubeconfig)
                assert "nothing was changed" in await tinkedge("move", *to, "--install-crds", "--dry-run")
                assert "handed over" in await tinkedge("move", *to, "--install-crds")
                there = await workflows(cluster)
                assert there["run"]["status"]["id"] == made["run"]["metadata"]["uid"]
                assert not any(map(paused, there.values()))
                assert all(map(paused, (await workflows(client)).values()))
                await tinkedge("move", "--from", kubeconfig, "--to", api.kubeconfig, "--delete-source")
                assert await workflows(cluster) == {}
                assert not any(map(paused, (await workflows(client)).values()))
            finally:
                await cluster.close()


async def test_backup_of_a_server_that_runs_is_served_elsewhere(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, client):
        before = await populate(client)
        await tinkedge("backup", tmp_path / "file", "--data-dir", tmp_path / "a")
    said = await tinkedge("restore", tmp_path / "file", "--data-dir", tmp_path / "b")
    assert "default/wait (Pending)" in said
    async with serving(tmp_path / "b") as (_, client):
        after = await workflows(client)
        assert after["run"]["status"] == before["run"]["status"]
        assert int(after["run"]["metadata"]["resourceVersion"]) < int(after["wait"]["metadata"]["resourceVersion"])
        held = {
            name for name, each in after.items() if "tinkerbell.org/hold" in each["metadata"].get("annotations", {})
        }
        assert held == {"wait", "new"}
