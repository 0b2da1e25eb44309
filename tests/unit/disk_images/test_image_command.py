"""`tinkedge image`: what is imported from files and servers, what is refused, and what is printed for a Workflow."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.server
import lzma
import os
import re
import shutil
import struct
import tempfile
import threading
import uuid
import zlib
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from edge.cli import main
from edge.disk_images.depot import ImageDepot
from edge.disk_images.sources import Checksum, opened

MIB = 1 << 20
LINUX = "0fc63daf-8483-4772-8e79-3d69d8477de4"
EFI = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
ROOT = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"


def ext4(label: str = "") -> bytes:
    """The start of a filesystem."""
    superblock = bytearray(1024)
    superblock[56:58] = b"\x53\xef"
    superblock[96:100] = struct.pack("<I", 0x40)
    superblock[120 : 120 + len(label)] = label.encode()
    return bytes(1024) + bytes(superblock)


def gpt_image(*partitions: tuple[int, str, str, int, int, bytes], size: int = 16 * MIB, sector: int = 512) -> bytes:
    """A disk with (number, type, label, first MiB, number of MiB, content) each."""
    entries = bytearray(128 * 128)
    for number, kind, label, start, length, _ in partitions:
        first, last = start * MIB // sector, (start + length) * MIB // sector - 1
        name = label.encode("utf-16-le")
        entry = struct.pack("<16s16sQQQ72s", uuid.UUID(kind).bytes_le, bytes([number]) * 16, first, last, 0, name)
        entries[(number - 1) * 128 : number * 128] = entry
    sectors = size // sector
    fields = [b"EFI PART", 0x10000, 92, 0, 0, 1, sectors - 1, 34, sectors - 34, b"d" * 16, 2, 128, 128]
    head = struct.pack("<8sIIIIQQQQ16sQIII", *fields, zlib.crc32(entries))
    head = head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]
    mbr = bytes(446) + struct.pack("<BxxxBxxxII", 0, 0xEE, 1, 0xFFFFFFFF).ljust(64, b"\0") + b"\x55\xaa"
    disk = bytearray(size)
    disk[:512], disk[sector : sector + len(head)] = mbr, head
    disk[2 * sector : 2 * sector + len(entries)] = entries
    for _, _, _, start, _, content in partitions:
        disk[start * MIB : start * MIB + len(content)] = content
    return bytes(disk)


CLOUD = gpt_image(
    (1, LINUX, "", 4, 3, ext4("rootfs")),
    (15, EFI, "", 1, 2, b""),
    size=8 * MIB,
)


GZIP = gzip.compress(CLOUD, mtime=0)


def qcow2(disk: bytes, *, cut: int = 0) -> bytes:
    """A qcow2 image of it, in the order in which `qemu-img convert` writes one."""
    cluster = 65536
    numbers = [at // cluster for at in range(0, len(disk), cluster) if disk[at : at + cluster].strip(b"\0")]
    fields = (b"QFI\xfb", 3, 0, 0, 16, len(disk), 0, 1, cluster, 0, 0, 0, 0, 0, 0, 0, 4, 112, 0)
    header = struct.pack(">4sIQIIQIIQQIIQQQQIIB7x", *fields).ljust(cluster, b"\0")
    l1 = struct.pack(">Q", 2 * cluster | 1 << 63).ljust(cluster, b"\0")
    places = {number: (3 + index) * cluster | 1 << 63 for index, number in enumerate(numbers)}
    l2 = struct.pack(">8192Q", *(places.get(number, 0) for number in range(8192)))
    data = b"".join(disk[number * cluster : (number + 1) * cluster].ljust(cluster, b"\0") for number in numbers)
    whole = header + l1 + l2 + data
    return whole[: len(whole) - cut]


def zstd(content: bytes) -> bytes:
    """A zstd frame of blocks that are not compressed (RFC 8878)."""
    parts = [content[at : at + (1 << 17)] for at in range(0, len(content), 1 << 17)]
    blocks = [struct.pack("<I", len(part) << 3)[:3] + part for part in parts]
    return b"\x28\xb5\x2f\xfd\0" + bytes([17 - 10 << 3]) + b"".join(blocks) + b"\1\0\0"


@dataclass
class Site:
    """A web server. `cuts`: after how many bytes it closes the next connections; `coding`: a Content-Encoding."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    coding: str = ""
    redirect: str = ""
    asked: list[str] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        site.asked.append(self.headers.get("Range", ""))
        if site.redirect:
            self.send_response(302)
            self.send_header("Location", site.redirect)
            site.redirect = ""
            self.end_headers()
            return
        name = self.path.lstrip("/")
        if name not in site.files:
            self.send_error(404)
            return
        content = site.files[name]
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", '"one"')
        if site.coding:
            self.send_header("Content-Encoding", site.coding)
        self.end_headers()
        end = start + site.cuts.pop(0) if site.cuts else len(content)
        self.wfile.write(content[start:end])


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    return directory


def run(data: Path, *words: str | Path) -> Result:
    where = ["--data-dir", str(data), "--config", os.devnull]
    where += ["--edge", "10.0.0.1"] if words[0] == "import" else []
    return CliRunner().invoke(main, ["image", *map(str, words), *where])


def imported(data: Path, *words: str | Path) -> str:
    result = run(data, "import", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(data: Path, *words: str | Path) -> str:
    """The message; nothing of the file has stayed."""
    before = files(data)
    result = run(data, "import", *words)
    assert result.exit_code == 1, result.output
    assert files(data) == before
    return " ".join(result.stderr.split())


def files(data: Path) -> dict[str, bytes]:
    there = data / "files"
    return {path.name: path.read_bytes() for path in there.iterdir()} if there.is_dir() else {}


FORMATS = {
    "disk.raw": (CLOUD, "raw"),
    "disk.img": (qcow2(CLOUD), "qcow2"),
    "disk.raw.gz": (GZIP, "raw, gzip"),
    "disk.raw.zst": (zstd(CLOUD), "raw, zstd"),
    "disk.raw.xz": (lzma.compress(CLOUD), "raw, xz"),
    "disk.raw.bz2": (bz2.compress(CLOUD), "raw, bzip2"),
    "disk.qcow2.xz": (lzma.compress(qcow2(CLOUD)), "qcow2, xz"),
}


@pytest.mark.parametrize("from_server", [False, True], ids=["file", "server"])
@pytest.mark.parametrize("name", FORMATS)
def test_image_of_every_format_is_kept_byte_for_byte_and_its_root_partition_is_found(
    name: str, from_server: bool, data: Path, tmp_path: Path, site: Site
) -> None:
    content, described = FORMATS[name]
    (tmp_path / name).write_bytes(content)
    site.files[name] = content
    reported = imported(data, f"{site.url}/{name}" if from_server else tmp_path / name)
    assert files(data) == {name: content}
    assert (data / "files" / name).stat().st_mode & 0o777 == 0o600
    assert f", {described}, 8 MB on the disk" in reported
    assert re.search(r"^   1  3 MB  ext4  Linux       rootfs  <- root filesystem$", reported, re.MULTILINE)
    assert re.search(r"^  15  2 MB  -     EFI system$", reported, re.MULTILINE)
    (lines,) = re.findall(r"spec.templateParams:\n((?:    .*\n)+)", reported)
    assert yaml.safe_load(lines) == {
        "image": f"http://10.0.0.1:7080/files/{name}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "partition": "1",
    }
    assert f'COMPRESSED: "{"true" if "," in described else "false"}"' in reported
    assert "FS_TYPE: ext4" in reported


def test_lines_of_an_import_are_options_of_an_example(data: Path, tmp_path: Path) -> None:
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    (words,) = re.findall(r"^Or: tinkedge (examples NAME .*) --mac MAC", imported(data, tmp_path / "disk.raw"), re.M)
    given = words.replace("NAME", "ubuntu").split()
    made = CliRunner().invoke(main, [*given, "--edge", "10.0.0.1", "--config", os.devnull])
    (workflow,) = [each for each in yaml.safe_load_all(made.stdout) if each["kind"] == "Workflow"]
    params = workflow["spec"]["templateParams"]
    assert (params["image"], params["partition"]) == ("http://10.0.0.1:7080/files/disk.raw", "1")
    assert params["sha256"] == hashlib.sha256(CLOUD).hexdigest()


# --- which partition ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([(1, EFI, "", 1, 1, b""), (2, ROOT, "", 2, 1, b""), (3, LINUX, "", 3, 9, ext4())], "2"),
        ([(1, LINUX, "", 4, 6, ext4()), (16, LINUX, "", 1, 2, ext4("BOOT"))], "1"),
        ([(1, LINUX, "data", 1, 9, b""), (2, LINUX, "", 11, 2, b"XFSB".ljust(512, b"\0"))], "2"),
        ([(3, "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6", "USR-A", 1, 3, b""), (6, LINUX, "OEM", 5, 1, b""),
          (9, "3884dd41-8582-4404-b9a8-e9b84f2df50e", "ROOT", 7, 3, ext4("ROOT"))], "6"),
    ],
    ids=["by its type", "not the one for boot", "with a filesystem", "the OEM partition of Flatcar"],
)  # fmt: skip
def test_partition_for_the_workflow_is_chosen(
    partitions: list[tuple[int, str, str, int, int, bytes]], expected: str, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.raw").write_bytes(gpt_image(*partitions))
    assert f'    partition: "{expected}"\n' in imported(data, tmp_path / "x.raw")


def test_lvm_has_no_partition_with_the_root_filesystem(data: Path, tmp_path: Path) -> None:
    lvm = (2, "e6d6d379-f507-44c2-a23c-238f2a3df928", "", 2, 9, b"")
    (tmp_path / "x.raw").write_bytes(gpt_image((1, EFI, "", 1, 1, b""), lvm))
    reported = imported(data, tmp_path / "x.raw")
    assert ("LVM" in reported, "partition:" in reported) == (True, False)


def test_mbr_and_sectors_of_4096_bytes_are_read_too(data: Path, tmp_path: Path) -> None:
    entry = struct.pack("<BxxxBxxxII", 0x80, 0x83, 2048, 4096)
    mbr = bytes(446) + entry.ljust(64, b"\0") + b"\x55\xaa"
    (tmp_path / "mbr.raw").write_bytes(mbr.ljust(MIB, b"\0") + ext4().ljust(3 * MIB, b"\0"))
    assert "Partitions (MBR):\n  1  2 MB  ext4  Linux    <- root filesystem" in imported(data, tmp_path / "mbr.raw")
    (tmp_path / "4k.raw").write_bytes(gpt_image((1, LINUX, "", 1, 8, ext4()), sector=4096))
    assert "  1  8 MB  ext4  Linux    <- root filesystem" in imported(data, tmp_path / "4k.raw")


def test_filesystem_without_a_partition_table_is_an_image(data: Path, tmp_path: Path) -> None:
    (tmp_path / "root.ext4").write_bytes(ext4().ljust(2 * MIB, b"\0"))
    reported = imported(data, tmp_path / "root.ext4")
    assert ("one filesystem, ext4" in reported, "partition:" in reported) == (True, False)


# --- checksums ----------------------------------------------------------------------------------------------------


SHA256, SHA512 = hashlib.sha256(CLOUD).hexdigest(), hashlib.sha512(CLOUD).hexdigest()
SIGNED = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n# disk.raw: 8388608 bytes\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{'0' * 64}  other.raw\n{SHA256}  disk.raw\n",
        f"{SHA256.upper()} *./images/disk.raw\n",
        f"{SHA512}  disk.raw\n",
        f"{SIGNED}SHA256 (other.raw) = {'0' * 64}\nSHA256 (disk.raw) = {SHA256}\n-----BEGIN PGP SIGNATURE-----\n",
        f"# MD5 HASH\n{'0' * 32}  disk.raw\n# SHA512 HASH\n{SHA512}  disk.raw\n",
        f"{SHA256}\n",
    ],
    ids=["Ubuntu", "a path", "Debian", "Rocky", "Flatcar", "alone"],
)
@pytest.mark.parametrize("from_server", [False, True], ids=["file", "server"])
def test_checksum_is_found_in_the_file_of_a_distribution(
    text: str, from_server: bool, data: Path, tmp_path: Path, site: Site
) -> None:
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    (tmp_path / "SUMS").write_text(text)
    site.files |= {"SUMS": text.encode(), "disk.raw": CLOUD}
    place = site.url if from_server else tmp_path
    imported(data, f"{place}/disk.raw", "--sha256", f"{place}/SUMS", "--name", "debian.raw")
    assert list(files(data)) == ["debian.raw"]


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_wrong_checksum_leaves_nothing(algorithm: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    wrong = hashlib.new(algorithm, b"other").hexdigest()
    right = hashlib.new(algorithm, CLOUD).hexdigest()
    message = refused(data, tmp_path / "disk.raw", "--sha256", wrong)
    assert message.endswith(f"disk.raw: has the SHA-{algorithm[3:]} {right}, not {wrong}; nothing was kept")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (f"{SHA256}  other.raw\n", "SUMS: has no checksum of disk.raw: it has those of other.raw"),
        ("<html>", "SUMS: has no checksum of disk.raw: it has no SHA-256 or SHA-512 of any file"),
        (f"{SHA256}  disk.raw\n{'0' * 64}  old/disk.raw\n", "SUMS: has two checksums of disk.raw"),
        ("x" * (MIB + 1), "SUMS: is larger than 1048576 bytes: it is no file of checksums"),
    ],
)
def test_file_of_checksums_that_does_not_help_is_refused(text: str, reported: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    (tmp_path / "SUMS").write_text(text)
    assert reported in refused(data, tmp_path / "disk.raw", "--sha256", tmp_path / "SUMS")


def test_invalid_checksum_is_refused_with_the_valid_forms(data: Path, tmp_path: Path) -> None:
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    message = refused(data, tmp_path / "disk.raw", "--sha256", "abc")
    assert "'abc': is neither a SHA-256 (64 hexadecimal digits) or SHA-512 (128), nor a file or URL" in message


# --- what is no image ---------------------------------------------------------------------------------------------


ISO = bytearray(CLOUD)
ISO[32769:32774] = b"CD001"
SPOILED = CLOUD[:520] + b"\xff" + CLOUD[521:]


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("x.raw", b"<!DOCTYPE html><html><body>404</body></html>\n", "is a web page (HTML), not a disk image; give"),
        ("x.raw.gz", gzip.compress(b"<html>404</html>\n"), "is a web page (HTML), not a disk image"),
        ("x.vmdk", b"KDMV".ljust(MIB, b"\0"), "is a VMDK image, which the action does not write; convert it with"),
        ("x.iso", bytes(ISO), "is a CD image (ISO): it starts an installer, and is no installed system; import the"),
        ("x.raw", bytes(MIB), "has neither a partition table nor a filesystem that is known here"),
        ("x.tar", bytes(257) + b"ustar\x0000".ljust(2000, b"\0"), "is a tar archive, not a disk image; unpack it"),
        ("x.raw", b"", "x.raw: is empty"),
        ("x.raw", SPOILED, "the checksum of its GPT header is wrong; no system finds partitions in it"),
        ("x.raw", CLOUD[: 5 * MIB], "is cut off: its partitions end at byte 7340032, and the disk has 5242880"),
        ("x.raw.gz", GZIP[:-20], "damaged, or not of the type in its name: it ends in the middle"),
        ("x.raw.zst", zstd(CLOUD)[: 5 * MIB], "damaged, or not of the type in its name: it ends in the middle"),
        ("x.raw.xz", lzma.compress(CLOUD)[:-40], "damaged, or not of the type in its name: it ends in the middle"),
        ("x.qcow2", qcow2(CLOUD, cut=70000), "a damaged qcow2 image: it ends before what its tables name"),
        ("x.raw", GZIP, "x.raw: the file is compressed with gzip; give --name x.raw.gz"),
        ("x.raw.xz", CLOUD, "the name says that the file is compressed (xz), and it is not; give --name x.raw"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "content",
)  # fmt: skip
def test_file_that_image2disk_would_fail_with_is_refused_and_leaves_nothing(
    name: str, content: bytes, reported: str, data: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert reported in refused(data, tmp_path / name)


def test_any_file_is_imported_on_demand(data: Path, tmp_path: Path) -> None:
    (tmp_path / "installer.iso").write_bytes(bytes(ISO))
    reported = imported(data, tmp_path / "installer.iso", "--any")
    assert files(data) == {"installer.iso": bytes(ISO)}
    assert ("imported as it is" in reported, "templateParams" in reported) == (True, False)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["nowhere.raw"], "nowhere.raw: No such file or directory"),
        (["/dev/null"], "/dev/null: is no file"),
        (["ftp://example.org/x.raw"], "is neither a file nor an http:// or https:// URL"),
        (["{site}/"], "the URL ends with no name; give --name"),
        (["{site}/x%20y.raw"], "'x y.raw': a file can't be served by this name; give --name"),
        (["{site}/disk.raw", "--name", "../x"], "'../x': a file can't be served by this name"),
        (["{site}/disk.raw", "--name", ".x"], "'.x': a file can't be served by this name"),
        (["{site}/other.raw"], "/other.raw: 404 Not Found"),
        (["{site}/disk.raw", "--sha256", "{site}/SUMS"], "/SUMS: 404 Not Found"),
    ],
)
def test_source_or_name_that_can_not_be_is_refused(words: list[str], reported: str, data: Path, site: Site) -> None:
    site.files["disk.raw"] = CLOUD
    assert reported in refused(data, *(word.replace("{site}", site.url) for word in words))


# --- downloads, room, what is there -------------------------------------------------------------------------------


def test_interrupted_download_continues_where_it_stopped(data: Path, site: Site) -> None:
    site.files["disk.raw"], site.cuts = CLOUD, [3 * MIB]
    pauses, reported = list[float](), list[str]()
    with opened(f"{site.url}/disk.raw", say=reported.append, is_proved=True, sleep=pauses.append) as source:
        stored = ImageDepot(data).put(source, "disk.raw", lambda *_: None, checksum=Checksum.of(SHA256))
    assert (site.asked, len(pauses)) == (["", f"bytes={3 * MIB}-"], 1)
    assert f"continues from byte {3 * MIB}" in reported[0]
    assert (stored.sha256, files(data)) == (SHA256, {"disk.raw": CLOUD})


def test_redirect_is_followed_and_the_name_is_that_of_the_url_which_was_given(data: Path, site: Site) -> None:
    site.files["a-7.raw"], site.redirect = CLOUD, "/a-7.raw"
    imported(data, f"{site.url}/latest.raw?token=secret")
    assert list(files(data)) == ["latest.raw"]


@pytest.mark.parametrize(("name", "content"), [("x.raw.gz", GZIP), ("x.raw", CLOUD)])
def test_content_encoding_is_undone_unless_it_names_the_compression_of_the_file(
    name: str, content: bytes, data: Path, site: Site
) -> None:
    site.files[name], site.coding = GZIP, "gzip"
    imported(data, f"{site.url}/{name}")
    assert files(data)[name] == content


def test_password_in_a_url_is_not_shown(data: Path, site: Site) -> None:
    message = refused(data, f"{site.url.replace('//', '//me:secret@')}/no.raw?sig=secret")
    assert ("404 Not Found" in message, "secret" in message) == (True, False)


def test_full_disk_is_reported_before_anything_is_fetched(
    data: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.files["disk.raw"] = CLOUD
    usage = namedtuple("usage", "total used free")(1, 1, 66 * MIB)  # type: ignore[call-arg]
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    message = refused(data, f"{site.url}/disk.raw")
    assert "files: 8 MB and a reserve of 67 MB are needed there, and 69 MB are free; `tinkedge image rem" in message


def test_file_that_is_there_stays_unless_it_is_to_be_replaced(data: Path, tmp_path: Path) -> None:
    source = tmp_path / "disk.raw"
    source.write_bytes(CLOUD)
    imported(data, source)
    newer = gpt_image((1, LINUX, "", 1, 8, ext4("new")))
    source.write_bytes(newer)
    assert "disk.raw: is there already. --force replaces it; --name gives" in refused(data, source)
    wrong = hashlib.sha256(newer).hexdigest()
    assert "is there already, with another checksum" in refused(data, source, "--sha256", wrong)
    imported(data, source, "--force")
    assert files(data) == {"disk.raw": newer}


def test_file_that_is_there_with_the_checksum_is_not_fetched_again(data: Path, site: Site) -> None:
    site.files["disk.raw"] = CLOUD
    first = imported(data, f"{site.url}/disk.raw", "--sha256", SHA256)
    again = imported(data, f"{site.url}/disk.raw", "--sha256", SHA256)
    assert again.replace("was there already, with this checksum; ", "") == first
    assert len(site.asked) == 1


def test_files_are_listed_and_removed(data: Path, tmp_path: Path) -> None:
    empty = run(data, "list")
    assert (empty.exit_code, "has no files" in empty.stderr) == (0, True)
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    imported(data, tmp_path / "disk.raw")
    (data / "files" / ".partial").touch()
    listed = run(data, "list").stdout.splitlines()
    assert [line.split()[:3] for line in listed] == [["disk.raw", "8", "MB"]]
    assert run(data, "remove", "disk.raw").exit_code == 0
    for name in ("disk.raw", ".partial", "../token"):
        missing = run(data, "remove", name)
        assert (missing.exit_code, "there is no such file; `tinkedge image list`" in missing.stderr) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
def test_files_that_root_imports_belong_to_the_owner_of_the_data_directory(tmp_path: Path, site: Site) -> None:
    site.files["disk.raw"] = CLOUD
    (tmp_path / "root.raw").write_bytes(CLOUD)
    (tmp_path / "root.raw").chmod(0o600)
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chown(directory, 65534, 65534)
        for source in (f"{site.url.replace('127.0.0.1', 'localhost')}/disk.raw", tmp_path / "root.raw"):
            imported(Path(directory), source)
        there = Path(directory) / "files"
        assert {path.name: path.stat().st_uid for path in there.iterdir()} == dict.fromkeys(
            ("disk.raw", "root.raw"), 65534
        )


def test_edge_that_is_not_known_is_left_open(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk.raw").write_bytes(CLOUD)
    words = ["image", "import", str(tmp_path / "disk.raw"), "--data-dir", str(data), "--config", os.devnull]
    result = CliRunner().invoke(main, [*words, "--interface", "none0"])
    assert "    image: http://EDGE:7080/files/disk.raw\n" in result.stdout
    assert "EDGE stands for the address of the edge" in result.stderr
