"""Images in a directory, as machines and bundles read them: named images are found, broken ones are reported."""

import json

import pytest

from edge.artifacts.layout import Descriptor, ImageLayout, LayoutError, NoImageError, is_name
from tests.unit.bundle import layouts


@pytest.fixture
def directory(tmp_path):
    layouts.index(tmp_path, actions_inspect=layouts.image(tmp_path, b"layer"))
    return tmp_path


def test_image_is_found_by_tag_and_by_digest_with_its_type(directory):
    layout = ImageLayout(directory)
    found = layout.images()["actions/inspect:1"]
    assert found.media_type == layouts.MANIFEST_TYPE
    assert json.loads(layout.path(found.digest).read_bytes())["schemaVersion"] == 2


def test_image_consists_of_its_manifest_configuration_and_layers_each_once(directory):
    made = {"amd64": layouts.image(directory, b"layer"), "arm64": layouts.image(directory, b"layer", "arm64")}
    entries = [one | {"platform": {"os": "linux", "architecture": name}} for name, one in made.items()]
    both = layouts.blob(directory, {"schemaVersion": 2, "manifests": entries}, layouts.INDEX_TYPE)
    layouts.index(directory, both=both)
    layout = ImageLayout(directory)
    digests = [one.digest for one in layout.blobs(layout.images()["both:1"])]
    assert digests[0] == both["digest"]
    assert len(digests) == len(set(digests)) == 6  # an index, two manifests, two configurations, one layer
    assert layout.platforms(layout.images()["both:1"]) == ("linux/amd64", "linux/arm64")


def test_nothing_of_that_name_is_no_broken_directory(directory, tmp_path):
    layout = ImageLayout(directory)
    with pytest.raises(NoImageError, match="is no sha256 or sha512 digest"):
        layout.path("sha256:../../../etc/passwd")
    assert ImageLayout(tmp_path / "nowhere").images() == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 99_999, "not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "no list of manifests"),
        ('{"manifests": 3}', "no list of manifests"),
        (" " * ((4 << 20) + 1), r"index.json is larger than the 4194304 bytes"),
        # 4 MiB of empty lists are 100 MB in memory.
        ('{"manifests": [' + "[]," * 1_000_000 + "[]]}", r"index.json has more than 100000 values"),
    ],
    ids=["cut", "deep", "list", "empty", "number", "large", "many"],
)
def test_malformed_index_is_reported(directory, text, message):
    (directory / "index.json").write_text(text)
    with pytest.raises(LayoutError, match=message):
        ImageLayout(directory).images()


def test_descriptor_needs_a_digest_and_a_size():
    good = {"mediaType": "a/b", "digest": f"sha256:{'0' * 64}", "size": 1}
    assert Descriptor.of(good).size == 1
    for wrong in ({"digest": "sha256:../x"}, {"size": -1}, {"size": "1"}, {"digest": None}):
        with pytest.raises(LayoutError):
            Descriptor.of(good | wrong)
    with pytest.raises(LayoutError):
        Descriptor.of("sha256:0")


def test_names_are_repository_and_tag():
    for name in ("a:1", "actions/inspect:1", "a.b/c__d/e--f:v1.2-x_Y", "library/busybox:latest"):
        assert is_name(name)
    for name in ("a", "A:1", "/a:1", "a/:1", "a:", "a:b:c", "a:1/b", "../a:1", "a" * 400 + ":1"):
        assert not is_name(name)
