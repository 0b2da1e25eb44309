"""The volumes of an action, as all runtimes read them."""

import pytest

from tink.agent.model import ActionError
from tink.agent.runtimes.volume import Volume, parse_volume, parse_volumes


def test_volume_with_several_options():
    assert parse_volume("/a:/b:ro,rslave") == Volume("/a", "/b", ("ro", "rslave"), named=False)


@pytest.mark.parametrize(
    "text",
    [
        "/a", "", "/a:b", "/a:/", "/a:/.", "/a:/b/../..", "/a:/b:rw:x", "/a:/b:exec", ":/b", "../x:/b", "a/b:/c",
        "..:/c", "-x:/c", "/a:/b:ro,rw", "/a:/b:rw,ro", "/a:/b:ro,ro", "/a:/b:rshared,rslave", "name:/b:rshared",
    ],
)  # fmt: skip
def test_bad_volume_is_named(text):
    with pytest.raises(ActionError, match="volumes") as caught:
        parse_volume(text)
    assert repr(text) in str(caught.value)


def test_what_is_mounted_twice_at_one_place_is_an_error_that_names_both():
    with pytest.raises(ActionError, match="'/x:/m'") as caught:
        parse_volumes(["/x:/m", "/other:/o", "/y://m/"])
    assert "'/y://m/'" in str(caught.value)


def test_volume_inside_of_another_comes_after_it():
    assert [volume.target for volume in parse_volumes(["/c:/a/b/c", "x:/z", "/a:/a/"])] == ["/z", "/a", "/a/b/c"]


@pytest.mark.parametrize(
    ("text", "written"), [("/a:/b/:", "/a:/b"), ("/a:/b:ro,", "/a:/b:ro"), ("n:/b:rw", "n:/b:rw"), ("/a:/b", "/a:/b")]
)
def test_volume_is_written_without_what_an_engine_would_stumble_over(text, written):
    assert str(parse_volume(text)) == written


@pytest.mark.parametrize(
    "source",
    [
        "/var/run/docker.sock", "/run/containerd/containerd.sock", "/etc/resolv.conf", "/etc/hosts", "/etc/app.yaml",
        "/dev/sdz", "/proc/cmdline", "/keys/id.pub", "/x/Disk.IMG",
    ],
)  # fmt: skip
def test_source_that_names_a_socket_a_file_or_a_device_is_never_made(source):
    assert parse_volume(f"{source}:/x").must_exist


@pytest.mark.parametrize(
    "source", ["/worker", "/etc/conf.d", "/var/lib/v1.2", "/data/app.sock.d", "/etc", "cache.sock"]
)
def test_source_that_may_be_a_directory_is_made(source):
    assert not parse_volume(f"{source}:/x").must_exist
