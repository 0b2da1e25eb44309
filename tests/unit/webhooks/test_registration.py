"""What the API server is told of where to ask."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.unit.webhooks.fake_api import FakeApi
from tink.api.v1alpha2 import Raw
from tink.schema import Conditions
from tink.webhooks.registration import Address, configuration, register, unregister
from tink.webhooks.settings import WebhookSettings


async def test_registration_writes_only_what_differs_and_bears_defaults_of_the_server() -> None:
    api: Any = FakeApi()
    wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", "Ignore")
    assert await register(api, wanted)
    for webhook in api.objects["tinkedge"]["webhooks"]:
        webhook["objectSelector"] = {}
    assert not await register(api, wanted)
    assert await register(api, configuration(Address("/p", url="https://127.0.0.1:1"), b"CB", "Ignore"))
    api.objects["tinkedge"]["webhooks"].append({"name": "somebody.else.s"})
    assert await register(api, wanted)
    assert not await register(api, wanted)
    api.objects["tinkedge"]["webhooks"].pop()
    assert await register(api, wanted)
    assert api.objects["tinkedge"]["webhooks"] == wanted["webhooks"]
    await unregister(api)
    await unregister(api)
    assert not api.objects


async def test_tenant_is_asked_about_his_namespaces_alone_under_a_name_of_his_own() -> None:
    api: Any = FakeApi()
    address = Address("/p", namespace="ns", name="w")
    everywhere, tenant = (
        configuration(address, b"CA", "Ignore", *scope) for scope in ((), (["b", "a", "a"], "tinkedge.ns"))
    )
    assert await register(api, everywhere)
    assert await register(api, tenant)
    assert set(api.objects) == {"tinkedge", "tinkedge.ns"}
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    for webhook in api.objects["tinkedge.ns"]["webhooks"]:
        assert webhook["namespaceSelector"] == {"matchExpressions": [chosen]}
    again = configuration(address, b"CA", "Ignore", (), "tinkedge.ns")
    assert await register(api, again), "a scope that is given up is given up there, too"
    assert not await register(api, again)
    await unregister(api, "tinkedge.ns")
    assert set(api.objects) == {"tinkedge"}


async def test_labels_of_whoever_made_the_object_stay_as_they_are() -> None:
    """The chart has the object, without webhooks, so that it goes with the release; Helm's labels say whose it is."""
    api: Any = FakeApi()
    helm = {"name": "tinkedge", "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    api.objects["tinkedge"] = {"metadata": dict(helm)}
    wanted = configuration(Address("/p", namespace="ns", name="w"), b"CA", "Ignore")
    assert await register(api, wanted)
    assert not await register(api, wanted)
    assert api.objects["tinkedge"]["metadata"]["labels"] == helm["labels"]
    assert api.objects["tinkedge"]["webhooks"] == wanted["webhooks"]


def test_api_server_is_told_of_a_service_or_a_url_with_the_bundle() -> None:
    service = Address("/admission", namespace="ns", name="w", port=8443).client_config(b"CA")
    assert service["service"] == {"namespace": "ns", "name": "w", "port": 8443, "path": "/admission"}
    assert base64.b64decode(service["caBundle"]) == b"CA"
    assert Address("/x", url="https://h:1").client_config(b"")["url"] == "https://h:1/x"


def test_service_is_read_from_its_flag() -> None:
    settings = WebhookSettings(service="ns/name:8443")
    assert (settings.namespace, settings.name, settings.service_port) == ("ns", "name", 8443)
    assert WebhookSettings(service="ns/name").service_port == 443


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://h"},
        {"url": "https://"},
        {"service": "name"},
        {"service": "NS/name"},
        {"service": "a/b:0"},
        {"url": "https://h", "service": "a/b"},
        {"failure_policy": "Maybe"},
    ],
)
def test_settings_that_can_not_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="webhooks"):
        WebhookSettings(**wrong)


def asked(operation: str, obj: Raw | None, old: Raw | None) -> dict[str, bool]:
    """Whether each webhook of Hardware is asked about a write, by its failure policy."""
    wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", "Fail")
    bindings = {"object": obj, "oldObject": old, "request": {"operation": operation}, "namespaceObject": None}
    found = {}
    for webhook in wanted["webhooks"][:2]:
        conditions = Conditions.of(webhook["matchConditions"])
        assert conditions is not None
        found[webhook["failurePolicy"]] = operation in webhook["rules"][0]["operations"] and conditions.hold(bindings)
    return found


def hardware(spec: Raw | None = None, **metadata: Any) -> Raw:
    return {"metadata": {"name": "h", **metadata}, **({"spec": spec} if spec is not None else {})}


def test_only_writes_of_hardware_that_may_claim_something_are_refused_while_no_webhook_answers() -> None:
    old = hardware({"networkInterfaces": {"m": {}}}, finalizers=["f"], annotations={"a": "b"})
    claims = {"Fail": True, "Ignore": False}
    others = {"Fail": False, "Ignore": True}
    assert asked("CREATE", old, None) == claims
    assert asked("UPDATE", old | {"spec": {}}, old) == claims
    assert asked("UPDATE", hardware(**old["metadata"]), old) == claims
    named = {**old["metadata"], "annotations": {"a": "b", "tinkerbell.org/agent-id": "x"}}
    assert asked("UPDATE", old | {"metadata": named}, old) == claims
    released = {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}
    assert asked("UPDATE", old | {"metadata": released}, old) == others
    assert asked("UPDATE", old | {"metadata": {"name": "h"}}, old) == others
    assert asked("UPDATE", old | {"status": {"x": 1}}, old) == others
    assert asked("DELETE", None, old) == others


def test_ignore_is_the_policy_of_everything_but_claims() -> None:
    for policy in ("Fail", "Ignore"):
        wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", policy)
        policies = {webhook["name"]: webhook["failurePolicy"] for webhook in wanted["webhooks"]}
        assert policies.pop("hardware.admission.tinkerbell.org") == policy
        assert set(policies.values()) == {"Ignore"}
        assert all("DELETE" not in webhook["rules"][0]["operations"] for webhook in wanted["webhooks"][:1])
