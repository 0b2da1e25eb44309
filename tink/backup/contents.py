"""The files of a data directory that belong to a backup: keys, tokens, accounts, and files of an operator or a bundle.

Caches do not belong to a backup, and neither do files that are only valid while a process runs.

Backup and restore both use `unknown`: a backup contains no unknown file, and a restore rejects unknown files. Otherwise
an archive could add a log to a state (`state.db-wal`), or a file that is trusted because of its place. Files of the
operator's own are included if they are named (`also`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from tink.files import data_directory

STATE: Final = "state.db"
OSIE: Final = "osie"
"""The operator's kernels and initrds: large and replaceable, so in a backup only on request."""
FILES: Final = frozenset({"images", "files"})
"""Container images and disk images for machines: in a backup on request only, like OSIEs."""
REPLACED: Final = "replaced-"
"""Prefix of the directories to which a restore moves existing files."""
_STATE_FILES = re.compile(r"state\.(db(-wal|-shm|-journal)?|lock|newest)")
_NOT_KEPT: Final = frozenset({"artifacts", "checkpoint", "lost+found", "journey", "kubeconfig.lock", "machine-logs"})
_KEYS: Final = "pki"
_FOLDERS: Final = frozenset({OSIE, *FILES, "ipxe", "manifests"})


def is_state(name: str) -> bool:
    """Return True if an entry is the state or one of the files beside it."""
    return _STATE_FILES.fullmatch(name) is not None


def is_kept(name: str) -> bool:
    """Return True if an entry of a data directory stays in place when a restore replaces everything else."""
    return (
        name in _NOT_KEPT or name == OSIE or name in FILES or name.startswith((".", REPLACED)) or name == "state.lock"
    )


def unknown(name: str, also: Collection[str] = ()) -> bool:
    """Return True if no file of this name (a path within the data directory) belongs to a backup.

    `also`: first parts of names that belong to it as well.
    """
    first, _, rest = name.partition("/")
    if is_state(first) or first in _NOT_KEPT:
        return name != STATE
    if first in also:
        return False
    if first == _KEYS:
        return not rest or "/" in rest
    if first in _FOLDERS:
        return not rest
    return bool(rest) or first not in data_directory.KNOWN


def foreign(directory: Path, also: Collection[str] = ()) -> list[str]:
    """Return the unknown entries of a data directory, which no backup includes. Raises OSError."""
    known = data_directory.KNOWN | _NOT_KEPT | set(also)
    found = sorted(path.name for path in directory.iterdir())
    return [name for name in found if name not in known and not name.startswith((".", REPLACED))]


def kept_files(
    directory: Path, *, osie: bool = False, files: bool = False, also: Collection[str] = ()
) -> Iterator[tuple[str, Path]]:
    """Return the files of a data directory for a backup, without the state, as pairs of name and path.

    `osie`, `files`: include OSIEs, and files for machines. `also`: further entries.

    Entries that are neither a file nor a directory are left out. Raises OSError.
    """
    left_out = _NOT_KEPT | (set() if osie else {OSIE}) | (set() if files else FILES)
    for path in sorted(directory.iterdir()):
        name = path.name
        if is_state(name) or name in left_out or name.startswith((".", REPLACED)):
            continue
        for inner, found in _files(path, name):
            if not unknown(inner, also):
                yield inner, found


def _files(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    if path.is_symlink():
        return
    if path.is_file():
        yield name, path
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            if not child.name.startswith("."):
                yield from _files(child, f"{name}/{child.name}")
