"""Webhooks beyond what a recording can show: odd answers, what is kept in memory, what is told at once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.support.virtual_time import elapse, turns
from tink.apiserver.admission.attributes import Attributes
from tink.apiserver.admission.warnings import limited
from tink.apiserver.admission.webhooks import MUTATING, VALIDATING, Webhooks
from tink.apiserver.errors import StatusError
from tink.apiserver.resources.registry import Resource
from tink.schema import match_conditions as conditions_of
from tink.schema.client_config import ClientConfig
from tink.schema.structural.compiler import compile_schema, root_schema
from tink.schema.values import Raw

OPENAPI: Raw = {
    "type": "object",
    "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
}
WIDGETS = Resource("example.org", "v1", "widgets", "Widget", OPENAPI, compile_schema(root_schema(OPENAPI)))


class Server:
    """Stands in for the network: answers by path, and notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Raw] = {}
        self.delays: dict[str, float] = {}
        self.under_way = self.most_at_once = 0

    async def post(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = 0) -> Any:
        path = config.url.rpartition("/")[2]
        self.asked.append(path)
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            if path in self.delays:
                await elapse(self.delays[path])
        finally:
            self.under_way -= 1
        uid = orjson.loads(body)["request"]["uid"]
        response = {"uid": uid, "allowed": True, **self.answers.get(path, {})}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


async def _labels(_: str) -> Mapping[str, str]:
    return {}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def webhooks(server: Server) -> Webhooks:
    return Webhooks(server.post, _labels, lambda resource: [resource])


def configuration(kind: str, *names: str, **more: Any) -> Raw:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}
    return {
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "ours"},
        "webhooks": [
            {
                "name": f"{name}.example.org",
                "clientConfig": {"url": f"https://hooks/{name}"},
                "rules": [rule],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **more,
            }
            for name in names
        ],
    }


def write(**more: Any) -> Attributes:
    obj = {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": {}}
    made: dict[str, Any] = {"old": None, "options": {"kind": "CreateOptions"}, "dry_run": False, **more}
    return Attributes("CREATE", WIDGETS, "default", "one", "", obj, **made)


async def test_configurations_are_asked_until_they_are_gone_and_by_kind(webhooks: Webhooks, server: Server) -> None:
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "a"))
    await webhooks.validate(write())
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "b"))
    webhooks.configured(MUTATING, "ours", configuration("Mutating", "m"))
    await webhooks.mutate(write())
    await webhooks.validate(write())
    webhooks.configured(VALIDATING, "ours", None)
    webhooks.configured(VALIDATING, "never there", None)
    await webhooks.validate(write())
    assert server.asked == ["a", "m", "b"]


@pytest.mark.looptime
async def test_validating_webhooks_are_asked_at_once_and_the_first_in_order_that_refuses_is_told(
    webhooks: Webhooks, server: Server
) -> None:
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "a", "b", "c"))
    server.delays = {"a": 0.1, "b": 0.1}
    server.answers = {"b": {"allowed": False}, "c": {"allowed": False}}
    attributes = write()
    with pytest.raises(StatusError, match=r'"b\.example\.org" denied'):
        await webhooks.validate(attributes)
    assert server.most_at_once == 3
    assert sorted(server.asked) == ["a", "b", "c"]


@pytest.mark.looptime
async def test_client_that_goes_away_ends_the_calls(webhooks: Webhooks, server: Server) -> None:
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "a", "b"))
    server.delays = {"a": 60, "b": 60}
    task = asyncio.create_task(webhooks.validate(write()))
    await elapse(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns(2)
    assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []


@pytest.mark.parametrize(("code", "told"), [(0, 400), (-5, 400), (399, 400), (418, 418), (599, 599), (99999, 500)])
async def test_code_that_http_does_not_have_breaks_nothing(webhooks, server, code, told) -> None:
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "a"))
    server.answers = {"a": {"allowed": False, "status": {"code": code}}}
    with pytest.raises(StatusError) as caught:
        await webhooks.validate(write())
    assert caught.value.code == told


@pytest.mark.parametrize(("effects", "asked"), [("None", True), ("NoneOnDryRun", True), ("Some", False), ("", False)])
async def test_dry_run_asks_only_webhooks_without_side_effects(webhooks, server, effects, asked) -> None:
    chosen = configuration("Validating", "a", sideEffects=effects, failurePolicy="Ignore")
    webhooks.configured(VALIDATING, "ours", chosen)
    if asked:
        await webhooks.validate(write(dry_run=True))
    else:
        with pytest.raises(StatusError, match="does not support dry run") as caught:
            await webhooks.validate(write(dry_run=True))
        assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    assert bool(server.asked) == asked


@pytest.mark.parametrize("name", ["kind", "apiVersion", "metadata"])
async def test_patch_that_makes_another_kind_of_object_is_refused(webhooks, server, name) -> None:
    webhooks.configured(MUTATING, "ours", configuration("Mutating", "a", failurePolicy="Ignore"))
    server.answers = {"a": _patch("replace", f"/{name}", "Other")}
    with pytest.raises(StatusError) as caught:
        await webhooks.mutate(write())
    assert caught.value.code == 500


async def test_true_and_one_are_a_change_that_asks_again(webhooks: Webhooks, server: Server) -> None:
    webhooks.configured(MUTATING, "ours", configuration("Mutating", "a", "b", reinvocationPolicy="IfNeeded"))
    attributes = write()
    attributes.object["spec"]["x"] = 1
    server.answers = {"b": _patch("replace", "/spec/x", True)}
    await webhooks.mutate(attributes)
    assert server.asked == ["a", "b", "a"]
    assert attributes.object["spec"]["x"] is True


def _patch(*operation: Any) -> Raw:
    """Return an answer with a JSON patch of one operation: op, path, value."""
    text = orjson.dumps([dict(zip(("op", "path", "value"), operation, strict=True))])
    return {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}


def test_warnings_are_told_once_never_break_a_header_and_are_cut_when_together_they_are_too_long() -> None:
    assert limited(["a", "", "b", "a", "c\r\nX-Evil: 1", "\ud800"]) == ["a", "b"]
    assert limited(["a" * 4096]) == ["a" * 4096]
    assert limited(["a" * 4096, "b"]) == ["a" * 256, "b"]
    assert sum(map(len, limited(f"{i:05d}" + "x" * 300 for i in range(1000)))) <= 4096 + 256


async def test_namespace_is_read_once_for_all_webhooks_of_a_write(server: Server) -> None:
    read = []

    async def labels(name: str) -> Mapping[str, str]:
        read.append(name)
        return {"team": "a"}

    webhooks = Webhooks(server.post, labels, lambda resource: [resource])
    selector = {"matchLabels": {"team": "a"}}
    webhooks.configured(MUTATING, "ours", configuration("Mutating", "a", "b", namespaceSelector=selector))
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "c", "d", namespaceSelector=selector))
    attributes = write()
    await webhooks.mutate(attributes)
    await webhooks.validate(attributes)
    assert (read, sorted(server.asked)) == (["default"], ["a", "b", "c", "d"])


async def test_new_definition_of_a_resource_is_matched_anew(webhooks: Webhooks, server: Server) -> None:
    selected = configuration("Validating", "a")
    selected["webhooks"][0]["rules"][0]["scope"] = "Cluster"
    webhooks.configured(VALIDATING, "ours", selected)
    await webhooks.validate(write())
    assert server.asked == []
    cluster = Resource("example.org", "v1", "widgets", "Widget", OPENAPI, WIDGETS.compiled, namespaced=False)
    attributes = write()
    attributes.resource, attributes.namespace = cluster, ""
    await webhooks.validate(attributes)
    assert server.asked == ["a"]


async def test_condition_that_costs_too_much_ends_and_is_treated_as_failed(webhooks, server, monkeypatch) -> None:
    monkeypatch.setattr(conditions_of, "MAX_EACH", 10_000)
    every = "object.items.all(a, object.items.all(b, object.items.all(c, a + b + c < 100000)))"
    conditions = [{"name": "slow", "expression": every}]
    attributes = write()
    attributes.object["items"] = list(range(200))
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "a", matchConditions=conditions))
    with pytest.raises(StatusError, match="actual cost limit exceeded") as caught:
        await webhooks.validate(attributes)
    assert caught.value.code == 403
    ignoring = configuration("Validating", "a", matchConditions=conditions, failurePolicy="Ignore")
    webhooks.configured(VALIDATING, "ours", ignoring)
    await webhooks.validate(attributes)
    assert server.asked == []


async def test_condition_that_no_longer_compiles_refuses_writes_instead_of_stopping_the_server(
    webhooks: Webhooks, server: Server
) -> None:
    conditions = [{"name": "old", "expression": "nothing =="}]
    webhooks.configured(VALIDATING, "ours", configuration("Validating", "a", matchConditions=conditions))
    with pytest.raises(StatusError, match="is forbidden: compilation error: compilation failed: ERROR"):
        await webhooks.validate(write())
