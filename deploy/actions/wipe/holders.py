"""Users of a disk: mounts, swap, and the RAIDs and volumes that udev assembled from it, which this action stops."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from image2disk.errors import ActionError

MAX_DEPTH: Final = 16
"""Maximum depth of volumes on volumes on RAIDs on disks."""
_STOP_ARRAY: Final = 0x0932
"""STOP_ARRAY of linux/raid/md_u.h; takes no argument."""
_DM_DEV_REMOVE: Final = 0xC138FD04
_DM_IOCTL: Final = struct.Struct("=3I3IiIIIQ128s129s7x")
"""struct dm_ioctl of linux/dm-ioctl.h: version, data_size, data_start, ..., name, uuid."""
_DM_VERSION: Final = (4, 0, 0)
_BLOCKS: Final = Path("/sys/class/block")


def check(name: str, device: int) -> None:
    """Refuse a disk that is mounted or has swap, itself or by what is on it. Raises ActionError (DiskBusy)."""
    uses = _uses()
    for node in _nodes(name, device):
        number = _number(node)
        if number in uses:
            raise _in_use(name, f"{node.name} is {uses[number]}")
        if node != _base(device) and not _can_stop(node) and not (node / "partition").exists():
            raise _in_use(name, f"{node.name} uses it, and this action can't stop that")
        if _is_busy(node):
            raise _in_use(name, f"{node.name} is mounted, or another program has it")


def stop(name: str, device: int) -> Iterator[str]:
    """Stop the RAIDs and volumes that hold a disk, the uppermost first. Yield a line on each.

    Raises ActionError (DiskBusy).
    """
    for node in _nodes(name, device):
        if not _can_stop(node):
            continue
        try:
            if (node / "dm").is_dir():
                _remove_volume((node / "dm" / "name").read_text().strip())
            else:
                _stop_array(node.name)
        except OSError as error:
            raise _in_use(name, f"{node.name} uses it, and can't be stopped: {error.strerror}") from None
        yield f"{name}: stopped {node.name}, which used it"


def _nodes(name: str, device: int) -> list[Path]:
    """Return the directories in /sys of the disk, its partitions and their holders, the uppermost holder first."""
    found: dict[str, Path] = {}

    def visit(node: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _in_use(name, f"{node.name} is more than {MAX_DEPTH} volumes above it")
        if node.name in found:
            return
        for part in sorted(node.glob("*/partition")):
            visit(part.parent, depth + 1)
        for holder in sorted((node / "holders").glob("*")):
            visit((_BLOCKS / holder.name).resolve(), depth + 1)
        found[node.name] = node

    visit(_base(device), 0)
    return list(found.values())


def _base(device: int) -> Path:
    return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()


def _can_stop(node: Path) -> bool:
    return (node / "dm").is_dir() or (node / "md").is_dir()


def _is_busy(node: Path) -> bool:
    """Return whether something uses a device, other than what holds it and its partitions.

    A container does not see the mounts of the system around it, but the kernel refuses to open them exclusively.
    """
    if any((node / "holders").glob("*")) or any(node.glob("*/partition")):
        return False
    try:
        os.close(os.open(f"/dev/{node.name.replace('!', '/')}", os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _number(node: Path) -> int:
    try:
        major, minor = (node / "dev").read_text().split(":")
    except (OSError, ValueError):  # it has just been removed
        return -1
    return os.makedev(int(major), int(minor))


def _uses() -> dict[int, str]:
    """Return what the devices that are mounted or swap are, by their number."""
    places = []
    # The container has mounts of its own. Those of the first process are the OSIE's, unless it is hidden.
    for file in ("/proc/self/mountinfo", "/proc/1/mountinfo"):
        with contextlib.suppress(OSError):
            for line in Path(file).read_text(errors="replace").splitlines():
                fields, _, kind = line.partition(" - ")
                places.append((kind.split()[1], f"mounted at {fields.split()[4]}"))
    with contextlib.suppress(OSError):
        places += [(line.split()[0], "swap") for line in Path("/proc/swaps").read_text().splitlines()[1:]]
    found = dict[int, str]()
    for source, use in places:
        if source.startswith("/dev/"):
            with contextlib.suppress(OSError):
                found.setdefault(Path(source).stat().st_rdev, use)
    return found


def _stop_array(array: str) -> None:
    fd = os.open(f"/dev/{array}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _STOP_ARRAY)
    finally:
        os.close(fd)


def _remove_volume(volume: str) -> None:
    """Remove a device of the device mapper: an LVM volume, an opened LUKS, a multipath."""
    request = _DM_IOCTL.pack(*_DM_VERSION, _DM_IOCTL.size, 0, 0, 0, 0, 0, 0, 0, volume.encode(), b"")
    fd = os.open("/dev/mapper/control", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _DM_DEV_REMOVE, bytearray(request))
    finally:
        os.close(fd)


def _in_use(name: str, why: str) -> ActionError:
    return ActionError("DiskBusy", f"{name} is in use: {why}; nothing of it was wiped")
