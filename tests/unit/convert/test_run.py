"""Many objects in one run: the converter of each, shared objects, and the report of all losses with their places."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.api.v1alpha2 import Raw
from tink.convert import run
from tink.convert.documents import Converted
from tink.convert.fields import Fields, join
from tink.convert.findings import ConversionFinding, FindingKind, Findings, ObjectPlace
from tink.convert.metal3.versions import ConversionSettings
from tink.convert.run import ConversionResult, as_json, as_table, summary

Converting = Callable[..., ConversionResult]


def obj(api_version: str, kind: str, name: str = "a", **more: Any) -> Raw:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}


INTERFACE = {"dhcp": {"mac": "52:54:00:12:34:56"}, "netboot": {"allowPXE": True}}
HARDWARE = obj("tinkerbell.org/v1alpha1", "Hardware", spec={"interfaces": [INTERFACE]})


def reported(result: ConversionResult) -> list[tuple[str, str]]:
    return [(str(each.kind), each.path) for each in result.findings]


TEMPLATE = obj(
    "tinkerbell.org/v1alpha1",
    "Template",
    spec={"data": "name: t\ntasks: [{name: t, worker: w, actions: [{name: a, image: 'x.io/a'}]}]"},
)
WORKFLOW = obj("tinkerbell.org/v1alpha1", "Workflow", spec={"hardwareRef": "h", "templateRef": "t"})
_IMAGE = {"url": "http://x/y.raw", "checksum": "0" * 64}
_HOST = obj("metal3.io/v1alpha1", "BareMetalHost", spec={"online": True, "bootMACAddress": "52:54:00:12:34:56"})


@pytest.mark.parametrize(
    ("source", "to", "made"),
    [
        *((source, None, source["kind"]) for source in (HARDWARE, TEMPLATE, WORKFLOW)),
        (obj("tinkerbell.org/v1alpha2", "Template", spec={"actions": []}), None, "Template"),
        (obj("bmc.tinkerbell.org/v1alpha1", "Machine"), None, "Machine"),
        (obj("v1", "Secret"), None, "Secret"),
        (obj("v1", "Secret"), "hardware", None),
        (_HOST, "hardware", "Hardware"),
        (obj("metal3.io/v1alpha1", "HardwareData"), "hardware", None),
        (_HOST, "v1beta1", "BareMetalHost"),
        (obj("metal3.io/v1alpha1", "HardwareData"), "v1beta1", "HardwareData"),
    ],
)
def test_each_object_gets_the_converter_of_its_version_and_kind(
    converting: Converting, source: Raw, to: str | None, made: str | None
) -> None:
    result = converting(source, to=to)
    assert [each["kind"] for each in result.objects] == ([made] if made else [])
    assert not any(each.kind is FindingKind.ERROR for each in result.findings)
    if source["apiVersion"] == "tinkerbell.org/v1alpha1":
        assert result.objects[0]["apiVersion"] == "tinkerbell.org/v1alpha2"
    if to == "v1beta1" and source["kind"] == "BareMetalHost":
        assert result.objects[0]["apiVersion"] == "metal3.io/v1beta1"


def test_fault_of_a_converter_costs_its_object_alone(converting: Converting, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[Raw]:
        raise KeyError("x")

    key = ("tinkerbell.org/v1alpha1", "Template")
    monkeypatch.setattr(run, "_CONVERTERS", {**run._CONVERTERS, key: broken})
    result = converting(TEMPLATE, HARDWARE)
    assert [each["kind"] for each in result.objects] == ["Hardware"]
    assert reported(result) == [("error", "")]
    assert "KeyError" in result.findings[0].reason


@pytest.mark.parametrize(
    "source",
    [
        obj("apps/v1", "Deployment"),
        obj("tinkerbell.org/v1alpha3", "Hardware"),
        obj("tinkerbell.org/v1alpha1", "Hardwares"),
        obj("tinkerbell.org/v1alpha2", "Machine"),
        obj("metal3.io/v1alpha1", "BareMetalHost"),
        obj("metal3.io/v1alpha1", "FirmwareSchema"),
        obj("v1", "ConfigMap"),
    ],
)
def test_unknown_kind_is_an_error_and_the_rest_is_converted(converting: Converting, source: Raw) -> None:
    result = converting(source, HARDWARE)
    assert [each["kind"] for each in result.objects] == ["Hardware"]
    (finding,) = result.findings
    assert (finding.kind, finding.source.document, finding.source.kind) == (FindingKind.ERROR, 1, source["kind"])
    assert (finding.source.file, finding.source.name) == ("in.yaml", "a")
    assert source["kind"] in finding.reason


def test_same_object_twice_is_one_and_another_of_its_name_is_an_error(converting: Converting) -> None:
    other = {**HARDWARE, "metadata": {"name": "a", "labels": {"x": "y"}}}
    elsewhere = {**HARDWARE, "metadata": {"name": "a", "namespace": "elsewhere"}}
    result = converting(HARDWARE, HARDWARE, other, elsewhere)
    assert [each["metadata"] for each in result.objects] == [{"name": "a"}, elsewhere["metadata"]]
    assert reported(result) == [("error", "metadata.name")]
    (finding,) = result.findings
    assert (finding.kind, finding.source.document) == (FindingKind.ERROR, 3)
    assert "in.yaml, document 1" in finding.reason


def test_second_conversion_changes_nothing(converting: Converting) -> None:
    osie = {"baseURL": "http://a", "kernel": "k", "initrd": "i"}
    interface = {"dhcp": {"mac": "52:54:00:12:34:57"}, "netboot": {"allowPXE": True, "osie": osie}}
    booting = {**HARDWARE, "metadata": {"name": "b"}, "spec": {"interfaces": [interface]}}
    once = converting(HARDWARE, booting)
    assert [each["kind"] for each in once.objects] == ["OSIE", "Hardware", "Hardware"]
    twice = converting(*once.objects)
    assert (twice.objects, twice.findings) == (once.objects, [])
    again = converting(*once.objects, booting)
    assert again.objects == once.objects, "of an object in both versions there is one"


@pytest.mark.parametrize(
    ("kinds", "code", "allowed"),
    [
        ([], 0, 0),
        ([FindingKind.CHANGED], 0, 0),
        ([FindingKind.DROPPED], 2, 0),
        ([FindingKind.DROPPED, FindingKind.ERROR], 1, 1),
    ],
)
def test_exit_code_tells_scripts_whether_anything_was_lost(kinds: list[FindingKind], code: int, allowed: int) -> None:
    source = ObjectPlace("f", 1)
    result = ConversionResult([], [ConversionFinding(kind, source, "", "") for kind in kinds])
    assert (result.exit_code(), result.exit_code(allow_loss=True)) == (code, allowed)


# --- between the versions of Metal3's hosts ---


def test_checksum_that_contradicts_its_empty_type_is_reported(converting: Converting) -> None:
    host = {**_HOST, "spec": {"online": True, "image": _IMAGE}}
    result = converting(host, to="v1beta1")
    assert reported(result) == [("changed", "spec.image.checksumType")]
    assert result.objects[0]["spec"]["image"]["checksumType"] == "md5"
    auto = converting(host, to="v1beta1", versions=ConversionSettings("auto"))
    assert (auto.findings, auto.objects[0]["spec"]["image"].get("checksumType", "auto")) == ([], "auto")


def test_hardware_details_too_large_for_the_annotation_are_reported_as_dropped(converting: Converting) -> None:
    disks = [{"name": f"/dev/disk/by-path/{number}", "model": "m" * 200, "sizeBytes": 1} for number in range(3000)]
    host = {**_HOST, "spec": {"online": True}, "status": {"hardware": {"storage": disks[:3]}}}
    assert converting(host, to="v1beta1").findings == []
    host["status"] = {"hardware": {"storage": disks}}
    result = converting(host, to="v1beta1")
    assert reported(result) == [("dropped", "status.hardware")]
    assert result.exit_code() == 2


SOURCE = ObjectPlace("rack.yaml", 2, "Hardware", "lab", "node-1")


def fields(value: Any) -> tuple[Fields, Findings]:
    findings = Findings(SOURCE)
    return Fields(value, findings, "spec"), findings


def reasons(findings: Findings) -> list[tuple[str, str]]:
    return [(each.path, each.reason) for each in findings]


# --- the cursor


def test_unread_fields_are_reported_unless_they_are_empty() -> None:
    cursor, findings = fields({"a": 1, "b": {"c": 2}, "d": None, "e": {"f": [{}, ""]}, "g": False, "h/i": 0})
    cursor.take("a")
    cursor.rest("why")
    assert reasons(findings) == [("spec.b", "why"), ("spec.g", "why"), ('spec["h/i"]', "why")]
    cursor.rest("why")
    assert len(findings) == 3, "once"


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (Fields.text, "x", [1]),
        (Fields.flag, True, ["true"]),
        (Fields.integer, 5, [True, 1.0]),
        (Fields.array, [1], [{}]),
        (Fields.mapping, {"a": 1}, [[]]),
        (Fields.fields, {"a": 1}, ["x"]),
    ],
)
def test_field_of_the_wrong_type_is_named_once_and_counts_as_absent(read: Any, good: Any, bad: list[Any]) -> None:
    for value, paths in ((good, []), *((each, ["spec.f"]) for each in bad)):
        cursor, findings = fields({"f": value})
        assert bool(read(cursor, "f")) is (value is good)
        for _ in range(2):
            assert [path for path, _ in reasons(findings)] == paths
            cursor.rest()
    empty, findings = fields({"f": None})
    assert not read(empty, "f")
    assert not read(empty, "absent")
    assert reasons(findings) == []


def test_items_of_the_wrong_type_are_named_with_their_index() -> None:
    cursor, findings = fields({"l": [{}, 1, None, "x"]})
    assert [each.path for each in cursor.each("l")] == ["spec.l[0]"]
    wrong = {"spec.l[1]": "must be an object, is a number", "spec.l[3]": "must be an object, is a string"}
    assert reasons(findings) == [*wrong.items()]
    assert cursor.texts("l") == [("spec.l[3]", "x")]


@pytest.mark.parametrize(("value", "named"), [(0, 0), (False, 0), ("", 0), ({}, 0), (1, 1), (True, 1), ([0], 1)])
def test_zero_values_are_as_good_as_absent_where_go_left_them_out(value: Any, named: int) -> None:
    cursor, findings = fields({"f": value})
    cursor.drop("f", "why")
    cursor.rest()
    assert len(findings) == named


@given(st.text(max_size=200))
def test_path_of_any_key_is_one_short_line(key: str) -> None:
    path = join("a", key)
    assert path.isprintable()
    assert len(path) < 1000


# --- the table


def result(*findings: Findings) -> ConversionResult:
    return ConversionResult([Converted({"kind": "x"})] * 3, [each for some in findings for each in some])


def some(index: int) -> Findings:
    findings = Findings(ObjectPlace("rack.yaml", index + 1, "Hardware", "lab", f"node-{index}"))
    findings.changed("spec.c", "another form")
    findings.dropped(f"spec.interfaces[{index}].dhcp.arch", "no place")
    findings.dropped(f"spec.interfaces[{index + 1}].dhcp.arch", "no place")
    return findings


def test_table_has_a_row_for_each_loss_whatever_the_number_of_machines_and_ends() -> None:
    lines = list(as_table(result(*(some(index) for index in range(1000))).findings, 100))
    text = "\n".join(lines)
    assert text.count("dhcp.arch") == 1
    assert "1000 objects, the first Hardware lab/node-0" in text
    assert text.index("dropped") < text.index("changed")
    assert all(len(line) <= 100 for line in lines)
    findings = Findings(SOURCE)
    for index in range(1000):
        findings.dropped(f"spec.f{index}" * 10, "no place")
    assert list(as_table(findings, 80))[-1] == "... and 800 rows more: --report json has all of them"
    assert list(as_table([], 80)) == []


def test_rows_of_the_table_put_errors_first_with_their_place_and_whole_path_on_one_line() -> None:
    findings = some(0)
    findings.error("spec.y", "broken " * 30 + "\x1b[31m")
    lines = list(as_table(result(findings).findings, 60))
    assert lines[1].startswith("error   spec.y")
    assert "(rack.yaml, document 1: Hardware lab/node-0)" in " ".join(" ".join(lines).split())
    assert all(line.isprintable() for line in lines), "an outsider's text moves no cursor"
    findings = Findings(SOURCE, "items[3]")
    findings.dropped("spec.disks[2].device", "conflicts:\n- .spec.a\n- .spec.b")  # as an API server says it
    (_, row, *_) = as_table(findings, 100)
    assert "items[3].spec.disks[2].device" in row
    assert "conflicts: - .spec.a - .spec.b" in "".join(as_table(findings, 100))


def test_json_has_every_finding_with_all_that_a_program_needs() -> None:
    found = json.loads(as_json(result(some(0), some(1))))
    assert (found["objects"], len(found["findings"])) == (3, 6)
    machine = {"file": "rack.yaml", "document": 1, "kind": "Hardware", "namespace": "lab", "name": "node-0"}
    loss = {"finding": "dropped", "path": "spec.interfaces[0].dhcp.arch", "reason": "no place"}
    assert found["findings"][1] == machine | loss


def test_summary_counts() -> None:
    assert summary(result(some(0), some(1))) == "3 objects written; 0 errors, 4 fields dropped, 2 changed"
    findings = Findings(SOURCE)
    findings.error("", "x")
    findings.dropped("", "x")
    assert (
        summary(ConversionResult([Converted({})], list(findings)))
        == "1 object written; 1 error, 1 field dropped, 0 changed"
    )
    assert [each.kind for each in findings] == [FindingKind.ERROR, FindingKind.DROPPED]
    partly = ConversionResult([Converted({})] * 3, [], lost=1)
    assert summary(partly, "applied").startswith("2 of 3 objects applied; ")
    assert json.loads(as_json(partly))["objects"] == 2
