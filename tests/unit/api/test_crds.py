"""The CustomResourceDefinitions: accepted by a real kube-apiserver, their patterns, and the files
in deploy and docs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Literal

import pytest
import re2
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tink.api import patterns, v1alpha2
from tink.api.crds import generate, generate_bmc, to_yaml
from tink.api.schema import SchemaError, structural
from tink.api.v1alpha2 import Hardware, HardwareSpec, Raw, Template, Workflow
from tink.api.yaml import objects
from tink.kubeapi.apiserver.tables import printer_column
from tink.template.fields import parse_fields

KINDS = ("Hardware", "OSIE", "Template", "Workflow")
DEPLOY = Path(__file__).parents[3] / "deploy" / "crds"


def definition(kind: str) -> dict[str, Any]:
    return next(crd for crd in generate() if crd["spec"]["names"]["kind"] == kind)


def schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_deploy_holds_what_the_models_say() -> None:
    """Out of date? tinkedge crds --out deploy/crds"""
    expected = {f"{crd['spec']['names']['plural']}.yaml": to_yaml([crd]) for crd in generate()}
    assert {path.name: path.read_text() for path in DEPLOY.glob("*.yaml")} == expected
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


@pytest.mark.parametrize("kind", KINDS)
def test_schema_holds_nothing_that_kubernetes_refuses(kind: str) -> None:
    for node in nodes(schema(kind)):
        assert not {"$ref", "$defs", "title", "anyOf", "const"} & set(node)
        assert node.get("default", 0) is not None
        assert node.get("type") != "null"


def test_names_and_subresources_are_those_that_must_not_drift() -> None:
    found = {}
    for crd in generate():
        names, (version,) = crd["spec"]["names"], crd["spec"]["versions"]
        assert (crd["spec"]["group"], version["name"], names["categories"]) == (
            "tinkerbell.org",
            "v1alpha2",
            ["tinkerbell"],
        )
        found[names["kind"], names["plural"]] = (names.get("shortNames"), "subresources" in version)
    assert found == {
        ("Hardware", "hardware"): (["hw"], True),
        ("OSIE", "osies"): (None, False),
        ("Template", "templates"): (["tpl"], False),
        ("Workflow", "workflows"): (["wf"], True),
    }


def test_fields_have_their_names_types_defaults_keys_and_descriptions() -> None:
    spec = schema("Hardware")["properties"]["spec"]
    interface = spec["properties"]["networkInterfaces"]
    assert (interface["type"], interface["minProperties"]) == ("object", 1)
    assert "default" not in {**spec, **interface}, "parents are not filled with empty children"
    dhcp = interface["additionalProperties"]["properties"]["dhcp"]["properties"]
    text = "Lease time to serve, in seconds. Default: 24 hours. Maximum: that of RFC 2132 section 9.2."
    bounds = {"minimum": 0, "maximum": 4294967295, "default": 86400}
    assert dhcp["leaseTimeSeconds"] == {"description": text, "type": "integer", "format": "int64", **bounds}
    assert {"ip", "netmask", "gateway", "hostname", "vlanId", "nameservers", "timeservers"} < set(dhcp)
    assert interface["additionalProperties"]["properties"]["disableNetboot"]["default"] is False
    actions = schema("Template")["properties"]["spec"]["properties"]["actions"]
    assert (actions["x-kubernetes-list-type"], actions["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    hardware, workflow = (schema(kind)["properties"]["status"] for kind in ("Hardware", "Workflow"))
    for status in (hardware, workflow):
        assert status["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert workflow["properties"]["actions"]["x-kubernetes-list-map-keys"] == ["id"]
    assert workflow["properties"]["startedAt"]["format"] == "date-time"
    (condition,) = hardware["default"]["conditions"]  # that can be waited for before anybody has looked at the object
    assert (condition["type"], condition["status"]) == ("AddressConflict", "False")
    assert workflow["default"] == {"state": "Pending", "message": "waits for the controller"}


def test_workflow_shows_what_operators_look_for_and_is_selected_by_machine_or_state() -> None:
    columns = definition("Workflow")["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [(column["name"], column["jsonPath"]) for column in columns if not column.get("priority")]
    status = {"State": ".status.state", "Action": ".status.currentAction"}
    references = {"Hardware": ".spec.hardwareRef.name", "Template": ".spec.templateRef.name"}
    rest = {"Message": ".status.message", "Age": ".metadata.creationTimestamp"}
    assert shown == [*(status | references | rest).items()]
    selectable = definition("Workflow")["spec"]["versions"][0]["selectableFields"]
    paths = [".spec.hardwareRef.name", ".spec.templateRef.name", ".status.state"]
    assert [field["jsonPath"] for field in selectable] == paths


def test_hardware_shows_where_its_machine_is_and_nothing_of_a_healthy_boot() -> None:
    columns = definition("Hardware")["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["State", "Boot", "IP", "MAC", "OSIE", "Age"]
    assert [column["name"] for column in columns if column.get("priority")] == [
        "Since",
        "Message",
        "Power",
        "BMC",
        "Conflict",
    ]
    over = {"type": "BootProblem", "status": "False", "reason": "GetsOn", "message": ""}
    status = {"state": "Working", "mac": "52:54:00:00:00:01", "ip": "192.0.2.1", "conditions": [over]}
    obj = {"metadata": {"creationTimestamp": None}, "spec": {"osie": {"name": "debian"}}, "status": status}
    cells = {each["name"]: printer_column(each).cell(obj, datetime.now(UTC)) for each in columns}
    assert (cells["State"], cells["Boot"], cells["Message"]) == ("Working", None, "")
    assert (cells["IP"], cells["MAC"], cells["OSIE"]) == ("192.0.2.1", "52:54:00:00:00:01", "debian")


def test_every_field_explains_itself() -> None:
    for kind in KINDS:
        for part in ("spec", "status"):
            found = fields(schema(kind)["properties"].get(part, {}), f"{kind}.{part}")
            assert [path for path, field in found if not field.get("description", "").endswith(".")] == []


def bounded(node: dict[str, Any], path: str, unbounded: list[str]) -> list[str]:
    """Yield the lists, maps and strings of a schema that have no maximum."""
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


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_users_write_is_unbounded(kind: str) -> None:
    assert bounded(schema(kind)["properties"]["spec"], kind, []) == []


def test_status_is_stored_whatever_was_rendered() -> None:
    """A rule below the status could prevent the controller from storing a status."""
    status = schema("Workflow")["properties"]["status"]["properties"]
    rendered = status["actions"]["items"]["properties"]["rendered"]
    for node in nodes(rendered):
        assert not {"x-kubernetes-validations", "pattern", "maxLength", "maxItems", "x-unchecked"} & set(node)


def test_one_mistake_gives_one_message_and_every_list_has_a_merge_type() -> None:
    """A field with a rule has no pattern, because both would report the same mistake."""
    for kind in KINDS:
        for node in nodes(schema(kind)):
            assert node.get("type") != "array" or node["x-kubernetes-list-type"] in ("atomic", "map")
            assert not ("pattern" in node and "x-kubernetes-validations" in node)
            for rule in node.get("x-kubernetes-validations", ()):
                assert rule["message"]
                assert "\n" not in rule["rule"] + rule["message"], "Kubernetes takes one line"


def test_models_still_read_what_an_older_schema_let_in() -> None:
    dhcp = {"ip": "10.0.0.1", "netmask": "255.255.255.0", "gateway": "10.9.9.9"}
    spec: Raw = {"networkInterfaces": {"m": {"dhcp": dhcp}}, "ipxe": {}, "kernelParams": ["x\ny"] * 300}
    spec |= {"storageDevices": ["/dev/sda1"], "osie": {"name": "Not A Name"}}
    assert Hardware.model_validate({"metadata": {}, "spec": spec}).spec.storage_devices == ["/dev/sda1"]
    action = {"name": "{{ x }}", "image": "a b", "volumes": ["odd"], "env": {"": "x"}, "args": ["x" * 200_000]}
    template = Template.model_validate({"metadata": {}, "spec": {"actions": [action] * 200}})
    assert template.spec.actions[0].name == "{{ x }}"
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
    bounds = {"minimum": 0, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": True}
    assert structural(Odd)["properties"] == {
        "above": {"type": "integer", "format": "int64", **bounds, "default": 1},
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


DOC = (Path(__file__).parents[3] / "docs" / "resources.md").read_text()


def fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below, child
        yield from fields(child, below)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in node:
            yield from fields(node[key], path + mark)


@pytest.mark.parametrize("kind", KINDS)
def test_operator_finds_every_field_with_its_description_and_bounds(kind: str) -> None:
    section = DOC[DOC.index(f"\n## {kind}\n") :]
    for part in ("spec", "status"):
        for path, field in fields(schema(kind)["properties"].get(part, {}), ""):
            if ".rendered." in path:
                continue  # as spec.actions of Template
            if path.startswith(("inventory.outOfBand.", "inventory.inBand.")):
                continue  # a table of their own: test_operator_finds_every_field_of_an_inventory
            if "Actions[]." in path:
                continue  # as spec.tasks[] of Job: test_actions_of_boot_options_are_tasks_of_jobs
            rows = [line for line in section.splitlines() if line.startswith(f"| `{path}` |")]
            assert any(field["description"].replace("|", "\\|") in row for row in rows), f"{kind}.{part}.{path}"
            for bound in ("maxLength", "maxItems", "maxProperties", "maximum", "default"):
                if bound in field:
                    assert any(str(field[bound]).lower() in row for row in rows), f"{kind}.{part}.{path}: {bound}"


def test_operator_finds_every_field_of_an_inventory() -> None:
    section = DOC[DOC.index("| part of `inventory.outOfBand` and `inventory.inBand` |") : DOC.index("\n## OSIE")]
    inventory = schema("Hardware")["properties"]["status"]["properties"]["inventory"]["properties"]
    assert inventory["inBand"]["properties"] == inventory["outOfBand"]["properties"]
    for path, _ in fields(inventory["inBand"], ""):
        *parents, name = path.removeprefix("bmc.nic.ports[].").split(".")
        parents = ["networkInterfaces[]"] if parents == ["lldp"] else parents
        first = "status" if "status" in parents else parents[0] if parents else ""
        rows = [line for line in section.splitlines() if f"`{first}`" in line.split(" | ")[0]] if first else [section]
        assert any(f"`{name}`" in row or f"`{name}[]`" in row for row in rows), path


def test_actions_of_boot_options_are_tasks_of_jobs() -> None:
    """The documentation refers from one to the other."""
    (tasks,) = (
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tasks"]
        for crd in generate_bmc()
        if crd["spec"]["names"]["kind"] == "Job"
    )
    options = schema("Workflow")["properties"]["spec"]["properties"]["bootOptions"]["properties"]
    for name in ("preparingActions", "postActions"):
        assert options["custombootConfig"]["properties"][name]["items"] == tasks["items"]


def test_operator_finds_every_message() -> None:
    for node in (node for kind in KINDS for node in nodes(schema(kind))):
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"].replace("|", "\\|") in DOC


def test_examples_are_objects_of_their_kinds() -> None:
    kinds = []
    for block in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL):
        (found,) = objects(block)
        if found["apiVersion"] != v1alpha2.API_VERSION:
            continue
        getattr(v1alpha2, found["kind"]).model_validate(found)
        if found["kind"] == "Template":
            assert parse_fields(found) == []
        kinds.append(found["kind"])
    assert kinds == [*KINDS]


PATTERNS = {name: value for name, value in vars(patterns).items() if name.isupper() and isinstance(value, str)}
PATTERNS = {name: value for name, value in PATTERNS.items() if not name.startswith("_")}
PARTS = ("10.0.0.1", "255", "52:54:00:12:34:56", "a-b.c", "http://a/b?c", "file:///a")
PARTS = (*PARTS, "/dev/sda", "/dev/nvme0n1p1", "&&", ":/a")
TEXTS = st.lists(st.sampled_from((*PARTS, *" \t\n\v\f\r\x00\x7f\x85\xa0#;|$é0aZ_/.:-")), max_size=6).map("".join)


@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS)
def test_text_is_judged_by_a_converter_as_by_an_api_server(name: str, text: str) -> None:
    pattern = PATTERNS[name]
    assert (patterns.compiled(pattern).search(text) is None) == (re2.search(pattern, text) is None)


@given(st.ip_addresses(v=6), st.text("0123456789abcdef:", max_size=42))
def test_ipv6_addresses_are_taken_as_rfc_5952_spells_them_and_nothing_else(address: IPv6Address, text: str) -> None:
    search = patterns.compiled(patterns.IPV6).search
    if address.ipv4_mapped is None and not address.is_unspecified:
        assert search(str(address)), str(address)
    if search(text):
        IPv6Address(text)


def test_ipv6_address_that_is_not_canonical_unicast_is_refused() -> None:
    wrong = ("fd00::1%eth0", "fd00::1/64", "fd00::0001", "fd00:::1", "1::2::3", "1:2:3:4:5:6:7", "10.0.0.1", "FD00::1")
    assert [text for text in wrong if patterns.compiled(patterns.IPV6).search(text)] == []
    of_a_link = patterns.compiled(patterns.NO_UNICAST_IPV6)
    found = [bool(of_a_link.search(text)) for text in ("fe80::1", "ff02::1", "::1", "fd00::1")]
    assert found == [True, True, True, False]


FIELDS = {
    "DEVICE_PATH": lambda text: {"storageDevices": [text]},
    "HTTP_URL": lambda text: {"ipxe": {"url": text}},
    **{
        name: lambda text, field=field: {"networkInterfaces": {"52:54:00:12:34:56": {"dhcp": {field: text}}}}
        for name, field in (("IPV4", "ip"), ("NETMASK", "netmask"), ("HOSTNAME", "hostname"))
    },
}


@pytest.mark.parametrize("name", FIELDS)
@given(data=st.data())
def test_what_the_api_takes_can_be_read(name: str, data: st.DataObject) -> None:
    """Stored objects must not be refused."""
    text = data.draw(st.from_regex(patterns.compiled(PATTERNS[name])))
    given_fields = FIELDS[name](text)
    assert HardwareSpec.model_validate(given_fields).model_dump(by_alias=True, exclude_unset=True) == given_fields
