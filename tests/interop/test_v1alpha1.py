"""v1alpha1 beside v1alpha2: the embedded API answers as a kube-apiserver with our conversion webhook.

`webhooks/v1alpha1.json` has a real kube-apiserver's answers to CAPT's requests; `webhooks/v1alpha1.py` records them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api import serving
from tests.interop.authority import Authority
from tests.interop.privileges import Gate, Upstream, grants
from tests.interop.rack import tinkedge
from tests.interop.webhooks import v1alpha1 as recorder
from tests.ports import free_port
from tests.unit.versions.test_served import machine
from tests.waiting import until
from tink import versions
from tink.api.crds import generate, generate_bmc
from tink.controller import UpstreamWatch, followed_definitions
from tink.kube.client import KubeClient
from tink.kube.resources import CRD, HARDWARE, NAMESPACE, OLD_HARDWARE, SECRET
from tink.webhooks.conversion import definitions_with_v1alpha1, served_v1alpha1
from tink.webhooks.server import Webhooks, WebhookSettings

RECORDED = json.loads((Path(recorder.__file__).parent / "v1alpha1.json").read_text())
DEPLOY = Path(__file__).parents[2] / "deploy"
BY_WEBHOOK, IN_PROCESS = "by the webhook", "in the process of the API"


@contextlib.asynccontextmanager
async def player(directory: Path, where: str) -> AsyncIterator[recorder.Player]:
    here = where == IN_PROCESS
    converters = dict.fromkeys(versions.DEFINITIONS, versions) if here else {}
    async with (
        serving(directory, generate(serve_v1alpha1=here), converters=converters) as (_, client),
        recorder.serving_webhooks(client, *([] if here else [served_v1alpha1()])),
    ):
        yield await recorder.player(client)


@pytest.mark.parametrize("where", [BY_WEBHOOK, IN_PROCESS])
async def test_requests_of_capt_are_answered_as_by_a_cluster(tmp_path: Path, where: str) -> None:
    async with player(tmp_path, where) as playing:
        played = await playing.play()
    for ours, theirs in zip(played["answers"], RECORDED["answers"], strict=True):
        assert ours == theirs, theirs["shows"]
    assert played["list"] == RECORDED["list"]
    assert played["list"]["items"] == recorder.MACHINES + 1
    if where == BY_WEBHOOK:
        ours, theirs = (list(map(_failure, limits)) for limits in (played["limits"], RECORDED["limits"]))
        assert ours == theirs
    else:
        assert [(each["shows"], each["code"]) for each in played["limits"]] == [
            (shows, code)
            for (shows, *_), code in zip(recorder.LIMITS, [201, 200, 200, 422, 200, 200, 404, 422], strict=True)
        ]


def _failure(answer: dict[str, Any]) -> Any:
    """Return an answer; the code and the words of the webhook if a conversion failed.

    A kube-apiserver puts different words before them, by the step of the write.
    """
    _, failed, words = str(answer["object"].get("message")).partition(" failed: ")
    return (answer["code"], words) if failed else answer


@pytest.mark.parametrize(("where", "osie"), [(BY_WEBHOOK, RECORDED["replaced"]), (IN_PROCESS, {"name": "hook"})])
async def test_only_the_embedded_api_restores_fields_that_a_replaced_object_lacks(
    tmp_path: Path, where: str, osie: Any
) -> None:
    assert RECORDED["replaced"] == {"name": "default"}
    async with player(tmp_path, where) as playing:
        assert await playing.replace() == osie


async def test_hardware_keeps_its_owner_while_no_webhook_answers(tmp_path: Path) -> None:
    codes = {each["shows"]: each["code"] for each in RECORDED["outage"]}
    assert codes.pop("no other machine takes it") == 500
    assert set(codes.values()) == {200}
    async with serving(tmp_path / "state", generate()) as (_, client):
        await recorder.break_webhooks(client, Authority(tmp_path).file.read_bytes())
        assert await (await recorder.player(client)).outage() == RECORDED["outage"]


async def test_controller_registers_with_its_rights_and_needs_every_rule(tmp_path: Path) -> None:
    definitions = [*definitions_with_v1alpha1("tinkedge", "tinkedge-webhooks"), *generate_bmc()]
    async with serving(tmp_path / "state", definitions) as (api, client):
        await client.create(NAMESPACE, {"metadata": {"name": "tinkedge"}})
        documents = yaml.safe_load_all((DEPLOY / "webhooks.yaml").read_text())
        (secret,) = [each for each in documents if each["kind"] == "Secret"]
        await client.create(SECRET, secret)
        standing = Gate("", Upstream.read(api.kubeconfig), tmp_path)
        rights = grants("tinkedge-controller", DEPLOY / "rbac-v1alpha1.yaml")
        standing.allow(rights | {each for each in grants("tinkedge-controller") if each.resource == "secrets"})
        await standing.start()
        limited = await KubeClient.connect(standing.kubeconfig)
        address = WebhookSettings(service="tinkedge/tinkedge-webhooks", port=free_port())
        webhooks = Webhooks(limited, [served_v1alpha1()], address)
        try:
            await webhooks.start()
            await webhooks.stop()
            watch = UpstreamWatch(limited, followed_definitions(is_embedded=False, serves_v1alpha1=True, has_bmc=True))
            watching = asyncio.create_task(watch.run())
            await until(lambda: not rights & set(standing.unused()), lambda: standing.unused())
            watching.cancel()
            await asyncio.wait([watching])
            assert watch.note == ""
        finally:
            await limited.close()
            await standing.stop()
        assert list(webhooks.notes) == []
        assert standing.refused == []
        assert not rights & set(standing.unused())
        for name in versions.DEFINITIONS:
            found = await client.get(CRD, name, None)
            assert found["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]


async def test_controller_serves_v1alpha1_on_request(tmp_path: Path) -> None:
    port = free_port()
    controller = (
        "controller",
        "--disable",
        "webhooks",
        "--serve-v1alpha1",
        "--health-address",
        f"127.0.0.1:{free_port()}",
    )
    url = ("--webhook-url", f"https://127.0.0.1:{port}", "--webhook-port", str(port))
    async with serving(tmp_path / "state", generate()) as (api, client):
        process = tinkedge(tmp_path, *controller, *url, "--kubeconfig", api.kubeconfig)
        try:
            await until(lambda: "ready: " in process.err, lambda: process.err)
            await client.create(OLD_HARDWARE, machine())
            assert (await client.get(HARDWARE, "hw1", "default"))["spec"]["storageDevices"] == ["/dev/sda"]
        finally:
            assert await asyncio.to_thread(process.terminate) == 0, process.err
        unreached = tinkedge(tmp_path, *controller, "--kubeconfig", api.kubeconfig)
        assert await asyncio.to_thread(unreached.status, 60) == 1
        assert "give --webhook-service or --webhook-url" in unreached.err
