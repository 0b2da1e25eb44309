"""What of a data directory belongs to a backup: all of it but the caches, and what only means something while a process
runs. So keys, tokens and accounts of later releases are in it, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

STATE = "state.db"
OSIE = "osie"
"""The operator's kernels and initrds: as large as they can be had again, so on request only."""
FILES = frozenset({"images", "files"})
"""What machines are given besides, container images and disk images: as OSIE."""
REPLACED = "replaced-"
"""What a restore has moved aside begins with that."""
_STATE_FILES = re.compile(r"state\.(db(-wal|-shm|-journal)?|lock|newest)")
_NOT_KEPT = frozenset({"artifacts", "checkpoint", "lost+found", "kubeconfig.lock", "machine-logs"})


def is_state(name: str) -> bool:
    """Say whether an entry is the state or one of the files beside it."""
    return _STATE_FILES.fullmatch(name) is not None


def is_kept(name: str) -> bool:
    """Say whether an entry of a data directory stays where it is when everything else is replaced."""
    return (
        name in _NOT_KEPT or name == OSIE or name in FILES or name.startswith((".", REPLACED)) or name == "state.lock"
    )


def kept_files(directory: Path, *, osie: bool = False, files: bool = False) -> Iterator[tuple[str, Path]]:
    """Give the files of a data directory for a backup, but not the state: names within it, and paths.

    `osie`, `files`: also OSIE's and FILES' own.

    What is neither a file nor a directory is left out. Raises OSError.
    """
    left_out = _NOT_KEPT | (set() if osie else {OSIE}) | (set() if files else FILES)
    for path in sorted(directory.iterdir()):
        name = path.name
        if is_state(name) or name in left_out or name.startswith((".", REPLACED)):
            continue
        yield from _files(path, name)


def _files(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    if path.is_symlink():
        return
    if path.is_file():
        yield name, path
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            if not child.name.startswith("."):
                yield from _files(child, f"{name}/{child.name}")
