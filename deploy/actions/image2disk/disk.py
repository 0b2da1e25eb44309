"""The disk: large aligned writes, zeros where an image has nothing, and what is to be done at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from pathlib import Path
from typing import Final

from image2disk.errors import ActionError

BLOCK_BYTES: Final = 4 << 20
"""Written at a time, at multiples of itself."""
WAIT_SECONDS: Final = 10
"""For a driver that is still looking for its disks."""
_BLKRRPART: Final = 0x125F
_BLKZEROOUT: Final = 0x127F
_SECTOR_BYTES: Final = 512
_NO_ZEROOUT: Final = frozenset((errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP))
_VECTORS: Final = 512


class Disk:
    """An open disk of `size` bytes. `written` counts all bytes that were given to it since it was opened."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self._fd = fd
        self.size = os.lseek(fd, 0, os.SEEK_END)
        self._is_device = stat.S_ISBLK(os.fstat(fd).st_mode)
        self._at = 0
        self._parts: list[memoryview] = []
        self._gathered = 0
        self.written = 0

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Bytes at `offset`, which reach the disk in blocks. Raises ActionError (WriteFailed)."""
        view = memoryview(data)
        if offset != self._at + self._gathered:
            self.flush()
            self._at = offset
        while view:
            room = BLOCK_BYTES - (self._at + self._gathered) % BLOCK_BYTES
            part, view = view[:room], view[room:]
            self._parts.append(part)
            self._gathered += len(part)
            if len(part) == room or len(self._parts) >= _VECTORS:
                self.flush()

    def flush(self) -> None:
        """Write what has been gathered. Raises ActionError (WriteFailed)."""
        parts, self._parts = self._parts, []
        at, self._at, self._gathered = self._at, self._at + self._gathered, 0
        try:
            while parts:
                if self._is_device and at >= self.size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                count = os.pwritev(self._fd, parts, at)
                at += count
                self.written += count
                while parts and count >= len(parts[0]):
                    count -= len(parts.pop(0))
                if count:
                    parts[0] = parts[0][count:]
        except OSError as error:
            raise self._failed(error) from None

    def zero(self, start: int, end: int) -> None:
        """Make the bytes from `start` to `end` zero, by the disk itself if it can. Raises ActionError (WriteFailed)."""
        self.flush()
        try:
            if self._is_device and start % _SECTOR_BYTES == 0:
                whole = end - (end - start) % _SECTOR_BYTES
                if whole > start and self._zeroed_by_kernel(start, whole - start):
                    start = whole
            empty = bytes(min(BLOCK_BYTES, end - start))
            while start < end:
                start += os.pwrite(self._fd, empty[: min(end - start, BLOCK_BYTES - start % BLOCK_BYTES)], start)
        except OSError as error:
            raise self._failed(error) from None

    def _zeroed_by_kernel(self, start: int, length: int) -> bool:
        try:
            fcntl.ioctl(self._fd, _BLKZEROOUT, struct.pack("QQ", start, length))
        except OSError as error:
            if error.errno in _NO_ZEROOUT:
                return False
            raise
        return True

    def finish(self) -> bool:
        """All is on the disk; whether the kernel has read its partition table. Raises ActionError (WriteFailed)."""
        self.flush()
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from None
        try:
            fcntl.ioctl(self._fd, _BLKRRPART)
        except OSError:
            return False
        return True

    def _failed(self, error: OSError) -> ActionError:
        return ActionError("WriteFailed", f"{self.name}: {error.strerror}")


def opened(name: str) -> Disk:
    """The block device `name`, waited for. Raises ActionError (DiskNotFound, WriteFailed)."""
    for _ in range(WAIT_SECONDS):
        if _is_block_device(name):
            break
        time.sleep(1)
    else:
        if not _is_block_device(name):
            raise ActionError("DiskNotFound", f"{name} is not a block device of this machine")
    try:
        return Disk(name, os.open(name, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise ActionError("WriteFailed", f"cannot open {name} for writing: {error.strerror}") from None


def _is_block_device(name: str) -> bool:
    try:
        return Path(name).is_block_device()
    except OSError:  # a name that can be none
        return False
