"""What an API server adds to new objects before anybody sees them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apiserver.conftest import Client, Start
from tink.api.v1alpha2 import FINALIZER
from tink.workflow.protection import protect

WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"


def workflow(name: str = "w", **metadata: Any) -> dict[str, Any]:
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
    kind = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Workflow"}
    return {**kind, "metadata": {"name": name, **metadata}, "spec": spec}


@pytest.fixture
async def api(start: Start, installed: Path, tmp_path: Path) -> Client:
    """A client of a server that gives Workflows their finalizer, as that of the stack does."""
    shutil.copytree(installed, tmp_path / "state")
    _, client = await start(admit_create=protect)
    return client


async def test_a_new_workflow_has_its_finalizer_in_its_first_version(api: Client) -> None:
    made = (await api("POST", WORKFLOWS, workflow(finalizers=["other/one"]))).json
    assert made["metadata"]["finalizers"] == ["other/one", FINALIZER]
    assert (await api("GET", f"{WORKFLOWS}/w")).json == made
    named = (await api("POST", WORKFLOWS, workflow("") | {"metadata": {"generateName": "w-"}})).json
    assert named["metadata"]["finalizers"] == [FINALIZER]


async def test_a_dry_run_shows_it(api: Client) -> None:
    made = (await api("POST", WORKFLOWS, workflow(), dryRun="All")).json
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert (await api("GET", f"{WORKFLOWS}/w")).status == 404


async def test_nobody_manages_it_so_that_no_apply_takes_it_away(api: Client) -> None:
    applied = {"fieldManager": "me", "force": "true"}
    kind = "application/apply-patch+yaml"
    made = (await api("PATCH", f"{WORKFLOWS}/w", workflow(), content=kind, **applied)).json
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert "f:finalizers" not in str(made["metadata"]["managedFields"])
    again = (await api("PATCH", f"{WORKFLOWS}/w", workflow(), content=kind, **applied)).json
    assert again["metadata"]["finalizers"] == [FINALIZER]


async def test_an_object_that_is_there_does_not_get_it_again(api: Client) -> None:
    await api("POST", WORKFLOWS, workflow())
    after = (await api.merge(f"{WORKFLOWS}/w", {"metadata": {"finalizers": None}})).json
    assert "finalizers" not in after["metadata"]


async def test_a_workflow_that_no_controller_has_seen_waits_for_one_when_it_is_deleted(api: Client) -> None:
    await api("POST", WORKFLOWS, workflow())
    assert (await api("DELETE", f"{WORKFLOWS}/w")).status == 200
    assert (await api("GET", f"{WORKFLOWS}/w")).json["metadata"]["deletionTimestamp"]
    await api.merge(f"{WORKFLOWS}/w", {"metadata": {"finalizers": None}})
    assert (await api("GET", f"{WORKFLOWS}/w")).status == 404
