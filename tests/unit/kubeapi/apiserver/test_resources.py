"""CustomResourceDefinitions of users, and Events under both of their names."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kubeapi.apiserver.conftest import CRDS, Client, Start
from tests.waiting import until
from tink.kubeapi.apiserver.access import Caller, ResourceAction, allowed
from tink.kubeapi.apiserver.admission.webhooks import compile_hooks
from tink.kubeapi.apiserver.resources import builtin
from tink.kubeapi.apiserver.resources.registry import Registry
from tink.kubeapi.apiserver.serializer import dump_protobuf, load_protobuf

WIDGETS = "/apis/example.org/v1/widgets"
APPLY = "application/apply-patch+yaml"

WIDGET: dict[str, Any] = {
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Cluster",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
                    }
                },
            }
        ],
    },
}


def made(name: str = "w", version: str = "v1", **more: Any) -> dict[str, Any]:
    """Return an object of the definition."""
    metadata = {"name": name, **more.pop("metadata", {})}
    return {"apiVersion": f"example.org/{version}", "kind": "Widget", "metadata": metadata, **more}


def widget(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(WIDGET)
    made["spec"] |= changes
    return made


async def test_definition_is_completed_and_served_at_once(bare: Client) -> None:
    answer = await bare("POST", CRDS, WIDGET)
    assert answer.status == 201
    names = answer.json["spec"]["names"]
    assert (names["singular"], names["listKind"]) == ("widget", "WidgetList")
    status = answer.json["status"]
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert (status["storedVersions"], status["acceptedNames"]["plural"]) == (["v1"], "widgets")
    assert (await bare("POST", WIDGETS, made(spec={"size": 1}))).status == 201
    assert (await bare("GET", WIDGETS)).json["kind"] == "WidgetList"
    listed = (await bare("GET", "/apis/example.org/v1")).json["resources"]
    assert [item["name"] for item in listed] == ["widgets"]
    document = (await bare("GET", "/openapi/v3/apis/example.org/v1")).json
    assert "org.example.v1.Widget" in document["components"]["schemas"]


async def test_changed_schema_and_its_rules_apply_to_the_next_write(bare: Client) -> None:
    await bare("POST", CRDS, WIDGET)
    before = (await bare("GET", "/openapi/v3")).json["paths"]["apis/example.org/v1"]
    spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
    rules = [
        {"rule": "self.size > 1", "message": "too small", "fieldPath": ".size"},
        {"rule": "self.size >= oldSelf.size", "messageExpression": "'was %d'.format([oldSelf.size])"},
    ]
    patch = [
        {"op": "add", "path": f"{spec}/properties/size/maximum", "value": 9},
        {"op": "add", "path": f"{spec}/x-kubernetes-validations", "value": rules},
    ]
    changed = await bare("PATCH", f"{CRDS}/widgets.example.org", patch, content="application/json-patch+json")
    assert changed.status == 200
    assert (await bare("GET", "/openapi/v3")).json["paths"]["apis/example.org/v1"] != before
    assert (await bare("POST", WIDGETS, made(spec={"size": 10}))).status == 422
    answer = await bare("POST", WIDGETS, made(spec={"size": 1}))
    assert answer.json["message"] == 'Widget.example.org "w" is invalid: spec.size: Invalid value: too small'
    assert (await bare("POST", WIDGETS, made(spec={"size": 5}))).status == 201
    answer = await bare.merge(f"{WIDGETS}/w", {"spec": {"size": 4}})
    assert answer.json["message"] == 'Widget.example.org "w" is invalid: spec: Invalid value: was 5'


@pytest.mark.parametrize("is_served", [False, True])
async def test_names_of_another_resource_are_not_accepted(bare: Client, is_served: bool) -> None:
    await bare("POST", CRDS, WIDGET)
    other = widget(names={"plural": "wodgets", "kind": "Wodget", "shortNames": ["wo", "wd"]})
    other["metadata"]["name"] = "wodgets.example.org"
    if is_served:
        other["spec"]["names"]["shortNames"] = ["wo"]
    answer = await bare("POST", CRDS, other)
    if is_served:
        answer = await bare.merge(f"{CRDS}/wodgets.example.org", {"spec": {"names": {"shortNames": ["wd"]}}})
    conditions = {item["type"]: item for item in answer.json["status"]["conditions"]}
    assert conditions["NamesAccepted"]["reason"] == "ShortNamesConflict"
    assert conditions["NamesAccepted"]["message"] == '"wd" is already in use'
    if is_served:  # it goes on under its old names
        assert (conditions["NamesAccepted"]["status"], conditions["Established"]["status"]) == ("False", "True")
        listed = (await bare("GET", "/apis/example.org/v1")).json["resources"]
        assert next(item for item in listed if item["name"] == "wodgets")["shortNames"] == ["wo"]
        return
    assert (conditions["Established"]["status"], conditions["Established"]["reason"]) == ("False", "NotAccepted")
    assert answer.json["status"]["acceptedNames"]["kind"] == "Wodget"
    assert "shortNames" not in answer.json["status"]["acceptedNames"]
    assert (await bare("GET", "/apis/example.org/v1/wodgets")).status == 404


def put_version(**changes: Any) -> dict[str, Any]:
    """Write the definition with changes of its version."""
    changed = copy.deepcopy(WIDGET)
    changed["spec"]["versions"][0] |= changes
    return changed


async def test_replicas_that_cannot_be_scaled_are_refused(bare: Client) -> None:
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    await bare("POST", CRDS, put_version(subresources={"scale": scale}))
    answer = await bare("POST", WIDGETS, made(spec={"size": -1}))
    assert answer.json["message"].endswith(".spec.size: Invalid value: -1: should be a non-negative integer")
    answer = await bare("POST", WIDGETS, made(spec={"size": 1 << 31}))
    assert answer.json["message"].endswith("should be less than or equal to 2147483647")
    assert (await bare("POST", WIDGETS, made(spec={}))).status == 201


async def test_only_an_unreadable_column_is_omitted_and_its_writer_is_warned(bare: Client) -> None:
    columns = [
        {"name": name, "type": "string", "jsonPath": path} for name, path in (("A", ".a"), ("X", ".b[?("), ("C", ".c"))
    ]
    made = await bare("POST", CRDS, put_version(additionalPrinterColumns=columns))
    assert made.status == 201
    where = "spec.versions[0].additionalPrinterColumns[1].jsonPath: .b[?(: unterminated filter"
    assert [where in warning for warning in made.headers["Warning"]] == [True]
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    table = (await bare("GET", WIDGETS, accept=accept)).json
    assert [item["name"] for item in table["columnDefinitions"]] == ["Name", "A", "C"]


async def test_stored_version_is_removable_only_after_it_has_left_the_status(bare: Client) -> None:
    newer = {**WIDGET["spec"]["versions"][0], "name": "v2"}
    older = {**WIDGET["spec"]["versions"][0], "storage": False}
    await bare("POST", CRDS, WIDGET)
    where = f"{CRDS}/widgets.example.org"
    answer = await bare.merge(where, {"spec": {"versions": [older, newer]}})
    assert answer.json["status"]["storedVersions"] == ["v1", "v2"]
    answer = await bare.merge(where, {"spec": {"versions": [newer]}})
    assert [cause["field"] for cause in answer.json["details"]["causes"]] == ["status.storedVersions[0]"]
    answer = await bare.merge(f"{where}/status", {"status": {"storedVersions": ["v2"]}})
    assert (answer.status, answer.json["status"]["storedVersions"]) == (200, ["v2"])
    assert (await bare.merge(where, {"spec": {"versions": [newer]}})).status == 200


async def test_definition_whose_webhook_cannot_be_trusted_is_not_served(bare: Client) -> None:
    config = {"url": "https://example.org/", "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}
    webhook = {"clientConfig": config, "conversionReviewVersions": ["v1"]}
    answer = await bare("POST", CRDS, widget(conversion={"strategy": "Webhook", "webhook": webhook}))
    conditions = {item["type"]: item for item in answer.json["status"]["conditions"]}
    assert (conditions["Established"]["status"], conditions["Established"]["reason"]) == ("False", "InvalidCABundle")
    assert (await bare("GET", WIDGETS)).status == 404


async def test_deleted_definition_waits_for_objects_with_finalizers_and_gets_no_new_ones(bare: Client) -> None:
    answer = await bare("POST", CRDS, WIDGET)
    assert "finalizers" not in answer.json["metadata"]
    await bare("POST", WIDGETS, made(metadata={"finalizers": ["example.org/hold"]}))
    answer = await bare("DELETE", f"{CRDS}/widgets.example.org")
    assert answer.json["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]

    async def is_terminating() -> bool:
        answer = await bare("GET", f"{CRDS}/widgets.example.org")
        return "Terminating" in [item["type"] for item in answer.json["status"]["conditions"]]

    await until(is_terminating)
    created = await bare("POST", WIDGETS, made("late"))
    applied = await bare("PATCH", f"{WIDGETS}/late?fieldManager=me", made("late"), content=APPLY)
    why = "create not allowed while custom resource definition is terminating"
    for answer in (created, applied):
        assert answer.status == 403
        assert answer.json["message"] == f'widgets.example.org "late" is forbidden: {why}'
    assert (await bare.merge(f"{WIDGETS}/w", {"metadata": {"labels": {"a": "b"}}})).status == 200
    async with bare.watch(CRDS) as watch:
        await watch.next()
        await bare.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
        assert await watch.kinds(1) == [("DELETED", "widgets.example.org")]


async def test_deleted_definition_takes_its_objects_and_ends_their_watches(bare: Client) -> None:
    await bare("POST", CRDS, WIDGET)
    await bare("POST", WIDGETS, made())
    async with bare.watch(WIDGETS, resourceVersion="0") as watch, bare.watch(CRDS) as definitions:
        assert await watch.kinds(1) == [("ADDED", "w")]
        assert (await definitions.next())["type"] == "ADDED"
        await bare("DELETE", f"{CRDS}/widgets.example.org")
        assert await watch.kinds(1) == [("DELETED", "w")]
        assert await watch.next() is None
        assert [(await definitions.next())["type"] for _ in range(2)] == ["MODIFIED", "DELETED"]
    assert (await bare("GET", WIDGETS)).status == 404
    assert "example.org" not in str((await bare("GET", "/apis")).json)


async def test_terminating_namespace_accepts_no_new_objects(bare: Client) -> None:
    await bare("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}})
    maps = "/api/v1/namespaces/x/configmaps"
    await bare("POST", maps, {"metadata": {"name": "held", "finalizers": ["example.org/hold"]}})
    await bare("DELETE", "/api/v1/namespaces/x")
    answer = await bare("POST", maps, {"metadata": {"name": "late"}})
    assert (answer.status, "because it is being terminated" in answer.json["message"]) == (403, True)
    async with bare.watch("/api/v1/namespaces", fieldSelector="metadata.name=x") as watch:
        assert (await watch.next())["object"]["status"]["phase"] == "Terminating"
        await bare.merge(f"{maps}/held", {"metadata": {"finalizers": []}})
        seen = await watch.kinds(1)
        assert (seen if seen[0][0] == "DELETED" else await watch.kinds(1)) == [("DELETED", "x")]


async def test_openapi_refers_to_what_it_describes(api: Client) -> None:
    document = (await api("GET", "/openapi/v3/apis/tinkerbell.org/v1alpha2")).json

    def refs(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(refs(child) for child in node.values()))
        return set().union(*(refs(child) for child in node)) if isinstance(node, list) else set()

    known = document["components"]["schemas"]
    assert "org.tinkerbell.v1alpha2.Hardware" in known
    assert refs(document) <= {f"#/components/schemas/{name}" for name in known}


# --- events: what a real kube-apiserver answers is in ../conformance (cases/events.yaml)

OLD = "/api/v1/namespaces/default/events"
NEW = "/apis/events.k8s.io/v1/namespaces/default/events"
CASES = json.loads((Path(__file__).with_name("data") / "client_go_recorder.json").read_text())
PROTOBUF = "application/vnd.kubernetes.protobuf"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def event(name: str = "e", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "regarding": {"kind": "ConfigMap", "name": "n", "namespace": "default"},
        "reportingController": "example.org/controller",
        "reportingInstance": "controller-host",
        "action": "Make",
        "reason": "Made",
        "type": "Normal",
        "note": "made it",
        **more,
    }


async def test_recorder_of_client_go_is_not_refused_and_kubectl_shows_what_it_recorded(bare: Client) -> None:
    """data/client_go_recorder.json: requests of client-go, recorded with data/client_go_recorder/main.go."""
    created, repeated = CASES
    assert (await bare(created["method"], created["path"], created["body"])).status == 201
    answer = await bare(repeated["method"], repeated["path"], repeated["body"], content=repeated["contentType"])
    assert (answer.status, answer.json["series"]["count"]) == (200, 2)
    (row,) = (await bare("GET", OLD, accept=TABLE, includeObject="None")).json["rows"]
    assert row["cells"][1:4] + row["cells"][6:7] == ["Normal", "Made", "configmap/n", "made it"]
    assert row["cells"][8] == 2


async def test_watches_of_both_names_see_what_either_writes(bare: Client) -> None:
    async with bare.watch(OLD) as old, bare.watch(NEW, fieldSelector="regarding.name=n") as new:
        await bare("POST", NEW, event())
        await bare.merge(f"{OLD}/e", {"message": "changed"})
        assert [(await old.next())["object"]["message"] for _ in range(2)] == ["made it", "changed"]
        seen = [await new.next() for _ in range(2)]
        assert [(one["type"], one["object"]["note"]) for one in seen] == [("ADDED", "made it"), ("MODIFIED", "changed")]


async def test_event_stays_for_an_hour_after_the_last_occurrence_of_its_series(start: Start) -> None:
    now = [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)]
    _, client = await start(now=lambda: now[0])
    for name in ("gone", "goes-on"):
        await client("POST", NEW, event(name))
    now[0] += timedelta(minutes=50)
    series = {"count": 2, "lastObservedTime": "2026-01-02T03:54:05.000000Z"}
    await client.merge(f"{NEW}/goes-on", {"series": series})
    now[0] += timedelta(minutes=20)
    await client("POST", "/api/v1/namespaces", {"metadata": {"name": "wakes"}})

    async def gone() -> bool:
        return [item["metadata"]["name"] for item in (await client("GET", OLD)).json["items"]] == ["goes-on"]

    await until(gone)


async def test_namespace_counts_its_events_once(bare: Client) -> None:
    await bare("POST", "/api/v1/namespaces", {"metadata": {"name": "ns"}})
    kept = event(metadata={"name": "kept", "finalizers": ["example.org/hold"]}, regarding={"namespace": "ns"})
    where = "/apis/events.k8s.io/v1/namespaces/ns/events"
    assert (await bare("POST", where, kept)).status == 201
    await bare("DELETE", "/api/v1/namespaces/ns")

    async def waits() -> bool:
        conditions = (await bare("GET", "/api/v1/namespaces/ns")).json["status"].get("conditions", [])
        messages = [item["message"] for item in conditions if item["type"] == "NamespaceContentRemaining"]
        return messages == ["Some resources are remaining: events. has 1 resource instances"]

    await until(waits)
    await bare.merge(f"{where}/kept", {"metadata": {"finalizers": None}})


async def test_new_events_are_read_and_written_as_protobuf_too(bare: Client) -> None:
    assert (await bare("POST", NEW, dump_protobuf(event()), content=PROTOBUF)).status == 201
    found = load_protobuf((await bare("GET", f"{NEW}/e", accept=PROTOBUF)).text)
    assert (found["note"], found["regarding"]["name"]) == ("made it", "n")
    listed = await bare("GET", NEW, accept=PROTOBUF)
    assert b"events.k8s.io/v1\x12\x09EventList" in listed.text


@pytest.mark.parametrize(("policy", "asked"), [("Equivalent", True), ("Exact", False)])
def test_webhook_for_one_name_of_events_is_called_for_the_other_unless_it_matches_exactly(policy, asked) -> None:
    registry = Registry(builtin.resources())
    rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}
    webhook = {"name": "a.b.c", "rules": [rule], "matchPolicy": policy, "clientConfig": {"url": "https://x/"}}
    (hook,) = compile_hooks({"kind": "ValidatingWebhookConfiguration", "webhooks": [webhook]})
    old, new = registry.find("", "v1", "events"), registry.find("events.k8s.io", "v1", "events")
    assert hook.target("CREATE", old, "", registry.versions) is old
    assert hook.target("CREATE", new, "", registry.versions) is (old if asked else None)


def test_roles_apply_to_events_of_both_names() -> None:
    for group in ("", "events.k8s.io"):
        for role, verb, may in (("view", "list", True), ("view", "create", False), ("edit", "create", True)):
            action = ResourceAction(verb, group, "events", namespace="default")
            assert allowed(Caller("alice", role=role), action) is may
