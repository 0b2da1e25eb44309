"""ISO 9660, as far as boot media need it: reads and writes the files of a root directory. Pure.

Written from ECMA-119 (the same standard, free to read) and the "El Torito" Bootable CD-ROM Format Specification 1.0,
with one directory and names of level 1, without extensions. The same input gives the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tink.errors import TinkedgeError

SECTOR = 2048
"""Bytes of a logical sector."""

_SYSTEM_AREA = 16  # sectors, for other boot loaders' use (ECMA-119 section 6.2.1)
_PRIMARY, _BOOT_RECORD, _TERMINATOR = 1, 0, 255  # volume descriptor types (section 8.1.1)
_IS_DIRECTORY = 0x02
_SELF, _PARENT = b"\0", b"\1"
_NO_DATE = bytes(7)  # section 9.1.5: not specified
_NO_LONG_DATE = b"0" * 16 + b"\0"
_CATALOG = "BOOT.CAT"
_DIRECTORY_RECORD, _PRIMARY_ROOT, _PRIMARY_NAME = 33, 156, 40
_MAX_FILES = 64
_TORITO = b"EL TORITO SPECIFICATION"


class IsoError(TinkedgeError, ValueError):
    """The bytes are no such file system, or the files don't fit into one."""


@dataclass(frozen=True, slots=True)
class BootImage:
    """A file that firmware boots. `sectors`: number of 512-byte sectors that it loads; all of them for UEFI."""

    name: str
    is_efi: bool
    sectors: int


@dataclass(frozen=True, slots=True)
class Iso:
    """A file system: its bytes, and at which byte each file begins."""

    content: bytearray
    at: Mapping[str, int]


def read_files(content: bytes) -> dict[str, bytes]:
    """Return the files of the root directory, by name in upper case without version. Raises IsoError."""
    primary = content[_SYSTEM_AREA * SECTOR : (_SYSTEM_AREA + 1) * SECTOR]
    if len(primary) < SECTOR or primary[:7] != bytes((_PRIMARY,)) + b"CD001\1":
        raise IsoError("it is no ISO 9660 image")
    extent, size = _extent(primary[_PRIMARY_ROOT:])
    directory = _slice(content, extent * SECTOR, size)
    files: dict[str, bytes] = {}
    at = 0
    while at < len(directory) and len(files) < _MAX_FILES:
        length = directory[at]
        if length == 0:  # records do not cross sectors (section 6.8.1.1)
            at = (at // SECTOR + 1) * SECTOR
            continue
        record = directory[at : at + length]
        if length <= _DIRECTORY_RECORD or len(record) < length:
            raise IsoError("its root directory is damaged")
        name = record[_DIRECTORY_RECORD : _DIRECTORY_RECORD + record[32]].partition(b";")[0].decode("ascii", "replace")
        if not record[25] & _IS_DIRECTORY:
            extent, size = _extent(record)
            files[name.upper()] = _slice(content, extent * SECTOR, size)
        at += length
    return files


def write(label: str, files: Mapping[str, bytes], boot: list[BootImage]) -> Iso:
    """Create an image with these files (level 1 names: `IPXE.KRN`) that boots those in `boot`. Raises IsoError."""
    sectors = {name: -(-len(content) // SECTOR) for name, content in files.items()}
    names = sorted([*files, _CATALOG], key=lambda name: name.partition(".")[::2])
    volume = _SYSTEM_AREA + 3
    little, big, root, catalog = range(volume, volume + 4)
    extents, at = {_CATALOG: catalog}, catalog + 1
    for name in files:
        extents[name] = at
        at += sectors[name]
    sizes = {name: len(content) for name, content in files.items()} | {_CATALOG: SECTOR}
    records = [_record(_SELF, root, SECTOR, _IS_DIRECTORY), _record(_PARENT, root, SECTOR, _IS_DIRECTORY)]
    records += [_record(f"{name};1".encode("ascii"), extents[name], sizes[name]) for name in names]
    directory = b"".join(records)
    if len(directory) > SECTOR:
        raise IsoError("these are more files than one sector describes")
    content = bytearray(at * SECTOR)
    for sector, written in {
        _SYSTEM_AREA: _primary(label, at, root, little, big),
        _SYSTEM_AREA + 1: _boot_record(catalog),
        _SYSTEM_AREA + 2: bytes((_TERMINATOR,)) + b"CD001\1",
        little: struct.pack("<BBIH2s", 1, 0, root, 1, b"\0"),
        big: struct.pack(">BBIH2s", 1, 0, root, 1, b"\0"),
        root: directory,
        catalog: _boot_catalog(boot, extents),
        **{extents[name]: files[name] for name in files},
    }.items():
        content[sector * SECTOR : sector * SECTOR + len(written)] = written
    return Iso(content, {name: extents[name] * SECTOR for name in files})


def _slice(content: bytes, at: int, size: int) -> bytes:
    found = content[at : at + size]
    if len(found) < size:
        raise IsoError("it is cut off")
    return found


def _extent(record: bytes) -> tuple[int, int]:
    """Return the first sector and the size in bytes in a directory record (section 9.1)."""
    (extent,), (size,) = struct.unpack_from("<I", record, 2), struct.unpack_from("<I", record, 10)
    return extent, size


def _both(number: int) -> bytes:
    """Return 32 bits in both byte orders (section 7.3.3)."""
    return struct.pack("<I", number) + struct.pack(">I", number)


def _both_short(number: int) -> bytes:
    return struct.pack("<H", number) + struct.pack(">H", number)


def _record(name: bytes, extent: int, size: int, flags: int = 0) -> bytes:
    """Return a directory record (section 9.1)."""
    padded = name if len(name) % 2 else name + b"\0"
    body = b"\0" + _both(extent) + _both(size) + _NO_DATE + bytes((flags, 0, 0)) + _both_short(1)
    return bytes((_DIRECTORY_RECORD + len(padded),)) + body + bytes((len(name),)) + padded


def _primary(label: str, sectors: int, root: int, little: int, big: int) -> bytes:
    """Return the primary volume descriptor (section 8.4)."""
    return b"".join(
        (
            bytes((_PRIMARY,)) + b"CD001\1\0",
            b" " * 32 + label.encode("ascii")[:32].ljust(32) + bytes(8),
            _both(sectors) + bytes(32),
            _both_short(1) + _both_short(1) + _both_short(SECTOR),
            _both(10),  # bytes of the path table
            struct.pack("<II", little, 0) + struct.pack(">II", big, 0),
            _record(_SELF, root, SECTOR, _IS_DIRECTORY),
            b" " * (128 * 4 + 37 * 3),  # volume set, publisher, preparer, application; files that describe it
            _NO_LONG_DATE * 4,
            b"\1",
        )
    )


def _boot_record(catalog: int) -> bytes:
    """Return the boot record (El Torito section 2.0)."""
    return bytes((_BOOT_RECORD,)) + b"CD001\1" + _TORITO.ljust(64, b"\0") + struct.pack("<I", catalog)


def _boot_catalog(boot: list[BootImage], extents: Mapping[str, int]) -> bytes:
    """Return the boot catalog: validation entry, first image, a section per further image (El Torito 2.1 to 2.4)."""
    first, *others = boot
    validation = struct.pack("<BBH24sH", 1, _platform(first), 0, b"", 0) + b"\x55\xaa"
    checksum = -sum(struct.unpack("<16H", validation)) & 0xFFFF
    catalog = validation[:28] + struct.pack("<H", checksum) + validation[30:] + _boot_entry(first, extents)
    for number, image in enumerate(others, 1):
        header = 0x91 if number == len(others) else 0x90
        catalog += struct.pack("<BBH28s", header, _platform(image), 1, b"") + _boot_entry(image, extents)
    return catalog


def _platform(image: BootImage) -> int:
    return 0xEF if image.is_efi else 0  # UEFI 2.10 section 13.3.2.1


def _boot_entry(image: BootImage, extents: Mapping[str, int]) -> bytes:
    """Return an entry: bootable, no emulation, default segment."""
    return struct.pack("<BBHBBHI20s", 0x88, 0, 0, 0, 0, image.sectors, extents[image.name], b"")
