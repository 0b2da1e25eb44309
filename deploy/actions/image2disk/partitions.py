"""The kernel's partitions of a disk: replaced by those of a new table, and what holds them.

BLKRRPART reads the table again, and fails with EBUSY as long as a partition is open: udev probes it, multipath or LVM
has claimed it, a filesystem in it is mounted. The kernel then keeps all of the old table, and a filesystem that is
mounted from it afterwards is the old one. So free partitions are removed one by one (BLKPG) until the kernel reads.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from image2disk.errors import ActionError
from image2disk.fit import Partition, Table

HELD_SECONDS: Final = 30
"""Maximum time for other programs to let go of a disk or its partitions."""
_BLKRRPART: Final = 0x125F
_BLKPG: Final = 0x1269
_ADD, _DELETE = 1, 2
_NO_PARTITIONS: Final = frozenset((errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP))
_ARGUMENT: Final = struct.Struct("@iiiP")
_PARTITION: Final = struct.Struct("@qqi64s64s4x")
_SYSFS_SECTOR: Final = 512
"""Unit of `start` and `size` in sysfs, whatever the disk's sector size."""
_MAX_HOLDERS: Final = 8


class KernelPartitions:
    """The partitions that the kernel has of the disk that is open as `fd`; `name` is for messages."""

    def __init__(self, name: str, fd: int, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        """Raises OSError if `fd` is closed."""
        number = os.fstat(fd).st_rdev
        self._name = name
        self._fd = fd
        self._sysfs = sysfs
        self._proc = proc
        self._node = sysfs / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"

    def replace(
        self,
        table: Table | None,
        say: Callable[[str], None] = print,
        sleep: Callable[[float], None] = time.sleep,
    ) -> str:
        """Make the kernel's partitions those of `table`, which is on the disk. Return a remark; empty if all is well.

        Raises ActionError (DiskBusy, WriteFailed).
        """
        had_partitions = bool(self._listed())
        for attempt in range(HELD_SECONDS):
            error = self._read_again()
            if error in _NO_PARTITIONS and not had_partitions:
                what = "takes no partitions from the kernel (kpartx makes devices of them)"
                return f"{self._name} {what}" if table is not None else ""
            if error not in (0, errno.EBUSY, *_NO_PARTITIONS):
                message = f"the kernel does not read the new partition table of {self._name}: {os.strerror(error)}"
                raise ActionError("WriteFailed", f"{message}; restart the machine")
            if error:
                self._delete_free()
            if error == 0 or (error in _NO_PARTITIONS and not self._listed()):
                return self._add_missing(table) if table is not None else ""
            if not attempt:
                say(f"a partition of {self._name} is in use; waiting up to {HELD_SECONDS} s")
            sleep(1)
        raise self._held()

    def holders(self) -> str:
        """Return what holds the disk and its partitions, as far as this container sees it; empty if nothing is seen."""
        found: list[str] = []
        nodes = [self._node, *self._listed().values()]
        for node in nodes:
            found += [f"{node.resolve().name} by {holder}" for holder in self._holders(node.resolve())]
        more = f" and {len(found) - _MAX_HOLDERS} more" if len(found) > _MAX_HOLDERS else ""
        return ", ".join(found[:_MAX_HOLDERS]) + more

    # --- the kernel ---

    def _read_again(self) -> int:
        """Return 0, or the number of the error."""
        try:
            fcntl.ioctl(self._fd, _BLKRRPART)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _change(self, operation: int, partition: Partition) -> None:
        """Add or delete one partition. Raises OSError."""
        fields = _PARTITION.pack(partition.start, partition.length, partition.number, b"", b"")
        content = array.array("b", fields)
        address, length = content.buffer_info()
        fcntl.ioctl(self._fd, _BLKPG, _ARGUMENT.pack(operation, 0, length, address))

    def _delete_free(self) -> None:
        for partition in self._listed():
            try:
                self._change(_DELETE, partition)
            except OSError:  # It is held: the next attempt may succeed.
                continue

    def _listed(self) -> dict[Partition, Path]:
        found = {}
        for node in sorted(self._node.resolve().glob("*/partition")):
            try:
                number, start, size = (int((node.parent / each).read_text()) for each in ("partition", "start", "size"))
            except (OSError, ValueError):  # a partition that has just gone
                continue
            found[Partition(number, start * _SYSFS_SECTOR, size * _SYSFS_SECTOR)] = node.parent
        return found

    # --- the table ---

    def _add_missing(self, table: Table) -> str:
        """Add what a kernel without this kind of table has not found itself."""
        refused = {}
        for partition in self._missing(table):
            try:
                self._change(_ADD, partition)
            except OSError as error:
                refused[partition.number] = error
        missing = self._missing(table)
        if not missing:
            return ""
        numbers = ", ".join(str(each.number) for each in missing)
        message = f"the kernel has no partition {numbers} of {self._name}"
        errors = [refused.get(each.number) for each in missing]
        is_other = bool({each.number for each in missing} & {each.number for each in self._listed()})
        if not is_other and all(error is not None and error.errno == errno.EBUSY for error in errors):
            return f"{message}: it overlaps others of the table"  # as in hybrid ISO images
        why = next((error.strerror for error in errors if error is not None), "it does not list it")
        raise ActionError("WriteFailed", f"{message}, though its new {table.kind} has: {why}; restart the machine")

    def _missing(self, table: Table) -> list[Partition]:
        if not self._node.exists():  # no sysfs: the kernel's word has to do
            return []
        there, most = self._listed(), self._number(self._node / "ext_range", 256)
        return [each for each in table.partitions if each.number < most and each not in there]

    @staticmethod
    def _number(path: Path, otherwise: int) -> int:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            return otherwise

    # --- holders ---

    def _held(self) -> ActionError:
        names = ", ".join(sorted(node.name for node in self._listed().values())) or self._name
        holders = self.holders() or "a program or a mount that is not visible here"
        message = f"the image is on {self._name}, and the kernel still has old partitions ({names}), held for "
        message += f"{HELD_SECONDS} s: {holders}; end what holds them, and run the action again"
        return ActionError("DiskBusy", message)

    def _holders(self, node: Path) -> list[str]:
        """Return device-mapper and MD devices, mounts, swap and loop devices on a block device.

        /sys/fs names filesystems that are mounted outside this container, too.
        """
        found = []
        try:
            for holder in sorted((node / "holders").iterdir()):
                mapped = self._text(holder / "dm" / "name")
                found.append(f"{holder.name} ({mapped})" if mapped else holder.name)
        except OSError:
            pass
        number, mounts = self._text(node / "dev"), []
        for line in self._text(self._proc / "self" / "mountinfo").splitlines():
            fields = line.split()
            if number and len(fields) > 4 and fields[2] == number:
                mounts.append(f"the mount {fields[4][:100]}")
        seen = self._sysfs.glob(f"fs/*/{node.name}")
        found += mounts or [f"a mounted {kind}" for kind in sorted(path.parent.name for path in seen)]
        for line in self._text(self._proc / "swaps").splitlines():
            if line.split()[:1] == [f"/dev/{node.name}"]:
                found.append("swap")
        for loop in sorted(self._sysfs.glob("block/loop*/loop/backing_file")):
            if self._text(loop) == f"/dev/{node.name}":
                found.append(loop.parent.parent.name)
        return found

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return path.read_text(errors="replace").strip()
        except OSError:
            return ""
