"""The lab's programs: how they and QEMU are run, how they fail, and that none outlives the lab."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge.building.shell import CommandError, Daemon, bound_to, run
from edge.lab import machine as module
from edge.lab.machine import Drive, Firmware, MachineSettings, VirtualMachine
from tests.support.objects import MAC
from tests.support.virtual_time import turns
from tests.waiting import until, wait_until


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def pid_in(file: Path) -> int:
    await until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


async def test_output_and_input_go_through_and_the_environment_is_added_to():
    assert await run(["cat"], stdin=b"in\xff") == "in\ufffd"
    assert await run(["sh", "-c", 'printf "%s" "$WORD"; test -n "$PATH"'], env={"WORD": "a b"}) == "a b"
    assert await run(["cat"]) == ""  # never waits for the terminal


async def test_failure_is_told_with_status_and_the_end_of_what_was_said():
    script = "for i in $(seq 100); do echo line $i >&2; done; exit 3"
    with pytest.raises(CommandError, match=r"sh -c .*: ended with status 3: line 86\n(.*\n)*line 100$"):
        await run(["sh", "-c", script])
    with pytest.raises(CommandError, match="status 1: only this"):
        await run(["sh", "-c", "echo only this; exit 1"])
    received = []  # each line, while the command runs
    out = await run(["sh", "-c", "echo one >&2; echo two >&2; echo result"], progress=received.append)
    assert (received, out) == (["one", "two"], "result\n")
    with pytest.raises(CommandError, match="the mirror is down"):
        await run(["sh", "-c", "echo the mirror is down >&2; exit 3"], progress=received.append)


@pytest.mark.parametrize("command", ["no-such-program", "/nonexistent/no-such-program"])
async def test_missing_program_is_named_with_where_to_find_its_package(tmp_path, command):
    with pytest.raises(CommandError, match="no-such-program is not installed; `tinkedge doctor`"):
        await run([command, "--version"])
    with pytest.raises(CommandError, match="no-such-program is not installed"):
        await Daemon.start("it", [command], tmp_path / "log")


@pytest.mark.parametrize("then", ["wait; sleep 3600", "true"])
async def test_command_that_takes_too_long_or_holds_up_the_output_is_ended_with_all_that_it_started(
    tmp_path, monkeypatch, then
):
    command = ["sh", "-c", f"sleep 3600 & echo $! >{tmp_path}/child; {then}"]
    running = asyncio.create_task(run(command, timeout=1800))
    child = await pid_in(tmp_path / "child")
    loop = asyncio.get_running_loop()
    now, skipped = loop.time, 0
    monkeypatch.setattr(loop, "time", lambda: now() + skipped)
    while not running.done():  # the limit may begin only now, since the program runs before the event loop knows of it
        skipped += 3600
        await turns()
    with pytest.raises(CommandError, match="sh did not end within 1800 s"):
        await running
    await until(lambda: not alive(child))


IGNORES_SIGTERM = "trap '' TERM; echo $$ >{}; while :; do sleep 0.05; done"


async def test_command_and_daemon_that_ignore_sigterm_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("edge.building.shell._GRACE_SECONDS", 0.2)
    task = asyncio.create_task(run(["sh", "-c", IGNORES_SIGTERM.format(tmp_path / "command")]))
    pid = await pid_in(tmp_path / "command")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)
    daemon = await Daemon.start("it", ["sh", "-c", IGNORES_SIGTERM.format(tmp_path / "daemon")], tmp_path / "log")
    assert await pid_in(tmp_path / "daemon") == daemon.pid
    assert await daemon.stop(grace=0.2) == -signal.SIGKILL
    assert not alive(daemon.pid)


@pytest.mark.parametrize("sees_the_start", [True, False])
async def test_interrupted_build_may_clear_up_and_leaves_no_process(tmp_path, sees_the_start):
    script = f"trap 'rm {tmp_path}/work' EXIT; touch {tmp_path}/work; sleep 60 & echo $! >{tmp_path}/child; wait"
    task = asyncio.create_task(run(["bash", "-c", script]))
    if sees_the_start:
        child = await pid_in(tmp_path / "child")
    else:
        await turns(2)
        wait_until((tmp_path / "child").exists)  # the event loop sees the start only after the program is far ahead
        child = int(wait_until((tmp_path / "child").read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "work").exists()
    await until(lambda: not alive(child))  # it is killed; that it is dead, it says when it is its turn


# --- daemons ----------------------------------------------------------------------------------------------------------


async def test_daemon_stops_on_sigterm_and_what_it_said_is_kept(tmp_path):
    script = "trap 'echo bye >&2; exit 7' TERM; seq 30; while :; do sleep 0.05; done"
    daemon = await Daemon.start("it", ["sh", "-c", script], tmp_path / "log")
    await until(lambda: "30" in daemon.log_tail())
    assert daemon.returncode is None
    assert daemon.log_tail(2) == "29\n30"
    assert await daemon.stop() == 7
    assert daemon.log_tail(1) == "bye"
    assert await daemon.stop() == 7, "stopping twice does no harm"


async def test_processor_time_is_counted_until_the_end(tmp_path):
    daemon = await Daemon.start("a) name", ["sh", "-c", "while :; do :; done"], tmp_path / "log")
    await until(lambda: daemon.cpu_seconds() >= 0.1)
    await daemon.stop()
    assert daemon.cpu_seconds() == 0.0


PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from edge.building.shell import Daemon, run
async def main():
    directory = Path(sys.argv[1])
    daemon = await Daemon.start("it", ["sleep", "60"], directory / "log")
    (directory / "daemon").write_text(f"{daemon.pid}\\n")
    busy = ["sh", "-c", f"trap '' TERM; echo $$ >{directory}/busy; while :; do sleep 1; done"]
    await Daemon.start("busy", busy, directory / "log", death_signal=signal.SIGKILL)
    await run(["sh", "-c", f"echo $$ >{directory}/command; exec sleep 60"])
asyncio.run(main())
"""


async def test_killed_lab_leaves_no_program_behind(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    try:
        children = [await pid_in(tmp_path / name) for name in ("daemon", "command", "busy")]
        assert all(map(alive, children))
    finally:
        parent.kill()
        parent.wait()
    await until(lambda: not any(map(alive, children)))


def test_program_whose_lab_was_killed_before_it_could_ask_for_the_signal_does_not_begin(tmp_path):
    """prctl(2), PR_SET_PDEATHSIG: a parent that has already ended sends no signal, and a machine would never end."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    late = subprocess.run(bound_to(gone.pid, ["touch", tmp_path / "began"]), check=False)
    assert late.returncode == 1
    assert not (tmp_path / "began").exists()
    assert subprocess.run(bound_to(os.getpid(), ["sh", "-c", 'exit "$1"', "sh", "7"]), check=False).returncode == 7


def machine(directory, firmware=Firmware.BIOS, **more):
    return VirtualMachine(MachineSettings(mac=MAC, tap="machine0", firmware=firmware, **more), directory)


@pytest.fixture
def qemu(tmp_path, monkeypatch):
    """A program in QEMU's place that writes down how it was called, and does what the file that is returned says."""
    directory, behaviour = tmp_path / "bin", tmp_path / "behaviour"
    directory.mkdir()
    program = directory / "qemu-system-x86_64"
    note = f'printf "%s\\n" "$@" >{tmp_path}/new && mv {tmp_path}/new {tmp_path}/called'
    program.write_text(f"#!/bin/sh\n{note}\n. {behaviour}\n")
    program.chmod(0o755)
    behaviour.write_text("exec sleep 3600\n")
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    monkeypatch.setattr(module, "_AAVMF", tmp_path)
    return behaviour


class Called:
    """The options of a QEMU that was started, by name."""

    def __init__(self, arguments):
        self.arguments = arguments

    def __getitem__(self, option):
        return [self.arguments[i + 1] for i, each in enumerate(self.arguments[:-1]) if each == option]

    def one(self, option, kind):
        (found,) = (each for each in self[option] if kind in each)
        return found


async def options(machine, tmp_path):
    """Switch the machine on and off; return how QEMU was called."""
    file = tmp_path / "called"
    file.unlink(missing_ok=True)
    await machine.power_on()
    await until(file.exists, "QEMU was not started")
    assert machine.ended is None
    await machine.power_off()
    assert machine.ended is None
    return Called(file.read_text().splitlines())


async def test_bios_machine_boots_its_blank_disk_first_and_then_the_card_with_its_own_rom(qemu, tmp_path):
    made = machine(tmp_path, memory_mib=512, disk_mib=3)
    called = await options(made, tmp_path)
    assert called["-accel"] == ["tcg"]
    assert called["-cpu"] == ["max,-erms,-fsrm"], "an emulated one copies nothing byte by byte"
    assert "-icount" not in called.arguments, "its clock is the host's"
    assert called["-m"] == ["512"]
    assert "pc,graphics=off" in called["-machine"]
    assert "bootindex=1" in called.one("-device", "virtio-blk")
    card = called.one("-device", "virtio-net")
    assert f"mac={MAC}" in card
    assert "bootindex=2" in card
    assert "romfile" not in card
    assert not any("pflash" in drive for drive in called["-drive"])
    assert "tap,id=net,ifname=machine0,script=no,downscript=no" in called["-netdev"]
    assert (made.disk.stat().st_size, made.disk.stat().st_blocks) == (3 << 20, 0)
    await made.power_off()


async def test_machine_has_its_serial_number_its_uuid_and_disks_and_cards_from_which_it_does_not_boot(qemu, tmp_path):
    cards = (("52:54:00:00:00:99", "tap9"),)
    made = machine(tmp_path, serial="S1", uuid="the-uuid", disk_mib=3, more_disks_mib=(5,), more_cards=cards)
    called = await options(made, tmp_path)
    assert called["-smbios"] == ["type=1,manufacturer=tinkedge,product=lab,serial=S1,uuid=the-uuid"]
    first, second = (each for each in called["-device"] if "virtio-blk" in each)
    assert (first, second) == (
        "virtio-blk-pci,drive=disk,bootindex=1,id=disk0,serial=S1-0", "virtio-blk-pci,drive=more1,serial=S1-1",
    )  # fmt: skip
    assert {each.name: each.stat().st_size >> 20 for each in tmp_path.glob("*.raw")} == {"disk.raw": 3, "disk1.raw": 5}
    assert "virtio-net-pci,netdev=net1,mac=52:54:00:00:00:99,romfile=" in called["-device"]
    assert "tap,id=net1,ifname=tap9,script=no,downscript=no" in called["-netdev"]


async def test_uefi_machine_has_no_ipxe_rom_and_variables_of_its_own(qemu, tmp_path):
    (tmp_path / "OVMF_VARS_4M.fd").write_text("factory settings")
    called = await options(machine(tmp_path, Firmware.UEFI, accel="kvm"), tmp_path)
    assert (called["-accel"], called["-cpu"]) == (["kvm"], ["max"])
    assert "q35" in called["-machine"]
    assert called.one("-device", "virtio-net-pci").endswith("romfile=")
    code, variables = (drive for drive in called["-drive"] if "pflash" in drive)
    assert "unit=0,readonly=on" in code
    assert variables == f"if=pflash,format=raw,unit=1,file={tmp_path}/variables.fd"
    assert (tmp_path / "variables.fd").read_text() == "factory settings"


async def test_machine_with_secure_boot_trusts_microsofts_keys_and_guards_them(qemu, tmp_path):
    (tmp_path / "OVMF_VARS_4M.ms.fd").write_text("Microsoft's keys")
    called = await options(machine(tmp_path, Firmware.SECURE_HTTP, icount=5), tmp_path)
    assert called["-icount"] == ["shift=5"], "each instruction takes as long by its clock"
    assert "q35,smm=on" in called["-machine"]
    assert "driver=cfi.pflash01,property=secure,value=on" in called["-global"]
    assert called.one("-drive", "OVMF_CODE_4M.secboot.fd")
    assert "name=opt/org.tianocore/IPv4PXESupport,string=n" in called["-fw_cfg"]
    assert (tmp_path / "variables.fd").read_text() == "Microsoft's keys"
    (tmp_path / "OVMF_VARS_4M.fd").write_text("factory settings")
    for firmware, waits in ((Firmware.UEFI_HTTP, True), (Firmware.UEFI, False)):
        called = await options(machine(tmp_path, firmware, ipv6=True), tmp_path)
        assert ("menu=on,splash-time=5000" in called["-boot"]) is waits, "the time that the card's address takes"
        assert "name=opt/org.tianocore/IPv4Support,string=n" in called["-fw_cfg"]


async def test_arm64_machine_is_another_qemu_with_firmware_and_disk_of_its_own(qemu, tmp_path):
    (tmp_path / "AAVMF_VARS.fd").write_text("factory settings")
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.rename(program.with_name("qemu-system-aarch64"))
    called = await options(machine(tmp_path, Firmware.ARM64), tmp_path)
    # EDK2 without a source of random numbers has no network boot.
    assert (called["-machine"], called["-cpu"]) == (["virt"], ["max"])
    assert called.one("-drive", f"readonly=on,file={tmp_path}/AAVMF_CODE.fd")
    assert called.one("-device", "drive=disk,bootindex=1")
    assert called.one("-device", "virtio-net").endswith("romfile=")
    assert {one.arch for one in Firmware if one is not Firmware.ARM64} == {"amd64"}


@pytest.mark.parametrize(
    ("firmware", "missing"),
    [
        (Firmware.ARM64, r"AAVMF_VARS\.fd is missing \(Debian package qemu-efi-aarch64\)"),
        (Firmware.UEFI, r"OVMF_VARS_4M\.fd is missing \(Debian package ovmf\)"),
    ],
)
async def test_missing_firmware_is_named_with_its_package(qemu, tmp_path, firmware, missing):
    with pytest.raises(CommandError, match=missing):
        await machine(tmp_path, firmware).power_on()


async def test_machine_that_goes_off_by_itself_gives_qemus_last_words(qemu, tmp_path):
    qemu.write_text("echo 'could not configure /dev/net/tun: Device busy' >&2; exit 1\n")
    made = machine(tmp_path)
    await made.power_on()
    await until(lambda: made.ended is not None)
    assert made.ended == "QEMU ended with status 1: could not configure /dev/net/tun: Device busy"
    await made.power_off()


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (b"", []),
        (b"one\r\n\r\ntwo\r\nthree", ["two", "three"]),
        (b"\x1b[2J\x1b[01;01H\x1b[=3hBdsDxe: loading \x1b[31mBoot1\x1b[0m\r\nx\r\n", ["BdsDxe: loading Boot1", "x"]),
        (b"\x1bc\x1b(B\x07iPXE initialising devices...\x08\x08ok\n\x00\n", ["iPXE initialising devices...ok"]),
        (b"1%\r2%\r3%\r", ["2%", "3%"]),
        (b"half a character \xe2\x82\nend", ["half a character \ufffd", "end"]),
    ],
    ids=["nothing", "lines", "colours", "controls", "progress", "not-utf8"],
)
def test_screen_is_read_as_a_person_sees_it(tmp_path, shown, lines):
    made = machine(tmp_path)
    made.screen.write_bytes(shown)
    assert made.last_lines(2) == lines


def test_long_screen_is_not_read_whole(tmp_path):
    made = machine(tmp_path)
    made.screen.write_bytes(b"first\n" + b"x\n" * 1_000_000 + b"last\n")
    lines = made.last_lines(10_000)
    assert lines[-1] == "last"
    assert len(lines) < 5000


@pytest.mark.parametrize(
    ("firmware", "drive", "device"),
    [
        (Firmware.BIOS, Drive.CDROM, "scsi-cd,drive=medium,bootindex=2"),
        (Firmware.UEFI, Drive.USB, "usb-storage,drive=medium,bootindex=2"),
        (Firmware.BIOS, Drive.USB, "usb-storage,drive=medium,bootindex=0"),
    ],
)
async def test_machine_with_a_medium_starts_from_it_and_never_from_its_card(qemu, tmp_path, firmware, drive, device):
    (tmp_path / "OVMF_VARS_4M.fd").write_bytes(b"vars")
    called = await options(machine(tmp_path, firmware, medium=tmp_path / "medium.iso", drive=drive), tmp_path)
    assert device in called["-device"]
    assert f"if=none,id=medium,format=raw,readonly=on,file={tmp_path}/medium.iso" in called["-drive"]
    card = called.one("-device", "virtio-net")
    assert "bootindex" not in card
    assert card.endswith("romfile=")
