"""The IPMI client: the output of ipmitool 1.8.19 as recorded, its arguments, and a child process that misbehaves."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
import uvloop

from tests.waiting import until
from tink.bmc.ipmi import (
    MAX_OUTPUT_BYTES,
    BootFlags,
    IpmiClient,
    Output,
    arguments,
    boot_commands,
    boot_flags,
    failure,
    identity,
    power_state,
)
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    Boot,
    BootMode,
    Cause,
    EjectMedium,
    Enabled,
    Identity,
    InsertMedium,
    PowerState,
    Request,
    Reset,
    ResetType,
    SetBoot,
)

BMC = BmcConnection("192.0.2.20")
PASSWORD = "s3cret pass"
CREDENTIALS = BmcCredentials("operator", PASSWORD, "v1")

MC_INFO = b"""\
Device ID                 : 32
Device Revision           : 1
Firmware Revision         : 1.74
IPMI Version              : 2.0
Manufacturer ID           : 10876
Manufacturer Name         : Super Micro Computer Inc.
Product ID                : 6929 (0x1b11)
Product Name              : Unknown (0x1B11)
Device Available          : yes
Additional Device Support :
    Sensor Device
Aux Firmware Rev Info     :
    0x00
"""
FRU = b"""\
FRU Device Description : Builtin FRU Device (ID 0)
 Chassis Type          : Other
 Chassis Part Number   : CSE-116AC2-R706WB2
 Board Mfg Date        : Mon Jan  1 00:00:00 1996
 Board Mfg             : Supermicro
 Board Serial          : OM21AS000001
 Product Manufacturer  : Supermicro
 Product Name          : SYS-1019P
 Product Part Number   : SYS-1019P-WTR
 Product Serial        : A123456X0000001
"""
BOOT = b"""\
Boot parameter version: 1
Boot parameter 5 is valid/unlocked
Boot parameter data: %s
 Boot Flags :
   - Boot Flag Valid
   - Boot Device Selector : Force PXE
"""
NOISE = b"""\
Loading IANA PEN Registry...
Get HPM.x Capabilities request failed, compcode = d4
Running Get VSO Capabilities my_addr 0x20, transit 0, target 0x20
Invalid completion code received: Insufficient privilege level
Discovered IPMB address 0x0
"""
NO_SESSION = b"Error: Unable to establish IPMI v2 / RMCP+ session\n"


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "state"),
    [
        (b"Chassis Power is on\n", PowerState.ON),
        (b"Chassis Power is off\n", PowerState.OFF),
        (b"Chassis Power is on fire\n", None),
        (b"The Chassis Power is on\n", None),
        (b"", None),
    ],
)
def test_power_state_is_read_from_its_line_alone(out: bytes, state: PowerState | None) -> None:
    assert power_state(out) is state


@pytest.mark.parametrize(
    ("data", "target", "enabled", "mode"),
    [
        (b"8004000000", "Pxe", Enabled.ONCE, BootMode.LEGACY),
        (b"a004000000", "Pxe", Enabled.ONCE, BootMode.UEFI),
        (b"E008000000", "Hdd", Enabled.CONTINUOUS, BootMode.UEFI),
        (b"a00c000000", "Safe", Enabled.ONCE, BootMode.UEFI),
        (b"a014000000", "Cd", Enabled.ONCE, BootMode.UEFI),
        (b"c018000000", "BiosSetup", Enabled.CONTINUOUS, BootMode.LEGACY),
        (b"a0c4000000", "Pxe", Enabled.ONCE, BootMode.UEFI),
        (b"a038000000", "Selector14", Enabled.ONCE, BootMode.UEFI),
        (b"0004000000", "Pxe", Enabled.DISABLED, None),
        (b"8000000000", "None", Enabled.DISABLED, None),
    ],
)
def test_boot_flags_are_reported_in_the_words_of_redfish(
    data: bytes, target: str, enabled: Enabled, mode: BootMode | None
) -> None:
    flags = boot_flags(BOOT % data)
    assert flags is not None
    boot = flags.boot()
    assert (boot.target, boot.enabled, boot.mode) == (target, enabled, mode)
    assert "UefiHttp" not in boot.allowed_targets


@pytest.mark.parametrize("data", [b"", b"80040000", b"800400000000", b"80 04 00 00 00", b"zz04000000"])
def test_flags_of_another_length_are_no_flags(data: bytes) -> None:
    assert boot_flags(BOOT % data) is None


def test_identity_has_the_vendor_by_number_and_the_machine_of_the_fru() -> None:
    assert identity(MC_INFO) == Identity(vendor="Supermicro", firmware="1.74")
    assert identity(FRU) == Identity(vendor="Supermicro", model="SYS-1019P", serial="A123456X0000001")
    assert identity(FRU.replace(b"A123456X0000001", b"0123456789")).serial == ""
    assert identity(MC_INFO.replace(b"10876", b"99999")).vendor == "Super Micro Computer Inc."


@pytest.mark.parametrize(
    ("lines", "cause", "words"),
    [
        (b"> RAKP 2 HMAC is invalid\n", Cause.CREDENTIALS_REFUSED, "password"),
        (b"RAKP 2 message indicates an error : unauthorized name\n", Cause.CREDENTIALS_REFUSED, "user"),
        (b"RAKP 2 message indicates an error : unauthorized role requested\n", Cause.CREDENTIALS_REFUSED, "OPERATOR"),
        (b"RAKP 4 message indicates an error : illegal parameter\n", Cause.CREDENTIALS_REFUSED, "cipher suite 17"),
        (
            b"",
            Cause.CREDENTIALS_REFUSED,
            "user or password in the Secret are wrong, or it does not have cipher suite 17",
        ),
        (b"Error in open session response message : insufficient resources for session\n", Cause.BUSY, "session"),
        (b"Error in open session response message : no matching cipher suite\n", Cause.UNSUPPORTED, "cipher suite 17"),
        (
            b"Authentication algorithm 0x01 is not what we requested 0x03\n"
            b"Error: Unable to establish IPMI v2 / RMCP+ session\n",
            Cause.UNSUPPORTED,
            "it does not have cipher suite 17",
        ),
        (b"Get Auth Capabilities error\n", Cause.UNREACHABLE, "UDP port 623"),
        (b"> Error: no response from open session\n", Cause.UNREACHABLE, "does not answer at UDP port 623"),
        (b"> Error: no response from RAKP 1 message\n", Cause.UNREACHABLE, "check the user in the Secret"),
        (b"Address lookup for bmc failed\nCould not open socket!\n", Cause.UNREACHABLE, "host name"),
    ],
)
def test_session_that_is_not_opened_has_its_cause_and_the_remedy(lines: bytes, cause: Cause, words: str) -> None:
    error = failure(Output(1, b"", b"Loading IANA PEN Registry...\n" + lines + NO_SESSION), "x", BMC)
    assert error.cause is cause
    assert words in str(error)
    assert "192.0.2.20" in str(error)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"Set Chassis Power Control to Up/On failed: Insufficient privilege level", Cause.REFUSED),
        (b"Set Chassis Power Control to Up/On failed: Node busy", Cause.BUSY),
        (b"Set Chassis Power Control to Up/On failed: Command not supported in present state", Cause.CONFLICT),
        (b"Get Chassis Power Status failed: Invalid command", Cause.UNSUPPORTED),
        (b"Error sending Chassis Status command: Node busy", Cause.BUSY),
        (b"Error sending Chassis Status command", Cause.UNREACHABLE),
        (b"Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x8)", Cause.UNREACHABLE),
        (b"Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x8 rsp=0xcc): Invalid data", Cause.REFUSED),
        (b"Set Chassis Boot Parameter 5 failed: Unknown (0x80)", Cause.REFUSED),
        (b"", Cause.BAD_ANSWER),
    ],
)
def test_refused_command_has_the_cause_of_its_completion_code(line: bytes, cause: Cause) -> None:
    assert failure(Output(1, b"", NOISE + line + b"\n"), "x", BMC).cause is cause


def test_reason_is_that_of_the_last_command() -> None:
    kept = b"Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x8 rsp=0x80): Unknown (0x80)\n"
    boot = b"Set Chassis Boot Parameter 5 failed: Node busy\n"
    assert failure(Output(1, b"", NOISE + kept + boot), "x", BMC).cause is Cause.BUSY


@pytest.mark.parametrize("seed", range(300))
def test_output_of_any_bytes_is_read_without_an_exception(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(chance.choice([MC_INFO, FRU, BOOT % b"a004000000", NOISE + NO_SESSION, b"Chassis Power is on\n"]))
    for _ in range(chance.randrange(1, 40)):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
    out = bytes(data) * chance.choice([1, 1, 50])
    assert power_state(out) in (None, PowerState.ON, PowerState.OFF)
    flags = boot_flags(out)
    assert flags is None or isinstance(flags.boot(), Boot)
    found = identity(out)
    for text in (found.vendor, found.model, found.firmware, found.serial):
        assert len(text) <= 256
        assert text.isprintable()
    assert str(failure(Output(1, out, out), "x", BMC)).isprintable()


# --- arguments --------------------------------------------------------------------------------------------------------


def test_arguments_have_the_cipher_suite_and_limits_and_no_password() -> None:
    connection = BmcConnection("[2001:db8::20]", ipmi_port=1623, cipher_suite="3")
    words = " ".join(arguments(connection, CREDENTIALS))
    assert words == "-I lanplus -H 2001:db8::20 -p 1623 -C 3 -U operator -L OPERATOR -N 2 -R 1 -v -E"


@pytest.mark.parametrize("host", ["bmc-1.example.org", "bmc_1", "192.0.2.1", "2001:db8::1", "fe80::1%eth0", "b."])
def test_host_is_a_name_or_an_address(host: str) -> None:
    assert arguments(BmcConnection(host), CREDENTIALS)[3] == host


@pytest.mark.parametrize(
    ("connection", "credentials", "words"),
    [
        (BmcConnection(""), CREDENTIALS, "host"),
        (BmcConnection("-oProxyCommand=x"), CREDENTIALS, "host"),
        (BmcConnection("a b"), CREDENTIALS, "host"),
        (BmcConnection("a\n"), CREDENTIALS, "host"),
        (BmcConnection("fe80::1%-x"), CREDENTIALS, "host"),
        (BmcConnection("x" * 254), CREDENTIALS, "host"),
        (BmcConnection("bmc", ipmi_port=0), CREDENTIALS, "port"),
        (BmcConnection("bmc", cipher_suite="0"), CREDENTIALS, "cipherSuite"),
        (BmcConnection("bmc", cipher_suite="3 -P x"), CREDENTIALS, "cipherSuite"),
        (BMC, BmcCredentials("u" * 17, "x"), "user name"),
        (BMC, BmcCredentials("u\x00", "x"), "user name"),
        (BMC, BmcCredentials("u", "x" * 21), "20 bytes"),
        (BMC, BmcCredentials("u", "ü" * 11), "20 bytes"),
        (BMC, BmcCredentials("u", "hush\x00"), "control characters"),
        (BMC, BmcCredentials("u", "hush\ud800"), "control characters"),
    ],
)
def test_value_that_ipmi_can_not_have_starts_no_program(
    connection: BmcConnection, credentials: BmcCredentials, words: str
) -> None:
    with pytest.raises(BmcError, match=words) as raised:
        arguments(connection, credentials)
    assert raised.value.cause is Cause.UNSUPPORTED
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "command", "raw"),
    [
        (BootFlags(True, False, True, 1), "chassis bootdev pxe options=efiboot", "0xa0 0x04"),
        (BootFlags(True, True, True, 2), "chassis bootdev disk options=efiboot,persistent", "0xe0 0x08"),
        (BootFlags(True, True, False, 6), "chassis bootdev bios options=persistent", "0xc0 0x18"),
        (BootFlags(True, False, False, 5), "chassis bootdev cdrom", "0x80 0x14"),
        (BootFlags(True, False, False, 0), "chassis bootdev none", "0x80 0x00"),
    ],
)
def test_boot_flags_are_set_by_name_or_by_their_bytes_after_the_60_seconds_are_lifted(
    flags: BootFlags, command: str, raw: str
) -> None:
    keep = "raw 0x00 0x08 0x03 0x08"
    assert boot_commands(flags) == [keep, command]
    assert boot_commands(flags, is_raw=True) == [keep, f"raw 0x00 0x08 0x05 {raw} 0x00 0x00 0x00"]


# --- the client -------------------------------------------------------------------------------------------------------


class Program:
    """A script in the place of ipmitool. It records its arguments, environment and commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "ipmitool"

    def does(self, script: str) -> Program:
        # The last argument is the file with the commands. Like ipmitool, the script opens it by its name.
        record = 'd=${0%/*}; echo "$*" >>"$d/arguments"; env >>"$d/environment"; echo $$ >"$d/pid"\n'
        record += 'for f; do :; done; cat "$f" >>"$d/commands"'
        self.path.write_text(f"#!/bin/sh\n{record}\n{script}\n")
        self.path.chmod(0o755)
        return self

    def prints(self, out: bytes = b"", err: bytes = b"", status: int = 0) -> Program:
        (self.directory / "out").write_bytes(out)
        (self.directory / "err").write_bytes(err)
        return self.does(f'cat "$d/out"; cat "$d/err" >&2; exit {status}')

    def client(self, *, max_seconds: float = 60.0) -> IpmiClient:
        return IpmiClient(BMC, CREDENTIALS, program=str(self.path), max_seconds=max_seconds)

    def recorded(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def children(self) -> list[str]:
        """Return the processes of this test that were started for the client and have not ended."""
        pids = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        found = [Path(f"/proc/{pid}") for children in pids for pid in children.read_text().split()]
        return [str(each) for each in found if "IPMI_PASSWORD" in (each / "environ").read_text(errors="replace")]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


async def error_of(client: IpmiClient, request: Request | None = None) -> BmcError:
    with pytest.raises(BmcError) as raised:
        await (client.observe() if request is None else client.send(request))
    assert PASSWORD not in f"{raised.value} {raised.value!r}"
    return raised.value


async def test_one_session_reads_power_identity_and_boot_flags(program: Program) -> None:
    program.prints(b"Chassis Power is off\n" + MC_INFO + BOOT % b"a004000000", NOISE, 1)
    async with program.client() as client:
        seen = await client.observe(boot=True, media=True)
        assert (seen.power, seen.identity.vendor, seen.slots) == (PowerState.OFF, "Supermicro", None)
        assert seen.boot is not None
        assert (seen.boot.target, seen.boot.mode) == ("Pxe", "UEFI")
        assert program.recorded("commands") == ["chassis power status", "mc info", "chassis bootparam get 5"]
        assert len(program.recorded("arguments")) == 1
        await client.observe()
    assert program.recorded("commands")[3:] == ["chassis power status"], "the identity is known"


def test_commands_reach_the_program_with_uvloop_whose_pipes_are_sockets(program: Program) -> None:
    program.prints(b"Chassis Power is on\n")
    assert uvloop.run(program.client().observe()).power is PowerState.ON
    assert program.recorded("commands") == ["chassis power status", "mc info"]


async def test_password_is_in_the_environment_and_that_has_little_else(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPMITOOL_PASSWORD", "another")
    monkeypatch.setenv("AWS_SECRET", "x")
    await program.prints(b"Chassis Power is on\n").client().observe()
    names = {line.partition("=")[0] for line in program.recorded("environment")}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "LC_ALL", "IPMI_PASSWORD"}
    assert f"IPMI_PASSWORD={PASSWORD}" in program.recorded("environment")
    assert PASSWORD not in "".join(program.recorded("arguments") + program.recorded("commands"))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("On", "on"),
        ("ForceOff", "off"),
        ("GracefulShutdown", "soft"),
        ("ForceRestart", "reset"),
        ("PowerCycle", "cycle"),
    ],
)
async def test_each_reset_is_a_power_command(program: Program, kind: str, word: str) -> None:
    await program.prints(b"Chassis Power Control: Xy\n").client().send(Reset(ResetType(kind)))
    assert program.recorded("commands") == [f"chassis power {word}"]


async def test_boot_device_is_set_in_one_session_even_if_the_60_seconds_stay(program: Program) -> None:
    refused = b"Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x8 rsp=0x80): Unknown (0x80)\n"
    program.prints(b"Set Boot Device to pxe\n", NOISE + refused, 1)
    await program.client().send(SetBoot("Pxe", "Once", "UEFI"))
    assert program.recorded("commands") == ["raw 0x00 0x08 0x03 0x08", "chassis bootdev pxe options=efiboot"]


async def test_boot_device_that_the_bmc_refuses_is_an_error(program: Program) -> None:
    program.prints(b"", NOISE + b"Set Chassis Boot Parameter 5 failed: Unspecified error\n", 1)
    error = await error_of(program.client(), SetBoot("Safe", "Once", "UEFI"))
    assert error.cause is Cause.REFUSED
    assert "chassis bootdev safe options=efiboot`: Unspecified error" in str(error)


RAW_BOARD = FRU + b" Board Product         : X11DSC+\n"
KNOWN = b"Chassis Power is on\n" + MC_INFO


@pytest.mark.parametrize(
    ("second", "is_accepted"),
    [(b"RAW RSP (0 bytes)\n", True), (b"Unable to send RAW command (x rsp=0xcc): Invalid data\n", False)],
)
async def test_board_that_ignores_bootdev_gets_the_bytes_and_its_answer_counts(
    program: Program, second: bytes, is_accepted: bool
) -> None:
    program.prints(KNOWN + RAW_BOARD, NOISE + b"RAW REQ (a)\nRAW RSP (0 bytes)\nRAW REQ (b)\n" + second)
    client = program.client()
    await client.observe()
    for _ in range(2):
        if is_accepted:
            await client.send(SetBoot("Pxe", "Continuous", "UEFI"))
        else:
            await error_of(client, SetBoot("Pxe", "Continuous", "UEFI"))
    raw = ["raw 0x00 0x08 0x03 0x08", "raw 0x00 0x08 0x05 0xe0 0x04 0x00 0x00 0x00"]
    assert program.recorded("commands") == ["chassis power status", "mc info", "fru print 0", *raw, *raw]


async def test_other_boards_get_bootdev_and_other_vendors_are_not_asked_for_their_board(program: Program) -> None:
    boot = ["raw 0x00 0x08 0x03 0x08", "chassis bootdev pxe options=efiboot"]
    for info, asked in ((MC_INFO + FRU, ["fru print 0"]), (MC_INFO.replace(b": 10876", b": 674"), [])):
        program.prints(b"Chassis Power is on\n" + info + b"Set Boot Device to pxe\n")
        client = program.client()
        await client.observe()
        before = len(program.recorded("commands"))
        await client.send(SetBoot("Pxe", "Once", "UEFI"))
        assert program.recorded("commands")[before:] == [*asked, *boot]


async def test_bytes_can_be_demanded(program: Program) -> None:
    program.prints(b"", b"RAW REQ (a)\nRAW RSP (0 bytes)\n")
    await IpmiClient(BMC, CREDENTIALS, program=str(program.path), has_raw_boot=True).send(
        SetBoot("Hdd", "Once", "Legacy")
    )
    assert program.recorded("commands")[-1] == "raw 0x00 0x08 0x05 0x80 0x08 0x00 0x00 0x00"


async def test_part_of_the_boot_flags_that_is_not_given_stays_as_it_is(program: Program) -> None:
    program.prints(BOOT % b"e008000000" + b"Set Boot Device to pxe\nSet Boot Device to disk\nSet Boot Device to none\n")
    await program.client().send(SetBoot(target="Pxe"))
    assert program.recorded("commands")[-1] == "chassis bootdev pxe options=efiboot,persistent"
    await program.client().send(SetBoot(mode="Legacy", enabled="Once"))
    assert program.recorded("commands")[-1] == "chassis bootdev disk"
    await program.client().send(SetBoot(enabled="Disabled"))
    assert program.recorded("commands")[-1] == "chassis bootdev none"


@pytest.mark.parametrize(
    "request_",
    [
        SetBoot("UefiHttp", "Once", "UEFI"),
        SetBoot("Pxe", "Once", "UEFI", http_uri="http://192.0.2.1/"),
        InsertMedium("/redfish/v1/x", "http://192.0.2.1/x.iso"),
        EjectMedium("/redfish/v1/x"),
    ],
)
async def test_media_and_http_boot_are_not_supported(program: Program, request_: Request) -> None:
    program.prints()
    assert (await error_of(program.client(), request_)).cause is Cause.UNSUPPORTED
    assert program.recorded("arguments") == []


async def test_refused_login_is_not_repeated(program: Program) -> None:
    client = program.prints(b"", b"> RAKP 2 HMAC is invalid\n" + NO_SESSION, 1).client()
    for request in (None, Reset(ResetType.ON), SetBoot("Pxe"), None):
        assert (await error_of(client, request)).cause is Cause.CREDENTIALS_REFUSED
    assert len(program.recorded("arguments")) == 1


async def test_bmc_that_was_away_is_asked_again(program: Program) -> None:
    client = program.prints(b"", b"Get Auth Capabilities error\n" + NO_SESSION, 1).client()
    assert (await error_of(client)).cause is Cause.UNREACHABLE
    program.prints(b"Chassis Power is on\n" + MC_INFO)
    assert (await client.observe()).power is PowerState.ON


@pytest.mark.parametrize(
    ("fru", "expected"),
    [
        (FRU, Identity(vendor="Supermicro", model="SYS-1019P", firmware="1.74", serial="A123456X0000001")),
        (b" Device not present (Invalid data field in request)\n", Identity(vendor="Supermicro", firmware="1.74")),
    ],
)
async def test_identity_is_of_the_bmc_and_if_it_has_a_fru_of_the_machine(
    program: Program, fru: bytes, expected: Identity
) -> None:
    (program.directory / "mc").write_bytes(MC_INFO)
    (program.directory / "fru").write_bytes(fru)
    program.does('case $(tail -n 1 "$d/commands") in fru*) cat "$d/fru" ;; *) cat "$d/mc" ;; esac')
    assert await program.client().identify() == expected


async def test_missing_program_has_its_package_as_the_remedy(tmp_path: Path) -> None:
    error = await error_of(IpmiClient(BMC, CREDENTIALS, program=str(tmp_path / "none")))
    assert error.cause is Cause.UNSUPPORTED
    assert "package ipmitool" in str(error)


async def test_program_that_can_not_be_started_is_an_error(program: Program) -> None:
    program.path.write_text("")
    assert (await error_of(program.client())).cause is Cause.BUSY


async def test_child_that_does_not_end_is_killed_after_its_time(program: Program) -> None:
    program.does("exec sleep 1000")
    assert (await error_of(program.client(max_seconds=0.05))).cause is Cause.UNREACHABLE
    assert program.children() == []


@pytest.mark.parametrize("script", ["exec yes", "exec yes >&2", "exec cat /dev/zero"])
async def test_child_that_prints_without_end_is_killed(program: Program, script: str) -> None:
    error = await error_of(program.does(script).client())
    assert error.cause is Cause.BAD_ANSWER
    assert str(MAX_OUTPUT_BYTES) in str(error)
    assert program.children() == []


async def test_cancelled_call_ends_its_child(program: Program) -> None:
    program.does("exec sleep 1000")
    call = asyncio.ensure_future(program.client().observe())
    await until(lambda: program.recorded("pid"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert program.children() == []


async def test_child_that_ends_before_it_has_read_its_commands_is_no_other_error(program: Program) -> None:
    program.path.write_text("#!/bin/sh\nexit 1\n")
    program.path.chmod(0o755)
    assert (await error_of(program.client())).cause is Cause.BAD_ANSWER
