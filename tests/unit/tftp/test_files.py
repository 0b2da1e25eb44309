"""Which file a machine gets for the name that it writes, and which it must not get."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.artifacts.cache import ArtifactCache
from edge.callers import Callers
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import DhcpMode, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from edge.tftp import BootFiles, files, packets
from edge.tftp.files import MAX_FAILURES
from edge.tftp.packets import ErrorCode
from edge.tftp.source import TftpFile, TftpRefusal, TftpRequest
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tests.support import objects
from tests.support.virtual_time import turns
from tests.unit.artifacts.conftest import Upstream
from tests.waiting import until

MAC, IP = "52:54:00:12:34:56", "10.0.0.50"
LOCKED, LOCKED_IP = "52:54:00:00:00:02", "10.0.0.51"
OTHER, OTHER_IP = "52:54:00:00:00:03", "10.0.0.52"
STRANGER_IP = "10.9.9.9"
PI = "1a2b3c4d"
KERNEL = b"kernel" * 1000


def hardware(name: str, mac: str, ip: str, **more: Any) -> dict[str, Any]:
    return objects.hardware(name, mac, ip, osie={"name": "lab"}, **more)


@dataclass
class Edge:
    files: BootFiles
    inventory: Inventory
    journey: Journey
    upstream: Upstream
    extra: Path
    osies: dict[tuple[str, str], dict[str, Any]]

    @property
    def asked(self) -> list[str]:
        """The files that the upstream of the OSIE was asked for."""
        return [request.path for request in self.upstream.requests]

    async def get(self, name: str, ip: str = IP) -> TftpFile | TftpRefusal:
        opened = self.files(TftpRequest(name, ip))
        if isawaitable(opened):
            opened = await opened
        assert isinstance(opened, TftpFile | TftpRefusal)
        return opened

    async def file(self, name: str, ip: str = IP) -> TftpFile:
        answer = await self.get(name, ip)
        assert isinstance(answer, TftpFile), answer
        return answer

    async def refused(self, name: str, ip: str = IP) -> TftpRefusal:
        answer = await self.get(name, ip)
        assert isinstance(answer, TftpRefusal), answer
        return answer

    async def text(self, name: str, ip: str = IP) -> str:
        return bytes((await self.file(name, ip)).content).decode()


def made_edge(
    path: Path, cache: ArtifactCache, upstream: Upstream, mode: DhcpMode = DhcpMode.RESERVATION, **how: Any
) -> Edge:
    """`how` may be default_osie, extra, pi_firmware and resolution."""
    write(path, {"secret": "secret", "ipxe/snponly.efi": "snponly", "ipxe/notes.txt": "no boot file"})
    extra = path / "tftp"
    extra.mkdir()
    inventory = Inventory()
    inventory.apply(hardware("lab-1", MAC, IP))
    inventory.apply(hardware("lab-2", LOCKED, LOCKED_IP, interface={"disableNetboot": True}))
    inventory.apply(hardware("lab-3", OTHER, OTHER_IP))
    policy, journey = NetbootPolicy(mode), Journey(time.time)
    upstream.content = KERNEL
    urls = {f"{part}Url": upstream.url.replace("/kernel", f"/{part}") for part in ("kernel", "initrd")}
    osies = {("default", "lab"): objects.osie(**urls)}
    default_osie = how.get("default_osie")

    def osie_of(namespace: str, name: str) -> dict[str, Any] | None:
        return osies.get((namespace, name))

    scripts = MachineScripts(inventory, policy, osie_of, Scripts(BootSettings()), journey.record, default_osie)
    files = BootFiles(
        BootBinaries(path / "ipxe"),
        inventory,
        Callers(inventory),
        policy,
        address="10.0.0.1",
        scripts=scripts,
        osie_files=OsieFiles(osie_of, cache),
        **{"extra": extra, **how},
    )
    inventory.on_change(scripts.machine_changed)
    inventory.on_change(files.machine_changed)
    return Edge(files, inventory, journey, upstream, extra, osies)


def write(directory: Path, files: dict[str, str | bytes]) -> None:
    """Write files below a directory, by name."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def make_edge(tmp_path, cache, upstream):
    return partial(made_edge, tmp_path, cache, upstream)


@pytest.fixture
def edge(make_edge):
    return make_edge()


DIRECTORY = MAC.replace(":", "-")
"""Files of that machine alone."""

# --- boot programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix", ["", "/", "./", "//", "\\", f"{MAC}/", f"{DIRECTORY}/", "525400123456\\", f"/{MAC.upper()}/"]
)
@pytest.mark.parametrize("name", ["snponly.efi", "SNPONLY.EFI"])
async def test_machine_gets_its_binary_however_its_rom_writes_the_name(edge, prefix, name):
    assert await edge.get(prefix + name) == TftpFile(b"snponly", "snponly.efi", MAC)
    assert await edge.get(name, STRANGER_IP) == TftpFile(b"snponly", "snponly.efi", None), "a stranger has no journey"


@pytest.mark.parametrize("name", ["snponly.efi", "autoexec.ipxe", "auto.ipxe", "osie/lab/kernel", "start4.elf"])
@pytest.mark.parametrize("prefix", ["", f"{LOCKED}/", f"{PI}/"])
async def test_machine_that_may_not_netboot_gets_nothing_and_reads_why(edge, prefix, name):
    write(edge.extra, {"start4.elf": "firmware"})
    answer = await edge.refused(prefix + name, LOCKED_IP)
    assert answer.code is ErrorCode.ACCESS_VIOLATION
    assert "disableNetboot is true" in answer.message
    assert answer.mac == LOCKED
    assert edge.asked == []


SAYS = ["snponly.efi", "auto.ipxe", "why.ipxe", "osie/lab/kernel", "nope.efi", "config.txt", "pxelinux.cfg/default"]


@pytest.mark.parametrize("name", SAYS)
@pytest.mark.parametrize("client", [STRANGER_IP, IP])
async def test_mac_in_the_name_tells_the_asker_nothing_of_the_machine_that_has_it(edge, name, client):
    answers = [await edge.get(f"{mac}/{name}", client) for mac in (LOCKED, OTHER, "02:00:00:00:00:77")]
    as_if_unknown = answers[-1]
    for answer, mac in zip(answers, (LOCKED, OTHER, "02:00:00:00:00:77"), strict=True):
        assert type(answer) is type(as_if_unknown)
        assert answer.mac == (MAC if client == IP else None), "it is the asker's journey"
        if isinstance(answer, TftpRefusal) and isinstance(as_if_unknown, TftpRefusal):
            assert answer.message.replace(mac, "it") == as_if_unknown.message.replace("02:00:00:00:00:77", "it")
            assert "lab-" not in answer.message
            assert "disable" not in answer.message
            assert answer.about in ((None, mac) if mac != "02:00:00:00:00:77" else (None,))
    assert edge.asked == []


@pytest.mark.parametrize("name", ["auto.ipxe", "why.ipxe", "osie/lab/kernel"])
@pytest.mark.parametrize("client", [OTHER_IP, STRANGER_IP])
async def test_generated_file_is_served_to_its_own_machine_whose_journey_records_other_requests(edge, name, client):
    answer = await edge.refused(f"{MAC}/{name}", client)
    assert (answer.code, answer.about) == (ErrorCode.ACCESS_VIOLATION, MAC)
    assert (await edge.refused(f"02:00:00:00:00:77/{name}", client)).about is None
    assert edge.asked == []


async def test_machines_own_directory_is_served_to_no_other(edge):
    write(edge.extra, {f"{DIRECTORY}/config.txt": "mine"})
    assert await edge.text(f"{DIRECTORY}/config.txt") == "mine"
    assert (await edge.refused(f"{DIRECTORY}/config.txt", OTHER_IP)).code is ErrorCode.NOT_FOUND
    write(edge.extra, {"config.txt": "everybody's"})
    assert await edge.text(f"{DIRECTORY}/config.txt", OTHER_IP) == "everybody's"


@pytest.mark.parametrize("character", ["\x1f", "\n", "\x1b", "\x7f", "\udc80", "\u2028"])
async def test_characters_that_can_not_be_shown_reach_no_screen(edge, character):
    for name in (f"osie/{character}/kernel", f"osie/a{character}reboot/initrd", f"{character}", f"{MAC}/{character}x"):
        answer = await edge.refused(name)
        assert (answer.code, answer.mac) == (ErrorCode.NOT_FOUND, MAC)
        assert character not in answer.message
        assert packets.error(answer.code, answer.message)[4:-1].isascii()
        assert character not in packets.error(answer.code, answer.message)[4:-1].decode()
    shown = await edge.text("why.ipxe")
    assert character == "\n" or character not in shown
    assert "\nreboot" not in shown


async def test_stored_failures_of_unregistered_machines_are_bounded(make_edge, monkeypatch):
    edge = make_edge(DhcpMode.AUTO_PROXY, default_osie=("default", "lab"))
    edge.osies.clear()
    monkeypatch.setattr(Callers, "machine", lambda self, ip: None)
    monkeypatch.setattr(Callers, "mac", lambda self, ip: ip)
    strangers = [f"10.9.{number >> 8}.{number & 255}" for number in range(MAX_FAILURES + 10)]
    for ip in strangers:
        await edge.refused("osie/lab/kernel", ip)
    remembered = ["OSIE default/lab does not exist" in await edge.text("why.ipxe", ip) for ip in strangers]
    assert remembered == [False] * 10 + [True] * MAX_FAILURES


@pytest.mark.parametrize(
    "name",
    [
        "../secret", "/../secret", "..\\secret", f"{MAC}/../secret", "a/../snponly.efi", "../../../../etc/passwd",
        f"{PI}/../secret", "x\0/secret",
    ],
)  # fmt: skip
async def test_names_that_climb_out_are_access_violations(edge, name):
    assert (await edge.refused(name)).code is ErrorCode.ACCESS_VIOLATION


HABITS = [
    "pxelinux.cfg/default", "pxelinux.cfg/0A000032", "/boot/pxelinux.cfg/C0A80001", f"{MAC}/pxelinux.cfg/default",
    "boot.scr", "0A000032.img", "menus/grub.cfg-0A000001", "EFI/redhat/x86_64-efi/tftp.mod", "revocations_sku.efi",
    "revocations_sbat.efi", "shim_certificate_0.efi", "/grub/x86_64-efi/command.lst", "/grub/x86_64-efi/http.mod",
]  # fmt: skip
"""Missing files that boot loaders always request."""
NOTHING = ["nope.efi", "/etc/passwd", "notes.txt", "boot/snponly.efi", "x/y/snponly.efi", "/", ".", "a/" * 40 + "b"]


@pytest.mark.parametrize("name", HABITS + NOTHING)
async def test_names_of_nothing_are_not_found_and_habits_of_boot_loaders_are_expected(edge, name):
    answer = await edge.refused(name)
    assert (answer.code, answer.mac, answer.expected) == (ErrorCode.NOT_FOUND, MAC, name in HABITS)


# --- scripts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["autoexec.ipxe", "/autoexec.ipxe", f"{MAC}/autoexec.ipxe"])
async def test_new_ipxe_is_shown_the_way_to_its_script(edge, name):
    text = await edge.text(name)
    assert text.startswith("#!ipxe\n")
    assert f"chain --replace http://10.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe ||" in text


async def test_new_ipxe_of_a_stranger_goes_on_as_it_was_built_to(edge):
    answer = await edge.refused("autoexec.ipxe", STRANGER_IP)
    assert (answer.code, answer.expected) == (ErrorCode.NOT_FOUND, True)


@pytest.mark.parametrize("name", ["auto.ipxe", f"{MAC}/auto.ipxe", "52-54-00-12-34-56/auto.ipxe"])
async def test_ipxe_without_http_gets_its_script_with_tftp_urls(edge, name):
    assert f"\nkernel tftp://10.0.0.1/{MAC}/osie/lab/kernel " in await edge.text(name)
    ((step, outcome, message),) = ((e.step, e.outcome, e.message) for e in edge.journey.events(MAC))
    assert (step, outcome, message) == (Step.SCRIPT, Outcome.OK, "script sent: OSIE default/lab")


GRUB_DIRECTORIES = [
    "grub/",
    "/grub/",
    "",
    "/",
    f"{MAC}/",
    f"{MAC}//EFI/redhat/",
    "EFI/BOOT/",
    "/EFI/sles/",
    "boot/grub2/",
]
GRUB_DIRECTORIES += ["boot/grub/x86_64-efi/", "boot/efi/EFI/centos/"]
GRUB_NAMES = ["", "-01-52-54-00-12-34-56", "-52-54-00-12-34-56", "-01-52:54:00:12:34:56", "-0A000032", "-0A00", "-0"]
GRUB_NAMES += ["-7726a678-7fc0-4853-a4f6-c85ac36a120a", "-2001:db8:77::50"]


@pytest.mark.parametrize(
    "name", [f"{each}grub.cfg" for each in GRUB_DIRECTORIES] + [f"EFI/BOOT/grub.cfg{each}" for each in GRUB_NAMES]
)
async def test_grub_gets_the_script_of_the_machine_that_asks(edge, name):
    text = await edge.text(name)
    assert "if linux '(tftp,10.0.0.1)/osie/lab/kernel' " in text
    assert f"'worker_id={MAC}'" in text
    event = edge.journey.events(MAC)[-1]
    assert (event.step, event.outcome, event.detail["client"]) == (Step.SCRIPT, Outcome.OK, "GRUB over TFTP")


@pytest.mark.parametrize(
    ("own", "anyones"),
    [
        ("grub/grub.cfg-01-52-54-00-12-34-56", ["grub/grub.cfg", "grub/why.cfg"]),
        ("EFI/BOOT/grub.cfg-52:54:00:12:34:56", ["grub.cfg", "EFI/BOOT/grub.cfg-0A000032"]),
        (f"{MAC}/EFI/BOOT/grub.cfg", ["EFI/BOOT/grub.cfg"]),
        ("pxelinux.cfg/01-52-54-00-12-34-56", ["boot.scr.uimg"]),
    ],
    ids=["GRUB", "GRUB of RHEL", "in its directory", "U-Boot"],
)
async def test_boot_loader_is_given_no_other_machines_script(edge, own, anyones):
    refusal = await edge.refused(own, OTHER_IP)
    assert (refusal.code, refusal.mac, refusal.about) == (ErrorCode.ACCESS_VIOLATION, OTHER, MAC)
    for name in (own, *anyones):
        assert (await edge.refused(name, STRANGER_IP)).code is ErrorCode.ACCESS_VIOLATION
    for name in anyones:
        assert "Hardware default/lab-2" in (await edge.refused(name, LOCKED_IP)).message
        assert f"worker_id={OTHER}".encode() in bytes((await edge.file(name, OTHER_IP)).content) or "why" in name


async def test_machine_whose_interfaces_share_an_address_gets_the_script_of_the_one_that_it_names(edge):
    second = "52:54:00:12:34:57"
    cards = {mac: {"dhcp": {"ip": IP}} for mac in (MAC, second)}
    edge.inventory.apply(hardware("lab-1", MAC, IP, interfaces=cards))
    for mac in (MAC, second):
        dashed = mac.replace(":", "-")
        for name in (f"{mac}/auto.ipxe", f"grub/grub.cfg-01-{dashed}", f"pxelinux.cfg/01-{dashed}"):
            assert f"hw_addr={mac}" in await edge.text(name)
        await edge.refused(f"{mac}/auto.ipxe", OTHER_IP)


async def test_operators_grub_cfg_is_served_instead_of_the_generated_one(edge):
    write(edge.extra, {"grub/grub.cfg": "set mine=1"})
    assert await edge.text("grub/grub.cfg") == "set mine=1"
    assert (await edge.refused("grub/grub.cfg", LOCKED_IP)).code is ErrorCode.ACCESS_VIOLATION
    write(
        edge.extra, {"EFI/BOOT/grub.cfg": "set mine=2", f"EFI/redhat/grub.cfg-01-{MAC.replace(':', '-')}": "set mine=3"}
    )
    for earlier in ("01-52-54-00-12-34-56", "0A000032", "0"):
        assert (await edge.refused(f"EFI/BOOT/grub.cfg-{earlier}")).expected, "GRUB asks for the operator's last"
    assert await edge.text("EFI/BOOT/grub.cfg") == "set mine=2"
    write(edge.extra, {"52-54-00-12-34-56/grub.cfg": "set mine=4"})
    assert (await edge.refused("52-54-00-12-34-56/grub.cfg-0A000032")).expected
    assert await edge.text("EFI/redhat/grub.cfg-01-52-54-00-12-34-56") == "set mine=3"


@pytest.mark.parametrize("name", ["", "/", f"{MAC}/"])
async def test_u_boot_gets_what_it_boots_in_both_of_its_languages(edge, name):
    config = await edge.text(f"{name}pxelinux.cfg/01-52-54-00-12-34-56")
    assert f"worker_id={MAC} " in config
    script = await edge.file(f"{name}boot.scr.uimg")
    assert f"worker_id={MAC} ".encode() in bytes(script.content)
    assert [event.message for event in edge.journey.events(MAC)] == ["script sent: OSIE default/lab"] * 2


async def test_site_with_pxelinux_goes_on_with_its_own_configuration(edge):
    """Its `default` would never be reached if each machine found a file of its own."""
    (edge.extra / "pxelinux.cfg").mkdir()
    assert (await edge.refused("pxelinux.cfg/01-52-54-00-12-34-56")).expected
    write(edge.extra, {"pxelinux.cfg/default": "label mine", "boot.scr.uimg": "mine"})
    assert await edge.text("pxelinux.cfg/default") == "label mine"
    assert await edge.text("boot.scr.uimg") == "mine"


async def test_grub_shows_why_its_kernel_did_not_come(edge):
    edge.upstream.mode = "404"
    await edge.refused("osie/lab/kernel")
    assert "404" in await edge.text("grub/why.cfg")


async def test_script_follows_the_hardware(edge):
    assert " quiet " not in await edge.text("auto.ipxe")
    edge.inventory.apply(hardware("lab-1", MAC, IP, kernelParams=["quiet"]))
    assert " quiet " in await edge.text("auto.ipxe")


class Unresolved:
    """Replaces the resolution: the neighbour table does not know the client, and no host answers ARP."""

    def is_due(self, _ip):
        return True

    async def resolve(self, _ip):
        return False


@pytest.mark.parametrize(
    "name",
    [
        "auto.ipxe", "why.ipxe", "grub/grub.cfg", "osie/lab/kernel", "boot.scr.uimg",
        "pxelinux.cfg/01-52-54-00-12-34-56", "config.txt", "cmdline.txt", f"{PI}/cmdline.txt",
    ],
)  # fmt: skip
async def test_generated_files_are_not_sent_to_clients_with_an_unknown_mac(make_edge, tmp_path, name):
    (tmp_path / "rpi").mkdir()
    edge = make_edge(pi_firmware=tmp_path / "rpi", resolution=Unresolved())
    assert "no host answers ARP" in (await edge.refused(name)).message
    assert await edge.text("snponly.efi") == "snponly"


# --- kernels and initrds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path", "step"),
    [
        ("osie/lab/kernel", "/kernel", Step.KERNEL),
        (f"{MAC}/osie/lab/initrd", "/initrd", Step.INITRD),
        ("/osie//lab/kernel", "/kernel", Step.KERNEL),
    ],
)
async def test_kernel_and_initrd_come_from_the_cache(edge, name, path, step):
    for _ in range(2):
        file = await edge.file(name)
        assert (file.step, file.mac) == (step, MAC)
        assert await file.filled(len(KERNEL) - 1) == len(KERNEL)
        file.close()
        assert bytes(file.content) == KERNEL
    assert edge.asked == [path]


async def test_unified_kernel_image_is_a_boot_program_of_the_osie(edge):
    refused = await edge.refused("osie/lab/uki.efi")
    assert "tinkerbell.org/uki-url] is not set" in refused.message
    url = edge.upstream.url.replace("/kernel", "/uki")
    edge.osies["default", "lab"]["metadata"]["annotations"] = {"tinkerbell.org/uki-url": url}
    file = await edge.file("osie/lab/uki.efi")
    assert (file.step, file.label, edge.asked) == (Step.TFTP, "UKI of OSIE default/lab", ["/uki"])
    file.close()


async def test_file_that_is_still_arriving_is_served_while_it_does(edge):
    edge.upstream.gate.clear()
    file = await edge.file("osie/lab/kernel")
    assert 0 < await file.filled(0) < file.size == len(KERNEL)
    waiting = asyncio.ensure_future(file.filled(len(KERNEL) - 1))
    await turns()
    assert not waiting.done()
    edge.upstream.gate.set()
    assert await waiting == len(KERNEL)
    file.close()


@pytest.mark.parametrize("arrives", [True, False])
async def test_file_that_is_too_short_on_disk_is_waited_for_and_refused_if_it_stays_so(edge, monkeypatch, arrives):
    opened, open_artifact = [], ArtifactCache.open

    async def cut_short(*asked, **how):
        artifact = await open_artifact(*asked, **how)
        await artifact.filled(0 if arrives else len(KERNEL) - 1)
        os.truncate(f"/proc/self/fd/{artifact.fd}", 4)
        opened.append(artifact)
        return artifact

    monkeypatch.setattr(ArtifactCache, "open", cut_short)
    if not arrives:
        assert "OSIE default/lab: kernelUrl" in (await edge.refused("osie/lab/kernel")).message
        assert opened[0].fd == -1
        return
    edge.upstream.gate.clear()
    asked = asyncio.ensure_future(edge.file("osie/lab/kernel"))
    await until(lambda: opened)
    await turns(3)
    assert not asked.done()
    edge.upstream.gate.set()
    file = await asked
    assert file.size == len(KERNEL)
    file.close()


async def test_operators_file_may_be_cut_short_while_it_is_sent(edge, tmp_path):
    (tmp_path / "own").write_bytes(bytes(1 << 20))
    edge.osies["default", "lab"]["spec"]["kernelUrl"] = (tmp_path / "own").as_uri()
    file, other = [await edge.file("osie/lab/kernel") for _ in range(2)]
    os.truncate(tmp_path / "own", 0)
    assert bytes(file.content) == bytes(1 << 20)  # a mapping of the file itself would end this process
    assert memoryview(file.content).obj is memoryview(other.content).obj, "one copy for all"


async def test_upstream_that_fails_is_named_on_the_machines_screen(edge):
    edge.upstream.mode = "404"
    answer = await edge.refused("osie/lab/kernel")
    said = f"OSIE default/lab: kernelUrl {edge.upstream.url}: "
    assert (answer.code, answer.mac) == (ErrorCode.NOT_FOUND, MAC)
    assert said in answer.message
    assert "404" in answer.message
    assert f"echo {said}" in await edge.text("why.ipxe")
    edge.upstream.mode = ""
    (await edge.file("osie/lab/kernel")).close()
    assert "404" not in await edge.text(f"{MAC}/why.ipxe")


async def test_osie_that_does_not_exist_is_named(edge):
    answer = await edge.refused("osie/gone/kernel")
    assert answer.message == "OSIE default/gone does not exist"
    assert "OSIE default/gone does not exist" in await edge.text("why.ipxe")


async def test_stranger_in_auto_proxy_gets_the_default_osie_and_no_other(make_edge, monkeypatch):
    edge = make_edge(DhcpMode.AUTO_PROXY, default_osie=("default", "lab"))
    monkeypatch.setattr(Callers, "mac", lambda self, ip: "02:00:00:00:00:01" if ip == STRANGER_IP else None)
    monkeypatch.setattr(Callers, "machine", lambda self, ip: None)
    assert "worker_id=02:00:00:00:00:01" in await edge.text("02:00:00:00:00:01/auto.ipxe", STRANGER_IP)
    (await edge.file("02:00:00:00:00:01/osie/lab/kernel", STRANGER_IP)).close()
    edge.osies["default", "secret"] = edge.osies["default", "lab"]
    assert (await edge.refused("osie/secret/kernel", STRANGER_IP)).code is ErrorCode.ACCESS_VIOLATION
    assert (await edge.refused("02:00:00:00:00:02/auto.ipxe", STRANGER_IP)).code is ErrorCode.ACCESS_VIOLATION
    # The client is unknown, so no script can be made.
    assert (await edge.refused("auto.ipxe", "10.9.9.8")).code is ErrorCode.ACCESS_VIOLATION
    assert (await edge.refused("osie/lab/kernel", "10.9.9.8")).code is ErrorCode.ACCESS_VIOLATION


# --- the operator's own files: firmware of Raspberry Pis, links, files that change ------------------------------------


async def test_raspberry_pi_gets_the_common_firmware_or_its_own(edge):
    write(edge.extra, {"start4.elf": "common", "overlays/a.dtbo": "overlay"})
    assert await edge.text(f"{PI}/start4.elf") == "common"
    assert await edge.text("dc-a6-32-00-00-01/start4.elf") == "common"
    assert await edge.text(f"{PI}/overlays/a.dtbo") == "overlay"
    write(edge.extra, {f"{PI}/start4.elf": "own"})
    assert await edge.text(f"{PI}/start4.elf") == "own"
    assert (await edge.refused(f"{PI}/overlays/a.dtbo")).expected


async def test_raspberry_pi_without_firmware_gets_the_name_of_the_option(make_edge):
    edge = make_edge(extra=None)
    answer = await edge.refused(f"{PI}/start4.elf")
    assert (answer.expected, "--rpi-dir" in answer.message) == (False, True)


@pytest.fixture
def pi(make_edge, tmp_path):
    """An edge with the firmware of Raspberry Pis, and no other files of the operator's."""
    firmware = tmp_path / "rpi"
    config = "[pi4]\nkernel=theirs\n"
    write(firmware, {"start4.elf": "start4", "overlays/vc4.dtbo": "overlay", "config.txt": config})
    (firmware / "out").symlink_to(tmp_path)
    return make_edge(extra=None, pi_firmware=firmware)


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
    for part in ("kernel", "initrd"):
        (await pi.file(f"{prefix}osie/lab/{part}")).close()
    assert pi.asked == ["/kernel", "/initrd"]
    said = [event.message for event in pi.journey.events(MAC)]
    assert said == ["script sent: OSIE default/lab"]


@PREFIXES
async def test_what_a_raspberry_pi_asks_for_in_vain_is_no_failure(pi, prefix):
    for name in ("pieeprom.sig", "recover4.elf", "armstub8-gic.bin", "out/secret", "overlays"):
        answer = await pi.refused(f"{prefix}{name}")
        assert (answer.code, answer.expected or not prefix) == (ErrorCode.NOT_FOUND, True)


async def test_raspberry_pi_gets_nothing_of_another_nor_a_stranger_anything(pi):
    for name in (f"{PI}/config.txt", f"{PI}/cmdline.txt", f"{PI}/start4.elf", "start4.elf", f"{PI}/osie/lab/kernel"):
        assert isinstance(await pi.get(name, STRANGER_IP), TftpRefusal)
        assert (await pi.refused(name, LOCKED_IP)).code is ErrorCode.ACCESS_VIOLATION
    answer = await pi.refused(f"{DIRECTORY}/config.txt", OTHER_IP)
    assert (answer.code, answer.about) == (ErrorCode.ACCESS_VIOLATION, MAC)
    assert "boots OSIE default/lab" in await pi.text(f"{PI}/config.txt", OTHER_IP)
    assert f"({OTHER})" in await pi.text(f"{PI}/config.txt", OTHER_IP)  # its own: a serial number says nothing


async def test_raspberry_pi_without_netboot_gets_no_kernel_and_its_journey_has_the_reason(pi):
    del pi.osies["default", "lab"]
    config = await pi.text(f"{PI}/config.txt")
    assert config.splitlines()[-1] == "kernel=netboot-not-allowed"
    assert "# OSIE default/lab, which Hardware lab-1 names, does not exist" in config
    assert await pi.text(f"{PI}/cmdline.txt") == "\n"
    assert (await pi.refused(f"{PI}/netboot-not-allowed")).code is ErrorCode.NOT_FOUND
    assert [event.outcome for event in pi.journey.events(MAC)] == [Outcome.FAILED]


async def test_operators_own_files_go_before_those_of_all_raspberry_pis(make_edge, tmp_path):
    firmware = tmp_path / "rpi"
    write(firmware, {"start4.elf": "common", "config.txt": bytes(70_000)})
    edge = make_edge(pi_firmware=firmware)
    assert "larger than 64 KiB" in (await edge.refused(f"{PI}/config.txt")).message
    write(edge.extra, {f"{PI}/config.txt": "mine"})
    assert await edge.text(f"{PI}/config.txt") == "mine"
    assert await edge.text(f"{PI}/start4.elf") == "common"
    write(edge.extra, {"start4.elf": "newer", f"{PI}/start4.elf": "own"})
    assert await edge.text(f"{PI}/start4.elf") == "own"


async def test_stranger_gets_none_of_the_operators_files_and_without_firmware_no_settings_are_made(edge):
    write(edge.extra, {"config.txt": "x"})
    assert (await edge.refused("config.txt", STRANGER_IP)).code is ErrorCode.NOT_FOUND
    (edge.extra / "config.txt").unlink()
    assert (await edge.refused(f"{PI}/config.txt")).code is ErrorCode.NOT_FOUND


async def test_links_may_lead_around_inside_but_never_out(edge, tmp_path):
    write(edge.extra, {"v1/start4.elf": "inside"})
    links = {PI: "v1", "out": tmp_path, "file": tmp_path / "secret", "up": "../secret", "self": "self", "whole": "."}
    for name, target in links.items():
        (edge.extra / name).symlink_to(target)
    assert await edge.text(f"{PI}/start4.elf") == "inside"
    assert await edge.text("whole/whole/v1/start4.elf") == "inside"
    for name in ("out/secret", "file", "up", "self", "out/tftp/../secret", "whole"):
        assert isinstance(await edge.get(name), TftpRefusal)


@pytest.fixture
def owned(edge):
    """An edge with one machine's own directory, to which the operator's links lead."""
    theirs = OTHER.replace(":", "")
    write(edge.extra, {f"{DIRECTORY}/keys": "own", "by-name/x": "", f"{theirs}/x": ""})
    for name, target in {
        "link": f"{DIRECTORY}/keys",
        "by-name/lab-1": f"../{DIRECTORY}",
        "all": ".",
        PI: DIRECTORY,
        f"{theirs}/theirs": f"../{DIRECTORY}",
    }.items():
        (edge.extra / name).symlink_to(target)
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
    owned.inventory.apply(hardware("lab-1", MAC, IP, interfaces=interfaces))
    assert await owned.text("link", "10.0.0.60") == "own"


async def test_firmware_of_raspberry_pis_may_be_in_the_operators_directory_and_gives_no_machines_own_files(
    make_edge, tmp_path
):
    edge = make_edge(pi_firmware=tmp_path / "tftp")
    for name in ("config.txt", "keys"):
        write(edge.extra, {f"{DIRECTORY}/{name}": "own"})
        (edge.extra / name).symlink_to(f"{DIRECTORY}/{name}")
    assert isinstance(await edge.get("keys", OTHER_IP), TftpRefusal)
    assert isinstance(await edge.get(f"{PI}/{DIRECTORY}/keys", OTHER_IP), TftpRefusal)
    answer = await edge.refused("config.txt", OTHER_IP)
    assert "a link leads into the directory of one machine" in answer.message


async def test_only_regular_files_are_opened(edge):
    os.mkfifo(edge.extra / "pipe")
    (edge.extra / "directory").mkdir()
    for name in ("pipe", "directory", "directory/", "pipe/x"):
        assert (await edge.refused(name)).code is ErrorCode.NOT_FOUND


async def test_directory_that_is_swapped_for_a_link_out_leads_nowhere(edge, tmp_path, monkeypatch):
    write(edge.extra, {"d/secret": "mine"})
    real = os.path.realpath

    def swapped(path, **how):
        found = real(path, **how)
        if found.endswith("/d/secret"):
            (edge.extra / "d").rename(edge.extra / "e")
            (edge.extra / "d").symlink_to(tmp_path)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    assert isinstance(await edge.get("d/secret"), TftpRefusal)


async def test_file_may_change_between_two_transfers_and_during_one(edge):
    path = edge.extra / "config.txt"
    path.write_bytes(b"old" * 10000)
    old = await edge.file("config.txt")
    path.write_bytes(b"new")
    assert bytes(old.content) == b"old" * 10000
    assert await edge.text("config.txt") == "new"
    path.write_bytes(b"")
    assert await edge.text("config.txt") == ""


async def test_file_that_is_too_large_for_memory_is_refused(edge, monkeypatch):
    monkeypatch.setattr(files, "MAX_SNAPSHOT_BYTES", 1 << 20)
    with (edge.extra / "big").open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert "larger than 1 MiB" in (await edge.refused("big")).message


# --- any name --------------------------------------------------------------------------------------------------------

_SEGMENTS = st.one_of(
    st.sampled_from(
        ["osie", "lab", "kernel", "auto.ipxe", MAC, PI, "..", ".", "", "x", "out", "etc", "passwd", "secret"]
    ),
    st.text(max_size=20),
)


@given(st.one_of(st.text(max_size=200), st.lists(_SEGMENTS, max_size=8).map("/".join)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
async def test_no_name_raises_or_reaches_another_file(edge, name):
    out = edge.extra / "out"
    if not out.is_symlink():
        out.symlink_to(edge.extra.parent)
    answer = await edge.get(name)
    if isinstance(answer, TftpFile):
        assert bytes(answer.content) in (b"snponly", KERNEL) or bytes(answer.content).startswith(b"#!ipxe")
        answer.close()
    else:
        assert answer.message.isprintable()
        assert len(answer.message) < 200
