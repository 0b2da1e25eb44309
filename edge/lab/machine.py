"""The machine in the rack: QEMU with a blank disk, booting like hardware.

The boot order is disk, then network, as on many real machines: firmware skips a blank disk and boots a written one. The
default is `-accel tcg`: a /dev/kvm that opens may still be unable to run firmware.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from edge.building.shell import CommandError, Daemon, run


class Firmware(StrEnum):
    """The firmware of the machine."""

    BIOS = "bios"  # SeaBIOS with iPXE as the network card's option ROM
    UEFI = "uefi"  # OVMF with its own PXE client
    UEFI_HTTP = "uefi-http"  # OVMF with its own HTTP Boot client
    SECURE = "uefi-secure"  # OVMF's PXE client with Secure Boot, which trusts Microsoft's keys as real machines do
    SECURE_HTTP = "uefi-secure-http"  # the same with its HTTP Boot client
    OWN_KEYS = "uefi-own-keys"  # PXE with Secure Boot, which trusts nothing but the key of Debian's ovmf for trying
    OWN_KEYS_HTTP = "uefi-own-keys-http"  # the same with its HTTP Boot client
    ARM64 = "uefi-arm64"  # EDK2 for arm64, on QEMU's board `virt`

    @property
    def arch(self) -> str:
        """Return Debian's name of the processor's architecture."""
        return "arm64" if self is Firmware.ARM64 else "amd64"

    @property
    def is_secure(self) -> bool:
        """Return True for Secure Boot."""
        return self.variables != "OVMF_VARS_4M.fd"

    @property
    def variables(self) -> str:
        """Return the file with the firmware's variables, which hold the trusted keys."""
        kinds = {Firmware.SECURE: ".ms", Firmware.SECURE_HTTP: ".ms"}
        kinds |= {Firmware.OWN_KEYS: ".snakeoil", Firmware.OWN_KEYS_HTTP: ".snakeoil"}
        return f"OVMF_VARS_4M{kinds.get(self, '')}.fd"

    @property
    def boots_by_http(self) -> bool:
        """Return True if the firmware has an HTTP Boot client instead of PXE."""
        return self in (Firmware.UEFI_HTTP, Firmware.SECURE_HTTP, Firmware.OWN_KEYS_HTTP)


class Drive(StrEnum):
    """The drive of a boot medium."""

    CDROM = "cdrom"
    USB = "usb"


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of a virtual machine: its network card's MAC and tap, memory in MiB, disk size in MiB.

    `icount`: each instruction takes 2**icount ns of the machine's own clock (QEMU's `-icount shift`); None: real time.
    `medium` is an image that the machine boots from, in `drive`, instead of its network card.
    """

    mac: str
    tap: str
    firmware: Firmware
    accel: str = "tcg"
    memory_mib: int = 1024
    processors: int = 2
    disk_mib: int = 64
    icount: int | None = None
    ipv6: bool = False
    """Boot by IPv6: HTTP Boot after an attempt with IPv4, PXE without."""
    medium: Path | None = None
    drive: Drive = Drive.CDROM

    @property
    def switched_off(self) -> tuple[str, ...]:
        """Return the OVMF boot clients and protocols to disable, so that the firmware does not wait for them."""
        if self.firmware.boots_by_http:
            return ("IPv4PXESupport", "IPv6PXESupport", *(("IPv4Support",) if self.ipv6 else ()))
        return ("IPv4PXESupport", "IPv4Support") if self.ipv6 else ()

    @property
    def menu_ms(self) -> int:
        """Return the milliseconds that OVMF waits for a key before it boots.

        Its HTTP Boot over IPv6 fails ("Unexpected network error") before the duplicate address detection of the card's
        link-local address has ended.
        """
        return 5000 if self.firmware.boots_by_http and self.ipv6 else 0


# If the processor announces fast copies by one instruction (ERMS, FSRM), kernel and C library use it: TCG
# does that byte by byte, which is a sixth of the time to start a kernel.
_EMULATED = "max,-erms,-fsrm"

# Cursor movements and colours that firmware sends to a serial terminal (ECMA-48), and other control characters.
_CONTROL = re.compile(r"\x1b\[[0-9;?=]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b.|[\x00-\x09\x0b-\x1f\x7f]")

_OVMF = Path("/usr/share/OVMF")
_AAVMF = Path("/usr/share/AAVMF")
# Only code in System Management Mode may write the variables with the keys.
_GUARDED_VARIABLES = ("-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1")


class VirtualMachine:
    """A QEMU process. `directory` holds its disk, its firmware's variables and its screen output."""

    def __init__(self, settings: MachineSettings, directory: Path) -> None:
        self.settings = settings
        self.disk = directory / "disk.raw"
        self.screen = directory / "screen.log"
        self._variables = directory / "variables.fd"
        self._log = directory / "qemu.log"
        self._process: Daemon | None = None

    async def power_on(self) -> None:
        """Create a blank disk and switch the machine on. Raises CommandError."""
        await run(["truncate", "--size", f"{self.settings.disk_mib}M", self.disk])
        self.screen.touch()
        if self.settings.firmware is not Firmware.BIOS:
            variables, package = _OVMF / self.settings.firmware.variables, "ovmf"
            if self.settings.firmware is Firmware.ARM64:
                variables, package = _AAVMF / "AAVMF_VARS.fd", "qemu-efi-aarch64"
            if not variables.exists():
                raise CommandError(f"{variables} is missing (Debian package {package})")
            shutil.copyfile(variables, self._variables)
        self._process = await Daemon.start("machine", self._command(), self._log)

    @property
    def ended(self) -> str | None:
        """Return why the machine is off (QEMU's last words), or None while it is on."""
        if self._process is None or self._process.returncode is None:
            return None
        return f"QEMU ended with status {self._process.returncode}: {self._process.log_tail(5)}"

    async def power_off(self) -> None:
        """Switch off, like pulling the plug."""
        if self._process is not None:
            await self._process.stop(grace=5)
            self._process = None

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the machine's screen."""
        text = self.screen.read_bytes()[-8000:].decode("utf-8", "replace").replace("\r", "\n")
        lines = [stripped for line in text.split("\n") if (stripped := _CONTROL.sub("", line).strip())]
        return lines[-count:]

    def _command(self) -> list[str | Path]:
        settings = self.settings
        is_arm64 = settings.firmware is Firmware.ARM64
        command: list[str | Path] = [
            "qemu-system-aarch64" if is_arm64 else "qemu-system-x86_64",
            *("-name", "tinkedge-lab", "-nodefaults", "-no-user-config"),
            *("-accel", settings.accel, "-cpu", _EMULATED if settings.accel == "tcg" and not is_arm64 else "max"),
            *("-m", str(settings.memory_mib), "-smp", str(settings.processors)),
            *(() if settings.icount is None else ("-icount", f"shift={settings.icount}")),
            *("-display", "none", "-monitor", "none"),
            *("-chardev", f"file,id=screen,path={self.screen}", "-serial", "chardev:screen"),
            *("-smbios", "type=1,manufacturer=tinkedge,product=lab,serial=LAB0001"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            *("-drive", f"if=none,id=disk,format=raw,cache=unsafe,file={self.disk}"),
            *("-device", "virtio-blk-pci,drive=disk,bootindex=1"),
            *("-netdev", f"tap,id=net,ifname={settings.tap},script=no,downscript=no"),
        ]
        card = f"virtio-net-pci,netdev=net,mac={settings.mac}"
        if settings.medium is None:
            card += ",bootindex=2"
        else:
            # A BIOS boots only the first hard disk, and a stick counts as one.
            is_first = settings.drive is Drive.USB and settings.firmware is Firmware.BIOS
            command += _medium(settings.medium, settings.drive, 0 if is_first else 2)
        if settings.firmware is Firmware.BIOS:
            # graphics=off makes SeaBIOS and iPXE speak on the serial console.
            rom = "" if settings.medium is None else ",romfile="  # which would wait for an address in vain
            return [*command, "-machine", "pc,graphics=off", "-device", f"{card}{rom}"]
        if is_arm64:
            code = _AAVMF / "AAVMF_CODE.fd"
            return [*command, "-machine", "virt", "-device", f"{card},romfile=", *self._flash(code)]
        # Without an option ROM, OVMF's own clients boot the card: a first stage that is not iPXE. PXE comes before HTTP
        # Boot, which would be tried two minutes later.
        is_secure = settings.firmware.is_secure
        code = _OVMF / f"OVMF_CODE_4M{'.secboot' if is_secure else ''}.fd"
        return [
            *command,
            *(
                word
                for name in settings.switched_off
                for word in ("-fw_cfg", f"name=opt/org.tianocore/{name},string=n")
            ),
            *(("-boot", f"menu=on,splash-time={settings.menu_ms}") if settings.menu_ms else ()),
            *("-machine", "q35,smm=on" if is_secure else "q35", "-device", f"{card},romfile="),
            *(_GUARDED_VARIABLES if is_secure else ()),
            *self._flash(code),
        ]

    def _flash(self, code: Path) -> list[str | Path]:
        return [
            *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}"),
            *("-drive", f"if=pflash,format=raw,unit=1,file={self._variables}"),
        ]


def _medium(image: Path, drive: Drive, place: int) -> list[str | Path]:
    """Return QEMU's options for a boot medium and its place in the boot order."""
    command: list[str | Path] = ["-drive", f"if=none,id=medium,format=raw,readonly=on,file={image}"]
    if drive is Drive.CDROM:
        return [*command, "-device", "virtio-scsi-pci", "-device", f"scsi-cd,drive=medium,bootindex={place}"]
    return [*command, "-device", "qemu-xhci", "-device", f"usb-storage,drive=medium,bootindex={place}"]
