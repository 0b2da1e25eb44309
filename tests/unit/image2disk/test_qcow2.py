"""qcow2 as it streams, in files made by hand; tests/interop has QEMU's own."""

import struct

import pytest
from image2disk.errors import ActionError

from tests.unit.image2disk.conftest import CLUSTER, DISK, SIZE, header, packed


def table(*entries):
    return b"".join(struct.pack(">Q", entry) for entry in entries).ljust(CLUSTER, b"\0")


def compressed(start, length):
    sectors = (start % 512 + length + 511) // 512 - 1
    return 1 << 62 | sectors << 54 | start


def test_clusters_go_where_the_tables_say_and_what_they_do_not_name_is_zero(site, target, random_bytes):
    one, last = random_bytes(CLUSTER), random_bytes(CLUSTER)
    site.content = header() + table(2 * CLUSTER) + table(4 * CLUSTER, 0, 1, 3 * CLUSTER) + last + one
    size, _ = target.copy(f"{site.url}/x.qcow2", CLEAR_DISK="false")
    assert size == DISK
    content = target.content
    assert content[:CLUSTER] == one
    assert content[CLUSTER : 3 * CLUSTER] == bytes(2 * CLUSTER)
    assert content[3 * CLUSTER : DISK] == last[:1000]
    assert content[DISK:] == b"\xa5" * (SIZE - DISK)


def test_compressed_clusters_over_the_borders_of_clusters_and_with_sectors_beyond_the_end(site, target, random_bytes):
    contents = [random_bytes(60_000).ljust(CLUSTER, b"\0"), random_bytes(65_000).ljust(CLUSTER, b"\1"), b"x" * CLUSTER]
    at, entries, data = 3 * CLUSTER, [], b""
    for content in contents:
        entries.append(compressed(at + len(data), len(packed(content))))
        data += packed(content)
    site.content = header() + table(2 * CLUSTER) + table(*entries) + data
    target.copy(f"{site.url}/x.qcow2")
    assert target.content[: 3 * CLUSTER] == b"".join(contents)
    assert target.content[3 * CLUSTER : DISK] == bytes(1000)


@pytest.mark.parametrize(
    ("content", "reason", "said"),
    [
        (header(l1=2 * CLUSTER) + bytes(CLUSTER) + table(CLUSTER), "NotStreamable", "comes after a table at 65536"),
        (header() + table(3 * CLUSTER) + bytes(CLUSTER) + table(2 * CLUSTER), "NotStreamable", "qemu-img convert"),
        (header(backing=200), "ImageUnsupported", "backing file"),
        (header(crypt=1), "ImageUnsupported", "encrypted"),
        (header(version=9), "ImageUnsupported", "version 9"),
        (header(incompatible=4), "ImageUnsupported", "another file"),
        (header(incompatible=8, compression=1), "ImageUnsupported", "zstd"),
        (header(incompatible=16), "ImageUnsupported", "extended_l2"),
        (header(incompatible=1 << 40), "ImageUnsupported", "not known here"),
        (header(incompatible=2), "ImageDamaged", "QEMU has marked it"),
        (header(bits=30), "ImageDamaged", "its cluster_bits are 30, not 9 to 21"),
        (header(size=0), "ImageDamaged", "its size is 0"),
        (header(l1_size=0), "ImageDamaged", "its l1_size is 0: shorter"),
        (header(l1_size=1 << 30), "ImageDamaged", "its l1_size is 1073741824, more than 4194304"),
        (header(l1=0), "ImageDamaged", "its l1_table_offset is 0"),
        (header(l1=CLUSTER + 512), "ImageDamaged", "its l1_table_offset is 66048"),
        (header(size=SIZE + 1), "DiskUnsuitable", f"has {SIZE + 1} bytes, and /dev/test has {SIZE}"),
        (header()[:60], "ImageDamaged", "no header"),
        (header() + table(2 * CLUSTER), "ImageDamaged", "ends before"),
        (header() + table(2 * CLUSTER) + table(3 * CLUSTER), "ImageDamaged", "ends before"),
        (header() + table(2 * CLUSTER) + table(3 * CLUSTER + 512), "ImageDamaged", "begin where a cluster"),
        (header() + table(2 * CLUSTER) + table(*[3 * CLUSTER] * 2) + bytes(CLUSTER), "ImageDamaged", "named twice"),
        (header() + table(2 * CLUSTER) + table(compressed(3 * CLUSTER, 9)) + b"\xff" * 512, "ImageDamaged", "cluster"),
        (header() + table(2 * CLUSTER) + table(compressed(3 * CLUSTER, 9)), "ImageDamaged", "ends before"),
        (header() + table(2 * CLUSTER) + table(compressed(1 << 53, 9), 1 << 50), "ImageDamaged", "ends before"),
    ],
)  # fmt: skip
def test_what_can_not_be_written_is_refused_with_a_reason(site, target, content, reason, said):
    site.content = content
    with pytest.raises(ActionError) as caught:
        target.copy(f"{site.url}/x.qcow2")
    assert (caught.value.reason, said in caught.value.message) == (reason, True), caught.value


def test_named_format_counts_and_not_what_the_file_begins_with(site, target):
    site.content = header()
    target.copy(f"{site.url}/x.qcow2", IMG_FORMAT="raw")
    assert target.content[:CLUSTER] == site.content
    site.content = bytes(CLUSTER)
    with pytest.raises(ActionError, match="no header"):
        target.copy(f"{site.url}/x.img", IMG_FORMAT="qcow2")


def test_changed_qcow2_is_begun_anew(site, target, random_bytes):
    def image(content):
        return header() + table(2 * CLUSTER) + table(3 * CLUSTER, 4 * CLUSTER) + content

    other = random_bytes(2 * CLUSTER)
    site.content, site.cuts = image(random_bytes(2 * CLUSTER)), [4 * CLUSTER + 100]
    site.change = (2, image(other), '"two"')
    target.copy(f"{site.url}/x.qcow2")
    assert target.content[: 2 * CLUSTER] == other
