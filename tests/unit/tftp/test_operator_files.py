"""The operator's own files over TFTP: firmware of Raspberry Pis, links, files that change."""

import asyncio
import os

import pytest

from edge.journey.events import Outcome
from edge.tftp import mapped
from edge.tftp.packets import ErrorCode
from edge.tftp.source import Refusal, TftpFile
from tests.unit.tftp.boot_files import IP, LOCKED_IP, MAC, OTHER, OTHER_IP, PI, STRANGER_IP, make_edge

DIRECTORY = MAC.replace(":", "-")
"""Files of that machine alone."""


async def test_raspberry_pi_gets_the_common_firmware_or_its_own(edge):
    (edge.extra / "start4.elf").write_bytes(b"common")
    (edge.extra / "overlays").mkdir()
    (edge.extra / "overlays" / "a.dtbo").write_bytes(b"overlay")
    assert await edge.text(f"{PI}/start4.elf") == "common"
    assert await edge.text("dc-a6-32-00-00-01/start4.elf") == "common"
    assert await edge.text(f"{PI}/overlays/a.dtbo") == "overlay"
    (edge.extra / PI).mkdir()
    (edge.extra / PI / "start4.elf").write_bytes(b"own")
    assert await edge.text(f"{PI}/start4.elf") == "own"
    assert (await edge.refused(f"{PI}/overlays/a.dtbo")).expected


async def test_raspberry_pi_is_told_where_its_firmware_would_be(tmp_path):
    edge = make_edge(tmp_path, extra=None)
    answer = await edge.refused(f"{PI}/start4.elf")
    assert (answer.expected, "--rpi-dir" in answer.message) == (False, True)


@pytest.fixture
def pi(tmp_path):
    """An edge with the firmware of Raspberry Pis, and no other files of the operator's."""
    firmware = tmp_path / "rpi"
    (firmware / "overlays").mkdir(parents=True)
    (firmware / "start4.elf").write_text("start4")
    (firmware / "overlays" / "vc4.dtbo").write_text("overlay")
    (firmware / "config.txt").write_text("[pi4]\nkernel=theirs\n")
    (firmware / "out").symlink_to(tmp_path)
    return make_edge(tmp_path, extra=None, pi_firmware=firmware)


PREFIXES = pytest.mark.parametrize("prefix", ["", f"{PI}/", "10000000" + PI + "/", "52-54-00-12-34-56/"])


@PREFIXES
async def test_raspberry_pi_gets_firmware_settings_and_its_osie_below_any_prefix(pi, prefix):
    assert await pi.text(f"{prefix}start4.elf") == "start4"
    assert await pi.text(f"{prefix}overlays/vc4.dtbo") == "overlay"
    config = await pi.text(f"{prefix}config.txt")
    # Behind the operator's own lines, and for any model: what comes last counts.
    assert config.splitlines()[:3] == ["[pi4]", "kernel=theirs", ""]
    assert config.splitlines()[3:] == [
        "[all]",
        f"# tinkedge: default/lab-1 ({MAC}) boots OSIE default/lab",
        "arm_64bit=1",
        "kernel=osie/lab/kernel",
        "initramfs osie/lab/initrd followkernel",
        "cmdline=cmdline.txt",
    ]
    line = await pi.text(f"{prefix}cmdline.txt")
    assert line.startswith("grpc_authority=10.0.0.1:42113 ")
    assert f" worker_id={MAC} " in line
    assert line.count("\n") == 1
    for part, url in (("kernel", "http://u/k"), ("initrd", "http://u/i")):
        file = await pi.get(f"{prefix}osie/lab/{part}")
        assert isinstance(file, TftpFile)
        file.close()
        assert pi.cache.asked[-1] == url
    said = [event.message for event in pi.journey.events(MAC)]
    assert said == ["script sent: OSIE default/lab"]


@PREFIXES
async def test_what_a_raspberry_pi_asks_for_in_vain_is_no_failure(pi, prefix):
    for name in ("pieeprom.sig", "recover4.elf", "armstub8-gic.bin", "out/secret", "overlays"):
        answer = await pi.refused(f"{prefix}{name}")
        assert (answer.code, answer.expected or not prefix) == (ErrorCode.NOT_FOUND, True)


async def test_raspberry_pi_gets_nothing_of_another_nor_a_stranger_anything(pi):
    for name in (f"{PI}/config.txt", f"{PI}/cmdline.txt", f"{PI}/start4.elf", "start4.elf", f"{PI}/osie/lab/kernel"):
        assert isinstance(await pi.get(name, STRANGER_IP), Refusal)
        assert (await pi.refused(name, LOCKED_IP)).code is ErrorCode.ACCESS_VIOLATION
    answer = await pi.refused("52-54-00-12-34-56/config.txt", OTHER_IP)
    assert (answer.code, answer.about) == (ErrorCode.ACCESS_VIOLATION, MAC)
    assert "boots OSIE default/lab" in await pi.text(f"{PI}/config.txt", OTHER_IP)
    assert f"({OTHER})" in await pi.text(f"{PI}/config.txt", OTHER_IP)  # its own: a serial number says nothing


async def test_raspberry_pi_that_can_not_boot_is_told_no_kernel_and_its_journey_why(pi):
    del pi.osies["default", "lab"]
    config = await pi.text(f"{PI}/config.txt")
    assert config.splitlines()[-1] == "kernel=netboot-not-allowed"
    assert "# OSIE default/lab, which Hardware lab-1 names, does not exist" in config
    assert await pi.text(f"{PI}/cmdline.txt") == "\n"
    assert (await pi.refused(f"{PI}/netboot-not-allowed")).code is ErrorCode.NOT_FOUND
    assert [event.outcome for event in pi.journey.events(MAC)] == [Outcome.FAILED]


async def test_operators_own_files_go_before_those_of_all_raspberry_pis(tmp_path):
    firmware = tmp_path / "rpi"
    firmware.mkdir()
    (firmware / "start4.elf").write_text("common")
    (firmware / "config.txt").write_bytes(bytes(70_000))
    edge = make_edge(tmp_path, pi_firmware=firmware)
    assert "larger than 64 KiB" in (await edge.refused(f"{PI}/config.txt")).message
    (edge.extra / PI).mkdir()
    (edge.extra / PI / "config.txt").write_text("mine")
    assert await edge.text(f"{PI}/config.txt") == "mine"
    assert await edge.text(f"{PI}/start4.elf") == "common"
    (edge.extra / "start4.elf").write_text("newer")
    (edge.extra / PI / "start4.elf").write_text("own")
    assert await edge.text(f"{PI}/start4.elf") == "own"


async def test_without_firmware_no_settings_of_raspberry_pis_are_made(edge):
    assert (await edge.refused(f"{PI}/config.txt")).code is ErrorCode.NOT_FOUND


async def test_stranger_gets_none_of_the_operators_files(edge):
    (edge.extra / "config.txt").write_bytes(b"x")
    assert (await edge.refused("config.txt", STRANGER_IP)).code is ErrorCode.NOT_FOUND


async def test_links_may_lead_around_inside_but_never_out(edge, tmp_path):
    (edge.extra / "v1").mkdir()
    (edge.extra / "v1" / "start4.elf").write_bytes(b"inside")
    (edge.extra / PI).symlink_to("v1")
    (edge.extra / "out").symlink_to(tmp_path)
    (edge.extra / "file").symlink_to(tmp_path / "secret")
    (edge.extra / "up").symlink_to("../secret")
    (edge.extra / "self").symlink_to("self")
    (edge.extra / "whole").symlink_to(".")
    assert await edge.text(f"{PI}/start4.elf") == "inside"
    assert await edge.text("whole/whole/v1/start4.elf") == "inside"
    for name in ("out/secret", "file", "up", "self", "out/tftp/../secret", "whole"):
        assert isinstance(await edge.get(name), Refusal)


@pytest.fixture
def owned(edge):
    """An edge with one machine's own directory, to which the operator's links lead."""
    (edge.extra / DIRECTORY).mkdir()
    (edge.extra / DIRECTORY / "keys").write_text("own")
    (edge.extra / "link").symlink_to(f"{DIRECTORY}/keys")
    (edge.extra / "by-name").mkdir()
    (edge.extra / "by-name" / "lab-1").symlink_to(f"../{DIRECTORY}")
    (edge.extra / "all").symlink_to(".")
    (edge.extra / PI).symlink_to(DIRECTORY)
    (edge.extra / OTHER.replace(":", "")).mkdir()
    (edge.extra / OTHER.replace(":", "") / "theirs").symlink_to(f"../{DIRECTORY}")
    return edge


@pytest.mark.parametrize(
    "name",
    [
        "link",
        "by-name/lab-1/keys",
        f"all/{DIRECTORY}/keys",
        f"{PI}/keys",
        f"{OTHER}/theirs/keys",
        f"02-00-00-00-00-01/{DIRECTORY}/keys",
        f"//.\\52.54.00.00.00.09\\{DIRECTORY}/keys",
        f"{PI[:-1]}0/{DIRECTORY}/keys",
    ],
)
async def test_file_in_a_machines_own_directory_is_for_that_machine_whatever_name_is_asked_for(owned, name):
    answer = await owned.refused(name, OTHER_IP)
    assert answer.about in (MAC, None)
    if "theirs" not in name:
        assert await owned.text(name) == "own"


async def test_link_into_a_machines_own_directory_is_recorded_on_its_journey(owned):
    answer = await owned.refused("link", OTHER_IP)
    assert (answer.code, answer.mac, answer.about) == (ErrorCode.ACCESS_VIOLATION, OTHER, MAC)
    assert answer.message == "link is served to its own machine only"


async def test_machine_with_two_interfaces_reads_its_own_directory_from_either(owned):
    interfaces = {MAC: {"dhcp": {"ip": IP}}, "52:54:00:12:34:57": {"dhcp": {"ip": "10.0.0.60"}}}
    spec = {"networkInterfaces": interfaces, "osie": {"name": "lab"}}
    owned.inventory.apply({"metadata": {"name": "lab-1", "namespace": "default"}, "spec": spec})
    assert await owned.text("link", "10.0.0.60") == "own"


async def test_firmware_of_raspberry_pis_may_be_in_the_operators_directory_and_gives_no_machines_own_files(tmp_path):
    edge = make_edge(tmp_path, pi_firmware=tmp_path / "tftp")
    (edge.extra / DIRECTORY).mkdir()
    for name in ("config.txt", "keys"):
        (edge.extra / DIRECTORY / name).write_text("own")
        (edge.extra / name).symlink_to(f"{DIRECTORY}/{name}")
    assert isinstance(await edge.get("keys", OTHER_IP), Refusal)
    assert isinstance(await edge.get(f"{PI}/{DIRECTORY}/keys", OTHER_IP), Refusal)
    answer = await edge.refused("config.txt", OTHER_IP)
    assert "a link leads into the directory of one machine" in answer.message


async def test_only_regular_files_are_opened(edge):
    os.mkfifo(edge.extra / "pipe")
    (edge.extra / "directory").mkdir()
    for name in ("pipe", "directory", "directory/", "pipe/x"):
        assert (await asyncio.wait_for(edge.refused(name), 20)).code is ErrorCode.NOT_FOUND


async def test_directory_that_is_swapped_for_a_link_out_leads_nowhere(edge, tmp_path, monkeypatch):
    (edge.extra / "d").mkdir()
    (edge.extra / "d" / "secret").write_bytes(b"mine")
    real = os.path.realpath

    def swapped(path, **how):
        found = real(path, **how)
        if found.endswith("/d/secret"):
            (edge.extra / "d").rename(edge.extra / "e")
            (edge.extra / "d").symlink_to(tmp_path)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    assert isinstance(await edge.get("d/secret"), Refusal)


async def test_file_may_change_between_two_transfers_and_during_one(edge):
    path = edge.extra / "config.txt"
    path.write_bytes(b"old" * 10000)
    old = await edge.get("config.txt")
    path.write_bytes(b"new")
    assert isinstance(old, TftpFile)
    assert bytes(old.content) == b"old" * 10000
    assert await edge.text("config.txt") == "new"
    path.write_bytes(b"")
    assert await edge.text("config.txt") == ""


async def test_file_that_is_too_large_for_memory_is_refused(edge, monkeypatch):
    monkeypatch.setattr(mapped, "MAX_SNAPSHOT_BYTES", 1 << 20)
    with (edge.extra / "big").open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert "larger than 1 MiB" in (await edge.refused("big")).message
