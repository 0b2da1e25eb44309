"""Real firmware boots what we mean it to boot, judged by its own rules of acceptance."""

from __future__ import annotations

import struct

import pytest

from ipxe.binaries import BootBinaries
from tests.unit.dhcp.firmware.clients import Booted, Edk2, Edk2Pxe, Ipxe
from tests.unit.dhcp.firmware.dialogue import MakeSite, Site, http, ipxe, pxe
from tests.unit.dhcp.firmware.packets import (
    ADDRESS,
    CAPTURES,
    DISCOVER,
    HTTP_ROMS,
    IPXES,
    REQUEST,
    ROMS,
    SERVER,
    Packet,
    ids,
    ip,
    options_of,
)


def test_captures_hold_each_kind_of_firmware() -> None:
    assert (len(ROMS), len(HTTP_ROMS), len(IPXES)) >= (2, 2, 8)
    assert {packet.option(93) for packet in ROMS + HTTP_ROMS + IPXES} == {b"\0\0", b"\0\x07", b"\0\x10"}


@pytest.mark.parametrize("packet", ROMS, ids=ids(ROMS))
def test_uefi_pxe_boots_ipxe_without_asking_on_port_4011(site: Site, packet: Packet) -> None:
    site.register(packet.mac)
    expected = {b"\0\0": "undionly.kpxe", b"\0\x07": "snponly.efi"}[packet.option(93)]
    assert pxe(site, packet) == Booted(expected, SERVER)


@pytest.mark.parametrize("packet", HTTP_ROMS, ids=ids(HTTP_ROMS))
def test_uefi_http_boots_the_url_of_ipxe(site: Site, packet: Packet) -> None:
    site.register(packet.mac)
    assert http(site, packet) == Booted(f"http://{SERVER}:7080/ipxe/binary/{packet.mac}/snponly.efi")


@pytest.mark.parametrize("packet", IPXES, ids=ids(IPXES))
def test_ipxe_goes_to_its_script_at_once_and_never_to_ipxe_again(site: Site, packet: Packet) -> None:
    site.register(packet.mac)
    assert ipxe(site, packet) == Booted(f"http://{SERVER}:7080/ipxe/script/{packet.mac}/auto.ipxe")


def test_every_captured_packet_gets_a_valid_answer_or_a_meant_silence(make_site: MakeSite) -> None:
    for packet in CAPTURES:
        server = ip(packet.option(54)) if packet.option(54) else SERVER
        asked = ip(packet.option(50) or packet.payload[12:16])
        site = make_site(dhcp={"ip": asked if asked != "0.0.0.0" else ADDRESS})
        site.register(packet.mac)
        answer = site.ask(packet, source=asked if packet.port == 4011 else "0.0.0.0")
        if packet.kind == 7 or (server != SERVER and packet.option(54)):
            assert answer is None, packet.capture
            continue
        assert answer is not None, packet.capture
        Edk2(packet).check(answer)
        assert len(answer) >= 300
        assert options_of(answer)[53] == {DISCOVER: b"\x02", REQUEST: b"\x05"}[packet.kind]
        limit = int.from_bytes(packet.option(57) or b"\x02\x40", "big")
        assert len(answer) <= max(576, min(limit, 1500)) - 28


@pytest.mark.parametrize("packet", [p for p in CAPTURES if p.port == 4011], ids=lambda p: p.capture)
def test_request_on_port_4011_gets_the_boot_file(site: Site, packet: Packet) -> None:
    site.register(packet.mac)
    answer = site.ask(packet.changed(o54=b""), source=ADDRESS)
    assert answer is not None
    if packet.option(175):
        assert Ipxe(packet).field(answer, 67).decode().endswith(f"/{packet.mac}/auto.ipxe")
        assert any(answer[20:24])
    else:
        firmware = Edk2Pxe(packet)
        firmware.offers.append(bytearray(answer))
        assert firmware.boot_info(0, [firmware.boot_file(bytearray(answer))]) == Booted("snponly.efi", SERVER)


def test_shim_and_u_boot_find_the_same_in_the_header_as_others_in_the_options(site: Site) -> None:
    """shim: parseDhcp4 (netboot.c) takes `file` and `siaddr`; U-Boot: net/bootp.c."""
    for packet in (ROMS[0], HTTP_ROMS[0], IPXES[0]):
        site.register(packet.mac)
        offer = site.offers(packet)[0]
        options = options_of(offer)
        assert offer[108:236].partition(b"\0")[0] == options[67].rstrip(b"\0") != b""
        assert ip(offer[20:24]) == SERVER
        assert offer[44:108].partition(b"\0")[0] == options.get(66, b"")
        # A C string for firmware; the bare name for iPXE, which would count the NUL.
        assert options[67].endswith(b"\0") is (packet is not IPXES[0])
    assert options_of(site.offers(ROMS[0])[0])[66] == SERVER.encode()


def test_ipxe_is_not_given_a_lease_that_looks_like_a_proxy_offer(make_site: MakeSite) -> None:
    site = make_site()
    site.register(IPXES[0].mac)
    offer = site.ask(IPXES[0])
    assert offer is not None
    assert 60 not in options_of(offer)


@pytest.mark.parametrize("binaries", [("snponly-shim.efi", "snponly.efi")], indirect=True)
def test_machine_gets_the_shim_and_the_shim_its_second_stage(make_site: MakeSite, binaries: BootBinaries) -> None:
    site = make_site()
    site.register(ROMS[0].mac)
    assert pxe(site, ROMS[0]).file == "snponly-shim.efi"
    name = http(site, HTTP_ROMS[0]).file.rpartition("/")[2]
    hyphen = name.rindex("-")  # automatic_next_path of the shim: "-shim[arch].efi" becomes ".efi"
    assert name[hyphen : hyphen + 5] == "-shim"
    assert binaries.get(name[:hyphen] + ".efi") is not None


@pytest.mark.parametrize("architecture", [11, 22])
def test_arm_pxe_boots_its_own_ipxe(site: Site, architecture: int) -> None:
    packet = ROMS[0].changed(o93=struct.pack("!H", architecture))
    site.register(packet.mac)
    assert pxe(site, packet) == Booted("snponly-arm64.efi", SERVER)


@pytest.mark.parametrize("architecture", [19, 24])
def test_arm_http_boots_its_own_ipxe(site: Site, architecture: int) -> None:
    packet = HTTP_ROMS[0].changed(o93=struct.pack("!H", architecture))
    site.register(packet.mac)
    url = http(site, packet).file
    assert url == f"http://{SERVER}:7080/ipxe/binary/{packet.mac}/snponly-arm64.efi"
    assert "//" not in url.removeprefix("http://")


def test_ipxe_that_was_built_without_http_goes_to_its_script_by_tftp(site: Site) -> None:
    for packet in IPXES:
        without = packet.option(175).replace(b"\x13\x01\x01", b"")
        assert without != packet.option(175)
        site.register(packet.mac)
        assert ipxe(site, packet.changed(o175=without)) == Booted(f"tftp://{SERVER}/{packet.mac}/auto.ipxe")


def test_ipxe_that_smee_has_left_in_the_flash_goes_to_its_script(site: Site) -> None:
    for packet in (IPXES[0].changed(o77=b"Tinkerbell"), IPXES[0].changed(o77=b"Tinkerbell", o175=b"")):
        site.register(packet.mac)
        assert ipxe(site, packet).file.endswith("/auto.ipxe")


def test_machine_on_a_vlan_boots_as_any_other_and_its_ipxe_is_told(make_site: MakeSite) -> None:
    site = make_site(dhcp={"vlanId": "50"})
    site.register(ROMS[0].mac)
    assert pxe(site, ROMS[0]).server == SERVER
    assert http(site, HTTP_ROMS[0]).file.endswith(".efi")
    assert ipxe(site, IPXES[0]).file.endswith("/auto.ipxe")
    offer = site.ask(IPXES[0])
    assert offer is not None
    assert Ipxe.inside(offer, 43, 116) == b"50"
