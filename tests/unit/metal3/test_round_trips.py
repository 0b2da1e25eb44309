"""Conversion of BareMetalHosts loses nothing: thousands of random ones, there and back, and edited between."""

from __future__ import annotations

import copy
from random import Random

import pytest

from tests.unit.metal3.hosts import V1ALPHA1, V1BETA1, Hosts, Raw, hosts, view, with_auto
from tink.convert.metal3 import ConversionSettings, convert_version
from tink.convert.metal3.conversion_data import ANNOTATION

MANY = 4000
"""Each has about half of the fields: after the first hundred, no line of the conversion is met in a new order."""
EDITED = 3000
SETTINGS = ConversionSettings()


def up(host: Raw, settings: ConversionSettings = SETTINGS) -> Raw:
    return convert_version(host, V1BETA1, settings)


def down(host: Raw, settings: ConversionSettings = SETTINGS) -> Raw:
    return convert_version(host, V1ALPHA1, settings)


def has_root_volume(host: Raw) -> bool:
    raid = (host.get("spec") or {}).get("raid") or {}
    return any(volume.get("rootVolume") for volume in raid.get("softwareRAIDVolumes") or [])


def test_host_that_was_looked_at_in_v1beta1_is_the_same_in_v1alpha1() -> None:
    for host in hosts(V1ALPHA1, MANY, seed=1):
        assert down(up(host)) == host


def test_host_of_v1beta1_that_was_stored_as_v1alpha1_is_the_same() -> None:
    for host in hosts(V1BETA1, MANY, seed=2):
        assert view(up(down(host))) == view(with_auto(host))


@pytest.mark.parametrize("settings", [ConversionSettings("auto"), ConversionSettings(annotations_budget=0)])
def test_settings_lose_nothing_but_hardware_details_beyond_the_budget(settings: ConversionSettings) -> None:
    for host in hosts(V1ALPHA1, 2000, seed=3):
        expected = host
        if not settings.annotations_budget and isinstance(host.get("status"), dict):
            expected = {**host, "status": {key: item for key, item in host["status"].items() if key != "hardware"}}
        assert down(up(host, settings), settings) == expected
    for host in hosts(V1BETA1, 2000, seed=4):
        assert view(up(down(host, settings), settings)) == view(with_auto(host))


def test_conversion_changes_nothing_in_its_source() -> None:
    for version, there, back in ((V1ALPHA1, up, down), (V1BETA1, down, up)):
        for host in hosts(version, 500, seed=5):
            before = copy.deepcopy(host)
            made = there(host)
            assert host == before
            before = copy.deepcopy(made)
            back(made)
            assert made == before


def test_annotation_does_not_grow_with_every_look() -> None:
    for host in hosts(V1ALPHA1, 500, seed=6):
        first = up(host)
        again = first
        for _ in range(3):
            again = up(down(again))
        assert again == first


def edited(host: Raw, other: Raw, rng: Random) -> Raw:
    """A v1beta1 host with some fields of another one, or without them, at some depth."""
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


def hints(host: Raw) -> Raw | None:
    found: Raw | None = (host.get("spec") or {}).get("rootDeviceHints")
    return found


def test_every_edit_in_v1beta1_stays_as_it_was_made() -> None:
    """Whatever was changed, added or removed: read back in v1beta1 the host is as the user left it."""
    rng = Random(7)
    others = Hosts(8, V1BETA1)
    seen = 0
    for host in hosts(V1ALPHA1, EDITED, seed=9):
        shown = up(host)
        wanted = edited(up(host), others.host(), rng)
        seen += wanted != shown
        expected, back = with_auto(view(wanted)), view(up(down(wanted)))
        if hints(host) is None and hints(wanted) and hints(wanted) == hints(shown) and has_root_volume(wanted):
            # Hints that nobody wrote go when a root volume comes: the baremetal-operator takes no host with both.
            del expected["spec"]["rootDeviceHints"]
            assert back["spec"].pop("rootDeviceHints", None) is None
        assert back == expected, (host, wanted)
    assert seen > EDITED / 2


def test_host_whose_annotation_was_lost_means_the_same() -> None:
    """A client that replaces the whole object drops it: no profile may choose a disk then."""
    for host in hosts(V1ALPHA1, 2000, seed=10):
        shown = up(host)
        shown["metadata"] = {"name": "node-1"}
        stored = down(shown)
        assert view(up(stored)) == shown
        if isinstance(stored.get("spec"), dict):
            assert stored["spec"]["hardwareProfile"] == "empty"


def test_annotation_is_nowhere_in_v1alpha1() -> None:
    for host in hosts(V1ALPHA1, 500, seed=11):
        assert ANNOTATION in up(host)["metadata"]["annotations"]
        assert ANNOTATION not in str(down(up(host)))
