"""Writes at the same time, writes that change nothing, what the server adds. conformance/cases has the rest."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.objects import hardware, workflow
from tests.unit.apiserver.conftest import Client, Start
from tink.api.v1alpha2 import FINALIZER
from tink.workflow.protection import protect

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def test_writers_of_an_old_version_get_a_conflict(api: Client) -> None:
    first = (await api("POST", HARDWARE, hardware("m"))).json
    await api.merge(f"{HARDWARE}/m", {"metadata": {"labels": {"a": "b"}}})
    said = (
        'Operation cannot be fulfilled on hardware.tinkerbell.org "m": the object has been modified; please apply your '
        "changes to the latest version and try again"
    )
    for answer in (
        await api("PUT", f"{HARDWARE}/m", first),
        await api.merge(f"{HARDWARE}/m", {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}),
    ):
        assert (answer.status, answer.json["reason"], answer.json["message"]) == (409, "Conflict", said)
    del first["metadata"]["resourceVersion"]
    answer = await api("PUT", f"{HARDWARE}/m", first)
    assert answer.status == 422
    assert answer.json["details"]["causes"][0]["field"] == "metadata.resourceVersion"


async def test_patches_at_the_same_time_all_take_effect(api: Client) -> None:
    await api("POST", CONFIGMAPS, {"metadata": {"name": "c"}, "data": {}})
    answers = await asyncio.gather(
        *(api.merge(f"{CONFIGMAPS}/c", {"data": {f"k{number}": "x"}}) for number in range(4))
    )
    assert [answer.status for answer in answers] == [200] * 4
    assert len((await api("GET", f"{CONFIGMAPS}/c")).json["data"]) == 4


async def test_update_that_changes_nothing_keeps_version_and_generation(api: Client) -> None:
    created = (await api("POST", HARDWARE, hardware("m"))).json
    assert (await api.merge(f"{HARDWARE}/m", {"spec": created["spec"]})).json == created
    assert (await api("PUT", f"{HARDWARE}/m", created)).json == created


async def test_keys_given_twice_are_found_when_strict(api: Client) -> None:
    head = b'{"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware", "metadata": {"name": "m"}, '
    raw = head + b'"spec": {}, "spec": {"osie": {"name": "x"}}}'
    answer = await api("POST", HARDWARE, raw, fieldValidation="Strict")
    assert (answer.status, 'duplicate field "spec"' in answer.json["message"]) == (400, True)
    assert (await api("POST", HARDWARE, raw, fieldValidation="Ignore")).status == 201


async def test_object_with_finalizers_stays_until_the_last_is_removed(api: Client) -> None:
    await api("POST", HARDWARE, hardware("m", metadata={"finalizers": ["example.org/a", "example.org/b"]}))
    marked = await api("DELETE", f"{HARDWARE}/m")
    assert (marked.status, "deletionTimestamp" in marked.json["metadata"]) == (200, True)
    assert (await api("DELETE", f"{HARDWARE}/m")).json == marked.json
    await api.merge(f"{HARDWARE}/m", {"metadata": {"finalizers": ["example.org/b"], "deletionTimestamp": None}})
    assert "deletionTimestamp" in (await api("GET", f"{HARDWARE}/m")).json["metadata"]
    async with api.watch(HARDWARE, resourceVersion=marked.json["metadata"]["resourceVersion"]) as watch:
        assert (await api.merge(f"{HARDWARE}/m", {"metadata": {"finalizers": []}})).status == 200
        assert await watch.kinds(2) == [("MODIFIED", "m"), ("DELETED", "m")]
    assert (await api("GET", f"{HARDWARE}/m")).status == 404


async def test_lease_is_taken_by_the_first_and_lost_by_the_second(api: Client) -> None:
    """Leader election: both read the same version, both write, one wins."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = (await api("POST", leases, {"metadata": {"name": "controller"}, "spec": {}})).json
    first = {**lease, "spec": {"holderIdentity": "one", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    second = {**lease, "spec": {"holderIdentity": "two"}}
    answers = await asyncio.gather(*(api("PUT", f"{leases}/controller", body) for body in (first, second)))
    assert sorted(answer.status for answer in answers) == [200, 409]


WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"


@pytest.fixture
async def protecting(start: Start, installed: Path, tmp_path: Path) -> Client:
    """A client of a server that gives Workflows their finalizer, as that of the stack does."""
    shutil.copytree(installed, tmp_path / "state")
    _, client = await start(admit_create=protect)
    return client


async def test_a_new_workflow_has_its_finalizer_in_its_first_version(protecting: Client) -> None:
    made = (await protecting("POST", WORKFLOWS, workflow(finalizers=["other/one"]))).json
    assert made["metadata"]["finalizers"] == ["other/one", FINALIZER]
    assert (await protecting("GET", f"{WORKFLOWS}/w")).json == made
    named = (await protecting("POST", WORKFLOWS, workflow("") | {"metadata": {"generateName": "w-"}})).json
    assert named["metadata"]["finalizers"] == [FINALIZER]


async def test_a_dry_run_shows_the_finalizer_of_a_new_workflow(protecting: Client) -> None:
    made = (await protecting("POST", WORKFLOWS, workflow(), dryRun="All")).json
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert (await protecting("GET", f"{WORKFLOWS}/w")).status == 404


async def test_finalizer_of_a_new_workflow_has_no_manager_so_that_no_apply_takes_it_away(protecting: Client) -> None:
    applied = {"fieldManager": "me", "force": "true"}
    kind, config = "application/apply-patch+yaml", workflow() | {"metadata": {"name": "w"}}
    made = (await protecting("PATCH", f"{WORKFLOWS}/w", config, content=kind, **applied)).json
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert "f:finalizers" not in str(made["metadata"]["managedFields"])
    again = (await protecting("PATCH", f"{WORKFLOWS}/w", config, content=kind, **applied)).json
    assert again["metadata"]["finalizers"] == [FINALIZER]


async def test_workflow_that_is_there_does_not_get_its_finalizer_again(protecting: Client) -> None:
    await protecting("POST", WORKFLOWS, workflow())
    after = (await protecting.merge(f"{WORKFLOWS}/w", {"metadata": {"finalizers": None}})).json
    assert "finalizers" not in after["metadata"]


async def test_a_workflow_that_no_controller_has_seen_waits_for_one_when_it_is_deleted(protecting: Client) -> None:
    await protecting("POST", WORKFLOWS, workflow())
    assert (await protecting("DELETE", f"{WORKFLOWS}/w")).status == 200
    assert (await protecting("GET", f"{WORKFLOWS}/w")).json["metadata"]["deletionTimestamp"]
    await protecting.merge(f"{WORKFLOWS}/w", {"metadata": {"finalizers": None}})
    assert (await protecting("GET", f"{WORKFLOWS}/w")).status == 404
