"""U-Boot with its own vendor class, as `dhcp` and standard boot ask: net/bootp.c."""

from __future__ import annotations

import pytest

from edge.machines import DhcpMode
from tests.unit.dhcp.firmware.dialogue import MakeSite, Site
from tests.unit.dhcp.firmware.packets import ROMS, SERVER, Packet, ip, options_of

U_BOOT = ROMS[0].changed(o60=b"U-Boot.armv8", o93=b"\0\x16", o94=b"", o97=b"", o55=b"\1\3\6\x0c\x11")
"""As U-Boot 2025.01 of Debian for QEMU's arm64 board: architecture 22, and a short list."""

ASKING = [
    U_BOOT,
    U_BOOT.changed(o93=b""),
    U_BOOT.changed(o60=b"U-Boot.armv7", o93=b"\0\x15"),
    U_BOOT.changed(o60=b"U-Boot.riscv", o93=b"\0\x1b"),
    U_BOOT.changed(o60=b"acme board"),
    U_BOOT.changed(o60=b""),
]


@pytest.mark.parametrize("packet", ASKING, ids=lambda packet: repr(packet.option(60) + packet.option(93)))
def test_u_boot_is_told_server_and_script_in_the_header(make_site: MakeSite, packet: Packet) -> None:
    site = make_site()
    site.register(packet.mac)
    for _ in range(2):  # in full, and by the fast path
        offer = site.ask(packet)
        assert offer is not None
        assert ip(offer[20:24]) == SERVER
        # A name without a directory: beside it is pxelinux.cfg.
        assert offer[108:236].rstrip(b"\0") == options_of(offer)[67] == b"boot.scr.uimg"
        assert {43, 60}.isdisjoint(options_of(offer))


def test_u_boot_that_calls_itself_a_pxe_client_is_one(site: Site) -> None:
    packet = U_BOOT.changed(o60=b"PXEClient:Arch:00011:UNDI:003000", o93=b"\0\x0b")
    site.register(packet.mac)
    assert options_of(site.offers(packet)[0])[67].rstrip(b"\0") == b"snponly-arm64.efi"


def test_refused_u_boot_asks_for_the_file_that_it_does_not_get_and_shows_why(make_site: MakeSite) -> None:
    site = make_site(disableNetboot=True)
    site.register(U_BOOT.mac)
    offer = site.ask(U_BOOT)
    assert offer is not None
    assert offer[108:236].rstrip(b"\0") == b"boot.scr.uimg"


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
def test_u_boot_is_never_offered_a_lease_without_an_address(make_site: MakeSite, mode: DhcpMode) -> None:
    """It takes the first offer that comes for its lease."""
    site = make_site(mode)
    site.register(U_BOOT.mac)
    assert site.ask(U_BOOT) is None
