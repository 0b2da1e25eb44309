"""What a backup has, what a restore makes of it, and what it refuses."""

from __future__ import annotations

import gzip
import io
import os
import sqlite3
import stat
import zlib
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backup.conftest import WORKFLOWS, Site
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.apiserver import ApiServerError
from tink.apiserver.store import ExpiredError
from tink.backup import ArchiveError, BackupError, RestoreError, create, restore, salvage

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def quiet(*_: Any) -> None:
    pass


def backup_of(site: Site, **options: Any) -> bytes:
    out = io.BytesIO()
    create(site.directory, lambda: out, release="0.1.0", now=NOW, progress=quiet, **options)
    return out.getvalue()


def restored(content: bytes, directory: Path, **options: Any) -> Any:
    return restore(io.BytesIO(content), directory, now=LATER, progress=quiet, **options)


async def opened(directory: Path) -> Site:
    site = Site(directory)
    await site.store.open()
    return site


async def test_running_state_comes_back_with_its_keys_and_without_its_caches(site: Site, tmp_path: Path) -> None:
    site.add_keys()
    for number in range(50):
        await site.put("tinkerbell.org/hardware", f"h{number}", spec={"number": number})
    content = backup_of(site)
    await site.put("tinkerbell.org/hardware", "h0", spec={"number": "later"})
    made = restored(content, tmp_path / "new")
    assert made.objects == {"/namespaces": 1, "tinkerbell.org/hardware": 50}
    assert made.files == ["admin-token", "pki/ca.crt", "pki/ca.key", "state.db", "token", "users.json"]
    other = await opened(tmp_path / "new")
    assert (await other.get("tinkerbell.org/hardware", "h0"))["spec"] == {"number": 0}
    assert (tmp_path / "new" / "pki" / "ca.key").read_text() == "secret pki/ca.key\n"
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "new").rglob("*")}
    assert modes == {0}
    await other.store.close()
    await site.store.close()
    assert not list(site.directory.glob(".backup.*"))


async def test_osie_files_come_on_request(site: Site, tmp_path: Path) -> None:
    site.add_keys()
    restored(backup_of(site, osie=True), tmp_path / "new")
    assert (tmp_path / "new" / "osie" / "kernel").read_bytes() == b"k" * 3000
    await site.store.close()


async def test_images_and_files_for_machines_come_on_request_and_stay_where_they_are(site, tmp_path) -> None:
    site.add_keys()
    for name in ("images/blobs", "files"):
        (site.directory / name).mkdir(parents=True)
        (site.directory / name / "large").write_bytes(b"l")
    assert not [name for name in restored(backup_of(site), tmp_path / "new").files if "large" in name]
    content = backup_of(site, files=True)
    await site.store.close()
    made = restored(content, site.directory, force=True)
    assert {name for name in made.files if "large" in name} == {"images/blobs/large", "files/large"}
    assert made.aside is not None
    assert not {"images", "files"} & {path.name for path in made.aside.iterdir()}


async def test_osie_in_a_directory_of_its_own_is_brought_back_beside_what_is_there(site: Site) -> None:
    """As `tinkedge bundle load` puts them: osie/NAME/kernel."""
    site.add_keys()
    (site.directory / "osie/lab").mkdir()
    (site.directory / "osie/lab/kernel").write_bytes(b"of the backup")
    content = backup_of(site, osie=True)
    (site.directory / "osie/lab/kernel").write_bytes(b"of later")
    (site.directory / "osie/lab/initrd").write_bytes(b"of later")
    await site.store.close()
    restored(content, site.directory, force=True)
    assert (site.directory / "osie/lab/kernel").read_bytes() == b"of the backup"
    assert (site.directory / "osie/lab/initrd").read_bytes() == b"of later"
    assert (site.directory / "state.db").exists()


async def test_versions_go_on_above_all_that_were_given_out_and_watches_from_before_list_anew(site, tmp_path) -> None:
    content = backup_of(site)
    seen = 0
    for number in range(20):
        seen = await site.put("tinkerbell.org/hardware", f"h{number}")
    await site.store.close()
    first = restored(content, tmp_path / "new")
    assert first.version > seen
    other = await opened(tmp_path / "new")
    with pytest.raises(ExpiredError):
        await other.store.since("tinkerbell.org/hardware", None, seen)
    newest = await other.put("tinkerbell.org/hardware", "new")
    assert newest == first.version + 1
    await other.store.close()
    again = restored(content, tmp_path / "new", force=True)
    assert again.version > newest, "restored twice from one backup"


async def test_workflow_that_may_have_run_since_is_held_and_no_other(site: Site, tmp_path: Path) -> None:
    states = [None, "Pending", "Scheduled", "Running", "Cancelling", "Succeeded", "Failed", "Canceled"]
    for state in states:
        await site.put(WORKFLOWS, f"w-{state}".lower(), status={"state": state} if state else {})
    await site.put(WORKFLOWS, "strange", status={"state": "Later"})
    content = backup_of(site)
    made = restored(content, tmp_path / "new")
    assert {(each.name, each.state) for each in made.held} == {
        ("default/w-none", ""),
        ("default/w-pending", "Pending"),
        ("default/w-scheduled", "Scheduled"),
    }
    other = await opened(tmp_path / "new")
    for state in states:
        annotations = (await other.get(WORKFLOWS, f"w-{state}".lower()))["metadata"].get("annotations", {})
        assert (HOLD_ANNOTATION in annotations) is (state in (None, "Pending", "Scheduled")), state
    assert (
        "backup of 2026-11-23T12:00:00Z"
        in (await other.get(WORKFLOWS, "w-pending"))["metadata"]["annotations"][HOLD_ANNOTATION]
    )
    await other.store.close()
    await site.store.close()
    assert restored(content, tmp_path / "third", resume=True).held == []


async def test_what_was_left_behind_by_a_move_stays_as_it_is(site: Site, tmp_path: Path) -> None:
    key = await site.put(WORKFLOWS, "moved", status={"state": "Pending"})
    assert key
    from tink.apiserver.store import Key, Write

    version = site.store.next_version()
    body = (
        b'{"metadata":{"name":"moved","namespace":"default","uid":"m","resourceVersion":"%d","annotations":{"%s":"x"}},'
        b'"status":{"state":"Pending"}}' % (version, PAUSED_ANNOTATION.encode())
    )
    await site.store.write(Write(Key(WORKFLOWS, "default", "moved"), version, body, key))
    assert restored(backup_of(site), tmp_path / "new").held == []
    await site.store.close()


def unpacked(content: bytes) -> bytes | None:
    """What is packed in it; None if that is damaged."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return None


async def test_every_damaged_byte_is_found_and_nothing_is_left(site: Site, tmp_path: Path) -> None:
    site.add_keys()
    content = backup_of(site)
    await site.store.close()
    step, damaged = max(1, len(content) // 60), 0
    for position in [*range(0, len(content), step), len(content) - 1]:
        broken = bytearray(content)
        broken[position] ^= 0x41
        if unpacked(broken) == unpacked(content):
            continue  # gzip's time and system; or another repetition of the same bytes
        damaged += 1
        with pytest.raises((ArchiveError, RestoreError, ApiServerError)):
            restored(bytes(broken), tmp_path / "new")
        assert not (tmp_path / "new").exists()
    assert damaged > 40
    for length in (0, 10, len(content) // 2, len(content) - 4):
        with pytest.raises(ArchiveError):
            restored(content[:length], tmp_path / "new")


async def test_directory_in_use_or_with_something_in_it_is_refused(site: Site, tmp_path: Path) -> None:
    content = backup_of(site)
    with pytest.raises(ApiServerError, match="using it"):
        restored(content, site.directory, force=True)
    await site.store.close()
    before = (site.directory / "state.db").read_bytes()
    with pytest.raises(RestoreError, match="not empty"):
        restored(content, site.directory)
    assert (site.directory / "state.db").read_bytes() == before
    made = restored(content, site.directory, force=True)
    assert made.aside is not None
    assert (made.aside / "state.db").read_bytes() == before


async def test_caches_and_boot_files_stay_where_they_are(site: Site) -> None:
    site.add_keys()
    content = backup_of(site)
    await site.store.close()
    made = restored(content, site.directory, force=True)
    assert (site.directory / "osie" / "kernel").exists()
    assert (site.directory / "artifacts" / "kernel").exists()
    assert (site.directory / "checkpoint" / "kernel").exists(), "it is of this host, and soon written anew"
    assert made.aside is not None
    assert sorted(path.name for path in made.aside.iterdir() if not path.name.startswith("state")) == [
        "admin-token",
        "pki",
        "token",
        "users.json",
    ]


def test_directory_without_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"no state\.db"):
        create(tmp_path, io.BytesIO, release="1", now=NOW, progress=quiet)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_root_changes_no_owner_and_what_it_restores_is_the_services(site: Site, tmp_path: Path) -> None:
    await site.put("tinkerbell.org/hardware", "h")
    await site.store.close()
    for path in [site.directory, *site.directory.rglob("*")]:
        os.chown(path, 12345, 12346)
    wal = site.directory / "state.db-wal"
    assert not wal.exists()
    content = backup_of(site)
    assert {path.stat().st_uid for path in site.directory.rglob("*")} == {12345}
    target = tmp_path / "new"
    target.mkdir(mode=0o700)
    os.chown(target, 12345, 12346)
    restored(content, target)
    assert {(path.stat().st_uid, path.stat().st_gid) for path in target.rglob("*")} == {(12345, 12346)}


async def test_salvage_brings_back_all_that_can_be_read_and_names_the_rest(site: Site, tmp_path: Path) -> None:
    site.add_keys()
    for number in range(200):
        await site.put("tinkerbell.org/hardware", f"h{number:03}", spec={"text": "x" * 2000})
    await site.put(WORKFLOWS, "w", status={"state": "Pending"})
    await site.store.close()
    file = site.directory / "state.db"
    with closing(sqlite3.connect(file)) as db:
        pages = (
            {page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = 'states' AND pagetype = 'leaf'")}
            if _has_dbstat(db)
            else set()
        )
    damaged = sorted(pages)[len(pages) // 2] if pages else 40
    content = bytearray(file.read_bytes())
    content[(damaged - 1) * 8192 : (damaged - 1) * 8192 + 8192] = b"\xa5" * 8192
    file.write_bytes(content)
    with pytest.raises(ApiServerError):
        await Site(site.directory).store.open()
    made = salvage(site.directory, tmp_path / "new", now=LATER)
    assert 1 <= len(made.lost) <= 4
    assert made.objects["tinkerbell.org/hardware"] == 200 - len(made.lost)
    assert [each.name for each in made.held] == ["default/w"]
    assert (tmp_path / "new" / "token").exists()
    other = await opened(tmp_path / "new")
    assert (await other.get("tinkerbell.org/hardware", "h199"))["spec"] == {"text": "x" * 2000}
    await other.store.close()


def _has_dbstat(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT count(*) FROM dbstat").fetchone()
    except sqlite3.OperationalError:
        return False
    return True
