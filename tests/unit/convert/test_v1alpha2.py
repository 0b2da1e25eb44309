"""Objects of v1alpha2: today's objects are unchanged; objects of other schemas with that name are reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, ObjectPlace
from tink.convert.run import ConversionResult
from tink.convert.v1alpha2 import convert_first_revision, is_first_revision

Converting = Callable[..., ConversionResult]
SOURCE = ObjectPlace("in.yaml", 1, "Workflow", "", "w")
MAC = "52:54:00:00:00:01"
NIC = f'spec.networkInterfaces["{MAC}"]'


def obj(kind: str, spec: Any, **more: Any) -> Raw:
    metadata = {"name": "a", "namespace": "rack"}
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": metadata, "spec": spec} | more


def nic(**fields: Any) -> Raw:
    return {"networkInterfaces": {MAC: fields}}


def reported(result: ConversionResult) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.path) for finding in result.findings]


INTERFACES = {
    MAC: {"dhcp": {"ip": "10.0.0.1", "leaseTimeSeconds": 60}, "disableDhcp": False},
    "52:54:00:00:00:02": {"dhcp": {"ipv6": {"address": "2001:db8::2", "prefixLength": 56}}},
}
REST = {"osie": {"name": "hook"}, "storageDevices": ["/dev/sda"], "instance": {"userdata": "x"}}
ACTION = {"name": "a", "image": "b", "env": {"any name": "x"}, "timeout": 5, "reboots": True}
CURRENT = [
    obj("Hardware", {"networkInterfaces": INTERFACES, **REST}),
    obj("OSIE", {"kernelUrl": "http://a/k", "initrdUrl": "http://a/i"}),
    obj("Template", {"actions": [ACTION], "env": {}}),
    obj("Workflow", {"hardwareRef": {"name": "a"}, "templateRef": {"name": "a"}, "templateParams": {"x": "y"}}),
]


@pytest.mark.parametrize("source", CURRENT, ids=lambda source: source["kind"])
def test_current_object_is_unchanged(converting: Converting, source: Raw) -> None:
    result = converting(source)
    assert (result.objects, result.findings) == ([source], [])


def test_field_that_an_api_would_drop_silently_is_reported(converting: Converting) -> None:
    spec = {**nic(dhcp={"ip": "10.0.0.1", "mtu": 9000}), "disks": [], "bmcRef": None, "rack": {"u": 7}}
    result = converting(obj("Hardware", spec, extra="x"))
    assert result.objects == [obj("Hardware", nic(dhcp={"ip": "10.0.0.1"}))]
    assert reported(result) == [("dropped", path) for path in (f"{NIC}.dhcp.mtu", "spec.rack", "extra")]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (obj("Hardware", [1]), "spec"),
        (obj("Hardware", {"networkInterfaces": {MAC: 5}}), NIC),
        (obj("Hardware", {"storageDevices": "/dev/sda"}), "spec.storageDevices"),
        (obj("Hardware", nic(disableDhcp=1)), f"{NIC}.disableDhcp"),
        (obj("Workflow", {"hardwareRef": {"name": "a"}}), "spec.templateRef"),
        (obj("Template", {"actions": [{"name": "a", "image": "b", "timeout": True}]}), "spec.actions[0].timeout"),
        (obj("OSIE", None), "spec"),
    ],
)
def test_object_that_no_api_takes_is_an_error(converting: Converting, source: Raw, path: str) -> None:
    result = converting(source)
    assert (result.objects, reported(result)) == ([], [("error", path)])
    words = {"spec.storageDevices": 'must be of type array: "string"', "spec.templateRef": "Required value"}
    assert words.get(path, "") in result.findings[0].reason, "in the API server's words"


def test_what_a_server_wrote_stays_there(converting: Converting) -> None:
    """Otherwise no other server accepts the output of `kubectl get -o yaml`."""
    written = {"uid": "u", "resourceVersion": "5", "creationTimestamp": "x", "managedFields": [{}], "generation": 3}
    owners = {"ownerReferences": [{"uid": "z"}]}
    others = (obj("Machine", {}, apiVersion="bmc.tinkerbell.org/v1alpha1"), obj("Secret", {}, apiVersion="v1"))
    for source in (*CURRENT, *others):
        result = converting({**source, "metadata": source["metadata"] | written | owners})
        assert (result.objects, reported(result)) == ([source], [("dropped", "metadata.ownerReferences")])


# --- tinkerbell/tinkerbell's own v1alpha2


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("Hardware", {"agentID": "1234"}, "spec.agentID"),
        ("Hardware", {"instance": {"osie": {"kernelURL": "http://a/k"}}}, "spec.instance.osie"),
        ("Hardware", nic(ipam={}), f"{NIC}.ipam"),
        ("Hardware", nic(dhcp={"ipv4": {}}), f"{NIC}.dhcp.ipv4"),
        ("Hardware", nic(dhcp={"ipv6": {"nameservers": ["fd00::1"]}}), f"{NIC}.dhcp.ipv6"),
        ("Hardware", {"storageDevices": ["/dev/sda", {"name": "/dev/sda"}]}, "spec.storageDevices[1]"),
        ("Workflow", {"tasks": [{"taskRef": {"name": "x"}}]}, "spec.tasks"),
        ("Policy", {"rules": {}}, ""),
        ("Task", {"actions": []}, ""),
    ],
)
def test_other_schema_of_the_same_name_is_refused_and_named(
    converting: Converting, kind: str, spec: Raw, path: str
) -> None:
    result = converting(obj(kind, spec))
    assert (result.objects, reported(result)) == ([], [("error", path)])
    assert "tinkerbell/tinkerbell" in result.findings[0].reason


# --- tinkerbell/tink's


def test_namespaces_of_tinks_actions_come_along(converting: Converting) -> None:
    text = """\
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: a}
spec:
  actions:
  - name: one
    image: x
    namespaces:
      network: host # the machine's
      pid: host # its processes
  - {name: two, image: x, namespaces: {network: host, pid: 5, ipc: host}, networkNamespace: own}
  - {name: three, image: x, namespaces: {}}
"""
    result = converting(text)
    (made,) = result.objects
    assert [action.get("networkNamespace") for action in made["spec"]["actions"]] == ["host", "own", None]
    assert [action.get("pidNamespace") for action in made["spec"]["actions"]] == ["host", None, None]
    assert not any("namespaces" in action for action in made["spec"]["actions"])
    assert reported(result) == [("dropped", f"spec.actions[1].namespaces.{name}") for name in ("pid", "ipc", "network")]


# --- the first revision is known by its fields, and brought to the final one


def convert(source: Raw) -> tuple[Raw, list[tuple[str, str]]]:
    before = copy.deepcopy(source)
    findings = Findings(SOURCE)
    result = convert_first_revision(source, findings)
    assert source == before
    found = [(str(each.kind), each.path) for each in findings]
    return (result[0]["spec"] if result else {}), found


@pytest.mark.parametrize(
    ("source", "is_early"),
    [
        (obj("Hardware", {"osie": {"osieRef": {"name": "a"}}}), True),
        (obj("Hardware", {"osie": {"kernelParams": []}}), True),
        (obj("Hardware", nic(dhcp={"leaseTime": 1})), True),
        (obj("Workflow", {"templateData": {}}), True),
        (obj("Workflow", {"timeout": "1h"}), True),
        (obj("Workflow", {"timeout": 60_000_000_000}), True),
        (obj("Workflow", {}, status={"conditions": ["x", {"type": "Started", "severity": "Info"}]}), True),
        (obj("Hardware", {"osie": {"name": "a"}, "kernelParams": ["a"]}), False),
        (obj("Hardware", {"networkInterfaces": {MAC: {"dhcp": {"leaseTimeSeconds": 1}}, "b": None}}), False),
        (obj("Hardware", {"networkInterfaces": {"c": {"dhcp": 3}}}), False),
        (obj("Hardware", {"networkInterfaces": [], "osie": "x"}), False),
        (obj("Hardware", None), False),
        (obj("Workflow", {"templateParams": {}, "timeout": 3600}), False),
        (obj("Workflow", []), False),
        (obj("Workflow", {}, status={"conditions": [{"type": "Started"}]}), False),
        (obj("Template", {"timeout": "1h"}), False),
        (obj("OSIE", {"osie": {"osieRef": {}}}), False),
    ],
)
def test_early_object_is_known_by_its_fields(source: Raw, is_early: bool) -> None:
    assert is_first_revision(source) is is_early


@pytest.mark.parametrize(
    ("spec", "made", "found"),
    [
        (
            {"osie": {"osieRef": {"name": "hook"}, "kernelParams": ["a"]}, "x": 1},
            {"osie": {"name": "hook"}, "x": 1, "kernelParams": ["a"]},
            [],
        ),
        ({"osie": {"kernelParams": ["a"]}}, {"kernelParams": ["a"]}, []),
        ({"osie": {"osieRef": {"name": "a"}, "name": "a"}}, {"osie": {"name": "a"}}, []),
        ({"osie": {"osieRef": {"name": "a"}, "name": "b"}}, {}, [("error", "spec.osie.osieRef.name")]),
        ({"osie": {"kernelParams": ["a"]}, "kernelParams": ["b"]}, {}, [("error", "spec.osie.kernelParams")]),
        ({"osie": {"kernelParams": ["a"]}, "kernelParams": ["a"]}, {"kernelParams": ["a"]}, []),
        (
            {"osie": {"osieRef": {"name": "a", "namespace": "b"}, "more": 1}},
            {"osie": {"name": "a"}},
            [("dropped", "spec.osie.osieRef.namespace"), ("dropped", "spec.osie.more")],
        ),
        ({"osie": {"osieRef": 3}}, {}, [("dropped", "spec.osie.osieRef")]),
    ],
)
def test_osie_is_a_reference_its_parameters_are_the_hardwares_and_two_that_disagree_are_an_error(
    spec: Raw, made: Raw, found: list[tuple[str, str]]
) -> None:
    assert convert(obj("Hardware", spec)) == (made, found)


@pytest.mark.parametrize(
    ("dhcp", "made", "kind"),
    [
        ({"leaseTime": 60, "ip": "a"}, {"leaseTimeSeconds": 60, "ip": "a"}, None),
        ({"leaseTime": 60, "leaseTimeSeconds": 60}, {"leaseTimeSeconds": 60}, None),
        ({"leaseTime": 60, "leaseTimeSeconds": 61}, {"leaseTimeSeconds": 61}, "dropped"),
        ({"leaseTime": -1}, {}, "dropped"),
        ({"leaseTime": 1 << 32}, {}, "dropped"),
        ({"leaseTime": True}, {}, "dropped"),
        ({"leaseTime": "1h"}, {}, "dropped"),
        ({"leaseTime": None}, {}, None),
    ],
)
def test_lease_time_has_its_new_name(dhcp: Raw, made: Raw, kind: str | None) -> None:
    spec, found = convert(obj("Hardware", nic(dhcp=dhcp)))
    assert [*spec["networkInterfaces"][MAC]["dhcp"].items()] == [*made.items()], "in their order"
    assert found == ([(kind, f"{NIC}.dhcp.leaseTime")] if kind else [])


@pytest.mark.parametrize(
    ("timeout", "made", "kind"),
    [
        ("1h30m", 5400, None),
        ("0", 0, None),
        ("90s", 90, None),
        ("1.5m", 90, None),
        ("1ms", 1, "changed"),
        ("1s1ns", 2, "changed"),
        ("-5s", None, "dropped"),
        ("1h x", None, "dropped"),
        ("", None, "dropped"),
        ("99999999999999999999h", None, "dropped"),
        (600_000_000_000, 600, None),
        (1_500_000_000, 2, "changed"),
        (600, 600, "changed"),
        (0, 0, None),
    ],
)
def test_duration_is_seconds(timeout: Any, made: int | None, kind: str | None) -> None:
    spec, found = convert(obj("Workflow", {"templateData": {}, "timeout": timeout}))
    assert spec.get("timeout") == made
    assert found == ([(kind, "spec.timeout")] if kind else [])


def test_template_data_of_any_kind_are_strings() -> None:
    data = {"s": "a", "n": 1.5, "b": False, "o": {"x": [1, "é"]}, "z": None}
    spec, found = convert(obj("Workflow", {"templateData": data, "templateParams": {"s": "b", "t": "c"}}))
    assert spec == {"templateParams": {"s": "b", "n": "1.5", "b": "false", "o": '{"x":[1,"é"]}', "t": "c"}}
    assert found == [*(("changed", f"spec.templateData.{name}") for name in "nbo"), ("dropped", "spec.templateData.s")]
    params = {"null": None, "n": 2, "s": "b"}
    spec, found = convert(obj("Workflow", {"templateData": {"null": "a"}, "templateParams": params}))
    assert spec == {"templateParams": {"null": "a", "n": "2", "s": "b"}}
    assert found == [("changed", "spec.templateParams.n")]


def test_severity_and_time_of_conditions_are_reported_as_dropped() -> None:
    condition = {"type": "Started", "status": "True", "severity": "Info", "lastTransitionTime": "t", "reason": "R"}
    findings = Findings(SOURCE)
    source = obj("Workflow", {}, status={"state": "Running", "conditions": [{**condition, "severity": ""}, condition]})
    (made,) = convert_first_revision(source, findings)
    assert made["status"]["conditions"] == [{"type": "Started", "status": "True", "reason": "R"}] * 2
    fields = ("[0].lastTransitionTime", "[1].severity", "[1].lastTransitionTime")
    assert [each.path for each in findings] == [f"status.conditions{field}" for field in fields]
    assert not is_first_revision(made)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
OUTER = ["osie", "kernelParams", "networkInterfaces", "templateData", "templateParams", "timeout", MAC]
INNER = ["osieRef", "name", "kernelParams", MAC]
FIELDS = st.dictionaries(st.sampled_from(INNER), JSON | st.just({"dhcp": {"leaseTime": 1}}))


@given(st.sampled_from(["Hardware", "Workflow", "Template"]), st.dictionaries(st.sampled_from(OUTER), JSON | FIELDS))
def test_no_object_crashes_and_no_result_is_of_the_first_revision(kind: str, spec: Raw) -> None:
    source = obj(kind, spec, status={"conditions": [{"severity": 1}, None]})
    is_first_revision(source)
    findings = Findings(SOURCE)
    for made in convert_first_revision(source, findings):
        timeout = made["spec"].get("timeout")
        assert not is_first_revision(made) or isinstance(timeout, int)
