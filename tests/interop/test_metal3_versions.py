"""BareMetalHosts in both of their versions, read and written with kubectl, with and without the webhook; and the
migration of the stored hosts: planned, refused, carried out, killed and continued."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import signal
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from edge.cli import main
from tests.interop.conftest import Kubectl
from tests.interop.host_site import (
    HARDWARE,
    NEW,
    ROLES,
    Site,
    empty_site,
    gate,
    host,
    inspected,
    kubectl_there,
    site,
)
from tests.interop.privileges import Grant, grants
from tests.interop.rack import Process, tinkedge
from tests.ports import free_port
from tests.waiting import until
from tink.api.metal3.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import CONVERSION_DATA_ANNOTATION, ConversionSettings
from tink.kube.client import ApiError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import CRD, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1, SECRET, ResourceType
from tink.metal3 import migration
from tink.metal3.definition import NAME
from tink.metal3.migration import MigrationSettings, Phase, survey
from tink.metal3.webhook import HostConversion
from tink.webhooks import conversion
from tink.webhooks.certificates import AUTHORITY_LIFE, renewed
from tink.webhooks.server import MAX_REVIEW_BYTES, Webhooks, WebhookSettings

__all__ = ["empty_site", "kubectl_there", "site"]

ROLE = "tinkedge-metal3-migrate"
OLD_NAME, NEW_NAME = "baremetalhosts.v1alpha1.metal3.io", "baremetalhosts.v1beta1.metal3.io"


def new_host(name: str, annotations: Raw | None = None, **spec: Any) -> Raw:
    """Return a v1beta1 host."""
    metadata = {"name": name, "namespace": "default", "annotations": annotations or {}}
    return {"apiVersion": NEW, "kind": "BareMetalHost", "metadata": metadata, "spec": spec}


# --- kubectl ------------------------------------------------------------------------------------------------------


async def test_host_of_the_old_version_is_read_and_edited_in_the_new_one_and_loses_nothing(
    site: Site, kubectl_there: Kubectl
) -> None:
    await site.create(host("a", hardwareProfile="dell", image={"url": "http://x/i", "checksum": "0" * 32}))
    await site.set_status("a", inspected(hardwareProfile="dell"))
    seen = await kubectl_there.object(NEW_NAME, "a")
    assert seen["apiVersion"] == NEW
    assert seen["spec"]["poweredOn"] is True
    assert seen["spec"]["rootDeviceHints"] == {"hctl": "0:0:0:0"}
    assert seen["spec"]["image"]["checksumType"] == "md5"
    assert "hardware" not in seen["status"]

    edit = {"spec": {"poweredOn": False, "image": {"url": "http://x/j"}}}
    await kubectl_there("patch", NEW_NAME, "a", "--type=merge", "-p", json.dumps(edit))
    old = await site.old("a")
    assert old["spec"]["online"] is False
    assert old["spec"]["image"] == {"url": "http://x/j", "checksum": "0" * 32}
    assert old["spec"]["hardwareProfile"] == "dell"
    assert "rootDeviceHints" not in old["spec"]
    assert old["status"]["hardware"] == HARDWARE
    assert CONVERSION_DATA_ANNOTATION not in old["metadata"].get("annotations", {})

    await kubectl_there("patch", NEW_NAME, "a", "--type=json", "-p", '[{"op":"remove","path":"/spec/image"}]')
    assert "image" not in (await site.old("a"))["spec"], "the host would never be deprovisioned"


async def test_apply_of_the_new_version_is_created_unchanged_configured_and_readable_as_the_old(
    site: Site, kubectl_there: Kubectl
) -> None:
    spec = {"poweredOn": True, "rootDeviceHints": {"modelContains": "M"}, "image": {"url": "http://x/i"}}
    manifest = json.dumps(new_host("b", **spec))
    for verb in ("created", "unchanged"):
        assert verb in await kubectl_there("apply", "-f", "-", stdin=manifest)
    old = await site.old("b")
    assert old["spec"]["hardwareProfile"] == "empty", "the controller would choose /dev/sda"
    assert old["spec"]["rootDeviceHints"] == {"model": "M"}
    manifest = json.dumps(new_host("b", **spec | {"poweredOn": False}))
    assert "configured" in await kubectl_there("apply", "-f", "-", stdin=manifest)
    assert (await site.old("b"))["spec"]["online"] is False
    by_server = ("apply", "--server-side", "--field-manager=x", "--force-conflicts", "-f", "-")
    for _ in range(2):
        await kubectl_there(*by_server, stdin=manifest)
    await kubectl_there("delete", NEW_NAME, "b")
    assert "NotFound" in (await kubectl_there.run("get", OLD_NAME, "b")).err


async def test_error_names_the_absent_webhook_and_the_stored_version_still_works(
    site: Site, kubectl_there: Kubectl
) -> None:
    await site.create(host("a"))
    await site.stop_webhook()
    ran = await kubectl_there.run("get", NEW_NAME, "a")
    assert ran.code == 1
    assert "conversion webhook for metal3.io/v1alpha1, Kind=BareMetalHost failed: Post" in ran.err
    assert "refused" in ran.err
    assert (await kubectl_there.run("label", OLD_NAME, "a", "rack=7")).code == 0
    ran = await kubectl_there.run("apply", "-f", "-", stdin=json.dumps({**host("b"), "apiVersion": NEW}))
    assert ran.code == 1, "written without conversion, it would lose its power state"
    await site.start_webhook()
    assert (await site.new("a"))["spec"]["poweredOn"] is True
    assert (await kubectl_there.run("delete", OLD_NAME, "a")).code == 0


# --- the registration -----------------------------------------------------------------------------------------------


async def test_registration_is_repaired_follows_the_authority_and_stays_after_the_stop(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert site.webhooks is not None
    first = (await site.definition())["spec"]["conversion"]
    assert (first["strategy"], first["webhook"]["conversionReviewVersions"]) == ("Webhook", ["v1"])
    version = (await site.definition())["metadata"]["resourceVersion"]
    await site.webhooks.look_after()
    assert (await site.definition())["metadata"]["resourceVersion"] == version, "nothing has changed"
    assert "registered at" not in caplog.text, "the periodic check writes and logs nothing"

    elsewhere = {"service": {"namespace": "x", "name": "y", "port": 443}, "url": None}
    for change in ({"strategy": "None", "webhook": None}, {"webhook": {"clientConfig": elsewhere}}):
        await site.client.patch(CRD, NAME, None, {"spec": {"conversion": change}})
        await site.webhooks.look_after()
        assert (await site.definition())["spec"]["conversion"] == first

    await site.stop_webhook()
    assert (await site.definition())["spec"]["conversion"] == first
    await site.start_webhook()
    second = (await site.definition())["spec"]["conversion"]
    assert second["webhook"]["clientConfig"]["caBundle"] != first["webhook"]["clientConfig"]["caBundle"]
    await site.create(host("a"))
    assert (await site.new("a"))["spec"]["poweredOn"] is True


async def test_without_the_definition_there_is_a_warning_and_the_registration_comes_with_it(
    empty_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await empty_site.start_webhook(install=False)
    assert empty_site.webhooks is not None
    await empty_site.webhooks.look_after()
    assert caplog.text.count("there is no CustomResourceDefinition baremetalhosts.metal3.io") == 1
    for definition in generate():
        await empty_site.client.create(CRD, definition)
    await empty_site.webhooks.look_after()
    assert (await empty_site.definition())["spec"]["conversion"]["strategy"] == "Webhook"


async def test_stack_installs_definitions_and_webhook_only_with_the_option(tmp_path: Path) -> None:
    others = ("dhcp", "tftp", "http", "admin", "server", "controller", "webhooks")
    options = ["--data-dir", tmp_path, "--interface", "lo", "--api-port", str(free_port())]
    words = ["up", *options, *(word for name in others for word in ("--disable", name))]
    for more, expected_error in (([], NotFoundError), (["--metal3", "--empty-checksum-type", "auto"], None)):
        process = tinkedge(tmp_path, *words, *more)
        try:
            await until(lambda: "ready: " in process.err, lambda: process.err)  # noqa: B023
            client = await KubeClient.connect(tmp_path / "kubeconfig")
            try:
                if expected_error is not None:
                    with pytest.raises(expected_error):
                        await client.get(CRD, NAME, None)
                    continue
                await client.create(HOST_V1ALPHA1, host("a", image={"url": "x", "checksum": "0" * 32}))
                seen = await client.get(HOST_V1BETA1, "a", "default")
                assert seen["spec"]["image"]["checksumType"] == "auto"
            finally:
                await client.close()
        finally:
            assert await asyncio.to_thread(process.terminate) == 0, process.err


async def test_unreachable_webhook_is_not_started(site: Site, tmp_path: Path) -> None:
    process = tinkedge(tmp_path, "metal3-webhook", "--kubeconfig", site.api.kubeconfig)
    assert await asyncio.to_thread(process.status, 60) == 1
    assert "give --webhook-service or --webhook-url" in process.err


async def test_restart_updates_an_older_definition_and_keeps_the_result_of_a_migration(site: Site) -> None:
    definition = await site.definition()
    versions = [
        {**each, "storage": each["name"] == "v1beta1", "served": each["name"] == "v1beta1"}
        for each in definition["spec"]["versions"]
    ]
    del versions[1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["architecture"]
    await site.client.patch(CRD, NAME, None, {"spec": {"versions": versions}})
    await site.stop_webhook()
    await site.start_webhook()
    now = {each["name"]: each for each in (await site.definition())["spec"]["versions"]}
    assert {name: (each["served"], each["storage"]) for name, each in now.items()} == {
        "v1alpha1": (False, False),
        "v1beta1": (True, True),
    }
    assert "architecture" in now["v1beta1"]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


async def test_webhook_behind_a_service_registers_with_its_role_and_needs_every_rule(
    empty_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.kube.certificates.RELEASED", datetime(2000, 1, 1, tzinfo=UTC))  # authorities are old here
    for definition in generate():
        await empty_site.client.create(CRD, definition)
    await empty_site.client.create(
        ResourceType("", "v1", "namespaces", "Namespace", namespaced=False), {"metadata": {"name": "tinkedge"}}
    )
    (secret,) = [each for each in yaml.safe_load_all(ROLES.read_text()) if each["kind"] == "Secret"]
    await empty_site.client.create(SECRET, secret)
    standing = await gate(empty_site, grants("tinkedge-metal3-webhook", ROLES), tmp_path)
    client = await KubeClient.connect(standing.kubeconfig)
    address = WebhookSettings(service="tinkedge/tinkedge-metal3-webhook", port=free_port())
    try:
        for age in (timedelta(0), AUTHORITY_LIFE - timedelta(days=30)):  # the second one renews what the first left
            old = renewed(None, datetime.now(UTC) - age)
            webhooks = Webhooks(client, [HostConversion(ConversionSettings())], address)
            await webhooks.start()
            await webhooks.stop()
            kept = {"ca.crt": old.bundle(), "ca.key": old.private()}
            data = {name: base64.b64encode(pem).decode() for name, pem in kept.items()}
            await empty_site.client.patch(SECRET, secret["metadata"]["name"], "tinkedge", {"data": data})
        webhooks = Webhooks(client, [HostConversion(ConversionSettings())], address)
        await webhooks.start()
        running = asyncio.create_task(webhooks.run())
        await until(lambda: not any(grant.verb == "watch" for grant in standing.unused()))
        running.cancel()
        await webhooks.stop()
    finally:
        await client.close()
        await standing.stop()
    config = (await empty_site.definition())["spec"]["conversion"]["webhook"]["clientConfig"]
    where = {"namespace": "tinkedge", "name": "tinkedge-metal3-webhook", "port": 443, "path": "/convert"}
    assert config["service"] == where
    assert base64.b64decode(config["caBundle"]).count(b"BEGIN CERTIFICATE") == 2, "the old one is still trusted"
    assert standing.refused == []
    assert standing.unused() == []


# --- requests of an API server --------------------------------------------------------------------------------------


async def posted(site: Site, body: Any, **more: Any) -> tuple[int, str]:
    config = (await site.definition())["spec"]["conversion"]["webhook"]["clientConfig"]
    context = ssl.create_default_context(cadata=base64.b64decode(config["caBundle"]).decode())
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with aiohttp.ClientSession() as session, session.post(config["url"], data=data, ssl=context, **more) as got:
        return got.status, await got.text()


async def test_invalid_too_large_or_too_slow_review_is_rejected(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    no_review = "no ConversionReview: apiVersion must be apiextensions.k8s.io/v1, not null\n"
    assert await posted(site, b"{}") == (400, no_review)
    assert (await posted(site, b" " * (MAX_REVIEW_BYTES + 1)))[0] == 413
    reading = conversion._READ_SECONDS
    monkeypatch.setattr(conversion, "_READ_SECONDS", 0.3)

    async def slowly() -> Any:
        yield b"{"
        await asyncio.Event().wait()  # until the webhook gives up

    results = await asyncio.gather(*(posted(site, slowly()) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, aiohttp.ClientError) or each[0] == 408 for each in results), results  # type: ignore[index]
    monkeypatch.setattr(conversion, "_READ_SECONDS", reading)
    assert (await posted(site, b" " * MAX_REVIEW_BYTES))[0] == 400, "the slow ones hold no place any more"


async def test_large_review_delays_no_other_review(site: Site) -> None:
    objects = [{**host(f"n{number}"), "status": inspected()["status"]} for number in range(499)]
    objects.append(
        {**host("odd"), "metadata": {"name": "odd", "annotations": {CONVERSION_DATA_ANNOTATION: '{"spec":'}}}
    )
    request = {"uid": "u", "desiredAPIVersion": NEW, "objects": objects}
    body = json.dumps({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request})
    large = asyncio.create_task(posted(site, body.encode()))
    await posted(site, b"{}")
    status, text = await large
    assert status == 200
    assert len(json.loads(text)["response"]["convertedObjects"]) == 500


# --- the migration --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def command(site: Site, *options: str) -> list[str]:
    return ["metal3-migrate", "--kubeconfig", str(site.api.kubeconfig), "--settle", "0", *options]


async def migrate(site: Site, *options: str) -> Ran:
    """Run the command in a thread of this process, ten times as fast as in a process of its own."""
    ran = await asyncio.to_thread(CliRunner().invoke, main, command(site, *options))
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return Ran(ran.exit_code, ran.stdout, ran.stderr)


async def all_objects(site: Site) -> dict[str, Raw]:
    """Return all hosts as v1alpha1, without the fields that the API server writes."""
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
    await site.create(new_host("native", poweredOn=True, image={"url": "http://x/i", "checksumType": "auto"}))


async def write_details(site: Site, name: str, **spec: Any) -> None:
    """Write a HardwareData as another program does."""
    obj = {"apiVersion": HARDWARE_DATA.api_version, "kind": HARDWARE_DATA.kind, "spec": spec}
    await site.client.create(HARDWARE_DATA, obj | {"metadata": {"name": name, "namespace": "default"}})


async def details(site: Site, name: str) -> Raw:
    found: Raw = (await site.client.get(HARDWARE_DATA, name, "default"))["spec"]
    return found


async def stored(site: Site) -> list[str]:
    versions: list[str] = (await site.definition())["status"]["storedVersions"]
    return versions


async def test_hosts_are_migrated_completely_and_the_plan_changes_nothing(site: Site) -> None:
    await fill(site, 12)
    before, definition = await all_objects(site), await site.definition()
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
    done = ("hardware-data: 4 done", "storage: 1 done", "rewrite: 13 done", "stored-versions: 1 done")
    assert ran.err.splitlines() == [*done]
    assert await stored(site) == ["v1beta1"]
    assert await all_objects(site) == before
    await site.stop_webhook()
    assert len((await site.client.list(HOST_V1BETA1))["items"]) == 13, "all can be read without the webhook"
    for made in (await site.client.list(HARDWARE_DATA))["items"]:
        assert made["spec"]["hardware"] == HARDWARE
        [owner] = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["apiVersion"]) == ("BareMetalHost", made["metadata"]["name"], NEW)
        assert "blockOwnerDeletion" not in owner, "OpenShift refuses it without rights on the host's finalizers"


async def test_killed_migration_is_continued_and_a_complete_one_changes_nothing(site: Site, tmp_path: Path) -> None:
    await fill(site, 60)
    before = await all_objects(site)
    versions = await resource_versions(site)
    killed = []
    for phase in (Phase.HARDWARE_DATA, Phase.STORAGE, Phase.REWRITE):
        process = tinkedge(tmp_path, *command(site, "--apply"))

        async def is_reached(process: Process = process, phase: Phase = phase) -> bool:
            return process.popen.poll() is not None or await _reached(site, phase, versions)

        await until(is_reached)
        process.popen.kill()
        killed.append(process.status())
    assert -signal.SIGKILL in killed, "nothing was interrupted"
    ran = await migrate(site, "--apply", "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["outcome"] == "finished"
    assert await stored(site) == ["v1beta1"]
    assert await all_objects(site) == before
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


async def test_phases_run_one_by_one_and_the_old_version_is_removed_only_on_request(site: Site) -> None:
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
    assert "clients that ask for v1alpha1 then get 404" in ran.out
    definition = await site.definition()
    assert definition["status"]["storedVersions"] == ["v1beta1"]
    assert [each["name"] for each in definition["spec"]["versions"] if each["served"]] == ["v1beta1"]
    ran = await migrate(site, "--apply", "--stop-serving-v1alpha1")
    assert (ran.code, ran.err) == (0, "")
    assert (await migrate(site, "--through", "storage", "--stop-serving-v1alpha1")).code == 2


# --- obstacles ------------------------------------------------------------------------------------------------------


async def refused(site: Site, *options: str) -> str:
    definition = await site.definition()
    ran = await migrate(site, "--apply", *options)
    assert ran.code == 2, ran.out + ran.err
    assert await site.definition() == definition
    assert (await site.client.list(HARDWARE_DATA))["items"] == []
    return ran.out


async def test_obstacle_is_reported_with_field_values_and_remedy(site: Site) -> None:
    await site.create(host("a", image={"url": "http://x/i", "checksum": "0" * 32}))
    message = await refused(site, "--empty-checksum-type", "auto")
    assert 'differs: default/a spec.image.checksumType: "auto" -> "md5" (v1beta1 as it is served: another' in message
    assert (await migrate(site)).code == 0

    await site.create(host("b", description="the only one"))
    versions = (await site.definition())["spec"]["versions"]
    without = json.loads(json.dumps(versions))
    del without[1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["description"]
    await site.client.patch(CRD, NAME, None, {"spec": {"versions": without}})
    message = await refused(site)
    assert 'default/b spec.description: "the only one" -> nothing (v1beta1 as it is served' in message
    await site.client.patch(CRD, NAME, None, {"spec": {"versions": versions}})

    await site.stop_webhook()
    message = await refused(site)
    assert "hosts can't be converted: conversion webhook for" in message
    assert "Does the webhook run?" in message
    await site.start_webhook()

    await site.create(host("c", image={"url": "http://x/i", "checksum": "0" * 64}))
    message = await refused(site)
    assert (
        'default/c spec.image.checksumType: nothing -> "md5" (the checksum is not MD5: see --empty-checksum' in message
    )
    assert "correct them, or use --accept-differences" in message
    assert (await migrate(site, "--apply", "--accept-differences")).code == 0
    assert await stored(site) == ["v1beta1"]


async def test_unsuitable_definitions_are_rejected_with_the_remedy(empty_site: Site) -> None:
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


async def test_odd_hosts_are_noted_and_moved_and_no_hardware_data_is_overwritten(site: Site) -> None:
    await fill(site, 1)
    mine = {"hardware": {"hostname": "other"}}
    await write_details(site, "n0", **mine)
    disks = [{"name": f"/dev/sd{number}", "sizeBytes": number, "serialNumber": "S" * 300} for number in range(800)]
    await site.create(host("a"))
    await site.set_status("a", inspected(hardware={"storage": disks}))  # too large for the annotation
    for number, text in enumerate(("{", "7", '{"spec": {"hardwareProfile": 7}}')):
        await site.create(new_host(f"odd{number}", {CONVERSION_DATA_ANNOTATION: text}, poweredOn=True))
    ran = await migrate(site, "--apply")
    assert ran.code == 0, ran.out
    assert "note: 1 HardwareData say something else than status.hardware of their host" in ran.out
    assert "note: default/a status.hardware: " in ran.out
    assert await details(site, "n0") == mine
    assert len((await details(site, "a"))["hardware"]["storage"]) == 800
    assert await stored(site) == ["v1beta1"]


async def test_unreachable_api_is_a_failure_in_both_formats_of_the_report(site: Site) -> None:
    await site.api.stop()
    ran = await migrate(site)
    assert (ran.code, ran.out) == (1, "")
    assert "not finished: GET https://127.0.0.1" in ran.err
    ran = await migrate(site, "-o", "json")
    assert ran.code == 1
    assert json.loads(ran.out)["outcome"] == "failed"


# --- changes during the migration -----------------------------------------------------------------------------------


class Meddled(KubeClient):
    """A client whose calls fail, or are preceded by changes of other clients, as a test configures it."""

    before_patch: Callable[[str], Awaitable[None]]

    async def patch(self, resource: Any, name: str, namespace: str | None, patch: Raw, **more: Any) -> Raw:
        await self.before_patch(name)
        return await super().patch(resource, name, namespace, patch, **more)


@pytest.fixture
async def meddled(site: Site) -> Any:
    async with await Meddled.connect(site.api.kubeconfig) as client:
        yield client


async def carried_out(client: KubeClient) -> list[migration.Done]:
    settings = MigrationSettings(settle=0)
    seen = await survey(client, settings.conversion, _quiet)
    made = migration.make_plan(seen, settings)
    assert not made.problems
    return [done async for done in migration.carry_out(client, made, seen, settings, _quiet)]


def _quiet(what: str, count: int, total: int) -> None:
    pass


async def test_objects_deleted_or_changed_meanwhile_and_failing_calls_are_no_problem(
    site: Site, meddled: Meddled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "_RETRY_FIRST_SECONDS", 0.001)
    await fill(site, 6)
    failing = [ApiError(429, "TooManyRequests", "later"), UnreachableError("cut"), ApiError(409, "Conflict", "faster")]
    changes = [{"metadata": {"labels": {"somebody": "else"}}}]

    async def meddle(name: str) -> None:
        if name == "n2":
            await site.client.delete(HOST_V1BETA1, "n2", "default")
        if name == "n4" and failing:
            raise failing.pop()
        if name == NAME and changes:
            await site.client.patch(CRD, NAME, None, changes.pop())

    meddled.before_patch = meddle
    done = {each.phase: each for each in await carried_out(meddled)}
    assert done[Phase.REWRITE].failures == []
    assert (done[Phase.REWRITE].done, done[Phase.REWRITE].unneeded) == (6, 1)
    assert await stored(site) == ["v1beta1"]
    assert (await site.definition())["metadata"]["labels"] == {"somebody": "else"}


async def test_hardware_data_that_the_operator_creates_meanwhile_is_not_changed(site: Site) -> None:
    await fill(site, 1)
    settings = MigrationSettings(settle=0)
    seen = await survey(site.client, settings.conversion, _quiet)
    assert seen.missing == [("default", "n0")]
    mine = {"hardware": {"hostname": "newer"}}
    await write_details(site, "n0", **mine)
    made = migration.make_plan(seen, settings)
    done = [each async for each in migration.carry_out(site.client, made, seen, settings, _quiet)]
    assert (done[0].done, done[0].unneeded) == (0, 1)
    assert await details(site, "n0") == mine


async def test_host_that_can_not_be_written_is_named_and_keeps_the_old_version_listed(
    site: Site, meddled: Meddled
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


async def test_migration_works_with_its_role_and_needs_every_rule(site: Site, tmp_path: Path) -> None:
    await fill(site, 4)
    await write_details(site, "n0")
    [role] = [each for each in yaml.safe_load_all(ROLES.read_text()) if each["metadata"]["name"] == ROLE]
    allowed = {
        Grant(verb, group, resource, "", name)
        for rule in role["rules"] for verb in rule["verbs"] for group in rule["apiGroups"]
        for resource in rule["resources"] for name in rule.get("resourceNames", [""])
    }  # fmt: skip
    standing = await gate(site, allowed, tmp_path)
    try:
        options = ["--kubeconfig", str(standing.kubeconfig), "--settle", "0", "--apply", "--stop-serving-v1alpha1"]
        ran = await asyncio.to_thread(CliRunner().invoke, main, ["metal3-migrate", *options])
    finally:
        await standing.stop()
    assert ran.exit_code == 0, ran.output
    assert (await details(site, "n0"))["hardware"] == HARDWARE
    assert standing.refused == []
    assert standing.unused() == []
