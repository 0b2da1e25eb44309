"""file:// URLs lead to plain files below the root and to nothing else, also while somebody moves things about."""

import os
import stat
from pathlib import Path

import pytest

from edge.artifacts import ArtifactError, BadUrlError
from edge.artifacts.local import open_file

SECRET = b"what only root may read"


@pytest.fixture
def root(tmp_path):
    """The root; beside it there is what nobody may have."""
    root = tmp_path / "osie"
    (root / "lab").mkdir(parents=True)
    (root / "lab" / "kernel").write_bytes(b"bzImage")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "kernel").write_bytes(SECRET)
    return root


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("link", lambda path: path.symlink_to("../secrets/kernel")),
        ("link", lambda path: path.symlink_to("/proc/self/environ")),
        ("link", lambda path: path.symlink_to("/proc/self/root/etc/passwd")),
        ("link", lambda path: path.symlink_to("/dev/zero")),
        ("links", lambda path: path.symlink_to("links")),
        ("there/kernel", lambda path: path.parent.symlink_to("../secrets")),
        ("lab/../../secrets/kernel", None),
        ("lab/%2e%2e/..%2fsecrets/kernel", None),
        ("%2e%2e%2fsecrets%2fkernel", None),
        ("fifo", os.mkfifo),
        ("lab", None),
        ("", None),
        ("lab%00kernel", None),
        ("zero", lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))),
    ],
)
def test_no_name_leads_out_or_to_what_is_no_file(root, name, make):
    if make is not None:
        make(root / name)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ArtifactError):
        open_file(f"file://{root}/{name}", root).close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # what other tests left may be collected meanwhile


def test_link_within_the_root_is_followed(root):
    (root / "current").symlink_to("lab")
    with open_file(f"file://{root}/current/kernel", root) as artifact:
        assert os.pread(artifact.fd, 100, 0) == b"bzImage"


def test_directory_that_becomes_a_link_after_the_check_leads_nowhere(root, monkeypatch):
    def then_swap(path):
        found = realpath(path)
        if found.endswith("lab/kernel"):
            (root / "lab").rename(root / "moved")
            (root / "lab").symlink_to("../secrets")
        return found

    realpath = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", then_swap)
    with pytest.raises(BadUrlError, match="--osie-dir"):
        open_file(f"file://{root}/lab/kernel", root)


def test_device_is_not_even_opened(root, monkeypatch):
    """To open a tape rewinds it; to open a watchdog starts it."""
    os.mknod(root / "watchdog", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    opened = []

    def watched(path, flags, *args, **more):
        opened.append(flags & os.O_PATH)
        return real(path, flags, *args, **more)

    real = os.open
    monkeypatch.setattr(os, "open", watched)
    with pytest.raises(BadUrlError, match="not a regular file"):
        open_file(f"file://{root}/watchdog", root)
    assert opened == [os.O_PATH]
