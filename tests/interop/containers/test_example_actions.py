"""The example actions of deploy/actions, built and used unchanged: their effect on a disk, and their error messages."""

import asyncio
import functools
import gzip
import hashlib
import http.server
import os
import re
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from tests.interop.containers.engines import run
from tests.waiting import PATIENCE_SECONDS
from tink.agent.model import RenderedAction, RunResult


@pytest.fixture
def disk(tmp_path):
    """A loop device of 16 MiB and the file behind it."""
    file = tmp_path / "disk.img"
    file.write_bytes(bytes(16 * 1024 * 1024))
    device = run("losetup", "--find", "--show", file).strip()
    try:
        yield device, file
    finally:
        run("losetup", "--detach", device)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def website(tmp_path):
    """URL and directory of a web server."""
    directory = tmp_path / "www"
    directory.mkdir()
    handler = functools.partial(QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", directory
        server.shutdown()
        thread.join()


def example(machine, name, **env):
    return RenderedAction("a", name, f"{machine.registry}/actions/{name}:1", env=env)


@pytest.mark.parametrize("pack", [None, "gzip", "zstd", "zstd -19", "xz", "bzip2"])
async def test_image2disk_writes_the_image(machine, disk, website, pack, caplog):
    caplog.set_level("INFO")
    device, file = disk
    url, directory = website
    content = os.urandom(3_000_001)
    image = directory / "disk.img"
    image.write_bytes(content)
    if pack:
        ending = {"gzip": "gz", "zstd": "zst", "zstd -19": "zst", "xz": "xz", "bzip2": "bz2"}[pack]
        packed = subprocess.run([*pack.split(), "-c", str(image)], capture_output=True, check=True).stdout
        if pack == "zstd -19":  # with a skippable frame first, and zeros behind it, which the program zstd rejects
            packed = struct.pack("<II", 0x184D2A50, 5) + b"frame" + packed + bytes(4096)
        image = directory / f"disk.img.{ending}"
        image.write_bytes(packed)
    env = {"IMG_URL": f"{url}/{image.name}", "DEST_DISK": device, "COMPRESSED": "true" if pack else "false"}
    env["IMG_SHA256"] = hashlib.sha256(image.read_bytes()).hexdigest().upper()
    assert await machine.action(example(machine, "image2disk", **env)) == RunResult(0)
    assert file.read_bytes()[: len(content)] == content
    assert f"image2disk: 3000001 bytes written to {device}" in caplog.text


@pytest.mark.parametrize("options", [(), ("-c",), ("-o", "compat=0.10"), ("-o", "preallocation=metadata")])
async def test_image2disk_writes_the_same_bytes_as_qemu_reads_from_a_qcow2(machine, disk, website, tmp_path, options):
    device, file = disk
    url, directory = website
    whole = tmp_path / "whole.raw"
    whole.write_bytes(os.urandom(1_000_000) + bytes(5 << 20) + b"text " * 300_000 + bytes((1 << 20) - 512))
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, whole, directory / "x.qcow2")
    run("qemu-img", "convert", "-O", "raw", directory / "x.qcow2", whole)
    file.write_bytes(b"\xa5" * (16 << 20))
    env = {"IMG_URL": f"{url}/x.qcow2", "DEST_DISK": device}
    assert await machine.action(example(machine, "image2disk", **env)) == RunResult(0)
    content = whole.read_bytes()
    assert file.read_bytes()[: len(content)] == content


async def test_writefile_finds_the_filesystem_of_the_image_and_not_the_old_one(machine, website, tmp_path):
    url, directory = website
    new, old, image, file = (tmp_path / each for each in ("new", "old", "image", "disk"))
    for path, size in ((new, 4), (old, 8), (file, 16), (image, 8)):
        path.write_bytes(bytes(size << 20))
    run("sgdisk", "-n1:2M:+4M", image)
    for filesystem in (old, new):
        run("mkfs.ext4", "-q", "-L", filesystem.name, filesystem)
    whole = image.read_bytes()
    (directory / "x.img").write_bytes(whole[: 2 << 20] + new.read_bytes() + whole[6 << 20 :])
    device = run("losetup", "--find", "--show", "--partscan", file).strip()
    try:
        run("addpart", device, "1", "2048", str(8 << 11))  # an old partition of 8 MiB at 1 MiB
        run("dd", f"if={old}", f"of={device}p1", "bs=1M", "status=none")
        with Path(f"{device}p1").open("rb"):  # a program that probes it, as udev does
            env = {"IMG_URL": f"{url}/x.img", "DEST_DISK": device}
            result = await machine.action(example(machine, "image2disk", **env))
        assert (result.reason, f"{device.removeprefix('/dev/')}p1" in result.message) == ("DiskBusy", True), result
        assert await machine.action(example(machine, "image2disk", **env)) == RunResult(0)
        env = {"DEST_DISK": f"{device}p1", "DEST_PATH": "/name", "CONTENTS": "x"}
        assert await machine.action(example(machine, "writefile", **env)) == RunResult(0)
        assert run("e2label", f"{device}p1").strip() == "new"
        # Another program writes another table, and the kernel does not read it.
        for table in (("-o", "-n1:3M:+4M"), ("-o", "-n1:3M:+4M", "-m", "1")):
            run("sgdisk", *table, image)
            run("dd", f"if={image}", f"of={device}", "bs=1M", "count=1", "status=none")
            result = await machine.action(example(machine, "writefile", **env))
            expected_message = (
                f"{device}p1 begins at byte 2097152 for the kernel, and at 3145728 in the partition table of {device}"
            )
            assert (result.reason, expected_message in result.message) == ("DiskBusy", True), result
        assert "Inode: " in run("debugfs", "-R", "stat /name", f"{device}p1")
    finally:
        run("losetup", "--detach", device)


@pytest.mark.parametrize(
    ("env", "reason", "expected_message"),
    [
        ({"IMG_URL": "URL/nothing.img"}, "DownloadFailed", "404"),
        ({"IMG_URL": "http://127.0.0.1:1/x.img"}, "DownloadFailed", "refused"),
        ({"IMG_URL": "URL/good.img", "IMG_SHA256": "abc"}, "InvalidSetting", "IMG_SHA256"),
        ({"IMG_URL": "URL/good.img", "COMPRESSED": "true"}, "InvalidSetting", ".gz"),
        ({"IMG_URL": "URL/bad.img.zst", "COMPRESSED": "true"}, "DecompressFailed", "bad.img.zst"),
        ({"IMG_URL": "URL/big.img"}, "DiskUnsuitable", "has 17825792 bytes, and /dev/loop"),
        ({"IMG_URL": "URL/big.img.gz", "COMPRESSED": "true"}, "WriteFailed", "No space left"),
        ({"IMG_URL": "URL/page.img"}, "NotAnImage", "a web page"),
        ({"IMG_URL": "URL/x.vmdk"}, "ImageUnsupported", "qemu-img convert -f vmdk -O qcow2 x.vmdk x.qcow2"),
        ({"DEST_DISK": "", "IMG_URL": "URL/good.img"}, "InvalidSetting", "DEST_DISK"),
        ({}, "InvalidSetting", "IMG_URL"),
    ],
)
async def test_image2disk_reports_the_reason_of_a_failure(machine, disk, website, env, reason, expected_message):
    url, directory = website
    (directory / "good.img").write_bytes(b"good" * 1000)
    (directory / "bad.img.zst").write_bytes(b"not compressed at all" * 1000)
    (directory / "big.img").write_bytes(bytes(17 * 1024 * 1024))
    (directory / "big.img.gz").write_bytes(gzip.compress(bytes(17 * 1024 * 1024)))
    (directory / "page.img").write_bytes(b"<!DOCTYPE html>\n<title>Sign in</title>")
    run("qemu-img", "create", "-q", "-f", "vmdk", directory / "x.vmdk", "1M")
    named = {name: value.replace("URL", url) for name, value in env.items()}
    env = {"DEST_DISK": disk[0], "IMG_RETRIES": "1", **named}
    result = await machine.action(example(machine, "image2disk", **env))
    assert (result.reason, expected_message in result.message) == (reason, True), result


@pytest.mark.parametrize("pack", [None, "gzip", "zstd"])
async def test_long_runs_of_zeros_are_zeroed_by_the_disk_itself(machine, disk, website, pack, caplog):
    caplog.set_level("INFO")
    device, file = disk
    url, directory = website
    content = os.urandom(1_000_000) + bytes(9 << 20) + os.urandom(70_000) + bytes(50_000) + b"end" + bytes(2 << 20)
    file.write_bytes(b"\xa5" * (16 << 20))
    image = directory / f"x.img{'.' + {'gzip': 'gz', 'zstd': 'zst'}[pack] if pack else ''}"
    image.write_bytes(subprocess.run([pack or "cat"], input=content, capture_output=True, check=True).stdout)
    env = {"IMG_URL": f"{url}/{image.name}", "DEST_DISK": device, "COMPRESSED": "true" if pack else "false"}
    assert await machine.action(example(machine, "image2disk", CLEAR_DISK="false", **env)) == RunResult(0)
    assert file.read_bytes() == content.ljust(16 << 20, b"\xa5")
    (zeroed,) = re.findall(", ([0-9]+) of them zeroed by the disk itself, ", caplog.text)
    assert 10 << 20 < int(zeroed) <= 11 << 20


async def test_image2disk_can_be_stopped_while_the_server_is_silent(machine, disk):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.img"
        silent.setblocking(False)
        stop = asyncio.Event()
        patient = machine.another(grace_seconds=60.0)  # on a busy machine, too, it ends by itself and is not killed
        action = example(machine, "image2disk", IMG_URL=url, DEST_DISK=disk[0])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await patient.pull(action.image, stop)
            running = asyncio.create_task(patient.run(action, stop))
            connection, _ = await asyncio.get_running_loop().sock_accept(silent)
            with connection:
                stop.set()
                assert (await running).exit_code == 143


async def test_inspect_names_the_partition_table_and_changes_nothing(machine, disk, caplog):
    caplog.set_level("INFO")
    device, file = disk
    before = hashlib.sha256(file.read_bytes()).digest()
    assert (await machine.action(example(machine, "inspect", DEST_DISK=device))).succeeded
    assert f"inspect: {device}: has no partition table" in caplog.messages
    assert hashlib.sha256(file.read_bytes()).digest() == before
    with file.open("r+b") as raw:
        raw.seek(510)
        raw.write(b"\x55\xaaEFI PART")
    assert (await machine.action(example(machine, "inspect", DEST_DISK=device))).succeeded
    assert f"inspect: {device}: has a GPT" in caplog.messages
    large = run("losetup", "--find", "--show", "--sector-size", "4096", file).strip()
    try:
        assert (await machine.action(example(machine, "inspect", DEST_DISK=large))).succeeded
    finally:
        run("losetup", "--detach", large)
    expected = f"inspect: {large}: has a GPT for sectors of 512 bytes, and its sectors have 4096: no partitions"
    assert expected in caplog.messages
    result = await machine.action(example(machine, "inspect", DEST_DISK="/dev/nothing"))
    assert (result.reason, "/dev/nothing" in result.message) == ("DiskNotFound", True)


async def test_reboot_leaves_its_request_where_the_osie_looks(machine, tmp_path):
    image = f"{machine.registry}/actions/reboot:1"
    action = RenderedAction("a", "reboot", image, volumes=(f"{tmp_path}/requests:/host",))
    assert (await machine.action(action)).succeeded
    assert (tmp_path / "requests" / "reboot").exists()
    assert (await machine.action(RenderedAction("a", "reboot", image))).reason == "HostNotMounted"


@pytest.fixture
def mounted(disk, tmp_path):
    """Return a function that runs `work` in the mounted ext4 filesystem of the disk."""
    device, _ = disk
    run("mkfs.ext4", "-q", device)
    point = tmp_path / "point"
    point.mkdir()

    def do(work):
        run("mount", device, point)
        try:
            return work(point)
        finally:
            run("umount", point)

    return do


PARTED = ("--clear", "--new=1:2048:+40M", "--new=2:0:0")


def raid_superblock(sector):
    """Build an mdraid superblock, version 1.0, for the end of a member, with the fields that blkid reads (md_p.h)."""
    return struct.pack("<II", 0xA92B4EFC, 1).ljust(144, b"\0") + struct.pack("<Q", sector).ljust(112, b"\0")


@pytest.fixture
def old_system(tmp_path):
    """A disk of 96 MiB with two partitions, and its file. The second is swap; all end with RAID superblocks."""
    file = tmp_path / "old.img"
    file.write_bytes(b"\xa5" * (96 << 20))
    run("sgdisk", *PARTED, file)
    device = run("losetup", "--find", "--show", file).strip()
    try:
        run("partx", "--add", device)
        for node in (f"{device}p2", f"{device}p1", device):
            size = int(run("blockdev", "--getsize64", node))
            sector = (size // 512 - 16) & ~7
            with Path(node).open("r+b") as raw:
                raw.seek(sector * 512)
                raw.write(raid_superblock(sector))
        run("mkswap", f"{device}p2")
        assert signatures(device) == {"", "p1", "p2"}
        yield device, file
    finally:
        subprocess.run(["partx", "--delete", device], check=False)
        run("losetup", "--detach", device)


def signatures(device):
    """Return where util-linux finds something: on the disk ("") or on its partitions."""
    nodes = [node for node in (f"{device}{end}" for end in ("", "p1", "p2")) if Path(node).exists()]
    return {node.removeprefix(device) for node in nodes if run("wipefs", "--parsable", "--noheadings", node).strip()}


def found_with_the_old_table(device):
    subprocess.run(["partx", "--delete", device], check=False)
    run("sgdisk", *PARTED, device)
    run("partx", "--add", device)
    return signatures(device) - {""}


@pytest.mark.parametrize("mode", ["metadata", "discard", "overwrite", "overwrite-random"])
async def test_wiped_disk_has_no_signature_even_with_its_old_partitions_again(machine, old_system, mode, caplog):
    caplog.set_level("INFO")
    device, file = old_system
    assert await machine.action(example(machine, "wipe", DEST_DISK=f"{device} {device}", MODE=mode)) == RunResult(0)
    assert f"wipe: {device}: {96 << 20} bytes wiped ({mode}) in " in caplog.text
    middle = set(file.read_bytes()[24 << 20 : 28 << 20])
    assert middle == {"metadata": {0xA5}, "overwrite-random": set(range(256))}.get(mode, {0})
    assert signatures(device) == set()
    assert found_with_the_old_table(device) == set()


async def test_image2disk_leaves_no_signature_of_an_old_system(machine, old_system, website):
    device, _ = old_system
    url, directory = website
    (directory / "x.img").write_bytes(os.urandom(1_000_000))
    assert await machine.action(example(machine, "image2disk", IMG_URL=f"{url}/x.img", DEST_DISK=device)) == RunResult(
        0
    )
    assert signatures(device) == set()
    assert found_with_the_old_table(device) == set()


@pytest.mark.parametrize(
    ("env", "reason", "words"),
    [
        ({"DEST_DISK": ""}, "InvalidSetting", "DEST_DISK is not set"),
        ({"DEST_DISK": "all"}, "InvalidSetting", "no word stands for all disks"),
        ({"DEST_DISK": "DISK,/dev/nothing"}, "DiskNotFound", "/dev/nothing"),
        ({"MODE": "quick"}, "InvalidSetting", "metadata, discard, secure-discard"),
        ({"MODE": "secure-discard"}, "NotSupported", "no secure discard; MODE=overwrite"),
        ({"MODE": "nvme-format"}, "NotSupported", "this is no NVMe disk"),
    ],
)
async def test_wipe_reports_the_reason_of_a_failure_and_wipes_nothing(machine, disk, env, reason, words):
    device, file = disk
    file.write_bytes(b"\xa5" * (16 << 20))
    env = {"DEST_DISK": device} | {name: value.replace("DISK", device) for name, value in env.items()}
    result = await machine.action(example(machine, "wipe", **env))
    assert (result.reason, words in result.message) == (reason, True), result
    assert set(file.read_bytes()) == {0xA5}


async def test_wipe_refuses_mounted_disks_before_it_wipes_any_and_names_the_partition(
    machine, disk, old_system, tmp_path
):
    device, file = old_system
    disk[1].write_bytes(b"\xa5" * (16 << 20))
    run("mkfs.ext4", "-q", f"{device}p1")
    before = hashlib.sha256(file.read_bytes()[24 << 20 :]).digest()
    point = tmp_path / "data"
    point.mkdir()
    run("mount", "-o", "ro", f"{device}p1", point)
    try:
        result = await machine.action(example(machine, "wipe", DEST_DISK=f"{disk[0]},{device}", MODE="overwrite"))
    finally:
        run("umount", point)
    assert (result.reason, "p1 is mounted" in result.message) == ("DiskBusy", True), result
    assert hashlib.sha256(file.read_bytes()[24 << 20 :]).digest() == before
    assert set(disk[1].read_bytes()) == {0xA5}


CONFIG = "/etc/cloud/cloud.cfg.d/90_tinkedge.cfg"


async def test_writefile_writes_the_contents_with_mode_and_owners(machine, disk, mounted):
    contents = "datasource_list: [NoCloud]\nUID=77\n'quoted' \\n %s $(id)\n\n"
    env = {"DEST_DISK": disk[0], "DEST_PATH": CONFIG, "CONTENTS": contents}
    assert await machine.action(example(machine, "writefile", FS_TYPE="ext4", **env)) == RunResult(0)

    def modes_and_owners(point):
        file = point / CONFIG[1:]
        return [(each.stat().st_mode & 0o7777, each.stat().st_uid, each.stat().st_gid) for each in (file, file.parent)]

    assert mounted(lambda point: (point / CONFIG[1:]).read_text()) == contents
    assert mounted(modes_and_owners) == [(0o644, 0, 0), (0o755, 0, 0)]
    # The file is replaced without FS_TYPE; existing directories stay unchanged.
    more = {"CONTENTS": "other", "MODE": "0600", "DIRMODE": "0700", "UID": "1000", "GID": "1001"}
    assert await machine.action(example(machine, "writefile", **env | more)) == RunResult(0)
    assert mounted(modes_and_owners) == [(0o600, 1000, 1001), (0o755, 0, 0)]
    assert mounted(lambda point: [each.name for each in (point / CONFIG[1:]).parent.iterdir()]) == ["90_tinkedge.cfg"]
    assert mounted(lambda point: (point / CONFIG[1:]).read_text()) == "other"


async def test_writefile_follows_links_within_the_filesystem_only(machine, disk, mounted):

    def links(point):
        (point / "usr" / "lib").mkdir(parents=True)
        (point / "lib").symlink_to("usr/lib")
        (point / "away").symlink_to("/tmp")
        (point / "up").symlink_to("../..")
        (point / "usr" / "lib" / "link").symlink_to("/tmp/other")
        (point / "usr" / "lib" / "plain.new").symlink_to("/tmp/other")

    mounted(links)
    for name in ("plain", "link"):
        env = {"DEST_DISK": disk[0], "DEST_PATH": f"/lib/{name}", "CONTENTS": name}
        assert await machine.action(example(machine, "writefile", **env)) == RunResult(0)
        assert mounted(lambda point, name=name: (point / "usr/lib" / name).is_symlink()) is False
        assert mounted(lambda point, name=name: (point / "usr/lib" / name).read_text()) == name
    for name in ("away", "up"):
        env = {"DEST_DISK": disk[0], "DEST_PATH": f"/{name}/file", "CONTENTS": "x"}
        result = await machine.action(example(machine, "writefile", **env))
        assert (result.reason, f"/{name} is a link that leads out" in result.message) == ("WriteFailed", True), result


@pytest.mark.parametrize(
    ("env", "reason", "expected_message"),
    [
        ({"FS_TYPE": "vfat"}, "MountFailed", "as vfat: "),
        ({"FS_TYPE": "nofs"}, "MountFailed", "as nofs: "),
        ({"FS_TYPE": "-o"}, "InvalidSetting", "FS_TYPE"),
        ({"DEST_DISK": "/dev/nothing"}, "DiskNotFound", "/dev/nothing"),
        ({"DEST_DISK": ""}, "InvalidSetting", "DEST_DISK"),
        ({"DEST_PATH": "/etc/../x"}, "InvalidSetting", ".."),
        ({"DEST_PATH": "etc/x"}, "InvalidSetting", "not absolute"),
        ({"DEST_PATH": "/etc/"}, "InvalidSetting", "names no file"),
        ({"DEST_PATH": "/lost+found"}, "WriteFailed", "is a directory"),
        ({"MODE": "rw"}, "InvalidSetting", "MODE"),
        ({"UID": "root"}, "InvalidSetting", "UID"),
    ],
)
async def test_writefile_reports_the_reason_of_a_failure(machine, disk, mounted, env, reason, expected_message):
    env = {"DEST_DISK": disk[0], "DEST_PATH": CONFIG, "CONTENTS": "x", **env}
    result = await machine.action(example(machine, "writefile", **env))
    assert (result.reason, expected_message in result.message) == (reason, True), result
    assert mounted(lambda point: [each.name for each in point.iterdir()]) == ["lost+found"]
