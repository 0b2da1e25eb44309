"""The migration of stored BareMetalHosts on a live API: planned, refused, carried out, killed and continued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from edge.cli import main
from tests.interop.host_site import HARDWARE, NEW, ROLES, Site, empty_site, gate, host, inspected, site
from tests.interop.privileges import Grant
from tests.interop.rack import TINKEDGE, clean_environment
from tink.api.metal3.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.conversion_data import ANNOTATION
from tink.kube.client import ApiError, KubeClient, UnreachableError
from tink.kube.resources import CRD, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1
from tink.metal3.definition import NAME
from tink.metal3.migration import carry_out, plan
from tink.metal3.migration.plan import MigrationSettings, Phase
from tink.metal3.migration.survey import survey

ROLE = "tinkedge-metal3-migrate"

__all__ = ["empty_site", "site"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def command(site: Site, *options: str) -> list[str]:
    return ["metal3-migrate", "--kubeconfig", str(site.api.kubeconfig), "--settle", "0", *options]


async def migrate(site: Site, *options: str) -> Ran:
    """The command, in a thread of this process: that is ten times as fast as a process of its own."""
    ran = await asyncio.to_thread(CliRunner().invoke, main, command(site, *options))
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return Ran(ran.exit_code, ran.stdout, ran.stderr)


async def start(site: Site, *options: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    words = [*TINKEDGE, *command(site, *options)]
    return await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env=clean_environment())


async def everything(site: Site) -> dict[str, Raw]:
    """All hosts as v1alpha1, without what the API server writes."""
    return {
        each["metadata"]["name"]: {key: each.get(key) for key in ("spec", "status")}
        | {key: each["metadata"].get(key) for key in ("labels", "annotations")}
        for each in (await site.client.list(HOST_V1ALPHA1))["items"]
    }


async def fill(site: Site, count: int) -> None:
    profiles = ("unknown", "dell", "libvirt", "empty", "", "nobody")
    for number in range(count):
        await site.create(host(f"n{number}", hardwareProfile=profiles[number % 6], online=number % 2 == 0))
        if number % 3 == 0:
            await site.set_status(f"n{number}", inspected(hardwareProfile="unknown"))
    native: Raw = {"apiVersion": NEW, "kind": "BareMetalHost", "metadata": {"name": "native", "namespace": "default"}}
    await site.create({**native, "spec": {"poweredOn": True, "image": {"url": "http://x/i", "checksumType": "auto"}}})


async def stored(site: Site) -> list[str]:
    versions: list[str] = (await site.definition())["status"]["storedVersions"]
    return versions


async def test_hosts_are_moved_with_all_they_have_and_the_plan_alone_changes_nothing(site: Site) -> None:
    await fill(site, 12)
    before, definition = await everything(site), await site.definition()
    ran = await migrate(site)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "13 BareMetalHosts; written as v1alpha1, stored as v1alpha1",
        "1. hardware-data    create 4 HardwareData: default/n0, default/n3, default/n6 and 1 more",
        "2. storage          v1alpha1 -> v1beta1",
        "3. rewrite          write 13 BareMetalHosts, unchanged",
        "4. stored-versions  v1alpha1 -> v1beta1",
        "nothing was changed; add --apply to do this",
    ]
    assert await site.definition() == definition
    assert (await site.client.list(HARDWARE_DATA))["items"] == []

    ran = await migrate(site, "--apply")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "finished: nothing is left to do")
    assert ran.err.splitlines() == [
        "hardware-data: 4 done",
        "storage: 1 done",
        "rewrite: 13 done",
        "stored-versions: 1 done",
    ]
    assert await stored(site) == ["v1beta1"]
    assert await everything(site) == before
    await site.stop_webhook()
    assert len((await site.client.list(HOST_V1BETA1))["items"]) == 13, "all can be read without the webhook"
    for details in (await site.client.list(HARDWARE_DATA))["items"]:
        assert details["spec"]["hardware"] == HARDWARE
        [owner] = details["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["apiVersion"]) == (
            "BareMetalHost",
            details["metadata"]["name"],
            NEW,
        )
        assert "blockOwnerDeletion" not in owner, "OpenShift refuses it without rights on the host's finalizers"


async def test_killed_migration_is_continued_and_one_that_is_done_does_nothing(site: Site) -> None:
    await fill(site, 60)
    before = await everything(site)
    killed = []
    versions = await resource_versions(site)
    for phase in (Phase.HARDWARE_DATA, Phase.STORAGE, Phase.REWRITE):
        process = await start(site, "--apply")
        try:
            async with asyncio.timeout(120):
                while process.returncode is None and not await _reached(site, phase, versions):
                    await asyncio.sleep(0.005)
        finally:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
        killed.append(await process.wait())
        await process.communicate()
    assert -signal.SIGKILL in killed, "nothing was interrupted"
    ran = await migrate(site, "--apply", "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["outcome"] == "finished"
    assert await stored(site) == ["v1beta1"]
    assert await everything(site) == before
    assert len((await site.client.list(HARDWARE_DATA))["items"]) == 20

    version = (await site.definition())["metadata"]["resourceVersion"]
    ran = await migrate(site, "--apply", "-o", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["outcome"], report["done"]) == (0, "finished", [])
    assert (await site.definition())["metadata"]["resourceVersion"] == version


async def _reached(site: Site, phase: Phase, versions: dict[str, str]) -> bool:
    match phase:
        case Phase.HARDWARE_DATA:
            return len((await site.client.list(HARDWARE_DATA))["items"]) > 3
        case Phase.STORAGE:
            return len(await stored(site)) == 2
        case _:
            now = await resource_versions(site)
            return sum(now[name] != version for name, version in versions.items()) > 3


async def resource_versions(site: Site) -> dict[str, str]:
    hosts = (await site.client.list(HOST_V1ALPHA1))["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in hosts}


async def test_phases_can_be_done_one_by_one_and_the_old_version_goes_only_when_told(site: Site) -> None:
    await fill(site, 4)
    for phase, storage, versions in (
        ("hardware-data", "v1alpha1", ["v1alpha1"]),
        ("storage", "v1beta1", ["v1alpha1", "v1beta1"]),
        ("rewrite", "v1beta1", ["v1alpha1", "v1beta1"]),
    ):
        assert (await migrate(site, "--apply", "--through", phase)).code == 0
        definition = await site.definition()
        assert [each["name"] for each in definition["spec"]["versions"] if each["storage"]] == [storage]
        assert definition["status"]["storedVersions"] == versions
    assert len((await site.client.list(HARDWARE_DATA))["items"]) == 2
    ran = await migrate(site, "--apply", "--stop-serving-v1alpha1")
    assert ran.code == 0
    assert "whoever asks for v1alpha1 then gets 404" in ran.out
    definition = await site.definition()
    assert definition["status"]["storedVersions"] == ["v1beta1"]
    assert [each["name"] for each in definition["spec"]["versions"] if each["served"]] == ["v1beta1"]
    ran = await migrate(site, "--apply", "--stop-serving-v1alpha1")
    assert (ran.code, ran.err) == (0, "")
    assert (await migrate(site, "--through", "storage", "--stop-serving-v1alpha1")).code == 2


# --- what stands in the way -----------------------------------------------------------------------------------------


async def refused(site: Site, *options: str) -> str:
    definition = await site.definition()
    ran = await migrate(site, "--apply", *options)
    assert ran.code == 2, ran.out + ran.err
    assert await site.definition() == definition
    assert (await site.client.list(HARDWARE_DATA))["items"] == []
    return ran.out


async def test_webhook_that_does_not_answer_is_a_refusal_that_says_so(site: Site) -> None:
    await fill(site, 2)
    await site.stop_webhook()
    said = await refused(site)
    assert "hosts can't be converted: conversion webhook for" in said
    assert "Does the webhook run?" in said


async def test_webhook_with_another_setting_is_a_refusal_that_names_field_and_values(site: Site) -> None:
    await site.create(host("a", image={"url": "http://x/i", "checksum": "0" * 32}))
    said = await refused(site, "--empty-checksum-type", "auto")
    assert 'differs: default/a spec.image.checksumType: "auto" -> "md5" (v1beta1 as it is served: another' in said
    assert (await migrate(site)).code == 0


async def test_checksums_that_would_be_misread_are_a_refusal_until_they_are_accepted(site: Site) -> None:
    await site.create(host("a", image={"url": "http://x/i", "checksum": "0" * 64}))
    said = await refused(site)
    assert 'default/a spec.image.checksumType: nothing -> "md5" (the checksum is not MD5: see --empty-checksum' in said
    assert "mend them, or say --accept-differences" in said
    assert (await migrate(site, "--apply", "--accept-differences")).code == 0
    assert await stored(site) == ["v1beta1"]


async def test_field_that_the_new_schema_lacks_is_a_refusal_and_not_lost(site: Site) -> None:
    await site.create(host("a", description="the only one"))
    versions = (await site.definition())["spec"]["versions"]
    del versions[1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["description"]
    await site.client.patch(CRD, NAME, None, {"spec": {"versions": versions}})
    said = await refused(site)
    assert 'default/a spec.description: "the only one" -> nothing (v1beta1 as it is served' in said


async def test_definitions_that_are_not_fit_are_refused_with_what_to_do(empty_site: Site) -> None:
    ran = await migrate(empty_site)
    assert ran.code == 2
    assert "there is no CustomResourceDefinition baremetalhosts.metal3.io: install tinkedge crds --metal3" in ran.out
    hosts, details = generate()
    one = {**hosts, "spec": {**hosts["spec"], "versions": hosts["spec"]["versions"][:1]}}
    await empty_site.client.create(CRD, one)
    await empty_site.create(host("a"))
    await empty_site.set_status("a", inspected())
    assert "has no version v1beta1: install tinkedge crds --metal3" in (await migrate(empty_site)).out
    await empty_site.client.patch(CRD, NAME, None, {"spec": hosts["spec"]})
    out = (await migrate(empty_site)).out
    assert "has no conversion webhook: start tinkedge metal3-webhook" in out
    assert "there is no CustomResourceDefinition hardwaredata.metal3.io" in out
    await empty_site.client.create(CRD, details)
    await empty_site.start_webhook()
    assert (await migrate(empty_site, "--apply")).code == 0


async def test_hardware_data_that_says_otherwise_is_noted_and_kept(site: Site) -> None:
    await fill(site, 1)
    mine = {"hardware": {"hostname": "other"}}
    metadata = {"name": "n0", "namespace": "default"}
    obj = {"apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "metadata": metadata, "spec": mine}
    await site.client.create(HARDWARE_DATA, obj)
    ran = await migrate(site, "--apply")
    assert ran.code == 0
    assert "note: 1 HardwareData say something else than status.hardware of their host" in ran.out
    assert (await site.client.get(HARDWARE_DATA, "n0", "default"))["spec"] == mine


async def test_hardware_too_large_for_the_annotation_is_a_note_and_is_in_hardware_data(site: Site) -> None:
    disks = [{"name": f"/dev/sd{number}", "sizeBytes": number, "serialNumber": "S" * 300} for number in range(800)]
    await site.create(host("a"))
    await site.set_status("a", inspected(hardware={"storage": disks}))
    ran = await migrate(site, "--apply")
    assert ran.code == 0, ran.out
    assert "note: default/a status.hardware: " in ran.out
    assert len((await site.client.get(HARDWARE_DATA, "a", "default"))["spec"]["hardware"]["storage"]) == 800


async def test_broken_annotation_does_not_keep_a_host_from_being_moved(site: Site) -> None:
    await fill(site, 1)
    odd = {"apiVersion": NEW, "kind": "BareMetalHost", "spec": {"poweredOn": True}}
    for number, text in enumerate(("{", "7", '{"spec": {"hardwareProfile": 7}}')):
        metadata = {"name": f"odd{number}", "namespace": "default", "annotations": {ANNOTATION: text}}
        await site.create({**odd, "metadata": metadata})
    assert (await migrate(site, "--apply")).code == 0
    assert await stored(site) == ["v1beta1"]


async def test_api_that_is_not_there_is_a_failure_in_both_forms_of_the_report(site: Site) -> None:
    await site.api.stop()
    ran = await migrate(site)
    assert (ran.code, ran.out) == (1, "")
    assert "not finished: GET https://127.0.0.1" in ran.err
    ran = await migrate(site, "-o", "json")
    assert ran.code == 1
    assert json.loads(ran.out)["outcome"] == "failed"


# --- what happens meanwhile -----------------------------------------------------------------------------------------


class Meddled(KubeClient):
    """A client whose calls go wrong, or see others change things first, as a test wants."""

    before_patch: Callable[[str], Any] | None = None

    async def patch(self, resource: Any, name: str, namespace: str | None, patch: Raw, **more: Any) -> Raw:
        if self.before_patch is not None:
            await self.before_patch(name)
        return await super().patch(resource, name, namespace, patch, **more)


@pytest.fixture
async def meddled(site: Site) -> Any:
    client = await Meddled.connect(site.api.kubeconfig)
    yield client
    await client.close()


async def carried_out(client: KubeClient) -> list[carry_out.Done]:
    settings = MigrationSettings(settle=0)
    seen = await survey(client, settings.conversion, _quiet)
    made = plan.make(seen, settings)
    assert not made.problems
    return [done async for done in carry_out.carry_out(client, made, seen, settings, _quiet)]


def _quiet(what: str, count: int, total: int) -> None:
    pass


async def test_host_that_goes_meanwhile_and_calls_that_fail_at_first_cost_nothing(
    site: Site, meddled: Meddled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry_out, "_RETRY_FIRST_SECONDS", 0.001)
    await fill(site, 6)
    failing = [ApiError(429, "TooManyRequests", "later"), UnreachableError("cut"), ApiError(409, "Conflict", "faster")]

    async def meddle(name: str) -> None:
        if name == "n2":
            await site.client.delete(HOST_V1BETA1, "n2", "default")
        if name == "n4" and failing:
            raise failing.pop()

    meddled.before_patch = meddle
    done = {each.phase: each for each in await carried_out(meddled)}
    assert done[Phase.REWRITE].failures == []
    assert (done[Phase.REWRITE].done, done[Phase.REWRITE].unneeded) == (6, 1)
    assert await stored(site) == ["v1beta1"]


async def test_hardware_data_that_the_operator_makes_meanwhile_is_left_to_it(site: Site) -> None:
    await fill(site, 1)
    settings = MigrationSettings(settle=0)
    seen = await survey(site.client, settings.conversion, _quiet)
    assert seen.missing == [("default", "n0")]
    mine: Raw = {"metadata": {"name": "n0", "namespace": "default"}, "spec": {"hardware": {"hostname": "newer"}}}
    await site.client.create(
        HARDWARE_DATA, {"apiVersion": HARDWARE_DATA.api_version, "kind": HARDWARE_DATA.kind, **mine}
    )
    made = plan.make(seen, settings)
    done = [each async for each in carry_out.carry_out(site.client, made, seen, settings, _quiet)]
    assert (done[0].done, done[0].unneeded) == (0, 1)
    assert (await site.client.get(HARDWARE_DATA, "n0", "default"))["spec"] == mine["spec"]


async def test_host_that_can_not_be_written_is_named_and_keeps_the_old_version_listed(
    site: Site, meddled: Meddled, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(site, 6)

    async def meddle(name: str) -> None:
        if name == "n4":
            raise ApiError(422, "Invalid", "a policy of yours")

    meddled.before_patch = meddle
    done = (await carried_out(meddled))[-1]
    assert done.phase is Phase.REWRITE
    assert done.failures == ["BareMetalHost default/n4: a policy of yours (Invalid, 422)"]
    assert await stored(site) == ["v1alpha1", "v1beta1"]


async def test_definition_that_somebody_changes_at_the_same_time_keeps_both_changes(
    site: Site, meddled: Meddled
) -> None:
    await fill(site, 1)
    changes = [{"metadata": {"labels": {"somebody": "else"}}}]

    async def meddle(name: str) -> None:
        if name == NAME and changes:
            await site.client.patch(CRD, NAME, None, changes.pop())

    meddled.before_patch = meddle
    await carried_out(meddled)
    assert await stored(site) == ["v1beta1"]
    assert (await site.definition())["metadata"]["labels"] == {"somebody": "else"}


async def test_migration_is_done_with_its_role_and_needs_all_of_it(site: Site, tmp_path: Path) -> None:
    await fill(site, 4)
    nothing = {"metadata": {"name": "n0", "namespace": "default"}, "spec": {}}
    await site.client.create(
        HARDWARE_DATA, {"apiVersion": HARDWARE_DATA.api_version, "kind": HARDWARE_DATA.kind, **nothing}
    )
    [role] = [each for each in yaml.safe_load_all(ROLES.read_text()) if each["metadata"]["name"] == ROLE]
    allowed = {
        Grant(verb, group, resource, "", name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    standing = await gate(site, allowed, tmp_path)
    try:
        ran = await asyncio.to_thread(
            CliRunner().invoke,
            main,
            ["metal3-migrate", "--kubeconfig", str(standing.kubeconfig), "--settle", "0", "--apply",
             "--stop-serving-v1alpha1"],
        )  # fmt: skip
    finally:
        await standing.stop()
    assert ran.exit_code == 0, ran.output
    assert (await site.client.get(HARDWARE_DATA, "n0", "default"))["spec"]["hardware"] == HARDWARE
    assert standing.refused == []
    assert standing.unused() == []
