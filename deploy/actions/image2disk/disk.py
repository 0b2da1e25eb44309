"""The disk: large aligned writes, zeros where an image has nothing, and what is to be done at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from image2disk.errors import ActionError
from image2disk.fit import DamagedTableError, Table, read_table
from image2disk.partitions import HELD_SECONDS, KernelPartitions

BLOCK_BYTES: Final = 4 << 20
"""Written at a time, at multiples of itself."""
WAIT_SECONDS: Final = 10
"""For a driver that is still looking for its disks."""
_BLKSSZGET: Final = 0x1268
_BLKZEROOUT: Final = 0x127F
_NO_ZEROOUT: Final = frozenset((errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP))
_VECTORS: Final = 512


class Disk:
    """An open disk of `size` bytes, in logical sectors of `sector_bytes` bytes.

    `written` counts all bytes that were given to the disk since it was opened.
    """

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self._fd = fd
        self.size = os.lseek(fd, 0, os.SEEK_END)
        self._is_device = stat.S_ISBLK(os.fstat(fd).st_mode)
        self.sector_bytes = _sector_bytes(fd) if self._is_device else 512
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
            if self._is_device and start % self.sector_bytes == 0:
                whole = end - (end - start) % self.sector_bytes
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

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset` that have been flushed; fewer at the end. Raises ActionError."""
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise self._failed(error) from None

    def finish(self, say: Callable[[str], None] = print, sleep: Callable[[float], None] = time.sleep) -> str:
        """Flush all to the disk, and replace the kernel's partitions. Return a remark; empty if all is well.

        Raises ActionError (DiskBusy, WriteFailed).
        """
        self.flush()
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from None
        return KernelPartitions(self.name, self._fd).replace(self._table(), say, sleep) if self._is_device else ""

    def close(self) -> None:
        """Close the disk, so that others may claim it."""
        os.close(self._fd)

    def _table(self) -> Table | None:
        try:
            return read_table(self.read, self.sector_bytes)
        except DamagedTableError:
            return None

    def _failed(self, error: OSError) -> ActionError:
        return ActionError("WriteFailed", f"{self.name}: {error.strerror}")


def opened(name: str, say: Callable[[str], None] = print, sleep: Callable[[float], None] = time.sleep) -> Disk:
    """Wait for the block device `name`, and claim it. Raises ActionError (DiskBusy, DiskNotFound, WriteFailed)."""
    for _ in range(WAIT_SECONDS):
        if _is_block_device(name):
            break
        sleep(1)
    else:
        if not _is_block_device(name):
            raise ActionError("DiskNotFound", f"{name} is not a block device of this machine")
    try:
        return Disk(name, _claimed(name, say, sleep))
    except OSError as error:
        raise ActionError("WriteFailed", f"cannot open {name} for writing: {error.strerror}") from None


def _claimed(name: str, say: Callable[[str], None], sleep: Callable[[float], None]) -> int:
    """Open a disk that no mount, device-mapper or MD device holds, nor a partition of it, and keep others from that.

    Raises OSError, ActionError (DiskBusy).
    """
    for attempt in range(HELD_SECONDS):
        try:
            return os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_EXCL)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        if not attempt:
            say(f"{name} is in use; waits up to {HELD_SECONDS} s")
        sleep(1)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        holders = KernelPartitions(name, fd).holders() or "a mount or a device that is not visible here"
    finally:
        os.close(fd)
    raise ActionError("DiskBusy", f"{name} has been held for {HELD_SECONDS} s: {holders}; end that first")


def _sector_bytes(fd: int) -> int:
    return struct.unpack("i", fcntl.ioctl(fd, _BLKSSZGET, bytes(4)))[0]  # type: ignore[no-any-return]


def _is_block_device(name: str) -> bool:
    try:
        return Path(name).is_block_device()
    except OSError:  # a name that can be none
        return False
