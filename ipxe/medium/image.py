"""The image of a boot medium, from the files of Debian's package `ipxe`, with a machine's script.

    BIOS, from a CD         El Torito -> isolinux -> ipxe.krn with the script as its initrd
    BIOS, from a disk       the master boot record, which loads the same isolinux ("isohybrid")
    UEFI, from either       the FAT image (El Torito, and a partition of type 0xEF) -> EFI/BOOT/BOOTX64.EFI, which is
                            iPXE -> autoexec.ipxe beside it

Master boot record and isolinux are those of the package's ipxe.iso; iPXE for UEFI is one file per processor. A
directory with only one of both gives media that boot only that way. iPXE reads autoexec.ipxe since 2022: an older one
for UEFI (Debian 12's) boots from the medium, but requests an address by DHCP, whatever the script says.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipxe.medium import fat, iso9660
from ipxe.medium.iso9660 import SECTOR
from tink.errors import TinkedgeError

AREA_BYTES: Final = 4096
"""Size of each area that holds the script, padded."""

CHUNK_BYTES: Final = 256 * 1024
"""Maximum size of a piece of an image."""

_PACKAGE_IMAGE = "ipxe.iso"
_ISOLINUX, _KERNEL, _LIBRARY = "ISOLINUX.BIN", "IPXE.KRN", "LDLINUX.C32"
_SCRIPT, _CONFIGURATION, _EFI_IMAGE = "SCRIPT.IPX", "ISOLINUX.CFG", "EFI.IMG"
_ISOLINUX_CFG = b"DEFAULT ipxe\nLABEL ipxe\n KERNEL ipxe.krn\n INITRD script.ipx\n"
# Preferred over the kernel in ipxe.iso, because it may be newer, or the operator's own.
_LINUX_KERNEL = "ipxe.lkrn"

# Files for each boot path, best first: those with iPXE's own drivers, because the firmware has not used the card.
_EFI_PROGRAMS: Final = {
    "EFI/BOOT/BOOTX64.EFI": ("ipxe-amd64.efi", "ipxe-x86_64.efi", "x86_64/ipxe.efi", "ipxe.efi"),
    "EFI/BOOT/BOOTAA64.EFI": ("ipxe-arm64.efi", "arm64/ipxe.efi"),
}
_PROCESSORS: Final = {"EFI/BOOT/BOOTX64.EFI": "UEFI x86-64", "EFI/BOOT/BOOTAA64.EFI": "UEFI arm64"}
ALL_BOOTS: Final = ("BIOS", *_PROCESSORS.values())
"""All kinds of machine that a medium can boot."""
_AUTOEXEC = "autoexec.ipxe"

# Maximum size of a boot program.
_MAX_BYTES = 32 * 1024 * 1024

_HYBRID_MAGIC = struct.pack("<I", 0x7078C0FB)  # isolinux.bin has it where it can be loaded by the record (isolinux.asm)
_HYBRID_MAGIC_AT, _HYBRID_RECORD, _HYBRID_LBA_AT = 64, b"\x33\xed", 0x1B0
_PARTITIONS_AT = 0x1BE
_BOOT_TABLE_AT = 8  # of isolinux.bin, where mkisofs' -boot-info-table writes what follows


class MediumError(TinkedgeError):
    """No image can be made; the message has the missing files and the remedy."""


@dataclass(frozen=True, slots=True)
class Medium:
    """An image without a machine's script.

    `areas`: offsets in bytes of the script. `boots`: the kinds of machine that boot from it, for people (`BIOS`, `UEFI
    x86-64`); `by_dhcp_only` are those that ignore the script.
    """

    content: bytes
    areas: tuple[int, ...]
    boots: tuple[str, ...]
    by_dhcp_only: tuple[str, ...]
    digest: bytes

    @property
    def size(self) -> int:
        """Return the length in bytes, the same for every machine."""
        return len(self.content)

    @property
    def described(self) -> str:
        """Return a description in one line."""
        line = f"{self.size / 1e6:.1f} MB, for {', '.join(self.boots)}"
        if self.by_dhcp_only:
            line += (
                f" ({', '.join(self.by_dhcp_only)} by DHCP only, because this iPXE does not run autoexec.ipxe: "
                "set --ipxe-dir to a directory with an iPXE of 2022 or later)"
            )
        return line

    def written(self, script: str) -> Written:
        """Return the image with a script. Raises MediumError if the script is too long."""
        encoded = script.rstrip("\n").encode() + b"\n"
        rest = AREA_BYTES - len(encoded)
        if rest < 0:
            raise MediumError(f"its script has {len(encoded)} bytes, and {AREA_BYTES} have room on the medium")
        # iPXE reads lines, and skips those with #: so the rest of the area is comments.
        area = encoded + (b"#" * (rest - 1) + b"\n" if rest else b"")
        return Written(self, area, f'"{hashlib.sha256(self.digest + area).hexdigest()[:32]}"')


@dataclass(frozen=True, slots=True)
class Written:
    """One machine's image. `etag` is an HTTP entity tag with its quotes, made of the content (RFC 9110 8.8.3)."""

    medium: Medium
    area: bytes
    etag: str

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        return self.medium.size

    def pieces(self, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes from `start` to before `end`, in pieces of at most CHUNK_BYTES."""
        at, whole = start, memoryview(self.medium.content)
        for place in sorted(self.medium.areas):
            yield from _chunks(whole, at, min(end, place))
            at = max(at, min(end, place))
            upto = min(end, place + AREA_BYTES)
            if at < upto:
                yield self.area[at - place : upto - place]
                at = upto
        yield from _chunks(whole, at, end)


def _chunks(whole: memoryview, start: int, end: int) -> Iterator[memoryview]:
    for at in range(start, end, CHUNK_BYTES):
        yield whole[at : min(end, at + CHUNK_BYTES)]


def make_medium(directory: Path) -> Medium:
    """Make the image from a directory (as for `ipxe.binaries.BootBinaries`). Takes some hundredths of a second.

    Raises MediumError if nothing in the directory boots from a medium, or if it can't be read.
    """
    try:
        package = _read(directory / _PACKAGE_IMAGE)
        kernel = _read(directory / _LINUX_KERNEL)
        programs = {place: found for place, names in _EFI_PROGRAMS.items() if (found := _first(directory, names))}
    except OSError as error:
        raise MediumError(f"boot media: {error.filename or directory}: {error.strerror}") from error
    bios: dict[str, bytes] = {}
    if package is not None:
        try:
            held = iso9660.read_files(package)
        except iso9660.IsoError as error:
            raise MediumError(f"boot media: {directory / _PACKAGE_IMAGE}: {error}") from error
        bios = {name: held[name] for name in (_ISOLINUX, _LIBRARY, _KERNEL) if name in held}
        if len(bios) < 3 or len(bios[_ISOLINUX]) < SECTOR:
            bios = {}
        elif kernel is not None:
            bios[_KERNEL] = kernel
    if not bios and not programs:
        wanted = ", ".join((_PACKAGE_IMAGE, *(names[0] for names in _EFI_PROGRAMS.values())))
        raise MediumError(
            f"boot media: {directory} has none of {wanted}: install the package ipxe, or name with --ipxe-dir a "
            "directory that has them"
        )
    return _made(package or b"", bios, programs)


def _made(package: bytes, bios: dict[str, bytes], programs: dict[str, bytes]) -> Medium:
    empty = b"#!ipxe\n".ljust(AREA_BYTES - 1, b"#") + b"\n"
    files, boot, areas = {}, [], []
    if bios:
        files = bios | {_CONFIGURATION: _ISOLINUX_CFG, _SCRIPT: empty}
        boot.append(iso9660.BootImage(_ISOLINUX, is_efi=False, sectors=4))
    efi: fat.Fat | None = None
    if programs:
        try:
            efi = fat.write("IPXE", {**programs, _AUTOEXEC: empty})
        except fat.FatError as error:
            raise MediumError(f"boot media: the programs for UEFI: {error}") from error
        files[_EFI_IMAGE] = efi.content
        boot.append(iso9660.BootImage(_EFI_IMAGE, is_efi=True, sectors=min(0xFFFF, len(efi.content) // 512)))
    iso = iso9660.write("IPXE", files, boot)
    if bios:
        areas.append(iso.at[_SCRIPT])
        _tell_isolinux(iso.content, iso.at[_ISOLINUX], len(bios[_ISOLINUX]))
    if efi is not None:
        areas.append(iso.at[_EFI_IMAGE] + efi.at[_AUTOEXEC])
    _write_record(iso, package if bios else b"", len(efi.content) if efi is not None else 0)
    content = bytes(iso.content)
    deaf = tuple(_PROCESSORS[place] for place, program in programs.items() if _AUTOEXEC.encode() not in program)
    boots = (("BIOS",) if bios else ()) + tuple(_PROCESSORS[place] for place in programs)
    return Medium(content, tuple(areas), boots, deaf, hashlib.sha256(content).digest())


def _tell_isolinux(content: bytearray, at: int, size: int) -> None:
    """Write isolinux' position and checksum into its boot info table, by which it loads the rest of itself."""
    padded = bytes(content[at + 64 : at + -(-size // 4) * 4])
    checksum = sum(struct.unpack(f"<{len(padded) // 4}I", padded)) & 0xFFFFFFFF
    table = struct.pack("<IIII40s", 16, at // SECTOR, size, checksum, b"")
    content[at + _BOOT_TABLE_AT : at + _BOOT_TABLE_AT + len(table)] = table


def _write_record(iso: iso9660.Iso, package: bytes, efi_size: int) -> None:
    """Write the master boot record: code for BIOS, and the partition of the FAT image for UEFI."""
    content, record = iso.content, bytearray(512)
    if _ISOLINUX in iso.at:
        at = iso.at[_ISOLINUX]
        if (
            package[:2] == _HYBRID_RECORD
            and content[at + _HYBRID_MAGIC_AT : at + _HYBRID_MAGIC_AT + 4] == _HYBRID_MAGIC
        ):
            record[:_HYBRID_LBA_AT] = package[:_HYBRID_LBA_AT]
            struct.pack_into("<QI", record, _HYBRID_LBA_AT, at // 512, 0x1BA0E0F1)
    # The first partition is the whole image, of type 0, as on Debian's own media. A BIOS that boots only an active
    # partition finds one. UEFI, which refuses overlapping partitions, ignores partitions of that type.
    partitions = [(0x80, 0x00, 0, len(content) // 512)]
    if efi_size:
        partitions.append((0, 0xEF, iso.at[_EFI_IMAGE] // 512, efi_size // 512))
    for number, (flag, kind, first, sectors) in enumerate(partitions):
        start = b"\x00\x01\x00" if first == 0 else b"\xfe\xff\xff"
        packed = struct.pack("<B3sB3sII", flag, start, kind, b"\xfe\xff\xff", first, sectors)
        record[_PARTITIONS_AT + 16 * number : _PARTITIONS_AT + 16 * (number + 1)] = packed
    record[510:] = b"\x55\xaa"
    content[:512] = record


def _first(directory: Path, names: tuple[str, ...]) -> bytes | None:
    return next((found for name in names if (found := _read(directory / name)) is not None), None)


def _read(path: Path) -> bytes | None:
    """Return a file's bytes; None if it does not exist or is no boot program."""
    if not path.is_file() or not 0 < path.stat().st_size <= _MAX_BYTES:
        return None
    return path.read_bytes()
