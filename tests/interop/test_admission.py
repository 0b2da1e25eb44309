"""Webhooks from the view of a real kubectl: an HTTPS server changes, refuses and warns, is slow, or is missing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.interop.conftest import Kubectl
from tests.waiting import PATIENCE_SECONDS
from tink.kubeapi.apiserver import credentials

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {url: "$URL/convert", caBundle: $CA}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}, note: {type: string}}}
  - name: v2
    served: true
    storage: false
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {length: {type: integer}, note: {type: string}}}
"""
WIDGET = '{"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": {"size": 3}}'
CONFIGURATION = """
apiVersion: admissionregistration.k8s.io/v1
kind: $KINDWebhookConfiguration
metadata: {name: ours}
webhooks:
- name: check.example.org
  clientConfig: {url: "$URL/check", caBundle: $CA}
  rules: [{operations: ["*"], apiGroups: [example.org], apiVersions: [v1], resources: [widgets]}]
  sideEffects: $SIDE
  admissionReviewVersions: [v1]
  failurePolicy: $POLICY
  timeoutSeconds: 1
"""


class Hooks:
    """A webhook server: `response` is its answer to an AdmissionReview, after `delay_s` seconds."""

    def __init__(self, authority: credentials.Authority) -> None:
        self.url = ""
        self.bundle = base64.b64encode(authority.pem()).decode()
        self.response: dict[str, Any] = {"allowed": True}
        self.delay_s = 0.0
        self.asked: list[dict[str, Any]] = []

    async def check(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        await asyncio.sleep(self.delay_s)
        return web.json_response(review | {"response": {"uid": review["request"]["uid"], **self.response}})

    async def convert(self, request: web.Request) -> web.Response:
        review = await request.json()
        asked = review["request"]
        old, new = ("size", "length") if asked["desiredAPIVersion"].endswith("/v2") else ("length", "size")
        for obj in asked["objects"]:
            obj["apiVersion"] = asked["desiredAPIVersion"]
            if old in obj["spec"]:
                obj["spec"][new] = obj["spec"].pop(old)
        response = {"uid": asked["uid"], "convertedObjects": asked["objects"], "result": {"status": "Success"}}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    def filled(self, text: str, **more: str) -> str:
        for name, value in {"URL": self.url, "CA": self.bundle, **more}.items():
            text = text.replace(f"${name}", value)
        return text


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[Hooks]:
    now = datetime.now(UTC)
    authority = credentials.load_authority(tmp_path / "hooks", now)
    made = Hooks(authority)
    app = web.Application()
    app.router.add_post("/check", made.check)
    app.router.add_post("/convert", made.convert)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    context = credentials.server_context(authority, "127.0.0.1", now)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def widgets(bare: Kubectl, hooks: Hooks) -> Kubectl:
    """kubectl and a server with Widgets in two versions."""
    await bare("create", "-f", "-", stdin=hooks.filled(DEFINITION))
    return bare


async def _configure(
    kubectl: Kubectl, hooks: Hooks, kind: str, policy: str = "Fail", side: str = "None", **more: str
) -> None:
    text = hooks.filled(CONFIGURATION, KIND=kind, POLICY=policy, SIDE=side, **more)
    await kubectl("apply", "-f", "-", stdin=text)


def _patch(*operations: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


ONE = "widgets.v1.example.org", "one"


async def test_mutating_webhook_is_called_for_each_write_and_changes_the_applied_object(
    widgets: Kubectl, hooks: Hooks
) -> None:
    await _configure(widgets, hooks, "Mutating", side="NoneOnDryRun")
    lines = (await widgets("get", "mutatingwebhookconfigurations")).splitlines()
    assert lines[0].split() == ["NAME", "WEBHOOKS", "AGE"]
    assert lines[1].split()[:2] == ["ours", "1"]
    operation = [{"op": "add", "path": "/spec/note", "value": "added"}]
    patch = base64.b64encode(json.dumps(operation).encode()).decode()
    hooks.response = {"allowed": True, "patchType": "JSONPatch", "patch": patch}
    await widgets("create", "-f", "-", "--dry-run=server", stdin=WIDGET)
    assert "not found" in (await widgets.run("get", *ONE)).err
    await widgets("apply", "-f", "-", stdin=WIDGET)
    assert (await widgets.object(*ONE))["spec"] == {"size": 3, "note": "added"}
    hooks.response = {"allowed": True}
    await widgets("delete", *ONE)
    asked = [(each["operation"], each["dryRun"]) for each in hooks.asked]
    assert asked == [("CREATE", True), ("CREATE", False), ("DELETE", False)]


async def test_refusals_warnings_and_wrong_configurations_are_shown(widgets: Kubectl, hooks: Hooks) -> None:
    text = hooks.filled(CONFIGURATION, KIND="Validating", POLICY="Perhaps", SIDE="Some")
    ran = await widgets.run("create", "-f", "-", stdin=text.replace("https:", "http:"))
    assert 'webhooks[0].failurePolicy: Unsupported value: "Perhaps": supported values: "Fail", "Ignore"' in ran.err
    assert "webhooks[0].sideEffects: Unsupported value" in ran.err
    assert "'https' is the only allowed URL scheme" in ran.err

    await _configure(widgets, hooks, "Validating")
    status = {"code": 403, "reason": "Forbidden", "message": "too small"}
    hooks.response = {"allowed": False, "status": status, "warnings": ["look at the size"]}
    ran = await widgets.run("create", "-f", "-", stdin=WIDGET)
    assert (ran.code, "Warning: look at the size" in ran.err) == (1, True)
    assert (
        'Error from server (Forbidden): error when creating "STDIN": '
        'admission webhook "check.example.org" denied the request: too small'
    ) in ran.err
    assert "not found" in (await widgets.run("get", *ONE)).err
    hooks.response = {"allowed": True, "warnings": ["deprecated"]}
    ran = await widgets.run("create", "-f", "-", stdin=WIDGET)
    assert (ran.code, ran.out.split()[-1], "Warning: deprecated" in ran.err) == (0, "created", True)


@pytest.mark.parametrize("trouble", ["down", "slow"])
async def test_silent_webhook_rejects_with_fail_and_is_ignored_with_ignore(
    widgets: Kubectl, hooks: Hooks, trouble: str
) -> None:
    hooks.delay_s = 5
    kind, more, message = {
        "down": (
            "Validating",
            {"URL": "https://127.0.0.1:1"},
            'failed calling webhook "check.example.org": failed to call webhook: '
            'Post "https://127.0.0.1:1/check?timeout=1s": Connection refused',
        ),
        "slow": ("Mutating", {}, "no answer within"),
    }[trouble]
    await _configure(widgets, hooks, kind, **more)
    assert message in (await widgets.run("create", "-f", "-", stdin=WIDGET)).err
    await _configure(widgets, hooks, kind, "Ignore", **more)
    assert "created" in await widgets("create", "-f", "-", stdin=WIDGET)


async def test_object_is_read_listed_watched_and_applied_in_another_version(widgets: Kubectl) -> None:
    await widgets("create", "-f", "-", stdin=WIDGET)
    assert (await widgets.object("widgets.v2.example.org", "one"))["spec"] == {"length": 3}
    listed = json.loads(await widgets("get", "widgets.v2.example.org", "-o", "json"))
    assert [(item["apiVersion"], item["spec"]) for item in listed["items"]] == [("example.org/v2", {"length": 3})]
    watch = await widgets.start("get", "widgets.v2.example.org", "one", "-w", "-o", "jsonpath={.spec.length}{'\\n'}")
    assert watch.stdout is not None
    try:
        assert (await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)).strip() == b"3"
        changed = WIDGET.replace("/v1", "/v2").replace('"size": 3', '"length": 7')
        await widgets("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=changed)
        assert (await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)).strip() == b"7"
    finally:
        watch.kill()
        await watch.wait()
    assert (await widgets.object(*ONE))["spec"] == {"size": 7}
