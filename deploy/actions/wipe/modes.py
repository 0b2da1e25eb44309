"""The ways to wipe a disk. After each of them the action clears the places of signatures (`Disk.clear`)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from image2disk.disk import BLOCK_BYTES, Disk
from image2disk.errors import ActionError

DISCARD_BYTES: Final = 1 << 30
"""Discarded at a time, so that progress shows."""
FORMAT_SECONDS: Final = 24 * 3600
"""Limit of an NVMe format. Controllers without encryption overwrite all of the flash."""
_BLKDISCARD: Final = 0x1277
_BLKSECDISCARD: Final = 0x127D
_UNSUPPORTED: Final = frozenset((errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL))
_NVME_ID: Final = 0x4E40
_NVME_ADMIN_CMD: Final = 0xC0484E41
_COMMAND: Final = struct.Struct("=BBHIIIQQII6III")
"""struct nvme_passthru_cmd of linux/nvme_ioctl.h."""
_FORMAT, _IDENTIFY = 0x80, 0x06
_USER_DATA_ERASE: Final = 1 << 9
"""Secure Erase Settings of Format NVM (NVM Express Base Specification 2.0, section 5.14)."""
_PAGE: Final = 4096
_STATUS: Final = {
    0x01: "its controller has no such command",
    0x02: "its controller does not support this secure erase",
    0x15: "its controller denies it (the drive may be locked by a password, or by the firmware)",
    0x1D: "a sanitize of it is in progress",
    0x20: "the namespace is write protected",
    0x23: "its controller has locked the command",
    0x10A: "its controller refuses the format",
}
"""Status codes of NVM Express Base Specification 2.0, figures 93 to 96."""


def metadata(disk: Disk) -> None:
    """Leave the data: `Disk.clear` removes partition tables and signatures."""


def discard(disk: Disk) -> None:
    """Discard all blocks. A disk may keep some of them. Raises ActionError (NotSupported, WriteFailed)."""
    _discard(disk, _BLKDISCARD, "discard")


def secure_discard(disk: Disk) -> None:
    """Discard all blocks and the copies that the disk has of them. Raises ActionError (NotSupported, WriteFailed)."""
    _discard(disk, _BLKSECDISCARD, "secure discard")


def _discard(disk: Disk, request: int, what: str) -> None:
    for start in range(0, disk.size, DISCARD_BYTES):
        length = min(DISCARD_BYTES, disk.size - start)
        try:
            fcntl.ioctl(disk.fd, request, struct.pack("QQ", start, length))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise _unsupported(disk.name, f"the disk has no {what}; MODE=overwrite works with any disk") from None
            raise ActionError("WriteFailed", f"{disk.name}: {what}: {error.strerror}") from None
        disk.written += length


def overwrite(disk: Disk) -> None:
    """Write zeros from the first byte to the last. Raises ActionError (WriteFailed)."""
    _overwrite(disk, bytes)


def overwrite_random(disk: Disk) -> None:
    """Write random bytes from the first byte to the last. Raises ActionError (WriteFailed)."""
    _overwrite(disk, os.urandom)


def _overwrite(disk: Disk, made: Callable[[int], bytes]) -> None:
    for start in range(0, disk.size, BLOCK_BYTES):
        disk.write_as_it_is(start, made(min(BLOCK_BYTES, disk.size - start)))
    disk.flush()


def nvme_format(disk: Disk) -> None:
    """Format the namespace with its own LBA format and a user data erase. Raises ActionError (NotSupported)."""
    number = _nsid(disk.fd)
    lba_format = _identify(disk.name, disk.fd, number, 0)[26]  # FLBAS: the format in use, its upper bits in 6:5
    settings = lba_format & 0x1F | (lba_format >> 5 & 3) << 12 | _USER_DATA_ERASE
    try:
        status = _admin(disk.fd, _FORMAT, number, settings)
    except OSError as error:
        raise ActionError("WriteFailed", f"{disk.name}: NVMe format: {error.strerror}") from None
    if status:
        # 0x7FF: the code and its type, without the bits of "more" and "do not retry".
        why = _STATUS.get(status & 0x7FF, f"status {status:#x}")
        raise _unsupported(disk.name, f"NVMe format: {why}; MODE=discard or MODE=overwrite may work")


MODES: Final[dict[str, Callable[[Disk], None]]] = {
    "metadata": metadata,
    "discard": discard,
    "secure-discard": secure_discard,
    "nvme-format": nvme_format,
    "overwrite": overwrite,
    "overwrite-random": overwrite_random,
}


def check(mode: str, name: str, device: int, named: frozenset[int]) -> None:
    """Refuse an NVMe format that can't be, or that formats other disks than the `named` ones.

    A controller may format all of its namespaces at once (FNA of Identify Controller). Raises ActionError.
    """
    if mode != "nvme-format":
        return
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (entry / "partition").exists():
        raise _unsupported(name, "NVMe format: this is a partition; name the whole disk")
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        controller = _identify(name, fd, 0, 1)
    finally:
        os.close(fd)
    if not controller[256] & 2:  # OACS
        raise _unsupported(name, "NVMe format: its controller has no such command; MODE=discard may work")
    if controller[524] & 3:  # FNA: a format, or an erase, is of all namespaces
        numbers = (file.read_text().split(":") for file in entry.parent.glob("nvme*n*/dev"))
        others = {os.makedev(int(major), int(minor)) for major, minor in numbers} - named
        if others:
            raise _unsupported(name, f"NVMe format: its controller formats {len(others)} more disks, not in DEST_DISK")


def _nsid(fd: int) -> int:
    return int(fcntl.ioctl(fd, _NVME_ID))


def _identify(name: str, fd: int, nsid: int, kind: int) -> bytes:
    """Return what Identify says of a namespace (`kind` 0) or the controller (1). Raises ActionError (NotSupported)."""
    with mmap.mmap(-1, _PAGE) as page:
        address = ctypes.addressof(anchor := ctypes.c_char.from_buffer(page))
        try:
            status = _admin(fd, _IDENTIFY, nsid, kind, address, _PAGE)
            content = bytes(page)
        except OSError as error:
            why = f"NVMe format: this is no NVMe disk ({error.strerror}); MODE=discard may work"
            raise _unsupported(name, why) from None
        finally:
            del anchor
    if status:
        raise _unsupported(name, f"NVMe format: the disk can't be identified, status {status:#x}")
    return content


def _admin(fd: int, opcode: int, nsid: int, cdw10: int, address: int = 0, length: int = 0) -> int:
    """Send an admin command. Return its status, 0 if it succeeded. Raises OSError."""
    limit = FORMAT_SECONDS * 1000 if opcode == _FORMAT else 0
    command = _COMMAND.pack(
        opcode, 0, 0, nsid, 0, 0, 0, address, 0, length, cdw10, 0, 0, 0, 0, 0, limit, 0
    )  # fmt: skip
    return int(fcntl.ioctl(fd, _NVME_ADMIN_CMD, bytearray(command)))


def _unsupported(name: str, why: str) -> ActionError:
    return ActionError("NotSupported", f"{name}: {why}")
