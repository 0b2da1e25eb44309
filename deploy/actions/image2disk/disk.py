"""The disk: large aligned writes past the page cache, zeros by the disk itself, old signatures, and the end.

Data are gathered in one buffer of `BLOCK_BYTES` and written with O_DIRECT: the page cache would copy the whole image
once more, and would hold it until the end. A run of at least `RUN_BYTES` of zeros is not written. The kernel zeroes it
(BLKZEROOUT), which a disk with a command for it does in an instant. In the end each byte of the image is on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
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
RUN_BYTES: Final = 1 << 20
"""Minimum length of a run of zeros that the kernel zeroes. Shorter ones would only break up the writes around them."""
MAX_RUN_BYTES: Final = 256 << 20
"""Maximum length of a run that is zeroed at once. A slow disk would show no progress for minutes."""
HEAD_BYTES: Final = 8 << 20
"""Cleared at the start of a disk. The last copy of a LUKS2 header begins at 4 MiB; ZFS, LVM and mdraid come before."""
TAIL_BYTES: Final = 8 << 20
"""Cleared at the end of a disk. mdraid 0.90 and 1.0, DDF and other BIOS RAIDs, ZFS labels 2 and 3 (512 KiB), DRBD, the
backup GPT: all of them lie within the last MiB, and partitions end up to some MiB before the disk does."""
MAX_PARTITIONS: Final = 256
"""Maximum number of old partitions that are cleared. A GPT has 128."""
_ALIGNED: Final = 4096
"""A multiple of every logical sector size, and of what O_DIRECT asks of memory."""
_DIRECT_BYTES: Final = 1 << 20
"""Minimum length of a write past the page cache, which merges shorter ones."""
_GRAIN_BYTES: Final = 64 << 10
"""Length of the pieces that are compared with zeros."""
_ZEROS: Final = memoryview(bytes(_GRAIN_BYTES))
_NO_ZEROOUT: Final = frozenset((errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP))


class Disk:
    """An open disk of `size` bytes, in logical sectors of `sector_bytes` bytes. `fd` is its file descriptor.

    `written` counts all bytes of the image that are on the disk. `zeroed` counts those of them that the kernel zeroed.
    """

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.fd = fd
        self._direct = _direct(fd)
        self.size = os.lseek(fd, 0, os.SEEK_END)
        self._is_device = stat.S_ISBLK(os.fstat(fd).st_mode)
        self.sector_bytes = _sector_bytes(fd) if self._is_device else 512
        self._buffer = memoryview(mmap.mmap(-1, BLOCK_BYTES))  # begins at a page, as O_DIRECT needs it
        # The buffer has the bytes of the disk from `_start` to `_end`, at their places within a block; `_zeros` follow.
        self._start = self._end = self._zeros = 0
        self.written = self.zeroed = 0
        self.clears = False
        """True if the next call of `write` or `zero` calls `clear` first."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at `offset`. They reach the disk in blocks. Raises ActionError (WriteFailed)."""
        if self.clears:
            self.clear()
        content = data if isinstance(data, bytes) else bytes(data)
        if offset != self._end + self._zeros:
            self._move(offset)
        view, at, first, length = memoryview(content), 0, 0, len(content)
        while at < length:
            end = min(length, at + _GRAIN_BYTES - (offset + at) % _GRAIN_BYTES)
            # Compares memory without a copy, and ends at the first byte that is not zero.
            if content.startswith(_ZEROS[: end - at], at):
                self._put(view[first:at])
                self._zeros, first = self._zeros + end - at, end
                if self._zeros >= MAX_RUN_BYTES:
                    self._end_run()
            elif self._zeros:
                self._end_run()
            at = end
        self._put(view[first:])

    def write_as_it_is(self, offset: int, data: bytes) -> None:
        """Write bytes at `offset`, zeros too: to overwrite what was there. Raises ActionError (WriteFailed)."""
        if offset != self._end + self._zeros:
            self._move(offset)
        self._put(memoryview(data))

    def _put(self, view: memoryview) -> None:
        """Add bytes to the buffer, after the ones that are there."""
        while view:
            at = self._end % BLOCK_BYTES
            part, view = view[: BLOCK_BYTES - at], view[BLOCK_BYTES - at :]
            self._buffer[at : at + len(part)] = part
            self._end += len(part)
            if self._end % BLOCK_BYTES == 0:
                self._write_buffer()

    def _put_zeros(self, length: int) -> None:
        while length:
            self._put(part := _ZEROS[:length])
            length -= len(part)

    def _end_run(self) -> None:
        """Zero the run that follows the buffer on the disk. Put it into the buffer if it is short."""
        length, self._zeros = self._zeros, 0
        if length >= RUN_BYTES:
            gap = -self._end % _ALIGNED
            self._put_zeros(gap)
            start = self._end
            end = start + (length - gap) // _ALIGNED * _ALIGNED
            self._write_buffer()
            self._zero(start, end)
            self._start = self._end = end
            length -= gap + end - start
        self._put_zeros(length)

    def flush(self) -> None:
        """Write what has been gathered. Raises ActionError (WriteFailed)."""
        self._end_run()
        self._write_buffer()

    def _move(self, offset: int) -> None:
        self.flush()
        self._start = self._end = offset

    def _write_buffer(self) -> None:
        at, self._start = self._start, self._end
        view = self._buffer[at % BLOCK_BYTES :][: self._end - at]
        try:
            while view:
                count = self._write_some(view, at)
                at, view = at + count, view[count:]
                self.written += count
        except OSError as error:
            raise self._failed(error) from None

    def _write_some(self, view: memoryview, at: int) -> int:
        """Write a part of `view`, past the page cache if it is long and aligned. Return its length."""
        if self._is_device and at >= self.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        unaligned = -at % _ALIGNED
        if self._direct is not None and len(view) - unaligned >= _DIRECT_BYTES:
            if unaligned:
                return os.pwrite(self.fd, view[:unaligned], at)
            try:
                return os.pwrite(self._direct, view[: len(view) // _ALIGNED * _ALIGNED], at)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = None  # a disk with sectors larger than a page
        return os.pwrite(self.fd, view, at)

    def zero(self, start: int, end: int) -> None:
        """Make the bytes from `start` to `end` zero, by the disk itself if it can. Raises ActionError (WriteFailed)."""
        if self.clears:
            self.clear()
        self.flush()
        self._zero(start, end)

    def _zero(self, start: int, end: int) -> None:
        try:
            self._zero_some(start, end)
        except OSError as error:
            raise self._failed(error) from None
        self.written += end - start

    def _zero_some(self, start: int, end: int) -> None:
        if self._is_device:
            if end > self.size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            first, last = start + -start % _ALIGNED, end - end % _ALIGNED
            if first < last and self._zeroed_by_kernel(first, last - first):
                self._write_zeros(start, first)
                self.zeroed += last - first
                start = last
        self._write_zeros(start, end)

    def _write_zeros(self, start: int, end: int) -> None:
        while start < end:
            start += os.pwrite(self.fd, _ZEROS[: end - start], start)

    def _zeroed_by_kernel(self, start: int, length: int) -> bool:
        """Return False if the kernel refuses. BLKZEROOUT itself writes zeros if the disk has no command for them."""
        try:
            fcntl.ioctl(self.fd, _BLKZEROOUT, struct.pack("QQ", start, length))
        except OSError as error:
            if error.errno in _NO_ZEROOUT:
                return False
            raise
        return True

    def clear(self) -> None:
        """Zero the start and the end of the disk and of each of its partitions, where signatures are.

        The signature of an old RAID, volume group, pool or partition table that an image does not overwrite would be
        found again: at the end of the disk, or where a new partition begins or ends at the place of an old one.
        Raises ActionError (WriteFailed).
        """
        self.flush()
        self.clears = False
        for start, end in ((0, self.size), *self._partitions()):
            if end - start <= HEAD_BYTES + TAIL_BYTES:
                self._zero(start, end)
            else:
                self._zero(start, start + HEAD_BYTES)
                self._zero(end - TAIL_BYTES, end)
        self.written = self.zeroed = 0

    def _partitions(self) -> list[tuple[int, int]]:
        """Return start and end, in bytes, of the partitions that the kernel knows on this disk."""
        if not self._is_device:
            return []
        device = os.fstat(self.fd).st_rdev
        found = []
        for entry in sorted(Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").glob("*/partition")):
            with contextlib.suppress(OSError, ValueError):  # a partition that has just been removed
                # Both are in units of 512 bytes, whatever the sectors of the disk are.
                start, length = (int((entry.parent / name).read_text()) * 512 for name in ("start", "size"))
                found.append((start, min(start + length, self.size)))
        return [(start, end) for start, end in found[:MAX_PARTITIONS] if start < end]

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset` that have been flushed; fewer at the end. Raises ActionError."""
        try:
            return os.pread(self.fd, length, offset)
        except OSError as error:
            raise self._failed(error) from None

    def finish(self, say: Callable[[str], None] = print, sleep: Callable[[float], None] = time.sleep) -> str:
        """Flush all to the disk, and replace the kernel's partitions. Return a remark; empty if all is well.

        Raises ActionError (DiskBusy, WriteFailed).
        """
        self.flush()
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise self._failed(error) from None
        return KernelPartitions(self.name, self.fd).replace(self._table(), say, sleep) if self._is_device else ""

    def close(self) -> None:
        """Close the disk, so that others may claim it."""
        os.close(self.fd)
        if self._direct is not None:
            os.close(self._direct)

    def _table(self) -> Table | None:
        try:
            return read_table(self.read, self.sector_bytes)
        except DamagedTableError:
            return None

    def _failed(self, error: OSError) -> ActionError:
        return ActionError("WriteFailed", f"{self.name}: {error.strerror}")


def opened(
    name: str,
    say: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
    *,
    held_seconds: int = HELD_SECONDS,
) -> Disk:
    """Wait for the block device `name`, and claim it, which fails if it is held for `held_seconds`.

    Raises ActionError (DiskBusy, DiskNotFound, WriteFailed).
    """
    wait_for(name, sleep)
    try:
        return Disk(name, _claimed(name, say, sleep, held_seconds))
    except OSError as error:
        raise ActionError("WriteFailed", f"cannot open {name} for writing: {error.strerror}") from None


def wait_for(name: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the block device `name` is there. Raises ActionError (DiskNotFound)."""
    for _ in range(WAIT_SECONDS):
        if _is_block_device(name):
            return
        sleep(1)
    if not _is_block_device(name):
        raise ActionError("DiskNotFound", f"{name} is not a block device of this machine")


def _direct(fd: int) -> int | None:
    """Open the file of `fd` once more with O_DIRECT. Return None if its filesystem or system can't do that."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None


def _claimed(name: str, say: Callable[[str], None], sleep: Callable[[float], None], held_seconds: int) -> int:
    """Open a disk that no mount, device-mapper or MD device holds, nor a partition of it, and keep others from that.

    Raises OSError, ActionError (DiskBusy).
    """
    for attempt in range(held_seconds + 1):
        try:
            return os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_EXCL)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        if attempt == held_seconds:
            break
        if not attempt:
            say(f"{name} is in use; waiting up to {held_seconds} s")
        sleep(1)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        holders = KernelPartitions(name, fd).holders() or "a mount or a device that is not visible here"
    finally:
        os.close(fd)
    raise ActionError("DiskBusy", f"{name} has been held for {held_seconds} s: {holders}; stop that first")


def _sector_bytes(fd: int) -> int:
    return struct.unpack("i", fcntl.ioctl(fd, _BLKSSZGET, bytes(4)))[0]  # type: ignore[no-any-return]


def _is_block_device(name: str) -> bool:
    try:
        return Path(name).is_block_device()
    except OSError:  # a name that can be none
        return False
