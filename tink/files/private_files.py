"""Files for their owner alone (0600): keys, tokens, certificates. Written whole or not at all, and to stay.

A new content stands beside its place until it is on the disk, and is then moved there; the directory is flushed, too,
so that a power cut leaves the old file or the new one. Nobody sees half a file, and none is open to others for a
moment.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write(path: Path, content: bytes, mode: int = 0o600, *, owner_of: Path | None = None) -> None:
    """Make or replace a file; what root writes belongs to the owner of `owner_of`. Raises OSError; then nothing has
    changed."""
    with _beside(path, content, mode) as temporary:
        if owner_of is not None and os.geteuid() == 0:
            owner = owner_of.stat()
            os.chown(temporary, owner.st_uid, owner.st_gid)
        temporary.replace(path)
        sync_directory(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Make a file unless there is one, by whomever: the first wins. Whether it was made. Raises OSError."""
    with _beside(path, content, 0o600) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        sync_directory(path.parent)
        return True


@contextmanager
def stream(path: Path) -> Iterator[BinaryIO]:
    """Make or replace a file (0600) with what is written meanwhile; nothing has changed if that raises.

    Raises OSError.
    """
    with _open_beside(path, 0o600) as (file, temporary):
        yield file
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)


@contextmanager
def _beside(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    with _open_beside(path, mode) as (file, temporary):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        yield temporary


@contextmanager
def _open_beside(path: Path, mode: int) -> Iterator[tuple[BinaryIO, Path]]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600 whatever the umask
    try:
        with os.fdopen(handle, "wb") as file:
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            yield file, Path(name)
    finally:
        with suppress(FileNotFoundError):  # moved
            Path(name).unlink()


def sync_directory(directory: Path) -> None:
    """Have the names in a directory survive a loss of power. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path, *names: str) -> None:
    """Remove what writers of files and directories with these names left beside them when they were killed.

    Only for who knows that no such writer is at work. Raises OSError.
    """
    for name in names:
        for left in directory.glob(f".{name}.????????"):  # as tempfile names them
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def directory(parent: Path, purpose: str) -> Iterator[Path]:
    """A directory (0700) for as long as this lasts; what killed ones have left goes first. Raises OSError."""
    for left in parent.glob(f".{purpose}.????????"):
        _remove_unless_used(left)
    path = Path(tempfile.mkdtemp(dir=parent, prefix=f".{purpose}."))
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _remove_unless_used(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
        finally:
            os.close(handle)
