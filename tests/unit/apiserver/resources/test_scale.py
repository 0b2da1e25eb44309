"""The scale of a custom resource: what `kubectl scale` and autoscalers read and write."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.apiserver.conftest import Client

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETS = "/apis/example.org/v1/namespaces/default/sets"
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "labels": {"type": "string"}}},
    },
}
PATHS = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
SETS_DEFINITION = {
    "metadata": {"name": "sets.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"plural": "sets", "kind": "Set"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
                "subresources": {"status": {}, "scale": {**PATHS, "labelSelectorPath": ".status.labels"}},
            }
        ],
    },
}


@pytest.fixture
async def sets(bare: Client) -> Any:
    assert (await bare("POST", CRDS, SETS_DEFINITION)).status == 201
    body = {"apiVersion": "example.org/v1", "kind": "Set", "metadata": {"name": "s"}, "spec": {"replicas": 2}}
    assert (await bare("POST", SETS, body)).status == 201
    await bare.merge(f"{SETS}/s/status", {"status": {"replicas": 1, "labels": "app=x"}})
    return bare


async def test_scale_shows_what_is_wanted_and_what_there_is(sets: Any) -> None:
    scale = (await sets("GET", f"{SETS}/s/scale")).json
    assert (scale["apiVersion"], scale["kind"], scale["metadata"]["name"]) == ("autoscaling/v1", "Scale", "s")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "app=x"})


async def test_written_scale_changes_the_object_and_only_its_replicas(sets: Any) -> None:
    scale = (await sets("GET", f"{SETS}/s/scale")).json
    answer = await sets("PUT", f"{SETS}/s/scale", {**scale, "spec": {"replicas": 5}, "status": {"replicas": 9}})
    assert (answer.status, answer.json["spec"]) == (200, {"replicas": 5})
    after = (await sets("GET", f"{SETS}/s")).json
    assert (after["spec"], after["status"]["replicas"], after["metadata"]["generation"]) == ({"replicas": 5}, 1, 2)
    assert [entry["subresource"] for entry in after["metadata"]["managedFields"] if "subresource" in entry]
    answer = await sets("PUT", f"{SETS}/s/scale", {**scale, "spec": {"replicas": 7}})
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")


async def test_patched_scale_changes_the_object(sets: Any) -> None:
    assert (await sets.merge(f"{SETS}/s/scale", {"spec": {"replicas": 3}})).json["spec"] == {"replicas": 3}
    operations = [{"op": "replace", "path": "/spec/replicas", "value": 4}]
    answer = await sets("PATCH", f"{SETS}/s/scale", operations, content="application/json-patch+json")
    assert answer.json["spec"] == {"replicas": 4}
    assert (await sets("GET", f"{SETS}/s")).json["spec"] == {"replicas": 4}


@pytest.mark.parametrize("replicas", [-1, 1 << 31, "many", True, {}])
async def test_senseless_number_of_replicas_is_refused(sets: Any, replicas: Any) -> None:
    answer = await sets("PUT", f"{SETS}/s/scale", {"metadata": {"name": "s"}, "spec": {"replicas": replicas}})
    assert answer.status in (400, 422)
    assert (await sets("GET", f"{SETS}/s")).json["spec"] == {"replicas": 2}


async def test_object_without_the_field_has_no_scale(sets: Any) -> None:
    await sets.merge(f"{SETS}/s", {"spec": {"replicas": None}})
    assert (await sets("GET", f"{SETS}/s/scale")).status == 500  # as Kubernetes says it
    assert (await sets("GET", f"{SETS}/none/scale")).status == 404
    assert (await sets("GET", "/api/v1/namespaces/default/configmaps/x/scale")).status == 404


async def test_error_of_the_server_names_its_cause(sets: Any) -> None:
    await sets.merge(f"{SETS}/s", {"spec": {"replicas": None}})
    answer = await sets("GET", f"{SETS}/s/scale")
    why = 'the spec replicas field ".spec.replicas" does not exist'
    assert answer.json["details"] == {"causes": [{"message": why}]}
    answer = await sets.merge(f"{SETS}/s/scale", {"metadata": {"labels": {"a": "b"}}})
    assert (answer.status, answer.json["message"]) == (400, 'the spec replicas field ".spec.replicas" cannot be empty')


async def test_scale_is_read_as_the_type_that_it_is(sets: Any) -> None:
    scale = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "s"},
        "spec": {"replicas": 3, "x": 1},
    }
    answer = await sets("PUT", f"{SETS}/s/scale", scale)
    assert (answer.status, answer.headers["Warning"]) == (200, ['299 - "unknown field \\"spec.x\\""'])
    assert (await sets("PUT", f"{SETS}/s/scale", scale, fieldValidation="Strict")).status == 400
    assert (await sets("PUT", f"{SETS}/s/scale", scale | {"metadata": {"name": "other"}})).status == 400
    assert (await sets("PUT", f"{SETS}/s/scale", scale | {"kind": "Set", "apiVersion": "example.org/v1"})).status == 400


async def test_applied_scale_conflicts_with_who_manages_the_replicas(sets: Any) -> None:
    config = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "s"}, "spec": {"replicas": 7}}
    apply = "application/apply-patch+yaml"
    answer = await sets("PATCH", f"{SETS}/s/scale?fieldManager=me", config, content=apply)
    assert (answer.status, answer.json["details"]["causes"][0]["field"]) == (409, ".spec.replicas")
    answer = await sets("PATCH", f"{SETS}/s/scale?fieldManager=me&force=true", config, content=apply)
    assert (answer.status, answer.json["spec"]) == (200, {"replicas": 7})


async def test_scale_is_shown_as_a_table(sets: Any) -> None:
    table = (await sets("GET", f"{SETS}/s/scale", accept="application/json;as=Table;v=v1;g=meta.k8s.io")).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Desired", "Available", "Age"]
    assert table["rows"][0]["cells"][:3] == ["s", 2, 1]
