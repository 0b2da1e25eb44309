"""The admission webhooks from the view of an API server: over TLS, registered, with messages for users.

`webhooks/answers.json` holds a real kube-apiserver's use of them; `webhooks/record.py` records it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api import serving
from tests.interop.webhooks import record as recorder
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import HARDWARE, OSIE, TEMPLATE, WORKFLOW
from tink.webhooks.admission import Admission, ReviewPlugin
from tink.webhooks.registration import CONFIGURATION, NAME, configuration
from tink.webhooks.server import MAX_REVIEW_BYTES, Webhooks

DIRECTORY = Path(__file__).parent / "webhooks"
RECORDED = json.loads((DIRECTORY / "answers.json").read_text())


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with serving(tmp_path, generate()) as (_, client):
        yield client


@pytest.fixture
async def webhooks(client: KubeClient) -> AsyncIterator[Webhooks]:
    served, tasks = await recorder.serve(client)
    yield served
    await served.stop()
    for task in tasks:
        task.cancel()


async def registered(client: KubeClient) -> Raw | None:
    with contextlib.suppress(NotFoundError):
        return await client.get(CONFIGURATION, NAME, None)
    return None


def review(kind: str, operation: str, new: Any = None, old: Any = None, **more: Any) -> Raw:
    request = {"uid": "u-1", "kind": {"kind": kind}, "operation": operation, "namespace": "default", **more}
    request |= {"object": new, "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


class Asked:
    """A client that trusts only the certificates in the registration, like an API server."""

    def __init__(self, configuration: Raw) -> None:
        config = configuration["webhooks"][0]["clientConfig"]
        self.url = config["url"]
        self._context = ssl.create_default_context(cadata=base64.b64decode(config["caBundle"]).decode())

    async def __call__(self, body: Any, path: str | None = None) -> tuple[int, Any]:
        url = self.url if path is None else self.url.rpartition("/admission")[0] + path
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        as_json = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(headers=as_json) as session,
            session.post(url, data=data, ssl=self._context) as got,
        ):
            return got.status, await got.json() if got.status == 200 else await got.text()


@pytest.fixture
async def ask(webhooks: Webhooks) -> Asked:
    [hook] = webhooks._hooks
    return Asked(configuration(webhooks.address(hook), webhooks._bundle, "Ignore"))


# --- through the embedded API ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["over HTTPS", "in the process of the API"])
async def test_embedded_api_reports_the_same_errors_as_a_cluster(tmp_path: Path, where: str) -> None:
    plugin = ReviewPlugin(lambda *key: api.find(*key)) if where != "over HTTPS" else None
    async with serving(tmp_path, generate(), plugin) as (api, client), contextlib.AsyncExitStack() as exits:
        if plugin is None:
            served, tasks = await recorder.serve(client)
            exits.push_async_callback(served.stop)
        else:
            informers = {resource: Informer(client, resource) for resource in (HARDWARE, OSIE, TEMPLATE, WORKFLOW)}
            plugin.follow(informers)
            tasks = [asyncio.create_task(informer.run()) for informer in informers.values()]
            for informer in informers.values():
                await informer.wait_for_cache_sync()
        for task in tasks:
            exits.callback(task.cancel)
        answers = await recorder.play(client._session, client.url, dict(await client._authorize()))
    for ours, theirs in zip(answers, RECORDED["answers"], strict=True):
        assert ours == theirs, theirs["shows"]


async def test_registration_is_removed_at_a_clean_stop_and_repaired_while_serving(
    client: KubeClient, webhooks: Webhooks
) -> None:
    first = await registered(client)
    assert first is not None
    policies = {webhook["name"].partition(".")[0]: webhook["failurePolicy"] for webhook in first["webhooks"]}
    assert policies.pop("hardware") == "Fail"
    assert set(policies.values()) == {"Ignore"}
    assert {webhook["sideEffects"] for webhook in first["webhooks"]} == {"None"}

    async def looked_after() -> Raw:
        await webhooks.look_after()
        found = await registered(client)
        assert found is not None
        assert found["webhooks"] == first["webhooks"]
        return found

    await client.delete(CONFIGURATION, NAME, None)
    await looked_after()
    broken = [{**webhook, "failurePolicy": "Fail"} for webhook in first["webhooks"]]
    await client.patch(CONFIGURATION, NAME, None, {"webhooks": broken})
    repaired = await looked_after()
    assert await looked_after() == repaired, "nothing is written when nothing has changed"
    await webhooks.stop()
    assert await registered(client) is None


# --- what an API server sends ---------------------------------------------------------------------------------------


async def test_review_is_answered_with_its_uid_over_tls_that_the_bundle_vouches_for(ask: Asked) -> None:
    status, answer = await ask(review("Template", "CREATE", {"spec": {"actions": [{"image": "{{ if }}"}]}}, name="t"))
    assert status == 200
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (answer["response"]["uid"], answer["response"]["allowed"]) == ("u-1", False)
    assert answer["response"]["status"]["details"]["causes"] == [
        {
            "field": "spec.actions[0].image",
            "message": "is no Go template: line 1, column 6: missing value for if",
            "reason": "FieldValueInvalid",
        }
    ]


@pytest.mark.parametrize(("policy", "let_in"), [("Fail", 0), ("Ignore", 1)])
async def test_review_that_fails_leaves_the_write_to_the_failure_policy_and_is_counted(
    webhooks: Webhooks, ask: Asked, monkeypatch: pytest.MonkeyPatch, policy: str, let_in: int
) -> None:
    [hook] = webhooks._hooks
    assert isinstance(hook, Admission)
    monkeypatch.setattr(hook, "_failure_policy", policy)
    monkeypatch.setattr("tink.webhooks.reviewer.claims_of", lambda _: 1 / 0)
    status, text = await ask(review("Hardware", "CREATE", recorder.hardware("m", (1, "10.9.9.9"))))
    assert status == 500
    assert text == "the review has failed: division by zero\n"
    assert hook.metrics.unreviewed == let_in
    notes = " ".join(webhooks.notes)
    assert ("1 writes were let in unreviewed" in notes) == bool(let_in)
    assert ("--webhook-failure-policy Ignore" in notes) == (policy == "Ignore")


async def test_invalid_too_large_or_misdirected_review_is_refused(ask: Asked) -> None:
    odd: list[bytes] = [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"request": []}',
        b'{"request": {}}',
        b'{"request": {"uid": 7}}',
        b"[" * 100_000,
    ]
    for body in odd:
        status, text = await ask(body)
        assert (status, "no AdmissionReview" in text) == (400, True)
    assert (await ask(b" " * (MAX_REVIEW_BYTES + 1)))[0] == 413
    for path in ("/admission", "/", "/admission/guess"):
        assert (await ask(review("Hardware", "CREATE"), path))[0] == 404
