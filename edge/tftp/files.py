"""The files of the edge's TFTP server. In the order of a boot:

    [<mac>/]<binary>                    an iPXE boot program
    [<mac>/]autoexec.ipxe               the first script that a new iPXE runs
    [<mac>/]auto.ipxe                   the machine's script, for an iPXE that was built without HTTP
    [<mac>/]osie/<name>/kernel|initrd   the files that the script names, from the artifact cache
    osie/<name>/uki.efi                 kernel and initrd in one file, for firmware that starts it directly
    [<mac>/]why.ipxe                    why the kernel or the initrd did not arrive
    [<mac>/][<directory>/]grub.cfg[-<id>]  GRUB's script of the machine, in all places where GRUB looks (`ipxe.grub`)
    [<mac>/]pxelinux.cfg/01-<mac>       U-Boot's first way to boot
    [<mac>/]boot.scr.uimg               U-Boot's second way
    [<mac or serial>/]config.txt        the boot configuration of a Raspberry Pi; beside it is `cmdline.txt`
    [<mac or serial>/]...               the firmware of a Raspberry Pi, and the operator's own files

The name comes from an untrusted network, in the spellings of thirty years of firmware. This module parses it. The
operator's files are looked up below one directory, and no path leads out of it. All other files are looked up in
tables. A file in a directory that is named by a machine's MAC belongs to that machine, whatever link or name a client
requests. The netboot policy is checked first: a machine that must not boot from the network must not boot by TFTP
either. A file that is made for one machine is served to that machine only.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from edge.artifacts.artifact import ArtifactError, Source
from edge.callers import Callers
from edge.journey.events import Step
from edge.machines import (
    UKI,
    UKI_FILE,
    Inventory,
    Located,
    Machine,
    MachineScripts,
    NetbootPolicy,
    NoArtifactError,
    OsieFiles,
)
from edge.neighbour.table import AddressResolution
from edge.tftp.packets import ErrorCode, shown_name
from edge.tftp.source import Opened, TftpFile, TftpRefusal, TftpRequest
from ipxe import raspberry_pi, uboot
from ipxe.binaries import BootBinaries, is_optional
from ipxe.grub import CONFIG, WHY, is_script, machine_of
from ipxe.scripts import Dialect, EdgeOrigin
from tink.errors import TinkedgeError
from tink.limits import Newest
from tink.mac import from_path

MAX_SNAPSHOT_BYTES = 512 * 1024 * 1024
"""Size of the largest operator's file that is copied to memory."""

_CHUNK_BYTES = 1 << 22

# linux/fcntl.h. The fcntl module has these from Python 3.12 on.
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x0002


class TooLargeError(TinkedgeError):
    """A file is too large to be copied to memory. The message names the limit."""


def mapped(fd: int, size: int) -> memoryview:
    """Map the first bytes of a file that is never shortened. Raises OSError, ValueError if there are fewer."""
    # Transfers send from memory maps, so the bytes are in the page cache once, however many machines read them. If a
    # mapped file is truncated, the next access ends the process with SIGBUS. So a file is mapped directly only if this
    # program alone writes it and never shortens it (the artifact cache). The operator's files may change at any time:
    # `Snapshots` copies them to memory, and all readers share the copy.
    if size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))


class Snapshots:
    """Copies of files in memory, by the file's inode, size and times. Threads of one event loop may share it.

    A copy lives as long as the returned view or one that is made from it.
    """

    def __init__(self) -> None:
        self._taken: WeakValueDictionary[tuple[int, ...], memoryview] = WeakValueDictionary()

    def take(self, fd: int) -> memoryview:
        """Return a copy of the file, shared until the file changes. Blocks. Raises OSError, TooLargeError."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        taken = self._taken.get(key)
        if taken is None:
            taken = self._taken[key] = _copied(fd, status.st_size)
        return taken


def _copied(fd: int, size: int) -> memoryview:
    copy = os.memfd_create("tftp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        done = 0
        while size <= MAX_SNAPSHOT_BYTES and (count := os.sendfile(copy, fd, done, _CHUNK_BYTES)):
            done += count
            size = max(size, done)  # the file may grow meanwhile
        if size > MAX_SNAPSHOT_BYTES:
            raise TooLargeError(f"larger than {MAX_SNAPSHOT_BYTES >> 20} MiB")
        fcntl.fcntl(copy, _F_ADD_SEALS, _F_SEAL_SHRINK)
        return mapped(copy, done)
    finally:
        os.close(copy)


def open_below(root: Path, segments: list[str]) -> tuple[int, Path]:
    """Return descriptor and real path of a regular file below `root`. Blocks. Raises OSError."""
    # Symbolic links may lead anywhere inside, never outside.
    inside = os.path.realpath(root)
    wanted = os.path.realpath(Path(inside, *segments))
    if os.path.commonpath((inside, wanted)) != inside or wanted == inside:
        raise FileNotFoundError(wanted)
    # Open step by step without following links, in case a directory is replaced by a link in the meantime.
    place = os.open(inside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *directories, name = os.path.relpath(wanted, inside).split("/")
        for directory in directories:
            inner = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(wanted)
    return fd, Path(wanted)


MAX_FAILURES = 4096
"""Number of machines whose last failure is stored for their screens."""
NO_FAILURE = "the edge has the files of the OSIE, but the transfer to this machine broke off"

# Names that clients always try, and that are normally missing.
_EXPECTED_MISSES = re.compile(
    r"autoexec\.ipxe"  # iPXE, beside the file it was loaded from, before anything else
    r"|(.*/)?pxelinux\.cfg/.*"  # PXELINUX and U-Boot, from their MAC to "default"
    r"|(.*/)?grub\.cfg(-.*)?"  # GRUB
    r"|boot\.scr(\.uimg)?|[0-9a-f]{8}\.img"  # U-Boot; the second is made from its address if DHCP names no boot file
    r"|(.*/)?[a-z0-9_]+-(efi|pc)/((command|fs|crypto|terminal)\.lst|[a-z0-9_]+\.mod)"  # GRUB, below its prefix
    r"|(.*/)?(grub2?|efi/[^/]+)/(fonts|themes|locale)/.*",
    re.IGNORECASE,
)

_OF_ONE_MACHINE = re.compile(
    r"(auto|why|autoexec)\.ipxe|(grub|why)\.cfg|boot\.scr|(config|cmdline)\.txt|osie|[0-9a-f]{2}[:.-]?[0-9a-f]{2}",
    re.IGNORECASE,
)
"""Matches the names of files that are made for one machine or may be in a machine's directory, and some other names."""
_MAX_PI_CONFIG_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _ParsedRequest:
    """A parsed request.

    `named` is the MAC that the name begins with, `rest` are the segments after it. `at_address` is the machine at the
    client's address, and `mac` its MAC, on whose journey the request is recorded.
    """

    client_ip: str
    shown: str
    segments: list[str]
    rest: list[str]
    named: str | None
    at_address: Machine | None
    mac: str | None


@dataclass(eq=False)
class BootFiles:
    """Opens files for machines on one network of the edge. An `edge.tftp.source.OpenFile`.

    Files of a kind are served only if `scripts`, `osie_files` or `extra` is given.

    address: the edge's address on the network.
    default_osie: namespace and name of the OSIE for machines without a Hardware.
    extra: the operator's directory.
    pi_firmware: the directory of the files that all Raspberry Pis boot.
    resolution: resolves a client's MAC by ARP, if the neighbour table identifies clients.
    """

    binaries: BootBinaries
    inventory: Inventory
    callers: Callers
    policy: NetbootPolicy
    address: str = ""
    scripts: MachineScripts | None = None
    osie_files: OsieFiles | None = None
    default_osie: tuple[str, str] | None = None
    extra: Path | None = None
    pi_firmware: Path | None = None
    resolution: AddressResolution | None = None

    def __post_init__(self) -> None:
        self._origin = EdgeOrigin(self.address, tftp=True)
        self._snapshots = Snapshots()
        self._failures: Newest[str, str] = Newest(MAX_FAILURES)

    def __call__(self, request: TftpRequest) -> Opened | Awaitable[Opened]:
        """Return the requested file, or the reason why there is none."""
        resolution = self.resolution
        if resolution and _OF_ONE_MACHINE.search(request.name) and resolution.is_due(request.client_ip):
            return self._after_resolution(request, resolution)
        return self._open(request)

    def machine_changed(self, mac: str) -> None:
        """Forget a machine's failure. The inventory calls this after each change of the machine."""
        self._failures.pop(mac, None)

    async def _after_resolution(self, request: TftpRequest, resolution: AddressResolution) -> Opened:
        """Open a file that is made for one machine, after the kernel has resolved the client's MAC."""
        if not await resolution.resolve(request.client_ip):
            message = f"{shown_name(request.name)}: no host answers ARP at {request.client_ip}"
            return TftpRefusal(ErrorCode.ACCESS_VIOLATION, message)
        opened = self._open(request)
        return await opened if isinstance(opened, Awaitable) else opened

    def _open(self, request: TftpRequest) -> Opened | Awaitable[Opened]:
        # Windows and some ROMs write backslashes. Empty and "." segments: "/x", "//x", "./x".
        segments = [part for part in request.name.replace("\\", "/").split("/") if part not in ("", ".")]
        named, rest = from_path(segments)
        # The client's address identifies the client. A MAC in the name proves nothing: any client can write another
        # machine's MAC. So the policy is applied to the machine at the client's address, the client receives the
        # error, and the request is recorded on that machine's journey.
        at_address = self._interface(self.callers.machine(request.client_ip), request.client_ip, named)
        mac = at_address.mac if at_address is not None else None
        shown = shown_name(request.name)
        if ".." in segments or "\0" in request.name:
            return TftpRefusal(ErrorCode.ACCESS_VIOLATION, f"{shown}: '..' is not allowed in names", mac)
        if not request.name.isprintable():  # `shown` differs from the name
            return TftpRefusal(ErrorCode.NOT_FOUND, f"{shown}: no such file", mac)
        if at_address is not None:
            decision = self.policy.decide(at_address)
            if not decision.allowed:
                return TftpRefusal(ErrorCode.ACCESS_VIOLATION, f"may not netboot: {decision.reason}", mac)
        if len(rest) == 1:
            # Some ROMs write every name in capitals.
            binary = self.binaries.get(rest[0]) or self.binaries.get(rest[0].lower())
            if binary is not None:
                return TftpFile(binary.content, label=binary.name, mac=mac)
        parsed = _ParsedRequest(request.client_ip, shown, segments, rest, named, at_address, mac)
        return self._of_machine(parsed) or self._of_all(parsed)

    # --- files that are made for one machine -------------------------------------------------------------------------

    def _of_machine(self, parsed: _ParsedRequest) -> Opened | Awaitable[Opened] | None:
        """Return a script, kernel or initrd; None if the name is of another kind."""
        # A Raspberry Pi begins names with its serial number, which no Hardware has.
        rest, scripts = parsed.rest[1:] if _is_of_pi(parsed) else parsed.rest, self.scripts
        match rest:
            case ["osie", name, file] if self.osie_files is not None and file in ("kernel", "initrd", UKI_FILE):
                return self._osie(parsed, name, UKI if file == UKI_FILE else file, self.osie_files)
            case _ if scripts is None:
                return None
            case ["auto.ipxe" | "why.ipxe" | "autoexec.ipxe" as name]:
                return self._script(parsed, name, scripts)
            case [*directory, name] if is_script([*directory, name]):
                # GRUB tries the common name last, so the operator's common file must win over a generated specific one.
                common = "/".join([*directory, CONFIG]) if name not in (CONFIG, WHY) else ""
                return self._operators_or(parsed, partial(self._grub, parsed, name, scripts), common)
            case [uboot.CONFIG_DIRECTORY, name] if (owner := uboot.machine_of(name)) is not None:
                label, own = f"{uboot.CONFIG_DIRECTORY}/{name}", replace(parsed, named=owner)
                ours = partial(self._made, own, label, scripts, "U-Boot", Dialect.EXTLINUX)
                return self._operators_or(parsed, ours, uboot.CONFIG_DIRECTORY)
            case [uboot.BOOT_SCRIPT as name]:
                return self._operators_or(parsed, partial(self._made, parsed, name, scripts, "U-Boot", Dialect.U_BOOT))
            case [raspberry_pi.CONFIG | raspberry_pi.COMMAND_LINE as name] if self.pi_firmware:
                return self._operators_or(parsed, partial(self._of_pi, parsed, name, scripts, self.pi_firmware))
        return None

    def _made(
        self, parsed: _ParsedRequest, label: str, scripts: MachineScripts, client: str, dialect: Dialect
    ) -> Opened:
        """Return the script of the machine that requests it."""
        mac = self._caller(parsed)
        if isinstance(mac, TftpRefusal):
            return mac
        # A Pi requests its command line after the configuration, which is recorded.
        recorded = dialect is not Dialect.PI_COMMAND_LINE
        script = scripts.script(mac, self._origin, client=client, dialect=dialect, recorded=recorded)
        if dialect is Dialect.U_BOOT:
            return TftpFile(uboot.script_image(script), label, mac, step=Step.SCRIPT)
        return _text(script, label, mac)

    def _script(self, parsed: _ParsedRequest, name: str, scripts: MachineScripts) -> Opened | None:
        mac = self._caller(parsed)
        if isinstance(mac, TftpRefusal):
            # Without this file, iPXE runs its built-in script.
            return None if name == "autoexec.ipxe" else mac
        if name == "autoexec.ipxe":
            return _text(scripts.autoexec(mac, EdgeOrigin(self.address)), name, mac)
        if name == "why.ipxe":
            return _text(scripts.why(mac, self._failures.get(mac, NO_FAILURE)), name, mac)
        return self._made(parsed, name, scripts, "iPXE over TFTP", Dialect.IPXE)

    def _operators_or(
        self, parsed: _ParsedRequest, ours: Callable[[], Opened | Awaitable[Opened]], instead: str = ""
    ) -> Opened | Awaitable[Opened]:
        """Return the operator's file of this name, else the generated one, unless the operator has a file `instead`."""
        extra = self.extra
        if extra is None:
            return ours()

        async def choose() -> Opened:
            found = self._of_operator(parsed)
            found = await found if isinstance(found, Awaitable) else found
            if isinstance(found, TftpFile):
                return found
            if instead:
                above = [extra, extra / parsed.segments[0]] if parsed.named is not None else [extra]
                if await asyncio.to_thread(lambda: any((each / instead).exists() for each in above)):
                    return found
            made = ours()
            return await made if isinstance(made, Awaitable) else made

        return choose()

    async def _of_pi(self, parsed: _ParsedRequest, name: str, scripts: MachineScripts, firmware: Path) -> Opened:
        """Return `cmdline.txt`, or `config.txt` after the lines of the operator's common one."""
        is_config = name == raspberry_pi.CONFIG
        dialect = Dialect.PI_CONFIG if is_config else Dialect.PI_COMMAND_LINE
        common = ""
        if is_config and not isinstance(mac := self._caller(parsed), TftpRefusal):
            try:
                common = await asyncio.to_thread(_text_below, firmware, name, (firmware, self.extra))
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                return TftpRefusal(ErrorCode.UNDEFINED, f"--rpi-dir: {name}: {error}", mac)
        made = self._made(parsed, name, scripts, "Raspberry Pi", dialect)
        if common and isinstance(made, TftpFile):
            return replace(made, content=f"{common}\n".encode() + bytes(made.content))
        return made

    def _grub(self, parsed: _ParsedRequest, name: str, scripts: MachineScripts) -> Opened:
        """Return `grub.cfg` of the machine at the caller's address, under each name that GRUB has for it."""
        named = machine_of(name)
        mac = self._caller(parsed)
        if named and not isinstance(mac, TftpRefusal):
            parsed = replace(parsed, named=named)
            mac = self._caller(parsed)
        if isinstance(mac, TftpRefusal):
            return mac
        if name == WHY:
            failure = self._failures.get(mac)
            return _text(scripts.why(mac, failure, Dialect.GRUB) if failure else scripts.not_started(mac), name, mac)
        return self._made(parsed, name, scripts, "GRUB over TFTP", Dialect.GRUB)

    def _osie(self, parsed: _ParsedRequest, name: str, part: str, osie_files: OsieFiles) -> Opened | Awaitable[Opened]:
        mac = self._caller(parsed)
        if isinstance(mac, TftpRefusal):
            return mac
        machine = parsed.at_address
        if machine is not None:
            namespace = machine.namespace
        elif self.default_osie is not None and self.default_osie[1] == name:
            namespace = self.default_osie[0]
        else:
            message = "machines without a Hardware get the --default-osie only"
            return TftpRefusal(ErrorCode.ACCESS_VIOLATION, message, mac)
        try:
            located = osie_files.locate(namespace, name, part)
        except NoArtifactError as error:
            return self._failed(mac, str(error))
        return self._artifact(mac, part, located, osie_files)

    async def _artifact(self, mac: str, part: str, located: Located, osie_files: OsieFiles) -> Opened:
        label = f"{'UKI' if part == UKI else part} of OSIE {located.full_name}"
        step = {"kernel": Step.KERNEL, "initrd": Step.INITRD}.get(part, Step.TFTP)
        try:
            artifact = await osie_files.open(located)
        except ArtifactError as error:
            return self._failed(mac, _explained(located, error))
        try:
            if artifact.source is Source.FILE:
                content = await asyncio.to_thread(self._snapshots.take, artifact.fd)
                artifact.close()
                file = TftpFile(content, label, mac, step=step)
            else:
                if os.fstat(artifact.fd).st_size < artifact.size:
                    await artifact.filled(artifact.size - 1)
                content = mapped(artifact.fd, artifact.size)
                file = TftpFile(content, label, mac, step=step, filled=artifact.filled, close=artifact.close)
        except (ArtifactError, OSError, ValueError, TooLargeError) as error:
            artifact.close()
            return self._failed(mac, _explained(located, error))
        except BaseException:
            artifact.close()
            raise
        self._failures.pop(mac, None)
        return file

    def _caller(self, parsed: _ParsedRequest) -> str | TftpRefusal:
        """Return the client's MAC if it may boot from the network and requests its own file; otherwise the refusal."""
        machine = self._interface(parsed.at_address, parsed.client_ip, parsed.named)
        mac = machine.mac if machine is not None else self.callers.mac(parsed.client_ip)
        decision = self.policy.decide(machine)
        if not decision.allowed:
            message = f"may not netboot: {decision.reason}"
        elif mac is None or parsed.named not in (None, mac):
            message = _own_only(parsed)
        else:
            return mac
        return TftpRefusal(ErrorCode.ACCESS_VIOLATION, message, parsed.mac, about=self._registered(parsed.named))

    def _interface(self, machine: Machine | None, ip: str, named: str | None) -> Machine | None:
        """Return the interface with the MAC `named`, of the machine's interfaces that share the address."""
        return self.inventory.interface_at(machine, ip, named) if machine is not None else None

    def _registered(self, mac: str | None) -> str | None:
        return mac if mac is not None and self.inventory.by_mac(mac) is not None else None

    def _failed(self, mac: str, message: str) -> TftpRefusal:
        self._failures[mac] = message
        return TftpRefusal(ErrorCode.NOT_FOUND, message, mac)

    # --- the operator's files ---------------------------------------------------------------------------------------

    def _of_all(self, parsed: _ParsedRequest) -> Opened | Awaitable[Opened]:
        """Return the operator's file of this name, or one that all Raspberry Pis boot."""
        found, firmware = self._of_operator(parsed), self.pi_firmware
        if firmware is None or not parsed.segments or not self.policy.decide(parsed.at_address).allowed:
            return found

        async def look() -> Opened:
            opened = await found if isinstance(found, Awaitable) else found
            if isinstance(opened, TftpFile):
                return opened
            common = replace(parsed, segments=parsed.rest[1:] if _is_of_pi(parsed) else parsed.rest)
            return await self._extra_file(firmware, common, opened, shared=False)

        return look()

    def _of_operator(self, parsed: _ParsedRequest) -> Opened | Awaitable[Opened]:
        extra, is_pi, message = self.extra, _is_of_pi(parsed), f"{parsed.shown}: no such file"
        expected = bool(_EXPECTED_MISSES.fullmatch("/".join(parsed.rest))) or is_optional("".join(parsed.segments[-1:]))
        if is_pi and extra is None and self.pi_firmware is None:
            message, expected = f"{message}; --rpi-dir names the firmware of Raspberry Pis", False
        elif is_pi or (self.pi_firmware is not None and parsed.named is not None):
            # A Pi requests some twenty files and needs six of them. Which ones depends on the model.
            expected = True
        missing = TftpRefusal(ErrorCode.NOT_FOUND, message, parsed.mac, expected=expected)
        if not parsed.segments or extra is None or not self.policy.decide(parsed.at_address).allowed:
            return missing
        # The directory of another machine's MAC is not searched. A Pi's serial number belongs to no known machine.
        if parsed.named is not None and parsed.named not in (parsed.mac, self.callers.mac(parsed.client_ip)):
            return self._extra_file(extra, replace(parsed, segments=parsed.rest), missing, shared=False)
        return self._extra_file(extra, parsed, missing, shared=is_pi or parsed.named is not None)

    async def _extra_file(self, root: Path, parsed: _ParsedRequest, missing: TftpRefusal, *, shared: bool) -> Opened:
        try:
            found = await asyncio.to_thread(self._read_extra, root, parsed, shared)
        except TooLargeError as error:
            return TftpRefusal(ErrorCode.UNDEFINED, f"{parsed.shown}: {error}", parsed.mac)
        except (OSError, ValueError):
            return missing
        if isinstance(found, TftpFile):
            return found
        return TftpRefusal(ErrorCode.ACCESS_VIOLATION, _own_only(parsed), parsed.mac, about=self._registered(found))

    def _read_extra(self, root: Path, parsed: _ParsedRequest, shared: bool) -> TftpFile | str:
        """Read the file in a thread, or return the MAC of the other machine that it belongs to.

        Raises OSError, ValueError, TooLargeError.
        """
        segments = parsed.segments
        # Use the machine's own directory if it exists, otherwise the common files.
        if shared and not (root / segments[0]).is_dir():
            segments = segments[1:]
        fd, path = open_below(root, segments)
        try:
            owner = _owner(path, (root, self.extra))
            if owner is not None and owner != self.callers.mac(parsed.client_ip):
                # Another interface of the same Hardware may have it, too.
                machine, owning = parsed.at_address, self.inventory.by_mac(owner)
                if machine is None or owning is None or not machine.is_of_hardware_of(owning):
                    return owner
            return TftpFile(self._snapshots.take(fd), label=shown_name("/".join(segments)), mac=parsed.mac)
        finally:
            os.close(fd)


def _owner(path: Path, roots: Iterable[Path | None]) -> str | None:
    """Return the MAC that names the directory below one of `roots` which contains `path`, or None."""
    # `path` has no links in it, so it is the real place of the file. One root may be in the other.
    for root in roots:
        inside = os.path.realpath(root) if root is not None else None
        if inside is not None and path.is_relative_to(inside):
            owner, _ = from_path([*path.relative_to(inside).parts])
            if owner is not None:
                return owner
    return None


def _own_only(parsed: _ParsedRequest) -> str:
    return f"{parsed.shown} is served to its own machine only"


def _is_of_pi(parsed: _ParsedRequest) -> bool:
    """Return True if the name begins with a directory that looks like the serial number of a Raspberry Pi."""
    return len(parsed.segments) > 1 and raspberry_pi.is_serial(parsed.segments[0])


def _text_below(root: Path, name: str, roots: Iterable[Path | None]) -> str:
    """Read an operator's short text for all machines. Blocks. Raises OSError, ValueError."""
    fd, path = open_below(root, [name])
    with os.fdopen(fd, "rb") as file:
        if _owner(path, roots) is not None:
            raise ValueError("a link leads into the directory of one machine")
        content = file.read(_MAX_PI_CONFIG_BYTES + 1)
    if len(content) > _MAX_PI_CONFIG_BYTES:
        raise ValueError(f"larger than {_MAX_PI_CONFIG_BYTES >> 10} KiB")
    return content.decode("utf-8", "replace")


def _explained(located: Located, error: Exception) -> str:
    return f"OSIE {located.full_name}: {located.field} {error}"


def _text(script: str, label: str, mac: str) -> TftpFile:
    return TftpFile(script.encode(), label, mac, step=Step.SCRIPT)
