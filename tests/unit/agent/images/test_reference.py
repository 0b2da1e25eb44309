"""Names of images, as Docker reads them."""

import pytest

from tink.agent.images.reference import Reference, parse
from tink.agent.model import ActionError

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("busybox", Reference("docker.io", "library/busybox", "latest")),
        ("busybox:1.36", Reference("docker.io", "library/busybox", "1.36")),
        ("acme/tool", Reference("docker.io", "acme/tool", "latest")),
        ("docker.io/busybox", Reference("docker.io", "library/busybox", "latest")),
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
def test_reference(image, reference):
    assert parse(image) == reference


def test_digest_wins_over_the_tag():
    assert parse(f"reg.example/x:1@{DIGEST}").version == DIGEST
    assert parse("reg.example/x:1").version == "1"


@pytest.mark.parametrize(
    "image",
    [
        "",
        "Upper",
        "a//b",
        "reg.example/",
        "reg.example/../etc",
        "x:",
        "x:a b",
        "x@sha256:abc",
        "x@md5:" + "a" * 32,
        "http://reg.example/x",
        "reg.example:port/x",
        "reg.example/x\nHost: evil",
        "x" * 300,
    ],
)
def test_bad_name_fails_the_action_with_the_name(image):
    with pytest.raises(ActionError, match="image ") as caught:
        parse(image)
    assert caught.value.reason == "ImagePullFailed"
    assert repr(image) in str(caught.value)
