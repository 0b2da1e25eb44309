"""Files that only their owner can read (0600), such as keys, tokens and certificates; written atomically.

New content is written to a temporary file beside the target, flushed to the disk, and moved to the target; then the
directory is flushed. So a power cut leaves the old file or the new one, readers never see a part of a file, and no
file is open to other users for a moment.
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
"""Characters of a file's name in the name of its temporary file; the limit of file systems is 255 bytes."""


def write(path: Path, content: bytes, mode: int = 0o600, *, owner_of: Path | None = None) -> None:
    """Create or replace a file; one that root writes gets the owner of `owner_of`.

    Raises OSError; then nothing has changed.
    """
    with _beside(path, content, mode) as temporary:
        if owner_of is not None and os.geteuid() == 0:
            owner = owner_of.stat()
            os.chown(temporary, owner.st_uid, owner.st_gid)
        temporary.replace(path)
        sync_directory(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Create a file unless it exists, also if another process is creating it; return True if it was created.

    Raises OSError.
    """
    with _beside(path, content, 0o600) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        sync_directory(path.parent)
        return True


@contextmanager
def stream(path: Path, alike: str = "", *, private: bool = True) -> Iterator[BinaryIO]:
    """Create or replace a file with the content that the block writes; if the block raises, nothing has changed.

    Temporary files of killed writers of `path` are removed first, and those of files whose names match the glob pattern
    `alike`. The mode is 0600. A file that is not `private` keeps the mode of the replaced file, or gets that of the
    umask; then a symbolic link stays one, and a device or a pipe is written to. Raises OSError.
    """
    mode = 0o600
    if not private:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        path = path.resolve()
        mask = os.umask(0o077)
        os.umask(mask)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask
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
        error.filename = str(path.parent)  # the name of the temporary file means nothing to people
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
    """Flush the names in a directory to the disk, so that they survive a power cut. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path, *names: str) -> None:
    """Remove the temporary files of killed writers of files and directories with these names.

    Call it only if no such writer is running. Raises OSError.
    """
    for name in names:
        for left in _partial(directory, name):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def directory(parent: Path, purpose: str) -> Iterator[Path]:
    """Create a temporary directory (0700) for the block; those of killed processes are removed first.

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
