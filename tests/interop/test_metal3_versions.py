"""BareMetalHosts in both of their versions, as kubectl's users see them, with the webhook and without."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.interop.conftest import Kubectl
from tests.interop.host_site import (
    HARDWARE,
    NEW,
    OLD,
    ROLES,
    Site,
    empty_site,
    gate,
    host,
    inspected,
    kubectl_there,
    site,
)
from tests.interop.privileges import grants
from tests.interop.rack import tinkedge
from tests.ports import free_port
from tests.waiting import until
from tink.api.metal3.crds import generate
from tink.convert.metal3 import ConversionSettings
from tink.convert.metal3.conversion_data import ANNOTATION
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import CRD, HOST_V1ALPHA1, HOST_V1BETA1, SECRET, ResourceType
from tink.metal3 import webhook
from tink.metal3.definition import NAME
from tink.metal3.webhook import HostConversion
from tink.webhooks import Webhooks, WebhookSettings
from tink.webhooks.certificates import AUTHORITY_LIFE, renewed

__all__ = ["empty_site", "kubectl_there", "site"]

OLD_NAME, NEW_NAME = "baremetalhosts.v1alpha1.metal3.io", "baremetalhosts.v1beta1.metal3.io"


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
    assert ANNOTATION not in old["metadata"].get("annotations", {})

    await kubectl_there("patch", NEW_NAME, "a", "--type=json", "-p", '[{"op":"remove","path":"/spec/image"}]')
    assert "image" not in (await site.old("a"))["spec"], "the host would never be deprovisioned"


async def test_apply_of_the_new_version_is_created_unchanged_configured_and_readable_as_the_old(
    site: Site, kubectl_there: Kubectl
) -> None:
    manifest = {
        "apiVersion": NEW,
        "kind": "BareMetalHost",
        "metadata": {"name": "b"},
        "spec": {"poweredOn": True, "rootDeviceHints": {"modelContains": "M"}, "image": {"url": "http://x/i"}},
    }
    for said in ("created", "unchanged"):
        assert said in await kubectl_there("apply", "-f", "-", stdin=json.dumps(manifest))
    old = await site.old("b")
    assert old["spec"]["hardwareProfile"] == "empty", "the controller would choose /dev/sda"
    assert old["spec"]["rootDeviceHints"] == {"model": "M"}
    manifest["spec"]["poweredOn"] = False  # type: ignore[index]
    assert "configured" in await kubectl_there("apply", "-f", "-", stdin=json.dumps(manifest))
    assert (await site.old("b"))["spec"]["online"] is False
    for _ in range(2):
        await kubectl_there("apply", "--server-side", "--field-manager=x", "--force-conflicts", "-f", "-",
                            stdin=json.dumps(manifest))  # fmt: skip
    await kubectl_there("delete", NEW_NAME, "b")
    assert "NotFound" in (await kubectl_there.run("get", OLD_NAME, "b")).err


async def test_list_of_500_and_a_broken_annotation_among_them_is_shown_whole(
    site: Site, kubectl_there: Kubectl
) -> None:
    for start in range(0, 500, 50):
        await asyncio.gather(*(site.create(host(f"n{start + more}")) for more in range(50)))
    broken = {"apiVersion": NEW, "kind": "BareMetalHost", "spec": {"poweredOn": True}}
    broken["metadata"] = {"name": "odd", "namespace": "default", "annotations": {ANNOTATION: '{"spec":'}}
    await site.create(broken)
    for name, api_version in ((NEW_NAME, NEW), (OLD_NAME, OLD)):
        ran = await kubectl_there.run("get", name, "-o", "json")
        assert ran.code == 0, ran.err
        items = json.loads(ran.out)["items"]
        assert len(items) == 501
        assert {item["apiVersion"] for item in items} == {api_version}


async def test_user_reads_why_while_no_webhook_answers_and_the_stored_version_still_works(
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


async def test_registration_is_mended_follows_the_authority_and_stays_when_we_stop(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert site.webhooks is not None
    first = (await site.definition())["spec"]["conversion"]
    assert (first["strategy"], first["webhook"]["conversionReviewVersions"]) == ("Webhook", ["v1"])
    version = (await site.definition())["metadata"]["resourceVersion"]
    await site.webhooks.look_after()
    assert (await site.definition())["metadata"]["resourceVersion"] == version, "nothing has changed"
    assert "registered at" not in caplog.text, "and nothing is written or told each minute"

    await site.client.patch(CRD, NAME, None, {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
    await site.webhooks.look_after()
    assert (await site.definition())["spec"]["conversion"] == first

    elsewhere = {"service": {"namespace": "x", "name": "y", "port": 443}, "url": None}
    await site.client.patch(CRD, NAME, None, {"spec": {"conversion": {"webhook": {"clientConfig": elsewhere}}}})
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


async def test_stack_brings_definitions_and_webhook_when_asked_and_not_else(tmp_path: Path) -> None:
    others = ("dhcp", "tftp", "http", "admin", "server", "controller", "webhooks")
    options = ["--data-dir", tmp_path, "--interface", "lo", "--api-port", str(free_port())]
    words = ["up", *options, *(word for name in others for word in ("--disable", name))]
    for more, found in (([], NotFoundError), (["--metal3", "--empty-checksum-type", "auto"], None)):
        process = tinkedge(tmp_path, *words, *more)
        try:
            await until(lambda: "ready: " in process.err, lambda: process.err)  # noqa: B023
            client = await KubeClient.connect(tmp_path / "kubeconfig")
            try:
                if found is not None:
                    with pytest.raises(found):
                        await client.get(CRD, NAME, None)
                    continue
                await client.create(HOST_V1ALPHA1, host("a", image={"url": "x", "checksum": "0" * 32}))
                seen = await client.get(HOST_V1BETA1, "a", "default")
                assert seen["spec"]["image"]["checksumType"] == "auto"
            finally:
                await client.close()
        finally:
            assert await asyncio.to_thread(process.terminate) == 0, process.err


async def test_webhook_that_nobody_could_reach_is_not_started(site: Site, tmp_path: Path) -> None:
    process = tinkedge(tmp_path, "metal3-webhook", "--kubeconfig", site.api.kubeconfig)
    assert await asyncio.to_thread(process.status, 60) == 1
    assert "give --webhook-service or --webhook-url" in process.err


async def test_restart_updates_an_older_definition_and_leaves_what_a_migration_decided(site: Site) -> None:
    found = await site.definition()
    versions = [
        {**each, "storage": each["name"] == "v1beta1", "served": each["name"] == "v1beta1"}
        for each in found["spec"]["versions"]
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


async def test_webhook_behind_a_service_registers_with_its_role_and_needs_all_of_it(
    empty_site: Site, tmp_path: Path
) -> None:
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


# --- what an API server sends ---------------------------------------------------------------------------------------


async def posted(site: Site, body: Any, **more: Any) -> tuple[int, str]:
    config = (await site.definition())["spec"]["conversion"]["webhook"]["clientConfig"]
    context = ssl.create_default_context(cadata=base64.b64decode(config["caBundle"]).decode())
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with aiohttp.ClientSession() as session, session.post(config["url"], data=data, ssl=context, **more) as got:
        return got.status, await got.text()


async def test_what_is_no_review_is_a_bad_request_in_clear_words(site: Site) -> None:
    status, text = await posted(site, b"{}")
    assert (status, text) == (400, "no ConversionReview: apiVersion must be apiextensions.k8s.io/v1, not null\n")


async def test_too_large_and_too_slow_a_review_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "LARGEST", 1 << 21)
    assert (await posted(site, b" " * ((1 << 21) + 1)))[0] == 413
    reading = webhook._READ_SECONDS
    monkeypatch.setattr(webhook, "_READ_SECONDS", 0.3)

    async def slowly() -> Any:
        yield b"{"
        await asyncio.sleep(2)

    results = await asyncio.gather(*(posted(site, slowly()) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, aiohttp.ClientError) or each[0] == 408 for each in results), results  # type: ignore[index]
    monkeypatch.setattr(webhook, "_READ_SECONDS", reading)
    assert (await posted(site, b" " * (1 << 21)))[0] == 400, "the slow ones hold no place any more"


async def test_large_review_is_answered_while_the_webhook_answers_others(site: Site) -> None:
    objects = [{**host(f"n{number}"), "status": inspected()["status"]} for number in range(1500)]
    request = {"uid": "u", "desiredAPIVersion": NEW, "objects": objects}
    body = json.dumps({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request})
    large = asyncio.create_task(posted(site, body.encode()))
    await posted(site, b"{}")
    status, text = await large
    assert status == 200
    assert len(json.loads(text)["response"]["convertedObjects"]) == 1500


async def test_host_with_a_hardware_too_large_for_annotations_can_be_read_in_both_versions(site: Site) -> None:
    disks = [{"name": f"/dev/disk/by-path/pci-0000:3b:00.0-sas-exp0x500{n:06}-phy{n}", "sizeBytes": n,
              "serialNumber": "S" * 200, "wwn": "0x" + "5" * 100} for n in range(800)]  # fmt: skip
    await site.create(host("a"))
    await site.set_status("a", inspected(hardware={"storage": disks}))
    new = await site.new("a")
    assert sum(len(k) + len(v) for k, v in new["metadata"]["annotations"].items()) <= 262_144
    assert len((await site.old("a"))["status"]["hardware"]["storage"]) == 800
