"""The data directory: state, keys and tokens. Nobody else on this host may look into it, or put anything there.

`claim` is what every command that uses it begins with; `problems` tells `tinkedge doctor` the same without changing
anything. A directory that is open to others is closed (0700) when all that is in it is ours. One with other things in
it, such as `/` or somebody's home, is never touched: the operator is told the command. What an earlier release left
open in a closed directory is closed, too (0600).

Who owns a directory, or a file in it, can replace it: what belongs to another user is refused.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SECRET = frozenset(
    {
        *("state.db", "state.db-wal", "state.db-shm", "state.db-journal", "state.lock", "state.newest"),
        *("token", "kubeconfig", "kubeconfig.lock", "metadata-token.key", "agent-token.key", "admin-token"),
        "checkpoint.key",
        "users.json",
        "pki",
    }
)
"""What tinkedge makes there for its owner alone; `kubeconfig.lock` is kubectl's, while it changes the file."""
_PKI = frozenset({"ca.key"})
BUNDLE = "bundle.json"
"""Records which bundle was loaded last."""
KNOWN = SECRET | {
    BUNDLE,
    "artifacts",
    "checkpoint",
    "journey",
    "machine-logs",
    "osie",
    "images",
    "files",
    "ipxe",
    "manifests",
    "lost+found",
}
"""All that may be in a directory that is closed without asking: `osie` and what follows are the operator's, or of a
bundle; `lost+found` is the file system's."""
_TEMPORARY = re.compile(
    r"\.(token|kubeconfig|users\.json|pki|serving|state\.newest|backup|restore|salvage|bundle|checkpoint\.key|[a-z]+-token(\.key)?)"
    r"\.[a-z0-9_]{8}"
    r"|replaced-[0-9TZ]+"
)
_MIN_FREE_BYTES = 1 << 20
"""A disk with less room, in bytes, is full."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class DataDirectoryError(Exception):
    """The data directory can't be used; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and what to do about it; `mended`: the next start does it by itself."""

    seen: str
    remedy: str
    mended: bool = False


def claim(directory: Path) -> None:
    """Make the directory, or see that it is ours, and close it to others. Raises DataDirectoryError."""
    try:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
        found = problems(directory)
    except OSError as error:
        raise DataDirectoryError(f"data directory {directory}: {error.strerror}; give another --data-dir") from error
    for problem in found:
        if not problem.mended:
            raise DataDirectoryError(f"data directory {directory}: {problem.seen}; {problem.remedy}")
    if not found:
        return
    was = "; ".join(problem.seen for problem in found)
    try:
        directory.chmod(0o700)
        # From here on nobody else comes to it; what was put there a moment before is looked at once more.
        if late := [problem for problem in problems(directory) if not problem.mended]:
            raise DataDirectoryError(f"data directory {directory}: {late[0].seen}; {late[0].remedy}")
        for path in _open_files(directory):
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
        why = "its file system does not keep modes" if problems(directory) else ""
    except OSError as error:
        why = error.strerror or str(error)
    if why:  # a read-only disk is served as it is
        log.error("data directory %s: %s; that can't be changed: %s", directory, was, why)
    else:
        log.warning(
            "data directory %s: %s; it is closed now. Who has read the state meanwhile knows its Secrets: change them",
            *(directory, was),
        )


def problems(directory: Path, user: int | None = None) -> list[Problem]:
    """What is wrong with a directory that is there, for the user (by number; None: this process's) who is to have it.

    The worst first. Raises OSError.
    """
    user = os.geteuid() if user is None else user
    status = directory.stat()
    quoted = shlex.quote(str(directory))
    if status.st_uid != user:
        return [
            Problem(
                f"belongs to {user_name(status.st_uid)}, who could replace all that is in it",
                f"'chown {user} {quoted}', or give a --data-dir that tinkedge can make itself",
            )
        ]
    names = sorted(os.listdir(directory))  # noqa: PTH208 - names are what is looked at
    if strange := [name for name in names if name in SECRET and (directory / name).lstat().st_uid != status.st_uid]:
        return [
            Problem(
                f"{', '.join(strange)} in it belongs to another user, who may have put it there",
                f"see what it is; if it is right: 'chown -R {user} {quoted}'",
            )
        ]
    found = []
    if mode := stat.S_IMODE(status.st_mode) & _OTHERS:
        may = "write to" if mode & (stat.S_IWGRP | stat.S_IWOTH) else "look into"
        seen = f"other users of this host can {may} it (mode {stat.S_IMODE(status.st_mode):04o})"
        foreign = [name for name in names if name not in KNOWN and not _TEMPORARY.fullmatch(name)]
        if foreign:
            listed = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
            remedy = f"it also has what is not tinkedge's ({listed}): 'chmod 700 {quoted}' if nobody else needs that"
            return [Problem(seen, f"{remedy}, or give a --data-dir of its own")]
        found.append(Problem(seen, f"the next start closes it; or 'chmod 700 {quoted}'", mended=True))
    if open_files := [str(path.relative_to(directory)) for path in _open_files(directory)]:
        seen = f"{', '.join(open_files)} in it can be read by others"
        found.append(Problem(seen, f"the next start closes them; or 'chmod -R go= {quoted}'", mended=True))
    return found


@contextmanager
def as_owner(directory: Path) -> Iterator[None]:
    """Act as the owner of a data directory while the block runs, if this process is root and the owner is not.

    Files that root writes there then belong to the service's user, and root follows no link that this user put there.
    Changes the effective user of the whole process: no other thread may open files meanwhile. A directory that does not
    exist yet changes nothing. Raises OSError if the directory cannot be examined.
    """
    try:
        status = directory.stat()
    except FileNotFoundError:
        yield
        return
    if os.geteuid() or not status.st_uid:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(status.st_gid)
    os.seteuid(status.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def disk_refuses(directory: Path) -> str:
    """Say what keeps the disk of a directory from being written, as far as one can see; empty when nothing does."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return error.strerror or str(error)
    if found.f_flag & os.ST_RDONLY:
        return "the disk is read-only"
    if found.f_bavail * found.f_frsize < _MIN_FREE_BYTES:
        return "the disk is full"
    if found.f_files and not found.f_favail:
        return "the disk has no inode left"
    return ""


def _open_files(directory: Path) -> list[Path]:
    candidates = [directory / name for name in sorted(SECRET)] + [directory / "pki" / name for name in sorted(_PKI)]
    found = []
    for path in candidates:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and stat.S_IMODE(mode) & _OTHERS:
            found.append(path)
    return found


def user_name(number: int) -> str:
    """Name a user for people."""
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
