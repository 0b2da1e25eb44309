"""What the API server is told of where to ask."""

import base64
import copy

import pytest

from tests.unit.webhooks.fake_api import FakeApi
from tink.kube.client import ApiError, ConflictError
from tink.schema import Conditions
from tink.webhooks.registration import Address, RegistrationError, configuration, register, unregister
from tink.webhooks.settings import WebhookSettings


async def test_registration_writes_only_what_differs_and_bears_defaults_of_the_server():
    api = FakeApi()
    wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", "Ignore")
    assert (await register(api, wanted)).written
    for webhook in api.objects["tinkedge"]["webhooks"]:
        webhook["objectSelector"] = {}
    assert not (await register(api, wanted)).written
    assert (await register(api, configuration(Address("/p", url="https://127.0.0.1:1"), b"CB", "Ignore"))).written
    api.objects["tinkedge"]["webhooks"].append({"name": "somebody.else.s"})
    assert (await register(api, wanted)).written
    assert not (await register(api, wanted)).written
    api.objects["tinkedge"]["webhooks"].pop()
    assert (await register(api, wanted)).written
    assert api.objects["tinkedge"]["webhooks"] == wanted["webhooks"]
    await unregister(api)
    await unregister(api)
    assert not api.objects


async def test_tenant_is_asked_about_his_namespaces_alone_under_a_name_of_his_own():
    api = FakeApi()
    address = Address("/p", namespace="ns", name="w")
    everywhere, tenant = (
        configuration(address, b"CA", "Ignore", *scope) for scope in ((), (["b", "a", "a"], "tinkedge.ns"))
    )
    assert (await register(api, everywhere)).written
    assert (await register(api, tenant)).written
    assert set(api.objects) == {"tinkedge", "tinkedge.ns"}
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    for webhook in api.objects["tinkedge.ns"]["webhooks"]:
        assert webhook["namespaceSelector"] == {"matchExpressions": [chosen]}
    again = configuration(address, b"CA", "Ignore", (), "tinkedge.ns")
    assert (await register(api, again)).written, "a scope that is given up is given up there, too"
    assert not (await register(api, again)).written
    await unregister(api, "tinkedge.ns")
    assert set(api.objects) == {"tinkedge"}


SERVICE = Address("/p", namespace="ns", name="w")


def of_the_chart(api, **changes):
    """Store a configuration like the chart's, without bundles. Return its webhooks."""
    made = configuration(SERVICE, b"", "Ignore")
    for webhook in made["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
        webhook |= changes
    made["metadata"] |= {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "resourceVersion": "7"}
    api.objects["tinkedge"] = made
    webhooks = made["webhooks"]
    return webhooks


async def test_nothing_but_the_bundle_is_written_into_a_configuration_that_the_chart_made():
    api = FakeApi()
    before = copy.deepcopy(of_the_chart(api, timeoutSeconds=3))
    wanted = configuration(SERVICE, b"CA", "Ignore")
    registered = await register(api, wanted)
    assert registered.written
    names = [webhook["name"] for webhook in before]
    assert registered.differences == tuple(f"{name} has another timeoutSeconds" for name in names)
    assert not (await register(api, wanted)).written
    for old, new in zip(before, api.objects["tinkedge"]["webhooks"], strict=True):
        bundle = base64.b64encode(b"CA").decode()
        assert new == {**old, "clientConfig": {**old["clientConfig"], "caBundle": bundle}}
    assert (await register(api, configuration(SERVICE, b"CB", "Ignore"))).written
    assert api.objects["tinkedge"]["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "Helm"}


async def test_webhook_with_another_address_or_a_missing_one_is_reported_and_not_changed():
    api = FakeApi()
    webhooks = of_the_chart(api)
    webhooks[0]["clientConfig"] = {"url": "https://elsewhere.example/"}
    missing = webhooks.pop(1)["name"]
    names = [webhook["name"] for webhook in webhooks]
    registered = await register(api, configuration(SERVICE, b"CA", "Ignore"))
    assert registered.differences == (f"{names[0]} has another clientConfig", f"{missing} is missing")
    found = api.objects["tinkedge"]["webhooks"]
    assert found[0]["clientConfig"] == {"url": "https://elsewhere.example/"}
    assert [webhook["name"] for webhook in found] == names


async def test_bundle_is_written_into_the_version_that_was_read():
    api = FakeApi()
    of_the_chart(api)
    patches = []

    async def patch(_resource, _name, _namespace, patch):
        patches.append(patch)
        return {}

    api.patch = patch
    await register(api, configuration(SERVICE, b"CA", "Ignore"))
    assert [each["metadata"] for each in patches] == [{"resourceVersion": "7"}]


async def test_replica_retries_after_a_conflict():
    api = FakeApi()
    of_the_chart(api)
    write, conflicts = api.patch, 0

    async def patch(*arguments):
        """The other replica writes first, once."""
        nonlocal conflicts
        await write(*arguments)
        conflicts += 1
        raise ConflictError(409, "Conflict", "the object has been modified")

    api.patch = patch
    assert not (await register(api, configuration(SERVICE, b"CA", "Ignore"))).written
    assert conflicts == 1


@pytest.mark.parametrize("webhooks", [None, [], [{"name": "somebody.else.s", "clientConfig": {"url": "https://x/"}}]])
async def test_configuration_without_webhooks_of_ours_is_named_with_the_remedy(webhooks):
    api = FakeApi()
    api.objects["tinkedge"] = {"metadata": {"name": "tinkedge"}, "webhooks": webhooks}
    with pytest.raises(RegistrationError, match=r"tinkedge: none of its webhooks is asked at Service ns/w:443/p: "):
        await register(api, configuration(SERVICE, b"CA", "Ignore"))
    assert api.writes == 0


async def test_configuration_that_may_not_be_created_is_named_with_the_remedy():
    api = FakeApi()

    async def create(*_):
        raise ApiError(403, "Forbidden", "no")

    api.create = create
    with pytest.raises(RegistrationError, match="tinkedge does not exist, and this account may not create it: run"):
        await register(api, configuration(SERVICE, b"CA", "Ignore"))


def test_api_server_is_told_of_a_service_or_a_url_with_the_bundle():
    service = Address("/admission", namespace="ns", name="w", port=8443).client_config(b"CA")
    assert service["service"] == {"namespace": "ns", "name": "w", "port": 8443, "path": "/admission"}
    assert base64.b64decode(service["caBundle"]) == b"CA"
    assert Address("/x", url="https://h:1").client_config(b"")["url"] == "https://h:1/x"


def test_service_is_read_from_its_flag():
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
def test_settings_that_can_not_be_are_refused(wrong):
    with pytest.raises(ValueError, match="webhooks"):
        WebhookSettings(**wrong)


def asked(operation, obj, old):
    """Return, by failure policy, which webhooks of Hardware match a write."""
    wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", "Fail")
    bindings = {"object": obj, "oldObject": old, "request": {"operation": operation}, "namespaceObject": None}
    found = {}
    for webhook in wanted["webhooks"][:2]:
        conditions = Conditions.of(webhook["matchConditions"])
        assert conditions is not None
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
        wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", policy)
        policies = {webhook["name"]: webhook["failurePolicy"] for webhook in wanted["webhooks"]}
        assert policies.pop("hardware.admission.tinkerbell.org") == policy
        assert set(policies.values()) == {"Ignore"}
        assert all("DELETE" not in webhook["rules"][0]["operations"] for webhook in wanted["webhooks"][:1])
