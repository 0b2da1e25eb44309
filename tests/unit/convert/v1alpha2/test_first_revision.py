"""The first revision of v1alpha2: known by its fields, and brought to the final one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, Source
from tink.convert.v1alpha2 import first_revision

SOURCE = Source("in.yaml", 1, "Workflow", "", "w")
MAC = "52:54:00:00:00:01"


def obj(kind: str, spec: Any, **more: Any) -> Raw:
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": {"name": "x"}, "spec": spec, **more}


def convert(source: Raw) -> tuple[Raw, list[tuple[str, str]]]:
    before = copy.deepcopy(source)
    findings = Findings(SOURCE)
    result = first_revision.convert_first_revision(source, findings)
    assert source == before
    found = [(str(each.kind), each.path) for each in findings]
    return (result[0]["spec"] if result else {}), found


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Hardware", {"osie": {"osieRef": {"name": "a"}}}),
        ("Hardware", {"osie": {"kernelParams": []}}),
        ("Hardware", {"networkInterfaces": {MAC: {"dhcp": {"leaseTime": 1}}}}),
        ("Workflow", {"templateData": {}}),
        ("Workflow", {"timeout": "1h"}),
        ("Workflow", {"timeout": 60_000_000_000}),
    ],
)
def test_early_object_is_known_by_its_fields(kind: str, spec: Raw) -> None:
    assert first_revision.is_first_revision(obj(kind, spec))


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Hardware", {"osie": {"name": "a"}, "kernelParams": ["a"]}),
        ("Hardware", {"networkInterfaces": {MAC: {"dhcp": {"leaseTimeSeconds": 1}}, "b": None, "c": {"dhcp": 3}}}),
        ("Hardware", {"networkInterfaces": [], "osie": "x"}),
        ("Hardware", None),
        ("Workflow", {"templateParams": {}, "timeout": 3600}),
        ("Workflow", []),
        ("Template", {"timeout": "1h"}),
        ("OSIE", {"osie": {"osieRef": {}}}),
    ],
)
def test_final_object_is_not_taken_for_an_early_one(kind: str, spec: Any) -> None:
    assert not first_revision.is_first_revision(obj(kind, spec))


def test_severity_alone_tells_an_early_workflow() -> None:
    status = {"conditions": ["x", {"type": "Started", "severity": "Info"}]}
    assert first_revision.is_first_revision(obj("Workflow", {}, status=status))
    assert not first_revision.is_first_revision(obj("Workflow", {}, status={"conditions": [{"type": "Started"}]}))


def test_osie_is_a_reference_and_its_parameters_are_the_hardwares() -> None:
    spec, found = convert(obj("Hardware", {"osie": {"osieRef": {"name": "hook"}, "kernelParams": ["a"]}, "x": 1}))
    assert spec == {"osie": {"name": "hook"}, "x": 1, "kernelParams": ["a"]}
    assert found == []


@pytest.mark.parametrize(
    ("spec", "made", "found"),
    [
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
def test_two_osies_that_disagree_are_an_error(spec: Raw, made: Raw, found: list[tuple[str, str]]) -> None:
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
    spec, found = convert(obj("Hardware", {"networkInterfaces": {MAC: {"dhcp": dhcp}}}))
    assert spec["networkInterfaces"][MAC]["dhcp"] == made
    assert list(spec["networkInterfaces"][MAC]["dhcp"]) == list(made)
    assert found == ([(kind, f'spec.networkInterfaces["{MAC}"].dhcp.leaseTime')] if kind else [])


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
    assert found == [
        ("changed", "spec.templateData.n"),
        ("changed", "spec.templateData.b"),
        ("changed", "spec.templateData.o"),
        ("dropped", "spec.templateData.s"),
    ]


def test_params_beside_template_data_are_strings_too() -> None:
    params = {"null": None, "n": 2, "s": "b"}
    spec, found = convert(obj("Workflow", {"templateData": {"null": "a"}, "templateParams": params}))
    assert spec == {"templateParams": {"null": "a", "n": "2", "s": "b"}}
    assert found == [("changed", "spec.templateParams.n")]


def test_severity_and_time_of_conditions_are_dropped_and_said() -> None:
    condition = {"type": "Started", "status": "True", "severity": "Info", "lastTransitionTime": "t", "reason": "R"}
    findings = Findings(SOURCE)
    source = obj("Workflow", {}, status={"state": "Running", "conditions": [{**condition, "severity": ""}, condition]})
    (made,) = first_revision.convert_first_revision(source, findings)
    assert made["status"]["conditions"] == [{"type": "Started", "status": "True", "reason": "R"}] * 2
    assert [each.path for each in findings] == [
        "status.conditions[0].lastTransitionTime",
        "status.conditions[1].severity",
        "status.conditions[1].lastTransitionTime",
    ]
    assert not first_revision.is_first_revision(made)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(
    st.sampled_from(["Hardware", "Workflow", "Template"]),
    st.dictionaries(
        st.sampled_from(
            ["osie", "kernelParams", "networkInterfaces", "templateData", "templateParams", "timeout", MAC]
        ),
        JSON
        | st.dictionaries(
            st.sampled_from(["osieRef", "name", "kernelParams", MAC]), JSON | st.just({"dhcp": {"leaseTime": 1}})
        ),
    ),
)
def test_no_object_crashes_and_a_result_is_first_revision_no_more(kind: str, spec: Raw) -> None:
    source = obj(kind, spec, status={"conditions": [{"severity": 1}, None]})
    first_revision.is_first_revision(source)
    findings = Findings(SOURCE)
    for made in first_revision.convert_first_revision(source, findings):
        timeout = made["spec"].get("timeout")
        assert not first_revision.is_first_revision(made) or isinstance(timeout, int)
