"""The virtual machine: how QEMU is called, and how what the machine shows is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge.lab import machine as module
from edge.lab.machine import Drive, Firmware, Machine, MachineSettings
from edge.lab.shell import CommandError

MAC = "52:54:00:12:34:56"


def settings(firmware: Firmware = Firmware.BIOS, **more: object) -> MachineSettings:
    return MachineSettings(mac=MAC, tap="machine0", firmware=firmware, **more)  # type: ignore[arg-type] # by name


@pytest.fixture
def qemu(tmp_path, monkeypatch):
    """A program in QEMU's place that writes down how it was called, and does what `behaviour` says."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "qemu-system-x86_64"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/called\n. {tmp_path}/behaviour\n')
    program.chmod(0o755)
    (tmp_path / "behaviour").write_text("exec sleep 60\n")
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return tmp_path


async def called(directory: Path) -> list[str]:
    for _ in range(1500):
        if (directory / "called").exists() and (text := (directory / "called").read_text()).endswith("\n"):
            return text.splitlines()
        await asyncio.sleep(0.02)
    raise AssertionError("QEMU was not started")


def value(arguments: list[str], option: str) -> list[str]:
    return [arguments[i + 1] for i, argument in enumerate(arguments[:-1]) if argument == option]


async def test_bios_machine_boots_its_blank_disk_first_and_then_the_card_with_its_own_rom(qemu, tmp_path):
    machine = Machine(settings(memory_mib=512, disk_mib=3), tmp_path)
    await machine.power_on()
    arguments = await called(qemu)
    assert machine.ended is None
    assert value(arguments, "-accel") == ["tcg"]
    assert value(arguments, "-cpu") == ["max,-erms,-fsrm"], "an emulated one copies nothing byte by byte"
    assert "-icount" not in arguments, "its clock is the host's"
    assert value(arguments, "-m") == ["512"]
    assert "pc,graphics=off" in value(arguments, "-machine")
    disk, card = (next(d for d in value(arguments, "-device") if kind in d) for kind in ("virtio-blk", "virtio-net"))
    assert "bootindex=1" in disk
    assert f"mac={MAC}" in card
    assert "bootindex=2" in card
    assert "romfile" not in card
    assert not any("pflash" in drive for drive in value(arguments, "-drive"))
    assert "tap,id=net,ifname=machine0,script=no,downscript=no" in value(arguments, "-netdev")
    assert machine.disk.stat().st_size == 3 << 20
    assert machine.disk.stat().st_blocks == 0
    await machine.power_off()
    assert machine.ended is None
    await machine.power_off()


async def test_uefi_machine_has_no_ipxe_rom_and_variables_of_its_own(qemu, tmp_path, monkeypatch):
    (tmp_path / "OVMF_VARS_4M.fd").write_text("factory settings")
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    machine = Machine(settings(Firmware.UEFI, accel="kvm"), tmp_path)
    await machine.power_on()
    arguments = await called(qemu)
    await machine.power_off()
    assert value(arguments, "-accel") == ["kvm"]
    assert value(arguments, "-cpu") == ["max"]
    assert "q35" in value(arguments, "-machine")
    assert any(
        device.startswith("virtio-net-pci") and device.endswith("romfile=") for device in value(arguments, "-device")
    )
    code, variables = (drive for drive in value(arguments, "-drive") if "pflash" in drive)
    assert "unit=0,readonly=on" in code
    assert variables == f"if=pflash,format=raw,unit=1,file={tmp_path}/variables.fd"
    assert (tmp_path / "variables.fd").read_text() == "factory settings"


async def test_machine_with_secure_boot_trusts_microsofts_keys_and_guards_them(qemu, tmp_path, monkeypatch):
    (tmp_path / "OVMF_VARS_4M.ms.fd").write_text("Microsoft's keys")
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    machine = Machine(settings(Firmware.SECURE_HTTP), tmp_path)
    await machine.power_on()
    arguments = await called(qemu)
    await machine.power_off()
    assert "q35,smm=on" in value(arguments, "-machine")
    assert "driver=cfi.pflash01,property=secure,value=on" in value(arguments, "-global")
    assert any("OVMF_CODE_4M.secboot.fd" in drive for drive in value(arguments, "-drive"))
    assert "name=opt/org.tianocore/IPv4PXESupport,string=n" in value(arguments, "-fw_cfg")
    assert (tmp_path / "variables.fd").read_text() == "Microsoft's keys"


@pytest.mark.parametrize(("firmware", "waits"), [(Firmware.UEFI_HTTP, True), (Firmware.UEFI, False)])
async def test_http_boot_over_ipv6_is_given_the_time_that_the_cards_address_takes(
    qemu, tmp_path, monkeypatch, firmware, waits
):
    (tmp_path / "OVMF_VARS_4M.fd").write_text("factory settings")
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    machine = Machine(settings(firmware, ipv6=True), tmp_path)
    await machine.power_on()
    arguments = await called(qemu)
    await machine.power_off()
    assert ("menu=on,splash-time=5000" in value(arguments, "-boot")) is waits
    assert "name=opt/org.tianocore/IPv4Support,string=n" in value(arguments, "-fw_cfg")


async def test_machine_by_whose_clock_each_instruction_takes_as_long(qemu, tmp_path):
    machine = Machine(settings(icount=5), tmp_path)
    await machine.power_on()
    arguments = await called(qemu)
    await machine.power_off()
    assert value(arguments, "-icount") == ["shift=5"]


async def test_arm64_machine_is_another_qemu_with_firmware_and_disk_of_its_own(qemu, tmp_path, monkeypatch):
    (tmp_path / "AAVMF_VARS.fd").write_text("factory settings")
    monkeypatch.setattr(module, "_AAVMF", tmp_path)
    machine = Machine(settings(Firmware.ARM64), tmp_path)
    command = machine._command()
    assert command[0] == "qemu-system-aarch64"
    arguments = list(map(str, command))
    assert value(arguments, "-machine") == ["virt"]
    assert value(arguments, "-cpu") == ["max"]  # EDK2 without a source of random numbers has no network boot
    assert any(f"readonly=on,file={tmp_path}/AAVMF_CODE.fd" in drive for drive in value(arguments, "-drive"))
    assert any("drive=disk,bootindex=1" in device for device in value(arguments, "-device"))
    assert {one.arch for one in Firmware if one is not Firmware.ARM64} == {"amd64"}


async def test_missing_firmware_is_named_with_its_package(qemu, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_AAVMF", tmp_path)
    with pytest.raises(CommandError, match=r"AAVMF_VARS\.fd is missing \(Debian package qemu-efi-aarch64\)"):
        await Machine(settings(Firmware.ARM64), tmp_path).power_on()
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    with pytest.raises(CommandError, match=r"OVMF_VARS_4M\.fd is missing \(Debian package ovmf\)"):
        await Machine(settings(Firmware.UEFI), tmp_path).power_on()


async def test_machine_that_goes_off_by_itself_gives_qemus_last_words(qemu, tmp_path):
    (tmp_path / "behaviour").write_text("echo 'could not configure /dev/net/tun: Device busy' >&2; exit 1\n")
    machine = Machine(settings(), tmp_path)
    await machine.power_on()
    for _ in range(1500):
        if machine.ended is not None:
            break
        await asyncio.sleep(0.02)
    assert machine.ended == "QEMU ended with status 1: could not configure /dev/net/tun: Device busy"
    await machine.power_off()


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (b"", []),
        (b"one\r\n\r\ntwo\r\nthree", ["two", "three"]),
        (
            b"\x1b[2J\x1b[01;01H\x1b[=3hBdsDxe: loading \x1b[31mBoot0001\x1b[0m\r\nx\r\n",
            ["BdsDxe: loading Boot0001", "x"],
        ),
        (b"\x1bc\x1b(B\x07iPXE initialising devices...\x08\x08ok\n\x00\n", ["iPXE initialising devices...ok"]),
        (b"1%\r2%\r3%\r", ["2%", "3%"]),
        (b"half a character \xe2\x82\nend", ["half a character \ufffd", "end"]),
    ],
    ids=["nothing", "lines", "colours", "controls", "progress", "not-utf8"],
)
def test_screen_is_read_as_a_person_sees_it(tmp_path, shown, lines):
    machine = Machine(settings(), tmp_path)
    machine.screen.write_bytes(shown)
    assert machine.last_lines(2) == lines


def test_long_screen_is_not_read_whole(tmp_path):
    machine = Machine(settings(), tmp_path)
    machine.screen.write_bytes(b"first\n" + b"x\n" * 1_000_000 + b"last\n")
    lines = machine.last_lines(10_000)
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
async def test_machine_with_a_medium_starts_from_it_and_never_from_its_card(
    qemu, tmp_path, firmware, drive, device, monkeypatch
):
    (tmp_path / "OVMF_VARS_4M.fd").write_bytes(b"vars")
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    machine = Machine(settings(firmware, medium=tmp_path / "medium.iso", drive=drive), tmp_path)
    await machine.power_on()
    arguments = await called(qemu)
    await machine.power_off()
    assert device in value(arguments, "-device")
    assert f"if=none,id=medium,format=raw,readonly=on,file={tmp_path}/medium.iso" in value(arguments, "-drive")
    (card,) = (each for each in value(arguments, "-device") if "virtio-net" in each)
    assert "bootindex" not in card
    assert card.endswith("romfile=")
