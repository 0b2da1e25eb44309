"""file:// URLs lead to regular files below the root and to nothing else, even if files are moved at the same time."""

import asyncio
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edge.artifacts import checksum as checksum_module
from edge.artifacts.artifact import (
    ArtifactError,
    BadUrlError,
    ChecksumError,
    NotFoundError,
    Source,
    StorageError,
    open_file,
)
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.checksum import FileSums
from tests.support.virtual_time import turns
from tests.unit.artifacts.conftest import fetch
from tests.unit.artifacts.test_checksum import HEX


@pytest.fixture
def root(tmp_path):
    """The root, beside secrets."""
    root = tmp_path / "osie"
    (root / "lab").mkdir(parents=True)
    (root / "lab" / "kernel").write_bytes(b"bzImage")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "kernel").write_bytes(b"what only root may read")
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
def test_no_name_leads_outside_or_to_anything_but_a_file(root, name, make):
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
    realpath = os.path.realpath

    def then_swap(path):
        found = realpath(path)
        if found.endswith("lab/kernel"):
            (root / "lab").rename(root / "moved")
            (root / "lab").symlink_to("../secrets")
        return found

    monkeypatch.setattr(os.path, "realpath", then_swap)
    with pytest.raises(BadUrlError, match="--osie-dir"):
        open_file(f"file://{root}/lab/kernel", root)


def test_device_is_not_even_opened(root, monkeypatch):
    """To open a tape rewinds it; to open a watchdog starts it."""
    os.mknod(root / "watchdog", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    opened, real = [], os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *more, **how: opened.append(flags & os.O_PATH) or real(path, flags, *more, **how),
    )
    with pytest.raises(BadUrlError, match="not a regular file"):
        open_file(f"file://{root}/watchdog", root)
    assert opened == [os.O_PATH]


# --- through the cache ---


async def test_local_file_is_served_without_a_copy_and_other_kinds_are_rejected_by_name(cache, tmp_path, files):
    (tmp_path / "a kernel").write_bytes(b"bzImage")
    assert await fetch(cache, (tmp_path / "a kernel").as_uri()) == (Source.FILE, b"bzImage")
    assert files() == []
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("/etc/passwd")
    for url, kind, reason in (
        ((tmp_path / "missing").as_uri(), NotFoundError, "no such file on the edge's machine"),
        ((tmp_path / "fifo").as_uri(), BadUrlError, "not a regular file"),
        ((tmp_path / "empty").as_uri(), BadUrlError, "an empty file"),
        ((tmp_path / "artifacts").as_uri(), BadUrlError, "not a regular file"),
        ("file:///bad%00name", StorageError, None),
        ("file:///etc/passwd", BadUrlError, "--osie-dir"),
        ((tmp_path / "link").as_uri(), BadUrlError, "--osie-dir"),
        (f"{tmp_path.as_uri()}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd", BadUrlError, "--osie-dir"),
        (f"{tmp_path.as_uri()}-other/kernel", BadUrlError, "--osie-dir"),
    ):
        with pytest.raises(kind, match=reason):
            await cache.open(url)
    with pytest.raises(BadUrlError, match="--osie-dir"):
        await ArtifactCache(tmp_path / "artifacts").open((tmp_path / "a kernel").as_uri())


# --- their checksums ---


async def test_local_file_is_hashed_once_however_many_ask_and_again_when_it_changes(cache, tmp_path, hashed):
    path = tmp_path / "kernel"
    path.write_bytes(b"kernel")
    results = await asyncio.gather(*(fetch(cache, path.as_uri(), HEX) for _ in range(20)))
    assert (results, hashed) == ([(Source.FILE, b"kernel")] * 20, [6])
    path.write_bytes(b"other!")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChecksumError, match="the OSIE says"):
        await cache.open(path.as_uri(), sha256=HEX)
    assert hashed == [6, 6]


async def test_descriptor_of_a_file_that_is_being_hashed_outlives_the_machine_that_left(tmp_path):
    (tmp_path / "kernel").write_bytes(b"kernel")
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        sums = FileSums(pool)
        pool.submit(go_on.wait)
        fd = os.open(tmp_path / "kernel", os.O_RDONLY)
        asking = asyncio.create_task(sums.of("k", fd, 6))
        await turns(5)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        os.close(fd)
        go_on.set()
        await sums.stop()
        assert await sums.of("k", -1, 6) == HEX


async def test_memory_of_checksums_is_bounded(monkeypatch):
    monkeypatch.setattr(checksum_module, "MAX_CACHED", 3)
    with ThreadPoolExecutor(1) as pool:
        sums = FileSums(pool)
        for number in range(10):
            sums.learn(number, HEX)
        assert [await sums.of(number, -1, 0) for number in (7, 8, 9)] == [HEX] * 3
        with pytest.raises(OSError, match="Bad file descriptor"):  # would have to be hashed
            await sums.of(6, -1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
@pytest.mark.parametrize("shut", ["", "lab", "lab/kernel"])
def test_file_that_this_user_can_not_read_is_named_with_the_command(root, shut):
    for each in root.parents:
        each.chmod(each.stat().st_mode | 0o055)
    (root / shut).chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(StorageError) as caught:
            open_file(f"file://{root}/lab/kernel", root)
    finally:
        os.seteuid(0)
    path = root / shut
    assert f"user nobody can't read {path}: as root: 'chown -R nobody: {root}'" in str(caught.value)


async def test_failures_of_urls_that_no_upstream_is_asked_for_are_counted_by_kind(cache, tmp_path):
    (tmp_path / "kernel").write_bytes(b"bzImage")
    for url, sha256, error in (
        ((tmp_path / "missing").as_uri(), "", NotFoundError),
        ("file:///etc/passwd", "", BadUrlError),
        ("gopher://example.org/kernel", "", BadUrlError),
        ((tmp_path / "kernel").as_uri(), "0" * 64, ChecksumError),
        ((tmp_path / "kernel").as_uri(), "no checksum", ChecksumError),
    ):
        with pytest.raises(error):
            await cache.open(url, sha256=sha256)
    assert cache.counts.failures == {"not found": 1, "url": 2, "checksum": 2}
