"""The disk images' layout as the two firmwares read it: the recipe's own functions around a stand-in kernel, no boot.

What is checked is read from the bytes of the disk by the UEFI specification (2.10, chapter 5 and section 13.3), not by
the tools that wrote it; only the FAT filesystem is read with mtools.
"""

import gzip
import hashlib
import os
import struct
import subprocess
import uuid
import zlib
from pathlib import Path

import pytest
import yaml

RECIPES = Path(__file__).parents[2] / "deploy" / "image"
MIB = 1 << 20
ESP_TYPE = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
ROOT_X86_64_TYPE = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
LEGACY_BIOS_BOOTABLE = 1 << 2
CMDLINE = "root=LABEL=tinkedge-root console=ttyS0,115200 quiet"


def recipe(script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a line of shell with the recipes' functions at hand."""
    command = ["bash", "-c", f'set -euo pipefail; . "{RECIPES}/common.sh"; {script}', "recipe", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def content(disk: Path, path: str) -> bytes:
    return subprocess.run(["mtype", "-i", f"{disk}@@{MIB}", f"::{path}"], capture_output=True, check=True).stdout


def partitions(disk: bytes) -> list[tuple[uuid.UUID, int, int, int]]:
    """(type, first LBA, last LBA, attributes) of each partition; header and table must carry their right checksums."""
    header = bytearray(disk[512 : 512 + 92])
    assert header[:8] == b"EFI PART"
    (stored,) = struct.unpack_from("<I", header, 16)
    header[16:20] = bytes(4)
    assert zlib.crc32(header) == stored
    table_lba, count, size, table_crc = struct.unpack_from("<QIII", header, 72)
    table = disk[table_lba * 512 : table_lba * 512 + count * size]
    assert zlib.crc32(table) == table_crc
    found = []
    for start in range(0, len(table), size):
        kind = uuid.UUID(bytes_le=table[start : start + 16])
        if kind.int:
            found.append((kind, *struct.unpack_from("<QQQ", table, start + 32)))
    return found


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("disk-image")
    (work / "vmlinuz").write_bytes(os.urandom(2 * MIB))
    (work / "initrd").write_bytes(b"stand-in initrd")
    (work / "root").write_bytes(b"root filesystem" + bytes(3 * MIB))
    done = recipe(
        'esp "$1/esp" 40 "$1/vmlinuz" "$1/initrd" "$2" && disk "$1/disk.raw" "$1/esp" "$1/root"', work, CMDLINE
    )
    assert done.returncode == 0, done.stderr
    return work / "disk.raw"


def test_bios_finds_boot_code_and_the_partition_that_it_is_to_start(disk: Path) -> None:
    image = disk.read_bytes()
    assert image[:440] == Path("/usr/lib/syslinux/mbr/gptmbr.bin").read_bytes().ljust(440, b"\0")
    assert image[510:512] == b"\x55\xaa"
    assert image[450] == 0xEE, "the protective partition was overwritten by the boot code"
    (_, first, _, attributes), root = partitions(image)
    assert attributes & LEGACY_BIOS_BOOTABLE
    assert not root[3] & LEGACY_BIOS_BOOTABLE
    boot_sector = image[first * 512 : first * 512 + 512]
    assert boot_sector[3:11] == b"SYSLINUX"
    assert struct.unpack_from("<I", boot_sector, 28) == (first,), "hidden sectors"
    assert content(disk, "/syslinux/ldlinux.sys")
    assert content(disk, "/syslinux/ldlinux.c32")
    assert f"APPEND {CMDLINE}" in content(disk, "/syslinux/syslinux.cfg").decode()


def test_uefi_finds_a_loader_at_the_fallback_path_of_a_fat32_esp(disk: Path) -> None:
    image = disk.read_bytes()
    kind, first, _, _ = partitions(image)[0]
    assert kind == ESP_TYPE
    assert image[first * 512 + 82 : first * 512 + 90] == b"FAT32   "
    assert content(disk, "/EFI/BOOT/BOOTX64.EFI")[:2] == b"MZ"
    assert "default tinkedge.conf" in content(disk, "/loader/loader.conf").decode()
    assert f"options {CMDLINE}" in content(disk, "/loader/entries/tinkedge.conf").decode()


def test_both_loaders_start_the_same_kernel_and_initrd_for_either_firmware(disk: Path) -> None:
    assert content(disk, "/vmlinuz") == (disk.parent / "vmlinuz").read_bytes()
    assert content(disk, "/initrd") == b"stand-in initrd"
    for configuration in ("/syslinux/syslinux.cfg", "/loader/entries/tinkedge.conf"):
        lines = [line.split() for line in content(disk, configuration).decode().lower().splitlines()]
        assert ["linux", "/vmlinuz"] in lines
        assert ["initrd", "/initrd"] in lines


def test_root_filesystem_lies_in_a_partition_that_systemd_repart_can_grow(disk: Path) -> None:
    image = disk.read_bytes()
    (_, _, esp_last, _), (kind, first, last, _) = partitions(image)
    assert kind == ROOT_X86_64_TYPE
    assert first == esp_last + 1
    assert image[first * 512 :].startswith(b"root filesystem")
    assert (last + 1 - first) * 512 == 4 * MIB
    assert len(image) >= (last + 1 + 33) * 512, "no room for the second partition table"


def test_server_image_leaves_the_data_source_to_the_file_that_a_workflow_writes() -> None:
    directory = RECIPES / "cloud" / "server" / "etc" / "cloud"
    files = [path.name for path in directory.rglob("*") if path.is_file()]
    assert files == ["50-tinkedge-server.cfg"], "ds-identify.cfg would be stronger than any of cloud.cfg.d"
    assert files[0] < "90_tinkedge.cfg", "cloud-init reads them in this order, and the last one wins"
    config = yaml.safe_load((directory / "cloud.cfg.d" / files[0]).read_text())
    assert not {"datasource", "datasource_list"} & set(config)
    assert "ssh" in config["cloud_init_modules"]
    assert config["system_info"]["default_user"]["name"] == "debian"


def test_initrd_has_the_modules_and_what_they_depend_on_and_only_a_marked_one_may_be_missing(tmp_path: Path) -> None:
    modules = tmp_path / "lib/modules/6.1.0"
    (modules / "kernel").mkdir(parents=True)
    (tmp_path / "version").write_text("6.1.0\n")
    (modules / "modules.builtin").write_text("kernel/builtin.ko\n")
    (modules / "modules.dep").write_text("kernel/disk.ko: kernel/bus.ko\nkernel/bus.ko:\n")
    for name in ("disk", "bus"):
        (modules / "kernel" / f"{name}.ko").write_bytes(bytes(64))
    (tmp_path / "init").write_text("#!/bin/sh\n")
    script = 'initrd "$1/initrd" "$1" "$1/init" "${@:2}"'
    done = recipe(script, tmp_path, "disk", "builtin", "raid?")
    assert done.returncode == 0, done.stderr
    names = subprocess.run(
        ["cpio", "-t"], input=gzip.decompress((tmp_path / "initrd").read_bytes()), capture_output=True
    )
    assert {b"lib/modules/6.1.0/kernel/disk.ko", b"lib/modules/6.1.0/kernel/bus.ko"} <= set(names.stdout.split())
    done = recipe(script, tmp_path, "disk", "raid")
    assert "kernel 6.1.0 has no module raid" in done.stderr


def test_published_image_has_the_checksum_that_the_action_compares(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"a disk" + bytes(MIB))
    out = tmp_path / "disk.raw.gz"
    done = recipe('publish "$1" "$2"', tmp_path / "raw", out)
    assert done.returncode == 0, done.stderr
    assert gzip.decompress(out.read_bytes()) == (tmp_path / "raw").read_bytes()
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert Path(f"{out}.sha256").read_text() == f"{digest}  disk.raw.gz\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["disk.raw.gz", "disk.raw.gz.sha256", "raw"]


def test_missing_build_packages_are_all_named_to_the_operator() -> None:
    done = recipe("need_packages bash tinkedge-none-1 tinkedge-none-2")
    assert done.returncode == 1
    assert "missing Debian packages: tinkedge-none-1 tinkedge-none-2 (apt-get install" in done.stderr


@pytest.mark.parametrize(
    ("script", "words", "expected_error"),
    [
        ("build-tiny.sh", ["disk.img"], "OUT must end in .raw, .raw.gz or .raw.zst, not 'disk.img'"),
        ("build-tiny.sh", ["nowhere/disk.raw.gz"], "the directory 'nowhere' does not exist"),
        ("build-cloud.sh", ["--metadata-url", "edge:7080", "a.raw.zst"], "--metadata-url: 'edge:7080' is no http URL"),
        (
            "build-cloud.sh",
            ["--server", "--dual-stack", "a.raw.zst"],
            "--server and --dual-stack: a server's image gets",
        ),
        ("build-cloud.sh", ["a.raw.zst", "b.raw.zst"], "one OUT only, got 'a.raw.zst' and 'b.raw.zst'"),
    ],
)
def test_bad_argument_is_named_before_anything_is_built(
    tmp_path: Path, script: str, words: list[str], expected_error: str
) -> None:
    done = subprocess.run(["bash", RECIPES / script, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert expected_error in done.stderr
    assert not any(tmp_path.iterdir())
