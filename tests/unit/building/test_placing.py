"""Built files are placed into the data directory: whole, once, and beside the files of others."""

from __future__ import annotations

import json
import shutil
import stat
import time
from collections import namedtuple
from pathlib import Path

import pytest
import yaml

from edge.artifacts.layout import ImageLayout
from edge.building.prepare import File, PrepareError, osie_manifest, osie_yaml, place, read_actions
from tests.unit.bundle.layouts import image, index

NAMES = ("inspect", "wipe")


def built(directory: Path, arch: str, content: str = "1") -> Path:
    """The actions as the recipe makes them: a layout for each, whose image has the tag 1."""
    for name in NAMES:
        layout = directory / name
        made = image(layout, f"{name} {arch} {content}".encode(), arch)
        notes = {"org.opencontainers.image.ref.name": "1"}
        (layout / "index.json").write_text(
            json.dumps({"schemaVersion": 2, "manifests": [made | {"annotations": notes}]})
        )
    return directory


@pytest.fixture
def data(tmp_path):
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    return directory


def platforms(data: Path, name: str) -> tuple[str, ...]:
    layout = ImageLayout(data / "images")
    return layout.platforms(layout.images()[name])


def test_actions_are_an_image_index_for_each_name_and_every_blob_is_there(tmp_path, data):
    place(data, [], read_actions([built(tmp_path / "amd64", "amd64")]))
    layout = ImageLayout(data / "images")
    assert set(layout.images()) == {"actions/inspect:1", "actions/wipe:1"}
    for name, found in layout.images().items():
        assert platforms(data, name) == ("linux/amd64",)
        blobs = list(layout.blobs(found))
        assert len(blobs) == 4, "index, manifest, configuration, layer"
        assert all(layout.path(blob.digest).stat().st_size == blob.size for blob in blobs)
    assert json.loads((data / "images/oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}


def test_actions_of_a_second_architecture_join_those_of_the_first_under_the_same_tag(tmp_path, data):
    place(data, [], read_actions([built(tmp_path / "amd64", "amd64")]))
    place(data, [], read_actions([built(tmp_path / "arm64", "arm64")]))
    assert platforms(data, "actions/inspect:1") == ("linux/amd64", "linux/arm64")
    place(data, [], read_actions([built(tmp_path / "new", "arm64", "2")]))
    layout = ImageLayout(data / "images")
    entries = layout.by_platform(layout.images()["actions/inspect:1"])
    assert set(entries) == {"linux/amd64", "linux/arm64"}
    manifest = json.loads(layout.path(entries["linux/arm64"]["digest"]).read_bytes())
    layer = layout.path(manifest["layers"][0]["digest"]).read_bytes()
    assert layer == b"inspect arm64 2", "the newer one of this architecture"


def test_both_architectures_at_once_are_the_same_bytes_as_one_after_the_other(tmp_path, data):
    both = [built(tmp_path / arch, arch) for arch in ("amd64", "arm64")]
    place(data, [], read_actions(both))
    other = tmp_path / "other"
    for one in reversed(both):
        place(other, [], read_actions([one]))
    assert ImageLayout(other / "images").entries() == ImageLayout(data / "images").entries()


def test_images_of_a_bundle_stay_and_an_action_of_its_own_without_an_index_joins(tmp_path, data):
    images = data / "images"
    index(
        images,
        site_tool=image(images, b"tool"),
        actions_inspect=image(images, b"older inspect for arm64", "arm64"),
        actions_wipe=image(images, b"older wipe for amd64"),
    )
    place(data, [], read_actions([built(tmp_path / "amd64", "amd64")]))
    assert set(ImageLayout(images).images()) == {"site/tool:1", "actions/inspect:1", "actions/wipe:1"}
    assert platforms(data, "actions/inspect:1") == ("linux/amd64", "linux/arm64")
    assert platforms(data, "actions/wipe:1") == ("linux/amd64",)


def test_second_time_nothing_is_written(tmp_path, data):
    kernel = tmp_path / "kernel"
    kernel.write_bytes(b"kernel")
    groups = [[File("osie/tinkedge/kernel", kernel), File("osie/tinkedge/osie.yaml", b"yaml")]]
    actions = read_actions([built(tmp_path / "amd64", "amd64")])
    first = place(data, groups, actions)
    assert {"osie/tinkedge/kernel", "osie/tinkedge/osie.yaml", "images/index.json"} <= set(first)
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    assert place(data, groups, actions) == []
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    (data / "osie/tinkedge/kernel").write_bytes(b"broken")
    assert place(data, groups, actions) == ["osie/tinkedge/kernel"], "what was damaged comes again"


def test_blobs_of_replaced_images_are_removed_a_day_later_and_those_of_other_images_stay(tmp_path, data):
    place(data, [], read_actions([built(tmp_path / "old", "amd64")]))
    other = image(data / "images", b"from a bundle")
    listed = json.loads((data / "images/index.json").read_text())
    listed["manifests"].append(other)  # without a name
    (data / "images/index.json").write_text(json.dumps(listed))
    layout, newer = ImageLayout(data / "images"), read_actions([built(tmp_path / "new", "amd64", "2")])
    place(data, [], newer)
    replaced = layout.unused()
    assert len(replaced) == 2 * 3, "index, manifest and layer of both actions"
    place(data, [], newer, clock=lambda: time.time() + 90_000)
    assert layout.unused() == []
    assert not any(path.exists() for path in replaced)
    assert layout.path(other["digest"]).exists()


def test_no_blob_is_removed_while_an_image_is_not_whole(tmp_path, data):
    place(data, [], read_actions([built(tmp_path / "old", "amd64")]))
    stray = data / "images/blobs/sha256" / ("0" * 64)
    stray.write_bytes(b"being written")
    listed = json.loads((data / "images/index.json").read_text())
    listed["manifests"].append(listed["manifests"][0] | {"digest": "sha256:" + "1" * 64, "annotations": {}})
    (data / "images/index.json").write_text(json.dumps(listed))
    place(data, [], read_actions([built(tmp_path / "new", "amd64", "2")]), clock=lambda: time.time() + 90_000)
    assert stray.exists()


def test_files_are_for_the_owner_alone(tmp_path, data):
    place(data, [[File("files/a", b"a")]], read_actions([built(tmp_path / "amd64", "amd64")]))
    for path in data.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_group_that_cannot_be_read_leaves_the_older_one_as_it_is(tmp_path, data):
    place(data, [[File("osie/t/kernel", b"old"), File("osie/t/initrd", b"old")]], None)
    with pytest.raises(FileNotFoundError):
        place(data, [[File("osie/t/kernel", b"new"), File("osie/t/initrd", tmp_path / "missing")]], None)
    assert (data / "osie/t/kernel").read_bytes() == b"old"
    assert sorted(path.name for path in (data / "osie/t").iterdir()) == ["initrd", "kernel"]


def test_full_disk_is_named_before_anything_is_written(data, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 10**6))
    with pytest.raises(PrepareError, match=f"{data}: 67 MB are needed there, and 1 MB are free; remove what is"):
        place(data, [[File("files/a", b"a")]], None)
    assert list(data.iterdir()) == []


def test_link_in_the_data_directory_is_not_followed(tmp_path, data):
    (data / "files").symlink_to(tmp_path)
    with pytest.raises(PrepareError, match=f"{data}/files: it is a link"):
        place(data, [[File("files/a", b"a")]], None)


def test_index_that_is_no_index_is_named_and_left(tmp_path, data):
    (data / "images").mkdir()
    (data / "images/index.json").write_text("[]")
    with pytest.raises(
        PrepareError, match=r"images: index.json is not a JSON object; it is no image layout: move it aside"
    ):
        place(data, [], read_actions([built(tmp_path / "amd64", "amd64")]))
    assert (data / "images/index.json").read_text() == "[]"


def test_osie_object_names_the_files_of_the_data_directory_and_its_file_says_the_same():
    manifest = osie_manifest("tinkedge", Path("/var/lib/tinkedge"))
    assert manifest["spec"] == {
        "kernelUrl": "file:///var/lib/tinkedge/osie/tinkedge/kernel",
        "initrdUrl": "file:///var/lib/tinkedge/osie/tinkedge/initrd",
    }
    assert yaml.safe_load(osie_yaml(manifest)) == manifest
