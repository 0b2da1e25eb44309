"""The data directory: owner and permissions, key files, disk space, and the backups of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from edge.doctor.findings import Finding, note, passed, problem, warning
from tink.files.data_directory import (
    PACKAGED,
    DataDirectoryError,
    disk_refuses,
    give,
    out_of_reach,
    problems,
    service_user,
    user_name,
)
from tink.files.key_file import KeyFile, KeyFileError

BACKUPS: Final = Path("/var/lib/tinkedge-backups")  # the directory of tinkedge-backup.service (deploy/systemd)
MAX_BACKUP_DAYS: Final = 2.0  # the timer makes a backup each day, at some time within an hour
_DAY_SECONDS: Final = 86_400.0
MIN_FREE_BYTES: Final = 64 * 2**20  # with less, the database soon can't be written
CACHE_BYTES: Final = 2**30
"""With less than this and a twentieth of the disk, the cache of kernels keeps nothing (`edge.artifacts.storage`)."""
MIN_FREE_INODES: Final = 1000
_KEY_FILES: Final = {
    "metadata-token.key": "metadata token key",
    "agent-token.key": "agent token key",
    "admin-token": "admin token",
    "checkpoint.key": "checkpoint key",
}


def check_data_directory(directory: Path) -> Iterator[Finding]:
    """Check that other users can't read the directory, that its files can be used and that its disk can be written."""
    name = f"data directory {directory}"
    try:
        owner = directory.stat().st_uid
        # Root may examine the directory of the service's user.
        found = problems(directory, None if os.geteuid() else owner)
    except FileNotFoundError:
        yield passed(name, "not there; the first start makes it")
        yield from check_space(next(parent for parent in directory.absolute().parents if parent.exists()))
        return
    except OSError as error:
        remedy = "run this as the user that runs tinkedge, or give its --data-dir"
        yield problem(name, error.strerror or str(error), remedy)
        return
    for each in found:
        yield problem(name, each.seen, each.remedy)
    if not found:
        yield _check_owner(name, directory, owner)
        try:  # the folders that operators fill
            for each in out_of_reach(directory):
                yield problem(name, each.seen, each.remedy)
        except (OSError, DataDirectoryError) as error:
            yield note(name, f"not examined as the service's user: {error}")
        yield from _check_keys(directory)
    refusal = disk_refuses(directory)
    if refusal:
        remedy = "repair the disk or free space: until then, objects are served, and nothing can be changed"
        yield problem("data directory's disk", refusal, remedy)
        return
    yield passed("data directory's disk", f"{shutil.disk_usage(directory).free // 10**6} MB free")
    yield from check_space(directory)


def _check_owner(name: str, directory: Path, owner: int) -> Finding:
    """Warn if the directory belongs to root, but the service of the package has a user of its own."""
    service = service_user()
    if service is not None and not owner and directory.absolute() == PACKAGED:
        remedy = f"for the service, as root: '{give(directory, service.user)}'"
        return warning(name, f"belongs to root, and the service runs as {service}", remedy)
    return passed(name, f"for {user_name(owner)} alone")


def _check_keys(directory: Path) -> Iterator[Finding]:
    """Find the key files that can't be used. A running service continues without them and logs that."""
    for file, content in _KEY_FILES.items():
        path = directory / file
        if not os.path.lexists(path):
            continue  # The next start makes it.
        try:
            KeyFile(path, content)
        except KeyFileError as error:
            remedy = "restore it from a backup, or remove it: the next start makes another one"
            yield problem(f"{content} {path}", str(error).partition(": ")[2], remedy)


def check_space(directory: Path) -> Iterator[Finding]:
    """Check for free bytes and inodes (statvfs(3)). Raises OSError."""
    state = os.statvfs(directory)
    free = state.f_bavail * state.f_frsize
    name, remedy = "data directory's space", "free some space, or give another --data-dir"
    if free < MIN_FREE_BYTES:
        yield problem(name, f"{free // 10**6} MB free", remedy)
    elif free < max(CACHE_BYTES, state.f_blocks * state.f_frsize // 20):
        seen = f"{free // 10**6} MB free: too little for the cache, so kernels are fetched again for each machine"
        yield warning(name, seen, remedy)
    # A file system without a limit of inodes, such as btrfs, reports 0.
    if state.f_files and state.f_favail < MIN_FREE_INODES:
        name, remedy = "data directory's inodes", "delete files, or make the file system with more (mkfs -N)"
        seen = f"{state.f_favail} of {state.f_files} inodes are free"
        yield warning(name, seen, remedy) if state.f_favail else problem(name, seen, remedy)


def check_backups(directory: Path = BACKUPS, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Check the age of the newest backup of tinkedge-backup.timer. No finding if that unit has never run."""
    name, remedy = f"backups in {directory}", "journalctl -u tinkedge-backup; systemctl status tinkedge-backup.timer"
    try:
        if not directory.is_dir():
            return
        times = [file.stat().st_mtime for file in directory.glob("tinkedge-*.tgz*")]
    except OSError as error:
        yield note(name, f"not examined: {error.strerror}", "run it as root, or as tinkedge's user")
        return
    if not times:
        yield warning(name, "there is none", remedy)
        return
    days = (now() - max(times)) / _DAY_SECONDS
    seen = f"{len(times)}, the newest {f'{days:.0f} days' if days >= 1 else 'less than a day'} old"
    yield warning(name, seen, remedy) if days > MAX_BACKUP_DAYS else passed(name, seen)
