"""Files as memory that a transfer can send from: the bytes are in the page cache once, however many machines read them.

Memory that maps a file which somebody cuts short ends the process with SIGBUS at the next access. So a file is mapped
itself only where this program alone writes it and never shortens it (the artifact cache). Of an operator's file, which
may be replaced or rewritten at any time, a copy in memory is mapped (`Snapshots`), shared by all who read it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from pathlib import Path
from weakref import WeakValueDictionary

MAX_SNAPSHOT_BYTES = 512 * 1024 * 1024
"""The largest file of an operator's that is copied into memory."""

_CHUNK_BYTES = 1 << 22

# linux/fcntl.h; the fcntl module has them from Python 3.12 on.
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x0002


class TooLargeError(Exception):
    """A file that is too large to be copied into memory; the message says how large it is."""


def mapped(fd: int, size: int) -> memoryview:
    """The first `size` bytes of `fd`, which nobody may shorten as long as the view lives.

    Raises OSError; ValueError where the file is shorter than that.
    """
    if size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))


class Snapshot:
    """A copy of a file's bytes; `content` lives as long as this does, and longer where somebody has a view of it."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, fd: int) -> None:
        """Copy what is in the file now. Blocks. Raises OSError, TooLargeError."""
        copy = os.memfd_create("tftp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            size = 0
            while count := os.sendfile(copy, fd, size, _CHUNK_BYTES):
                size += count
                if size > MAX_SNAPSHOT_BYTES:
                    raise TooLargeError(f"larger than {MAX_SNAPSHOT_BYTES >> 20} MiB")
            fcntl.fcntl(copy, _F_ADD_SEALS, _F_SEAL_SHRINK)
            self.content = mapped(copy, size)
        finally:
            os.close(copy)

    def release(self) -> None:
        """For `TftpFile.close`: it needs no closing, but whoever holds this method keeps the one copy for others."""


class Snapshots:
    """The copies that are in use, by what the file system says of a file. One event loop's threads may share it."""

    def __init__(self) -> None:
        self._taken: WeakValueDictionary[tuple[int, ...], Snapshot] = WeakValueDictionary()

    def take(self, fd: int) -> Snapshot:
        """A copy of the file, the same for all as long as it does not change. Blocks. Raises OSError, TooLargeError."""
        status = os.fstat(fd)
        if status.st_size > MAX_SNAPSHOT_BYTES:
            raise TooLargeError(f"larger than {MAX_SNAPSHOT_BYTES >> 20} MiB")
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        snapshot = self._taken.get(key)
        if snapshot is None:
            snapshot = self._taken[key] = Snapshot(fd)
        return snapshot


def open_below(root: Path, segments: list[str]) -> tuple[int, Path]:
    """Open the regular file `segments` below `root`. Symbolic links may lead anywhere inside, never outside.

    Return its descriptor and its real path without links, whatever name the client requested. Blocks. Raises OSError:
    FileNotFoundError if there is no such regular file.
    """
    inside = os.path.realpath(root)
    wanted = os.path.realpath(Path(inside, *segments))
    if os.path.commonpath((inside, wanted)) != inside or wanted == inside:
        raise FileNotFoundError(wanted)
    # What was found is opened step by step without following links: whoever swaps a directory meanwhile gains nothing.
    place = os.open(inside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *directories, name = os.path.relpath(wanted, inside).split("/")
        for directory in directories:
            inner = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(wanted)
    return fd, Path(wanted)
