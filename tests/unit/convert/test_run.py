"""Many objects at once: which converter each one gets, what they share, and what the exit code says."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.convert import registry
from tink.convert.findings import Finding, Findings, Kind, Source
from tink.convert.metal3 import ConversionSettings
from tink.convert.run import Result

Converting = Callable[..., Result]

HARDWARE: Raw = {
    "apiVersion": "tinkerbell.org/v1alpha1",
    "kind": "Hardware",
    "metadata": {"name": "a"},
    "spec": {"interfaces": [{"dhcp": {"mac": "52:54:00:12:34:56"}, "netboot": {"allowPXE": True}}]},
}


def obj(api_version: str, kind: str, name: str = "a", **more: Any) -> Raw:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}


def said(result: Result) -> list[tuple[str, str]]:
    return [(str(each.kind), each.path) for each in result.findings]


TEMPLATE = ("tinkerbell.org/v1alpha1", "Template")
HOST = ("hardware", "BareMetalHost")


@pytest.fixture
def converters(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """Converters that only say who they are, where the real ones would need more of their objects."""

    def convert(name: str) -> Callable[..., Any]:
        return lambda obj, *_: [{"apiVersion": "v1", "kind": name, "metadata": obj["metadata"]}]

    made: dict[tuple[str, str], Any] = {
        TEMPLATE: convert("template"),
        ("tinkerbell.org/v1alpha1", "Workflow"): convert("workflow"),
        HOST: convert("to_hardware"),
    }
    monkeypatch.setattr(registry, "_CONVERTERS", ChainMap(made, registry._CONVERTERS))
    monkeypatch.setattr(registry, "_HOST_CONVERTERS", ChainMap(made, registry._HOST_CONVERTERS))
    return made


@pytest.mark.usefixtures("converters")
@pytest.mark.parametrize(
    ("source", "to", "made"),
    [
        (HARDWARE, None, "Hardware"),
        (obj("tinkerbell.org/v1alpha1", "Template"), None, "template"),
        (obj("tinkerbell.org/v1alpha1", "Workflow"), None, "workflow"),
        (obj("tinkerbell.org/v1alpha2", "Template", spec={"actions": []}), None, "Template"),
        (obj("bmc.tinkerbell.org/v1alpha1", "Machine"), None, "Machine"),
        (obj("v1", "Secret"), None, "Secret"),
        (obj("v1", "Secret"), "hardware", None),
        (obj("metal3.io/v1alpha1", "BareMetalHost"), "hardware", "to_hardware"),
        (obj("metal3.io/v1alpha1", "HardwareData"), "hardware", None),
        (obj("metal3.io/v1alpha1", "BareMetalHost"), "v1beta1", "BareMetalHost"),
        (obj("metal3.io/v1alpha1", "HardwareData"), "v1beta1", "HardwareData"),
    ],
)
def test_each_object_gets_the_converter_of_its_version_and_kind(
    converting: Converting, source: Raw, to: str | None, made: str | None
) -> None:
    result = converting(source, to=to)
    assert [each["kind"] for each in result.objects] == ([made] if made else [])
    assert result.findings == []
    if to == "v1beta1" and source["kind"] == "BareMetalHost":
        assert result.objects[0]["apiVersion"] == "metal3.io/v1beta1"


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
    assert (finding.kind, finding.source.document, finding.source.kind) == (Kind.ERROR, 1, source["kind"])
    assert (finding.source.file, finding.source.name) == ("in.yaml", "a")
    assert source["kind"] in finding.reason


def test_fault_of_a_converter_costs_its_object_alone(
    converting: Converting, converters: dict[tuple[str, str], Any]
) -> None:
    def broken(*_: Any) -> list[Raw]:
        raise KeyError("x")

    converters[TEMPLATE] = broken
    result = converting(obj("tinkerbell.org/v1alpha1", "Template"), HARDWARE)
    assert [each["kind"] for each in result.objects] == ["Hardware"]
    assert said(result) == [("error", "")]
    assert "KeyError" in result.findings[0].reason


def test_hosts_find_their_hardware_data_and_secrets_in_the_input(
    converting: Converting, converters: dict[tuple[str, str], Any]
) -> None:
    found: list[Any] = []

    def convert(_host: Raw, _: Findings, context: registry.Context) -> list[Raw]:
        lookup = context.lookup
        found.append((lookup("HardwareData", "", "a"), lookup("Secret", "default", "a"), lookup("Secret", "x", "a")))
        return []

    converters[HOST] = convert
    secret, details = obj("v1", "Secret"), obj("metal3.io/v1alpha1", "HardwareData")
    converting(obj("metal3.io/v1alpha1", "BareMetalHost"), details, secret, to="hardware")
    assert found == [(details, secret, None)]


def test_same_object_twice_is_one_and_another_of_its_name_is_an_error(converting: Converting) -> None:
    other = {**HARDWARE, "metadata": {"name": "a", "labels": {"x": "y"}}}
    elsewhere = {**HARDWARE, "metadata": {"name": "a", "namespace": "elsewhere"}}
    result = converting(HARDWARE, HARDWARE, other, elsewhere)
    assert [each["metadata"] for each in result.objects] == [{"name": "a"}, elsewhere["metadata"]]
    assert said(result) == [("error", "metadata.name")]
    (finding,) = result.findings
    assert (finding.kind, finding.source.document) == (Kind.ERROR, 3)
    assert "in.yaml, document 1" in finding.reason


def test_what_was_converted_is_not_changed_by_converting_it_again(converting: Converting) -> None:
    osie = {"baseURL": "http://a", "kernel": "k", "initrd": "i"}
    booting = {**HARDWARE, "metadata": {"name": "b"}, "spec": {"interfaces": [
        {"dhcp": {"mac": "52:54:00:12:34:57"}, "netboot": {"allowPXE": True, "osie": osie}}
    ]}}  # fmt: skip
    once = converting(HARDWARE, booting)
    assert [each["kind"] for each in once.objects] == ["OSIE", "Hardware", "Hardware"]
    twice = converting(*once.objects)
    assert (twice.objects, twice.findings) == (once.objects, [])
    again = converting(*once.objects, booting)
    assert again.objects == once.objects, "of an object in both versions there is one"


@pytest.mark.parametrize(
    ("kinds", "code", "allowed"),
    [([], 0, 0), ([Kind.CHANGED], 0, 0), ([Kind.DROPPED], 2, 0), ([Kind.DROPPED, Kind.ERROR], 1, 1)],
)
def test_exit_code_tells_scripts_whether_anything_was_lost(kinds: list[Kind], code: int, allowed: int) -> None:
    source = Source("f", 1, "", "", "")
    result = Result([], [Finding(kind, source, "", "") for kind in kinds])
    assert (result.exit_code(), result.exit_code(allow_loss=True)) == (code, allowed)


# --- between the versions of Metal3's hosts ---

_HOST = {
    "apiVersion": "metal3.io/v1alpha1",
    "kind": "BareMetalHost",
    "metadata": {"name": "a", "namespace": "metal3"},
    "spec": {"online": True, "image": {"url": "http://x/y.raw", "checksum": "0" * 64}},
}


def test_a_checksum_that_can_not_be_what_its_empty_type_means_is_told(converting: Converting) -> None:
    result = converting(_HOST, to="v1beta1")
    assert [(finding.kind, finding.path) for finding in result.findings] == [(Kind.CHANGED, "spec.image.checksumType")]
    assert result.objects[0]["spec"]["image"]["checksumType"] == "md5"
    auto = converting(_HOST, to="v1beta1", versions=ConversionSettings("auto"))
    assert (auto.findings, auto.objects[0]["spec"]["image"].get("checksumType", "auto")) == ([], "auto")


def test_hardware_that_no_annotation_has_room_for_is_told_as_lost(converting: Converting) -> None:
    disks = [{"name": f"/dev/disk/by-path/{number}", "model": "m" * 200, "sizeBytes": 1} for number in range(3000)]
    host = {**_HOST, "spec": {"online": True}, "status": {"hardware": {"storage": disks[:3]}}}
    assert converting(host, to="v1beta1").findings == []
    host["status"] = {"hardware": {"storage": disks}}
    result = converting(host, to="v1beta1")
    assert [(finding.kind, finding.path) for finding in result.findings] == [(Kind.DROPPED, "status.hardware")]
    assert result.exit_code() == 2
