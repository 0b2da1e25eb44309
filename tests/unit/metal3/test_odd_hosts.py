"""BareMetalHosts that nobody should have made: conversion takes all of them, or no host could be listed any more."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import settings as within
from hypothesis import strategies as st

from tests.unit.metal3.hosts import HINT_NAMES, V1ALPHA1, V1BETA1, Raw, copied, full, hardware, view
from tink.convert.metal3 import ConversionSettings, convert_version, wrongly_md5
from tink.convert.metal3.conversion_data import ANNOTATION, MAX_ANNOTATIONS_BYTES

SETTINGS = ConversionSettings()
BUDGET = SETTINGS.annotations_budget


def up(host: Raw, settings: ConversionSettings = SETTINGS) -> Raw:
    return convert_version(host, V1BETA1, settings)


def down(host: Raw, settings: ConversionSettings = SETTINGS) -> Raw:
    return convert_version(host, V1ALPHA1, settings)


def annotated(text: Any, **parts: Any) -> Raw:
    metadata = {"name": "node-1", "annotations": {ANNOTATION: text}}
    return {"apiVersion": V1BETA1, "kind": "BareMetalHost", "metadata": metadata, "spec": {"poweredOn": True}, **parts}


def size(host: Raw) -> int:
    """As k8s.io/apimachinery counts."""
    annotations = host["metadata"].get("annotations", {})
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


# --- Junk ---------------------------------------------------------------------------------------------------------

_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
_KEYS = st.sampled_from(
    [
        *("spec", "status", "metadata", "annotations", ANNOTATION, "raid", "image", "bmc", "address", "provisioning"),
        *("hardwareProfile", "hardware", "rootDeviceHints", "checksumType", "checksum", "softwareRAIDVolumes"),
        *("physicalDisks", "rootVolume", "lastAttemptedImage", "online", "poweredOn", *HINT_NAMES, "devicePath", "x"),
    ]
)
_JUNK = st.recursive(
    _SCALARS | st.just(full(V1ALPHA1)["spec"]) | st.just(full(V1BETA1)["status"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@within(max_examples=200, deadline=None)
@given(version=st.sampled_from([V1ALPHA1, V1BETA1]), parts=st.dictionaries(_KEYS, _JUNK), kept=_JUNK)
def test_no_object_is_too_odd(version: str, parts: Raw, kept: Any) -> None:
    host = {**parts, "apiVersion": version, "kind": "BareMetalHost"}
    if version == V1BETA1 and isinstance(kept, dict):
        host["metadata"] = {"annotations": {ANNOTATION: orjson.dumps(kept).decode()}}
    before = copy.deepcopy(host)
    for desired in (V1ALPHA1, V1BETA1):
        made = convert_version(host, desired, SETTINGS)
        assert made["apiVersion"] == desired
        assert made["kind"] == "BareMetalHost"
        orjson.dumps(made)
        convert_version(made, version, SETTINGS)
    wrongly_md5(host)
    assert str(host) == str(before)


@pytest.mark.parametrize("junk", [None, 1, "x", [], [1], {}, True])
@pytest.mark.parametrize(
    "path",
    [
        "spec",
        "status",
        "spec.raid",
        "spec.raid.softwareRAIDVolumes",
        "spec.raid.softwareRAIDVolumes.0",
        "spec.raid.softwareRAIDVolumes.0.physicalDisks",
        "spec.raid.softwareRAIDVolumes.0.physicalDisks.0",
        "spec.rootDeviceHints",
        "spec.image",
        "spec.image.checksumType",
        "spec.bmc",
        "spec.bmc.address",
        "spec.online",
        "status.provisioning",
        "status.provisioning.image",
        "status.provisioning.raid",
        "status.lastAttemptedImage",
    ],
)
def test_oddness_in_one_place_comes_back_as_it_was(path: str, junk: Any) -> None:
    host = full(V1ALPHA1)
    target: Any = host
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        target = target[part]
    target[last] = junk
    assert down(up(host)) == host


@pytest.mark.parametrize("host", [None, [], "x", 5, {}, {"apiVersion": 5}, {"apiVersion": ["metal3.io/v1alpha1"]}])
def test_what_is_no_host_is_given_back(host: Any) -> None:
    assert convert_version(host, V1BETA1, SETTINGS) is host
    assert convert_version(host, V1ALPHA1, SETTINGS) is host


@pytest.mark.parametrize("value", [float("nan"), 2**70, "\ud800", {1: 2}, b"x", object()])
def test_what_json_has_no_place_for_costs_the_hardware_details_only(value: Any) -> None:
    host = full(V1ALPHA1)
    host["status"]["hardware"] = {"hostname": value}
    made = down(up(host))
    assert made["spec"] == host["spec"]
    host["spec"]["note"] = value
    assert down(up(host))["spec"]["hardwareProfile"] == "dell"
    host["spec"]["bmc"] = value
    assert down(up(host))["spec"]["online"] is True


METADATA = [
    {"name": "n"},
    {"name": "n", "annotations": {}},
    {"name": "n", "annotations": {"a": "b"}},
    {"name": "n", "annotations": None},
    {"annotations": {}},
    {},
]


@pytest.mark.parametrize("metadata", METADATA)
def test_metadata_comes_back_as_it_was(metadata: Raw) -> None:
    host = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": metadata, "spec": {"online": True}}
    shown = up(host)
    assert isinstance(shown["metadata"]["annotations"][ANNOTATION], str)
    assert down(shown) == host
    shown["metadata"]["annotations"]["mine"] = "x"
    assert down(shown)["metadata"]["annotations"] == {**(metadata.get("annotations") or {}), "mine": "x"}


def test_host_without_metadata_comes_back_without() -> None:
    host = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "spec": {"online": True}}
    assert down(up(host)) == host
    assert down(up({**host, "metadata": None})) == host
    shown = up(host)
    shown["metadata"]["name"] = "n"
    assert down(shown)["metadata"] == {"name": "n"}
    bare = {"apiVersion": V1BETA1, "kind": "BareMetalHost", "spec": {}}
    assert "metadata" not in down(bare)


@pytest.mark.parametrize("annotations", [[1], "x", 5, True])
def test_annotations_that_are_none_make_place(annotations: Any) -> None:
    host = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": {"name": "n", "annotations": annotations}}
    assert down(up(host))["metadata"] == {"name": "n", "annotations": None}
    assert down({**host, "apiVersion": V1BETA1})["metadata"] == host["metadata"]


# --- Annotations that users made ----------------------------------------------------------------------------------

KEPT = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "spec": {"hardwareProfile": "dell"}}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "5", "[]", '"x"', "[" * 100_000, '{"spec":' * 400 + "{}" + "}" * 400, "\ud800", "{'a': 1}"),
        *(None, 5, {"spec": {}}, ["x"], b"\xff"),
        json.dumps({**KEPT, "apiVersion": V1BETA1}),
        json.dumps({**KEPT, "apiVersion": None}),
        json.dumps({**KEPT, "kind": "Machine"}),
    ],
)
def test_annotation_that_makes_no_sense_is_ignored_and_taken_away(text: Any) -> None:
    hints = {"hctl": "9:0:0:0"}
    made = down(annotated(text, spec={"poweredOn": True, "rootDeviceHints": hints}))
    assert made["spec"] == {"online": True, "hardwareProfile": "empty", "rootDeviceHints": hints}
    assert made["metadata"] == {"name": "node-1"}
    assert up(made)["spec"] == {"poweredOn": True, "rootDeviceHints": hints}


@pytest.mark.parametrize("kept", [KEPT, {"spec": KEPT["spec"]}])
def test_annotation_of_this_version_is_believed_also_without_its_name(kept: Raw) -> None:
    """As cluster-api writes it for objects without a type."""
    shown = annotated(json.dumps(kept))
    shown["spec"]["rootDeviceHints"] = {"hctl": "0:0:0:0"}
    assert down(shown)["spec"] == {"online": True, "hardwareProfile": "dell"}


@pytest.mark.parametrize(
    "found",
    [
        *(5, "x", [], [{}], {"ramMebibytes": "many"}, {"ramMebibytes": 5.5}, {"nics": {}}, {"nics": ["eth0"]}),
        *({"storage": [{"sizeBytes": "1"}]}, {"storage": [{"type": "TAPE"}]}, {"cpu": {"flags": "aes"}}),
        *({"nics": [{"mac": "x"}]}, {"nics": [{"vlanId": 5000}]}, {"hostname": True}),
    ],
)
def test_forged_hardware_never_reaches_the_controller(found: Any) -> None:
    """The API checks what is written in the version of the request, and nothing that comes of an annotation: one host
    with a text for a number, and the controller can read no list of hosts.
    """
    kept = {"status": {"hardware": found, "hardwareProfile": 5}, "spec": {"hardwareProfile": {"a": 1}}}
    made = down(annotated(json.dumps(kept), status={"poweredOn": True}))
    assert made["status"] == {"poweredOn": True}
    assert made["spec"] == {"online": True, "hardwareProfile": "empty"}


@pytest.mark.parametrize("found", [None, {}, hardware(2), {**hardware(1), "tomorrow": 1}, {"nics": [{"mac": None}]}])
def test_hardware_that_the_api_would_take_comes_back(found: Any) -> None:
    kept = {"status": {"hardware": found}}
    assert down(annotated(json.dumps(kept), status={}))["status"] == {"hardware": found}


@pytest.mark.parametrize("depth", [50, 240, 245, 250, 500])
def test_forged_hardware_is_not_too_deep_to_be_written(depth: int) -> None:
    """orjson reads 1024 levels and writes 254: the webhook could not answer."""
    kept = '{"status":{"hardware":{"x":' + "[" * depth + "]" * depth + "}}}"
    made = down(annotated(kept, status={}))
    assert orjson.dumps({"response": {"convertedObjects": [made]}})
    assert ("hardware" in made["status"]) is (depth < 100)


def test_forged_metadata_does_not_make_metadata_that_the_api_refuses() -> None:
    for metadata in (5, "x", [1], {"annotations": 5}, {"annotations": {"a": 5}}, {"name": "other", "uid": "x"}):
        made = down(annotated(json.dumps({**KEPT, "metadata": metadata})))
        assert made["metadata"]["name"] == "node-1"
        assert made["metadata"] in ({"name": "node-1"}, {"name": "node-1", "annotations": None})


def test_old_annotation_of_a_v1alpha1_host_is_replaced() -> None:
    host = full(V1ALPHA1)
    host["metadata"]["annotations"] = {ANNOTATION: json.dumps({"spec": {"hardwareProfile": "libvirt"}})}
    assert json.loads(up(host)["metadata"]["annotations"][ANNOTATION])["spec"]["hardwareProfile"] == "dell"
    assert down(up(host))["spec"] == host["spec"]
    assert "annotations" not in down(up(host))["metadata"]


# --- Size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disks", [50, 250, 400, 500, 800, 3000])
def test_annotations_stay_within_what_kubernetes_takes(disks: int) -> None:
    """Beyond it the host could not be read in v1beta1 at all."""
    host = full(V1ALPHA1)
    host["status"]["hardware"] = hardware(disks)
    shown = up(host)
    assert size(shown) <= BUDGET
    back = down(shown)
    if "hardware" in back["status"]:
        assert disks < 500
        assert back == host
    else:
        assert disks > 250
        assert back["status"]["hardwareProfile"] == "dell"
        del host["status"]["hardware"]
        assert back == host


def fill(host: Raw, spare: int) -> Raw:
    """Other annotations that leave so many bytes."""
    host["metadata"]["annotations"] = {"fill": "é" * ((MAX_ANNOTATIONS_BYTES - spare - 4) // 2)}
    return host


def test_budget_is_counted_to_the_byte_with_all_annotations() -> None:
    host = full(V1ALPHA1)
    host["metadata"]["annotations"] = {"ü": "é" * 100}
    exact = size(up(host))
    assert down(up(host, ConversionSettings(annotations_budget=exact)), SETTINGS) == host
    assert "hardware" not in down(up(host, ConversionSettings(annotations_budget=exact - 1)))["status"]


def test_budget_above_the_limit_is_the_limit() -> None:
    host = full(V1ALPHA1)
    host["status"]["hardware"] = hardware(800)
    assert size(up(host, ConversionSettings(annotations_budget=10**9))) <= MAX_ANNOTATIONS_BYTES


def test_less_is_kept_the_less_room_there_is() -> None:
    host = full(V1ALPHA1)
    del host["spec"]["rootDeviceHints"]
    host["spec"]["image"].pop("checksumType")
    host["spec"]["description"] = "d" * 5000
    host["status"]["provisioning"]["image"].pop("checksumType")
    host["status"]["lastAttemptedImage"].pop("checksumType")
    expected = copied(host)
    del expected["status"]["hardware"]
    for spare, all_but_hardware in ((20_000, True), (5_000, False)):
        shown = up(fill(host, spare))
        assert size(shown) <= MAX_ANNOTATIONS_BYTES
        spec = json.loads(shown["metadata"]["annotations"][ANNOTATION])["spec"]
        assert ("description" in spec) is all_but_hardware, "then without what the way back does not read"
        assert {**down(shown), "metadata": expected["metadata"]} == expected
    shown = up(fill(host, 10))
    assert view(shown) == shown, "no room at all"
    assert shown["spec"]["rootDeviceHints"] == {"hctl": "0:0:0:0"}
    made = down(shown)
    assert made["spec"]["hardwareProfile"] == "empty"
    assert made["spec"]["rootDeviceHints"] == {"hctl": "0:0:0:0"}, "it means the same"


def test_hints_that_were_made_up_are_known_with_little_room_too() -> None:
    bmc = {"address": "libvirt://x", "credentialsName": "c"}
    spec: Raw = {"online": True, "description": "d" * 5000, "bmc": bmc}
    host: Raw = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": {"name": "node-1"}, "spec": spec}
    assert down(up(fill(host, 2000))) == host
    spec["rootDeviceHints"] = {"deviceName": "/dev/vda"}
    assert down(up(host)) == host


def test_stale_annotation_goes_also_where_there_is_no_room_for_a_new_one() -> None:
    host = fill(full(V1ALPHA1), 10)
    host["metadata"]["annotations"][ANNOTATION] = "{}"
    assert ANNOTATION not in up(host)["metadata"]["annotations"]


def test_equal_hosts_get_equal_annotations() -> None:
    """Whatever order their fields came in: a difference would be a change to everyone who watches."""
    host = full(V1ALPHA1)
    turned = json.loads(json.dumps(host), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert up(host)["metadata"] == up(turned)["metadata"]


def test_list_of_500_hosts_with_50_disks_takes_no_second() -> None:
    host = full(V1ALPHA1)
    host["status"]["hardware"] = hardware(50)
    texts = [orjson.dumps(host)] * 500
    shown = []
    for make in (up, down):
        hosts = [orjson.loads(text) for text in texts]
        began = time.process_time()
        shown = [make(host) for host in hosts]
        assert time.process_time() - began < 8
        texts = [orjson.dumps(host) for host in shown]
    assert shown[0] == host
