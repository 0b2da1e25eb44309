"""The webhook configurations that tell the API server where to send reviews."""

import base64

import pytest

from tests.support.api import InProcessApi
from tink.kube.client import ApiError, ConflictError
from tink.kubeapi.schema.webhooks import Conditions
from tink.webhooks.registration import CONFIGURATION, Address, RegistrationError, configuration, register, unregister
from tink.webhooks.server import WebhookSettings


def stored(api, name="tinkedge"):
    """The webhooks of a configuration."""
    return api.read(CONFIGURATION, name, "")["webhooks"]


OWN, SERVICE = Address("/p", url="https://127.0.0.1:1"), Address("/p", namespace="ns", name="w")
STRANGER = {
    "name": "somebody.else.s",
    "clientConfig": {"url": "https://x/"},
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}


async def test_registration_writes_only_what_differs_and_bears_defaults_of_the_server():
    api, wanted = InProcessApi(), configuration(OWN, b"CA", "Ignore")
    assert (await register(api, wanted)).written
    assert all(webhook["objectSelector"] == {} for webhook in stored(api)), "the server's default"
    assert not (await register(api, wanted)).written
    assert (await register(api, configuration(OWN, b"CB", "Ignore"))).written
    for change in (lambda webhooks: [*webhooks, STRANGER], lambda webhooks: webhooks[:-1]):
        api.put({**api.read(CONFIGURATION, "tinkedge", ""), "webhooks": change(stored(api))})
        assert (await register(api, wanted)).written
        assert not (await register(api, wanted)).written
    assert [webhook["name"] for webhook in stored(api)] == [webhook["name"] for webhook in wanted["webhooks"]]
    for _ in range(2):
        await unregister(api)
    assert api.objects(CONFIGURATION) == []


async def test_tenant_is_asked_about_his_namespaces_alone_under_a_name_of_his_own():
    api = InProcessApi()
    assert (await register(api, configuration(SERVICE, b"CA", "Ignore"))).written
    assert (await register(api, configuration(SERVICE, b"CA", "Ignore", ["b", "a", "a"], "tinkedge.ns"))).written
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    for webhook in stored(api, "tinkedge.ns"):
        assert webhook["namespaceSelector"] == {"matchExpressions": [chosen]}
    again = configuration(SERVICE, b"CA", "Ignore", (), "tinkedge.ns")
    assert (await register(api, again)).written, "a scope that is given up is given up there, too"
    assert not (await register(api, again)).written
    await unregister(api, "tinkedge.ns")
    assert [each["metadata"]["name"] for each in api.objects(CONFIGURATION)] == ["tinkedge"]


def of_the_chart(change=lambda webhooks: webhooks):
    """An API with a configuration like the chart's, without bundles, in which `change` has changed the webhooks."""
    made = configuration(SERVICE, b"", "Ignore")
    for webhook in made["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
        webhook["objectSelector"] = {}
    made["webhooks"] = change(made["webhooks"])
    made["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    return InProcessApi(made)


async def test_nothing_but_the_bundle_is_written_into_the_version_of_the_chart_s_configuration_that_was_read():
    api = of_the_chart(lambda webhooks: [webhook | {"timeoutSeconds": 3} for webhook in webhooks])
    before = api.read(CONFIGURATION, "tinkedge", "")
    registered = await register(api, configuration(SERVICE, b"CA", "Ignore"))
    assert registered.written
    names = [webhook["name"] for webhook in before["webhooks"]]
    assert registered.differences == tuple(f"{name} has another timeoutSeconds" for name in names)
    assert not (await register(api, configuration(SERVICE, b"CA", "Ignore"))).written
    bundle = base64.b64encode(b"CA").decode()
    for old, new in zip(before["webhooks"], stored(api), strict=True):
        assert new == {**old, "clientConfig": {**old["clientConfig"], "caBundle": bundle}}
    version = {"resourceVersion": before["metadata"]["resourceVersion"]}
    assert [patch["metadata"] for patch in api.bodies("patch")] == [version]
    assert (await register(api, configuration(SERVICE, b"CB", "Ignore"))).written
    assert api.read(CONFIGURATION, "tinkedge", "")["metadata"]["labels"] == before["metadata"]["labels"]


async def test_webhook_with_another_address_or_a_missing_one_is_reported_and_not_changed():
    elsewhere = {"url": "https://elsewhere.example/"}
    api = of_the_chart(lambda webhooks: [webhooks[0] | {"clientConfig": elsewhere}, *webhooks[2:]])
    names = [webhook["name"] for webhook in stored(api)]
    registered = await register(api, configuration(SERVICE, b"CA", "Ignore"))
    missing = configuration(SERVICE, b"CA", "Ignore")["webhooks"][1]["name"]
    assert registered.differences == (f"{names[0]} has another clientConfig", f"{missing} is missing")
    assert stored(api)[0]["clientConfig"] == elsewhere
    assert [webhook["name"] for webhook in stored(api)] == names


@pytest.mark.parametrize("webhooks", [None, [], [STRANGER]])
async def test_configuration_without_webhooks_of_ours_is_named_with_the_remedy(webhooks):
    api = of_the_chart(lambda _: webhooks)
    with pytest.raises(RegistrationError, match=r"tinkedge: none of its webhooks is asked at Service ns/w:443/p: "):
        await register(api, configuration(SERVICE, b"CA", "Ignore"))
    assert api.count("patch") == api.count("create") == 0


async def test_conflict_is_tried_again_and_a_configuration_that_may_not_be_created_named_with_the_remedy():
    api = of_the_chart()
    api.fail("patch", ConflictError(409, "Conflict", "the other one wrote first"), done=True)
    assert not (await register(api, configuration(SERVICE, b"CA", "Ignore"))).written
    assert api.count("patch") == 1
    api = InProcessApi()
    api.fail("create", ApiError(403, "Forbidden", "no"))
    with pytest.raises(RegistrationError, match="tinkedge does not exist, and this account may not create it: run"):
        await register(api, configuration(SERVICE, b"CA", "Ignore"))


def test_service_is_parsed_from_its_flag_and_registered_like_a_url():
    settings = WebhookSettings(service="ns/name:8443")
    assert (settings.namespace, settings.name, settings.service_port) == ("ns", "name", 8443)
    assert WebhookSettings(service="ns/name").service_port == 443
    service = Address("/admission", namespace="ns", name="w", port=8443).client_config(b"CA")
    assert service["service"] == {"namespace": "ns", "name": "w", "port": 8443, "path": "/admission"}
    assert base64.b64decode(service["caBundle"]) == b"CA"
    assert Address("/x", url="https://h:1").client_config(b"")["url"] == "https://h:1/x"
    wrong = [{"service": service} for service in ("name", "NS/name", "a/b:0")]
    wrong += [{"url": url} for url in ("http://h", "https://")]
    for each in (*wrong, {"url": "https://h", "service": "a/b"}, {"failure_policy": "Maybe"}):
        with pytest.raises(ValueError, match="webhooks"):
            WebhookSettings(**each)


def asked(operation, obj, old):
    """Return, by failure policy, which webhooks of Hardware match a write."""
    wanted = configuration(OWN, b"CA", "Fail")
    bindings = {"object": obj, "oldObject": old, "request": {"operation": operation}, "namespaceObject": None}
    found = {}
    for webhook in wanted["webhooks"][:2]:
        conditions = Conditions.of(webhook["matchConditions"])
        found[webhook["failurePolicy"]] = operation in webhook["rules"][0]["operations"] and conditions.hold(bindings)
    return found


def hardware(spec=None, **metadata):
    return {"metadata": {"name": "h", **metadata}, **({"spec": spec} if spec is not None else {})}


def test_only_writes_of_hardware_that_may_claim_something_are_refused_while_no_webhook_answers():
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


def test_ignore_is_the_policy_of_everything_but_claims():
    for policy in ("Fail", "Ignore"):
        wanted = configuration(OWN, b"CA", policy)
        policies = {webhook["name"]: webhook["failurePolicy"] for webhook in wanted["webhooks"]}
        assert policies.pop("hardware.admission.tinkerbell.org") == policy
        assert set(policies.values()) == {"Ignore"}
        assert all("DELETE" not in webhook["rules"][0]["operations"] for webhook in wanted["webhooks"][:1])
