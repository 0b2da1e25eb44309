"""Firmware of a machine that may not netboot goes on to the next boot device, and shows why."""

from __future__ import annotations

import pytest

from edge.machines import DhcpMode
from tests.unit.dhcp.firmware.clients import LOCAL_BOOT, Edk2Pxe
from tests.unit.dhcp.firmware.dialogue import MakeSite, Site, http, ipxe, pxe
from tests.unit.dhcp.firmware.packets import HTTP_ROMS, IPXES, ROMS, SERVER


def refused_sites(make_site: MakeSite, mode: DhcpMode) -> list[Site]:
    idle = make_site(mode, when_workflow=True)
    idle.has_work = False
    return [make_site(mode, disableNetboot=True), idle]


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_refused_machine_goes_on_within_seconds_and_its_ipxe_shows_why(make_site: MakeSite, mode: DhcpMode) -> None:
    for site in refused_sites(make_site, mode):
        site.register(ROMS[0].mac)
        booted = pxe(site, ROMS[0])
        assert booted.file == LOCAL_BOOT
        assert booted.seconds_lost <= 3
        prompt = Edk2Pxe.vendor(bytearray(site.offers(ROMS[0])[0]))[10][1:]
        assert prompt.startswith(b"No netboot: ")
        assert b"default/m1" in prompt
        assert len(prompt) <= 70
        assert http(site, HTTP_ROMS[0]).file == f"http://{SERVER}:7080/ipxe/binary/{ROMS[0].mac}/netboot-not-allowed"
        assert ipxe(site, IPXES[0]).file.endswith("/auto.ipxe")


def test_machine_without_a_binary_goes_on_and_the_journey_says_what_is_missing(make_site: MakeSite) -> None:
    site = make_site()
    packet = ROMS[0].changed(o93=b"\0\x1b")
    site.register(packet.mac)
    assert pxe(site, packet).file == LOCAL_BOOT
    assert any("no iPXE binary for architecture 27 (UEFI RISC-V 64-bit); put one of" in m for m in site.edge.messages())


def test_workflow_that_comes_lets_the_machine_boot_and_one_that_ends_stops_it(make_site: MakeSite) -> None:
    site = make_site(when_workflow=True)
    site.register(ROMS[0].mac)
    for work, file in ((True, "snponly.efi"), (False, LOCAL_BOOT), (True, "snponly.efi")):
        site.has_work = work
        assert pxe(site, ROMS[0]).file == file
