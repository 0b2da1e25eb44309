"""The FAT file system from which UEFI firmware boots (UEFI 2.10 section 13.3). Pure.

It is FAT12, by the number of clusters (Microsoft's "FAT: General Overview of On-Disk Format" 1.03). Every file is
contiguous, so that its position is known.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tink.errors import TinkedgeError

_SECTOR = 512
_SECTORS_OF_CLUSTER = 4
_CLUSTER = _SECTOR * _SECTORS_OF_CLUSTER
_RESERVED, _FATS, _ROOT_ENTRIES = 1, 2, 64
_MAX_CLUSTERS = 4084  # one more makes it FAT16
_FIRST, _LAST = 2, 0xFFF  # the first cluster's number; the mark of the last one of a file
_MEDIUM = 0xF8
_IS_DIRECTORY, _LABEL, _LONG_NAME = 0x10, 0x08, 0x0F
_DATE = (1 << 5) | 1  # 1980-01-01
_LONG_CHARACTERS = 13


class FatError(TinkedgeError, ValueError):
    """These files do not fit."""


@dataclass(frozen=True, slots=True)
class Fat:
    """A file system: its bytes, and at which byte each file begins, by path."""

    content: bytes
    at: Mapping[str, int]


@dataclass(slots=True)
class _Directory:
    cluster: int = 0
    """0: the root."""
    entries: list[bytes] = field(default_factory=list)


def write(label: str, files: Mapping[str, bytes]) -> Fat:
    """Create a file system with these files, by path (`EFI/BOOT/BOOTX64.EFI`), and their directories.

    A name that is not a short one (8.3) has at most 13 characters, and its first six are unique in its directory.
    Raises FatError.
    """
    root = _Directory(entries=[_entry(label.encode("ascii")[:11].ljust(11), _LABEL, 0, 0)])
    directories = {"": root}
    chains: list[tuple[int, int]] = []  # first cluster, and how many
    following = _FIRST

    def take(size: int) -> int:
        nonlocal following
        first, count = following, max(1, -(-size // _CLUSTER))
        chains.append((first, count))
        following += count
        return first

    for path in files:
        parts = path.split("/")[:-1]
        for depth in range(len(parts)):
            name, parent = "/".join(parts[: depth + 1]), directories["/".join(parts[:depth])]
            if name not in directories:
                made = directories[name] = _Directory(take(_CLUSTER))
                made.entries += [_entry(b".".ljust(11), _IS_DIRECTORY, made.cluster, 0)]
                made.entries += [_entry(b"..".ljust(11), _IS_DIRECTORY, parent.cluster, 0)]
                parent.entries += _named(parts[depth], _IS_DIRECTORY, made.cluster, 0)
    clusters = {path: take(len(content)) for path, content in files.items()}
    for path, content in files.items():
        parent_path, _, name = path.rpartition("/")
        directories[parent_path].entries += _named(name, 0, clusters[path], len(content))
    if following - _FIRST > _MAX_CLUSTERS or len(b"".join(root.entries)) > _ROOT_ENTRIES * 32:
        raise FatError("they are too large, or too many")
    return _laid_out(root, directories, files, clusters, chains, following - _FIRST)


def _laid_out(
    root: _Directory,
    directories: Mapping[str, _Directory],
    files: Mapping[str, bytes],
    clusters: Mapping[str, int],
    chains: list[tuple[int, int]],
    count: int,
) -> Fat:
    fat_sectors = -(-((count + _FIRST) * 3 // 2 + 1) // _SECTOR)
    root_at = (_RESERVED + _FATS * fat_sectors) * _SECTOR
    begins = root_at + _ROOT_ENTRIES * 32

    def at(cluster: int) -> int:
        return begins + (cluster - _FIRST) * _CLUSTER

    content = bytearray(at(_FIRST + count))
    content[:_SECTOR] = _boot_sector(len(content) // _SECTOR, fat_sectors)
    table = _table(chains, fat_sectors * _SECTOR)
    for number in range(_FATS):
        place = (_RESERVED + number * fat_sectors) * _SECTOR
        content[place : place + len(table)] = table
    for directory in directories.values():
        place, entries = (root_at if directory is root else at(directory.cluster)), b"".join(directory.entries)
        content[place : place + len(entries)] = entries
    places = {path: at(cluster) for path, cluster in clusters.items()}
    for path, place in places.items():
        content[place : place + len(files[path])] = files[path]
    return Fat(bytes(content), places)


def _boot_sector(sectors: int, fat_sectors: int) -> bytes:
    """The BIOS parameter block (section "Boot Sector and BPB"), and code that nothing runs."""
    block = struct.pack(
        "<3s8sHBHBHHBHHHII",
        *(b"\xeb\x3c\x90", b"MSWIN4.1", _SECTOR, _SECTORS_OF_CLUSTER, _RESERVED, _FATS, _ROOT_ENTRIES),
        *(sectors if sectors < 0x10000 else 0, _MEDIUM, fat_sectors, 32, 64, 0, sectors if sectors >= 0x10000 else 0),
    )
    block += struct.pack("<BBBI11s8s", 0x80, 0, 0x29, 0x1BA0E0F1, b"IPXE".ljust(11), b"FAT12".ljust(8))
    return block.ljust(_SECTOR - 2, b"\0") + b"\x55\xaa"


def _table(chains: list[tuple[int, int]], size: int) -> bytes:
    """Return the table of each cluster's successor: twelve bits each."""
    entries = [0xF00 | _MEDIUM, _LAST]
    for first, count in chains:
        entries += [*range(first + 1, first + count), _LAST]
    entries += [0] * (len(entries) % 2)
    packed = bytearray()
    for low, high in zip(entries[::2], entries[1::2], strict=True):
        packed += struct.pack("<I", low | high << 12)[:3]
    return bytes(packed).ljust(size, b"\0")


def _entry(short: bytes, attributes: int, cluster: int, size: int) -> bytes:
    return struct.pack("<11sBBBHHHHHHHI", short, attributes, 0, 0, 0, _DATE, _DATE, 0, 0, _DATE, cluster, size)


def _named(name: str, attributes: int, cluster: int, size: int) -> list[bytes]:
    """Return the entries of a name: the short one, preceded by the long one if that differs."""
    stem, _, extension = name.partition(".")
    if len(stem) <= 8 and len(extension) <= 3 and name == name.upper():
        return [_entry((stem.ljust(8) + extension.ljust(3)).encode("ascii"), attributes, cluster, size)]
    if len(name) > _LONG_CHARACTERS:
        raise FatError(f"{name} has more than {_LONG_CHARACTERS} characters")
    short = (f"{stem[:6].upper()}~1".ljust(8) + extension[:3].upper().ljust(3)).encode("ascii")
    text = name.encode("utf-16-le")
    if len(name) < _LONG_CHARACTERS:
        text = (text + b"\0\0").ljust(2 * _LONG_CHARACTERS, b"\xff")
    last = 0x41  # the first part, and the last one
    long = struct.pack("<B10sBBB12sH4s", last, text[:10], _LONG_NAME, 0, _checksum(short), text[10:22], 0, text[22:])
    return [long, _entry(short, attributes, cluster, size)]


def _checksum(short: bytes) -> int:
    """Return the checksum of a short name, which links the long one to it (section "Long Directory Entries")."""
    total = 0
    for byte in short:
        total = ((total & 1) << 7 | total >> 1) + byte & 0xFF
    return total
