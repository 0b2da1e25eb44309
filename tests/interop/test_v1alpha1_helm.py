"""Helm installs and upgrades objects of Tinkerbell's v1alpha1 in the embedded API.

`make test-all` builds Helm 4, which applies on the server or merges itself, as Helm 3 does.
"""

from __future__ import annotations

import asyncio
import json
import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.interop.conftest import Kubectl, Ran
from tests.interop.test_v1alpha1_clients import (
    MAC,
    MACHINE,
    OLD_HARDWARE,
    OLD_TEMPLATES,
    OLD_WORKFLOWS,
    TEMPLATE,
    WORKFLOW,
    corpora,
    interface,
    new,
    old,
)
from tests.programs.build import built

pytestmark = pytest.mark.long

SECONDS: Final = 120
MODES: Final = {"server-side": "--server-side=true", "client-side": "--server-side=false"}
"""The two ways of Helm 4 to write. The second one is that of Helm 3."""
KINDS: Final = f"{OLD_HARDWARE},{OLD_TEMPLATES},{OLD_WORKFLOWS}"


@dataclass
class Release:
    """A Helm release `rack`, whose chart has these objects."""

    kubectl: Kubectl
    chart: Path
    mode: str

    def write(self, *objects: dict[str, Any]) -> None:
        """Write the chart. Its version is always the same."""
        (self.chart / "templates").mkdir(parents=True, exist_ok=True)
        about = {"apiVersion": "v2", "name": "rack", "version": "1.0.0"}
        (self.chart / "Chart.yaml").write_text(yaml.safe_dump(about))
        escaped = (json.dumps(each).replace("{{", "{{`{{`}}") for each in objects)
        (self.chart / "templates" / "all.yaml").write_text("".join(f"---\n{each}\n" for each in escaped))

    async def run(self, *words: str) -> Ran:
        """Run a command of Helm."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.chart.parent)}
        if words[0] in ("install", "upgrade"):
            words = (*words, *self.mode.split())
        process = await asyncio.create_subprocess_exec(
            *(built("helm")["helm"], *words, "--kubeconfig", self.kubectl.kubeconfig),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
        return Ran(process.returncode or 0, out.decode(), err.decode())

    async def __call__(self, *words: str) -> str:
        ran = await self.run(*words)
        assert ran.code == 0, ran.err + ran.out
        return ran.out

    async def upgrade(self) -> None:
        await self("upgrade", "rack", str(self.chart))

    async def versions(self) -> dict[str, tuple[str, int]]:
        """Return the resourceVersion and generation of each object of v1alpha1."""
        found = json.loads(await self.kubectl("get", KINDS, "-A", "-o", "json"))["items"]
        return {
            f"{each['kind']} {each['metadata']['namespace']}/{each['metadata']['name']}": (
                each["metadata"]["resourceVersion"],
                each["metadata"]["generation"],
            )
            for each in found
        }

    async def check_no_difference(self) -> None:
        """Check that `kubectl diff` finds no difference between the release's manifest and the API."""
        manifest = await self("get", "manifest", "rack")
        ran = await self.kubectl.run("diff", "-f", "-", stdin=manifest)
        assert (ran.code, ran.out) == (0, ""), ran


@pytest.fixture(params=MODES)
def release(request: pytest.FixtureRequest, both_versions: Kubectl, tmp_path: Path) -> Release:
    return Release(both_versions, tmp_path / "chart", MODES[request.param])


@pytest.mark.since(30)
async def test_release_of_sites_manifests_has_no_difference_and_an_upgrade_without_change_writes_nothing(
    release: Release,
) -> None:
    manifests = corpora()
    for namespace in {obj["metadata"].get("namespace", "default") for obj in manifests} - {"default"}:
        await release.kubectl("create", "namespace", namespace)
    release.write(*manifests)
    await release("install", "rack", str(release.chart))
    before = await release.versions()
    assert len(before) == len(manifests)
    await release.check_no_difference()
    await release.upgrade()
    assert await release.versions() == before
    await release("uninstall", "rack")
    assert await release.versions() == {}


@pytest.mark.since(30)
async def test_upgrade_changes_one_object_and_keeps_what_an_operator_set_in_v1alpha2(release: Release) -> None:
    release.write(MACHINE, TEMPLATE, WORKFLOW)
    await release("install", "rack", str(release.chart))
    osie = {"spec": {"osie": {"name": "hook"}}}
    await release.kubectl("patch", "hw", "hw1", "--type=merge", "-p", json.dumps(osie))
    before = await release.versions()
    changed = deepcopy(MACHINE)
    interface(changed)["dhcp"]["hostname"] = "other"
    release.write(changed, TEMPLATE, WORKFLOW)
    await release.upgrade()
    after = await release.versions()
    assert {name for name in after if after[name] != before[name]} == {"Hardware default/hw1"}
    assert interface(await old(release.kubectl))["dhcp"]["hostname"] == "other"
    found = await new(release.kubectl)
    assert (found["spec"]["osie"], interface(found)["dhcp"]["hostname"]) == ({"name": "hook"}, "other")
    await release.check_no_difference()
    await release("rollback", "rack", "1")
    found = await new(release.kubectl)
    assert (found["spec"]["osie"], interface(found)["dhcp"]["hostname"]) == ({"name": "hook"}, "hw1")


@pytest.mark.since(30)
async def test_edit_in_v1alpha2_is_a_conflict_on_the_server_and_stays_on_the_clients_side(release: Release) -> None:
    """So it is with every custom resource: on the client's side, Helm does not look at the object in the API."""
    release.write(MACHINE, TEMPLATE, WORKFLOW)
    await release("install", "rack", str(release.chart))
    edit = {"spec": {"networkInterfaces": {MAC: {"dhcp": {"hostname": "other"}}}}}
    await release.kubectl("patch", "hw", "hw1", "--type=merge", "-p", json.dumps(edit))
    if release.mode == MODES["server-side"]:
        ran = await release.run("upgrade", "rack", str(release.chart))
        assert (ran.code, 'conflict with "kubectl-patch" using tinkerbell.org/v1alpha2' in ran.err) == (1, True), ran
        await release("upgrade", "rack", str(release.chart), "--force-conflicts")
    else:
        await release.upgrade()
        assert interface(await old(release.kubectl))["dhcp"]["hostname"] == "other"
        changed = deepcopy(MACHINE)
        interface(changed)["dhcp"]["arch"] = "aarch64"
        release.write(changed, TEMPLATE, WORKFLOW)
        await release.upgrade()
    assert interface(await old(release.kubectl))["dhcp"]["hostname"] == "hw1"
    await release.check_no_difference()
