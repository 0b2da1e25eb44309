"""Images: their names, what registries answer seldom, and layers, what they bring and what they may not do."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import struct
import tarfile
from pathlib import Path

import pytest

from tink.agent.images import store
from tink.agent.images.registry import AbortedError, Registries, Session, parse, retry_backoff
from tink.agent.images.store import (
    ImageBudget,
    OutOfSpaceError,
    UnpackError,
    _blob,
    apply_layer,
    available_memory,
    file_system_of,
)
from tink.agent.model import ActionError
from tink.registry.manifests import json_object
from tink.registry.names import RegistryError


def test_bad_name_fails_the_action_with_the_name():
    with pytest.raises(ActionError, match="image 'a//b': ") as caught:
        parse("a//b")
    assert caught.value.reason == "ImagePullFailed"


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0", b'""'])
def test_document_of_very_many_values_is_not_read(value):
    """4 MiB of empty lists are 100 MB in memory."""
    content = b'{"layers":[' + value + (b"," + value) * 1_000_000 + b"]}"
    with pytest.raises(RegistryError, match="its manifest has more than 100000 values"):
        json_object(content, "its manifest")


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
    return Session(parse("127.0.0.1:1/x:1"), Registries(), pauses.append)


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


# --- layers -----------------------------------------------------------------------------------------------------------


ROOMY = 1 << 30


class Layer:
    """Builds an archive entry by entry."""

    def __init__(self):
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name, kind=tarfile.REGTYPE, content=b"", link="", mode=0o644, **fields):
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.mode, member.size = kind, link, mode, len(content)
        for field, value in fields.items():
            setattr(member, field, value)
        self._tar.addfile(member, io.BytesIO(content))
        return self

    def dir(self, name, mode=0o755):
        return self.add(name, tarfile.DIRTYPE, mode=mode)

    def symlink(self, name, target):
        return self.add(name, tarfile.SYMTYPE, link=target)

    def hardlink(self, name, target):
        return self.add(name, tarfile.LNKTYPE, link=target)

    @property
    def bytes(self):
        self._tar.close()
        return self._buffer.getvalue()


@pytest.fixture
def place(tmp_path):
    """A root to unpack to, with a file beside it that must not be touched."""
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").write_text("untouched")
    before = tree(tmp_path / "outside")
    yield tmp_path
    assert tree(tmp_path / "outside") == before


def tree(directory):
    return sorted(
        (str(path), path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in directory.rglob("*")
    )


def unpack(place, *layers, budget=None):
    for layer in layers:
        archive = place / "layer"
        archive.write_bytes(layer if isinstance(layer, bytes) else layer.bytes)
        apply_layer(place / "root", archive, budget or ImageBudget(ROOMY))
    return place / "root"


def test_files_links_modes_and_owners_arrive(place):
    layer = Layer().dir("bin", 0o750).add("bin/sh", content=b"shell", mode=0o4755, uid=7, gid=8, mtime=1000)
    layer.symlink("bin/ash", "sh").hardlink("bin/dash", "bin/sh").add("./etc/deep/conf", content=b"x")
    layer.add("dev-null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666).add("fifo", tarfile.FIFOTYPE)
    root = unpack(place, layer)
    status = (root / "bin/sh").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_mtime) == (0o4755, 7, 8, 1000)
    assert (root / "bin").stat().st_mode & 0o777 == 0o750
    assert (root / "bin/ash").readlink() == Path("sh")
    assert (root / "bin/dash").samefile(root / "bin/sh")
    assert (root / "etc/deep/conf").read_bytes() == b"x"
    assert (root / "dev-null").stat().st_rdev == os.makedev(1, 3)
    assert (root / "fifo").is_fifo()


@pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress], ids=["plain", "gzip"])
def test_compression_is_recognized(place, pack):
    root = unpack(place, pack(Layer().add("file", content=b"x" * 300_000).bytes))
    assert (root / "file").stat().st_size == 300_000


def test_zstd_without_the_program_names_the_remedy(place, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnpackError, match="gzip"):
        unpack(place, b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(UnpackError, match="compressed with zstd"):  # which may begin with a skippable frame
        unpack(place, b"\x5e\x2a\x4d\x18" + bytes(100))


def test_file_capability_arrives_and_what_overlayfs_would_believe_does_not(place):
    if os.geteuid() != 0:
        pytest.skip("giving a file capabilities needs root")
    reported = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)  # setcap cap_net_raw+ep
    headers = {
        "SCHILY.xattr.security.capability": reported.decode("utf-8", "surrogateescape"),
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.user.more": "x",
    }
    root = unpack(place, Layer().add("ping", content=b"x", uid=12, pax_headers=headers))
    assert os.listxattr(root / "ping") == ["security.capability"]
    assert os.getxattr(root / "ping", "security.capability") == reported


@pytest.mark.parametrize(
    "layer",
    {
        "dotdot": lambda: Layer().add("../outside/victim", content=b"pwned"),
        "dotdot in the middle": lambda: Layer().dir("a").add("a/../../outside/victim", content=b"pwned"),
        "dotdot as a directory": lambda: Layer().dir("../outside/new"),
        "whiteout of dotdot": lambda: Layer().add(".wh..."),
        "whiteout of dot": lambda: Layer().add("a/.wh.."),
        "whiteout of nothing": lambda: Layer().add(".wh."),
        "hard link outside": lambda: Layer().hardlink("link", "../outside/victim"),
        "hard link to an absolute path": lambda: Layer().hardlink("link", "/etc/hostname-of-nothing"),
        "hard link to nothing": lambda: Layer().hardlink("link", "/"),
        "circle of links": lambda: Layer().symlink("a", "b").symlink("b", "a").add("a/file", content=b"x"),
        "too deep": lambda: Layer().add("d/" * 1500 + "file"),
        "file as a directory": lambda: Layer().add("a", content=b"x").add("a/b", content=b"x"),
        "name too long": lambda: Layer().add("n" * 5000),
        "unknown type": lambda: Layer().add("a", b"Z"),
        "huge owner": lambda: Layer().add("a", uid=1 << 60),
        "absurd time": lambda: Layer().add("a", pax_headers={"mtime": "1e400"}),
    }.items(),
    ids=lambda item: item[0],
)
def test_hostile_entry_is_refused(place, layer):
    with pytest.raises(UnpackError):
        unpack(place, layer[1]())


def test_symlink_leads_to_the_images_root_and_not_to_the_machines(place):
    outside, victim = place / "outside", place / "outside" / "victim"
    links = Layer().symlink("out", str(outside)).symlink("up", "../../../../..").symlink("a", str(victim))
    links.symlink("b", str(outside)).hardlink("c", "a").symlink("d", str(outside))
    upper = Layer().add("out/victim", content=b"inside").add("up/file", content=b"inside")
    upper.add("a", content=b"mine").dir("b", 0o700)  # replace the links
    root = unpack(place, links, upper.add("d/.wh.victim").add("d/.wh..wh..opq"))
    assert (root / "file").read_bytes() == b"inside"
    assert (root / "a").read_bytes() == b"mine"
    assert [(root / name).is_symlink() for name in "abcd"] == [False, False, True, True]
    assert victim.stat().st_nlink == 1
    assert (root / str(outside)[1:] / "victim").read_bytes() == b"inside", "whiteouts are for the layers below"


def test_whiteout_removes_what_lower_layers_brought(place):
    lower = (
        Layer().add("keep", content=b"k").add("gone", content=b"g").add("dir/a", content=b"a").symlink("link", "keep")
    )
    root = unpack(place, lower, Layer().add(".wh.gone").add(".wh.dir").add(".wh.link").add(".wh.never-there"))
    assert sorted(path.name for path in root.iterdir()) == ["keep"]


@pytest.mark.parametrize("order", ["marker first", "marker last"])
def test_opaque_directory_shows_only_its_own_layer(place, order):
    lower = Layer().add("dir/old", content=b"o").add("dir/sub/old", content=b"o").add("beside", content=b"b")
    upper, names = Layer(), ["dir/new", "dir/sub/new"]
    names.insert(0 if order == "marker first" else 2, "dir/.wh..wh..opq")
    for name in names:
        upper.add(name)
    root = unpack(place, lower, upper)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert found == {"beside", "dir/new", "dir/sub/new"}


def test_upper_layer_replaces_files_by_directories_and_back(place):
    root = unpack(
        place, Layer().add("a", content=b"x").add("b/c", content=b"x"), Layer().dir("a").add("b", content=b"y")
    )
    assert (root / "a").is_dir()
    assert (root / "b").read_bytes() == b"y"


def test_archive_without_its_last_zeros_is_taken(place):
    # `umoci insert` of Debian 12 ends its layers with the last byte of the last file.
    raw = Layer().add("file", content=b"abc").bytes
    root = unpack(place, raw[: 512 + 3])
    assert (root / "file").read_bytes() == b"abc"


def extended_header(kind, size, content=b""):
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    return header.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def of_negative_size():
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 11 + b"\x00"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(2048)


def global_headers():
    """Each is short enough for its entry, and applies to all later entries."""
    raw = b""
    for number in range(30):
        records = b"".join(b"10 k%d=v\n" % key for key in range(10 * number + 100, 10 * number + 110))
        raw += extended_header(tarfile.XGLTYPE, len(records), records)
        raw += tarfile.TarInfo(f"file{number}").tobuf(tarfile.GNU_FORMAT)
    return raw + bytes(1024)


PACKED = gzip.compress(Layer().add("file", content=random.Random(1).randbytes(500_000)).bytes, mtime=0)
HALF = len(PACKED) // 2
PLAIN = Layer().add("file", content=b"x" * 2000).bytes


@pytest.mark.parametrize(
    ("raw", "match"),
    {
        "empty": (b"", None),
        "no gzip": (b"\x1f\x8bnot gzip", None),
        "text": (b"no archive at all" * 100, None),
        "gzip of text": (gzip.compress(b"x" * 2000, mtime=0), None),
        "gzip cut off": (PACKED[:HALF], None),
        "gzip damaged": (PACKED[:HALF] + bytes(HALF), None),
        "cut off": (PLAIN[: 512 + 100], "ends early"),
        "cut off at a block": (PLAIN[: 512 + 700], "ends early"),
        # These would fill the memory, or never end.
        "header of gigabytes": (extended_header(tarfile.XHDTYPE, 4 << 30) + bytes(4096), "headers"),
        "chain of headers": (extended_header(tarfile.XGLTYPE, 512, b"9 a=bcde\n".ljust(512, b"\0")) * 3000, None),
        "global headers": (global_headers(), "64 global headers"),
        "negative size": (of_negative_size(), None),
    }.values(),
)
def test_what_is_no_archive_is_refused(place, raw, match):
    with pytest.raises(UnpackError, match=match):
        unpack(place, raw)


def test_unpacking_can_be_stopped(place):
    class StoppedError(Exception):
        pass

    def stopped():
        raise StoppedError

    (place / "layer").write_bytes(PLAIN)
    with pytest.raises(StoppedError):
        apply_layer(place / "root", place / "layer", ImageBudget(ROOMY), stopped)


def many(count, kind=tarfile.REGTYPE, content=b"", name="file{}"):
    layer = Layer()
    for number in range(count):
        layer.add(name.format(number), kind, content=content)
    return layer


def implied_directories():
    return many(4, name="d{}/a/b/c/d/e/f/g/h/i/j/file")


def of_nothing(kind):
    return Layer().add(".wh.nothing", kind, content=bytes(5_000_000)).add("file", content=b"x")


@pytest.mark.parametrize(
    ("layer", "budget", "error", "match"),
    [
        (lambda: Layer().add("bomb", content=bytes(5_000_000)), ImageBudget(1_000_000), OutOfSpaceError, None),
        (lambda: many(20), ImageBudget(ROOMY, entries=10), UnpackError, "files"),
        # Half a million names would make a hundred million directories, each in the memory of the machine.
        (implied_directories, ImageBudget(ROOMY, entries=30), UnpackError, "files"),
        # The OSIE's file system is in memory: a file of one byte takes a page, and each entry takes an inode.
        (lambda: many(500, content=b"x"), ImageBudget(400_000), OutOfSpaceError, None),
        (lambda: many(500, tarfile.DIRTYPE), ImageBudget(400_000), OutOfSpaceError, None),
        (lambda: many(500, tarfile.FIFOTYPE), ImageBudget(400_000), OutOfSpaceError, None),
        # Half a million names of 4,000 characters are some megabytes of a compressed layer, and 2 GB of memory.
        (
            lambda: many(40, name="/".join(["d" * 250] * 14) + "/{}"),
            ImageBudget(ROOMY, names=100_000),
            UnpackError,
            "names",
        ),
        # What leaves nothing is read over: of a layer of a megabyte, a gigabyte of zeros.
        (lambda: of_nothing(tarfile.REGTYPE), ImageBudget(1_000_000), OutOfSpaceError, None),
        (lambda: of_nothing(b"Z"), ImageBudget(1_000_000), OutOfSpaceError, None),
    ],
    ids=["bomb", "files", "implied-directories", "pages", "inodes", "fifos", "names", "read-over", "unknown-type"],
)
def test_layer_stops_at_its_budget(place, layer, budget, error, match):
    entries = budget.entries
    with pytest.raises(error, match=match):
        unpack(place, gzip.compress(layer().bytes), budget=budget)
    left = [*(place / "root").rglob("*")]
    assert len(left) <= min(entries, 400)
    assert sum(path.stat().st_size for path in left if path.is_file()) < 1_000


def test_global_header_of_git_archive_is_taken(place):
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "c" * 40}
    ) as archive:
        archive.addfile(tarfile.TarInfo("file"))
    assert (unpack(place, buffer.getvalue()) / "file").exists()


def test_opaque_directories_again_and_again_end(place):
    """Each looks at all that is in its directory: a million million steps for a layer of some megabytes."""
    layer = many(30, name="d/file{}")
    for _ in range(30):
        layer.add("d/.wh..wh..opq")
    unpack(place, layer)
    with pytest.raises(UnpackError, match="whiteouts"):
        unpack(place, layer, budget=ImageBudget(ROOMY, hidden=500))
