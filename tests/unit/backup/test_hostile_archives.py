"""Hostile archives: files that expand too much, and names of files that do not belong to a backup."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backup.conftest import Site
from tests.unit.backup.test_restore import LATER, NOW, backup_of, quiet
from tink.backup import ArchiveError, RestoreError, contents, foreign, restore
from tink.files import data_directory

Members = list[tuple[str, bytes]]
ROOM = 64 << 20


def packed(members: Members, **changed: Any) -> bytes:
    """Return a backup of these members, with a matching manifest."""
    files = [{"name": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in members]
    manifest = {
        "format": 1,
        "tinkedge": "0.1.0",
        "created": NOW.isoformat(),
        "layout": 1,
        "version": 1,
        "objects": {},
        "files": files,
        **changed,
    }
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        for name, body in [("manifest.json", json.dumps(manifest).encode()), *members]:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            file.write(info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE))
        file.write(bytes(1024))
    return out.getvalue()


async def _state(site: Site) -> bytes:
    with gzip.open(io.BytesIO(backup_of(site))) as file:
        raw = file.read()
    await site.store.close()
    return raw[raw.index(b"SQLite format 3") :][: site.directory.joinpath("state.db").stat().st_size]


def refused(content: bytes, directory: Path, **options: Any) -> str:
    with pytest.raises((RestoreError, ArchiveError)) as caught:
        restore(io.BytesIO(content), directory, now=LATER, progress=quiet, **options)
    assert not directory.exists() or not [path for path in directory.rglob("*") if path.name != "state.lock"]
    return str(caught.value)


# --- names


@pytest.mark.parametrize(
    "name",
    [
        *("state.db-wal", "state.db-journal", "state.db-shm", "state.newest", "state.lock", "state.db/x"),
        *("journey/events", "artifacts/x.blob", "checkpoint/hardware", "machine-logs/a.log", "kubeconfig.lock"),
        *("evil.sh", "Token", "TOKEN", "token/x", "pki", "pki/a/b", "osie", "bin/tinkedge", "replaced-1/token"),
        *("/etc/passwd", "../x", "osie/../../x", "osie/./x", ".bashrc", "osie/.x", "osie//x", "", "osie/x\n", "osie/é"),
    ],
)
async def test_file_that_no_data_directory_has_is_refused_by_name(site: Site, tmp_path: Path, name: str) -> None:
    state = await _state(site)
    message = refused(packed([("state.db", state), (name, b"x")]), tmp_path / "new")
    assert any(said in message for said in (repr(name), "can't be in a backup", "a file and a folder"))


@pytest.mark.parametrize(
    "names", [("token", "token"), ("osie/a", "osie/A"), ("osie/a", "osie/a/b"), ("osie/A/b", "osie/a")]
)
async def test_names_that_would_meet_in_one_place_are_refused(site, tmp_path, names) -> None:
    state = await _state(site)
    message = refused(packed([("state.db", state), *((name, b"x") for name in names)]), tmp_path / "new")
    assert "twice" in message or "a file and a folder" in message


async def test_file_of_the_operators_own_comes_along_when_it_is_named(site: Site, tmp_path: Path) -> None:
    site.add_keys()
    (site.directory / "notes.txt").write_text("mine")
    (site.directory / "scripts").mkdir()
    (site.directory / "scripts/a.sh").write_text("mine")
    assert foreign(site.directory) == ["notes.txt", "scripts"]

    plain, own = backup_of(site), backup_of(site, also=("notes.txt", "scripts"))
    await site.store.close()
    assert "notes.txt" not in restore(io.BytesIO(plain), tmp_path / "a", now=LATER, progress=quiet).files
    assert "--also notes.txt takes" in refused(own, tmp_path / "b")
    assert "'scripts/a.sh'" in refused(own, tmp_path / "b", also=("notes.txt",))
    made = restore(io.BytesIO(own), tmp_path / "c", now=LATER, progress=quiet, also=("notes.txt", "scripts"))
    assert {"notes.txt", "scripts/a.sh"} <= set(made.files)


async def test_nothing_that_tinkedge_has_is_called_foreign_and_also_brings_no_log_of_the_state(site, tmp_path) -> None:
    for name in data_directory.KNOWN:
        assert contents.is_kept(name) or contents.is_state(name) or not contents.unknown(_inside(name)), name
    state = await _state(site)
    message = refused(packed([("state.db", state), ("state.db-wal", b"x")]), tmp_path / "new", also=("state.db-wal",))
    assert "'state.db-wal'" in message


def _inside(name: str) -> str:
    return f"{name}/x" if name in ("pki", "ipxe", "manifests") else name


async def test_restore_writes_past_no_link_and_leaves_all_as_it_was(site: Site, tmp_path: Path) -> None:
    site.add_keys()
    content = backup_of(site, osie=True)
    await site.store.close()
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(site.directory / "osie")
    (site.directory / "osie").symlink_to(outside)
    before = sorted(path.name for path in site.directory.iterdir())
    with pytest.raises(RestoreError, match="is a link"):
        restore(io.BytesIO(content), site.directory, now=LATER, progress=quiet, force=True)
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in site.directory.iterdir()) == before
    (site.directory / "osie").unlink()
    (site.directory / "osie").write_bytes(b"a file")
    with pytest.raises(RestoreError, match="in the way"):
        restore(io.BytesIO(content), site.directory, now=LATER, progress=quiet, force=True)


# --- room


class Disk:
    """A disk with `free` bytes; each query reduces the room by `takes` bytes."""

    def __init__(self, free: int, takes: int = 0) -> None:
        self.free, self.takes = free, takes

    def usage(self, _: Path) -> Any:
        self.free -= self.takes
        return type("Usage", (), {"free": self.free})()


async def test_archive_that_grows_beyond_the_disk_is_refused_before_it_is_unpacked(site, tmp_path, monkeypatch) -> None:
    state = await _state(site)
    content = packed([("state.db", state), ("files/zeros", bytes(200 << 20))])
    assert len(content) < 2 << 20
    monkeypatch.setattr(shutil, "disk_usage", Disk(200 << 20).usage)
    seen: list[str] = []
    with pytest.raises(RestoreError, match=r"277 MB are needed there to restore, and 210 MB are free"):
        restore(io.BytesIO(content), tmp_path / "new", now=LATER, progress=lambda *at: seen.append(str(at)))
    assert seen == []
    assert not (tmp_path / "new").exists()


async def test_room_that_others_take_meanwhile_ends_it(site, tmp_path, monkeypatch) -> None:
    state = await _state(site)
    content = packed([("state.db", state), ("files/zeros", bytes(30 << 20))])
    monkeypatch.setattr(shutil, "disk_usage", Disk(ROOM + (50 << 20), 4 << 20).usage)
    assert "are needed there" in refused(content, tmp_path / "new")


async def test_sizes_that_differ_from_the_manifest_end_it(site: Site, tmp_path: Path) -> None:
    state = await _state(site)
    for size in (0, 10, 1 << 40, 1 << 63, -1):
        lie = [
            {"name": "state.db", "size": len(state), "sha256": hashlib.sha256(state).hexdigest()},
            {"name": "files/zeros", "size": size, "sha256": "0" * 64},
        ]
        refused(packed([("state.db", state), ("files/zeros", bytes(3 << 20))], files=lie), tmp_path / "new")
