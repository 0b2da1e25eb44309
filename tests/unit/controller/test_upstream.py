"""A Tinkerbell on the same API: the definitions that it writes at its start, and the Lease of its controller."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse, turns
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import Raw
from tink.controller import UpstreamWatch, find_conflicts, followed_definitions
from tink.kube.client import ApiError
from tink.kube.resources import CRD, LEASE
from tink.kubeapi import StatusError
from tink.timestamps import rfc3339

NOW = 1_780_000_000.0
HARDWARE, MACHINES = "hardware.tinkerbell.org", "machines.bmc.tinkerbell.org"
LEASE_NAME = "tink-controller.tinkerbell.org"
MANAGER = "Tinkerbell CLI"
EMBEDDED = followed_definitions(is_embedded=True, serves_v1alpha1=True, has_bmc=True)
CLUSTER = followed_definitions(is_embedded=False, serves_v1alpha1=True, has_bmc=False)


def of_tinkerbell(name: str) -> Raw:
    """Return a definition as Tinkerbell has it: v1alpha1 alone, without fields that only tinkedge has."""
    ours = next(each for each in (*generate(serve_v1alpha1=True), *generate_bmc()) if each["metadata"]["name"] == name)
    theirs = copy.deepcopy(ours)
    theirs["spec"]["versions"] = [each for each in theirs["spec"]["versions"] if each["name"] == "v1alpha1"]
    theirs["spec"]["versions"][0]["storage"] = True
    if name == MACHINES:
        fields = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        del (
            fields["connection"]["properties"]["caSecretRef"],
            fields["connection"]["properties"]["certificateFingerprint"],
        )
    return theirs


async def migrate(api: InProcessApi, name: str) -> None:
    """Write a definition as Tinkerbell does at its start: an apply, then an update. Raises StatusError."""
    theirs = of_tinkerbell(name)
    try:
        await api.apply(CRD, name, None, theirs, manager=MANAGER)
    except ApiError:
        theirs["metadata"]["resourceVersion"] = (await api.get(CRD, name, None))["metadata"]["resourceVersion"]
        await api.send("PUT", CRD, name, theirs, fieldManager=MANAGER)


def lease(renewed: float = NOW, holder: str = "tinkerbell-7d9_1b2c", name: str = LEASE_NAME) -> Raw:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": rfc3339(renewed, "microseconds")}
    metadata = {"name": name, "namespace": "tink-system"}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


@pytest.fixture
async def api() -> AsyncIterator[InProcessApi]:
    async with InProcessApi(serve_v1alpha1=True) as api:
        yield api


@pytest.fixture
async def watch(api: InProcessApi) -> AsyncIterator[UpstreamWatch]:
    watch = UpstreamWatch(api, EMBEDDED, clock=lambda: NOW)  # type: ignore[arg-type]
    task = asyncio.create_task(watch.run())
    yield watch
    task.cancel()
    await asyncio.wait([task])


async def conflicts(api: InProcessApi, *args: Any) -> dict[str, Any]:
    found = await find_conflicts(api, *args or (EMBEDDED,), NOW)  # type: ignore[arg-type]
    return {name: each for name, each in found.items() if each is not None}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelno >= logging.WARNING]


async def test_api_with_the_definitions_of_this_release_has_no_conflict(api: InProcessApi) -> None:
    assert await conflicts(api) == {}
    assert {each.name for each in CLUSTER} < {each.name for each in EMBEDDED}


@pytest.mark.parametrize("name", [each.name for each in CLUSTER])
async def test_tinkerbell_cannot_replace_a_definition_that_stores_v1alpha2(api: InProcessApi, name: str) -> None:
    with pytest.raises(StatusError, match=r"missing from spec\.versions"):
        await migrate(api, name)
    assert await conflicts(api) == {}


async def test_definition_of_bmcs_that_tinkerbell_replaces_is_named_with_lost_fields_and_remedy(
    api: InProcessApi,
) -> None:
    await migrate(api, MACHINES)
    found = await conflicts(api)
    assert list(found) == [MACHINES]
    problem, remedy = found[MACHINES]
    assert problem.startswith(
        "its v1alpha1 lacks spec.connection.caSecretRef, spec.connection.certificateFingerprint, which the API removes "
        f"from objects; Tinkerbell wrote it at its start (field manager {MANAGER}, 20"
    )
    assert remedy == (
        "stop Tinkerbell, or start it with --enable-crd-migrations=false (in its chart: "
        "deployment.envs.globals.enableCRDMigrations), then restart tinkedge, which applies its own definitions"
    )


async def test_definition_that_another_program_wrote_names_it(api: InProcessApi) -> None:
    theirs = of_tinkerbell(MACHINES)
    await api.apply(CRD, MACHINES, None, theirs, manager="kubectl", force=True)
    problem, remedy = (await conflicts(api))[MACHINES]
    assert "; the field manager kubectl wrote it (20" in problem
    assert remedy == "restart tinkedge, which applies its own definitions"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec.update(versions=spec["versions"][:1]), "it has no version v1alpha1, but v1alpha2"),
        (lambda spec: spec["versions"][1].update(served=False), "it does not serve its version v1alpha1"),
        (lambda spec: [each.update(storage=not each["storage"]) for each in spec["versions"]], "not store v1alpha2"),
        (lambda spec: spec["versions"][0].pop("schema"), "its v1alpha2 lacks apiVersion, kind, metadata, spec, status"),
        (lambda spec: spec.pop("conversion"), "spec.conversion.strategy is not Webhook"),
        (lambda spec: spec.clear(), "it has no version v1alpha2, but none"),
    ],
)
async def test_each_loss_of_a_definition_in_a_cluster_is_named(api: InProcessApi, change: Any, words: str) -> None:
    definition = next(each for each in generate(serve_v1alpha1=True) if each["metadata"]["name"] == HARDWARE)
    definition["spec"]["conversion"] = {"strategy": "Webhook"}
    assert [each["name"] for each in definition["spec"]["versions"]] == ["v1alpha2", "v1alpha1"]
    (expected,) = (each for each in CLUSTER if each.name == HARDWARE)
    api.put(definition)
    assert await conflicts(api, [expected]) == {}
    change(definition["spec"])
    api.put(definition)
    problem, remedy = (await conflicts(api, [expected]))[HARDWARE]
    assert words in problem
    assert remedy == (
        "apply the definitions of this release: helm upgrade, or "
        "tinkedge crds --v1alpha1 | kubectl apply --server-side --force-conflicts -f -"
    )


async def test_definition_of_a_newer_release_has_no_conflict(api: InProcessApi) -> None:
    definition = api.read(CRD, MACHINES, "")
    assert definition is not None
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    api.put(definition)
    assert await conflicts(api) == {}


async def test_deleted_definition_is_a_conflict(api: InProcessApi) -> None:
    api.remove(CRD, MACHINES, "")
    assert (await conflicts(api))[MACHINES].problem == "it does not exist"


@pytest.mark.parametrize(
    "other",
    [lease(NOW - 61), lease(holder=""), {**lease(), "spec": {}}, {**lease(), "spec": {"holderIdentity": "x"}}],
    ids=["not renewed", "released", "empty", "never renewed"],
)
async def test_controller_of_tinkerbell_is_found_by_a_lease_that_it_renews(api: InProcessApi, other: Raw) -> None:
    api.put(other)
    assert await conflicts(api) == {}
    api.put(lease(NOW - 5))
    problem, remedy = (await conflicts(api))[LEASE_NAME]
    assert problem == (
        "the Workflow controller of Tinkerbell, tink-system/tinkerbell-7d9_1b2c, runs on this API, too: both prepare "
        "the same Workflows and boot their machines"
    )
    assert "kubectl -n tink-system scale deployment tinkerbell --replicas=0" in remedy
    api.put(lease(name="tink.tinkerbell.org"))
    assert len(await conflicts(api)) == 2


# --- the watch of a controller ----------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_each_change_is_logged_once_with_object_and_remedy(
    api: InProcessApi, watch: UpstreamWatch, caplog: pytest.LogCaptureFixture
) -> None:
    await elapse(5)
    assert (warnings(caplog), watch.note) == ([], "")
    await migrate(api, MACHINES)
    await elapse(5)
    (line,) = warnings(caplog)
    assert line.startswith(f"CustomResourceDefinition {MACHINES}: its v1alpha1 lacks spec.connection.caSecretRef")
    assert line.endswith("then restart tinkedge, which applies its own definitions")
    assert watch.note.startswith(f"{MACHINES}: its v1alpha1 lacks")
    await api.patch(CRD, MACHINES, None, {"metadata": {"labels": {"some": "label"}}})
    await elapse(2000)
    assert len(warnings(caplog)) == 1, "it was said before"
    with caplog.at_level(logging.INFO):
        await api.patch(
            CRD, MACHINES, None, next(each for each in generate_bmc() if each["metadata"]["name"] == MACHINES)
        )
        await elapse(5)
    assert caplog.messages[-1] == f"CustomResourceDefinition {MACHINES}: the conflict has ended"
    assert watch.note == ""


@pytest.mark.looptime
async def test_lease_of_a_controller_that_starts_is_logged_and_counted(
    api: InProcessApi, watch: UpstreamWatch, caplog: pytest.LogCaptureFixture
) -> None:
    await turns(20)
    api.put(lease())
    await elapse(130)
    (line,) = warnings(caplog)
    assert line.startswith(f"Lease {LEASE_NAME}: the Workflow controller of Tinkerbell, tink-system/tinkerbell-7d9")
    (family,) = watch.metrics()
    assert {sample.labels["object"]: sample.value for sample in family.samples} == {
        **{each.name: 0.0 for each in EMBEDDED},
        "tink.tinkerbell.org": 0.0,
        LEASE_NAME: 1.0,
    }


@pytest.mark.looptime
async def test_account_without_the_right_to_watch_sees_a_change_within_a_minute(
    api: InProcessApi, watch: UpstreamWatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail("watch", *[ApiError(403, "Forbidden", "may not watch")] * 1000)
    await elapse(5)
    await migrate(api, MACHINES)
    await elapse(120)
    assert watch.note
    assert len(warnings(caplog)) == 1


@pytest.mark.looptime
async def test_account_that_may_not_read_is_told_once(
    api: InProcessApi, watch: UpstreamWatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail("get", *[ApiError(403, "Forbidden", "may not get")] * 1000)
    api.fail("list", *[ApiError(403, "Forbidden", "may not list")] * 1000)
    await elapse(600)
    lines = warnings(caplog)
    assert len(lines) == len(set(lines)) == len(EMBEDDED) + 1
    assert all("can't be read, so a Tinkerbell beside tinkedge may go unnoticed" in line for line in lines)
    assert watch.note == ""
    api.recover()
    await migrate(api, MACHINES)
    await elapse(120)
    assert watch.note


@pytest.mark.looptime
async def test_definition_that_changes_all_the_time_is_read_once_a_second(
    api: InProcessApi, watch: UpstreamWatch
) -> None:
    await elapse(5)
    before = api.count("get", of=CRD)
    for number in range(200):
        await api.patch(CRD, MACHINES, None, {"metadata": {"labels": {"some": f"label-{number}"}}})
        await elapse(0.1)
    assert api.count("get", of=CRD) - before <= 21
    assert watch.note == ""
