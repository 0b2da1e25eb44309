"""The ROM of a Raspberry Pi boots its own firmware, and nothing made for a PC."""

from __future__ import annotations

import pytest

from edge.machines import DhcpMode
from tests.unit.dhcp.firmware.clients import Booted, Pi
from tests.unit.dhcp.firmware.dialogue import MakeSite, Site, pxe
from tests.unit.dhcp.firmware.packets import ROMS, SERVER, ip, options_of

PI = ROMS[0].changed(o93=b"\0\0", o60=b"PXEClient:Arch:00000:UNDI:002001")


@pytest.mark.parametrize("oui", ["b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"])
def test_raspberry_pi_gets_its_menu_and_never_a_pc_program(site: Site, oui: str) -> None:
    packet = PI.of(f"{oui}:00:00:01")
    site.register(packet.mac)
    ours = site.offers(packet)[0]
    if site.mode is DhcpMode.RESERVATION:
        assert Pi.boot(ours) == Booted("", SERVER)
        # What dnsmasq and Smee send, byte for byte.
        menu = "060108" + "0914000011" + b"Raspberry Pi Boot".hex() + "0a0400" + b"PXE".hex() + "ff"
        assert options_of(ours)[43].hex() == menu
    assert b"Raspberry Pi Boot" in options_of(ours)[43]
    assert ip(ours[20:24]) == SERVER
    assert b"undionly" not in ours


def test_uefi_on_a_raspberry_pi_is_uefi(site: Site) -> None:
    packet = ROMS[0].changed(o93=b"\0\x0b", o60=b"PXEClient:Arch:00011:UNDI:003000").of("dc:a6:32:00:00:01")
    site.register(packet.mac)
    assert pxe(site, packet) == Booted("snponly-arm64.efi", SERVER)


def test_refused_raspberry_pi_is_not_told_that_it_has_a_server(make_site: MakeSite) -> None:
    site = make_site(disableNetboot=True)
    packet = PI.of("dc:a6:32:00:00:01")
    site.register(packet.mac)
    offer = site.ask(packet)
    assert offer is not None
    assert 43 not in options_of(offer)
    assert not any(offer[20:24])
