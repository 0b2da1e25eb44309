"""Events under both of their names: one object, with the rules of the name by which it is written.

What a real kube-apiserver answers is in ../conformance (cases/events.yaml).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apiserver.conftest import Client, Start
from tests.waiting import until
from tink.apiserver.access.authorizer import Action, allowed
from tink.apiserver.access.callers import Caller
from tink.apiserver.admission.configuration import compile_hooks
from tink.apiserver.resources import Registry, builtin
from tink.apiserver.serializer import dump_protobuf, load_protobuf

OLD = "/api/v1/namespaces/default/events"
NEW = "/apis/events.k8s.io/v1/namespaces/default/events"
CASES = json.loads((Path(__file__).parents[1] / "data" / "client_go_recorder.json").read_text())
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
    """data/client_go_recorder.json: what client-go sends, recorded with data/client_go_recorder/main.go."""
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


async def test_event_that_goes_on_by_its_series_stays_for_an_hour_after_it_was_seen_last(start: Start) -> None:
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
        said = [item["message"] for item in conditions if item["type"] == "NamespaceContentRemaining"]
        return said == ["Some resources are remaining: events. has 1 resource instances"]

    await until(waits)
    await bare.merge(f"{where}/kept", {"metadata": {"finalizers": None}})


async def test_new_events_are_read_and_written_as_protobuf_too(bare: Client) -> None:
    assert (await bare("POST", NEW, dump_protobuf(event()), content=PROTOBUF)).status == 201
    found = load_protobuf((await bare("GET", f"{NEW}/e", accept=PROTOBUF)).text)
    assert (found["note"], found["regarding"]["name"]) == ("made it", "n")
    listed = await bare("GET", NEW, accept=PROTOBUF)
    assert b"events.k8s.io/v1\x12\x09EventList" in listed.text


@pytest.mark.parametrize(("policy", "asked"), [("Equivalent", True), ("Exact", False)])
def test_webhook_for_the_one_name_hears_of_the_other_unless_it_wants_its_rules_taken_exactly(policy, asked) -> None:
    registry = Registry(builtin.resources())
    rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}
    webhook = {"name": "a.b.c", "rules": [rule], "matchPolicy": policy, "clientConfig": {"url": "https://x/"}}
    (hook,) = compile_hooks({"kind": "ValidatingWebhookConfiguration", "webhooks": [webhook]})
    old, new = registry.find("", "v1", "events"), registry.find("events.k8s.io", "v1", "events")
    assert hook.target("CREATE", old, "", registry.versions) is old
    assert hook.target("CREATE", new, "", registry.versions) is (old if asked else None)


def test_roles_are_about_events_of_both_names() -> None:
    for group in ("", "events.k8s.io"):
        for role, verb, may in (("view", "list", True), ("view", "create", False), ("edit", "create", True)):
            action = Action(verb, group, "events", namespace="default")
            assert allowed(Caller("alice", role=role), action) is may
