"""Partition tables, read as Linux reads them, and whether an image with such a table fits a disk.

A table counts sectors. The same bytes are another table, or none, on a disk whose sectors have another size: the GPT
header is in sector 1 (UEFI 2.10 section 5.3.2), and the MBR gives the start and length of partitions in sectors.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from image2disk.errors import ActionError

SECTOR_SIZES: Final = (512, 1024, 2048, 4096)
"""Logical sector sizes, in bytes, for which a GPT is looked for in an image."""
_SIGNATURE: Final = b"EFI PART"
_GPT: Final = struct.Struct("<8sIIIIQQQQ16sQIII")
_ENTRY_BYTES: Final = 128
"""Size of a GPT entry. Linux reads no GPT with another one (block/partitions/efi.c)."""
_MAX_ENTRIES: Final = 1024
_MAX_SECTORS: Final = 1 << 48
_MAX_LOGICAL: Final = 100
"""Maximum number of extended boot records that Linux follows (block/partitions/msdos.c)."""
_PROTECTIVE: Final = 0xEE
_EXTENDED: Final = frozenset((0x05, 0x0F, 0x85))


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as Linux makes it. `start` and `length` are bytes. An extended partition has 1 KiB, or a sector."""

    number: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Table:
    """A partition table. `end` is the first byte behind all that it describes, `backup_end` behind its backup."""

    kind: str
    partitions: tuple[Partition, ...]
    end: int = 0
    backup_end: int = 0


class DamagedTableError(Exception):
    """Linux would not read this GPT. The message says why."""


Reader = Callable[[int, int], bytes]
"""Takes an offset and a number of bytes, and returns these bytes; fewer if the image or its known part ends before."""


def read_table(read: Reader, sector_bytes: int) -> Table | None:
    """Return the partition table in sectors of `sector_bytes`. Return None if there is none, or an empty MBR.

    Raises DamagedTableError, and what `read` raises.
    """
    mbr = read(0, 512)
    entries = [mbr[at : at + 16] for at in range(446, 510, 16)]
    if len(mbr) < 512 or mbr[510:] != b"\x55\xaa":
        return None
    if _is_protective(mbr):
        return _read_gpt(read, sector_bytes)
    # A bare FAT or NTFS has the signature, too. The flags tell its boot code from a table.
    if any(entry[0] & 0x7F for entry in entries):
        return None
    if any(entry[4] == _PROTECTIVE for entry in entries):
        raise DamagedTableError("its MBR announces a GPT with a partition that does not start at sector 1")
    end = max(
        (start + length) * (length > 0) for start, length in (struct.unpack_from("<II", each, 8) for each in entries)
    )
    return Table("MBR", tuple(_read_mbr(read, entries, sector_bytes)), end * sector_bytes) if end else None


def _is_protective(mbr: bytes) -> bool:
    """Return True if the MBR announces a GPT as Linux requires it (UEFI 2.10 section 5.2.3)."""
    return mbr[510:512] == b"\x55\xaa" and any(
        mbr[at + 4] == _PROTECTIVE and mbr[at + 8 : at + 12] == b"\1\0\0\0" for at in range(446, 510, 16)
    )


def _read_gpt(read: Reader, sector_bytes: int) -> Table:
    header = read(sector_bytes, sector_bytes)
    if not header.startswith(_SIGNATURE) or len(header) < _GPT.size:
        raise DamagedTableError(f"its MBR announces a GPT, but byte {sector_bytes} has no GPT header")
    fields = _GPT.unpack_from(header)
    _, _, size, crc, _, own, backup, first, last, _, table, count, entry_bytes, table_crc = fields
    if not _GPT.size <= size <= sector_bytes:
        raise DamagedTableError(f"the size of its GPT header is {size}")
    if zlib.crc32(header[:16] + bytes(4) + header[20:size]) != crc:
        raise DamagedTableError("the checksum of its GPT header is wrong")
    if own != 1 or last < first or table >= _MAX_SECTORS:
        raise DamagedTableError(f"its GPT header names itself sector {own}, and sectors {first} to {last} usable")
    if entry_bytes != _ENTRY_BYTES or count > _MAX_ENTRIES:
        raise DamagedTableError(f"its GPT has {count} entries of {entry_bytes} bytes")
    entries = read(table * sector_bytes, count * entry_bytes)
    if len(entries) == count * entry_bytes and zlib.crc32(entries) != table_crc:
        raise DamagedTableError("the checksum of its GPT entries is wrong")
    partitions = []
    for number in range(len(entries) // _ENTRY_BYTES):
        kind, _, start, end = struct.unpack_from("<16s16sQQ", entries, number * _ENTRY_BYTES)
        if any(kind) and start <= end < _MAX_SECTORS:
            length = (end - start + 1) * sector_bytes
            partitions.append(Partition(number + 1, start * sector_bytes, length))
    end = max([(last + 1) * sector_bytes, *(each.start + each.length for each in partitions)])
    return Table("GPT", tuple(partitions), end, (backup + 1) * sector_bytes)


def _read_mbr(read: Reader, entries: list[bytes], sector_bytes: int) -> Iterator[Partition]:
    logical: list[Partition] = []
    for number, entry in enumerate(entries, 1):
        start, length = (each * sector_bytes for each in struct.unpack_from("<II", entry, 8))
        if length and entry[4] in _EXTENDED:
            yield Partition(number, start, min(length, max(sector_bytes, 1024)))
            _read_logical(read, start, sector_bytes, logical)
        elif length:
            yield Partition(number, start, length)
    yield from logical


def _read_logical(read: Reader, first: int, sector_bytes: int, found: list[Partition]) -> None:
    """Follow the extended boot records from byte `first`, whose links are relative to it."""
    at: int | None = first
    for _ in range(_MAX_LOGICAL):
        record = read(at, 512) if at is not None else b""
        if at is None or len(record) < 512 or record[510:] != b"\x55\xaa":
            return
        link = None
        for number in range(4):
            entry = record[446 + 16 * number : 462 + 16 * number]
            start, length = (each * sector_bytes for each in struct.unpack_from("<II", entry, 8))
            if not length:
                continue
            if entry[4] in _EXTENDED:
                link = first + start if link is None else link
            elif number < 2:  # Some systems leave rubbish in the others.
                found.append(Partition(5 + len(found), at + start, length))
        at = link


def refuse_too_large(url: str, image_bytes: int, disk: str, disk_bytes: int) -> None:
    """Refuse an image of at least `image_bytes` that the disk has no room for. Raises ActionError (DiskUnsuitable)."""
    if image_bytes > disk_bytes:
        message = f"{url}: the image has {image_bytes} bytes, and {disk} has {disk_bytes}"
        raise ActionError("DiskUnsuitable", f"{message}; use a larger disk or a smaller image")


def refuse_misfit(
    url: str,
    head: bytes,
    disk: str,
    disk_bytes: int,
    sector_bytes: int,
    *,
    image_bytes: int | None = None,
    is_strict: bool = True,
) -> Table | None:
    """Compare the partition table of an image with the disk, and return that table. Return None if there is none.

    `head` are the first bytes of the image. `image_bytes` is its size; None if the size is not known. `sector_bytes`
    is the disk's logical sector size. Without `is_strict` a damaged GPT counts as no table.
    Raises ActionError (DiskUnsuitable, ImageDamaged).
    """

    def read(offset: int, length: int) -> bytes:
        return head[offset : offset + length]

    sizes = read_sector_sizes(head)
    if sizes and sector_bytes not in sizes:
        raise _other_sectors(url, f"GPT is for sectors of {sizes[0]} bytes", disk, sector_bytes)
    try:
        table = read_table(read, sector_bytes)
    except DamagedTableError as error:
        if not is_strict:
            return None
        message = f"{url}: {error}; no system finds partitions in it; create the image again, or set IMG_FORMAT to raw"
        raise ActionError("ImageDamaged", f"{message} to write it unchanged") from None
    if table is None:
        return None
    if table.kind == "MBR" and sector_bytes != 512 and (image_bytes is None or table.end > image_bytes):
        # An MBR does not give the size of its sectors. Partitions that end within the image are proof enough.
        raise _other_sectors(url, "partition table (MBR) counts sectors of 512 bytes", disk, sector_bytes)
    # An image of unknown size ends with its backup GPT. One of known size may have been cut off behind its partitions.
    refuse_too_large(url, max(table.end, table.backup_end if image_bytes is None else 0), disk, disk_bytes)
    return table


def read_sector_sizes(head: bytes) -> list[int]:
    """Return the sector sizes for which an image with a protective MBR has a GPT header that names itself sector 1."""
    return [
        size
        for size in SECTOR_SIZES
        if _is_protective(head)
        and head.startswith(_SIGNATURE, size)
        and head[size + 24 : size + 32] == b"\1" + bytes(7)
    ]


def _other_sectors(url: str, what: str, disk: str, sector_bytes: int) -> ActionError:
    message = f"{url}: its {what}, and {disk} has sectors of {sector_bytes} bytes: it would have no partitions"
    remedy = f"use an image made for sectors of {sector_bytes} bytes, or another disk"
    return ActionError("DiskUnsuitable", f"{message}; {remedy}")
