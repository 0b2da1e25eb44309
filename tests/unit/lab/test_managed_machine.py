"""A machine that a BMC controls: its starts, its CD drive, and what it reports, with a program in QEMU's place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from edge.building.shell import CommandError
from edge.lab import machine as module
from edge.lab.bmc import MachineBoot
from edge.lab.machine import Device, Firmware, MachineSettings, ManagedMachine, VirtualMachine
from edge.lab.uefi_variables import VariableStoreError
from tests.support.objects import MAC
from tests.unit.lab.test_uefi_variables import variable_store
from tests.waiting import until


class Qemu:
    """The starts of the program in QEMU's place."""

    def __init__(self, directory):
        self.directory = directory

    def commands(self):
        file = self.directory / "commands"
        lines = file.read_text().splitlines() if file.exists() else []
        return [tuple(json.loads(line)) for line in lines if "qmp_capabilities" not in line]

    def _options(self, name):
        words = (self.directory / "called").read_text().splitlines()
        return [words[number + 1] for number, word in enumerate(words[:-1]) if word == name]

    def order(self):
        """Return the ids of the devices in the boot order of the last start."""
        places = {}
        for device in self._options("-device"):
            properties = dict(each.partition("=")[::2] for each in device.split(","))
            if "bootindex" in properties:
                places[int(properties["bootindex"])] = properties["id"]
        return [places[index] for index in sorted(places)]

    def image(self):
        """Return the image in the CD drive at the last start; None: none."""
        files = [each.rpartition("file=")[2] for each in self._options("-drive") if each.startswith("if=none,id=cd,")]
        return files[0] if files else None

    def signal(self, number):
        os.kill(int((self.directory / "pid").read_text()), number)


@pytest.fixture
def qemu(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "qemu-system-x86_64"
    server = Path(__file__).with_name("listening_qemu.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {server} {tmp_path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(module, "_OVMF", tmp_path)
    (tmp_path / "OVMF_VARS_4M.fd").write_text("factory settings")
    return Qemu(tmp_path)


def machine(directory, firmware=Firmware.BIOS):
    return VirtualMachine(MachineSettings(mac=MAC, tap="machine0", firmware=firmware, is_managed=True), directory)


async def test_managed_machine_prefers_a_device_for_one_start_only(qemu, tmp_path):
    made = machine(tmp_path)
    for first, order in ((Device.NETWORK, ["net0", "disk0", "cdrom0"]), (Device.CDROM, ["cdrom0", "disk0", "net0"])):
        await made.power_on(first)
        assert made.is_on
        assert (qemu.order(), qemu.image()) == (order, None)
        await made.power_off()
        assert not made.is_on
    await made.power_on()
    assert qemu.order() == ["disk0", "net0", "cdrom0"]
    await made.power_off()


async def test_managed_machine_keeps_its_disk_and_variables_when_it_is_off(qemu, tmp_path):
    made = machine(tmp_path)
    await made.power_on()
    made.disk.write_bytes(b"installed")
    await made.power_off()
    await made.power_on()
    assert made.disk.read_bytes().startswith(b"installed")
    await made.power_off()
    other = machine(tmp_path, Firmware.UEFI)
    await other.power_on()
    (tmp_path / "variables.fd").write_text("written by the firmware")
    await other.power_off()
    await other.power_on()
    assert (tmp_path / "variables.fd").read_text() == "written by the firmware"
    await other.power_off()


async def test_cd_is_changed_while_the_machine_is_on_and_stays_in_the_drive_when_it_is_off(qemu, tmp_path):
    made = machine(tmp_path)
    await made.insert(tmp_path / "a.iso")
    await made.power_on()
    assert qemu.image() == f"{tmp_path}/a.iso"
    await made.insert(tmp_path / "b.iso")
    await made.press_power_button()
    await made.eject()
    changed = {"id": "cdrom0", "filename": f"{tmp_path}/b.iso", "format": "raw", "read-only-mode": "read-only"}
    assert qemu.commands() == [
        ("blockdev-change-medium", changed),
        ("system_powerdown", {}),
        ("eject", {"id": "cdrom0", "force": True}),
    ]
    await made.power_off()
    await made.power_on()
    assert qemu.image() is None
    await made.power_off()
    with pytest.raises(CommandError, match="the machine is off"):
        await made.press_power_button()


async def test_managed_machine_that_goes_off_by_itself_can_be_switched_on_again(qemu, tmp_path):
    made = machine(tmp_path)
    await made.power_on()
    qemu.signal(signal.SIGKILL)
    await until(lambda: not made.is_on)
    assert made.ended == "QEMU ended with status -9: "
    await made.power_on(Device.DISK)
    await made.power_off()
    assert qemu.commands() == []


async def test_managed_machine_that_does_not_start_gives_qemus_last_words(qemu, tmp_path):
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.write_text("#!/bin/sh\necho 'could not configure /dev/net/tun: Device busy' >&2; exit 1\n")
    made = machine(tmp_path)
    with pytest.raises(CommandError, match=r"QEMU ended with status 1: could not configure .*: Device busy"):
        await made.power_on()
    assert not made.is_on


async def test_machine_without_uefi_has_no_http_boot_uri(qemu, tmp_path):
    for firmware in (Firmware.BIOS, Firmware.ARM64):
        assert not firmware.has_http_uri
        with pytest.raises(CommandError, match="needs UEFI firmware"):
            machine(tmp_path, firmware).set_http_uri("http://192.0.2.1/ipxe.efi")
    with pytest.raises(VariableStoreError, match="no variable store"):
        machine(tmp_path, Firmware.UEFI).set_http_uri("http://192.0.2.1/ipxe.efi")


# --- behind the port of a BMC -----------------------------------------------------------------------------------------


class Observer:
    """Records the reports of a machine. `on_started` is called at each start."""

    def __init__(self):
        self.reports = []
        self.on_started = lambda: None

    def machine_started(self):
        self.reports.append("started")
        self.on_started()

    def machine_stopped(self):
        self.reports.append("stopped")

    def medium_inserted(self):
        self.reports.append("inserted")

    def medium_refused(self, reason):
        self.reports.append(f"refused: {reason}")

    def medium_ejected(self):
        self.reports.append("ejected")

    async def saw(self, *reports):
        await until(lambda: self.reports == list(reports), lambda: self.reports)


@asynccontextmanager
async def managed(directory, firmware=Firmware.BIOS):
    """A managed machine that carries out orders, and its observer."""
    made, observer = ManagedMachine(machine(directory, firmware), directory), Observer()
    made.connect(observer)
    running = asyncio.create_task(made.run())
    try:
        yield made, observer
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert not made.machine.is_on, "it is off at the end"


async def test_orders_are_carried_out_one_after_the_other_and_reported(qemu, tmp_path):
    async with managed(tmp_path) as (made, observer):
        made.prepare(MachineBoot("Pxe"))
        for order in (made.power_off, made.reset, made.press_power_button, made.power_on, made.power_on, made.reset):
            order()
        await observer.saw("started", "started")
        assert qemu.order()[0] == "net0"
        made.power_off()
        made.power_off()
        await observer.saw("started", "started", "stopped")


@pytest.mark.parametrize(
    ("target", "first"),
    [
        ("None", "disk0"),
        ("Hdd", "disk0"),
        ("Cd", "cdrom0"),
        ("UsbCd", "cdrom0"),
        ("UefiHttp", "net0"),
        ("Diags", "disk0"),
    ],
)
async def test_boot_target_of_the_bmc_is_the_first_device(qemu, tmp_path, target, first):
    async with managed(tmp_path) as (made, observer):
        made.prepare(MachineBoot(target))
        made.power_on()
        await observer.saw("started")
        assert qemu.order()[0] == first


async def test_restart_by_the_operating_system_uses_the_boot_device_that_is_prepared_by_then(qemu, tmp_path):
    async with managed(tmp_path) as (made, observer):
        made.prepare(MachineBoot("Pxe"))
        observer.on_started = lambda: made.prepare(MachineBoot())  # as a BMC whose one-time override is used up
        made.power_on()
        await observer.saw("started")
        assert qemu.order()[0] == "net0"
        qemu.signal(signal.SIGUSR1)
        await observer.saw("started", "started")
        assert qemu.order()[0] == "disk0"


async def test_power_button_and_a_crash_are_reported_as_power_off(qemu, tmp_path):
    async with managed(tmp_path) as (made, observer):
        made.power_on()
        await observer.saw("started")
        made.press_power_button()  # nothing listens yet
        await until(lambda: qemu.commands() == [("system_powerdown", {})])
        (tmp_path / "listens").touch()
        made.press_power_button()
        await observer.saw("started", "stopped")
        made.power_on()
        await observer.saw("started", "stopped", "started")
        qemu.signal(signal.SIGKILL)
        await observer.saw("started", "stopped", "started", "stopped")


async def test_machine_that_is_switched_off_while_it_restarts_stays_off(qemu, tmp_path):
    async with managed(tmp_path) as (made, observer):
        made.power_on()
        await observer.saw("started")
        (tmp_path / "silent").touch()
        made.press_power_button()
        await until(qemu.commands)
        made.power_off()  # waits for the order before it
        qemu.signal(signal.SIGUSR1)
        await observer.saw("started", "stopped")
        made.eject()
        await observer.saw("started", "stopped", "ejected")


async def test_machine_that_can_not_start_is_reported_as_off_with_the_reason(qemu, tmp_path):
    program = tmp_path / "bin" / "qemu-system-x86_64"
    content = program.read_text()
    program.write_text("#!/bin/sh\necho 'no memory' >&2; exit 1\n")
    async with managed(tmp_path) as (made, observer):
        made.power_on()
        await observer.saw("stopped")
        assert made.failure == "QEMU ended with status 1: no memory"
        program.write_text(content)
        made.power_on()
        await observer.saw("stopped", "started")


async def test_http_boot_uri_is_used_for_a_start_with_that_target_only(qemu, tmp_path):
    (tmp_path / "OVMF_VARS_4M.fd").write_bytes(variable_store())
    variables = tmp_path / "variables.fd"
    async with managed(tmp_path, Firmware.UEFI) as (made, observer):
        made.prepare(MachineBoot("UefiHttp", http_uri="http://192.0.2.1/ipxe.efi"))
        made.power_on()
        await observer.saw("started")
        assert qemu.order()[0] == "disk0", "BootNext of the firmware comes before the boot order"
        assert b"http://192.0.2.1/ipxe.efi" in variables.read_bytes()
        variables.write_bytes(variable_store())  # as firmware that has used it
        made.prepare(MachineBoot("Pxe"))
        made.reset()
        await observer.saw("started", "started")
        assert variables.read_bytes() == variable_store()
        made.prepare(MachineBoot("UefiHttp", http_uri="http://192.0.2.1/" + "x" * 2000))
        made.reset()
        await observer.saw("started", "started", "stopped")
        assert "1 to 1024 characters" in made.failure


@pytest.fixture
async def site():
    """A web server with images; its URL, and the event that the client of the slow one has gone."""
    gone = asyncio.Event()

    async def answer(request):
        if request.path == "/slow.iso":
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()
        if request.path == "/moved.iso":
            raise web.HTTPFound("/a.iso")
        return web.Response(body=b"image", status=200 if request.path.endswith(".iso") else 404)

    runner = web.ServerRunner(web.Server(answer, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", gone
    await runner.cleanup()


def images(directory):
    return sorted(each.name for each in directory.glob("*.iso"))


async def test_medium_is_fetched_and_stays_in_the_drive_until_it_is_ejected(qemu, tmp_path, site):
    url, _ = site
    async with managed(tmp_path) as (made, observer):
        made.insert(f"{url}/a.iso")
        await observer.saw("inserted")
        made.prepare(MachineBoot("Cd"))
        made.power_on()
        await observer.saw("inserted", "started")
        assert Path(qemu.image()).read_bytes() == b"image"
        made.insert(f"{url}/b.iso")
        await observer.saw("inserted", "started", "inserted")
        assert images(tmp_path) == ["cd-2.iso"]
        made.eject()
        await observer.saw("inserted", "started", "inserted", "ejected")
        assert images(tmp_path) == []


@pytest.mark.parametrize("path", ["/none", "/moved.iso"])
async def test_medium_that_can_not_be_fetched_is_refused_and_the_drive_stays_as_it_is(qemu, tmp_path, site, path):
    url, _ = site
    async with managed(tmp_path) as (made, observer):
        made.insert(f"{url}{path}")
        await until(lambda: observer.reports)
        assert observer.reports[0].startswith("refused: ")
        made.insert("http://192.0.2.1:not-a-port/")
        await until(lambda: len(observer.reports) == 2)
        assert observer.reports[1].startswith("refused: ")
        assert images(tmp_path) == []


async def test_large_medium_is_refused(qemu, tmp_path, site, monkeypatch):
    monkeypatch.setattr(module, "MAX_IMAGE_BYTES", 3)
    url, _ = site
    async with managed(tmp_path) as (made, observer):
        made.insert(f"{url}/a.iso")
        await until(lambda: observer.reports)
        assert observer.reports[0].startswith("refused: ValueError: the image has more than")
        assert images(tmp_path) == []


async def test_ejection_ends_a_download_and_the_machine_is_controlled_meanwhile(qemu, tmp_path, site):
    url, gone = site
    async with managed(tmp_path) as (made, observer):
        made.insert(f"{url}/slow.iso")
        made.power_on()
        await observer.saw("started")
        made.eject()
        await observer.saw("started", "ejected")
        await until(gone.is_set)
        made.insert(f"{url}/a.iso")
        await observer.saw("started", "ejected", "inserted")
