"""A directory as Debian's package `ipxe` fills it, with programs that are none."""

from __future__ import annotations

from pathlib import Path

from ipxe.medium.iso9660 import BootImage, write

ISOLINUX = b"\xfa" * 64 + (0x7078C0FB).to_bytes(4, "little") + bytes(range(256)) * 20
KERNEL, LIBRARY = b"kernel" * 5000, b"library" * 900
RECORD = b"\x33\xed" + b"\x90" * 430
X64, ARM64 = b"MZ amd64 file:autoexec.ipxe" + bytes(9000), b"MZ arm64 file:autoexec.ipxe" + bytes(7001)


def fill(directory: Path, *, bios: bool = True, efi: bool = True) -> Path:
    directory.mkdir(exist_ok=True)
    if bios:
        files = {"ISOLINUX.BIN": ISOLINUX, "LDLINUX.C32": LIBRARY, "IPXE.KRN": KERNEL}
        image = write("OLD", files, [BootImage("ISOLINUX.BIN", is_efi=False, sectors=4)]).content
        image[: len(RECORD)] = RECORD
        (directory / "ipxe.iso").write_bytes(image)
    if efi:
        (directory / "ipxe-amd64.efi").write_bytes(X64)
        (directory / "ipxe-arm64.efi").write_bytes(ARM64)
    return directory
