"""The content of a backup, the result of a restore, and its refusals: damage, hostile archives, too little room."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import zlib
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backup.conftest import WORKFLOWS, Site
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.bmc import is_ended
from tink.api.v1alpha2 import BOOT_FINALIZER, FINALIZER
from tink.backup import contents
from tink.backup.archive import ArchiveError
from tink.backup.contents import foreign
from tink.backup.creation import BackupError, create
from tink.backup.restoration import BMC_WORK, RestoreError, restore, salvage
from tink.files import data_directory
from tink.kubeapi import USERS_FILE, ApiServerError, issue_token
from tink.kubeapi.apiserver.store.objects import ExpiredError

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


async def test_boot_files_and_images_are_restored_on_request_and_caches_stay(site, tmp_path) -> None:
    site.add_keys()
    for name in ("images/blobs", "files", "osie/lab"):  # as `tinkedge bundle load` puts them: osie/NAME/kernel
        (site.directory / name).mkdir(parents=True)
        (site.directory / name / "large").write_bytes(b"of the backup")
    assert not [name for name in restored(backup_of(site), tmp_path / "new").files if "large" in name]
    content = backup_of(site, files=True, osie=True)
    restored(content, tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "osie" / "kernel").read_bytes() == b"k" * 3000
    await site.store.close()
    for name in ("osie/lab/large", "osie/lab/initrd"):
        (site.directory / name).write_bytes(b"of later")
    made = restored(content, site.directory, force=True)
    larges = {name for name in made.files if "large" in name}
    assert larges == {"images/blobs/large", "files/large", "osie/lab/large"}
    assert (site.directory / "osie/lab/large").read_bytes() == b"of the backup"
    assert (site.directory / "osie/lab/initrd").read_bytes() == b"of later"
    for stays in ("osie", "artifacts", "checkpoint"):  # the last is of this host, and soon written again
        assert (site.directory / stays / "kernel").exists()
    assert made.aside is not None
    aside = {path.name for path in made.aside.iterdir() if not path.name.startswith("state")}
    assert aside == {"admin-token", "pki", "token", "users.json"}


async def test_versions_continue_above_all_earlier_ones_and_old_watches_expire(site, tmp_path) -> None:
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
    await site.put(WORKFLOWS, "moved", annotations={PAUSED_ANNOTATION: "x"}, status={"state": "Pending"})
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
    pending = (await other.get(WORKFLOWS, "w-pending"))["metadata"]
    assert "backup of 2026-11-23T12:00:00Z" in pending["annotations"][HOLD_ANNOTATION]
    await other.store.close()
    await site.store.close()
    assert restored(content, tmp_path / "third", resume=True).held == []


async def test_boot_by_a_bmc_begins_again_if_its_workflow_is_held_and_is_not_cleaned_up_if_it_has_begun(
    site: Site, tmp_path: Path
) -> None:
    others = [{"type": "Prepared", "status": "True"}]
    boot = {"way": "cd", "attempt": 1, "medium": "CD", "message": "the machine is on"}
    conditions = [*others, {"type": "BootPrepared", "status": "True"}]

    def status(state: str) -> dict[str, Any]:
        return {"state": state, "boot": boot, "conditions": conditions}

    for state in ("Pending", "Scheduled", "Running", "Succeeded"):
        await site.put(WORKFLOWS, state.lower(), finalizers=(BOOT_FINALIZER,), status=status(state))
    await site.put(WORKFLOWS, "finished", finalizers=(FINALIZER,), status=status("Succeeded"))
    paused = {PAUSED_ANNOTATION: "x"}
    await site.put(WORKFLOWS, "moved", annotations=paused, finalizers=(BOOT_FINALIZER,), status=status("Pending"))
    content = backup_of(site)
    made = restored(content, tmp_path / "new")
    assert {(each.name, each.state) for each in made.held} == {
        ("default/pending", "Pending"),
        ("default/scheduled", "Scheduled"),
    }
    assert sorted(made.without_clean_up) == ["default/running", "default/succeeded"]
    other = await opened(tmp_path / "new")
    after = {
        name: (await other.get(WORKFLOWS, name))["status"]
        for name in ("pending", "scheduled", "running", "succeeded", "finished", "moved")
    }
    assert after["pending"] == {"state": "Pending", "conditions": others}
    scheduled = after["scheduled"]
    assert (scheduled["state"], scheduled["conditions"]) == ("Pending", others), "BMC control boots a Pending Workflow"
    assert scheduled["lastTransitioned"] == "2026-11-23T13:00:00.000Z"
    for name in ("running", "succeeded"):
        assert after[name] == {"state": name.capitalize(), "conditions": conditions}
    for name in ("finished", "moved"):
        assert after[name]["boot"] == boot
    await other.store.close()
    await site.store.close()
    assert restored(content, tmp_path / "third", resume=True).without_clean_up == []


async def test_job_or_task_of_a_bmc_that_may_have_run_since_is_failed_and_no_other(site: Site, tmp_path: Path) -> None:
    running, completed = {"type": "Running", "status": "True"}, {"type": "Completed", "status": "True"}
    before = {
        "new": {},
        "running": {"status": {"conditions": [running], "startTime": "2026-11-23T11:00:00Z"}},
        "strange": {"status": "strange"},
        "ended": {"status": {"conditions": [running, completed]}},
    }
    for name, fields in before.items():
        for resource in BMC_WORK:
            await site.put(resource, name, **fields)
    await site.put("bmc.tinkerbell.org/machines", "m")
    content = backup_of(site)
    made = restored(content, tmp_path / "new")
    names = ("new", "running", "strange")
    assert set(made.failed) == {f"{kind} default/{name}" for kind in ("jobs", "tasks") for name in names}
    other = await opened(tmp_path / "new")
    for resource in BMC_WORK:
        after = {name: await other.get(resource, name) for name in before}
        assert after["ended"]["status"] == before["ended"]["status"]
        for name in names:
            assert is_ended(after[name])
            last = after[name]["status"]["conditions"][-1]
            assert (last["type"], last["status"], last["reason"]) == ("Failed", "True", "Restored")
            assert "backup of 2026-11-23T12:00:00Z" in last["message"]
        assert after["running"]["status"]["conditions"][0] == running
        assert after["running"]["status"]["startTime"] == "2026-11-23T11:00:00Z"
    assert "status" not in await other.get("bmc.tinkerbell.org/machines", "m")
    await other.store.close()
    await site.store.close()
    assert restored(content, tmp_path / "third", resume=True).failed == []


def unpacked(content: bytes) -> bytes | None:
    """Return the packed content; None if that is damaged."""
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


def test_directory_without_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"no state\.db"):
        create(tmp_path, io.BytesIO, release="1", now=NOW, progress=quiet)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_backup_and_restore_as_root_keep_the_owner(site: Site, tmp_path: Path) -> None:
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
    file, pages = site.directory / "state.db", []
    with closing(sqlite3.connect(file)) as db, suppress(sqlite3.OperationalError):  # a SQLite without dbstat
        rows = db.execute("SELECT pageno FROM dbstat WHERE name = 'states' AND pagetype = 'leaf'")
        pages = sorted({page for (page,) in rows})
    damaged = pages[len(pages) // 2] if pages else 40
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


def test_users_of_the_api_are_in_a_backup(tmp_path: Path) -> None:
    issue_token(tmp_path, "alice", "view", (), datetime.now(UTC), None)
    assert [name for name, _ in contents.kept_files(tmp_path, osie=False)] == [USERS_FILE]


# --- hostile archives ---

Members = list[tuple[str, bytes]]
ROOM = 64 << 20


def packed(members: Members, **changed: Any) -> bytes:
    """Return a backup of these members, with a matching manifest."""
    files = [{"name": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in members]
    manifest = {"format": 1, "tinkedge": "0.1.0", "created": NOW.isoformat(), "layout": 1, "version": 1, "objects": {}}
    manifest |= {"files": files, **changed}
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
        restored(content, directory, **options)
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
    assert any(reported in message for reported in (repr(name), "can't be in a backup", "a file and a folder"))


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
    assert "notes.txt" not in restored(plain, tmp_path / "a").files
    assert "--also notes.txt takes" in refused(own, tmp_path / "b")
    assert "'scripts/a.sh'" in refused(own, tmp_path / "b", also=("notes.txt",))
    made = restored(own, tmp_path / "c", also=("notes.txt", "scripts"))
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
        restored(content, site.directory, force=True)
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in site.directory.iterdir()) == before
    (site.directory / "osie").unlink()
    (site.directory / "osie").write_bytes(b"a file")
    with pytest.raises(RestoreError, match="in the way"):
        restored(content, site.directory, force=True)


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
    differs = "'files/zeros' of 3145728 bytes"
    sizes = {0: differs, 10: differs, 1 << 40: "are needed there", 1 << 63: "has a size of", -1: "has a size of -1"}
    for size, reason in sizes.items():
        lie = [
            {"name": "state.db", "size": len(state), "sha256": hashlib.sha256(state).hexdigest()},
            {"name": "files/zeros", "size": size, "sha256": "0" * 64},
        ]
        message = refused(packed([("state.db", state), ("files/zeros", bytes(3 << 20))], files=lie), tmp_path / "new")
        assert reason in message, (size, message)
