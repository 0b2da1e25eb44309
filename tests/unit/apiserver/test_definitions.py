"""CustomResourceDefinitions of anybody: served at once, checked when written, gone with their objects."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.org/v1/widgets"

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


def widget(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(WIDGET)
    made["spec"] |= changes
    return made


async def test_definition_is_completed_and_served_at_once(bare: Any) -> None:
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
    assert (await bare("POST", WIDGETS, {"metadata": {"name": "w"}, "spec": {"size": 1}})).status == 201
    assert (await bare("GET", WIDGETS)).json["kind"] == "WidgetList"
    listed = (await bare("GET", "/apis/example.org/v1")).json["resources"]
    assert [item["name"] for item in listed] == ["widgets"]
    document = (await bare("GET", "/openapi/v3/apis/example.org/v1")).json
    assert "org.example.v1.Widget" in document["components"]["schemas"]


async def test_changed_schema_holds_for_the_next_write(bare: Any) -> None:
    await bare("POST", CRDS, WIDGET)
    before = (await bare("GET", "/openapi/v3")).json["paths"]["apis/example.org/v1"]
    patch = [
        {
            "op": "add",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/minimum",
            "value": 5,
        }
    ]
    assert (
        await bare("PATCH", f"{CRDS}/widgets.example.org", patch, content="application/json-patch+json")
    ).status == 200
    answer = await bare("POST", WIDGETS, {"metadata": {"name": "w"}, "spec": {"size": 1}})
    assert answer.status == 422
    assert (await bare("GET", "/openapi/v3")).json["paths"]["apis/example.org/v1"] != before


async def test_object_is_served_in_every_version_and_stored_in_one(bare: Any) -> None:
    version = WIDGET["spec"]["versions"][0]
    older = {**version, "name": "v1beta1", "storage": False, "deprecated": True}
    await bare("POST", CRDS, widget(versions=[version, older]))
    answer = await bare("POST", WIDGETS.replace("v1", "v1beta1"), {"metadata": {"name": "w"}, "spec": {"size": 1}})
    assert answer.json["apiVersion"] == "example.org/v1beta1"
    assert answer.headers["Warning"] == ['299 - "example.org/v1beta1 Widget is deprecated"']
    assert (await bare("GET", f"{WIDGETS}/w")).json["apiVersion"] == "example.org/v1"
    listed = (await bare("GET", WIDGETS.replace("v1", "v1beta1"))).json
    assert (listed["apiVersion"], listed["items"][0]["apiVersion"]) == ("example.org/v1beta1",) * 2
    group = (await bare("GET", "/apis/example.org")).json
    assert [item["version"] for item in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"group": "example"}, "spec.group"),
        ({"group": "other.org"}, "metadata.name"),
        ({"scope": "Galaxy"}, "spec.scope"),
        ({"versions": []}, "spec.versions"),
        ({"names": {"plural": "Widgets", "kind": "Widget"}}, "spec.names.plural"),
        ({"names": {"plural": "widgets"}}, "spec.names.kind"),
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion.strategy"),
        ({"versions": [{"name": "v1", "served": True, "storage": True}]}, "spec.versions[0].schema.openAPIV3Schema"),
        ({"versions": [{**WIDGET["spec"]["versions"][0], "storage": False}]}, "spec.versions"),
        (
            {
                "versions": [
                    {
                        **WIDGET["spec"]["versions"][0],
                        "additionalPrinterColumns": [{"name": "X", "type": "string", "jsonPath": "spec"}],
                    }
                ]
            },
            "spec.versions[0].additionalPrinterColumns[0].jsonPath",
        ),
        (
            {
                "versions": [
                    {
                        **WIDGET["spec"]["versions"][0],
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}},
                    }
                ]
            },
            "spec.versions[0].schema.openAPIV3Schema.properties[a].type",
        ),
    ],
)
async def test_definition_that_kubernetes_would_refuse_is_refused(
    bare: Any, changes: dict[str, Any], field: str
) -> None:
    answer = await bare("POST", CRDS, widget(**changes))
    assert answer.status == 422
    assert field in [cause["field"] for cause in answer.json["details"]["causes"]]


async def test_names_that_another_resource_has_are_not_accepted(bare: Any) -> None:
    await bare("POST", CRDS, WIDGET)
    other = widget(names={"plural": "wodgets", "kind": "Wodget", "shortNames": ["wd"]})
    other["metadata"]["name"] = "wodgets.example.org"
    answer = await bare("POST", CRDS, other)
    conditions = {item["type"]: item for item in answer.json["status"]["conditions"]}
    assert conditions["Established"]["status"] == "False"
    assert conditions["NamesAccepted"]["message"] == '"wd" is already in use by widgets.example.org'
    assert (await bare("GET", "/apis/example.org/v1/wodgets")).status == 404


async def test_rules_that_are_not_enforced_are_warned_of(bare: Any) -> None:
    ruled = copy.deepcopy(WIDGET)
    openapi = ruled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    openapi["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": "self.size > 1"}]
    answer = await bare("POST", CRDS, ruled)
    assert answer.status == 201
    assert "x-kubernetes-validations are not enforced" in answer.headers["Warning"][0]


async def test_group_and_scope_of_a_definition_stay(bare: Any) -> None:
    await bare("POST", CRDS, WIDGET)
    answer = await bare.merge(f"{CRDS}/widgets.example.org", {"spec": {"scope": "Namespaced"}})
    assert answer.json["message"].endswith('spec.scope: Invalid value: "Namespaced": field is immutable')


async def test_deleted_definition_takes_its_objects_and_ends_their_watches(bare: Any) -> None:
    await bare("POST", CRDS, WIDGET)
    await bare("POST", WIDGETS, {"metadata": {"name": "w"}})
    async with bare.watch(WIDGETS, resourceVersion="0") as watch, bare.watch(CRDS) as definitions:
        assert await watch.kinds(1) == [("ADDED", "w")]
        assert (await definitions.next())["type"] == "ADDED"
        await bare("DELETE", f"{CRDS}/widgets.example.org")
        assert await watch.kinds(1) == [("DELETED", "w")]
        assert await watch.next() is None
        assert [(await definitions.next())["type"] for _ in range(2)] == ["MODIFIED", "DELETED"]
    assert (await bare("GET", WIDGETS)).status == 404
    assert "example.org" not in str((await bare("GET", "/apis")).json)


async def test_definition_waits_for_objects_with_finalizers(bare: Any) -> None:
    await bare("POST", CRDS, WIDGET)
    await bare("POST", WIDGETS, {"metadata": {"name": "w", "finalizers": ["example.org/hold"]}})
    await bare("DELETE", f"{CRDS}/widgets.example.org")
    await asyncio.sleep(0.2)
    answer = await bare("GET", f"{CRDS}/widgets.example.org")
    assert "Terminating" in [item["type"] for item in answer.json["status"]["conditions"]]
    async with bare.watch(CRDS) as watch:
        await watch.next()
        await bare.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
        assert await watch.kinds(1) == [("DELETED", "widgets.example.org")]


async def test_nothing_new_in_a_namespace_that_is_going(bare: Any) -> None:
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


async def test_discovery_in_both_forms_tells_the_same(api: Any) -> None:
    classic = (await api("GET", "/apis/tinkerbell.org/v1alpha2")).json["resources"]
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    answer = await api("GET", "/apis", accept=accept)
    assert answer.headers["Content-Type"] == [accept]
    ours = next(item for item in answer.json["items"] if item["metadata"]["name"] == "tinkerbell.org")
    resources = ours["versions"][0]["resources"]
    assert [item["resource"] for item in resources] == [i["name"] for i in classic if "/" not in i["name"]]
    workflows = next(item for item in resources if item["resource"] == "workflows")
    assert (workflows["shortNames"], workflows["categories"]) == (["wf"], ["tinkerbell"])
    assert workflows["subresources"][0]["subresource"] == "status"
    assert "workflows/status" in [item["name"] for item in classic]
    core = (await api("GET", "/api", accept=accept)).json["items"]
    assert core[0]["versions"][0]["resources"][0]["resource"] == "namespaces"
    assert (await api("GET", "/api")).json["versions"] == ["v1"]


async def test_openapi_tells_kubectl_that_the_server_validates(api: Any) -> None:
    document = (await api("GET", "/openapi/v3/apis/tinkerbell.org/v1alpha2")).json
    patch = document["paths"]["/apis/tinkerbell.org/v1alpha2/namespaces/{namespace}/hardware/{name}"]["patch"]
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
    known = document["components"]["schemas"]
    assert known["org.tinkerbell.v1alpha2.Hardware"]["x-kubernetes-group-version-kind"] == [
        {"group": "tinkerbell.org", "version": "v1alpha2", "kind": "Hardware"}
    ]

    def refs(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(refs(child) for child in node.values()))
        return set().union(*(refs(child) for child in node)) if isinstance(node, list) else set()

    assert refs(document) <= {f"#/components/schemas/{name}" for name in known}
