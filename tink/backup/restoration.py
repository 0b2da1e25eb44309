"""Restores a data directory from a backup, or from the readable parts of a damaged one.

All files are first unpacked within the data directory, beside their places, and checked to the last byte. Then they are
moved to their places, the state last. A start in between is refused, because keys exist without a state.

Time does not go backwards for clients: resourceVersions continue above all that the server can have issued since the
backup, and a client that watches from an older version must list again (as after etcd's restore with
`--bump-revision`). A Workflow that had not begun in the backup may have run since, and would wipe a disk that is in
use. It is held until the operator releases it. A Workflow that was running in the backup is never dispatched again in
any case. A Job or Task of a BMC that had not ended in the backup is failed: it could switch off a machine that works.
Every controller respects that status, and a new Job takes one command. For the same reason, the progress of a boot
(`status.boot` of a Workflow) is removed: a held Workflow boots its machine from the first step when it is released,
and BMC control does not clean up after a Workflow that has begun or ended. BMC control boots machines for Pending
Workflows alone, so a held Workflow that was Scheduled after such a boot becomes Pending.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.bmc import GROUP, BmcConditionType, is_ended
from tink.api.v1alpha2 import BOOT_FINALIZER, Raw, as_mapping
from tink.backup import contents
from tink.backup.archive import Manifest, read
from tink.errors import TinkedgeError
from tink.files import private_files
from tink.files.archive import Contents, Progress, extract
from tink.kubeapi import advance_snapshot, lock_state, newest_answered, salvage_state, survey_snapshot
from tink.workflow.events import GivenBack
from tink.workflow.guards import begun, paused
from tink.workflow.machine import apply
from tink.workflow.status import ConditionType, InvalidStatusError, deleted, name_of
from tink.workflow.table import Author

WORKFLOWS = "tinkerbell.org/workflows"
BMC_WORK: Final = (f"{GROUP}/jobs", f"{GROUP}/tasks")
_MARGIN = 10**9
"""Minimum number of skipped versions; etcd's documentation advises as many."""
_RESERVE = 64 << 20
"""Bytes that stay free for other users of the disk."""
_NAMED = 5
_PER_SECOND = 10**6
"""Further skipped versions per second since the backup: more than any server has written."""


class RestoreError(TinkedgeError):
    """Nothing was restored."""


@dataclass(frozen=True, slots=True)
class Held:
    """A held Workflow (namespace/name) and its state before; "" before it was prepared."""

    name: str
    state: str


@dataclass(slots=True)
class Restored:
    """The result of a restore.

    `held` are Workflows, and `failed` the Jobs and Tasks of BMCs (resource namespace/name) that may have run since.
    `without_clean_up` are Workflows (namespace/name) after which no medium is ejected and no post action is executed.
    `aside` is the directory of the files that existed before, if any. `lost`, `older` and `uncertain` come from a
    salvage (`Salvage` of the store).
    """

    version: int
    objects: dict[str, int]
    files: list[str]
    manifest: Manifest | None = None
    held: list[Held] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    without_clean_up: list[str] = field(default_factory=list)
    aside: Path | None = None
    lost: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    uncertain: bool = False


def restore(
    source: BinaryIO,
    directory: Path,
    *,
    now: datetime,
    progress: Progress,
    force: bool = False,
    resume: bool = False,
    also: Collection[str] = (),
) -> Restored:
    """Restore a data directory from a backup.

    `force`: move existing files aside. `resume`: hold no Workflows, fail no Jobs, and keep the boots by BMCs. `also`:
    unknown files or directories that are restored as well.

    Raises RestoreError, ArchiveError, EncryptionError, SnapshotError, OSError; then nothing has changed.
    """
    with _claimed(directory, force=force), private_files.directory(directory, "restore") as staging:
        manifest, files = read(source)
        _check_names(manifest, also)
        _unpack(manifest, files, staging, directory, progress)
        since = max(0, int((now - manifest.created).total_seconds()))
        why = f"restored from the backup of {manifest.created:%Y-%m-%dT%H:%M:%SZ}, and may have run since"
        skipped = _MARGIN + since * _PER_SECOND
        made = _complete(staging, directory, skipped, None if resume else why, now)
        made.manifest = manifest
        made.aside = _put_in_place(staging, directory, now)
        return made


def _check_names(manifest: Manifest, also: Collection[str]) -> None:
    """Check that the backup contains no unknown names. Raises RestoreError."""
    strange = sorted(file.name for file in manifest.files if contents.unknown(file.name, also))
    if strange:
        listed = ", ".join(map(repr, strange[:_NAMED])) + (" ..." if len(strange) > _NAMED else "")
        firsts = sorted({name.partition("/")[0] for name in strange if not contents.is_state(name.partition("/")[0])})
        remedy = f"; --also {firsts[0]} takes what is your own" if firsts else ""
        raise RestoreError(
            f"the backup has {listed}: no data directory of this release has that in a backup. Was it made by a newer "
            f"release, or changed? Nothing was restored{remedy}"
        )


def _unpack(manifest: Manifest, files: Contents, staging: Path, directory: Path, progress: Progress) -> None:
    """Write all files to the staging directory while there is room. Raises RestoreError, ArchiveError, OSError."""
    sizes = {file.name: file.size for file in manifest.files}
    total, done = sum(sizes.values()), 0
    later = sizes.get(contents.STATE, 0) + _RESERVE  # the state is written again when its versions go on
    _check_room(directory, total + later)
    for file, content in files:
        for size in extract(content, staging / file.name):
            _check_room(directory, total - done + later)
            done += size
            progress("unpacked", done, total)


def _check_room(directory: Path, needed: int) -> None:
    """Check that the disk has room for `needed` bytes. Raises RestoreError."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise RestoreError(
            f"{directory}: {needed / 1e6:,.0f} MB are needed there to restore, and {free / 1e6:,.0f} MB are free: make "
            "room, or give another --data-dir. Nothing was restored"
        )


def salvage(damaged: Path, directory: Path, *, now: datetime, force: bool = False, resume: bool = False) -> Restored:
    """Make a data directory from the readable parts of a damaged one, which may be the same with `force`.

    Raises RestoreError, SnapshotError, OSError; then nothing has changed.
    """
    with _claimed(directory, force=force), private_files.directory(directory, "restore") as staging:
        kept = list(contents.kept_files(damaged))
        sizes = [
            path.stat().st_size for path in (damaged / contents.STATE, *(path for _, path in kept)) if path.exists()
        ]
        _check_room(directory, sum(sizes) + sum(sizes[:1]) + _RESERVE)
        for name, path in kept:
            copy = staging / name
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            private_files.write(copy, path.read_bytes())
        with private_files.directory(directory, "salvage") as work:
            found = salvage_state(damaged / contents.STATE, staging / contents.STATE, work)
        answered = newest_answered(damaged)
        why = "salvaged from a damaged state, and may have run"
        made = _complete(staging, directory, _MARGIN, None if resume else why, now, answered)
        made.lost, made.older, made.uncertain = found.lost, found.older, found.uncertain
        made.aside = _put_in_place(staging, directory, now)
        return made


def _complete(
    staging: Path, directory: Path, skipped: int, why: str | None, now: datetime, answered: int = 0
) -> Restored:
    """Check the new state, hold Workflows and fail Jobs that may have run, and continue at a later version."""
    state = staging / contents.STATE
    if not state.is_file():
        raise RestoreError(f"there is no {contents.STATE} in it")
    found = survey_snapshot(state)
    on_hold: list[Held] = []
    failed: list[str] = []
    without_clean_up: list[str] = []

    def edit(resource: str, obj: Raw) -> bool:
        if why is None:
            return False
        return stop(obj) if resource == WORKFLOWS else fail(resource, obj)

    def fail(resource: str, obj: Raw) -> bool:
        if is_ended(obj):
            return False
        failed.append(f"{resource.partition('/')[2]} {name_of(obj)}")
        _fail(obj, f"{why}: create another one to execute it")
        return True

    def stop(workflow: Raw) -> bool:
        may_run = _may_run(workflow)
        is_changed = _remove_boot(workflow, boots_again=may_run)
        if is_changed and not may_run:
            without_clean_up.append(name_of(workflow))
        is_held = may_run and hold(workflow)  # `Held` has the state of the backup
        if is_changed and may_run:
            _make_pending(workflow, now)
        return is_held or is_changed

    def hold(workflow: Raw) -> bool:
        annotations = workflow["metadata"].setdefault("annotations", {})
        on_hold.append(Held(name_of(workflow), str(workflow.get("status", {}).get("state") or "")))
        if HOLD_ANNOTATION in annotations:
            return False
        annotations[HOLD_ANNOTATION] = why
        return True

    above = max(found.version, answered, newest_answered(directory)) + skipped
    version = advance_snapshot(state, above, [WORKFLOWS, *BMC_WORK], edit)
    objects = survey_snapshot(state).objects
    files = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
    return Restored(version, objects, files, held=on_hold, failed=failed, without_clean_up=without_clean_up)


def _fail(obj: Raw, message: str) -> None:
    """Add the condition Failed to a Job or Task."""
    status = obj["status"] = as_mapping(obj.get("status"))
    conditions = status.get("conditions")
    failed = {"type": BmcConditionType.FAILED.value, "status": "True", "reason": "Restored", "message": message}
    status["conditions"] = [*(conditions if isinstance(conditions, list) else ()), failed]


def _remove_boot(workflow: Raw, *, boots_again: bool) -> bool:
    """Remove `status.boot` of a Workflow that BMC control has not finished. Return True if there was one.

    Without that progress, BMC control sends no request when the Workflow has ended. `boots_again`: remove the condition
    BootPrepared as well, so that the machine boots before the Workflow is sent.
    """
    status = as_mapping(workflow.get("status"))
    is_unfinished = BOOT_FINALIZER in (workflow["metadata"].get("finalizers") or ())
    if not is_unfinished or paused(workflow) or not status.get("boot"):
        return False
    status.pop("boot")
    conditions = status.get("conditions")
    if boots_again and isinstance(conditions, list):
        prepared = ConditionType.BOOT_PREPARED
        status["conditions"] = [each for each in conditions if as_mapping(each).get("type") != prepared]
    return True


def _make_pending(workflow: Raw, now: datetime) -> None:
    """Make a Scheduled Workflow Pending. It becomes Running if its agent reports that it runs nevertheless."""
    status = apply(workflow, GivenBack(), now.timestamp(), Author.SERVER)
    if status is not None:
        workflow["status"] = status


def _may_run(workflow: Raw) -> bool:
    """Return True if a Workflow would be dispatched in its state, and so may have been since the backup."""
    try:
        return not (paused(workflow) or deleted(workflow) or begun(workflow))
    except InvalidStatusError:
        return False  # and it is never dispatched


# --- the data directory -----------------------------------------------------------------------------------------------


@contextmanager
def _claimed(directory: Path, *, force: bool) -> Iterator[None]:
    """Lock the data directory. Raises RestoreError, SnapshotError, OSError."""
    made = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_state(directory)
    try:
        there = sorted(path.name for path in directory.iterdir() if not contents.is_kept(path.name))
        if there and not force:
            raise RestoreError(
                f"{directory} is not empty: it has {', '.join(there[:6])}. --force moves what is there aside, or give "
                "another --data-dir"
            )
        _give_to_owner(directory, directory / "state.lock")
        yield
    except BaseException:
        if made:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _move(path: Path, target: Path) -> None:
    """Move files into an existing directory (`osie`, which is never moved aside) one by one. Raises OSError."""
    if path.is_dir() and target.is_dir():
        for child in path.iterdir():
            _move(child, target / child.name)
    else:
        path.replace(target)


def _check_places(staging: Path, directory: Path) -> None:
    """Check the places of files that are restored next to existing ones. Raises RestoreError, OSError."""
    # No file may be written through a link, and no file may replace a directory or the reverse.
    for path in staging.rglob("*"):
        name = path.relative_to(staging)
        if not contents.is_kept(name.parts[0]):
            continue
        target = directory / name
        if target.is_symlink() and path.is_dir():
            raise RestoreError(f"{target} is a link, and a restore writes past none: move it aside, or unpack by hand")
        if os.path.lexists(target) and path.is_dir() != (target.is_dir() and not target.is_symlink()):
            raise RestoreError(f"{target} is in the way of what the backup has there: move it aside")


def _put_in_place(staging: Path, directory: Path, now: datetime) -> Path | None:
    """Move the existing files aside and the new ones to their places, the state last. Raises RestoreError, OSError."""
    _check_places(staging, directory)
    for path in staging.rglob("*"):
        _give_to_owner(directory, path)
    there = [path for path in directory.iterdir() if not contents.is_kept(path.name)]
    aside = directory / f"{contents.REPLACED}{now:%Y%m%dT%H%M%SZ}" if there else None
    if aside is not None:
        aside.mkdir(mode=0o700)
        _give_to_owner(directory, aside)
        # The state moves first, and a token always exists: a start in between is refused.
        for path in sorted(there, key=lambda path: not contents.is_state(path.name)):
            if path.is_file() and not contents.is_state(path.name) and (staging / path.name).is_file():
                (aside / path.name).hardlink_to(path)
            else:
                path.rename(aside / path.name)
    for path in sorted(staging.iterdir(), key=lambda path: path.name == contents.STATE):
        target = directory / path.name
        _move(path, target)
        private_files.sync_directory(directory)
    return aside


def _give_to_owner(directory: Path, path: Path) -> None:
    """Give restored files to the owner of the data directory, when root restores for a service's user."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
