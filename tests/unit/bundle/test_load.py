"""What a bundle brings, put into a data directory: whole and checked, and nowhere else."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from edge.artifacts import ImageLayout
from edge.bundle import BundleError, Contents, Osie, load, next_steps
from tests.unit.bundle import layouts
from tests.unit.bundle.conftest import NOW, Site, packed, quiet
from tink.files.data_directory import DataDirectoryError


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path):
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    return made


def test_each_part_comes_to_its_place_for_its_owner_alone_and_the_osie_names_its_files_with_their_hashes(site, data):
    loaded = load(site.reader(), data, quiet)
    expected = {"osie/lab/kernel", "osie/lab/initrd", "files/disk.raw", "manifests/osie-lab.json", "bundle.json"}
    assert files(data) == expected
    assert (data / "osie/lab/kernel").read_bytes() == b"kernel" * 1000
    assert {path.stat().st_mode & 0o077 for path in data.rglob("*")} == {0}
    assert any("http://HOST:7080/files/" in line for line in next_steps(loaded, data))
    made = json.loads((data / "manifests/osie-lab.json").read_text())
    assert (made["kind"], made["metadata"]["name"]) == ("OSIE", "lab")
    urls = {f"{name}Url": f"file://{data}/osie/lab/{name}" for name in ("kernel", "initrd")}
    assert made["spec"] == urls
    digest = hashlib.sha256(b"kernel" * 1000).hexdigest()
    assert made["metadata"]["annotations"]["tinkerbell.org/kernel-sha256"] == digest


def test_damage_in_the_last_file_changes_nothing_and_does_not_count_as_loaded(site, data):
    site.create(now=NOW - timedelta(days=2))
    load(site.reader(), data, quiet)
    old = site.file.read_bytes()
    (site.directory / "osie/kernel").write_bytes(b"newer")
    site.create()
    members = site.members()
    members["sbom.cdx.json"] = members["sbom.cdx.json"][:-1] + b" "
    before = {name: (data / name).read_bytes() for name in files(data)}
    with pytest.raises(BundleError, match=r"sbom.cdx.json in it is damaged"):
        load(site.reader(packed(members)), data, quiet)
    assert {name: (data / name).read_bytes() for name in files(data)} == before
    load(site.reader(old), data, quiet)
    load(site.reader(), data, quiet)
    assert (data / "osie/lab/kernel").read_bytes() == b"newer"


def test_program_of_a_bundle_is_checked_and_not_put_into_the_data_directory(site, data):
    (site.directory / "kubectl").write_bytes(b"kubectl")
    site.create(replace(site.contents, kubectl=site.directory / "kubectl"))
    assert "bin/kubectl" in site.reader().manifest.sizes
    load(site.reader(), data, quiet)
    assert not (data / "bin").exists()
    assert not (data / "install.sh").exists()


def images(site: Site, data: Path, **named: dict[str, Any]) -> None:
    """A bundle with the images of a layout, loaded."""
    layout = site.directory / "layout"
    layouts.index(layout, **named)
    members = site.members()
    manifest = json.loads(members["manifest.json"])
    for path in sorted(layout.rglob("*")):
        if path.is_file():
            name = f"images/{path.relative_to(layout)}"
            members[name] = path.read_bytes()
            manifest["sizes"][name] = len(members[name])
    load(site.reader(packed(members | {"manifest.json": json.dumps(manifest).encode()}, signed=True)), data, quiet)


def test_images_of_earlier_bundles_stay_and_those_of_the_same_name_are_replaced(site, data):
    layout = site.directory / "layout"
    first, second, third = (layouts.image(layout, layer) for layer in (b"one", b"two", b"three"))
    images(site, data, actions_inspect=first, actions_reboot=second)
    images(site, data, actions_inspect=third)
    found = ImageLayout(data / "images").images()
    assert {name: image.digest for name, image in found.items()} == {
        "actions/inspect:1": third["digest"],
        "actions/reboot:1": second["digest"],
    }


def test_link_in_the_data_directory_leads_nothing_elsewhere(site, data, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (data / "osie").symlink_to(outside)
    with pytest.raises(BundleError, match="it is a link"):
        load(site.reader(), data, quiet)
    assert list(outside.iterdir()) == []


def test_directory_with_other_things_in_it_is_not_touched(site, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "letters").write_text("dear")
    with pytest.raises(DataDirectoryError, match="letters"):
        load(site.reader(), home, quiet)
    assert files(home) == {"letters"}


def test_disk_without_room_is_said_before_anything_is_written(site, data, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(BundleError, match=r"67 MB are needed there, and 0 MB are free"):
        load(site.reader(), data, quiet)
    assert files(data) == set()


# --- an older bundle


def test_older_bundle_with_a_good_signature_is_refused_with_both_dates(site, data):
    old = site.file.read_bytes()
    (site.directory / "osie/kernel").write_bytes(b"mended")
    site.create(now=NOW + timedelta(days=2))
    new = site.file.read_bytes()
    load(site.reader(new), data, quiet)
    load(site.reader(new), data, quiet)
    with pytest.raises(BundleError) as caught:
        load(site.reader(old), data, quiet)
    for said in ("2026-11-23 12:00:00 UTC", "2026-11-25 12:00:00 UTC", "--allow-older"):
        assert said in str(caught.value)
    assert (data / "osie/lab/kernel").read_bytes() == b"mended"
    load(site.reader(old), data, quiet, allow_older=True)
    assert (data / "osie/lab/kernel").read_bytes() == b"kernel" * 1000
    load(site.reader(old), data, quiet)
    load(site.reader(new), data, quiet)


def test_older_bundle_of_other_parts_is_refused_too(site, data):
    """It could bring back an object or a file that the newer bundle omits on purpose."""
    site.create(Contents(files=site.contents.files))
    old = site.file.read_bytes()
    site.create(Contents(osies=site.contents.osies), now=NOW + timedelta(seconds=1))
    load(site.reader(), data, quiet)
    with pytest.raises(BundleError, match="--allow-older"):
        load(site.reader(old), data, quiet)
    assert not (data / "files").exists()


@pytest.mark.parametrize("record", ["", "[]", '{"created": 5}', '{"created": "2026-11-23T12:00:00"}', "x" * 9999])
def test_record_that_can_not_be_read_refuses_with_the_remedy(site, data, record):
    (data / "bundle.json").write_text(record)
    with pytest.raises(BundleError, match=r"bundle.json: .*--allow-older"):
        load(site.reader(), data, quiet)
    load(site.reader(), data, quiet, allow_older=True)
    load(site.reader(), data, quiet)


# --- what a bundle is made of -----------------------------------------------------------------------------------------


def test_same_name_twice_and_nothing_at_all_are_refused(site):
    (site.directory / "more").mkdir()
    (site.directory / "more/disk.raw").write_bytes(b"other")
    twice = replace(site.contents, files=(*site.contents.files, str(site.directory / "more/disk.raw")))
    with pytest.raises(BundleError, match=r"would both be files/disk.raw in the bundle: rename one"):
        site.create(twice)
    with pytest.raises(BundleError, match="two of this name"):
        site.create(replace(site.contents, osies=site.contents.osies * 2))
    with pytest.raises(BundleError, match="there is nothing in it"):
        site.create(Contents())


def test_bundle_that_can_not_be_made_leaves_the_old_one(site):
    before = site.file.read_bytes()
    with pytest.raises(BundleError, match="missing: there is no such file"):
        site.create(replace(site.contents, files=(str(site.directory / "missing"),)))
    assert site.file.read_bytes() == before


def test_osie_object_beside_the_one_that_the_bundle_makes_is_refused(site):
    objects = site.directory / "objects"
    objects.mkdir()
    osie = "apiVersion: tinkerbell.org/v1alpha2\nkind: OSIE\nmetadata: {name: %s}\n"
    (objects / "osies.yaml").write_text(osie % "other")
    site.create(replace(site.contents, objects=(objects,)))
    assert "manifests/osies.yaml" in site.reader().manifest.sizes
    (objects / "osies.yaml").write_text(osie % "lab")
    with pytest.raises(BundleError, match="the bundle makes that object, for --osie lab: take it out"):
        site.create(replace(site.contents, objects=(objects,)))
    (objects / "osies.yaml").write_text("kind: [")
    with pytest.raises(BundleError, match=r"--objects .*osies.yaml"):
        site.create(replace(site.contents, objects=(objects,)))


@pytest.mark.parametrize("text", ["lab", "lab=", "Lab=dir", "=dir", "../x=dir"])
def test_osie_that_names_no_object_is_refused(text):
    with pytest.raises(BundleError, match="write NAME=DIR or NAME=KERNEL,INITRD"):
        Osie.of(text)


def test_sbom_has_every_file_with_its_hash(site):
    listed = json.loads(site.members()["sbom.cdx.json"])
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    hashes = {one["name"]: one["hashes"][0]["content"] for one in listed["components"]}
    assert hashes["osie/lab/kernel"] == hashlib.sha256(b"kernel" * 1000).hexdigest()
    assert set(hashes) == {"osie/lab/kernel", "osie/lab/initrd", "files/disk.raw"}
