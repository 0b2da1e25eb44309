"""Boot media: what each firmware finds in the image, and the command that writes it (`tinkedge iso`)."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from edge.callers import MediumTokens, token_keys
from edge.cli import main
from ipxe.medium import AREA_BYTES, Medium, MediumError, make_medium
from ipxe.medium import fat as fat_module
from ipxe.medium.iso9660 import SECTOR, IsoError, read_files
from tests.support.api import InProcessApi
from tests.support.objects import MAC, hardware
from tests.support.objects import OTHER_MAC as OTHER
from tests.unit.ipxe_medium import parts

SCRIPT = "#!ipxe\necho the machine's own\n"
CATALOG_AT = 17 * SECTOR + 71


@pytest.fixture
def medium(tmp_path: Path) -> Medium:
    return make_medium(parts.fill(tmp_path))


def whole(medium: Medium, script: str = SCRIPT) -> bytes:
    written = medium.written(script)
    return b"".join(written.pieces(0, written.size))


def read_fat(content: bytes) -> dict[str, bytes]:
    """A FAT12 file system, read by the book: from the parameter block, along the table."""
    sector, per_cluster, reserved, fats, entries, total = struct.unpack_from("<HBHBHH", content, 11)
    (fat_sectors,) = struct.unpack_from("<H", content, 22)
    assert content[510:512] == b"\x55\xaa"
    assert total * sector == len(content)
    table = content[reserved * sector :]
    assert table[: fat_sectors * sector] == table[fat_sectors * sector : 2 * fat_sectors * sector]
    root = (reserved + fats * fat_sectors) * sector
    begins, size = root + entries * 32, sector * per_cluster

    def chain(cluster: int) -> bytes:
        found = b""
        while 2 <= cluster < 0xFF8:
            found += content[begins + (cluster - 2) * size : begins + (cluster - 1) * size]
            (pair,) = struct.unpack_from("<H", table, cluster * 3 // 2)
            cluster = pair >> 4 if cluster % 2 else pair & 0xFFF
        return found

    files: dict[str, bytes] = {}

    def walk(directory: bytes, path: str) -> None:
        long = ""
        for at in range(0, len(directory), 32):
            entry = directory[at : at + 32]
            if entry[0] == 0:
                break
            if entry[11] == 0x0F:
                long = (entry[1:11] + entry[14:26] + entry[28:32]).decode("utf-16-le").partition("\0")[0]
                long_checksum = entry[13]
                continue
            if long:
                total = 0
                for byte in entry[:11]:
                    total = ((total >> 1) | ((total & 1) << 7)) + byte & 0xFF
                assert total == long_checksum
            short = f"{entry[:8].decode().rstrip()}.{entry[8:11].decode().rstrip()}".rstrip(".")
            cluster, length = struct.unpack_from("<HI", entry, 26)
            if entry[11] & 0x10 and entry[:1] != b".":
                walk(chain(cluster), f"{path}{short}/")
            elif not entry[11] & 0x18:
                files[path + (long or short)] = chain(cluster)[:length]
            long = ""

    walk(content[root:begins], "")
    return files


def number(image: bytes, at: int) -> int:
    """Return the 32-bit number at a position."""
    return struct.unpack_from("<I", image, at)[0]


def test_each_firmware_finds_its_script_and_the_program_that_reads_it(medium):
    image = whole(medium)
    files = read_files(image)
    area = files["SCRIPT.IPX"]
    assert area.startswith(SCRIPT.encode() + b"####")
    assert (len(area), area[-2:], area.count(b"\n")) == (AREA_BYTES, b"#\n", 3)
    assert (files["IPXE.KRN"], files["LDLINUX.C32"]) == (parts.KERNEL, parts.LIBRARY)
    assert b"KERNEL ipxe.krn" in files["ISOLINUX.CFG"]
    efi = read_fat(files["EFI.IMG"])
    assert efi == {"EFI/BOOT/BOOTX64.EFI": parts.X64, "EFI/BOOT/BOOTAA64.EFI": parts.ARM64, "autoexec.ipxe": area}
    assert medium.boots == ("BIOS", "UEFI x86-64", "UEFI arm64")
    assert medium.by_dhcp_only == ()


def test_isolinux_is_told_where_it_is_and_what_it_sums_up_to(medium):
    loader = read_files(whole(medium))["ISOLINUX.BIN"]
    descriptor, sector, size, checksum = struct.unpack_from("<IIII", loader, 8)
    assert (descriptor, size) == (16, len(parts.ISOLINUX))
    assert medium.content[sector * SECTOR : sector * SECTOR + 8] == parts.ISOLINUX[:8]
    words = struct.unpack(f"<{len(loader[64:]) // 4}I", loader[64 : 64 + len(loader[64:]) // 4 * 4])
    tail = int.from_bytes(loader[64 + len(words) * 4 :], "little")
    assert checksum == (sum(words) + tail) & 0xFFFFFFFF


def test_boot_catalog_names_both_programs(medium):
    image = whole(medium)
    assert image[17 * SECTOR : 17 * SECTOR + 30] == b"\0CD001\1EL TORITO SPECIFICATION"
    catalog = number(image, CATALOG_AT) * SECTOR
    assert sum(struct.unpack_from("<16H", image, catalog)) & 0xFFFF == 0
    assert [image[catalog + at] for at in (1, 32, 64, 65)] == [0, 0x88, 0x91, 0xEF]
    bios, efi = (number(image, catalog + at) * SECTOR for at in (40, 104))
    assert image[bios : bios + 8] == parts.ISOLINUX[:8]
    assert image[efi + 3 : efi + 11] == b"MSWIN4.1"


def test_as_a_disk_it_has_a_record_that_loads_isolinux_and_the_partition_of_uefi(medium):
    image = whole(medium)
    assert image[:0x1B0] == parts.RECORD[:0x1B0]
    assert image[510:512] == b"\x55\xaa"
    (loader,) = struct.unpack_from("<Q", image, 0x1B0)
    assert image[loader * 512 : loader * 512 + 8] == parts.ISOLINUX[:8]
    assert (image[0x1BE], image[0x1C2]) == (0x80, 0)
    assert image[0x1D2] == 0xEF
    first, sectors = struct.unpack_from("<II", image, 0x1D6)
    assert set(read_fat(image[first * 512 : (first + sectors) * 512])) > {"autoexec.ipxe"}


def test_image_differs_between_machines_in_the_areas_alone_and_is_the_same_each_time(medium, tmp_path):
    one, other = whole(medium), whole(medium, "#!ipxe\nshell\n")
    assert len(one) == len(other) == medium.size
    outside = [at for at in range(0, medium.size, 64) if not any(a <= at < a + AREA_BYTES for a in medium.areas)]
    assert all(one[at : at + 64] == other[at : at + 64] for at in outside)
    assert whole(make_medium(tmp_path)) == one
    assert medium.written(SCRIPT).etag != medium.written("#!ipxe\nshell\n").etag
    assert medium.written(SCRIPT).etag == make_medium(tmp_path).written(SCRIPT).etag


def test_any_part_is_that_of_the_whole(medium):
    image, written, chosen = whole(medium), medium.written(SCRIPT), random.Random(1)
    edges = [at + shift for area in medium.areas for at in (area, area + AREA_BYTES) for shift in (-1, 0, 1)]
    points = [0, medium.size, *(at for at in edges if at <= medium.size)]
    points += [chosen.randrange(medium.size) for _ in range(60)]
    for start in points:
        for end in points:
            assert b"".join(written.pieces(start, end)) == image[start:end], (start, end)


def test_script_that_has_no_room_is_refused_and_one_that_just_fits_is_whole(medium):
    assert whole(medium, "#" * (AREA_BYTES - 1))
    assert b"".join(medium.written("x" * (AREA_BYTES - 1) + "\n").pieces(0, medium.size)).count(b"x" * 4095) == 2
    with pytest.raises(MediumError, match="its script has 4097 bytes, and 4096 have room"):
        medium.written("#" * AREA_BYTES)


@pytest.mark.parametrize(("bios", "efi", "boots"), [(True, False, ("BIOS",)), (False, True, ("UEFI x86-64",))])
def test_directory_that_has_one_of_both_makes_media_that_boot_so(tmp_path, bios, efi, boots):
    made = make_medium(parts.fill(tmp_path, bios=bios, efi=efi))
    image = whole(made)
    assert (made.boots[:1], len(made.areas)) == (boots, 1)
    assert image[number(image, CATALOG_AT) * SECTOR + 1] == (0 if bios else 0xEF)
    assert image[:8] == (parts.RECORD[:8] if bios else bytes(8))


def test_what_is_missing_or_cut_off_is_named(tmp_path):
    with pytest.raises(MediumError, match=r"has none of ipxe.iso, ipxe-amd64.efi, ipxe-arm64.efi: install the pack"):
        make_medium(tmp_path)
    with pytest.raises(MediumError, match="has none of"):
        make_medium(tmp_path / "absent")
    parts.fill(tmp_path)
    os.truncate(tmp_path / "ipxe.iso", (tmp_path / "ipxe.iso").stat().st_size - 5000)
    with pytest.raises(MediumError, match=r"ipxe.iso: it is cut off"):
        make_medium(tmp_path)


def test_old_ipxe_for_uefi_is_known_to_take_no_script_and_own_kernel_for_bios_is_taken(tmp_path):
    parts.fill(tmp_path)
    (tmp_path / "ipxe-amd64.efi").write_bytes(b"MZ of 2019")
    (tmp_path / "ipxe.lkrn").write_bytes(b"own kernel")
    made = make_medium(tmp_path)
    assert made.by_dhcp_only == ("UEFI x86-64",)
    assert "UEFI x86-64 by DHCP only" in made.described
    assert read_files(whole(made))["IPXE.KRN"] == b"own kernel"


@pytest.fixture(scope="module")
def package_image(tmp_path_factory) -> bytes:
    return (parts.fill(tmp_path_factory.mktemp("ipxe")) / "ipxe.iso").read_bytes()


@given(st.binary(max_size=200), st.integers(0, 3 * SECTOR), st.integers(0, 255))
def test_no_damage_to_an_image_is_more_than_an_error(package_image, junk, at, times):
    damaged = bytearray(package_image)
    place = 16 * SECTOR + at
    damaged[place : place + len(junk)] = junk
    damaged[21 * SECTOR + times] ^= 0xFF
    try:
        found = read_files(bytes(damaged))
    except IsoError:
        return
    assert sum(map(len, found.values())) <= 64 * len(damaged)


@pytest.mark.parametrize("name", ["autoexec.ipxe", "site-1.config", "lower.txt", "UPPER.TXT", "EFI/BOOT/x.efi"])
def test_names_of_all_kinds_are_found_by_those_who_read_long_ones(name):
    found = read_fat(fat_module.write("X", {name: b"content", "EMPTY": b""}).content)
    assert {path.upper(): content for path, content in found.items()} == {name.upper(): b"content", "EMPTY": b""}


def test_files_that_do_not_fit_are_refused():
    with pytest.raises(fat_module.FatError, match="too large"):
        fat_module.write("X", {"A.EFI": bytes(9 << 20)})
    with pytest.raises(fat_module.FatError, match="more than 13 characters"):
        fat_module.write("X", {"a-name-too-long.ipxe": b""})


# --- the command: the file that it writes, and the URL that it prints ---


@pytest.fixture
def run(monkeypatch):
    """Run `tinkedge iso` where the API has the Hardware rack/m1 and default/m1."""
    for name in [name for name in os.environ if name.startswith("TINKEDGE_")]:
        monkeypatch.delenv(name)
    interfaces = {MAC: {"dhcp": {"ip": "10.0.0.5", "netmask": "255.255.255.0"}}, OTHER: {}}
    api = InProcessApi(*(hardware(interfaces=interfaces, namespace=namespace) for namespace in ("default", "rack")))

    async def connect(_kubeconfig: Path) -> InProcessApi:
        return api

    monkeypatch.setattr("tink.kube.client.KubeClient.connect", connect)

    def invoke(*arguments: str | Path) -> Result:
        return CliRunner().invoke(main, ["iso", "--public-ip", "10.0.0.1", *map(str, arguments)])

    return invoke


def test_file_is_the_medium_of_the_hardware(run, tmp_path):
    ipxe_dir, out = parts.fill(tmp_path / "ipxe"), tmp_path / "m1.iso"
    done = run("--hardware", "m1", "-n", "rack", "--static", "-o", out, "--ipxe-dir", ipxe_dir, "--http-port", 80)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{out}: 0.1 MB, for BIOS, UEFI x86-64, UEFI arm64, boots {MAC}")
    content = out.read_bytes()
    assert len(content) == make_medium(ipxe_dir).size
    script = f"chain --replace http://10.0.0.1:80/ipxe/script/{MAC}/auto.ipxe?medium=static".encode()
    assert [content.count(each) for each in (b"set ${medium-port}/ip 10.0.0.5\n", script, b"(rack/m1)")] == [2, 2, 2]


def test_other_interface_is_named_by_its_mac_and_must_be_one_of_the_hardware(run, tmp_path):
    out = tmp_path / "x.iso"
    given = ("--hardware", "m1", "-o", out, "--ipxe-dir", parts.fill(tmp_path / "ipxe"))
    assert run(*given, "--mac", OTHER.upper().replace(":", "-")).exit_code == 0
    assert f"/ipxe/script/{OTHER}/".encode() in out.read_bytes()
    for arguments, says in (
        ((OTHER, "--static"), "needs ip and netmask"),
        (("52:54:00:00:00:09",), "has no 52:54:00:00:00:09"),
    ):
        done = run(*given, "--mac", *arguments)
        assert (done.exit_code, says in done.output) == (1, True)


def test_url_is_signed_by_the_edges_key_for_this_machine(run, tmp_path):
    keys = token_keys(tmp_path, None, create=True)
    for arguments, end in (((), "boot.iso"), (("--static", "--usb"), "static.img")):
        done = run("--hardware", "m1", "--url", "--data-dir", tmp_path, *arguments)
        assert done.exit_code == 0, done.output
        _, _, host, iso, token, name = done.output.strip().split("/")
        assert (host, iso, name) == ("10.0.0.1:7080", "iso", end)
        assert MediumTokens(keys).mac(token) == MAC
    ending = run("--mac", OTHER, "--url", "--lifetime", 60, "--data-dir", tmp_path).output.split("/")[4]
    assert MediumTokens(keys, clock=lambda: 0).mac(ending) == OTHER
    assert ".0." not in ending


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--hardware NAME, or --mac MAC"),
        (("--mac", "x"), "x is no MAC address"),
        (("--mac", MAC, "--usb"), "--usb is for --url"),
        (("--mac", MAC, "--static"), "--static needs --hardware"),
    ],
)
def test_what_can_not_be_is_refused(run, arguments, says):
    done = run(*arguments)
    assert (done.exit_code, says in done.output) == (2, True)


def test_what_is_missing_on_this_host_is_said(run, tmp_path):
    ipxe_dir = parts.fill(tmp_path / "ipxe")
    for arguments, says in (
        (("--ipxe-dir", tmp_path, "-o", tmp_path / "x.iso"), "install the package ipxe"),
        (("--url", "--data-dir", tmp_path), "--metadata-token-key"),
        (("--ipxe-dir", ipxe_dir, "-o", tmp_path / "no" / "x.iso"), "x.iso: No such file or directory"),
    ):
        done = run("--mac", MAC, *arguments)
        assert (done.exit_code, says in done.output) == (1, True)
