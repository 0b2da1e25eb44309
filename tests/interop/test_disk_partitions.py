"""The kernel's partitions after image2disk's own code has written a table, with loop devices and what holds them.

The tests need no kernel that reads partition tables: sgdisk makes the images, and `addpart` the old partitions (BLKPG).
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy" / "actions"))

from image2disk.disk import opened
from image2disk.errors import ActionError

pytestmark = pytest.mark.long

MIB = 1 << 20


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout.strip()


def partitions(device):
    """(number, first byte, length) of each partition that the kernel has."""
    nodes = Path("/sys/class/block", Path(device).name).glob("*/partition")
    values = [[int((node.parent / each).read_text()) for each in ("partition", "start", "size")] for node in nodes]
    return sorted((number, start * 512, size * 512) for number, start, size in values)


@contextlib.contextmanager
def loop(path, *options):
    """A loop device of 32 MiB that has partitions."""
    with path.open("wb") as file:
        file.truncate(32 * MIB)
    device = run("losetup", "--find", "--show", "--partscan", *options, path)
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


@pytest.fixture
def device(tmp_path):
    """A disk whose old system has partitions of 8 MiB at 1 and 9 MiB."""
    with loop(tmp_path / "disk") as device:
        for number in (1, 2):
            run("addpart", device, number, (8 * number - 7) * 2048, 8 * 2048)
        yield device


NEW = [(1, 2 * MIB, 4 * MIB), (3, 6 * MIB, 8 * MIB)]


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(16 * MIB)  # smaller than the disk: the backup GPT is not at the disk's end
    run("sgdisk", "-n1:2M:+4M", "-n3:6M:+8M", path)
    return path.read_bytes()


def write(device, image, sleep=lambda _: None):
    disk = opened(device, lambda _: None, sleep)
    try:
        disk.write(0, image)
        return disk.finish(lambda _: None, sleep)
    finally:
        disk.close()


def test_old_partitions_are_replaced_by_those_of_the_image(device, image):
    assert write(device, image) == ""
    assert partitions(device) == NEW


@pytest.mark.parametrize("number", [1, 2])
def test_partition_that_a_program_has_open_is_waited_for(device, image, number):
    holder, pauses = os.open(f"{device}p{number}", os.O_RDONLY), []

    def sleep(seconds):
        pauses.append([each[0] for each in partitions(device)])
        if len(pauses) == 3:
            os.close(holder)

    assert write(device, image, sleep) == ""
    assert pauses == [[number]] * 3  # the other one is removed at once
    assert partitions(device) == NEW


def test_partition_that_stays_open_is_a_failure_that_names_it(device, image):
    holder = run("losetup", "--find", "--show", f"{device}p2")
    name = Path(device).name
    try:
        with pytest.raises(ActionError, match=rf"\({name}p2\).*{name}p2 by {Path(holder).name}") as caught:
            write(device, image)
    finally:
        run("losetup", "--detach", holder)
    assert caught.value.reason == "DiskBusy"


def mount_point(partition, tmp_path):
    point = tmp_path / "point"
    point.mkdir()
    run("mkfs.ext4", "-q", partition)
    return point


@contextlib.contextmanager
def mounted(partition, tmp_path):
    """A mount in a namespace of its own: other programs that start meanwhile do not get a copy of it."""
    command = 'mount "$1" "$2" && echo mounted && read -r _; umount "$2"'
    start = ["unshare", "--mount", "sh", "-c", command, "sh", partition, mount_point(partition, tmp_path)]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "mounted\n"
        yield "a mounted ext4"
        holder.communicate()
    assert holder.returncode == 0


@contextlib.contextmanager
def swapped(partition, _tmp_path):
    run("mkswap", partition)
    run("swapon", partition)
    try:
        yield "swap"
    finally:
        run("swapoff", partition)


def assert_refused(device, image, holder):
    before = Path(device).read_bytes()[: 1 * MIB]
    with pytest.raises(ActionError, match=f"held for 30 s: .*p1 by .*{holder}") as caught:
        write(device, image)
    assert caught.value.reason == "DiskBusy"
    assert Path(device).read_bytes()[: 1 * MIB] == before


@pytest.mark.parametrize("holding", [mounted, swapped])
def test_disk_that_is_mounted_or_swapped_to_is_refused_before_anything_is_written(device, image, tmp_path, holding):
    with holding(f"{device}p1", tmp_path) as name:
        assert_refused(device, image, name)
    assert write(device, image) == ""
    assert partitions(device) == NEW


def test_visible_mount_is_named(device, image, tmp_path):
    point = mount_point(f"{device}p1", tmp_path)
    run("mount", f"{device}p1", point)
    try:
        assert_refused(device, image, f"the mount {point}")
    finally:
        run("umount", point)


def test_nothing_can_mount_an_old_partition_while_the_image_is_written(device, image):
    run("mkfs.ext4", "-q", f"{device}p1")
    disk = opened(device)
    try:
        with pytest.raises(subprocess.CalledProcessError, match="32"):
            run("mount", f"{device}p1", "/mnt")
    finally:
        disk.close()


def test_partition_of_a_disk_with_4096_byte_sectors_is_where_its_own_table_says(tmp_path):
    with loop(tmp_path / "made", "--sector-size", "4096") as source:
        run("sgdisk", "-n1:2M:+4M", source)
        image = Path(source).read_bytes()
    with loop(tmp_path / "disk", "--sector-size", "4096") as target:
        disk = opened(target)
        assert disk.sector_bytes == 4096
        disk.close()
        assert write(target, image) == ""
        assert partitions(target) == [(1, 2 * MIB, 4 * MIB)]


def test_device_without_partitions_is_written_with_a_warning(tmp_path, image):
    with (tmp_path / "disk").open("wb") as file:
        file.truncate(32 * MIB)
    device = run("losetup", "--find", "--show", tmp_path / "disk")
    try:
        assert "takes no partitions from the kernel" in write(device, image)
        assert write(device, b"bare" * MIB) == ""
    finally:
        run("losetup", "--detach", device)


def test_logical_partitions_and_overlaps_are_compared_as_the_kernel_makes_them(tmp_path, device):
    def entry(kind, start, length):
        return b"\0\0\0\0" + bytes([kind, 0, 0, 0]) + start.to_bytes(4, "little") + length.to_bytes(4, "little")

    def record(*entries):
        return bytes(446) + b"".join(entries).ljust(64, b"\0") + b"\x55\xaa"

    head = record(entry(0x83, 2048, 2048), entry(0x05, 8192, 8192)).ljust(8192 * 512, b"\0")
    assert write(device, head + record(entry(0x83, 2048, 4096))) == ""
    found = partitions(device)
    assert [found[0], found[-1]] == [(1, MIB, MIB), (5, 5 * MIB, 2 * MIB)]
    remark = write(device, record(entry(0x17, 0, 16384), entry(0xEF, 64, 128)).ljust(MIB, b"\0"))
    assert remark == "" or "overlaps" in remark
    assert (1, 0, 8 * MIB) in partitions(device)
