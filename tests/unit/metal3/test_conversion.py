"""What becomes of a BareMetalHost in its other version, rule by rule."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.unit.metal3.hosts import HINT_NAMES, V1ALPHA1, V1BETA1, Raw, copied, full, hardware, view
from tink.api.metal3.crds import generate
from tink.convert.metal3 import ConversionSettings, convert_version, wrongly_md5
from tink.convert.metal3.conversion_data import ANNOTATION

MD5 = ConversionSettings()
AUTO = ConversionSettings(empty_checksum_type="auto")
Path = tuple[str | int, ...]


def up(host: Raw, settings: ConversionSettings = MD5) -> Raw:
    return convert_version(host, V1BETA1, settings)


def down(host: Raw, settings: ConversionSettings = MD5) -> Raw:
    return convert_version(host, V1ALPHA1, settings)


def old(spec: Any = None, status: Any = None) -> Raw:
    parts = {name: part for name, part in (("spec", spec), ("status", status)) if part is not None}
    return {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": {"name": "node-1", "uid": "u"}, **parts}


def new(spec: Any = None, status: Any = None) -> Raw:
    return {**old(spec, status), "apiVersion": V1BETA1}


def kept(host: Raw) -> Any:
    return json.loads(host["metadata"]["annotations"][ANNOTATION])


# --- Names, in all places -----------------------------------------------------------------------------------------


def test_every_name_changes_in_every_place() -> None:
    assert view(up(full(V1ALPHA1))) == full(V1BETA1)


def test_every_name_changes_back_in_every_place() -> None:
    expected = full(V1ALPHA1)
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
    """The container of a path's last part; made where there is none."""
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
        container = place(host, where)
        if isinstance(container, list):
            container[:] = [value]
        else:
            container[where[-1]] = value
    assert down(shown) == expected


@pytest.mark.parametrize("path", [pytest.param(path, id=".".join(map(str, path))) for path, _ in editable()])
def test_field_removed_in_v1beta1_stays_removed(path: Path) -> None:
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


@pytest.mark.parametrize("name", ["image", "raid", "userData", "bmc", "bootMACAddress"])
def test_part_removed_in_v1beta1_stays_removed(name: str) -> None:
    """Removing the image is how hosts are deprovisioned."""
    shown, expected = up(full(V1ALPHA1)), full(V1ALPHA1)
    del shown["spec"][name], expected["spec"][name]
    assert down(shown) == expected


def test_fields_of_another_version_of_the_software_are_carried_over() -> None:
    spec = {"online": True, "rootDeviceHints": {"hctl": "1:0:0:0", "tomorrow": [1]}, "tomorrow": {"online": True}}
    shown = up(old(spec, {"tomorrow": {"hardware": 1}}))
    assert shown["spec"] == {
        "poweredOn": True,
        "rootDeviceHints": {"hctl": "1:0:0:0", "tomorrow": [1]},
        "tomorrow": {"online": True},
    }
    assert shown["status"] == {"tomorrow": {"hardware": 1}}


def test_field_that_has_the_name_of_another_one_in_the_other_version_does_not_become_it() -> None:
    """As the API prunes it."""
    assert up(old({"online": True, "poweredOn": False, "rootDeviceHints": {"devicePath": "x"}}))["spec"] == {
        "poweredOn": True,
        "rootDeviceHints": {},
    }
    made = down(
        new({"online": False, "hardwareProfile": "dell", "rootDeviceHints": {}}, {"hardware": {"hostname": "x"}})
    )
    assert made == old({"hardwareProfile": "empty", "rootDeviceHints": {}}, {})


def test_annotations_of_the_operator_stay_as_they_are() -> None:
    """Their values are in the form of v1alpha1, whatever version the host is read in."""
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

PROFILES = [
    ("unknown", {"devicePath": "/dev/sda"}),
    ("libvirt", {"devicePath": "/dev/vda"}),
    ("dell", {"hctl": "0:0:0:0"}),
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


@pytest.mark.parametrize("hints", [{}, {"minSizeGigabytes": 100}, {"hctl": "0:0:0:0"}])
def test_hints_that_the_user_gave_win_over_the_profile(hints: Raw) -> None:
    host = old({"online": True, "hardwareProfile": "dell", "rootDeviceHints": hints})
    assert up(host)["spec"]["rootDeviceHints"] == hints
    assert down(up(host)) == host


ROOT_VOLUME = {"softwareRAIDVolumes": [{"level": "1", "rootVolume": True}]}


def test_host_with_a_root_volume_gets_no_hints() -> None:
    """The baremetal-operator refuses both together."""
    host = old({"online": True, "hardwareProfile": "dell", "raid": ROOT_VOLUME})
    assert "rootDeviceHints" not in up(host)["spec"]
    assert down(up(host)) == host
    data = {"softwareRAIDVolumes": [{"level": "1", "rootVolume": False}, {"level": "0"}]}
    assert up(old({"hardwareProfile": "dell", "raid": data}))["spec"]["rootDeviceHints"] == {"hctl": "0:0:0:0"}


def test_root_volume_added_in_v1beta1_takes_the_place_of_hints_that_nobody_wrote() -> None:
    shown = up(old({"online": True}))
    shown["spec"]["raid"] = ROOT_VOLUME
    assert down(shown)["spec"] == {"online": True, "raid": ROOT_VOLUME}
    shown = up(old({"online": True, "rootDeviceHints": {"hctl": "1:0:0:0"}}))
    shown["spec"]["raid"] = ROOT_VOLUME
    assert down(shown)["spec"]["rootDeviceHints"] == {"hctl": "1:0:0:0"}, "what users write is theirs"


def test_hints_removed_in_v1beta1_do_not_come_back_by_the_profile() -> None:
    host = old({"online": True, "hardwareProfile": "openstack"}, {"hardwareProfile": "dell"})
    shown = up(host)
    del shown["spec"]["rootDeviceHints"]
    made = down(shown)
    assert made == old({"online": True, "hardwareProfile": "empty"}, {"hardwareProfile": "empty"})
    assert view(up(made)) == view(shown)


def test_root_volume_removed_in_v1beta1_does_not_bring_a_profile_back() -> None:
    shown = up(old({"online": True, "raid": ROOT_VOLUME}, {}))
    del shown["spec"]["raid"]
    assert down(shown) == old({"online": True, "hardwareProfile": "empty"}, {})


def test_hints_changed_in_v1beta1_are_kept_besides_the_profile() -> None:
    shown = up(old({"online": True, "hardwareProfile": "dell"}))
    shown["spec"]["rootDeviceHints"] = {"modelContains": "PERC"}
    assert down(shown)["spec"] == {"online": True, "hardwareProfile": "dell", "rootDeviceHints": {"model": "PERC"}}


def test_hints_that_were_shown_still_hold_when_the_bmc_changes() -> None:
    """The profile is guessed from the address: the same disk must not become another by that."""
    shown = up(old({"online": True, "bmc": {"address": "libvirt://x", "credentialsName": "c"}}))
    shown["spec"]["bmc"] = {"address": "redfish://x", "credentialsName": "c"}
    made = down(shown)
    assert made["spec"]["rootDeviceHints"] == {"deviceName": "/dev/vda"}
    assert view(up(made)) == view(shown)


def test_host_made_in_v1beta1_has_the_empty_profile() -> None:
    """Or the controller would write its image to /dev/sda."""
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
    "image", [{"url": "u", "checksum": "c"}, {"url": "u", "checksumType": ""}, {}, {"checksumType": None}]
)
def test_checksum_type_that_was_empty_is_what_empty_meant(path: Path, image: Raw) -> None:
    host = with_image(V1ALPHA1, path, image)
    for settings, meant in ((MD5, "md5"), (AUTO, "auto")):
        shown = up(host, settings)
        assert place(shown, path)[path[-1]]["checksumType"] == meant
        assert down(shown, settings) == host


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("given", ["md5", "sha256", "auto"])
def test_checksum_type_that_was_given_is_kept(path: Path, given: str) -> None:
    host = with_image(V1ALPHA1, path, {"url": "u", "checksumType": given})
    for settings in (MD5, AUTO):
        assert place(up(host, settings), path)[path[-1]]["checksumType"] == given
        assert down(up(host, settings), settings) == host


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
    """Once shown as md5 it stays md5, though empty means something else by now."""
    shown = up(with_image(V1ALPHA1, ("spec", "image"), {"url": "u", "checksum": "c"}))
    assert down(shown, AUTO)["spec"]["image"]["checksumType"] == "md5"


@pytest.mark.parametrize(
    ("checksum", "kind", "wrong"),
    [
        ("a" * 64, None, True),
        ("A1" * 64, "", True),
        ("a" * 64, "sha256", False),
        ("a" * 32, None, False),
        ("", None, False),
        ("http://192.0.2.9/x.sha256sum", None, False),
        (5, None, False),
        (None, None, False),
    ],
)
def test_checksums_that_cannot_be_md5_are_told_before_they_are_called_so(checksum: Any, kind: Any, wrong: bool) -> None:
    for path in PLACES:
        host = with_image(V1ALPHA1, path, {"url": "u", "checksum": checksum, "checksumType": kind})
        assert wrongly_md5(host) == ([".".join(map(str, path))] if wrong else [])
    assert wrongly_md5(old(None, {"provisioning": []})) == []


# --- What is kept -------------------------------------------------------------------------------------------------


def test_the_whole_old_host_is_kept_but_for_its_metadata() -> None:
    """In the form of cluster-api's util/conversion."""
    host = full(V1ALPHA1)
    assert kept(up(host)) == {key: value for key, value in host.items() if key != "metadata"}
    assert up(host)["metadata"]["name"] == "node-1"


def test_hardware_details_and_profiles_survive_edits_in_v1beta1() -> None:
    host = full(V1ALPHA1)
    shown = up(host)
    assert not {"hardware", "hardwareProfile"} & {*shown["spec"], *shown["status"]}
    shown["spec"]["poweredOn"] = False
    shown["status"]["errorMessage"] = "e"
    host["spec"]["online"] = False
    host["status"]["errorMessage"] = "e"
    assert down(shown) == host


def test_new_host_does_not_get_the_hardware_of_the_one_it_was_copied_from() -> None:
    """kubectl get, another name, kubectl create: the API drops the status, so there was no inspection."""
    shown = up(full(V1ALPHA1))
    del shown["status"]
    made = down(shown)
    assert "status" not in made
    assert made["spec"]["hardwareProfile"] == "dell"
    shown["status"] = None
    assert down(shown)["status"] is None


def test_other_versions_and_kinds_of_request_are_left_alone() -> None:
    for host, desired in ((old({"online": True}), V1ALPHA1), (new({}), V1BETA1), (new({}), "metal3.io/v1")):
        assert convert_version(host, desired, MD5) is host
    other = {"apiVersion": "metal3.io/v1", "kind": "BareMetalHost"}
    assert convert_version(other, V1ALPHA1, MD5) is other


def test_nothing_is_kept_of_the_hardware_beyond_the_budget() -> None:
    host = full(V1ALPHA1)
    host["status"]["hardware"] = hardware(300)
    shown = up(host, ConversionSettings(annotations_budget=100 << 10))
    del host["status"]["hardware"]
    assert kept(shown) == {key: value for key, value in host.items() if key != "metadata"}, "nothing else is left out"
    assert down(shown) == host
