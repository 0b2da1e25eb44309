"""The partitions of an image as people look for them: type, label, filesystem, and which one has the root filesystem.

Types of a GPT are of UEFI 2.10 section 5.3.3 and of the Discoverable Partitions Specification, those of an MBR of
Linux' fdisk. Filesystems are recognized by their superblocks.
"""

from __future__ import annotations

import codecs
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SUPERBLOCK_BYTES: Final = 68 << 10
"""Number of bytes at the start of a filesystem that tell which it is: btrfs has its superblock at 64 KiB."""
_UTF16: Final = codecs.lookup("utf-16-le")
"""Loaded now: while root acts as another user, Python may not be able to read its own modules."""
_ROOT: Final = "Linux root"
_GPT_TYPES: Final = {
    "c12a7328-f81f-11d2-ba4b-00a0c93ec93b": "EFI system",
    "21686148-6449-6e6f-744e-656564454649": "BIOS boot",
    "0fc63daf-8483-4772-8e79-3d69d8477de4": "Linux",
    "4f68bce3-e8cd-4db1-96e7-fbcaf984b709": f"{_ROOT} (x86-64)",
    "b921b045-1df0-41c3-af44-4c6f280d3fae": f"{_ROOT} (arm64)",
    "44479540-f297-41b2-9af7-d131d5f0458a": f"{_ROOT} (x86)",
    "72ec70a6-cf74-40e6-bd49-4bda08e8f224": f"{_ROOT} (riscv64)",
    "bc13c2ff-59e6-4262-a352-b275fd6f7172": "Linux /boot",
    "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f": "Linux swap",
    "933ac7e1-2eb4-4f13-b844-0e14e2aef915": "Linux /home",
    "e6d6d379-f507-44c2-a23c-238f2a3df928": "LVM",
    "a19d880f-05fc-4d3b-a006-743f0f84911e": "RAID",
    "9e1a2d38-c612-4316-aa26-8b49521e5a8b": "PReP boot",
    "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7": "basic data",
    "e3c9e316-0b5c-4db8-817d-f92df00215ae": "Microsoft reserved",
    "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6": "Flatcar /usr",
    "3884dd41-8582-4404-b9a8-e9b84f2df50e": "Flatcar root",
}
_MBR_TYPES: Final = {
    0x05: "extended", 0x07: "NTFS", 0x0B: "FAT32", 0x0C: "FAT32", 0x0E: "FAT16", 0x0F: "extended", 0x82: "Linux swap",
    0x83: "Linux", 0x8E: "LVM", 0xEF: "EFI system", 0xFD: "RAID",
}  # fmt: skip
_ROOT_FILESYSTEMS: Final = ("ext4", "ext3", "ext2", "xfs", "btrfs")
_NO_ROOT: Final = ("EFI", "BIOS", "/boot", "/usr", "/home", "swap", "LVM", "RAID", "PReP", "extended", "reserved")
_NO_ROOT_LABELS: Final = ("boot", "oem", "usr-a", "usr-b", "efi", "esp")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of an image. `start` and `length` are bytes; the texts are empty if they are not known."""

    number: int
    start: int
    length: int
    kind: str = ""
    label: str = ""
    filesystem: str = ""


def kinds_of(head: bytes, sector_bytes: int, numbers: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Return type and label by the number of the partition, from the first bytes of an image with a partition table."""
    if head[sector_bytes : sector_bytes + 8] != b"EFI PART":
        mbr = {number: _MBR_TYPES.get(head[446 + 16 * (number - 1) + 4], "") for number in numbers if number <= 4}
        return {number: (mbr.get(number, "Linux"), "") for number in numbers}
    (table,) = struct.unpack_from("<Q", head, sector_bytes + 72)
    found = {}
    for number in numbers:
        at = table * sector_bytes + (number - 1) * 128
        entry = head[at : at + 128]
        if len(entry) == 128:
            kind = str(uuid.UUID(bytes_le=entry[:16]))
            name = _UTF16.decode(entry[56:], "replace")[0].partition("\0")[0]
            found[number] = (_GPT_TYPES.get(kind, kind), _printable(name))
    return found


def filesystem_of(start: bytes) -> tuple[str, str]:
    """Return kind and label of the filesystem that begins so (`SUPERBLOCK_BYTES` bytes); empty if it is not known."""
    if start[1080:1082] == b"\x53\xef":  # ext4.wiki.kernel.org, "The Super Block"
        compatible, incompatible = struct.unpack_from("<II", start, 1024 + 92)
        kind = "ext4" if incompatible & 0x40 else "ext3" if compatible & 4 else "ext2"
        return kind, _text(start[1144:1160])
    if start.startswith(b"XFSB"):
        return "xfs", _text(start[108:120])
    if start[65600:65608] == b"_BHRfS_M":
        return "btrfs", _text(start[65536 + 0x12B : 65536 + 0x12B + 256])
    if start[510:512] == b"\x55\xaa" and start[82:87] == b"FAT32":
        return "vfat", _text(start[71:82])
    if start[510:512] == b"\x55\xaa" and start[54:57] == b"FAT":
        return "vfat", _text(start[43:54])
    if start.startswith(b"hsqs"):
        return "squashfs", ""
    if start[3:11] == b"NTFS    ":
        return "ntfs", ""
    if start[4086:4096] == b"SWAPSPACE2":
        return "swap", ""
    return "", ""


def is_iso(head: bytes) -> bool:
    """Return True if an image is a CD's (ECMA-119 section 8.1), also with a partition table for USB sticks."""
    return head[32769:32774] == b"CD001"


def root_of(partitions: Iterable[Partition]) -> Partition | None:
    """Return the partition that most likely has the root filesystem of Linux; None if there is none."""
    there = tuple(partitions)
    if typed := [each for each in there if each.kind.startswith(_ROOT) or each.kind == "Flatcar root"]:
        return max(typed, key=lambda each: each.length)
    candidates = [
        each
        for each in there
        if not any(word in each.kind for word in _NO_ROOT)
        and each.label.lower() not in _NO_ROOT_LABELS
        and (not each.filesystem or each.filesystem in _ROOT_FILESYSTEMS)
    ]
    known = [each for each in candidates if each.filesystem]
    return max(known or candidates, key=lambda each: each.length, default=None)


def _text(field: bytes) -> str:
    return _printable(field.partition(b"\0")[0].decode(errors="replace").strip())


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text).strip()
