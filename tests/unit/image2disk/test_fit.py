"""Images that do not fit the disk, and files that are no disk images, are refused before a byte of the disk changes."""

import bz2
import gzip
import io
import struct
import subprocess
import tarfile
import zlib

import pytest
from image2disk.errors import ActionError
from image2disk.fit import DamagedTableError, Partition, read_table
from image2disk.partitions import KernelPartitions

from tests.unit.image2disk.conftest import CLUSTER, OLD, SIZE, header

MIB = 1 << 20


def mbr(*entries, flag=0x80):
    """An MBR of (type, first sector, number of sectors)."""
    table = b"".join(struct.pack("<BxxxBxxxII", flag, *entry) for entry in entries)
    return bytes(446) + table.ljust(64, b"\0") + b"\x55\xaa"


PROTECTIVE = mbr((0xEE, 1, 0xFFFFFFFF), flag=0)


def gpt(size=8 * MIB, sector=512, *, last=None, start=MIB, entry_bytes=128, spoil=False, before=PROTECTIVE):
    """The start of an image of `size` bytes with one partition from `start` to its last usable sector."""
    sectors = size // sector
    last = sectors - 34 if last is None else last
    entries = struct.pack("<16s16sQQ", b"t" * 16, b"u" * 16, start // sector, last).ljust(128 * 128, b"\0")
    fields = [b"EFI PART", 0x10000, 92, 0, 0, 1, sectors - 1, 34, last, b"d" * 16, 2, 128, entry_bytes]
    head = struct.pack("<8sIIIIQQQQ16sQIII", *fields, zlib.crc32(entries))
    head = head[:16] + struct.pack("<I", zlib.crc32(head) ^ spoil) + head[20:]
    return (before.ljust(sector, b"\0") + head.ljust(sector, b"\0") + entries).ljust(CLUSTER, b"\0")


def image(head, size=8 * MIB):
    return head.ljust(size, b"\0")


def zstd(content):
    return subprocess.run(
        ["zstd", "-qc", "--stream-size", str(len(content))], input=content, capture_output=True, check=True
    ).stdout


BIG = SIZE + MIB


@pytest.mark.parametrize(
    ("content", "sector", "env", "said"),
    [
        (image(gpt()), 4096, {}, "GPT is for sectors of 512 bytes, and /dev/test has sectors of 4096 bytes"),
        (image(gpt(sector=4096)), 512, {}, "GPT is for sectors of 4096 bytes, and /dev/test has sectors of 512 bytes"),
        (gzip.compress(image(gpt(sector=4096))), 512, {"COMPRESSED": "true"}, "sectors of 4096 bytes, and /dev/test"),
        (image(gpt()), 4096, {"IMG_FORMAT": "raw"}, "sectors of 512 bytes, and /dev/test has sectors of 4096"),
        (image(mbr((0x83, 2048, 14336))), 4096, {}, "MBR) counts sectors of 512 bytes, and /dev/test"),
        (image(mbr((0x17, 0, 16384), (0xEF, 64, 128))), 4096, {}, "MBR) counts sectors of 512 bytes"),
        (bytes(BIG), 512, {}, f"the image has {BIG} bytes, and /dev/test has {SIZE}"),
        (gzip.compress(image(gpt(BIG))), 512, {"COMPRESSED": "true"}, f"has {BIG} bytes, and /dev/test has {SIZE}"),
        (bz2.compress(image(mbr((0x83, 2048, BIG // 512 - 2048)))), 512, {"COMPRESSED": "true"}, f"has {BIG} bytes"),
        (image(gpt(BIG)), 512, {}, "bytes, and /dev/test has"),  # cut off, and its partition does not fit
    ],
)  # fmt: skip
def test_image_that_does_not_fit_the_disk_is_refused_with_both_values(site, target, content, sector, env, said):
    site.content, target.disk.sector_bytes = content, sector
    ending = {b"\x1f\x8b": ".gz", b"BZ": ".bz2"}.get(content[:2], "")
    with pytest.raises(ActionError) as caught:
        target.copy(f"{site.url}/x.img{ending}", **env)
    assert (caught.value.reason, said in caught.value.message) == ("DiskUnsuitable", True), caught.value
    assert target.disk.written == 0


def test_size_of_a_zstd_frame_is_compared_before_anything_is_written(site, target):
    site.content = zstd(bytes(BIG))
    with pytest.raises(ActionError, match=f"has {BIG} bytes, and /dev/test has {SIZE}"):
        target.copy(f"{site.url}/x.img.zst", COMPRESSED="true")
    assert target.content == OLD * SIZE


def qcow2_of(first, *, zeros=False):
    """A qcow2 image whose first cluster is `first`; `zeros` come in other clusters, which the table names before."""
    entries = [3 * CLUSTER, 0, 4 * CLUSTER, 0] if zeros else [3 * CLUSTER]
    tables = [struct.pack(">Q", 2 * CLUSTER), struct.pack(f">{len(entries)}Q", *entries)]
    content = header(size=4 * CLUSTER) + b"".join(each.ljust(CLUSTER, b"\0") for each in tables)
    return content + first + bytes(CLUSTER)


@pytest.mark.parametrize("zeros", [False, True])
def test_table_in_a_qcow2_image_is_compared_before_anything_is_written(site, target, zeros):
    site.content, target.disk.sector_bytes = qcow2_of(gpt(), zeros=zeros), 4096
    with pytest.raises(ActionError, match="GPT is for sectors of 512 bytes"):
        target.copy(f"{site.url}/x.qcow2")
    assert target.content == OLD * SIZE


@pytest.mark.parametrize(
    ("content", "sector"),
    [
        (image(gpt()), 512),
        (image(gpt(sector=4096)), 4096),
        (image(gpt(before=mbr((0x0C, 2048, 99), (0xEE, 1, 2047), flag=1))), 512),  # a hybrid MBR with odd flags
        (image(gpt(SIZE - MIB)), 512),  # cut off, and its partition fits
        (image(mbr((0x83, 256, 1792))), 4096),  # made for such a disk: its partition ends where the image does
        (image(mbr((0x17, 0, 16384), (0xEF, 64, 128))), 512),  # a hybrid ISO
        (bytes(1080) + b"\x53\xef" + bytes(MIB), 4096),  # ext4 alone
        (b"\xeb\x3c\x90MSDOS5.0".ljust(446, b"\0") + b"no bootable device".ljust(64, b"\0") + b"\x55\xaa", 4096),
        (b"hsqs" + bytes(MIB), 512),
        (bytes(32769) + b"CD001" + bytes(MIB), 512),  # a config drive
        (b"\xa5" * 1000, 512),
        (b"pattern" * 200, 512),
    ],
)  # fmt: skip
def test_image_that_fits_the_disk_is_written(site, target, content, sector):
    site.content, target.disk.sector_bytes = content, sector
    assert target.copy(f"{site.url}/x.img")[0] == len(content)
    assert target.content[: len(content)] == content
    assert any("no partition table" in line for line in target.said) == (
        content[510:512] != b"\x55\xaa" or content[:1] == b"\xeb"
    )


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (gpt(spoil=True), "the checksum of its GPT header is wrong"),
        (gpt(entry_bytes=256), "128 entries of 256 bytes"),
        (gpt(last=3), "sectors 34 to 3 usable"),
        (PROTECTIVE, "announces a GPT, but byte 512 has no GPT header"),
        (gpt(before=mbr((0xEE, 2, 9))), "does not start at sector 1"),
        (gpt()[: 512 + 1024] + b"x" + gpt()[512 + 1025 :], "the checksum of its GPT entries is wrong"),
    ],
)
def test_gpt_that_no_system_reads_is_refused_unless_the_image_is_to_be_written_as_it_is(site, target, head, said):
    site.content = image(head)
    with pytest.raises(ActionError, match=said) as caught:
        target.copy(f"{site.url}/x.img")
    assert caught.value.reason == "ImageDamaged"
    assert target.content == OLD * SIZE
    target.copy(f"{site.url}/x.img", IMG_FORMAT="raw")


def tar():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("disk.img"))
    return file.getvalue()


CD = bytes(32769) + b"CD001" + bytes(2042) + b"\0CD001\1EL TORITO SPECIFICATION" + bytes(MIB)
VDI = b"<<< Oracle VM VirtualBox Disk Image >>>\n".ljust(64, b"\0") + b"\x7f\x10\xda\xbe" + bytes(MIB)
PE = b"MZ".ljust(60, b"\0") + struct.pack("<I", 128) + bytes(64) + b"PE\0\0" + bytes(MIB)


@pytest.mark.parametrize(
    ("content", "reason", "said"),
    [
        (b"KDMV" + bytes(MIB), "ImageUnsupported", "is a VMDK image.*qemu-img convert -f vmdk -O qcow2 x.img x.qcow2"),
        (b"COWD" + bytes(MIB), "ImageUnsupported", "is a VMDK"),
        (b"# Disk DescriptorFile\nversion=1\n", "ImageUnsupported", "text part of a VMDK"),
        (b"vhdxfile" + bytes(MIB), "ImageUnsupported", "is a VHDX image.*-f vhdx "),
        (b"conectix" + bytes(MIB), "ImageUnsupported", "is a VHD image.*-f vpc "),
        (VDI, "ImageUnsupported", "is a VDI image"),
        (b"\r\n <!DOCTYPE html><title>Sign in \xe9</title>", "NotAnImage", "web page"),
        ("<html>\nlogin</html>".encode("utf-16"), "NotAnImage", "web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "NotAnImage", "XML"),
        (b'{"errors":[{"code":"DENIED"}]}', "NotAnImage", "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "NotAnImage", "Git LFS pointer"),
        (b"Not Found", "NotAnImage", "is a text"),
        ("Fehler: nicht vorhanden, später\n".encode() * 9000, "NotAnImage", "is a text"),
        (b"PK\3\4" + bytes(MIB), "NotAnImage", "zip.*unpack it"),
        (tar(), "NotAnImage", "a tar archive"),
        (b"070701" + bytes(MIB), "NotAnImage", "cpio"),
        (b"\x7fELF" + bytes(MIB), "NotAnImage", "ELF"),
        (PE, "NotAnImage", "EFI or Windows program"),
        (b"%PDF-1.7\n" + bytes(MIB), "NotAnImage", "PDF"),
        (b"\x04\x22\x4d\x18" + bytes(MIB), "NotAnImage", "lz4"),
        (CD, "NotAnImage", "boots from a CD alone"),
    ],
)  # fmt: skip
def test_file_that_is_no_raw_disk_image_is_refused_by_its_name_also_if_it_was_compressed(
    site, target, content, reason, said
):
    for path, env in (("/x.img", {}), ("/x.img.gz", {"COMPRESSED": "true"})):
        site.content = gzip.compress(content) if env else content
        with pytest.raises(ActionError, match=said) as caught:
            target.copy(site.url + path, **env)
        assert caught.value.reason == reason
        assert target.disk.written == 0
    site.content = content
    target.copy(f"{site.url}/x.img", IMG_FORMAT="raw")
    assert target.content[: len(content)] == content


def test_image_that_is_compressed_twice_is_refused(site, target):
    site.content = gzip.compress(bz2.compress(bytes(MIB)))
    with pytest.raises(ActionError, match=r"compressed again \(bzip2\)"):
        target.copy(f"{site.url}/x.img.gz", COMPRESSED="true")


def test_logical_partitions_are_found_by_their_chain_and_a_chain_without_end_is_left():
    first, second = mbr((0x83, 1, 10), (0x05, 20, 11)), mbr((0x83, 1, 9), (0x05, 0, 11))
    disk = mbr((0x83, 1, 50), (0x0F, 100, 100)).ljust(100 * 512, b"\0") + first.ljust(20 * 512, b"\0") + second
    table = read_table(lambda offset, length: disk[offset : offset + length], 512)
    logical = [(each.number, each.start // 512) for each in table.partitions if each.number > 4]
    assert logical[:3] == [(5, 101), (6, 121), (7, 101)]
    assert len(logical) == 100
    assert table.partitions[0] == Partition(1, 512, 50 * 512)


def test_gpt_that_names_sectors_beyond_any_disk_is_read_without_them():
    head = gpt(last=2**63)
    table = read_table(lambda offset, length: head[offset : offset + length], 512)
    assert table.partitions == ()
    with pytest.raises(DamagedTableError):
        read_table(lambda offset, length: PROTECTIVE[offset : offset + length], 512)


def test_holders_are_named_as_sysfs_and_the_mounts_name_them(tmp_path):
    disk = tmp_path / "dev" / "block" / "0:0"
    for path, text in {
        disk / "holders" / "dm-0" / "dm" / "name": "mpatha",
        disk / "sda1" / "partition": "1",
        disk / "sda1" / "start": "2048",
        disk / "sda1" / "size": "4096",
        disk / "sda1" / "dev": "8:1",
        disk / "sda1" / "holders" / "md127" / "dev": "9:127",
        disk / "sda2" / "partition": "",  # goes away
        tmp_path / "fs" / "xfs" / "sda1" / "error": "",
        tmp_path / "block" / "loop3" / "loop" / "backing_file": "/dev/sda1",
        tmp_path / "self" / "mountinfo": "20 1 8:2 / /old rw - ext4 /dev/sda2 rw",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    with (tmp_path / "file").open("wb") as file:
        found = KernelPartitions("/dev/sda", file.fileno(), tmp_path, tmp_path).holders()
    assert found == "0:0 by dm-0 (mpatha), sda1 by md127, sda1 by a mounted xfs, sda1 by loop3"
