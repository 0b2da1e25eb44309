"""The CustomResourceDefinitions: up to date in `deploy/crds/`, and what a real kube-apiserver accepts."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field

from tink.api.crds import generate, to_yaml
from tink.api.schema import SchemaError, structural
from tink.api.v1alpha2 import Hardware, Template, Workflow

DEPLOY = Path(__file__).parents[3] / "deploy" / "crds"


def definition(kind: str) -> dict[str, Any]:
    return next(crd for crd in generate() if crd["spec"]["names"]["kind"] == kind)


def schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_deploy_holds_what_the_models_say() -> None:
    """Out of date? tinkedge crds --out deploy/crds"""
    expected = {f"{crd['spec']['names']['plural']}.yaml": to_yaml([crd]) for crd in generate()}
    assert {path.name: path.read_text() for path in DEPLOY.iterdir()} == expected


def test_yaml_says_the_same_and_has_no_anchors() -> None:
    text = to_yaml(generate())
    assert list(yaml.safe_load_all(text)) == generate()
    assert "&id" not in text


def nodes(node: Any) -> Any:
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from nodes(child)
    elif isinstance(node, list):
        for child in node:
            yield from nodes(child)


@pytest.mark.parametrize("kind", ["Hardware", "OSIE", "Template", "Workflow"])
def test_schema_holds_nothing_that_kubernetes_refuses(kind: str) -> None:
    for node in nodes(schema(kind)):
        assert not {"$ref", "$defs", "title", "anyOf", "const"} & set(node)
        assert node.get("default", 0) is not None
        assert node.get("type") != "null"


def test_names_are_those_that_must_not_drift() -> None:
    names = {crd["spec"]["names"]["plural"]: crd["spec"]["names"].get("shortNames") for crd in generate()}
    assert names == {"hardware": ["hw"], "osies": None, "templates": ["tpl"], "workflows": ["wf"]}
    for crd in generate():
        assert crd["spec"]["names"]["categories"] == ["tinkerbell"]
        assert crd["spec"]["group"] == "tinkerbell.org"
        assert [version["name"] for version in crd["spec"]["versions"]] == ["v1alpha2"]


def test_status_of_workflow_and_hardware_is_written_apart_from_the_spec() -> None:
    has = {crd["spec"]["names"]["kind"]: "subresources" in crd["spec"]["versions"][0] for crd in generate()}
    assert has == {"Hardware": True, "OSIE": False, "Template": False, "Workflow": True}


def test_fields_have_their_names_types_defaults_and_descriptions() -> None:
    interface = schema("Hardware")["properties"]["spec"]["properties"]["networkInterfaces"]
    assert (interface["type"], interface["minProperties"]) == ("object", 1)
    dhcp = interface["additionalProperties"]["properties"]["dhcp"]["properties"]
    assert dhcp["leaseTimeSeconds"] == {
        "description": "Lease time to serve, in seconds. Default: 24 hours. Maximum: that of RFC 2132 section 9.2.",
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": 4294967295,
        "default": 86400,
    }
    assert {"ip", "netmask", "gateway", "hostname", "vlanId", "nameservers", "timeservers"} < set(dhcp)
    assert interface["additionalProperties"]["properties"]["disableNetboot"]["default"] is False
    for kind in ("Hardware", "OSIE", "Template", "Workflow"):
        for name, field in schema(kind)["properties"]["spec"]["properties"].items():
            assert field["description"], f"{kind}.spec.{name}"


def test_parents_are_not_filled_with_empty_children() -> None:
    spec = schema("Hardware")["properties"]["spec"]
    assert "default" not in spec
    assert "default" not in spec["properties"]["networkInterfaces"]


def test_address_conflict_can_be_waited_for_before_there_was_one() -> None:
    (condition,) = schema("Hardware")["properties"]["status"]["default"]["conditions"]
    assert (condition["type"], condition["status"]) == ("AddressConflict", "False")


def test_workflow_that_nobody_has_looked_at_has_a_state_and_says_so() -> None:
    assert schema("Workflow")["properties"]["status"]["default"] == {
        "state": "Pending",
        "message": "waits for the controller",
    }


def test_lists_have_their_keys() -> None:
    actions = schema("Template")["properties"]["spec"]["properties"]["actions"]
    assert (actions["x-kubernetes-list-type"], actions["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    status = schema("Workflow")["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["actions"]["x-kubernetes-list-map-keys"] == ["id"]
    assert status["startedAt"]["format"] == "date-time"
    status = schema("Hardware")["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_workflow_shows_what_operators_look_for() -> None:
    columns = definition("Workflow")["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [(column["name"], column["jsonPath"]) for column in columns if not column.get("priority")]
    assert shown == [
        ("State", ".status.state"),
        ("Action", ".status.currentAction"),
        ("Hardware", ".spec.hardwareRef.name"),
        ("Template", ".spec.templateRef.name"),
        ("Message", ".status.message"),
        ("Age", ".metadata.creationTimestamp"),
    ]


def test_every_field_explains_itself() -> None:
    def undescribed(node: dict[str, Any], path: str) -> list[str]:
        children = {f"{path}.{name}": child for name, child in node.get("properties", {}).items()}
        for key in ("items", "additionalProperties"):
            inner = node.get(key, {})
            children |= {f"{path}.{name}": child for name, child in inner.get("properties", {}).items()}
        found = [name for name, child in children.items() if not child.get("description", "").endswith((".", '".'))]
        return found + [deeper for name, child in children.items() for deeper in undescribed(child, name)]

    for kind in ("Hardware", "OSIE", "Template", "Workflow"):
        for part in ("spec", "status"):
            if part in schema(kind)["properties"]:
                assert undescribed(schema(kind)["properties"][part], f"{kind}.{part}") == []


def bounded(node: dict[str, Any], path: str, unbounded: list[str]) -> list[str]:
    """Which lists, maps and strings of a schema have no bound."""
    match node.get("type"):
        case "string" if "maxLength" not in node and "enum" not in node and "format" not in node:
            unbounded.append(path)
        case "array" if "maxItems" not in node:
            unbounded.append(path)
        case "object" if "additionalProperties" in node and "maxProperties" not in node:
            unbounded.append(path)
    for name, child in node.get("properties", {}).items():
        bounded(child, f"{path}.{name}", unbounded)
    for key in ("items", "additionalProperties"):
        if key in node:
            bounded(node[key], f"{path}[]", unbounded)
    return unbounded


@pytest.mark.parametrize("kind", ["Hardware", "OSIE", "Template", "Workflow"])
def test_nothing_that_users_write_is_unbounded(kind: str) -> None:
    assert bounded(schema(kind)["properties"]["spec"], kind, []) == []


def test_status_is_stored_whatever_was_rendered() -> None:
    """A rule below it would keep the controller from saying what it did."""
    status = schema("Workflow")["properties"]["status"]["properties"]
    rendered = status["actions"]["items"]["properties"]["rendered"]
    for node in nodes(rendered):
        assert not {"x-kubernetes-validations", "pattern", "maxLength", "maxItems", "x-unchecked"} & set(node)


def test_one_mistake_is_not_said_twice() -> None:
    """A field with a rule has no pattern, for both would speak of the same mistake."""
    for kind in ("Hardware", "OSIE", "Template", "Workflow"):
        for node in nodes(schema(kind)):
            assert not ("pattern" in node and "x-kubernetes-validations" in node)
            for rule in node.get("x-kubernetes-validations", ()):
                assert rule["message"]
                assert "\n" not in rule["rule"] + rule["message"], "Kubernetes takes one line"


def test_every_list_says_how_it_is_merged() -> None:
    for kind in ("Hardware", "OSIE", "Template", "Workflow"):
        for node in nodes(schema(kind)):
            if node.get("type") == "array":
                assert node["x-kubernetes-list-type"] in ("atomic", "map")


def test_workflows_of_a_machine_or_a_state_can_be_selected() -> None:
    selectable = definition("Workflow")["spec"]["versions"][0]["selectableFields"]
    paths = [field["jsonPath"] for field in selectable]
    assert paths == [".spec.hardwareRef.name", ".spec.templateRef.name", ".status.state"]


def test_models_still_read_what_an_older_schema_let_in() -> None:
    spec = {
        "networkInterfaces": {"m": {"dhcp": {"ip": "10.0.0.1", "netmask": "255.255.255.0", "gateway": "10.9.9.9"}}},
        "ipxe": {},
        "kernelParams": ["x\ny"] * 300,
        "storageDevices": ["/dev/sda1"],
        "osie": {"name": "Not A Name"},
    }
    assert Hardware.model_validate({"metadata": {}, "spec": spec}).spec.storage_devices == ["/dev/sda1"]
    action = {"name": "{{ x }}", "image": "a b", "volumes": ["odd"], "env": {"": "x"}, "args": ["x" * 200_000]}
    assert (
        Template.model_validate({"metadata": {}, "spec": {"actions": [action] * 200}}).spec.actions[0].name == "{{ x }}"
    )
    assert Workflow.model_validate({"metadata": {}, "spec": {"hardwareRef": {}, "templateRef": {}}})


class Itself(BaseModel):
    inner: list[Itself] = []


class Union(BaseModel):
    either: int | str


class Pair(BaseModel):
    pair: tuple[int, str]


@pytest.mark.parametrize("model", [Itself, Union, Pair])
def test_model_without_a_structural_schema_is_refused(model: type[BaseModel]) -> None:
    with pytest.raises(SchemaError, match=model.__name__):
        structural(model)


class Odd(BaseModel):
    above: int = Field(default=1, gt=0, lt=10)
    anything: dict[str, Any] = {}
    always: Literal["x"] = "x"
    maybe: float | None = None


def test_dialects_differ_and_are_translated() -> None:
    assert structural(Odd)["properties"] == {
        "above": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "exclusiveMinimum": True,
            "maximum": 10,
            "exclusiveMaximum": True,
            "default": 1,
        },
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "always": {"type": "string", "enum": ["x"], "default": "x"},
        "maybe": {"type": "number"},
    }


def test_what_one_caller_does_to_a_definition_no_other_one_sees() -> None:
    first = generate()
    before = deepcopy(first)
    for definition in first:
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clear()
    assert generate() == before
