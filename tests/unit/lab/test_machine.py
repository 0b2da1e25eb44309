"""The virtual machine: how QEMU is called, and how what the machine shows is read."""

import pytest

from edge.lab import machine as module
from edge.lab.machine import Drive, Firmware, Machine, MachineSettings
from edge.lab.shell import CommandError
from tests.support.objects import MAC
from tests.waiting import until


def machine(directory, firmware=Firmware.BIOS, **more):
    return Machine(MachineSettings(mac=MAC, tap="machine0", firmware=firmware, **more), directory)


@pytest.fixture
def qemu(tmp_path, monkeypatch):
    """A program in QEMU's place that writes down how it was called, and does what the file that is returned says."""
    directory, behaviour = tmp_path / "bin", tmp_path / "behaviour"
    directory.mkdir()
    program = directory / "qemu-system-x86_64"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/called\n. {behaviour}\n')
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
    await machine.power_on()
    await until(lambda: file.exists() and file.read_text().endswith("\n"), "QEMU was not started")
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
