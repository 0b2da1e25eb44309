"""The identification of clients, and their boot files: real firmware gets the offer that boots it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.dhcp.boot import BootChoice, identify, user_classes
from edge.dhcp.wire import codec, options
from edge.dhcp_common import Client, DhcpSite, Stage
from edge.journey.events import Outcome
from edge.machines import DhcpMode, Inventory, Machine, NetbootPolicy
from ipxe.binaries import BootBinaries, BootPath, NoBinaryError
from tests.support import objects
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
from tests.unit.dhcp.harness import (
    IPXE_BIOS,
    IPXE_EFI,
    MAC,
    PXE_DISCOVER,
    PXE_REQUEST,
    Edge,
    MakeEdge,
    altered,
    hardware,
)

MODES = [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY]
MakeSite = Callable[..., Edge]


@pytest.fixture
def binaries(request: pytest.FixtureRequest, tmp_path: Path) -> BootBinaries:
    """Return binaries with these names, or with those of the test's parameter."""
    for name in getattr(request, "param", ("undionly.kpxe", "snponly.efi", "snponly-arm64.efi")):
        (tmp_path / name).write_bytes(name.encode())
    return BootBinaries(tmp_path)


@pytest.fixture
def make_site(make_edge: MakeEdge) -> MakeSite:
    """Makes an edge that knows the machine which sent `packet`."""

    def make(packet: Packet, mode: DhcpMode = DhcpMode.RESERVATION, *, dhcp: Any = None, **more: Any) -> Edge:
        how = {"has_pending": more.pop("has_pending", None)}
        return make_edge(hardware("m1", packet.mac, ADDRESS, dhcp=dhcp, **more), mode=mode, **how)

    return make


def ask(edge: Edge, packet: Packet, source: str = "0.0.0.0") -> bytes | None:
    reply = edge.send(packet.payload, source, packet.source_port, packet.port)
    if reply is not None:
        check(packet, reply.payload)
    return reply.payload if reply is not None else None


def offer(edge: Edge, packet: Packet) -> bytes:
    answer = ask(edge, packet)
    assert answer is not None, "no answer"
    return answer


def check(packet: Packet, answer: bytes) -> None:
    """EDK2 rejects answers with options of other sizes (Dhcp4Option.c), and writes a NUL behind a boot file that has
    none (PxeBcDhcp4.c)."""
    sizes = {1: 4, 3: 4, 6: 4, 28: 4, 42: 4, 50: 4, 51: 4, 52: 1, 53: 1, 54: 4, 57: 2, 58: 4, 59: 4}
    several = (3, 6, 42)
    assert (answer[0], answer[4:8], answer[28:34]) == (2, packet.payload[4:8], packet.payload[28:34])
    for code, value in options_of(answer).items():
        assert len(value) % sizes.get(code, 1) == 0
        assert len(value) == sizes.get(code, len(value)) or code in several
        assert value or code not in (*sizes, 12, 15, 43, 60, 61, 66, 67)
    # A C string for firmware; the bare name for iPXE, which would count the NUL.
    is_ipxe = bool(packet.option(175) or packet.option(77))
    if 67 in options_of(answer) and packet.option(60)[:3] in (b"PXE", b"HTT"):
        assert options_of(answer)[67].endswith(b"\0") is not is_ipxe


def boots(answer: bytes) -> tuple[str, str]:
    """Return the file and its server: of the options and of the header, where shim and U-Boot look for them."""
    options = options_of(answer)
    file = options.get(67, b"").rstrip(b"\0")
    assert (file, options.get(66, b"")) == (answer[108:236].rstrip(b"\0"), answer[44:108].rstrip(b"\0"))
    return file.decode(), ip(answer[20:24])


def inside(answer: bytes, code: int) -> dict[int, bytes]:
    """Return the sub-options of an option."""
    raw, found, at = options_of(answer).get(code, b""), {}, 0
    while at < len(raw) and raw[at] != 255:
        found[raw[at]] = raw[at + 2 : at + 2 + raw[at + 1]]
        at += 2 + raw[at + 1]
    return found


def test_captures_hold_each_kind_of_firmware() -> None:
    assert (len(ROMS), len(HTTP_ROMS), len(IPXES)) >= (2, 2, 8)
    assert {packet.option(93) for packet in ROMS + HTTP_ROMS + IPXES} == {b"\0\0", b"\0\x07", b"\0\x10"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("packet", ROMS + HTTP_ROMS + IPXES, ids=ids(ROMS + HTTP_ROMS + IPXES))
def test_firmware_is_offered_its_program_and_ipxe_its_script(
    make_site: MakeSite, mode: DhcpMode, packet: Packet
) -> None:
    edge, leases = make_site(packet, mode), mode is DhcpMode.RESERVATION
    answer = offer(edge, packet)
    options = options_of(answer)
    base = f"http://{SERVER}:7080/ipxe"
    if packet in ROMS:
        # EDK2 takes the file without a menu, and without a question on port 4011.
        assert (options[60], inside(answer, 43)) == (b"PXEClient", {6: b"\x08"})
        assert options[66] == SERVER.encode()
        expected = "undionly.kpxe" if packet.option(93) == b"\0\0" else "snponly.efi"
    elif packet in HTTP_ROMS:
        assert options[60] == b"HTTPClient"
        expected = f"{base}/binary/{packet.mac}/snponly.efi"
    else:
        # A lease must not look like a proxy's offer, and says that there is no proxy to wait for.
        assert options.get(60) == (None if leases else b"PXEClient")
        assert any(inside(answer, 175).get(176, b"")) is leases
        expected = f"{base}/script/{packet.mac}/auto.ipxe"
    assert boots(answer) == (expected, SERVER)
    assert offer(edge, packet) == answer  # by the fast path
    assert ip(answer[16:20]) == (ADDRESS if leases else "0.0.0.0")
    ack = ask(edge, packet.changed(o53=bytes((REQUEST,)), o54=options[54], o50=answer[16:20]))
    assert (ack is not None) is leases
    assert ack is None or (boots(ack), ack[16:20], options_of(ack)[53]) == (boots(answer), answer[16:20], b"\5")


def test_every_captured_packet_gets_a_valid_answer_or_the_expected_silence(make_site: MakeSite) -> None:
    for packet in CAPTURES:
        server = ip(packet.option(54)) if packet.option(54) else SERVER
        asked = ip(packet.option(50) or packet.payload[12:16])
        edge = make_site(packet, dhcp={"ip": asked if asked != "0.0.0.0" else ADDRESS})
        answer = ask(edge, packet, source=asked if packet.port == 4011 else "0.0.0.0")
        if packet.kind == 7 or (server != SERVER and packet.option(54)):
            assert answer is None, packet.capture
            continue
        assert answer is not None, packet.capture
        assert len(answer) >= 300
        assert options_of(answer)[53] == {DISCOVER: b"\x02", REQUEST: b"\x05"}[packet.kind]
        limit = int.from_bytes(packet.option(57) or b"\x02\x40", "big")
        assert len(answer) <= max(576, min(limit, 1500)) - 28


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("packet", [p for p in CAPTURES if p.port == 4011], ids=lambda p: p.capture)
def test_request_on_port_4011_gets_the_boot_file(make_site: MakeSite, mode: DhcpMode, packet: Packet) -> None:
    answer = ask(make_site(packet, mode), packet.changed(o54=b""), source=ADDRESS)
    assert answer is not None
    script = f"http://{SERVER}:7080/ipxe/script/{packet.mac}/auto.ipxe"
    assert boots(answer) == (script if packet.option(175) else "snponly.efi", SERVER)


@pytest.mark.parametrize("binaries", [("snponly-shim.efi", "snponly.efi")], indirect=True)
def test_machine_gets_the_shim_and_the_shim_its_second_stage(make_site: MakeSite, binaries: BootBinaries) -> None:
    assert boots(offer(make_site(ROMS[0]), ROMS[0]))[0] == "snponly-shim.efi"
    name = boots(offer(make_site(HTTP_ROMS[0]), HTTP_ROMS[0]))[0].rpartition("/")[2]
    hyphen = name.rindex("-")  # automatic_next_path of the shim: "-shim[arch].efi" becomes ".efi"
    assert name[hyphen : hyphen + 5] == "-shim"
    assert binaries.get(name[:hyphen] + ".efi") is not None


def of_architecture(packet: Packet, number: int) -> Packet:
    return packet.changed(o93=struct.pack("!H", number))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("pxe_rom", "http_rom"), [(11, 19), (22, 24)])
def test_arm_boots_its_own_ipxe(make_site: MakeSite, mode: DhcpMode, pxe_rom: int, http_rom: int) -> None:
    edge = make_site(ROMS[0], mode)
    assert boots(offer(edge, of_architecture(ROMS[0], pxe_rom)))[0] == "snponly-arm64.efi"
    edge = make_site(HTTP_ROMS[0], mode)
    assert boots(offer(edge, of_architecture(HTTP_ROMS[0], http_rom)))[0].endswith("/snponly-arm64.efi")


@pytest.mark.parametrize("mode", MODES)
def test_ipxe_of_another_make_goes_to_its_script(make_site: MakeSite, mode: DhcpMode) -> None:
    for packet in IPXES:
        without_http = packet.changed(o175=packet.option(175).replace(b"\x13\x01\x01", b""))
        assert without_http != packet
        assert boots(offer(make_site(packet, mode), without_http))[0] == f"tftp://{SERVER}/{packet.mac}/auto.ipxe"
    for smee in (IPXES[0].changed(o77=b"Tinkerbell"), IPXES[0].changed(o77=b"Tinkerbell", o175=b"")):
        assert options_of(offer(make_site(smee, mode), smee))[67].rstrip(b"\0").endswith(b"/auto.ipxe")


VIRTUALBOX = b"\xb1\5\1\x10\x0e\0\x02\xeb\3\1\0\0\x17\1\1\x13\1\1\x15\1\1\x21\1\1\x10\1\2"
"""Bus, version, DNS, HTTP, TFTP, PXE, PXEXT: no format of kernels."""
LIMITED = {
    "VirtualBox": {"o175": VIRTUALBOX},
    "features of version 0": {"o175": VIRTUALBOX + b"\x18\1\0\x24\1\0"},
    "no feature at all": {"o175": b"\xeb\3\1\0\0"},
    "gPXE": {"o77": b"gPXE"},
    "gPXE, RFC 3004": {"o77": b"\4gPXE", "o175": b""},
}
PC_IPXES = [packet for packet in IPXES if packet.option(93) == b"\0\0"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", LIMITED.values(), ids=LIMITED)
def test_ipxe_that_can_not_start_kernels_gets_a_boot_program_in_the_form_for_ipxe(
    make_site: MakeSite, mode: DhcpMode, change: Any
) -> None:
    packet, leases = PC_IPXES[0].changed(**change), mode is DhcpMode.RESERVATION
    edge = make_site(packet, mode, dhcp={"vlanId": "50"})
    for _ in range(2):  # in full, and by the fast path
        answer = offer(edge, packet)
        assert boots(answer) == ("undionly.kpxe", SERVER)
        assert options_of(answer).get(60) == (None if leases else b"PXEClient")
        assert any(inside(answer, 175).get(176, b"")) is leases
        assert 116 not in inside(answer, 43), "a VLAN is for the script"
    name = "gPXE (x86 BIOS)" if "o77" in change else "iPXE without bzImage and EFI (x86 BIOS)"
    assert edge.messages()[0].endswith(f"to {name}, boot file undionly.kpxe")
    assert edge.events[0].detail["stage"] == "PXE ROM", "not the stage that a script is awaited of"
    on_4011 = Packet(packet.capture, 68, 4011, packet.changed(o53=bytes((REQUEST,))).payload)
    asked = ask(edge, on_4011, source=ADDRESS)
    assert asked is not None
    assert boots(asked) == ("undionly.kpxe", SERVER)
    assert is_sent_on(offer(make_site(packet, mode, disableNetboot=True), packet))


@pytest.mark.parametrize(
    "features", [b"\x18\1\1", b"\x24\1\1", VIRTUALBOX + b"\x18\1\1", VIRTUALBOX + b"\x24\1\1", b"\xb0\1\1", b"\x13"]
)
def test_ipxe_that_starts_kernels_or_sends_no_list_gets_its_script(make_site: MakeSite, features: bytes) -> None:
    packet = PC_IPXES[0].changed(o175=features)
    assert boots(offer(make_site(packet), packet))[0].endswith("/auto.ipxe")
    risc_v = packet.changed(o93=b"\0\x1b", o175=VIRTUALBOX)  # iPXE for SBI, whose format of kernels has no code
    assert boots(offer(make_site(packet), risc_v))[0].endswith("/auto.ipxe")


def test_ipxe_on_a_vlan_gets_the_vlan_number(make_site: MakeSite) -> None:
    for packet, file in ((ROMS[0], "snponly.efi"), (HTTP_ROMS[0], "/snponly.efi"), (IPXES[0], "/auto.ipxe")):
        answer = offer(make_site(packet, dhcp={"vlanId": "50"}), packet)
        assert boots(answer)[0].endswith(file)
        assert inside(answer, 43).get(116) == (b"50" if packet is IPXES[0] else None)


# --- firmware is what it declares, whatever it calls itself ---------------------------------------------------------

DECLARED = {
    "BlueField": ({"o60": b"NVIDIA/BF/PXE", "o93": b"\0\x0b"}, "snponly-arm64.efi"),
    "BlueField 2": ({"o60": b"BF2Client", "o93": b"\0\x0b"}, "snponly-arm64.efi"),
    "BlueField by HTTP": ({"o60": b"NVIDIA/BF/PXE", "o93": b"\0\x13"}, "/snponly-arm64.efi"),
    "RISC-V with an UNDI": ({"o60": b"acme", "o93": b"\0\x1b", "o94": b"\1\3\0"}, "snponly-riscv64.efi"),
    "no class": ({"o60": b"", "o93": b"\0\7"}, "snponly.efi"),
    "architecture in its class alone": ({"o60": b"acme:Arch:00011:UNDI:003000", "o93": b""}, "snponly-arm64.efi"),
    "architecture of one byte": ({"o93": b"\7"}, "snponly.efi"),
    "BIOS of one byte": ({"o60": b"PXEClient", "o93": b"\0"}, "undionly.kpxe"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "binaries", [("undionly.kpxe", "snponly.efi", "snponly-arm64.efi", "snponly-riscv64.efi")], indirect=True
)
@pytest.mark.parametrize(("change", "program"), DECLARED.values(), ids=DECLARED)
def test_firmware_with_a_class_of_its_own_gets_the_program_of_its_architecture(
    make_site: MakeSite, mode: DhcpMode, binaries: BootBinaries, change: Any, program: str
) -> None:
    packet = ROMS[0].changed(**change)
    edge, by_http = make_site(packet, mode), program.startswith("/")
    for _ in range(2):  # in full, and by the fast path
        answer = offer(edge, packet)
        assert boots(answer)[0].endswith(program)
        assert options_of(answer)[60] == (b"HTTPClient" if by_http else b"PXEClient")
    assert ("HTTP Boot ROM, boot file" if by_http else "PXE ROM, boot file") in edge.messages()[0]
    on_4011 = Packet(packet.capture, 4011, 4011, packet.changed(o53=bytes((REQUEST,))).payload)
    asked = ask(edge, on_4011, source=ADDRESS)
    assert asked is not None
    assert boots(asked) == boots(answer)


@pytest.mark.parametrize("name", [b"NVIDIA/BF/OOB", b"BF2Client", b"MSFT 5.0", b"acme:Arch:arm64:x", b""])
def test_client_that_names_no_architecture_is_an_operating_system(make_site: MakeSite, name: bytes) -> None:
    packet = ROMS[0].changed(o60=name, o93=b"", o94=b"")
    answer = offer(make_site(packet), packet)
    assert (boots(answer)[0], options_of(answer).get(60)) == ("", None)
    assert ask(make_site(packet, DhcpMode.AUTO_PROXY), packet) is None


def test_petitboot_gets_the_name_of_the_missing_file(make_site: MakeSite) -> None:
    packet = ROMS[0].changed(o60=b"udhcp 1.35.0", o93=b"\0\x0e", o94=b"", o97=b"")
    edge = make_site(packet)
    assert is_sent_on(offer(edge, packet))
    assert "no iPXE binary for architecture 14 (POWER OPAL v3)" in edge.messages()[0]


# --- a machine that may not netboot goes on to the next boot device, and shows why ------------------------------------


def is_sent_on(answer: bytes) -> bool:
    """Return True if EDK2 finds a menu whose one entry is "local boot", and no file (PxeBcSelectBootPrompt)."""
    menu = inside(answer, 43)
    return not boots(answer)[0] and menu[9][:2] == b"\0\0" and menu[10][0] <= 3 and menu.get(6, b"\0")[0] & 8 == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "reason", [{"disableNetboot": True}, {"has_pending": lambda *_name: False}], ids=["disabled", "idle"]
)
def test_refused_machine_tries_its_next_boot_device_and_ipxe_shows_the_reason(
    make_site: MakeSite, mode: DhcpMode, reason: Any
) -> None:
    edge = make_site(ROMS[0], mode, **reason)
    answer = offer(edge, ROMS[0])
    assert is_sent_on(answer)
    assert ip(answer[16:20]) == (ADDRESS if mode is DhcpMode.RESERVATION else "0.0.0.0")
    assert edge.events[0].outcome is Outcome.REFUSED
    assert "disableNetboot" not in reason or "disableNetboot is true" in edge.messages()[0]
    prompt = inside(answer, 43)[10][1:]
    assert prompt.startswith(b"No netboot: ")
    assert b"default/m1" in prompt
    assert len(prompt) <= 70
    url, _ = boots(offer(make_site(HTTP_ROMS[0], mode, **reason), HTTP_ROMS[0]))
    assert url == f"http://{SERVER}:7080/ipxe/binary/{HTTP_ROMS[0].mac}/netboot-not-allowed"
    assert boots(offer(make_site(IPXES[0], mode, **reason), IPXES[0]))[0].endswith("/auto.ipxe")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("binaries", [("snponly.efi",)], indirect=True)
@pytest.mark.parametrize(("architecture", "name"), [(27, "UEFI RISC-V 64-bit"), (11, "UEFI ARM 64-bit")])
def test_machine_without_a_binary_tries_its_next_boot_device_and_the_journey_names_the_binary(
    make_site: MakeSite, mode: DhcpMode, binaries: BootBinaries, architecture: int, name: str
) -> None:
    edge = make_site(ROMS[0], mode)
    assert is_sent_on(offer(edge, of_architecture(ROMS[0], architecture)))
    assert edge.events[0].outcome is Outcome.REFUSED
    assert f"no iPXE binary for architecture {architecture} ({name}); put one of" in edge.events[0].message


def test_machine_may_netboot_only_while_it_has_a_pending_workflow(make_site: MakeSite) -> None:
    has_work = True
    edge = make_site(ROMS[0], has_pending=lambda *_name: has_work)
    for has_work in (True, True, False, True):
        assert is_sent_on(offer(edge, ROMS[0])) is not has_work


# --- the ROM of a Raspberry Pi boots its own firmware, and nothing made for a PC --------------------------------------

PI = ROMS[0].changed(o93=b"\0\0", o60=b"PXEClient:Arch:00000:UNDI:002001")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("oui", ["b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"])
def test_raspberry_pi_gets_its_menu_and_never_a_pc_program(make_site: MakeSite, mode: DhcpMode, oui: str) -> None:
    packet = PI.of(f"{oui}:00:00:01")
    ours = offer(make_site(packet, mode), packet)
    options = options_of(ours)
    if mode is DhcpMode.RESERVATION:
        assert (1 in options, options[66]) == (True, SERVER.encode())
        # What dnsmasq and Smee send, byte for byte.
        menu = "060108" + "0914000011" + b"Raspberry Pi Boot".hex() + "0a0400" + b"PXE".hex() + "ff"
        assert options[43].hex() == menu
    assert b"Raspberry Pi Boot" in options[43]
    assert boots(ours) == ("", SERVER)


PI_97 = b"\0RPi4" + bytes.fromhex("1131c00032000001 1a2b3c4d")
"""FourCC, board, four bytes of the MAC, serial number: the default of DHCP_OPTION97 in the EEPROM."""
PIS = {
    "RPi4": {"o97": PI_97},
    "RPi5": {"o97": PI_97.replace(b"4", b"5", 1)},
    "no class, as in its REQUEST": {"o97": PI_97, "o60": b""},
    "identifier alone": {"o97": PI_97, "o60": b"", "o93": b"", "o94": b""},
    "rpiboot": {"o93": b"\0\x29"},
    "rpiboot of one byte, no class": {"o93": b"\x29", "o60": b""},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", PIS.values(), ids=PIS)
def test_raspberry_pi_is_identified_by_its_declaration_with_a_mac_of_any_maker(
    make_site: MakeSite, mode: DhcpMode, change: Any
) -> None:
    edge, packet = make_site(PI, mode), PI.changed(**change)
    for _ in range(2):  # in full, and by the fast path
        answer = offer(edge, packet)
        assert b"Raspberry Pi Boot" in options_of(answer)[43]
        assert boots(answer) == ("", SERVER)
        assert boots(offer(edge, PI))[0] == "undionly.kpxe", "the same packet of a PC"
    assert edge.messages()[0].endswith("to Raspberry Pi (boot ROM), Raspberry Pi firmware by TFTP")


def test_uefi_u_boot_and_ipxe_on_a_raspberry_pi_are_identified_as_such(make_site: MakeSite) -> None:
    for change, file in (
        ({"o93": b"\0\x0b", "o60": b"PXEClient:Arch:00011:UNDI:003000"}, "snponly-arm64.efi"),
        ({"o93": b"\0\x16", "o60": b"U-Boot.armv8"}, "boot.scr.uimg"),
        ({"o93": b"\0\x0b", "o77": b"iPXE"}, "/auto.ipxe"),
    ):
        packet = PI.changed(o97=PI_97, **change)
        assert boots(offer(make_site(packet), packet))[0].endswith(file)


def test_uefi_on_a_raspberry_pi_is_uefi_and_a_refused_pi_gets_no_server(make_site: MakeSite) -> None:
    uefi = ROMS[0].changed(o93=b"\0\x0b", o60=b"PXEClient:Arch:00011:UNDI:003000").of("dc:a6:32:00:00:01")
    for mode in MODES:
        assert boots(offer(make_site(uefi, mode), uefi)) == ("snponly-arm64.efi", SERVER)
    rom = PI.of("dc:a6:32:00:00:01")
    refused = offer(make_site(rom, disableNetboot=True), rom)
    assert 43 not in options_of(refused)
    assert not any(refused[20:24])


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
@pytest.mark.parametrize("is_refused", [False, True], ids=["allowed", "refused"])
def test_u_boot_gets_server_and_script_which_shows_the_reason_of_a_refusal(
    make_site: MakeSite, packet: Packet, is_refused: bool
) -> None:
    edge = make_site(packet, disableNetboot=is_refused)
    for _ in range(2):  # in full, and by the fast path
        answer = offer(edge, packet)
        # A name without a directory: beside it is pxelinux.cfg.
        assert answer[108:236].rstrip(b"\0") == b"boot.scr.uimg"
        assert is_refused or options_of(answer)[67] == b"boot.scr.uimg"
        assert is_refused or ip(answer[20:24]) == SERVER
        assert {43, 60}.isdisjoint(options_of(answer))


def test_u_boot_may_be_a_pxe_client_and_never_gets_an_offer_without_an_address(make_site: MakeSite) -> None:
    """U-Boot takes the first offer as its lease."""
    pxe = U_BOOT.changed(o60=b"PXEClient:Arch:00011:UNDI:003000", o93=b"\0\x0b")
    assert [boots(offer(make_site(pxe, mode), pxe))[0] for mode in MODES] == ["snponly-arm64.efi"] * 3
    assert [ask(make_site(U_BOOT, mode), U_BOOT) for mode in MODES[1:]] == [None, None]


# --- What a client is, and what it is named to boot -------------------------------------------------------------------


def client(packet: bytes, **changes: Any) -> Client:
    return identify(codec.parse(altered(packet, **changes)))


@pytest.mark.parametrize(
    ("user_class", "classes"),
    [
        (b"iPXE", (b"iPXE",)),
        (b"\x04iPXE", (b"\x04iPXE", b"iPXE")),
        (b"\x03foo\x04iPXE", (b"\x03foo\x04iPXE", b"foo", b"iPXE")),
        (b"\x0aTinkerbell", (b"\x0aTinkerbell", b"Tinkerbell")),
        (b"Tinkerbell", (b"Tinkerbell",)),
    ],
    ids=["raw, as iPXE sends it", "RFC 3004", "RFC 3004, second class", "Smee's iPXE", "Smee's iPXE, raw"],
)
def test_ipxe_is_known_by_its_user_class_alone(user_class: bytes, classes: tuple[bytes, ...]) -> None:
    found = client(IPXE_BIOS, drop=(175,), options={77: user_class})
    assert found.stage is Stage.IPXE
    assert user_classes(user_class) == classes


@pytest.mark.parametrize("user_class", [b"", b"\x05iPXE", b"\0", b"\x04iPXE\x09x", b"gPXE", b"\x04foo\0iPXE"])
def test_user_class_that_is_no_list_is_one_class(user_class: bytes) -> None:
    found = client(IPXE_BIOS, drop=(175,), options={77: user_class})
    assert found.stage is Stage.PXE_ROM
    assert user_classes(user_class) == ((user_class,) if user_class else ())


def test_ipxe_with_an_overridden_user_class_is_known_by_option_175_and_does_not_loop() -> None:
    assert client(IPXE_BIOS, options={77: b"PXEROM"}).stage is Stage.IPXE


def test_features_are_read_from_the_list_of_ipxe() -> None:
    bios = identify(codec.parse(IPXE_BIOS))
    # dns, pxe ext(33), http, iscsi, menu, multiboot, nfs, ... as in that build of 2019
    assert {options.IPXE_HTTP, options.IPXE_TFTP, options.IPXE_BZIMAGE, options.IPXE_MENU} <= bios.features
    assert not {options.IPXE_HTTPS, options.IPXE_EFI, 177, 235} & bios.features
    efi = identify(codec.parse(IPXE_EFI))
    assert options.IPXE_EFI in efi.features
    without = client(IPXE_EFI, options={175: b"\x13\1\0\x15\1\1\x24\1\1"})
    assert without.features == {options.IPXE_TFTP, options.IPXE_EFI}  # version 0 is as good as none


def test_ipxe_that_lists_no_features_lacks_none() -> None:
    for listed in (b"\xb0\1\1", b"\x13\x09\1", b"\x13"):
        found = client(IPXE_EFI, options={175: listed})
        assert found.stage is Stage.IPXE
        assert found.features == frozenset()


def test_architectures_of_odd_length_and_of_old_roms_are_parsed() -> None:
    packet = PXE_DISCOVER
    assert client(packet, options={93: b"\0\x0b\0\x07\0"}).architectures == (11, 7)
    assert client(packet, drop=(93,)).architectures == (7,)
    for vendor_class in (b"PXEClient", b"PXEClient:Arch:7:UNDI", b"PXEClient:Arch:0000x:", b"PXEClient:Prch:00007:"):
        assert client(packet, drop=(93,), options={60: vendor_class}).architectures == ()


def test_machines_of_one_kind_are_one_client() -> None:
    one = client(PXE_DISCOVER)
    assert client(PXE_REQUEST, chaddr=b"\2\0\0\0\0\1", options={97: b"\0" * 17}) is one


# --- boot path uki: the OSIE as one program, for firmware that is UEFI, and iPXE for any other ------------------------

HTTP_ROM = Client(Stage.HTTP_ROM, (16,), "UEFI")
PXE_ROM = Client(Stage.PXE_ROM, (7,), "UEFI")
BIOS = Client(Stage.PXE_ROM, (0,), "BIOS")


@pytest.fixture
def choice(tmp_path: Path) -> BootChoice:
    for name in ("undionly.kpxe", "snponly.efi"):
        (tmp_path / name).write_bytes(b"MZ")
    site = DhcpSite(Inventory(), NetbootPolicy(), BootBinaries(tmp_path), lambda *_, **__: None, lambda: 0.0)
    return BootChoice(site, "10.0.0.1", "http://10.0.0.1:7080")


def machine(**spec: Any) -> Machine:
    inventory = Inventory()
    inventory.apply(objects.hardware(mac=MAC, annotations={"tinkerbell.org/boot-path": "uki"}, **spec))
    (found,) = inventory.machines()
    return found


def test_uefi_boots_the_osie_itself_by_tftp_or_http(choice: BootChoice) -> None:
    lab = machine(osie={"name": "lab"})
    by_http = choice.answer(lab, MAC, HTTP_ROM)
    assert by_http.text == "boot file http://10.0.0.1:7080/osie/lab/uki.efi"
    assert options.option(options.VENDOR_CLASS, b"HTTPClient") in by_http.options
    by_tftp = choice.answer(lab, MAC, PXE_ROM)
    assert (by_tftp.file, by_tftp.siaddr) == (b"osie/lab/uki.efi", bytes((10, 0, 0, 1)))
    assert not by_tftp.shared, "or another machine of that maker would get this one's OSIE"
    assert choice.answer(lab, MAC, BIOS).file == b"undionly.kpxe"


def test_machine_without_an_osie_is_refused_with_the_missing_field(choice: BootChoice) -> None:
    assert "spec.osie.name is not set" in choice.answer(machine(), MAC, HTTP_ROM).refusal


def test_fast_path_leaves_boot_path_uki_to_the_full_path(choice: BootChoice) -> None:
    with pytest.raises(NoBinaryError):
        choice.choose(PXE_ROM, MAC, BootPath.UKI)
    assert choice.choose(BIOS, MAC, BootPath.UKI).file == b"undionly.kpxe"
