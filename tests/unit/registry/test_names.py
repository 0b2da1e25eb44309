"""Names of images and registries, and the registry that they name."""

import pytest

from tink.registry.names import Reference, RegistryError, parse, scope_of

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("busybox", Reference("docker.io", "library/busybox", "latest")),
        ("busybox:1.36", Reference("docker.io", "library/busybox", "1.36")),
        ("acme/tool", Reference("docker.io", "acme/tool", "latest")),
        ("docker.io/busybox", Reference("docker.io", "library/busybox", "latest")),
        ("index.docker.io/busybox", Reference("docker.io", "library/busybox", "latest")),
        ("registry-1.docker.io/acme/tool:2", Reference("docker.io", "acme/tool", "2")),
        ("Reg.Example/x", Reference("reg.example", "x", "latest")),
        ("Registry/x", Reference("registry", "x", "latest")),
        (
            "quay.io/tinkerbell/actions/image2disk:latest",
            Reference("quay.io", "tinkerbell/actions/image2disk", "latest"),
        ),
        ("172.31.0.1:5000/actions/x:1", Reference("172.31.0.1:5000", "actions/x", "1")),
        ("localhost/x", Reference("localhost", "x", "latest")),
        ("[fd00::1]:5000/x:1", Reference("[fd00::1]:5000", "x", "1")),
        (f"reg.example/x@{DIGEST}", Reference("reg.example", "x", "latest", DIGEST)),
        (f"reg.example:5000/x:1@{DIGEST}", Reference("reg.example:5000", "x", "1", DIGEST)),
    ],
)
def test_image_has_a_registry_a_repository_and_a_version(image, reference):
    assert parse(image) == reference
    assert parse(image).version == (reference.digest or reference.tag)


BAD = ["", "x:a b", "reg.example/x\nHost: evil", "x" * 300, "x@md5:" + "a" * 32, "a." * 200 + "b/x"]
BAD += ["Upper", "a//b", "reg.example/", "reg.example/../etc", "x:", "x@sha256:abc"]
BAD += ["http://reg.example/x", "reg.example:port/x"]


@pytest.mark.parametrize("image", BAD)
def test_wrong_name_is_refused_and_shown(image):
    with pytest.raises(RegistryError, match="image ") as caught:
        parse(image)
    assert repr(image) in str(caught.value)


@pytest.mark.parametrize(
    ("registry", "scope"),
    [
        ("docker.io", "docker.io"),
        ("index.docker.io", "docker.io"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("registry-1.docker.io", "docker.io"),
        ("HTTP://Reg.example:5000/", "reg.example:5000"),
        ("https://reg.example/v2/", "reg.example"),
        ("https://reg.example/v2", "reg.example"),
        (" reg.example/Team/x/ ", "reg.example/Team/x"),
        ("reg.example/v2ray", "reg.example/v2ray"),
        ("[fd00::1]:5000/x", "[fd00::1]:5000/x"),
        ("", ""),
    ],
)
def test_registry_that_people_write_as_they_like_is_one_name(registry, scope):
    assert scope_of(registry) == scope
