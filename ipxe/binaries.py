"""The iPXE boot programs: selects the file for a machine's firmware, and holds the bytes.

A PXE ROM or a UEFI HTTP Boot client names its processor architecture (DHCP option 93, RFC 4578 section 2.1). DHCP asks
`BootBinaries.for_architectures` for the name of the boot file; TFTP and HTTP ask `BootBinaries.get` for its bytes. All
files come from one directory and are read once at start. So serving never touches the disk, and a request can't name a
file outside. Three layouts are supported:

    Debian's package `ipxe` (/usr/lib/ipxe)     snponly.efi, undionly.kpxe, ipxe-arm64.efi
    an unpacked `ipxeboot.tar.gz` of iPXE 2     snponly.efi, arm64/snponly.efi, x86_64-sb/snponly.efi, ...
    single files of the operator                snponly-arm64.efi, snp-arm64.efi (Tinkerbell's name)

Secure Boot: no DHCP option announces it. If the directory has an iPXE shim, all UEFI machines of its architecture get
the shim, which runs everywhere.

The other path with Secure Boot is GRUB (`BootPath.GRUB`): a distribution's shim runs that distribution's GRUB, which
runs its kernels (`ipxe.grub` has the script). Both come from Debian's packages, or from a directory with the names that
shims request.

An architecture without a file gets none: a wrong file would hang the machine with an empty screen.

DHCPv4 and DHCPv6 clients declare themselves in common words, which the functions at the end read. `edge.dhcp` and
`edge.dhcp6` identify a client by these and by the options of their own protocol.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tink.errors import TinkedgeError

log = logging.getLogger(__name__)

# Suffixes of network boot programs. The package's .rom, .lkrn and .iso files are for other loaders.
BOOT_FILE_SUFFIXES = frozenset({".efi", ".kpxe", ".kkpxe", ".pxe"})

MAX_BOOT_FILE_BYTES = 64 * 1024 * 1024
"""Maximum size of a boot program: iPXE has 0.1 to 2 MB, a unified kernel image may have some tens."""

_OPTIONAL = re.compile(r"(revocations(_sku|_sbat)?|shim_certificate(_\d+)?)\.efi", re.IGNORECASE)


def is_optional(name: str) -> bool:
    """Return True for a file that shim 16 requests beside its own, and can do without."""
    return _OPTIONAL.fullmatch(name) is not None


class BootPath(StrEnum):
    """The program by which a machine gets from its firmware to the kernel."""

    IPXE = "ipxe"
    GRUB = "grub"
    """A distribution's shim and GRUB, where the firmware can run them; iPXE on any other machine."""
    AUTO = "auto"
    """iPXE first, then GRUB on a machine whose firmware did not run iPXE (`edge.machines.policy`)."""
    UKI = "uki"
    """The OSIE itself, as one signed program for UEFI; iPXE on firmware without UEFI."""


class BinariesError(TinkedgeError):
    """The directory of iPXE binaries can't be used."""


class NoBinariesError(BinariesError):
    """The directory of iPXE binaries is missing, unreadable or without a boot file; that may change later."""


class NoBinaryError(TinkedgeError, LookupError):
    """There is no file for the machine's architecture."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One line of IANA's registry "Processor Architecture Types".

    `candidates` are the names of files that run there, best first; empty where iPXE has no port. `shim` is the name of
    the one that a distribution has signed; empty: none has.
    """

    code: int
    name: str
    candidates: tuple[str, ...] = ()
    shim: str = ""


# undionly and snponly drive the network card through the firmware that has just used it, so they work wherever the
# ROM did; the builds with iPXE's own drivers come second. Of one kind of program the name for just this architecture
# comes first. The names are those of Debian (ipxe-amd64.efi from Debian 13 on), of iPXE's releases, flattened, and of
# Tinkerbell (snp-<arch>.efi).
_BIOS = ("undionly.kpxe", "undionly-i386.kpxe", "undionly-x86_64.kpxe", "undionly.kkpxe", "ipxe.pxe")


def _efi(arch: str) -> tuple[str, ...]:
    return (f"snponly-{arch}.efi", f"snp-{arch}.efi", f"ipxe-{arch}.efi")


def _shims(arch: str) -> tuple[str, ...]:
    return tuple(f"{stem}-{arch}{signed}-shim.efi" for stem in ("snponly", "ipxe") for signed in ("-sb", ""))


# A name that says no architecture is the x86-64 one, in Debian and in iPXE's releases alike.
_X86_64 = (
    *("snponly-shim.efi", "ipxe-shim.efi", *_shims("x86_64")),
    *("snponly.efi", "snponly-x86_64.efi", "snp-x86_64.efi", "ipxe.efi", "ipxe-x86_64.efi", "ipxe-amd64.efi"),
)
_ARM64 = (*_shims("arm64"), *_efi("arm64"))

KINDS: Final = {"bios": _BIOS, "x86_64": _X86_64, "arm64": _ARM64}
"""Kinds of machine for which an operator can name a file of his own (one that his site has signed), by his name."""

SMEE_NAMES: Final = {
    "undionly.kpxe": _BIOS,
    "ipxe.efi": _X86_64,
    "snp-x86_64.efi": _X86_64,
    "snp-arm64.efi": _ARM64,
    "snp.efi": _ARM64,  # of its first years
}
"""Smee's names for its programs, which are configured in DHCP servers and firmware of existing sites."""
# Suffix that Smee adds to a name for tracing (W3C Trace Context, section 3.2.2).
_TRACE = re.compile(r"-[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")

_SHIM_X64, _SHIM_AA64 = "shimx64.efi", "shimaa64.efi"

# The file that a distribution's shim requests from its own directory. The name is built in (shim's DEFAULT_LOADER).
GRUB_OF: Final = {_SHIM_X64: "grubx64.efi", _SHIM_AA64: "grubaa64.efi"}

# Paths of shim and GRUB in Debian and Ubuntu, from shim-signed, and grub-efi-amd64-signed or grub-efi-arm64-signed. The
# GRUB is the image for the network, which has the modules for it and requests `grub/grub.cfg` from its server.
_SIGNED: Final = {
    _SHIM_X64: Path("/usr/lib/shim/shimx64.efi.signed"),
    "grubx64.efi": Path("/usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"),
    _SHIM_AA64: Path("/usr/lib/shim/shimaa64.efi.signed"),
    "grubaa64.efi": Path("/usr/lib/grub/arm64-efi-signed/grubnetaa64.efi.signed"),
}
_PACKAGES: Final = {
    _SHIM_X64: "shim-signed and grub-efi-amd64-signed",
    _SHIM_AA64: "shim-signed and grub-efi-arm64-signed",
}
_SPEAKS_HTTP: Final = b"HTTP/1.1"  # what GRUB's module http sends, if it is inside: in Debian from 2.12 on

_RELEASE_DIRECTORY = re.compile(r"(i386|x86_64|arm32|arm64|loong64|riscv32|riscv64)(-sb)?")
_SHIM = re.compile(r"-shim[a-z0-9]{0,4}(?=\.efi$)")


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
        Architecture(7, "UEFI x86-64", _X86_64, _SHIM_X64),
        Architecture(8, "EFI Xscale"),
        # RFC 4578 as first printed called 9 "EFI x86-64" and 7 "EFI BC" (corrected by an erratum): ROMs written
        # after it send 9 and are x86-64 machines. No machine has ever been seen to need EFI byte code.
        Architecture(9, "UEFI x86-64 (EBC)", _X86_64, _SHIM_X64),
        Architecture(10, "UEFI ARM 32-bit", _efi("arm32")),
        Architecture(11, "UEFI ARM 64-bit", _ARM64, _SHIM_AA64),
        Architecture(12, "PowerPC Open Firmware"),
        Architecture(13, "PowerPC ePAPR"),
        Architecture(14, "POWER OPAL v3"),
        Architecture(15, "UEFI x86 HTTP", _efi("i386")),
        Architecture(16, "UEFI x86-64 HTTP", _X86_64, _SHIM_X64),
        Architecture(17, "UEFI EBC HTTP", _X86_64, _SHIM_X64),
        Architecture(18, "UEFI ARM 32-bit HTTP", _efi("arm32")),
        Architecture(19, "UEFI ARM 64-bit HTTP", _ARM64, _SHIM_AA64),
        Architecture(20, "x86 BIOS HTTP", _BIOS),
        # Most builds of U-Boot run EFI programs (bootefi). One that can't requests the file in vain, but does not
        # hang: it loads the file into memory and goes on with its own boot script.
        Architecture(21, "U-Boot ARM 32-bit", _efi("arm32")),
        Architecture(22, "U-Boot ARM 64-bit", _efi("arm64")),
        Architecture(23, "U-Boot ARM 32-bit HTTP", _efi("arm32")),
        Architecture(24, "U-Boot ARM 64-bit HTTP", _efi("arm64")),
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
        # The ROM of a Raspberry Pi runs its own firmware and nothing else: see edge.dhcp.boot.choice.
        Architecture(41, "ARM rpiboot"),
    )
}
"""By code, in decimal (IANA, "DHCPv6 Parameters", "Processor Architecture Types"; DHCPv4 shares the registry)."""


def architecture_name(code: int) -> str:
    """Return the architecture in words; for an unregistered code, its number."""
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
        """Return the length in bytes."""
        return len(self.content)


def after_shim(name: str) -> str | None:
    """Return the file that an iPXE shim of this name requests; None if it is no shim."""
    # The shim requests its second stage from the same server, under its own name without `-shim`, `-shimx64` or
    # `-shimaa64` (ipxe/shim, automatic_next_path). It takes the name from the DHCP header's `file` or its own URL.
    second_stage, shims = _SHIM.subn("", name)
    return second_stage if shims else None


class BootBinaries:
    """The boot programs of one directory, in memory. Added or changed files are read after a restart."""

    def __init__(
        self,
        directory: Path,
        shims: Path | None = None,
        usual_path: BootPath = BootPath.IPXE,
        named: Mapping[str, str] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Read every boot file of `directory`, and the shims and GRUBs of `shims` (None: of this host's packages).

        `usual_path` is that of machines whose Hardware names none. `named` are files of `directory` that come before
        all others, by the kind of machine that gets them (KINDS). With `waits`, a directory without boot files is
        logged, and `reread` reads it again.

        Raises:
            BinariesError: a directory or a file in it can't be read, or `directory` holds no boot file.
        """
        self.directory = directory
        self._shims = shims
        self._usual_path = usual_path
        self._wanted = dict(named or {})
        self._files: dict[str, BootBinary] = {}
        self._named: dict[tuple[str, ...], str] = {}
        self.problem = ""
        """The reason why there are no boot programs yet; empty if there are."""
        try:
            self._load()
        except NoBinariesError as error:
            if not waits:
                raise
            self.problem = str(error)
            log.error("no machine gets a boot program until then, and it is read again: %s", error)

    def reread(self) -> bool:
        """Read the directory again if it had no boot files. Return False if it still has none; the log says why."""
        if not self.problem:
            return True
        try:
            self._load()
        except BinariesError as error:
            if str(error) != self.problem:
                log.error("%s", error)
            self.problem = str(error)
            return False
        self.problem = ""
        log.info("iPXE binaries: %s has boot files now", self.directory)
        return True

    def _load(self) -> None:
        """Read all files. Raises BinariesError, then there are no files."""
        try:
            self._read_directory()
            self._named = {KINDS[kind]: name for kind, name in self._wanted.items()}
            for name in self._named.values():
                if name not in self._files:
                    raise BinariesError(
                        f"--boot-file: {self.directory} has no boot file {name}, or not what it starts next"
                    )
            self._read_shims(self._shims)
        except BinariesError:
            self._files = {}
            raise

    def _read_directory(self) -> None:
        """Read the directory of iPXE binaries. Raises NoBinariesError."""
        directory = self.directory
        remedy = "install the package ipxe, or name another directory with --ipxe-dir"
        try:
            for path in sorted(directory.iterdir()):
                if _RELEASE_DIRECTORY.fullmatch(path.name) and path.is_dir():
                    # Served under a flat name, `x86_64-sb/snponly-shim.efi` as `snponly-x86_64-sb-shim.efi`: some
                    # firmware damages names with a directory part. A shim's ending stays last (`after_shim`).
                    for inner in sorted(path.iterdir()):
                        stem, shim, rest = inner.stem.partition("-shim")
                        self._read(inner, f"{stem}-{path.name}{shim}{rest}{inner.suffix}")
                else:
                    self._read(path, path.name)
        except OSError as error:
            raise NoBinariesError(
                f"iPXE binaries: {error.filename or directory}: {error.strerror}; {remedy}"
            ) from error
        if not self._files:
            suffixes = ", ".join(sorted(BOOT_FILE_SUFFIXES))
            raise NoBinariesError(f"iPXE binaries: {directory} has no boot file ({suffixes}); {remedy}")
        # A shim without its second stage is not offered.
        whole = {name for name in self._files if (after_shim(name) or name) in self._files}
        self._files = {name: file for name, file in self._files.items() if name in whole}

    def _read_shims(self, directory: Path | None) -> None:
        """Read the shims and GRUBs. Raises BinariesError."""
        try:
            if directory is None:
                for name, path in _SIGNED.items():
                    self._read(path, name)
                return
            for path in sorted(directory.iterdir()):
                self._read(path, path.name.removesuffix(".signed"))
        except OSError as error:
            raise BinariesError(f"--shim-dir: {error.filename or directory}: {error.strerror}") from error
        if not any(name in self._files for name in GRUB_OF):
            raise BinariesError(f"--shim-dir: {directory} has none of {', '.join(GRUB_OF)}")

    def _read(self, path: Path, name: str) -> None:
        if Path(name).suffix not in BOOT_FILE_SUFFIXES or not path.is_file():
            return
        size = path.stat().st_size
        if not 0 < size <= MAX_BOOT_FILE_BYTES:
            log.warning("iPXE binaries: %s is left out: %d bytes is no size of a boot file", path, size)
            return
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._files[name] = BootBinary(name=name, content=content, etag=etag)

    def names(self) -> list[str]:
        """Return the names of all boot files, sorted."""
        return list(self._files)

    @property
    def has_grub(self) -> bool:
        """Return True if there is a shim with its GRUB."""
        return any(shim in self._files and grub in self._files for shim, grub in GRUB_OF.items())

    def get(self, name: str) -> BootBinary | None:
        """Return the boot file of this name (no directory part), or the replacement for Smee's file of this name.

        Return None if there is none.
        """
        name = _TRACE.sub("", name)
        found = self._files.get(name)
        if found is not None:
            return found
        # A shim requests its second stage by its own file's name, so it must be loaded by that.
        fitting = (self._files.get(each) for each in SMEE_NAMES.get(name, ()) if after_shim(each) is None)
        return next(filter(None, fitting), None)

    def for_architectures(
        self, codes: Iterable[int], path: BootPath | None = None, *, http: bool = False
    ) -> BootBinary:
        """Return the best boot file for a machine that names these architectures, most preferred first.

        path: the program by which the machine boots; None: the usual one.
        http: its firmware loads every file by HTTP.

        Raises NoBinaryError if none of them has a file here. The message tells an operator which file is missing.
        """
        codes = tuple(codes)
        # A distribution's shim runs on UEFI only; other machines get iPXE.
        if (path or self._usual_path) is BootPath.GRUB:
            shims = [known.shim for code in codes if (known := ARCHITECTURES.get(code)) is not None and known.shim]
            if shims:
                return self._shim(shims[0], http=http)
        wanted: list[str] = []
        for code in codes:
            known = ARCHITECTURES.get(code)
            if known is None:
                continue
            for name in (*filter(None, (self._named.get(known.candidates),)), *known.candidates):
                found = self._files.get(name)
                if found is not None:
                    return found
            wanted.extend(name for name in known.candidates if after_shim(name) is None)
        raise NoBinaryError(self._missing(codes, wanted))

    def _shim(self, name: str, *, http: bool) -> BootBinary:
        shim, grub = self._files.get(name), self._files.get(GRUB_OF[name])
        if shim is None or grub is None:
            where = f"put them into {self._shims}" if self._shims is not None else f"install {_PACKAGES[name]}"
            raise NoBinaryError(f"boot path grub: {name} or {GRUB_OF[name]} is missing; {where}")
        # A GRUB without HTTP would be loaded by HTTP, and then find neither its configuration nor its kernel.
        if http and _SPEAKS_HTTP not in grub.content:
            raise NoBinaryError(
                f"boot path grub: this {grub.name} speaks no HTTP, which this firmware boots by: GRUB 2.12 does"
            )
        return shim

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


IPXE_CLASSES: Final = frozenset({b"iPXE", b"Tinkerbell"})
"""User classes of iPXE: its own, and that of the iPXE that Smee embeds."""

_UBOOT_CLASS: Final = b"U-Boot"  # U-Boot.armv8 and the like, unless its user sets another (CONFIG_BOOTP_VCI_STRING)
_UBOOT_ARCHITECTURES: Final = range(21, 25)
_RISC_V_ARCHITECTURES: Final = range(25, 31)
_UNDI: Final = 1  # RFC 4578 section 2.2


def declared_architectures(value: bytes) -> tuple[int, ...]:
    """Return the architectures of option 93 (RFC 4578 section 2.1) or DHCPv6's 61 (RFC 5970 section 3.3).

    These are IANA's codes, the client's favourite first.
    """
    # Some firmware sends one byte for one architecture. A trailing odd byte is ignored.
    if len(value) == 1:
        return (value[0],)
    return tuple(int.from_bytes(value[at : at + 2], "big") for at in range(0, len(value) // 2 * 2, 2))


def named_architectures(vendor_class: bytes) -> tuple[int, ...]:
    """Return the architecture in `PXEClient:Arch:00007:UNDI:003000` (PXE 2.1 section 2.2.2); empty if it names none."""
    fields = vendor_class.split(b":", 3)
    if len(fields) > 2 and fields[1] == b"Arch" and len(fields[2]) == 5 and fields[2].isdigit():
        return (int(fields[2]),)
    return ()


def platform_name(architectures: tuple[int, ...]) -> str:
    """Return the first architecture in words, without the protocol that it boots by."""
    return architecture_name(architectures[0]).removesuffix(" HTTP") if architectures else "unnamed architecture"


def is_http(architectures: tuple[int, ...]) -> bool:
    """Return True if the first architecture is one of firmware that boots by HTTP."""
    return bool(architectures) and architecture_name(architectures[0]).endswith(" HTTP")


def is_risc_v(architectures: tuple[int, ...]) -> bool:
    """Return True if the first architecture is RISC-V."""
    return bool(architectures) and architectures[0] in _RISC_V_ARCHITECTURES


def is_u_boot(vendor_classes: Iterable[bytes], architectures: tuple[int, ...], interface: bytes) -> bool:
    """Return True for U-Boot, by its vendor class or by an architecture that it names.

    `interface` is option 94, or 62 of DHCPv6.
    """
    if any(name.startswith(_UBOOT_CLASS) for name in vendor_classes):
        return True
    # UEFI and U-Boot have the same architectures for RISC-V. UEFI has an UNDI and declares its version in this option;
    # U-Boot declares version 0.0 or none (net/bootp.c).
    has_undi = interface[:1] == bytes((_UNDI,)) and any(interface[1:2])
    return (bool(architectures) and architectures[0] in _UBOOT_ARCHITECTURES) or (
        is_risc_v(architectures) and not has_undi
    )
