"""Names of images, what registries answer seldom, and the room that an image has."""

from __future__ import annotations

import pytest

from tink.agent.images import reference, store
from tink.agent.images.reference import Reference, parse
from tink.agent.images.registry import (
    AbortedError,
    Registries,
    RegistryError,
    Session,
    json_object,
    retry_backoff,
)
from tink.agent.images.store import _blob, available_memory, file_system_of
from tink.agent.model import ActionError, AgentError

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


BAD = ["", "x:a b", "reg.example/x\nHost: evil", "x" * 300, "x@md5:" + "a" * 32]
BAD += ["Upper", "a//b", "reg.example/", "reg.example/../etc", "x:", "x@sha256:abc"]
BAD += ["http://reg.example/x", "reg.example:port/x"]


@pytest.mark.parametrize("image", BAD)
def test_bad_name_fails_the_action_with_the_name(image):
    with pytest.raises(ActionError, match="image ") as caught:
        parse(image)
    assert caught.value.reason == "ImagePullFailed"
    assert repr(image) in str(caught.value)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0", b'""'])
def test_document_of_very_many_values_is_not_read(value):
    """4 MiB of empty lists are 100 MB in memory."""
    content = b'{"layers":[' + value + (b"," + value) * 1_000_000 + b"]}"
    with pytest.raises(RegistryError, match="its manifest has more than 100000 values"):
        json_object(content, "manifest")


@pytest.mark.parametrize(
    "descriptor",
    [
        {"digest": "sha256:" + "0" * 64, "size": -1},
        {"digest": "sha256:" + "0" * 64, "size": "1"},
        {"digest": "sha256:" + "0" * 64},
        {"digest": "sha256:../../../etc", "size": 1},
        {"digest": "md5:" + "0" * 32, "size": 1},
        {"digest": 7, "size": 1},
        [],
        None,
    ],
)
def test_what_a_manifest_names_without_digest_and_size_is_not_fetched(descriptor):
    with pytest.raises(RegistryError, match="without a sha256 or sha512 digest and a size"):
        _blob(descriptor)


def session(pauses: list[float]) -> Session:
    return Session(reference.parse("127.0.0.1:1/x:1"), Registries(), pauses.append)


def test_registry_in_trouble_is_left_alone_for_longer_each_time():
    pauses = []
    asking, backoff = session(pauses), retry_backoff()
    for _ in range(4):
        asking.retry_pause(backoff)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    asking.retry_pause(backoff, 30.0)
    asking.retry_pause(backoff, 1.0)
    assert pauses[4:] == [30.0, 8.0], "longer if the registry says so, never shorter"
    asking.abort()
    with pytest.raises(AbortedError):
        asking.retry_pause(backoff)


@pytest.mark.parametrize("realm", ["http://127.0.0.1:1/token", "http://127.0.0.1:1/token?account=me"])
def test_token_service_is_asked_at_its_own_address_whatever_stands_in_it(realm, monkeypatch):
    asked = []

    def get(url, _):
        asked.append(url)
        raise AgentError("asked")

    asking = session([])
    monkeypatch.setattr(asking, "_get", get)
    with pytest.raises(AgentError, match="asked"):
        asking._authorize(f'Bearer realm="{realm}"')
    assert asked[0].startswith(realm)
    assert asked[0].count("?") == 1
    assert asked[0][len(realm)] == ("&" if "?" in realm else "?")


MOUNTINFO = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /run rw,nosuid - tmpfs tmpfs rw,size=400k
31 22 0:2 / /x rw - rootfs none rw
"""


def test_file_system_is_found_by_its_device():
    assert file_system_of(26, MOUNTINFO) == "tmpfs"
    assert file_system_of((254 << 8) | 1, MOUNTINFO) == "ext4"
    assert file_system_of(2, MOUNTINFO) == "rootfs"
    assert file_system_of(99, MOUNTINFO) == file_system_of(99, "nonsense\n\n") == ""


def test_memory_that_is_left_is_read_in_bytes():
    assert available_memory("MemTotal: 900 kB\nMemAvailable:     512 kB\n") == 512 * 1024
    assert available_memory("") == 1 << 30


def test_tmpfs_that_is_larger_than_the_memory_has_only_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "available_memory", lambda meminfo: 20 * 1024 * 1024)
    monkeypatch.setattr(store, "file_system_of", lambda device, mountinfo: "ext4")
    assert store._room(tmp_path) > 20 * 1024 * 1024
    for kind in ("tmpfs", "ramfs", "rootfs"):
        monkeypatch.setattr(store, "file_system_of", lambda device, mountinfo, kind=kind: kind)
        assert store._room(tmp_path) == 4 * 1024 * 1024, "without the reserve for everything else"
