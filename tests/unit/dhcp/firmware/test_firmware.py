"""Real firmware boots what we mean it to boot, judged by its own rules of acceptance."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import pytest

from edge.journey.events import Outcome
from edge.machines import DhcpMode
from ipxe.binaries import BootBinaries
from tests.unit.dhcp.firmware.clients import LOCAL_BOOT, Booted, Edk2, Edk2Pxe, Ipxe, Pi, RejectedError
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
from tests.unit.dhcp.harness import MakeEdge

MODES = [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY]


@pytest.fixture
def binaries(request: pytest.FixtureRequest, tmp_path: Path) -> BootBinaries:
    """Of these names, or of those that a test has as the parameter."""
    for name in getattr(request, "param", ("undionly.kpxe", "snponly.efi", "snponly-arm64.efi")):
        (tmp_path / name).write_bytes(name.encode())
    return BootBinaries(tmp_path)


@pytest.fixture
def make_site(make_edge: MakeEdge) -> MakeSite:
    return partial(Site, make_edge)


@pytest.fixture(params=MODES, ids=str)
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    return make_site(request.param)


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
    assert 60 not in options_of(make_site().offer(IPXES[0]))


@pytest.mark.parametrize("binaries", [("snponly-shim.efi", "snponly.efi")], indirect=True)
def test_machine_gets_the_shim_and_the_shim_its_second_stage(make_site: MakeSite, binaries: BootBinaries) -> None:
    site = make_site()
    site.register(ROMS[0].mac)
    assert pxe(site, ROMS[0]).file == "snponly-shim.efi"
    name = http(site, HTTP_ROMS[0]).file.rpartition("/")[2]
    hyphen = name.rindex("-")  # automatic_next_path of the shim: "-shim[arch].efi" becomes ".efi"
    assert name[hyphen : hyphen + 5] == "-shim"
    assert binaries.get(name[:hyphen] + ".efi") is not None


@pytest.mark.parametrize(("pxe_rom", "http_rom"), [(11, 19), (22, 24)])
def test_arm_boots_its_own_ipxe(site: Site, pxe_rom: int, http_rom: int) -> None:
    packet = ROMS[0].changed(o93=struct.pack("!H", pxe_rom))
    site.register(packet.mac)
    assert pxe(site, packet) == Booted("snponly-arm64.efi", SERVER)
    packet = HTTP_ROMS[0].changed(o93=struct.pack("!H", http_rom))
    site.register(packet.mac)
    url = http(site, packet).file
    assert url == f"http://{SERVER}:7080/ipxe/binary/{packet.mac}/snponly-arm64.efi"


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
    assert Ipxe.inside(site.offer(IPXES[0]), 43, 116) == b"50"


def test_judges_reject_what_breaks_real_firmware(make_site: MakeSite) -> None:
    good = make_site().offer(ROMS[0])

    def judged(offer: bytes) -> Booted:
        firmware = Edk2Pxe(ROMS[0])
        firmware.hear(offer)
        return firmware.boot()

    control = bytes.fromhex("2b04060108ff")
    assert control in good
    with pytest.raises(RejectedError, match="no answer on port 4011"):
        judged(good.replace(control, b"\0" * len(control)))
    with pytest.raises(RejectedError, match="more than"):
        judged(good.ljust(1473, b"\0"))
    # A boot file without its NUL, right before another option: EDK2 writes the NUL over that option's code.
    name = b"snponly.efi"
    unterminated = good[:240] + bytes((67, len(name))) + name + b"\x3c\x09PXEClient" + control + good[240:]
    firmware = Edk2Pxe(ROMS[0])
    firmware.hear(unterminated)
    Edk2.boot_file(firmware.offers[0])
    assert firmware.offers[0][240 + 2 + len(name)] == 0
    with pytest.raises(RejectedError, match="option 54 has 3 bytes"):
        judged(good[:240] + b"\x36\x03\x0a\x4d\x00" + good[240:])


# --- a machine that may not netboot goes on to the next boot device, and shows why ------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reason", [{"disableNetboot": True}, {"when_workflow": True}], ids=["disabled", "idle"])
def test_refused_machine_goes_on_within_seconds_and_its_ipxe_shows_why(
    make_site: MakeSite, mode: DhcpMode, reason: dict[str, bool]
) -> None:
    site = make_site(mode, **reason)
    site.has_work = False
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


@pytest.mark.parametrize("binaries", [("snponly.efi",)], indirect=True)
@pytest.mark.parametrize(("architecture", "name"), [(27, "UEFI RISC-V 64-bit"), (11, "UEFI ARM 64-bit")])
def test_machine_without_a_binary_goes_on_and_the_journey_says_what_is_missing(
    site: Site, binaries: BootBinaries, architecture: int, name: str
) -> None:
    packet = ROMS[0].changed(o93=struct.pack("!H", architecture))
    site.register(packet.mac)
    assert pxe(site, packet).file == LOCAL_BOOT
    event = site.edge.events[0]
    assert event.outcome is Outcome.REFUSED
    assert f"no iPXE binary for architecture {architecture} ({name}); put one of" in event.message


def test_workflow_that_comes_lets_the_machine_boot_and_one_that_ends_stops_it(make_site: MakeSite) -> None:
    site = make_site(when_workflow=True)
    site.register(ROMS[0].mac)
    for work in (True, True, False, True):
        site.has_work = work
        assert pxe(site, ROMS[0]).file == ("snponly.efi" if work else LOCAL_BOOT)


# --- the ROM of a Raspberry Pi boots its own firmware, and nothing made for a PC --------------------------------------

PI = ROMS[0].changed(o93=b"\0\0", o60=b"PXEClient:Arch:00000:UNDI:002001")


@pytest.mark.parametrize("oui", ["b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"])
def test_raspberry_pi_gets_its_menu_and_never_a_pc_program(site: Site, oui: str) -> None:
    ours = site.offer(PI.of(f"{oui}:00:00:01"))
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
    offer = make_site(disableNetboot=True).offer(PI.of("dc:a6:32:00:00:01"))
    assert 43 not in options_of(offer)
    assert not any(offer[20:24])


# --- U-Boot with its own vendor class, as `dhcp` and standard boot ask: net/bootp.c -----------------------------------

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
    for _ in range(2):  # in full, and by the fast path
        offer = site.offer(packet)
        assert ip(offer[20:24]) == SERVER
        # A name without a directory: beside it is pxelinux.cfg.
        assert offer[108:236].rstrip(b"\0") == options_of(offer)[67] == b"boot.scr.uimg"
        assert {43, 60}.isdisjoint(options_of(offer))


def test_u_boot_that_calls_itself_a_pxe_client_is_one(site: Site) -> None:
    packet = U_BOOT.changed(o60=b"PXEClient:Arch:00011:UNDI:003000", o93=b"\0\x0b")
    assert options_of(site.offer(packet))[67].rstrip(b"\0") == b"snponly-arm64.efi"


def test_refused_u_boot_asks_for_the_file_that_it_does_not_get_and_shows_why(make_site: MakeSite) -> None:
    assert make_site(disableNetboot=True).offer(U_BOOT)[108:236].rstrip(b"\0") == b"boot.scr.uimg"


@pytest.mark.parametrize("mode", MODES[1:])
def test_u_boot_is_never_offered_a_lease_without_an_address(make_site: MakeSite, mode: DhcpMode) -> None:
    """It takes the first offer that comes for its lease."""
    site = make_site(mode)
    site.register(U_BOOT.mac)
    assert site.ask(U_BOOT) is None
