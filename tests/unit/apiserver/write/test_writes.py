"""Writes at the same time, writes that change nothing, what the server adds. conformance/cases has the rest."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.objects import workflow
from tests.unit.apiserver.conftest import Client, Start
from tink.api.v1alpha2 import FINALIZER
from tink.workflow.protection import protect

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def test_patches_at_the_same_time_all_take_effect(api: Client) -> None:
    await api("POST", CONFIGMAPS, {"metadata": {"name": "c"}, "data": {}})
    answers = await asyncio.gather(
        *(api.merge(f"{CONFIGMAPS}/c", {"data": {f"k{number}": "x"}}) for number in range(4))
    )
    assert [answer.status for answer in answers] == [200] * 4
    assert len((await api("GET", f"{CONFIGMAPS}/c")).json["data"]) == 4


WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"


@pytest.fixture
async def protecting(start: Start, installed: Path, tmp_path: Path) -> Client:
    """A client of a server that gives Workflows their finalizer, as that of the stack does."""
    shutil.copytree(installed, tmp_path / "state")
    _, client = await start(admit_create=protect)
    return client


async def test_a_new_workflow_has_its_finalizer_in_its_first_version_and_only_there(protecting: Client) -> None:
    tried = (await protecting("POST", WORKFLOWS, workflow(), dryRun="All")).json
    assert tried["metadata"]["finalizers"] == [FINALIZER]
    assert (await protecting("GET", f"{WORKFLOWS}/w")).status == 404
    made = (await protecting("POST", WORKFLOWS, workflow(finalizers=["other/one"]))).json
    assert made["metadata"]["finalizers"] == ["other/one", FINALIZER]
    assert (await protecting("GET", f"{WORKFLOWS}/w")).json == made
    after = (await protecting.merge(f"{WORKFLOWS}/w", {"metadata": {"finalizers": None}})).json
    assert "finalizers" not in after["metadata"]
    named = (await protecting("POST", WORKFLOWS, workflow("") | {"metadata": {"generateName": "w-"}})).json
    assert named["metadata"]["finalizers"] == [FINALIZER]
    where = f"{WORKFLOWS}/{named['metadata']['name']}"
    assert (await protecting("DELETE", where)).status == 200
    assert (await protecting("GET", where)).json["metadata"]["deletionTimestamp"], "it waits for a controller"


async def test_finalizer_of_a_new_workflow_has_no_manager_so_that_no_apply_takes_it_away(protecting: Client) -> None:
    applied = {"fieldManager": "me", "force": "true"}
    kind, config = "application/apply-patch+yaml", workflow() | {"metadata": {"name": "w"}}
    made = (await protecting("PATCH", f"{WORKFLOWS}/w", config, content=kind, **applied)).json
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert "f:finalizers" not in str(made["metadata"]["managedFields"])
    again = (await protecting("PATCH", f"{WORKFLOWS}/w", config, content=kind, **applied)).json
    assert again["metadata"]["finalizers"] == [FINALIZER]
