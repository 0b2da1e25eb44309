"""The machine in the rack: QEMU with a blank disk, booting like hardware.

The boot order is disk, then network, as on many real machines: firmware skips a blank disk and boots a written one. The
default is `-accel tcg`: a /dev/kvm that opens may still be unable to run firmware.

A machine with `MachineSettings.is_managed` also does what a BMC asks for (`ManagedMachine`). Each of its starts is a
new QEMU with the disk and the firmware's variables of the last one, after a restart by its operating system, too. So
the boot order of each start is on QEMU's command line, and a device can be preferred for one start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from edge.building.shell import CommandError, Daemon, run
from edge.lab.bmc import MachineBoot, MachineObserver
from edge.lab.qmp import QmpClient
from edge.lab.uefi_variables import set_boot_uri
from tink.errors import TinkedgeError

log = logging.getLogger(__name__)


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
    def architecture(self) -> int | None:
        """Return the architecture that the firmware names in DHCP (RFC 4578 section 2.1); None: its card has iPXE."""
        if self is Firmware.BIOS:
            return None
        return 11 if self is Firmware.ARM64 else 16 if self.boots_by_http else 7

    @property
    def boots_lab_disk(self) -> bool:
        """Return True if the firmware starts the lab's disk images, whose loader is for x86-64 and has no signature."""
        return self is not Firmware.ARM64 and not self.is_secure

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

    @property
    def has_http_uri(self) -> bool:
        """Return True if a BMC can give the firmware a URL for UEFI HTTP Boot."""
        return self not in (Firmware.BIOS, Firmware.ARM64)


class Device(StrEnum):
    """A device that a managed machine boots from; the value is its id in QEMU."""

    DISK = "disk0"
    NETWORK = "net0"
    CDROM = "cdrom0"

    @property
    def bootindex(self) -> int:
        """Return the place in the usual boot order."""
        return {Device.DISK: 1, Device.NETWORK: 2, Device.CDROM: 3}[self]


_DEVICES = {
    "Pxe": Device.NETWORK,
    "UefiHttp": Device.NETWORK,  # without a URI, the firmware asks DHCP for it
    "Cd": Device.CDROM,
    "UsbCd": Device.CDROM,
    "Hdd": Device.DISK,
}
"""The device for each value of Redfish's BootSourceOverrideTarget. With others, the usual order holds."""


class Drive(StrEnum):
    """The drive of a boot medium."""

    CDROM = "cdrom"
    USB = "usb"


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of a virtual machine: its network card's MAC and tap, memory in MiB, disk size in MiB.

    `icount`: each instruction takes 2**icount ns of the machine's own clock (QEMU's `-icount shift`); None: real time.
    `medium` is an image that the machine boots from, in `drive`, instead of its network card. `is_managed`: the machine
    has a CD drive and a QMP socket, for the methods that a BMC uses.

    `serial` and `uuid` are those of SMBIOS (DSP0134 section 7.2); the serial number of a disk is `serial` and its
    number, from 0. `more_disks_mib` and `more_cards` (MAC and tap) are further disks and network cards, from which the
    machine does not boot.
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
    is_managed: bool = False
    serial: str = "LAB0001"
    uuid: str = "1a2b3c4d-5e6f-4a8b-9c0d-525400123456"
    more_disks_mib: tuple[int, ...] = ()
    more_cards: tuple[tuple[str, str], ...] = ()

    @property
    def disks_mib(self) -> tuple[int, ...]:
        """Return the sizes of all disks in MiB."""
        return (self.disk_mib, *self.more_disks_mib)

    @property
    def macs(self) -> tuple[str, ...]:
        """Return the MAC addresses of all network cards."""
        return (self.mac, *(mac for mac, _ in self.more_cards))

    def disk_serial(self, number: int) -> str:
        """Return the serial number of a disk; virtio allows 20 characters (VIRTIO 1.2 section 5.2.6)."""
        return f"{self.serial}-{number}"

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

MAX_IMAGE_BYTES = 1 << 30
_FETCH_SECONDS = 120.0
"""Limits for an image in the CD drive."""

_FIRST = 0
"""The `bootindex` of the preferred device. The usual order begins with 1: QEMU refuses an index that is in use."""

_OVMF = Path("/usr/share/OVMF")
_AAVMF = Path("/usr/share/AAVMF")
# Only code in System Management Mode may write the variables with the keys.
_GUARDED_VARIABLES = ("-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1")


class VirtualMachine:
    """A QEMU process. `directory` holds its disk, its firmware's variables and its screen output.

    Calls must not overlap.
    """

    def __init__(self, settings: MachineSettings, directory: Path) -> None:
        self.settings = settings
        self.disk = directory / "disk.raw"
        self.screen = directory / "screen.log"
        self._disks = [self.disk, *(directory / f"disk{at}.raw" for at, _ in enumerate(settings.more_disks_mib, 1))]
        self._variables = directory / "variables.fd"
        self._log = directory / "qemu.log"
        self._socket = directory / "qmp"
        self._process: Daemon | None = None
        self._qmp: QmpClient | None = None
        self._medium: Path | None = None
        self._first: Device | None = None
        self._restarts = False

    async def power_on(self, first: Device | None = None) -> None:
        """Switch the machine on. At the first time, create a blank disk, unless there is one. Raises CommandError.

        A managed machine boots from `first` if it can; otherwise in the usual order.
        """
        if self.ended is not None:
            await self.power_off()
        for file, size in zip(self._disks, self.settings.disks_mib, strict=True):
            await run(["truncate", "--size", f"{size}M", file])
        self.screen.touch()
        self._create_variables()
        self._socket.unlink(missing_ok=True)
        self._first, self._restarts = first, False
        self._process = await Daemon.start("machine", self._command(), self._log)
        if not self.settings.is_managed:
            return
        try:
            self._qmp = await QmpClient.connect(self._socket, self._receive, is_alive=lambda: self.is_on)
        except BaseException as error:
            ended = self.ended
            await self.power_off()
            if isinstance(error, CommandError) and ended is not None:
                raise CommandError(ended) from error
            raise

    def _receive(self, event: str, data: dict[str, Any]) -> None:
        if event == "SHUTDOWN":
            self._restarts = data.get("reason") == "guest-reset"

    async def wait_off(self) -> bool:
        """Wait until a managed machine goes off. Return True if its operating system or firmware restarts it."""
        if self._process is not None:
            await self._process.wait()
        if self._qmp is not None:
            await self._qmp.wait_closed()  # the reason is one of the last messages
        return self._restarts

    def _create_variables(self) -> None:
        """Create the firmware's variables at the first start. Later starts keep them, as hardware does."""
        if self.settings.firmware is Firmware.BIOS or self._variables.exists():
            return
        variables, package = _OVMF / self.settings.firmware.variables, "ovmf"
        if self.settings.firmware is Firmware.ARM64:
            variables, package = _AAVMF / "AAVMF_VARS.fd", "qemu-efi-aarch64"
        if not variables.exists():
            raise CommandError(f"{variables} is missing (Debian package {package})")
        shutil.copyfile(variables, self._variables)

    @property
    def is_on(self) -> bool:
        """Return True while QEMU runs. It ends when the operating system switches the machine off."""
        return self._process is not None and self._process.returncode is None

    @property
    def ended(self) -> str | None:
        """Return why the machine is off (QEMU's last words), or None while it is on."""
        if self._process is None or self._process.returncode is None:
            return None
        return f"QEMU ended with status {self._process.returncode}: {self._process.log_tail(5)}"

    async def power_off(self) -> None:
        """Switch off, like pulling the plug."""
        if self._qmp is not None:
            await self._qmp.close()
            self._qmp = None
        if self._process is not None:
            await self._process.stop(grace=5)
            self._process = None

    async def press_power_button(self) -> None:
        """Ask the operating system of a managed machine to switch it off (ACPI). Raises QmpError."""
        await self._connection().execute("system_powerdown")

    async def insert(self, image: Path) -> None:
        """Put an image into the CD drive of a managed machine, on or off, instead of another one. Raises QmpError."""
        self._medium = image
        if self.is_on:
            change = {"filename": str(image), "format": "raw", "read_only_mode": "read-only"}
            await self._connection().execute("blockdev-change-medium", id=Device.CDROM.value, **change)

    async def eject(self) -> None:
        """Empty the CD drive of a managed machine, on or off. Raises QmpError."""
        self._medium = None
        if self.is_on:
            await self._connection().execute("eject", id=Device.CDROM.value, force=True)

    def set_http_uri(self, uri: str) -> None:
        """Make the firmware boot once from `uri` by UEFI HTTP Boot at the next start. The machine must be off.

        Raises CommandError, and VariableStoreError for firmware without such variables.
        """
        if not self.settings.firmware.has_http_uri:
            raise CommandError("a machine with an HTTP boot URI needs UEFI firmware for x86-64")
        self._create_variables()
        self._variables.write_bytes(set_boot_uri(self._variables.read_bytes(), uri))

    def _connection(self) -> QmpClient:
        if self._qmp is None:
            raise CommandError("the machine is off, or not managed")
        return self._qmp

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the machine's screen."""
        text = self.screen.read_bytes()[-8000:].decode("utf-8", "replace").replace("\r", "\n")
        lines = [stripped for line in text.split("\n") if (stripped := _CONTROL.sub("", line).strip())]
        return lines[-count:]

    def _command(self) -> list[str | Path]:
        settings = self.settings
        is_arm64 = settings.firmware is Firmware.ARM64
        append = ",append=on" if settings.is_managed else ""  # the screens of all starts
        command: list[str | Path] = [
            "qemu-system-aarch64" if is_arm64 else "qemu-system-x86_64",
            *("-name", "tinkedge-lab", "-nodefaults", "-no-user-config"),
            *("-accel", settings.accel, "-cpu", _EMULATED if settings.accel == "tcg" and not is_arm64 else "max"),
            *("-m", str(settings.memory_mib), "-smp", str(settings.processors)),
            *(() if settings.icount is None else ("-icount", f"shift={settings.icount}")),
            *("-display", "none", "-monitor", "none"),
            *("-chardev", f"file,id=screen,path={self.screen}{append}", "-serial", "chardev:screen"),
            *("-smbios", f"type=1,manufacturer=tinkedge,product=lab,serial={settings.serial},uuid={settings.uuid}"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            *self._disk(0, "disk", _place(Device.DISK, self._first)),
            *("-netdev", f"tap,id=net,ifname={settings.tap},script=no,downscript=no"),
            *self._others(),
        ]
        card = f"virtio-net-pci,netdev=net,mac={settings.mac}"
        if settings.is_managed:
            # A restart ends QEMU. In the same process, SeaBIOS would cause another one (its handle_resume), and QEMU
            # would read the boot order twice.
            command += ["-qmp", f"unix:{self._socket},server=on,wait=off", "-action", "reboot=shutdown"]
            command += _cd_drive(self._medium, self._first)
        if settings.medium is None:
            card += _place(Device.NETWORK, self._first)
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

    def _disk(self, number: int, drive: str, place: str) -> list[str | Path]:
        """Return QEMU's options for a disk; `drive` is its id."""
        return [
            *("-drive", f"if=none,id={drive},format=raw,cache=unsafe,file={self._disks[number]}"),
            *("-device", f"virtio-blk-pci,drive={drive}{place},serial={self.settings.disk_serial(number)}"),
        ]

    def _others(self) -> list[str | Path]:
        """Return QEMU's options for the disks and network cards from which the machine does not boot."""
        options: list[str | Path] = []
        for number, _ in enumerate(self.settings.more_disks_mib, 1):
            options += self._disk(number, f"more{number}", "")
        for number, (mac, tap) in enumerate(self.settings.more_cards, 1):
            options += ["-netdev", f"tap,id=net{number},ifname={tap},script=no,downscript=no"]
            options += ["-device", f"virtio-net-pci,netdev=net{number},mac={mac},romfile="]
        return options

    def _flash(self, code: Path) -> list[str | Path]:
        return [
            *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}"),
            *("-drive", f"if=pflash,format=raw,unit=1,file={self._variables}"),
        ]


class ManagedMachine:
    """A managed virtual machine behind the port of its BMC (`edge.lab.bmc.PoweredMachine`).

    `run` carries out what the BMC asks for, one after the other. `failure` is the reason of the last start, ejection or
    press of the power button that failed; empty: none.
    """

    def __init__(self, machine: VirtualMachine, directory: Path) -> None:
        """`directory` holds the images of the CD drive."""
        self.machine = machine
        self.failure = ""
        self._directory = directory
        self._boot = MachineBoot()
        self._observer: MachineObserver | None = None
        self._is_on = False
        """True from a start until the report of its end."""
        self._orders: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._watching: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._image: Path | None = None
        self._images = itertools.count(1)

    async def run(self) -> None:
        """Carry out orders until cancelled; then switch the machine off."""
        try:
            while True:
                order = await self._orders.get()
                try:
                    await order()
                except TinkedgeError as error:
                    self.failure = str(error)
                    log.warning("the virtual machine does not do what its BMC asks for: %s", error)
        finally:
            for task in filter(None, (self._watching, self._fetching)):
                task.cancel()
                await asyncio.wait([task])
            await self.machine.power_off()

    def connect(self, observer: MachineObserver) -> None:
        """Report all further changes to `observer`."""
        self._observer = observer

    def prepare(self, boot: MachineBoot) -> None:
        """Use `boot` for each start from now on. Its mode has no effect: the machine has one firmware."""
        self._boot = boot

    def power_on(self) -> None:
        """Start the machine if it is off."""
        self._orders.put_nowait(self._power_on)

    def power_off(self) -> None:
        """Cut the power if the machine is on."""
        self._orders.put_nowait(self._power_off)

    def reset(self) -> None:
        """Restart the machine if it is on."""
        self._orders.put_nowait(self._reset)

    def press_power_button(self) -> None:
        """Ask the operating system to shut down, if the machine is on."""
        self._orders.put_nowait(self._press_power_button)

    def insert(self, url: str) -> None:
        """Fetch the image at `url` and put it into the CD drive."""
        self._cancel_fetch()
        self._fetching = asyncio.create_task(self._fetch(url), name="virtual medium")

    def eject(self) -> None:
        """Empty the CD drive."""
        self._cancel_fetch()
        self._orders.put_nowait(self._eject)

    def _cancel_fetch(self) -> None:
        """End the download of an image."""
        if self._fetching is not None:
            self._fetching.cancel()

    # --- orders -------------------------------------------------------------------------------------------------------

    async def _power_on(self) -> None:
        if not self._is_on:
            await self._start()

    async def _power_off(self) -> None:
        if self._is_on:
            await self._stop()
            self._is_on = False
            self._report(lambda observer: observer.machine_stopped())

    async def _reset(self) -> None:
        if self._is_on:
            await self._stop()
            await self._start()

    async def _press_power_button(self) -> None:
        if self._is_on:
            await self.machine.press_power_button()

    async def _start(self) -> None:
        boot = self._boot
        first = _DEVICES.get(boot.target)
        try:
            if boot.http_uri:
                first = None
                self.machine.set_http_uri(boot.http_uri)
            await self.machine.power_on(first)
        except TinkedgeError:
            self._is_on = False
            self._report(lambda observer: observer.machine_stopped())
            raise
        self._is_on = True
        self._watching = asyncio.create_task(self._watch(), name="virtual machine")
        self._report(lambda observer: observer.machine_started())

    async def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        await self.machine.power_off()

    async def _watch(self) -> None:
        """Notice that the operating system or the firmware restarts the machine or switches it off."""
        watching = asyncio.current_task()
        restarts = await self.machine.wait_off()
        self._orders.put_nowait(lambda: self._ended(watching, restarts=restarts))

    async def _ended(self, watching: asyncio.Task[None] | None, *, restarts: bool) -> None:
        if watching is not self._watching:
            return  # an order of the BMC came first
        if restarts:
            await self._start()
        else:
            await self._power_off()

    # --- the CD drive -------------------------------------------------------------------------------------------------

    async def _fetch(self, url: str) -> None:
        image = self._directory / f"cd-{next(self._images)}.iso"
        try:
            await _download(url, image)
        except asyncio.CancelledError:
            image.unlink(missing_ok=True)
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            image.unlink(missing_ok=True)
            why = f"{type(error).__name__}: {error}"
            self._report(lambda observer: observer.medium_refused(why))
        else:
            self._orders.put_nowait(lambda: self._insert(image))

    async def _insert(self, image: Path) -> None:
        try:
            await self.machine.insert(image)
        except CommandError as error:
            image.unlink()
            why = str(error)
            self._report(lambda observer: observer.medium_refused(why))
            return
        self._drop_image()
        self._image = image
        self._report(lambda observer: observer.medium_inserted())

    async def _eject(self) -> None:
        await self.machine.eject()
        self._drop_image()
        self._report(lambda observer: observer.medium_ejected())

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.unlink()
            self._image = None

    def _report(self, report: Callable[[MachineObserver], None]) -> None:
        if self._observer is not None:
            report(self._observer)


async def _download(url: str, file: Path) -> None:
    """Fetch an image. Raises aiohttp.ClientError, OSError (TimeoutError too), ValueError."""
    timeout = aiohttp.ClientTimeout(total=_FETCH_SECONDS)
    size = 0
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != HTTPStatus.OK:
            raise ValueError(f"the answer has status {response.status}")
        with file.open("wb") as opened:
            async for part in response.content.iter_chunked(1 << 20):
                size += len(part)
                if size > MAX_IMAGE_BYTES:
                    raise ValueError(f"the image has more than {MAX_IMAGE_BYTES >> 20} MiB")
                opened.write(part)


def _place(device: Device, first: Device | None) -> str:
    """Return QEMU's properties for the id of a device and its place in the boot order."""
    return f",bootindex={_FIRST if device is first else device.bootindex},id={device}"


def _cd_drive(image: Path | None, first: Device | None) -> list[str | Path]:
    """Return QEMU's options for a CD drive with an image, or an empty one."""
    drive = [] if image is None else ["-drive", f"if=none,id=cd,format=raw,readonly=on,file={image}"]
    medium = "" if image is None else ",drive=cd"
    return [*drive, "-device", "virtio-scsi-pci", "-device", f"scsi-cd{medium}{_place(Device.CDROM, first)}"]


def _medium(image: Path, drive: Drive, place: int) -> list[str | Path]:
    """Return QEMU's options for a boot medium and its place in the boot order."""
    command: list[str | Path] = ["-drive", f"if=none,id=medium,format=raw,readonly=on,file={image}"]
    if drive is Drive.CDROM:
        return [*command, "-device", "virtio-scsi-pci", "-device", f"scsi-cd,drive=medium,bootindex={place}"]
    return [*command, "-device", "qemu-xhci", "-device", f"usb-storage,drive=medium,bootindex={place}"]
