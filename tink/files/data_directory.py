"""The data directory with state, keys and tokens. Other users of this host can neither read it nor write to it.

Each command that uses it calls `claim` first. For `tinkedge doctor`, `problems` returns the same findings without
changing anything. A directory that is open to other users is closed (0700) if it has only files of tinkedge. A
directory with other files, such as `/` or the home of a user, is never changed: the error names the command to do that.
Files that an earlier release left open in a closed directory are closed, too (0600).

The owner of a directory, or of a file in it, can replace it, so those of another user are refused.

The data directory belongs to the user of the service. All commands follow this rule:

    as root, in a directory of another user    the command acts as that user (`as_owner`); a command that serves
                                               becomes that user for good (`tink.files.privileges`)
    as root, the package's directory missing   the directory is made for the package's user, then as above
    as root, elsewhere                         the directory belongs to root
    as another user                            only a directory of that user; else the remedy names the command
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tink.errors import TinkedgeError

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
"""The files that only the owner may read. `kubeconfig.lock` is made by kubectl while it changes the kubeconfig."""
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
"""The names that may be in a directory that is closed without asking. `osie` and the following ones belong to the
operator or to a bundle, `lost+found` to the file system."""
_TEMPORARY = re.compile(
    r"\.(token|kubeconfig|users\.json|pki|serving|state\.newest|backup|restore|salvage|bundle|checkpoint\.key|[a-z]+-token(\.key)?)"
    r"\.[a-z0-9_]{8}"
    r"|replaced-[0-9TZ]+"
)
PACKAGED: Final = Path("/var/lib/tinkedge")
SERVICE_USER: Final = "tinkedge"
"""The data directory and the user of the package (deploy/deb/postinst, deploy/systemd/tinkedge.sysusers)."""
FOLDERS: Final = ("osie", "images", "files", "ipxe", "manifests")
"""Folders that operators fill, often as root."""
_MAX_ENTRIES: Final = 20_000
"""Maximum number of files and directories that `unreadable` examines."""
_NAMED: Final = 5
_MIN_FREE_BYTES = 1 << 20
"""A disk with fewer free bytes counts as full."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class DataDirectoryError(TinkedgeError):
    """The data directory can't be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class DirectoryProblem:
    """A problem of a data directory and its remedy. `is_fixable`: the next start fixes it by itself."""

    seen: str
    remedy: str
    is_fixable: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that a data directory belongs to, by numbers; `name` is empty if the host knows none."""

    user: int
    group: int
    name: str = ""

    def __str__(self) -> str:
        return user_name(self.user)


def owner_of(directory: Path) -> Owner | None:
    """Return the user that root acts as in a data directory; None if this process acts as itself.

    A process that is not root always acts as itself. Raises OSError if the directory can't be examined.
    """
    if os.geteuid():
        return None
    try:
        status = directory.stat()
    except FileNotFoundError:
        return service_user() if directory.absolute() == PACKAGED else None
    if not status.st_uid:
        return None
    try:
        return Owner(status.st_uid, status.st_gid, pwd.getpwuid(status.st_uid).pw_name)
    except KeyError:
        return Owner(status.st_uid, status.st_gid)


def service_user() -> Owner | None:
    """Return the user of the package; None if this host has no such user."""
    try:
        found = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        return None
    return Owner(found.pw_uid, found.pw_gid, found.pw_name)


def make_for_owner(directory: Path) -> Owner | None:
    """Make the data directory if it is missing and belongs to the package's user; return what `owner_of` returns.

    A directory that would belong to this process is left to `claim`. Raises OSError.
    """
    owner = owner_of(directory)
    if owner is None or directory.exists():
        return owner
    directory.mkdir(mode=0o700, parents=True)
    try:
        os.chown(directory, owner.user, owner.group)
    except PermissionError:  # root without CAP_CHOWN, as in a container: the directory stays root's
        return None
    return owner


def claim(directory: Path) -> None:
    """Make the directory, or check that it is ours, and close it to other users. Raises DataDirectoryError."""
    try:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
        found = problems(directory)
    except OSError as error:
        raise DataDirectoryError(f"data directory {directory}: {error.strerror}; give another --data-dir") from error
    for problem in found:
        if not problem.is_fixable:
            raise DataDirectoryError(f"data directory {directory}: {problem.seen}; {problem.remedy}")
    if not found:
        return
    was = "; ".join(problem.seen for problem in found)
    try:
        directory.chmod(0o700)
        # Now other users have no access. Files that they put there a moment before are checked here.
        if late := [problem for problem in problems(directory) if not problem.is_fixable]:
            raise DataDirectoryError(f"data directory {directory}: {late[0].seen}; {late[0].remedy}")
        for path in _open_files(directory):
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
        why = "its file system does not keep modes" if problems(directory) else ""
    except OSError as error:
        why = error.strerror or str(error)
    if why:  # such as a read-only disk, which is used as it is
        log.error("data directory %s: %s; that can't be changed: %s", directory, was, why)
    else:
        log.warning(
            "data directory %s: %s; it is closed now. Other users may have read its Secrets: change them",
            *(directory, was),
        )


def problems(directory: Path, user: int | None = None) -> list[DirectoryProblem]:
    """Return the problems of an existing directory for its intended user (by number; None: that of this process).

    The worst comes first. Raises OSError.
    """
    user = os.geteuid() if user is None else user
    status = directory.stat()
    quoted = shlex.quote(str(directory))
    if status.st_uid != user:
        seen = f"belongs to {user_name(status.st_uid)}, who could replace all that is in it"
        return [DirectoryProblem(seen, _remedy_for_owner(directory, status.st_uid, user))]
    names = sorted(os.listdir(directory))  # noqa: PTH208 - only the names are needed
    if strange := [name for name in names if name in SECRET and (directory / name).lstat().st_uid != status.st_uid]:
        return [
            DirectoryProblem(
                f"{', '.join(strange)} in it belongs to another user, who may have put it there",
                f"check it; if it is right, as root: '{give(directory, user)}'",
            )
        ]
    found = []
    if mode := stat.S_IMODE(status.st_mode) & _OTHERS:
        may = "write to" if mode & (stat.S_IWGRP | stat.S_IWOTH) else "look into"
        seen = f"other users of this host can {may} it (mode {stat.S_IMODE(status.st_mode):04o})"
        foreign = [name for name in names if name not in KNOWN and not _TEMPORARY.fullmatch(name)]
        if foreign:
            listed = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
            remedy = f"it also has files that are not tinkedge's ({listed}): "
            remedy += f"'chmod 700 {quoted}' if no other user needs them"
            return [DirectoryProblem(seen, f"{remedy}, or give a --data-dir of its own")]
        found.append(DirectoryProblem(seen, f"the next start closes it; or 'chmod 700 {quoted}'", is_fixable=True))
    if open_files := [str(path.relative_to(directory)) for path in _open_files(directory)]:
        seen = f"{', '.join(open_files)} in it can be read by others"
        found.append(DirectoryProblem(seen, f"the next start closes them; or 'chmod -R go= {quoted}'", is_fixable=True))
    return found


def _remedy_for_owner(directory: Path, owner: int, user: int) -> str:
    """Return what to do about a directory of another user. It never gives away the directory of a service."""
    other = "or give a --data-dir that tinkedge can make itself"
    if owner == 0:
        service = service_user()
        if service is not None and directory.absolute() == PACKAGED and user != service.user:
            return f"as root: '{give(directory, service.user)}', and run this as {service}; {other}"
        return f"as root: '{give(directory, user)}', {other}"
    if directory.absolute() == PACKAGED:
        return f"it is the service's: 'systemctl start tinkedge', or run this as {user_name(owner)} or root; {other}"
    return f"run this as {user_name(owner)}{' or root' if user else ''}, {other}"


def give(path: Path, user: int) -> str:
    """Return the command that gives a path, with all that is below it, to a user (by number)."""
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    return f"chown -R {name}: {shlex.quote(str(path))}"


@contextmanager
def as_owner(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Act as the owner of a data directory while the block runs, if this process is root and the owner is not.

    `make`: a missing directory of the package is made first. Files that root writes there then belong to the service's
    user, and root follows no link that this user put there. Changes the effective user of the whole process: no other
    thread may open files meanwhile. Raises OSError if the directory cannot be examined, DataDirectoryError if this
    process may not become its owner.
    """
    owner = make_for_owner(directory) if make or directory.exists() else None
    with ExitStack() as stack:
        if owner is not None:
            stack.enter_context(_acting_as(owner, directory))
        yield


@contextmanager
def _acting_as(owner: Owner, directory: Path) -> Iterator[None]:
    groups, group = os.getgroups(), os.getegid()
    try:
        os.setgroups([])
    except PermissionError as error:
        raise DataDirectoryError(not_permitted(owner, directory)) from error
    try:
        try:
            os.setegid(owner.group)
            os.seteuid(owner.user)
        except PermissionError as error:
            raise DataDirectoryError(not_permitted(owner, directory)) from error
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@contextmanager
def as_root_again() -> Iterator[None]:
    """Act as root within `as_owner`, for a file that is not in the data directory. Else it changes nothing."""
    user, group = os.geteuid(), os.getegid()
    if not user or os.getuid():
        yield
        return
    os.seteuid(0)
    os.setegid(os.getgid())
    try:
        yield
    finally:
        os.setegid(group)
        os.seteuid(user)


def not_permitted(owner: Owner, directory: Path) -> str:
    """Return the message of a root process that may not become the owner of a data directory."""
    return (
        f"data directory {directory}: belongs to {owner}, and this process may not become that user (it lacks "
        f"CAP_SETUID or CAP_SETGID): run it as {owner}, with these capabilities, or give another --data-dir"
    )


# --- files that the service's user can't read -------------------------------------------------------------------------


def unreadable(directory: Path) -> list[Path]:
    """Return the paths that this process can't read in the folders that operators fill, the topmost of each tree.

    Examines at most 20,000 entries and follows no link to a directory.
    """
    found: list[Path] = []
    pending = [directory / name for name in reversed(FOLDERS)]
    examined = 0
    while pending and examined < _MAX_ENTRIES:
        path = pending.pop()
        examined += 1
        if _is_shut(path):
            found.append(path)
        elif path.is_dir() and not path.is_symlink():
            try:
                below = sorted(path.iterdir(), reverse=True)
            except OSError:  # removed meanwhile
                continue
            pending += below[-_MAX_ENTRIES:]
    return found


def first_unreadable(path: Path, below: Path) -> Path | None:
    """Return the first of `below`, the directories from there to `path`, and `path` that this process can't read."""
    try:
        parts = path.relative_to(below).parts
    except ValueError:
        return None
    here = below
    for part in ("", *parts):
        here = here / part
        if _is_shut(here):
            return here
    return None


def _is_shut(path: Path) -> bool:
    try:
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False  # missing, or a dangling link
    return not os.access(path, os.R_OK | (os.X_OK if is_directory else 0), effective_ids=True)


def out_of_reach(directory: Path) -> list[DirectoryProblem]:
    """Return the paths that the owner of a data directory can't read in `FOLDERS`, as one problem or none.

    Empty for a process that is neither the owner nor root. Raises OSError, DataDirectoryError.
    """
    with as_owner(directory):
        user = os.geteuid()
        if directory.stat().st_uid != user:
            return []
        paths = unreadable(directory)
    if not paths:
        return []
    listed = ", ".join(str(path.relative_to(directory)) for path in paths[:_NAMED])
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    folders = list(dict.fromkeys(directory / path.relative_to(directory).parts[0] for path in paths))
    commands = "; ".join(give(folder, user) for folder in folders)
    return [DirectoryProblem(f"{user_name(user)} can't read {listed}{more} in it", f"as root: '{commands}'")]


def disk_refuses(directory: Path) -> str:
    """Return the reason why the disk of a directory can't be written to; empty if none is visible."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return error.strerror or str(error)
    if found.f_flag & os.ST_RDONLY:
        return "the disk is read-only"
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free < _MIN_FREE_BYTES:
        return f"the disk is full ({_mount_point(directory)}: {free:,} bytes free of {size / 1e6:,.0f} MB)"
    if found.f_files and not found.f_favail:
        return f"the disk has no inode left ({_mount_point(directory)}: {found.f_files:,} are in use)"
    return ""


def _mount_point(directory: Path) -> Path:
    """Return the mount point of the file system of a directory."""
    path = directory.resolve()
    while not path.is_mount():
        path = path.parent
    return path


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
    """Return a user's name for messages."""
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
