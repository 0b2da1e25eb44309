"""Conversion of BareMetalHost between its versions: each rule, both directions, odd hosts, and reviews of an API
server.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import settings as within
from hypothesis import strategies as st

from tests.unit.metal3.hosts import (
    HINT_NAMES,
    V1ALPHA1,
    V1BETA1,
    Hosts,
    Raw,
    copied,
    full,
    hardware,
    hosts,
    view,
    with_auto,
)
from tink.api.annotations import MAX_ANNOTATIONS_BYTES
from tink.api.metal3.crds import generate
from tink.convert.metal3.versions import (
    CONVERSION_DATA_ANNOTATION,
    ConversionSettings,
    convert_version,
    wrongly_md5,
)
from tink.metal3.webhook import hosts as hosts_conversion
from tink.webhooks import conversion
from tink.webhooks.conversion import ReviewError

SETTINGS = ConversionSettings()
AUTO = ConversionSettings(empty_checksum_type="auto")
Path = tuple[str | int, ...]


def up(host: Raw, settings: ConversionSettings = SETTINGS) -> Raw:
    return convert_version(host, V1BETA1, settings)


def down(host: Raw, settings: ConversionSettings = SETTINGS) -> Raw:
    return convert_version(host, V1ALPHA1, settings)


def old(spec: Any = None, status: Any = None) -> Raw:
    parts = {name: part for name, part in (("spec", spec), ("status", status)) if part is not None}
    return {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": {"name": "node-1", "uid": "u"}, **parts}


def new(spec: Any = None, status: Any = None) -> Raw:
    return {**old(spec, status), "apiVersion": V1BETA1}


def kept(host: Raw) -> Any:
    """Return the content of the annotation, in the form of cluster-api's util/conversion."""
    return json.loads(host["metadata"]["annotations"][CONVERSION_DATA_ANNOTATION])


# --- Names, in all places -----------------------------------------------------------------------------------------


def test_every_name_changes_in_every_place_and_back() -> None:
    expected = full(V1ALPHA1)
    assert view(up(expected)) == full(V1BETA1)
    assert kept(up(expected)) == {key: value for key, value in expected.items() if key != "metadata"}
    expected["spec"]["hardwareProfile"] = "empty"
    del expected["status"]["hardwareProfile"], expected["status"]["hardware"]
    assert down(full(V1BETA1)) == expected


def leaves(schema: Raw, path: Path) -> Iterator[tuple[Path, Raw]]:
    if "properties" in schema:
        for name, child in schema["properties"].items():
            yield from leaves(child, (*path, name))
    elif "items" in schema:
        yield from leaves(schema["items"], (*path, 0))
    else:
        yield path, schema


@cache
def editable() -> list[tuple[Path, Raw]]:
    versions = {version["name"]: version for version in generate()[0]["spec"]["versions"]}
    schema = versions["v1beta1"]["schema"]["openAPIV3Schema"]["properties"]
    return [*leaves(schema["spec"], ("spec",)), *leaves(schema["status"], ("status",))]


def other_value(schema: Raw) -> Any:
    if "enum" in schema:
        return schema["enum"][-1]
    return {"string": "another", "boolean": False, "integer": 4711, "number": 47.5}[schema["type"]]


def place(host: Raw, path: Path) -> Any:
    """Return the container of a path's last part; create it if it is missing."""
    target: Any = host
    for part, following in itertools.pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            if part == len(target):
                target.append(empty)
            target = target[part]
        else:
            if target.get(part) is None:
                target[part] = empty
            target = target[part]
    return target


def old_path(path: Path) -> Path:
    names = {new: old for old, new in HINT_NAMES.items()}
    if path == ("spec", "poweredOn"):
        return ("spec", "online")
    in_hints = "rootDeviceHints" in path or "softwareRAIDVolumes" in path
    return tuple(names.get(part, part) if in_hints and isinstance(part, str) else part for part in path)


@pytest.mark.parametrize(
    ("path", "schema"), [pytest.param(*each, id=".".join(map(str, each[0]))) for each in editable()]
)
def test_field_edited_in_v1beta1_changes_that_field_alone(path: Path, schema: Raw) -> None:
    value = other_value(schema)
    shown, expected = copied(up(full(V1ALPHA1))), full(V1ALPHA1)
    for host, where in ((shown, path), (expected, old_path(path))):
        place(host, where)[slice(None) if where[-1] == 0 else where[-1]] = [value] if where[-1] == 0 else value
    assert down(shown) == expected


# Removing the image is how hosts are deprovisioned.
PARTS: list[Path] = [("spec", name) for name in ("image", "raid", "userData", "bmc", "bootMACAddress")]


@pytest.mark.parametrize("path", PARTS + [path for path, _ in editable()], ids=lambda path: ".".join(map(str, path)))
def test_field_or_part_removed_in_v1beta1_stays_removed(path: Path) -> None:
    shown, expected = copied(up(full(V1ALPHA1))), full(V1ALPHA1)
    for host, where in ((shown, path), (expected, old_path(path))):
        container = place(host, where)
        if isinstance(container, list):
            container.clear()
        else:
            container.pop(where[-1], None)
    if path[-1] == "checksumType":
        place(expected, path)["checksumType"] = "auto"
    assert down(shown) == expected


def test_unknown_field_is_carried_over_and_one_that_has_another_name_there_is_pruned_as_the_api_would() -> None:
    spec = {"online": True, "rootDeviceHints": {"hctl": "1:0:0:0", "tomorrow": [1]}, "tomorrow": {"online": True}}
    shown = up(old(spec, {"tomorrow": {"hardware": 1}}))
    assert shown["spec"] == {"poweredOn": True, **{name: spec[name] for name in ("rootDeviceHints", "tomorrow")}}
    assert shown["status"] == {"tomorrow": {"hardware": 1}}
    shown = up(old({"online": True, "poweredOn": False, "rootDeviceHints": {"devicePath": "x"}}))
    assert shown["spec"] == {"poweredOn": True, "rootDeviceHints": {}}
    spec = {"online": False, "hardwareProfile": "dell", "rootDeviceHints": {}}
    assert down(new(spec, {"hardware": {"hostname": "x"}})) == old(
        {"hardwareProfile": "empty", "rootDeviceHints": {}}, {}
    )


def test_annotations_of_the_operator_stay_as_they_are() -> None:
    """The annotation has values in the form of v1alpha1, whatever version the host is read in."""
    host = old({"online": True})
    mine = {
        "baremetalhost.metal3.io/status": '{"hardware":{},"provisioning":{"image":{"url":"u"}}}',
        "inspect.metal3.io/hardwaredetails": "{}",
        "baremetalhost.metal3.io/paused": "",
    }
    host["metadata"]["annotations"] = mine
    assert view(up(host))["metadata"]["annotations"] == mine
    assert down(up(host)) == host


# --- Profiles and hints -------------------------------------------------------------------------------------------

DELL = {"hctl": "0:0:0:0"}
PROFILES = [
    ("unknown", {"devicePath": "/dev/sda"}),
    ("libvirt", {"devicePath": "/dev/vda"}),
    ("dell", DELL),
    ("dell-raid", {"hctl": "0:2:0:0"}),
    ("openstack", {"devicePath": "/dev/vdb"}),
    ("empty", None),
    ("no-such-profile", None),
    ("", {"devicePath": "/dev/sda"}),
]


@pytest.mark.parametrize(("profile", "hints"), PROFILES)
def test_hints_come_from_the_profile_that_the_host_had(profile: str, hints: Raw | None) -> None:
    for host in (
        old({"online": True, "hardwareProfile": profile}),
        old({"online": True, "hardwareProfile": profile, "rootDeviceHints": None}),
        old({"online": True, "hardwareProfile": "openstack" if profile else ""}, {"hardwareProfile": profile}),
    ):
        assert up(host)["spec"].get("rootDeviceHints") == hints
        assert "hardwareProfile" not in up(host)["spec"]
        assert "hardwareProfile" not in up(host).get("status", {})
        assert down(up(host)) == host


@pytest.mark.parametrize(
    ("address", "path"),
    [("libvirt://192.0.2.1", "/dev/vda"), ("libvirt+redfish://x", "/dev/vda"), ("ipmi://libvirt", "/dev/sda")],
)
def test_host_without_a_profile_has_that_of_its_bmc(address: str, path: str) -> None:
    spec = {"online": True, "bmc": {"address": address, "credentialsName": "c"}}
    assert up(old(spec))["spec"]["rootDeviceHints"] == {"devicePath": path}
    assert up(old({**spec, "hardwareProfile": "dell"}))["spec"]["rootDeviceHints"] == {"hctl": "0:0:0:0"}


ROOT_VOLUME = {"softwareRAIDVolumes": [{"level": "1", "rootVolume": True}]}
NO_ROOT = {"softwareRAIDVolumes": [{"level": "1", "rootVolume": False}, {"level": "0"}]}


@pytest.mark.parametrize(
    ("spec", "hints"),
    [
        *(({"hardwareProfile": "dell", "rootDeviceHints": given}, given) for given in ({}, {"wwn": "w"}, DELL)),
        ({"hardwareProfile": "dell", "raid": ROOT_VOLUME}, None),  # the baremetal-operator refuses both together
        ({"hardwareProfile": "dell", "raid": NO_ROOT}, DELL),
    ],
)
def test_hints_of_the_user_and_a_root_volume_win_over_the_profile(spec: Raw, hints: Raw | None) -> None:
    host = old({"online": True, **spec})
    assert up(host)["spec"].get("rootDeviceHints") == hints
    assert down(up(host)) == host


BMC = {"address": "libvirt://x", "credentialsName": "c"}
REDFISH = {**BMC, "address": "redfish://x"}


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        pytest.param({}, {"raid": ROOT_VOLUME}, {"raid": ROOT_VOLUME}, id="root-volume-replaces-hints-nobody-wrote"),
        pytest.param(
            {"rootDeviceHints": {"wwn": "w"}},
            {"raid": ROOT_VOLUME},
            {"rootDeviceHints": {"wwn": "w"}, "raid": ROOT_VOLUME},
            id="what-users-write-is-theirs",
        ),
        pytest.param(
            {"hardwareProfile": "dell"}, {"rootDeviceHints": None}, {"hardwareProfile": "empty"}, id="hints-removed"
        ),
        pytest.param({"raid": ROOT_VOLUME}, {"raid": None}, {"hardwareProfile": "empty"}, id="root-volume-removed"),
        pytest.param(
            {"hardwareProfile": "dell"},
            {"rootDeviceHints": {"modelContains": "PERC"}},
            {"hardwareProfile": "dell", "rootDeviceHints": {"model": "PERC"}},
            id="hints-changed",
        ),
        # The profile is guessed from the address: the same disk must not become another by that.
        pytest.param(
            {"bmc": BMC}, {"bmc": REDFISH}, {"bmc": REDFISH, "rootDeviceHints": {"deviceName": "/dev/vda"}}, id="bmc"
        ),
    ],
)
def test_root_disk_edited_in_v1beta1_is_not_chosen_by_a_profile(before: Raw, edit: Raw, after: Raw) -> None:
    shown = up(old({"online": True, **before}, {"hardwareProfile": before.get("hardwareProfile", "")}))
    shown["spec"] |= edit
    shown["spec"] = {name: value for name, value in shown["spec"].items() if value is not None}
    made = down(shown)
    assert made["spec"] == {"online": True, **after}
    if "hardwareProfile" in after:
        assert made["status"]["hardwareProfile"] == after["hardwareProfile"]
    if "raid" not in edit:
        assert view(up(made)) == view(shown)


def test_host_made_in_v1beta1_has_the_empty_profile() -> None:
    """Otherwise the controller would write its image to /dev/sda."""
    assert down(new({"poweredOn": True})) == old({"online": True, "hardwareProfile": "empty"})
    assert down(new({})) == old({"hardwareProfile": "empty"})
    assert down(new(status={"poweredOn": True})) == old(status={"poweredOn": True})


# --- Checksums ----------------------------------------------------------------------------------------------------

PLACES: list[Path] = [("spec", "image"), ("status", "provisioning", "image"), ("status", "lastAttemptedImage")]


def with_image(version: str, path: Path, image: Raw) -> Raw:
    host = {"apiVersion": version, "kind": "BareMetalHost", "metadata": {"name": "node-1"}}
    place(host, path)[path[-1]] = image
    return host


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize(
    "image",
    [
        *({"url": "u", "checksum": "c"}, {"url": "u", "checksumType": ""}, {}, {"checksumType": None}),
        *({"url": "u", "checksumType": given} for given in ("md5", "sha256", "auto")),
    ],
)
def test_checksum_type_is_kept_and_an_empty_one_is_what_empty_meant(path: Path, image: Raw) -> None:
    host = with_image(V1ALPHA1, path, image)
    for settings, meant in ((SETTINGS, "md5"), (AUTO, "auto")):
        shown = up(host, settings)
        assert place(shown, path)[path[-1]]["checksumType"] == (image.get("checksumType") or meant)
        assert down(shown, settings) == host


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("image", [{"url": "u"}, {"url": "u", "checksumType": ""}, {"url": "u", "checksumType": None}])
def test_empty_checksum_type_of_v1beta1_is_auto(path: Path, image: Raw) -> None:
    made = down(with_image(V1BETA1, path, image))
    assert place(made, path)[path[-1]] == {"url": "u", "checksumType": "auto"}
    shown = up(with_image(V1ALPHA1, path, {"url": "u"}))
    place(shown, path)[path[-1]] = image
    assert place(down(shown), path)[path[-1]] == {"url": "u", "checksumType": "auto"}, "also if v1alpha1 had none"


@pytest.mark.parametrize("path", PLACES)
def test_checksum_type_of_another_checksum_is_not_forgotten(path: Path) -> None:
    shown = up(with_image(V1ALPHA1, path, {"url": "u", "checksum": "c"}))
    edit = place(shown, path)[path[-1]]
    edit["checksum"] = "d"
    assert place(down(shown), path)[path[-1]] == {"url": "u", "checksum": "d", "checksumType": "md5"}
    edit |= {"checksum": "c", "url": "v"}
    assert place(down(shown), path)[path[-1]] == {"url": "v", "checksum": "c"}, "another mirror"
    edit["checksumType"] = "sha256"
    assert place(down(shown), path)[path[-1]]["checksumType"] == "sha256"


def test_md5_of_another_setting_is_kept() -> None:
    """A type that was shown as md5 stays md5, even if empty means another type by then."""
    shown = up(with_image(V1ALPHA1, ("spec", "image"), {"url": "u", "checksum": "c"}))
    assert down(shown, AUTO)["spec"]["image"]["checksumType"] == "md5"


@pytest.mark.parametrize(
    ("checksum", "kind", "wrong"),
    [
        *(("a" * 64, None, True), ("A1" * 64, "", True), ("a" * 64, "sha256", False)),
        *((each, None, False) for each in ("a" * 32, "", "http://192.0.2.9/x.sha256sum", 5, None)),
    ],
)
def test_checksums_that_cannot_be_md5_are_reported_before_they_get_that_type(
    checksum: Any, kind: Any, wrong: bool
) -> None:
    for path in PLACES:
        host = with_image(V1ALPHA1, path, {"url": "u", "checksum": checksum, "checksumType": kind})
        assert wrongly_md5(host) == ([".".join(map(str, path))] if wrong else [])
    assert wrongly_md5(old(None, {"provisioning": []})) == []


# --- What is kept -------------------------------------------------------------------------------------------------


def test_new_host_does_not_get_the_hardware_of_the_one_it_was_copied_from() -> None:
    """kubectl get, another name, kubectl create: the API drops the status, so there was no inspection."""
    shown = up(full(V1ALPHA1))
    del shown["status"]
    made = down(shown)
    assert "status" not in made
    assert made["spec"]["hardwareProfile"] == "dell"
    shown["status"] = None
    assert down(shown)["status"] is None


@pytest.mark.parametrize(
    "host",
    [None, [], "x", 5, {}, {"apiVersion": 5}, {"apiVersion": ["metal3.io/v1alpha1"]}, {"apiVersion": "metal3.io/v1"}],
)
def test_object_of_another_version_or_kind_is_unchanged(host: Any) -> None:
    for desired in (V1BETA1, V1ALPHA1, "metal3.io/v1"):
        assert convert_version(host, desired, SETTINGS) is host
    for known, desired in ((old({"online": True}), V1ALPHA1), (new({}), V1BETA1), (new({}), "metal3.io/v1")):
        assert convert_version(known, desired, SETTINGS) is known


BUDGET = SETTINGS.annotations_budget


def annotated(text: Any, **parts: Any) -> Raw:
    metadata = {"name": "node-1", "annotations": {CONVERSION_DATA_ANNOTATION: text}}
    return {"apiVersion": V1BETA1, "kind": "BareMetalHost", "metadata": metadata, "spec": {"poweredOn": True}, **parts}


def size(host: Raw) -> int:
    """Return the size as k8s.io/apimachinery counts it."""
    annotations = host["metadata"].get("annotations", {})
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


# --- Junk ---------------------------------------------------------------------------------------------------------

_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
_KEYS = st.sampled_from(
    [
        *(
            "spec",
            "status",
            "metadata",
            "annotations",
            CONVERSION_DATA_ANNOTATION,
            "raid",
            "image",
            "bmc",
            "address",
            "provisioning",
        ),
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
        host["metadata"] = {"annotations": {CONVERSION_DATA_ANNOTATION: orjson.dumps(kept).decode()}}
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
        *("spec", "spec.rootDeviceHints", "spec.image", "spec.image.checksumType", "spec.bmc", "spec.bmc.address"),
        *("spec.online", "spec.raid", "spec.raid.softwareRAIDVolumes", "spec.raid.softwareRAIDVolumes.0"),
        *(f"spec.raid.softwareRAIDVolumes.0.{disks}" for disks in ("physicalDisks", "physicalDisks.0")),
        *("status", "status.provisioning", "status.provisioning.image", "status.provisioning.raid"),
        "status.lastAttemptedImage",
    ],
)
def test_odd_value_in_one_place_survives_both_directions(path: str, junk: Any) -> None:
    host = full(V1ALPHA1)
    target: Any = host
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        target = target[part]
    target[last] = junk
    assert down(up(host)) == host


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


@pytest.mark.parametrize(
    "metadata",
    [
        *({"name": "n"}, {"name": "n", "annotations": {}}, {"name": "n", "annotations": {"a": "b"}}),
        *({"name": "n", "annotations": None}, {"annotations": {}}, {}, None),
    ],
)
def test_metadata_survives_both_directions(metadata: Raw | None) -> None:
    host: Raw = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "spec": {"online": True}}
    assert "metadata" not in down(up({**host, "metadata": None})), "none, as if it were not there"
    host |= {} if metadata is None else {"metadata": metadata}
    shown = up(host)
    assert isinstance(shown["metadata"]["annotations"][CONVERSION_DATA_ANNOTATION], str)
    assert down(shown) == host
    shown["metadata"]["annotations"]["mine"] = "x"
    assert down(shown)["metadata"]["annotations"] == {**((metadata or {}).get("annotations") or {}), "mine": "x"}
    assert "metadata" not in down({"apiVersion": V1BETA1, "kind": "BareMetalHost", "spec": {}})


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


@pytest.mark.parametrize("before", [KEPT, {"spec": KEPT["spec"]}])
def test_annotation_of_this_version_is_believed_also_without_its_name(before: Raw) -> None:
    """As cluster-api writes it for objects without a type."""
    shown = annotated(json.dumps(before))
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
    """The API checks written objects in the version of the request, but not values from an annotation.

    A single host with a text for a number would prevent the controller from reading any list of hosts.
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


# --- Size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disks", [50, 250, 400, 500, 800, 3000])
def test_annotations_stay_within_what_kubernetes_takes(disks: int) -> None:
    """Beyond it the host could not be read in v1beta1 at all."""
    host = full(V1ALPHA1)
    host["status"]["hardware"] = hardware(disks)
    shown = up(host)
    assert size(shown) <= BUDGET
    if "hardware" not in down(shown)["status"]:
        assert disks > 250
        del host["status"]["hardware"]
    else:
        assert disks < 500
    assert down(shown) == host


def fill(host: Raw, spare: int) -> Raw:
    """Return other annotations that leave a number of bytes."""
    host["metadata"]["annotations"] = {"fill": "é" * ((MAX_ANNOTATIONS_BYTES - spare - 4) // 2)}
    return host


def test_budget_is_counted_to_the_byte_with_all_annotations() -> None:
    host = full(V1ALPHA1)
    host["metadata"]["annotations"] = {"ü": "é" * 100}
    exact = size(up(host))
    assert down(up(host, ConversionSettings(annotations_budget=exact)), SETTINGS) == host
    assert "hardware" not in down(up(host, ConversionSettings(annotations_budget=exact - 1)))["status"]
    host["status"]["hardware"] = hardware(800)
    assert size(up(host, ConversionSettings(annotations_budget=10**9))) <= MAX_ANNOTATIONS_BYTES, "never beyond it"


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
        spec = json.loads(shown["metadata"]["annotations"][CONVERSION_DATA_ANNOTATION])["spec"]
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


def test_stale_annotation_is_replaced_and_goes_also_where_there_is_no_room_for_a_new_one() -> None:
    host = full(V1ALPHA1)
    host["metadata"]["annotations"] = {CONVERSION_DATA_ANNOTATION: json.dumps({"spec": {"hardwareProfile": "libvirt"}})}
    assert kept(up(host))["spec"]["hardwareProfile"] == "dell"
    assert down(up(host)) == full(V1ALPHA1)
    fill(host, 10)["metadata"]["annotations"][CONVERSION_DATA_ANNOTATION] = "{}"
    assert CONVERSION_DATA_ANNOTATION not in up(host)["metadata"]["annotations"]


def test_equal_hosts_get_equal_annotations() -> None:
    """The result does not depend on the order of fields: a difference would be a change for all watchers."""
    host = full(V1ALPHA1)
    turned = json.loads(json.dumps(host), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert up(host)["metadata"] == up(turned)["metadata"]


# --- Random hosts, there and back, and edited between ---


def has_root_volume(host: Raw) -> bool:
    raid = (host.get("spec") or {}).get("raid") or {}
    return any(volume.get("rootVolume") for volume in raid.get("softwareRAIDVolumes") or [])


EDITED = 1500
"""Each host has about half of the fields. After the first hundred, no new path through the conversion occurs."""


@pytest.mark.parametrize(
    "settings", [SETTINGS, AUTO, ConversionSettings(annotations_budget=0)], ids=["md5", "auto", "no-budget"]
)
def test_host_looked_at_in_the_other_version_is_the_same_but_for_details_beyond_the_budget(
    settings: ConversionSettings,
) -> None:
    for host in hosts(V1ALPHA1, 1000, seed=1):
        expected = before = copied(host)
        if not settings.annotations_budget and isinstance(host.get("status"), dict):
            expected = {**host, "status": {key: item for key, item in host["status"].items() if key != "hardware"}}
        shown = up(host, settings)
        assert host == before, "a conversion changes nothing in its source"
        assert CONVERSION_DATA_ANNOTATION in shown["metadata"]["annotations"] or settings.annotations_budget == 0
        shown_before = copied(shown)
        back = down(shown, settings)
        assert (shown, back) == (shown_before, expected)
        assert CONVERSION_DATA_ANNOTATION not in str(back)
        if settings.annotations_budget:
            assert up(back, settings) == shown, "the annotation does not grow with every look"
    for host in hosts(V1BETA1, 1000, seed=2):
        before = copied(host)
        assert view(up(down(host, settings), settings)) == view(with_auto(host))
        assert host == before


def edited(host: Raw, other: Raw, rng: Random) -> Raw:
    """Return a v1beta1 host with some fields of another one, or without them, at some depth."""
    target, source = host, other
    for part in (rng.choice(("spec", "spec", "status")), rng.choice(("", "", "provisioning", "image", "raid"))):
        if isinstance(target.get(part), dict) and isinstance(source.get(part), dict):
            target[part] = dict(target[part])
            target, source = target[part], source[part]
    names = sorted({*target, *source} - {"apiVersion", "kind", "metadata"})
    if names:
        name = rng.choice(names)
        target.pop(name, None)
        if name in source:
            target[name] = source[name]
    return host


def hints_of(host: Raw) -> Raw | None:
    found: Raw | None = (host.get("spec") or {}).get("rootDeviceHints")
    return found


def test_every_edit_in_v1beta1_is_kept() -> None:
    """After any edit, the host read back in v1beta1 is as the user left it."""
    rng = Random(7)
    others = Hosts(8, V1BETA1)
    seen = 0
    for host in hosts(V1ALPHA1, EDITED, seed=9):
        shown = up(host)
        wanted = edited(up(host), others.host(), rng)
        seen += wanted != shown
        expected, back = with_auto(view(wanted)), view(up(down(wanted)))
        if (
            hints_of(host) is None
            and hints_of(wanted)
            and hints_of(wanted) == hints_of(shown)
            and has_root_volume(wanted)
        ):
            # Hints that no user wrote go when a root volume is added: the baremetal-operator refuses hosts with both.
            del expected["spec"]["rootDeviceHints"]
            assert back["spec"].pop("rootDeviceHints", None) is None
        assert back == expected, (host, wanted)
    assert seen > EDITED / 2


def test_host_whose_annotation_was_lost_means_the_same() -> None:
    """A client that replaces the whole object drops the annotation. No profile may then choose a disk."""
    for host in hosts(V1ALPHA1, 500, seed=10):
        shown = up(host)
        shown["metadata"] = {"name": "node-1"}
        stored = down(shown)
        assert view(up(stored)) == shown
        if isinstance(stored.get("spec"), dict):
            assert stored["spec"]["hardwareProfile"] == "empty"


OF_THE_SERVER = ("name", "namespace", "uid", "resourceVersion", "managedFields", "creationTimestamp", "finalizers")


def review(objects: Any, desired: Any = V1BETA1, uid: Any = "u-1", **more: Any) -> bytes:
    request = {"uid": uid, "desiredAPIVersion": desired, "objects": objects}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}
    return orjson.dumps({**kind, "request": request, **more})


def answer(body: bytes, settings: ConversionSettings) -> bytes:
    return conversion.answer(body, hosts_conversion(settings))


def answered(objects: Any, desired: str = V1BETA1) -> Any:
    made = orjson.loads(answer(review(objects, desired), SETTINGS))
    assert (made["apiVersion"], made["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    assert made["response"]["uid"] == "u-1"
    return made["response"]


def converted(objects: Any, desired: str = V1BETA1) -> Any:
    response = answered(objects, desired)
    assert response["result"] == {"status": "Success"}
    return response["convertedObjects"]


def test_review_returns_all_objects_in_order_in_the_desired_version() -> None:
    mixed = [host for pair in zip(hosts(V1ALPHA1, 50, 1), hosts(V1BETA1, 50, 2), strict=True) for host in pair]
    for number, host in enumerate(mixed):
        host["metadata"] |= {"name": f"n{number}", "resourceVersion": "7", "managedFields": [{"manager": "m"}]}
        host["metadata"] |= {"creationTimestamp": None, "finalizers": ["f"], "labels": {"a": "b"}}
    for desired in (V1ALPHA1, V1BETA1):
        before = copy.deepcopy(mixed)
        made = converted(mixed, desired)
        assert [each["apiVersion"] for each in made] == [desired] * len(mixed)
        for old, new in zip(before, made, strict=True):
            for field in OF_THE_SERVER:
                assert new["metadata"].get(field) == old["metadata"].get(field)
            assert new["metadata"]["labels"] == {"a": "b"}
            assert new["kind"] == "BareMetalHost"
            assert new == (old if old["apiVersion"] == desired else convert_version(old, desired, SETTINGS))


def test_hosts_keep_their_meaning_through_two_reviews() -> None:
    old = {**next(hosts(V1ALPHA1, 1, 5)), "spec": {"online": True, "hardwareProfile": "dell"}, "status": {}}
    [up] = converted([old])
    assert up["spec"] == {"poweredOn": True, "rootDeviceHints": {"hctl": "0:0:0:0"}}
    [down] = converted([up], V1ALPHA1)
    assert down == old


def test_setting_of_the_server_reaches_the_hosts() -> None:
    old = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": {}, "spec": {"image": {"url": "x"}}}
    for wanted in ("md5", "auto"):
        made = orjson.loads(answer(review([old]), ConversionSettings(wanted)))  # type: ignore[arg-type]
        assert made["response"]["convertedObjects"][0]["spec"]["image"]["checksumType"] == wanted


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": []}, {"metadata": "x"}])
def test_partial_object_comes_back_with_metadata_that_the_server_accepts(metadata: Any) -> None:
    for version, desired in ((V1ALPHA1, V1BETA1), (V1BETA1, V1ALPHA1), (V1ALPHA1, V1ALPHA1)):
        [made] = converted([{"apiVersion": version, "kind": "BareMetalHost", **metadata}], desired)
        assert made["apiVersion"] == desired
        assert isinstance(made["metadata"], dict)


def test_broken_annotation_of_one_host_does_not_hide_the_others() -> None:
    for broken in ("{", "null", "[]", '{"spec": 7}', '{"apiVersion": "v9"}', "[" * 100_000):
        kind = {"apiVersion": V1BETA1, "kind": "BareMetalHost", "spec": {}}
        annotated = [
            {**kind, "metadata": {"annotations": {CONVERSION_DATA_ANNOTATION: text}}} for text in ("{}", broken, "{}")
        ]
        assert len(converted(annotated, V1ALPHA1)) == 3
    odd = [None, 1, "x", [], {}, {"apiVersion": V1ALPHA1, "metadata": [], "spec": 1, "status": "x", "kind": {}}]
    assert len(converted(odd, V1BETA1)) == len(odd)
    assert converted([]) == converted(None) == []


def test_other_version_than_these_two_is_a_failure_that_names_them() -> None:
    response = answered([{"apiVersion": V1ALPHA1, "metadata": {}}], "metal3.io/v1")
    assert response["result"]["status"] == "Failure"
    assert "v1alpha1 and metal3.io/v1beta1, not metal3.io/v1" in response["result"]["message"]
    assert "convertedObjects" not in response


def test_object_that_nests_deeper_than_any_schema_is_refused_and_not_a_crash() -> None:
    head = b'{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u-1",'
    head += b'"desiredAPIVersion":"metal3.io/v1beta1","objects":[{"apiVersion":"metal3.io/v1alpha1","metadata":{},'
    for depth, refused in ((200, False), (300, True), (1000, True), (100_000, True)):
        body = head + b'"spec":{"odd":' + b"[" * depth + b"]" * depth + b"}}]}}"
        if refused:
            with pytest.raises(ReviewError):
                answer(body, SETTINGS)
        else:
            assert b"[" * depth in answer(body, SETTINGS)


BAD = {
    b"": "it is not JSON",
    b"{": "it is not JSON",
    b"[" * 10_000: "it is not JSON",
    b"[]": "it is not an object",
    b"{}": "apiVersion must be apiextensions.k8s.io/v1, not null",
    review([], apiVersion="apiextensions.k8s.io/v1beta1"): 'not "apiextensions.k8s.io/v1beta1"',
    review([], kind="AdmissionReview"): 'kind must be ConversionReview, not "AdmissionReview"',
    review([], request=None): "request is missing",
    review([], request=[]): "request is missing",
    review([], uid=None): "request.uid must be a string, not null",
    review([], uid=""): "request.uid must be a string",
    review([], uid={}): "request.uid must be a string, not a dict",
    review([], desired=7): "request.desiredAPIVersion must be a string, not 7",
    review({}): "request.objects must be a list, not a dict",
    review("x" * 10_000): "request.objects must be a list",
}


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_invalid_review_is_refused_in_a_short_sentence_that_names_the_field(body: bytes) -> None:
    with pytest.raises(ReviewError) as caught:
        answer(body, SETTINGS)
    assert BAD[body] in str(caught.value)
    assert len(str(caught.value)) < 400
