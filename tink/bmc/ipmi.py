"""The IPMI client: power and boot device of a BMC, by the program `ipmitool` as a child process.

Each call starts one child, which opens one RMCP+ session (IPMI 2.0 section 13), runs all commands of the call in it,
and ends. So a call costs one login, about 20 ms of processor time, and 10 MB of memory while it lasts.

- The cipher suite is always given: without it, ipmitool 1.8.19 asks the BMC for its suites first, which takes 10 s.
- The password is in the environment of the child, never in its arguments. The child gets no other variables than the
  search path and the locale.
- The session has the privilege OPERATOR, which power and boot device need (IPMI 2.0 appendix G).
- ipmitool runs with `-v`: only then does it print why the BMC refused a session.
- A refused login is final for a client: all later calls raise the same error without another login. No other cipher
  suite is tried, since that would be one more failed login.

The functions that read the output of ipmitool are pure and total: they take any bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from tink.api.inventory import clean_text, serial_number
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    Boot,
    BootMode,
    Cause,
    Enabled,
    Identity,
    Observation,
    PowerState,
    Request,
    Reset,
    ResetType,
    SetBoot,
)
from tink.bmc.quirks import QUIRKS

MAX_SECONDS: Final = 30.0
"""Maximum time of one child. A host that does not answer takes it 4 s (`-N 2 -R 1`)."""
MAX_OUTPUT_BYTES: Final = 64 * 1024
"""Maximum size of each output stream of a child. The longest output, of `fru print 0`, has a few kilobytes."""
MAX_USER_BYTES: Final = 16
"""IPMI 2.0 section 22.28, Set User Name."""
MAX_PASSWORD_BYTES: Final = 20
"""IPMI 2.0 section 22.30, Set User Password."""

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_ZONE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CIPHER_SUITE = re.compile(r"[1-9][0-9]?")
"""Suite 0 has no authentication: any password would be accepted."""

_POWER: Final = {
    ResetType.ON: "on",
    ResetType.FORCE_OFF: "off",
    ResetType.GRACEFUL_SHUTDOWN: "soft",
    ResetType.FORCE_RESTART: "reset",
    ResetType.POWER_CYCLE: "cycle",
}
_DEVICES: Final = {"None": ("none", 0), "Pxe": ("pxe", 1), "Hdd": ("disk", 2), "Safe": ("safe", 3), "Cd": ("cdrom", 5)}
_DEVICES["BiosSetup"] = ("bios", 6)
"""Boot devices that can be set: Redfish's word, ipmitool's word, the selector of IPMI 2.0 table 28-14. Redfish has no
word for safe mode (the disk, in safe mode).
"""
_SELECTORS: Final = {selector: word for word, (_, selector) in _DEVICES.items()} | {
    4: "Diags",
    7: "Floppy",
    8: "Cd",
    9: "Usb",
    11: "Hdd",
    15: "Floppy",
}
_VALID, _PERSISTENT, _UEFI = 0x80, 0x40, 0x20
_KEEP_FLAGS = "raw 0x00 0x08 0x03 0x08"
"""Set boot option 3 so that the BMC keeps the boot flags for longer than 60 s (IPMI 2.0 table 28-14, parameter 3, bit
3). Some BMCs refuse it (80h) and keep them anyway.
"""

_MANUFACTURERS: Final = {
    2: "IBM", 9: "Cisco", 11: "HPE", 343: "Intel", 674: "Dell", 2011: "Huawei", 2623: "ASUS", 5703: "NVIDIA",
    5771: "Cisco", 7244: "Quanta", 10368: "Fujitsu", 10876: "Supermicro", 15370: "Gigabyte", 19046: "Lenovo",
    20301: "IBM", 37945: "Inspur", 47196: "HPE", 49622: "ASRockRack",
}  # fmt: skip
"""Vendors by their IANA enterprise number, as Redfish spells them. The registry has other names, such as Super Micro
Computer Inc.
"""


@dataclass(frozen=True, slots=True)
class BootFlags:
    """The boot flags of a BMC: boot option parameter 5 (IPMI 2.0 table 28-14)."""

    is_valid: bool
    is_persistent: bool
    is_uefi: bool
    selector: int

    def boot(self) -> Boot:
        """Return the flags in Redfish's words. The mode is None while the flags have no effect."""
        has_effect = self.is_valid and self.selector != 0
        enabled = Enabled.DISABLED
        if has_effect:
            enabled = Enabled.CONTINUOUS if self.is_persistent else Enabled.ONCE
        mode = BootMode.UEFI if self.is_uefi else BootMode.LEGACY
        return Boot(
            target=_SELECTORS.get(self.selector, f"Selector{self.selector}"),
            enabled=enabled.value,
            mode=mode.value if has_effect else None,
            allowed_targets=tuple(_DEVICES),
            allowed_enabled=tuple(each.value for each in Enabled),
        )


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a child that has ended: exit status, standard output and standard error."""

    status: int
    out: bytes
    err: bytes


# --- the output of ipmitool -------------------------------------------------------------------------------------------


def power_state(out: bytes) -> PowerState | None:
    """Return the state that `chassis power status` prints; None if there is none."""
    found = re.search(rb"^Chassis Power is (on|off)\s*$", out, re.MULTILINE)
    return None if found is None else PowerState(found[1].decode())


def boot_flags(out: bytes) -> BootFlags | None:
    """Return the flags that `chassis bootparam get 5` prints as ten hexadecimal digits; None if there are none."""
    found = re.search(rb"^Boot parameter data: ([0-9a-fA-F]{10})\s*$", out, re.MULTILINE)
    if found is None:
        return None
    first, second, *_ = bytes.fromhex(found[1].decode())
    return BootFlags(bool(first & _VALID), bool(first & _PERSISTENT), bool(first & _UEFI), second >> 2 & 0x0F)


def identity(out: bytes) -> Identity:
    """Return the identity of a BMC from the output of `mc info`, and of its machine from that of `fru print 0`."""
    values = _values(out)
    number = values.get("Manufacturer ID", "")
    named = values.get("Manufacturer Name", "")
    known = _MANUFACTURERS.get(int(number), "") if re.fullmatch("[0-9]{1,7}", number) else ""
    vendor = known or ("" if named.startswith("Unknown") else named)
    return Identity(
        vendor=values.get("Product Manufacturer") or values.get("Board Mfg") or vendor,
        model=next(iter(model_names(out)), ""),
        firmware=values.get("Firmware Revision", ""),
        serial=serial_number(values.get("Product Serial"), values.get("Chassis Serial")),
    )


def model_names(out: bytes) -> tuple[str, ...]:
    """Return the names of a machine and its board from the output of `fru print 0`; of `mc info` usually none."""
    values = _values(out)
    names = (values.get("Product Name", ""), values.get("Board Product", ""))
    return tuple(name for name in names if name and not name.startswith("Unknown"))


def _values(out: bytes) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in out[:MAX_OUTPUT_BYTES].decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), clean_text(value))
    return values


_SESSION_FAILURES: Final = (
    (rb"Address lookup for .* failed", Cause.UNREACHABLE, "its host name has no address; check spec.connection.host"),
    (rb"insufficient resources", Cause.BUSY, "it has no session left; other programs may hold its sessions"),
    (
        rb"RAKP 2 HMAC is invalid",
        Cause.CREDENTIALS_REFUSED,
        "the password in the Secret is wrong for IPMI; correct it. Some BMCs have another password for IPMI than for "
        "Redfish, or cut it off",
    ),
    (
        rb"RAKP \d message indicates an error : unauthorized name",
        Cause.CREDENTIALS_REFUSED,
        "the user in the Secret may not log in by IPMI over LAN, or does not exist; correct the Secret, or enable the "
        "user for IPMI on the BMC",
    ),
    (
        rb"message(?: indicates an error)? : (?:invalid|unauthorized) role",
        Cause.CREDENTIALS_REFUSED,
        "the user in the Secret has no privilege OPERATOR for IPMI over LAN; give it this privilege on the BMC",
    ),
    (
        rb"algorithm 0x[0-9a-f]+ is not what we requested",
        Cause.UNSUPPORTED,
        "it does not have cipher suite {suite}; set spec.connection.providerOptions.ipmitool.cipherSuite (17 or 3)",
    ),
    (
        rb"open session response message : (?:invalid (?:auth|integ|conf)|no matching|no cipher)",
        Cause.UNSUPPORTED,
        "it refuses cipher suite {suite}; set spec.connection.providerOptions.ipmitool.cipherSuite (17 or 3)",
    ),
    (
        rb"no response from RAKP",
        Cause.UNREACHABLE,
        "it answers at UDP port {port}, but not to the login; check the user in the Secret, since some BMCs do not "
        "answer an unknown one, and the network between",
    ),
    (
        rb"Authentication Capabilities|Get Auth Capabilities error|Could not open socket|no response from",
        Cause.UNREACHABLE,
        "it does not answer at UDP port {port}; check that IPMI over LAN is enabled and that no firewall is between",
    ),
    (
        rb"Unable to establish",
        Cause.CREDENTIALS_REFUSED,
        "it refused a session: user or password in the Secret are wrong, or it does not have cipher suite {suite}. "
        "Correct the Secret, or set spec.connection.providerOptions.ipmitool.cipherSuite",
    ),
)
"""Lines of ipmitool 1.8.19 about a session that could not be opened. The first that is found counts."""

_REFUSAL = re.compile(rb"(?:failed|command|rsp=0x[0-9a-f]{2}\)): ([A-Z][^\r\n]{2,80})")
_REFUSALS: Final = {
    "Node busy": Cause.BUSY,
    "Insufficient resources": Cause.BUSY,
    "BMC initialization in progress": Cause.BUSY,
    "SDR Repository in update mode": Cause.BUSY,
    "Timeout": Cause.BUSY,
    "Command not supported in present state": Cause.CONFLICT,
    "Device in firmware update mode": Cause.CONFLICT,
    "Destination unavailable": Cause.CONFLICT,
    "Invalid command": Cause.UNSUPPORTED,
    "Invalid command on LUN": Cause.UNSUPPORTED,
    "Parameter not supported": Cause.UNSUPPORTED,
}
"""Texts of completion codes (IPMI 2.0 table 5-2). All others refuse the request."""


def failure(output: Output, asked: str, connection: BmcConnection) -> BmcError:
    """Return the error that a child reports. `asked` describes the request that has not been fulfilled."""
    bmc = f"the BMC {clean_text(connection.host)}"
    for pattern, cause, sentence in _SESSION_FAILURES:
        if re.search(pattern, output.err):
            return BmcError(
                cause, f"{bmc}: {sentence.format(suite=connection.cipher_suite, port=connection.ipmi_port)}"
            )
    reasons = _REFUSAL.findall(output.err)
    if not reasons:
        if re.search(rb"Unable to (?:get|send)|Error sending", output.err):
            return BmcError(Cause.UNREACHABLE, f"{bmc} did not answer {asked}")
        return BmcError(Cause.BAD_ANSWER, f"{bmc}: ipmitool reports no result of {asked} (exit status {output.status})")
    # The last one is of the last command; the commands before it may be refused.
    reason = clean_text(reasons[-1].decode("ascii", "replace"))
    if reason == "Insufficient privilege level":
        reason += "; give the user in the Secret the privilege OPERATOR for IPMI over LAN"
    return BmcError(_REFUSALS.get(reason, Cause.REFUSED), f"{bmc} refuses {asked}: {reason}")


# --- the arguments of ipmitool ----------------------------------------------------------------------------------------


def arguments(connection: BmcConnection, credentials: BmcCredentials) -> list[str]:
    """Return the options of ipmitool for a BMC.

    Raises BmcError (NotSupported) for a host, port, user, password or cipher suite that IPMI can't have.
    """
    host = connection.host.removeprefix("[").removesuffix("]")
    name = f"the BMC {clean_text(host) or 'without a host'}"
    problem = ""
    if not _is_host(host):
        problem = "spec.connection.host must be a host name or an IP address"
    elif not 1 <= connection.ipmi_port <= 65535:
        problem = "spec.connection.providerOptions.ipmitool.port must be from 1 to 65535"
    elif _CIPHER_SUITE.fullmatch(connection.cipher_suite) is None:
        problem = "spec.connection.providerOptions.ipmitool.cipherSuite must be a number from 1 to 99, such as 17 or 3"
    elif not _fits(credentials.username, MAX_USER_BYTES):
        problem = f"the user name in the Secret has more than {MAX_USER_BYTES} bytes, or control characters"
    elif not _fits(credentials.password, MAX_PASSWORD_BYTES):
        problem = f"the password in the Secret has more than {MAX_PASSWORD_BYTES} bytes, or control characters"
    if problem:
        raise BmcError(Cause.UNSUPPORTED, f"{name}: IPMI can't be used: {problem}")
    options = ["-I", "lanplus", "-H", host, "-p", str(connection.ipmi_port), "-C", connection.cipher_suite]
    user = ["-U", credentials.username] if credentials.username else []
    return [*options, *user, "-L", "OPERATOR", "-N", "2", "-R", "1", "-v", "-E"]


def _is_host(host: str) -> bool:
    address, percent, zone = host.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None
    return not percent or _ZONE.fullmatch(zone) is not None


def _fits(text: str, size: int) -> bool:
    try:
        return len(text.encode()) <= size and not re.search(r"[\x00-\x1f\x7f]", text)
    except UnicodeEncodeError:
        return False


def boot_commands(flags: BootFlags, *, is_raw: bool = False) -> list[str]:
    """Return the commands that set the boot flags. `is_raw`: by their bytes, not by `chassis bootdev`.

    A Supermicro X11DSC+ accepts `chassis bootdev pxe options=efiboot` and boots from its disk; it obeys the bytes.
    """
    if is_raw:
        first = _VALID | _PERSISTENT * flags.is_persistent | _UEFI * flags.is_uefi
        return [_KEEP_FLAGS, f"raw 0x00 0x08 0x05 0x{first:02x} 0x{flags.selector << 2:02x} 0x00 0x00 0x00"]
    device = next(word for word, selector in _DEVICES.values() if selector == flags.selector)
    # Without `efiboot`, ipmitool sets the flag for a legacy boot.
    options = [*(["efiboot"] if flags.is_uefi else []), *(["persistent"] if flags.is_persistent else [])]
    return [_KEEP_FLAGS, f"chassis bootdev {device}" + (f" options={','.join(options)}" if options else "")]


def _is_accepted(output: Output, command: str) -> bool:
    """Return True if the BMC has accepted the last command, `command`."""
    if command.startswith("chassis power"):
        return b"Chassis Power Control:" in output.out
    if command.startswith("raw"):
        return output.err.rfind(b"RAW RSP") > output.err.rfind(b"RAW REQ (")
    device = command.split()[2].encode()
    return re.search(rb"^Set Boot Device to " + device + rb"\s*$", output.out, re.MULTILINE) is not None


# --- the client -------------------------------------------------------------------------------------------------------


class IpmiClient:
    """A `BmcClient` by IPMI: power and boot device. It has no virtual media and no HTTP boot.

    `program`: the ipmitool to start. `has_raw_boot`: set boot flags by their bytes (see `boot_commands`); False: only
    if the BMC's board needs that. `max_seconds`: time limit of each call.
    """

    protocol = "ipmi"

    def __init__(
        self,
        connection: BmcConnection,
        credentials: BmcCredentials,
        *,
        program: str = "ipmitool",
        has_raw_boot: bool = False,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._connection = connection
        self._credentials = credentials
        self._program = program
        self._has_raw_boot: bool | None = has_raw_boot or None
        self._max_seconds = max_seconds
        self._identity: Identity | None = None
        self._refusal: BmcError | None = None

    async def __aenter__(self) -> Self:
        """Check the connection's values. Raises BmcError. Each call opens a session of its own."""
        arguments(self._connection, self._credentials)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: no session outlives its call."""

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:  # noqa: ARG002
        """Read the power state, at first the BMC's identity, and with `boot` the boot flags. Raises BmcError.

        `media` has no effect: IPMI has no virtual media, and the slots are None.
        """
        commands = ["chassis power status"]
        commands += ["mc info"] if self._identity is None else []
        commands += ["chassis bootparam get 5"] if boot else []
        output = await self._run(commands)
        power = power_state(output.out)
        if power is None:
            raise self._failure(output, "chassis power status")
        if self._identity is None:
            self._identity = identity(output.out)
        flags = boot_flags(output.out) if boot else None
        return Observation(
            power=power,
            boot=flags.boot() if flags else None,
            identity=self._identity,
            allowed_resets=tuple(each.value for each in _POWER),
        )

    async def identify(self) -> Identity:
        """Read the identity of the BMC and, from its FRU inventory, of the machine. Raises BmcError.

        It may take seconds: BMCs read the FRU inventory over a slow bus.
        """
        info = await self._run(["mc info"])
        if b"Device ID" not in info.out:
            raise self._failure(info, "mc info")
        bmc, machine = identity(info.out), identity((await self._run(["fru print 0"])).out)
        self._identity = Identity(
            vendor=machine.vendor or bmc.vendor,
            model=machine.model or bmc.model,
            firmware=bmc.firmware,
            serial=machine.serial,
        )
        return self._identity

    async def send(self, request: Request) -> None:
        """Send a reset or the boot flags. Raises BmcError: NotSupported for virtual media and HTTP boot.

        The BMC replaces all flags at once: for fields of a SetBoot that are None, they are read first.
        """
        if isinstance(request, Reset):
            commands = [f"chassis power {_POWER[request.type]}"]
        elif isinstance(request, SetBoot):
            flags = await self._wanted_flags(request)
            commands = boot_commands(flags, is_raw=await self._needs_raw_boot())
        else:
            raise self._error(Cause.UNSUPPORTED, "IPMI has no virtual media; use Redfish")
        output = await self._run(commands)
        if not _is_accepted(output, commands[-1]):
            raise self._failure(output, commands[-1])

    async def _wanted_flags(self, request: SetBoot) -> BootFlags:
        if request.http_uri is not None or (request.target is not None and request.target not in _DEVICES):
            raise self._error(Cause.UNSUPPORTED, f"IPMI has no boot device {clean_text(request.target) or 'UefiHttp'}")
        if request.enabled == Enabled.DISABLED:
            return BootFlags(is_valid=True, is_persistent=False, is_uefi=False, selector=0)
        present = BootFlags(is_valid=False, is_persistent=False, is_uefi=False, selector=0)
        if request.target is None or request.enabled is None or request.mode is None:
            output = await self._run(["chassis bootparam get 5"])
            found = boot_flags(output.out)
            if found is None:
                raise self._failure(output, "chassis bootparam get 5")
            present = found
        selector = present.selector if request.target is None else _DEVICES[request.target][1]
        if selector not in {number for _, number in _DEVICES.values()}:
            raise self._error(Cause.UNSUPPORTED, f"its present boot device (selector {selector}) can't be set again")
        return BootFlags(
            is_valid=True,
            is_persistent=present.is_persistent if request.enabled is None else request.enabled == Enabled.CONTINUOUS,
            is_uefi=present.is_uefi if request.mode is None else request.mode == BootMode.UEFI,
            selector=selector,
        )

    async def _needs_raw_boot(self) -> bool:
        """Return True if the boot flags of this BMC must be set by their bytes (see `boot_commands`).

        The FRU inventory is read for that, once, and only if the vendor has such models.
        """
        if self._has_raw_boot is None and self._identity is not None:
            seen = self._identity
            rows = [row for row in QUIRKS if row.sets.ipmi_raw_boot and replace(row, models=()).applies_to(seen)]
            names = model_names((await self._run(["fru print 0"])).out) if rows else ()
            self._has_raw_boot = any(row.applies_to(replace(seen, model=name)) for row in rows for name in names)
        return bool(self._has_raw_boot)

    def _error(self, cause: Cause, text: str) -> BmcError:
        return BmcError(cause, f"the BMC {clean_text(self._connection.host)}: {text}")

    def _failure(self, output: Output, command: str) -> BmcError:
        error = failure(output, f"`{command}`", self._connection)
        if error.cause is Cause.CREDENTIALS_REFUSED:
            self._refusal = error
        return error

    async def _run(self, commands: Sequence[str]) -> Output:
        """Run commands in one session. Raises BmcError if no session could be opened, or for time or size.

        A command that the BMC refuses does not keep the next one from running, and raises no error here.
        """
        if self._refusal is not None:
            raise BmcError(self._refusal.cause, str(self._refusal))
        options = arguments(self._connection, self._credentials)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "IPMI_PASSWORD": self._credentials.password,
        }
        pipe = asyncio.subprocess.PIPE
        try:
            with _readable("".join(f"{command}\n" for command in commands).encode()) as stdin:
                # `exec FILE` runs each line of a file in the same session.
                process = await asyncio.create_subprocess_exec(
                    *(self._program, *options, "exec", "/dev/stdin"),
                    stdin=stdin,
                    stdout=pipe,
                    stderr=pipe,
                    env=environment,
                    start_new_session=True,
                )
        except FileNotFoundError:
            text = "IPMI needs the program ipmitool; install Debian's package ipmitool"
            raise self._error(Cause.UNSUPPORTED, text) from None
        except OSError as error:
            raise self._error(Cause.BUSY, f"ipmitool can't be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._max_seconds):
                output = await _communicate(process)
        except TimeoutError:
            raise self._error(Cause.UNREACHABLE, f"ipmitool did not end within {self._max_seconds:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if max(len(output.out), len(output.err)) > MAX_OUTPUT_BYTES:
            raise self._error(Cause.BAD_ANSWER, f"the output of ipmitool has more than {MAX_OUTPUT_BYTES} bytes")
        if b"Unable to establish" in output.err:
            raise self._failure(output, "a session")
        return output


@contextlib.contextmanager
def _readable(data: bytes) -> Iterator[int]:
    """Yield the reading end of a pipe that contains `data`, a few hundred bytes, and then ends.

    uvloop's PIPE is a socket, which ipmitool could not open by the name /dev/stdin (ENXIO).
    """
    reading, writing = os.pipe()
    try:
        try:
            os.write(writing, data)
        finally:
            os.close(writing)
        yield reading
    finally:
        os.close(reading)


async def _communicate(process: asyncio.subprocess.Process) -> Output:
    """Read the output of a child until it ends."""
    if process.stdout is None or process.stderr is None:
        raise AssertionError("the child has two pipes")
    out, err = await asyncio.gather(_read(process, process.stdout), _read(process, process.stderr))
    return Output(await process.wait(), out, err)


async def _read(process: asyncio.subprocess.Process, stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end. A child that writes more than MAX_OUTPUT_BYTES is killed."""
    data = b""
    while chunk := await stream.read(MAX_OUTPUT_BYTES):
        data += chunk
        if len(data) > MAX_OUTPUT_BYTES:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return data
    return data
