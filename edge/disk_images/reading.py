"""Reads an image to its end with the code with which image2disk writes one, and finds its partitions.

An image that would fail on a machine fails here: a file of another kind, a damaged compression or partition table, a
qcow2 image that does not stream. Types of a GPT are those of UEFI 2.10 section 5.3.3 and of the Discoverable Partitions
Specification; types of an MBR are those of Linux' fdisk. Superblocks tell the filesystems.
"""

from __future__ import annotations

import codecs
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from edge.disk_images.action import (
    HEAD_BYTES,
    HEADER_BYTES,
    MAGIC,
    ActionError,
    DamagedTableError,
    Disk,
    Qcow2,
    Table,
    kind_of,
    looked_at,
    name_of_other,
    read_sector_sizes,
    read_table,
    refuse_other_formats,
    unpacked,
)
from edge.disk_images.sources import ImageError

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


_MAX_PARTITIONS: Final = 32
"""Maximum number of partitions whose filesystem is looked at, and that are listed."""
_ANY: Final = "--any imports a file as it is"


@dataclass(frozen=True, slots=True)
class DiskImage:
    """The content that an image puts on a disk.

    `size` is the number of bytes there; `compression` is that of the file, or empty.
    `table` is GPT, MBR or empty; then the disk has the one filesystem that `partitions` begins with, as number 0.
    """

    format: str
    compression: str
    size: int
    table: str
    partitions: tuple[Partition, ...]


def read_image(chunks: Iterator[bytes], name: str, check: Callable[[str], None]) -> DiskImage:
    """Read an image to its end. `check` is called with the compression of the file as soon as that is known.

    Raises ImageError, and what `chunks` and `check` raise.
    """
    try:
        chunks, beginning = looked_at(chunks, HEADER_BYTES)
        compression = kind_of(beginning)
        check(compression)
        if compression:
            chunks = unpacked(chunks, compression, name)
        chunks, head = looked_at(chunks, HEAD_BYTES)
        if not head:
            raise ImageError(f"{name}: is empty")
        sampler = _Sampler(name)
        if head.startswith(MAGIC):
            qcow2 = Qcow2(name, cast("Disk", sampler), sampler.look)
            qcow2.write(chunks)
            return sampler.image("qcow2", compression, qcow2.size)
        sampler.look(head, 0)
        size = 0
        for chunk in chunks:
            sampler.write(size, chunk)
            size += len(chunk)
        return sampler.image("raw", compression, size)
    except ActionError as error:
        raise ImageError(error.message) from error


class _Sampler:
    """A disk of unlimited size that stores only the starts of its partitions.

    It has those members of `Disk` that `Qcow2` uses.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 1 << 62
        self._starts: dict[int, bytearray] = {0: bytearray(SUPERBLOCK_BYTES)}
        self._head = b""
        self._sector_bytes = 512
        self._table: Table | None = None

    def look(self, head: bytes, _size: int) -> None:
        """Read the partition table from the first bytes of the image. Raises ImageError."""
        self._head = head[:HEAD_BYTES]
        sizes = read_sector_sizes(self._head)
        self._sector_bytes = sizes[0] if sizes else 512
        if is_iso(self._head):
            what = "is a CD image (ISO): it starts an installer, and is no installed system"
            remedy = "import the distribution's cloud image instead"
            raise ImageError(f"{self.name}: {what}; {remedy}. {_ANY}, for the example autoinstall")
        try:
            self._table = read_table(lambda at, length: self._head[at : at + length], self._sector_bytes)
        except DamagedTableError as error:
            raise ImageError(f"{self.name}: {error}; no system finds partitions in it: make the image again") from error
        if self._table is None:
            _refuse_other(self.name, self._head)
            return
        for each in self._table.partitions[:_MAX_PARTITIONS]:
            self._starts.setdefault(each.start, bytearray(SUPERBLOCK_BYTES))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Store the bytes that are within the start of a partition."""
        end = offset + len(data)
        for start, kept in self._starts.items():
            first, last = max(offset, start), min(end, start + len(kept))
            if first < last:
                kept[first - start : last - start] = data[first - offset : last - offset]

    def zero(self, start: int, end: int) -> None:
        """Do nothing: unwritten bytes are zero already."""

    def image(self, form: str, compression: str, size: int) -> DiskImage:
        """Return the description of the image. Raises ImageError."""
        if not self._head:  # qcow2 with clusters below 8 KiB
            self.look(bytes(self._starts[0][:HEAD_BYTES]), size)
        table = self._table
        if table is None:
            kind, label = filesystem_of(bytes(self._starts[0]))
            if not kind:
                what = "has neither a partition table nor a filesystem that is known here"
                raise ImageError(f"{self.name}: {what}; give a disk image. {_ANY}")
            return DiskImage(form, compression, size, "", (Partition(0, 0, size, "", label, kind),))
        end = max((each.start + each.length for each in table.partitions), default=0)
        if end > size:
            raise ImageError(f"{self.name}: is cut off: its partitions end at byte {end}, and the disk has {size}")
        listed = table.partitions[:_MAX_PARTITIONS]
        kinds = kinds_of(self._head, self._sector_bytes, [each.number for each in listed])
        found = []
        for each in listed:
            kind, label = kinds.get(each.number, ("", ""))
            filesystem, volume = filesystem_of(bytes(self._starts[each.start]))
            found.append(Partition(each.number, each.start, each.length, kind, label or volume, filesystem))
        return DiskImage(form, compression, size, table.kind, tuple(found))


def _refuse_other(name: str, head: bytes) -> None:
    """Raise ImageError if the first bytes belong to another kind of file."""
    try:
        refuse_other_formats(name, head, "")
    except ActionError as error:
        if error.reason != "NotAnImage":
            raise ImageError(f"{error.message.removesuffix(' and serve the result')}, and import the result") from None
        what, remedy = name_of_other(head)
        remedy = "give the file or URL of a disk image" if remedy.startswith("IMG_URL") else remedy
        raise ImageError(f"{name}: is {what}, not a disk image; {remedy}. {_ANY}") from None
