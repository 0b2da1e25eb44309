"""Files for their owner alone (0600): keys, tokens, certificates. Written whole or not at all, and to stay.

A new content stands beside its place until it is on the disk, and is then moved there; the directory is flushed, too,
so that a power cut leaves the old file or the new one. Nobody sees half a file, and none is open to others for a
moment.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_NAME_CHARACTERS: Final = 100
"""Characters of a file's name in that of its temporary file, of which a file system takes 255 bytes."""


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
def stream(path: Path, alike: str = "", *, private: bool = True) -> Iterator[BinaryIO]:
    """Make or replace a file with what is written meanwhile; nothing has changed if that raises.

    Partial files of killed writers of `path` are removed first, and those of all files whose names match the glob
    pattern `alike`. The mode is 0600. If the file is not `private`, it is that of the file which is replaced, or the
    umask's; a symbolic link stays one, and a device or a pipe is written to. Raises OSError.
    """
    mode = 0o600
    if not private:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        path = path.resolve()
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    for partial in _partial(path.parent, path.name, alike):
        _remove_unless_used(partial)
    with _open_beside(path, mode) as (file, temporary):
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
    try:
        handle, name = _locked(
            lambda: tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_NAME_CHARACTERS]}.")
        )  # 0600
    except OSError as error:
        error.filename = str(path.parent)  # the name of the temporary file says nothing to people
        raise
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
        for left in _partial(directory, name):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def directory(parent: Path, purpose: str) -> Iterator[Path]:
    """Make a directory (0700) for as long as this lasts; those of killed processes are removed first.

    Raises OSError.
    """
    for partial in _partial(parent, purpose):
        _remove_unless_used(partial)

    def make() -> tuple[int, str]:
        path = tempfile.mkdtemp(dir=parent, prefix=f".{purpose}.")
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path

    handle, path = _locked(make)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _partial(parent: Path, name: str, alike: str = "") -> Iterator[Path]:
    """Yield the temporary files or directories of these names, as tempfile names them."""
    yield from parent.glob(f".{glob.escape(name[:_NAME_CHARACTERS])}.????????")
    if alike:
        yield from parent.glob(f".{alike}.????????")


def _locked(make: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """Return a new temporary file or directory, open and locked, so that no other process takes it for a leftover."""
    while True:
        handle, name = make()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:  # else another process removed it before it was locked
                return handle, name
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _remove_unless_used(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
