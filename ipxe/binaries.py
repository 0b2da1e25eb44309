"""The iPXE boot programs: which file a machine's firmware can run, and the bytes of it.

A PXE ROM or a UEFI HTTP Boot client names its processor architecture (DHCP option 93, RFC 4578 section 2.1). DHCP asks
`BootBinaries.for_architectures` for the name of the boot file to offer; TFTP and HTTP ask `BootBinaries.get` for its
bytes. The files are those of one directory (Debian's package `ipxe` puts them in /usr/lib/ipxe), read once at start,
so that serving never touches the disk and a request can never name a file outside.

An architecture that has no file gets no file: a wrong one would hang the machine with nothing on its screen.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

BOOT_FILE_SUFFIXES = frozenset({".efi", ".kpxe", ".kkpxe", ".pxe"})
"""What firmware loads as a network boot program. The package's .rom, .lkrn and .iso files are for other loaders."""

MAX_BOOT_FILE_BYTES = 64 * 1024 * 1024
"""Larger files are no boot programs: iPXE is 0.1 to 2 MB, a unified kernel image may have some ten."""


class BinariesError(Exception):
    """The directory of iPXE binaries can't be used."""


class NoBinaryError(LookupError):
    """No file for the architecture that the machine named."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One line of IANA's registry "Processor Architecture Types".

    `candidates` are the names of files that run there, best first; empty where iPXE has no port.
    """

    code: int
    name: str
    candidates: tuple[str, ...] = ()


# undionly and snponly drive the network card through the firmware that has just used it, so they work wherever the
# ROM did; the builds with iPXE's own drivers come second. The names are those of Debian, of iPXE's releases
# (boot.ipxe.org, with -<arch>) and of Tinkerbell (snp-<arch>.efi).
_BIOS = ("undionly.kpxe", "undionly.kkpxe", "ipxe.pxe")
_X86_64 = ("snponly.efi", "snponly-x86_64.efi", "snp-x86_64.efi", "ipxe.efi", "ipxe-x86_64.efi")


def _efi(arch: str) -> tuple[str, ...]:
    return (f"snponly-{arch}.efi", f"snp-{arch}.efi", f"ipxe-{arch}.efi")


ARCHITECTURES: dict[int, Architecture] = {
    architecture.code: architecture
    for architecture in (
        Architecture(0, "x86 BIOS", _BIOS),
        Architecture(1, "NEC PC-98"),
        Architecture(2, "Itanium"),
        Architecture(3, "DEC Alpha"),
        Architecture(4, "ARC x86"),
        Architecture(5, "Intel Lean Client"),
        Architecture(6, "UEFI x86", _efi("i386")),
        Architecture(7, "UEFI x86-64", _X86_64),
        Architecture(8, "EFI Xscale"),
        # RFC 4578 as first printed called 9 "EFI x86-64" and 7 "EFI BC" (since mended by an erratum): ROMs written
        # after it send 9 and are x86-64 machines. No machine has ever been seen to need EFI byte code.
        Architecture(9, "UEFI x86-64 (EBC)", _X86_64),
        Architecture(10, "UEFI ARM 32-bit", _efi("arm32")),
        Architecture(11, "UEFI ARM 64-bit", _efi("arm64")),
        Architecture(12, "PowerPC Open Firmware"),
        Architecture(13, "PowerPC ePAPR"),
        Architecture(14, "POWER OPAL v3"),
        Architecture(15, "UEFI x86 HTTP", _efi("i386")),
        Architecture(16, "UEFI x86-64 HTTP", _X86_64),
        Architecture(17, "UEFI EBC HTTP", _X86_64),
        Architecture(18, "UEFI ARM 32-bit HTTP", _efi("arm32")),
        Architecture(19, "UEFI ARM 64-bit HTTP", _efi("arm64")),
        Architecture(20, "x86 BIOS HTTP", _BIOS),
        # U-Boot loads EFI programs where it is built with EFI, but names the same code where it is not.
        Architecture(21, "U-Boot ARM 32-bit"),
        Architecture(22, "U-Boot ARM 64-bit"),
        Architecture(23, "U-Boot ARM 32-bit HTTP"),
        Architecture(24, "U-Boot ARM 64-bit HTTP"),
        Architecture(25, "UEFI RISC-V 32-bit", _efi("riscv32")),
        Architecture(26, "UEFI RISC-V 32-bit HTTP", _efi("riscv32")),
        Architecture(27, "UEFI RISC-V 64-bit", _efi("riscv64")),
        Architecture(28, "UEFI RISC-V 64-bit HTTP", _efi("riscv64")),
        Architecture(29, "UEFI RISC-V 128-bit"),
        Architecture(30, "UEFI RISC-V 128-bit HTTP"),
        Architecture(31, "s390 Basic"),
        Architecture(32, "s390 Extended"),
        Architecture(33, "UEFI MIPS 32-bit"),
        Architecture(34, "UEFI MIPS 64-bit"),
        Architecture(35, "UEFI Sunway 32-bit"),
        Architecture(36, "UEFI Sunway 64-bit"),
        Architecture(37, "UEFI LoongArch 32-bit"),
        Architecture(38, "UEFI LoongArch 32-bit HTTP"),
        Architecture(39, "UEFI LoongArch 64-bit", _efi("loong64")),
        Architecture(40, "UEFI LoongArch 64-bit HTTP", _efi("loong64")),
        Architecture(41, "ARM rpiboot"),
    )
}
"""By code, in decimal (IANA, "DHCPv6 Parameters", "Processor Architecture Types"; DHCPv4 shares the registry)."""


def architecture_name(code: int) -> str:
    """The architecture in words; of a code that is not registered, its number."""
    known = ARCHITECTURES.get(code)
    return known.name if known is not None else f"architecture {code}"


@dataclass(frozen=True, slots=True)
class BootBinary:
    """One boot program. `etag` is an HTTP entity tag with its quotes, made of the content (RFC 9110 section 8.8.3)."""

    name: str
    content: bytes
    etag: str

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.content)


class BootBinaries:
    """The boot programs of one directory, in memory. A file that is added or changed is seen after a restart."""

    def __init__(self, directory: Path) -> None:
        """Read every boot file of `directory`.

        Raises:
            BinariesError: the directory or a file in it can't be read, or it holds no boot file.
        """
        self.directory = directory
        self._files: dict[str, BootBinary] = {}
        try:
            for path in sorted(directory.iterdir()):
                if path.suffix in BOOT_FILE_SUFFIXES and path.is_file():
                    self._read(path)
        except OSError as error:
            raise BinariesError(
                f"iPXE binaries: {error.filename or directory}: {error.strerror}; "
                "install the package ipxe, or name another directory with --ipxe-dir"
            ) from error
        if not self._files:
            suffixes = ", ".join(sorted(BOOT_FILE_SUFFIXES))
            raise BinariesError(
                f"iPXE binaries: {directory} has no boot file ({suffixes}); "
                "install the package ipxe, or name another directory with --ipxe-dir"
            )

    def _read(self, path: Path) -> None:
        size = path.stat().st_size
        if not 0 < size <= MAX_BOOT_FILE_BYTES:
            log.warning("iPXE binaries: %s is left out: %d bytes is no size of a boot file", path, size)
            return
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._files[path.name] = BootBinary(name=path.name, content=content, etag=etag)

    def names(self) -> list[str]:
        """The names of all boot files, sorted."""
        return list(self._files)

    def get(self, name: str) -> BootBinary | None:
        """The boot file of exactly this name (no directory part); None if there is none."""
        return self._files.get(name)

    def for_architectures(self, codes: Iterable[int]) -> BootBinary:
        """The best boot file for a machine that names these architectures, most preferred first.

        Raises:
            NoBinaryError: none of them has a file here. The message says for an operator what is missing.
        """
        codes = tuple(codes)
        wanted: list[str] = []
        for code in codes:
            known = ARCHITECTURES.get(code)
            if known is None:
                continue
            for name in known.candidates:
                found = self._files.get(name)
                if found is not None:
                    return found
            wanted.extend(known.candidates)
        raise NoBinaryError(self._missing(codes, wanted))

    def _missing(self, codes: tuple[int, ...], wanted: list[str]) -> str:
        if not codes:
            return "no iPXE binary: the machine does not name its architecture (DHCP option 93)"
        described = ", ".join(
            f"{code} ({architecture_name(code)})" if code in ARCHITECTURES else str(code) for code in codes[:4]
        )
        text = f"no iPXE binary for architecture {described}"
        if wanted:
            text += f"; put one of {', '.join(dict.fromkeys(wanted))} into {self.directory}"
        return text
