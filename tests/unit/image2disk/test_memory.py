"""Hostile images that use memory by the clusters of their tables, by decompression, or by their manifests."""

import bz2
import itertools
import lzma
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from image2disk.errors import ActionError

pytestmark = pytest.mark.long

MOST_BYTES = 64 << 20
"""Memory limit of the code above the interpreter's own memory."""
LIMIT_BYTES = 768 << 20
"""Memory limit of the process."""
DISK_BYTES = 1 << 40

CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({limit}, {limit}))
sys.path[:0] = {path!r}
from image2disk import registry, run
from image2disk.disk import Disk
from image2disk.errors import ActionError
from image2disk.qcow2 import Qcow2
from tests.unit.image2disk import test_memory as images

class Sink(Disk):
    'A disk that forgets what is written to it.'
    def __init__(self):
        self.name, self.size, self.written, self.zeroed = "/dev/test", {disk}, 0, 0
    def write(self, offset, data):
        self.written += len(data)
    def zero(self, start, end):
        self.zeroed += end - start

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

before, disk, said = peak(), Sink(), "written"
try:
    images.{name}(disk)
except ActionError as error:
    said = f"{{error.reason}}: {{error.message}}"
except MemoryError:
    said = "out of memory"
print(peak() - before, disk.written, disk.zeroed, said)
"""


def grown(name, content=b""):
    """Run the function `name` of this module in a process of its own, with `content` as its standard input.

    Return the maximum growth of its memory in bytes, the number of written and of zeroed bytes of the disk, and the
    error.
    """
    actions, root = Path(__file__).parents[3] / "deploy" / "actions", Path(__file__).parents[3]
    script = CHILD.format(limit=LIMIT_BYTES, disk=DISK_BYTES, path=[str(actions), str(root)], name=name)
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=content, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    memory, written, zeroed, said = done.stdout.decode().strip().split(" ", 3)
    return int(memory), int(written), int(zeroed), said


# --- images, in the child ---


def header(bits, size, l1_entries):
    fields = (b"QFI\xfb", 3, 0, 0, bits, size, 0, l1_entries, 1 << bits, 0, 0, 0, 0)
    return struct.pack(">4sIQIIQIIQQIIQ", *fields).ljust(1 << bits, b"\0")


def write(disk, chunks):
    from image2disk.qcow2 import Qcow2

    Qcow2("x.qcow2", disk).write(chunks)


def tables(bits, count, entries_of):
    """Header, L1 and L2 tables of an image whose tables come first; `entries_of(table)` gives the entries of each."""
    each = 1 << (bits - 3)
    l1_clusters = -(-count * 8 // (1 << bits))
    yield header(bits, count * each << bits, count)
    first = 1 + l1_clusters
    l1 = b"".join(struct.pack(">Q", (first + number) << bits) for number in range(count))
    yield l1.ljust(l1_clusters << bits, b"\0")
    for number in range(count):
        yield struct.pack(f">{each}Q", *entries_of(number))


def packed(content):
    packer = zlib.compressobj(wbits=-12)
    return packer.compress(content) + packer.flush()


def compressed_clusters_of_the_same_sectors(disk):
    """64 tables, 4 MiB: each of the disk's 524,288 clusters is in the same 128 KiB of the file."""
    start = 66 << 16
    entry = 1 << 62 | 255 << 54 | start
    data = packed(os.urandom(30_000).ljust(1 << 16, b"\0")).ljust(3 << 16, b"\0")
    write(disk, itertools.chain(tables(16, 64, lambda _: [entry] * 8192), [data]))


def compressed_clusters_that_overlap(disk):
    """Each cluster begins a byte after the previous one and claims 128 KiB."""
    first = 2 + (1 << 3)
    stream = packed(bytes(1 << 16))
    data = (stream * ((4 << 16) // len(stream)))[: 4 << 16].ljust(6 << 16, b"\0")
    starts = range(0, 8 * 8192 * len(stream), len(stream))

    def entries(table):
        here = starts[table * 8192 : (table + 1) * 8192]
        return [1 << 62 | 255 << 54 | (first << 16) + start % (3 << 16) // len(stream) * len(stream) for start in here]

    write(disk, itertools.chain(tables(16, 8, entries), [data]))


def more_clusters_than_may_be_waited_for(disk):
    def entries(table):
        return range((700 + table * 8192) << 16, (700 + (table + 1) * 8192) << 16, 1 << 16)

    write(disk, tables(16, 600, entries))


def tables_that_do_not_come(disk):
    """An L1 table of 16 MB whose two million tables do not arrive."""
    count, piece = 2_000_000, 10_000
    l1 = (
        struct.pack(f">{piece}Q", *range((40_000 + at) << 9, (40_000 + at + piece) << 9, 512))
        for at in range(0, count, piece)
    )
    write(disk, itertools.chain([header(9, count << 15, count)], l1))


def clusters_in_a_disorder(disk):
    """Each table names clusters from all over the file."""

    def entries(table):
        return range((300 + table) << 16, (300 + table + 8192 * 255) << 16, 255 << 16)

    write(disk, tables(16, 255, entries))


def zeros_with_gaps(disk):
    """Every other cluster is zero: half a million ranges."""
    entries = [0, 1 << 62 | 130 << 16] * 4096
    data = packed(bytes(1 << 16)).ljust(3 << 16, b"\0")
    write(disk, itertools.chain(tables(16, 128, lambda _: entries), [data]))


def far_cluster(disk):
    write(disk, tables(9, 1 << 15, lambda _: [1 << 62 | 1 << 60] * 64))


def bytes_one_by_one(disk):
    """A server that sends each byte as a chunk of its own."""
    content = header(20, 1 << 30, 1)
    write(disk, (content[at : at + 1] for at in range(len(content))))


def manifest_of_empty_lists(disk):
    import hashlib
    import io
    import types

    from image2disk.registry import Registry
    from image2disk.settings import Settings

    content = b"[" + b"[]," * 1_390_000 + b"[]]"

    class Web:
        def get_as(self, url, headers, authorization):
            response = io.BytesIO(content)
            response.length = 0
            return response

        def content(self, response, most):
            return response.read(most + 1)

    digest = hashlib.sha256(content).hexdigest()
    settings = Settings(f"oci://registry/x@sha256:{digest}", "/dev/test")
    Registry(Web(), settings, say=types.SimpleNamespace).blob()


def bomb(disk):
    """Many zeros in few bytes. The parent compresses them, because that takes memory, too."""
    from image2disk.pipeline import ahead
    from image2disk.unpacking import kind_of, unpacked

    content = sys.stdin.buffer.read()
    for chunk in ahead(unpacked(ahead(iter([content])), kind_of(content), "x")):
        disk.write(0, chunk)


# --- what becomes of them ---


@pytest.mark.parametrize(
    ("name", "outcome", "written"),
    [
        ("compressed_clusters_of_the_same_sectors", "written", 64 * 8192 << 16),
        ("compressed_clusters_that_overlap", "written", 8 * 8192 << 16),
        (
            "more_clusters_than_may_be_waited_for",
            "NotStreamable: x.qcow2: a qcow2 image that can't be streamed: its",
            0,
        ),
        ("tables_that_do_not_come", "ImageDamaged: x.qcow2: a damaged qcow2 image: it ends before", 0),
        ("clusters_in_a_disorder", "NotStreamable: x.qcow2: a qcow2 image that can't be streamed: its clusters", 0),
        ("zeros_with_gaps", "written", 128 * 4096 << 16),
        ("far_cluster", "NotStreamable: x.qcow2: a qcow2 image that can't be streamed: the cluster at", 0),
        ("bytes_one_by_one", "ImageDamaged: x.qcow2: a damaged qcow2 image: it ends before", 0),
        ("manifest_of_empty_lists", "ImageUnsupported: oci://", 0),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_memory_is_bounded_whatever_an_image_contains(name, outcome, written):
    memory, was_written, _, said = grown(name)
    assert said.startswith(outcome)
    assert was_written == written
    assert memory < MOST_BYTES, f"{memory >> 20} MiB"


@pytest.mark.parametrize("kind", ["gzip", "xz", "bzip2", "zstd"])
def test_memory_is_bounded_whatever_compressed_bytes_become(kind):
    packers = {
        "gzip": lambda: zlib.compressobj(9, wbits=31),
        "xz": lambda: lzma.LZMACompressor(preset=1),
        "bzip2": bz2.BZ2Compressor,
    }
    if kind == "zstd":
        content = subprocess.run(["zstd", "-1cq"], input=bytes(128 << 20), capture_output=True, check=True).stdout
    else:
        packer = packers[kind]()
        content = b"".join(packer.compress(bytes(1 << 20)) for _ in range(128)) + packer.flush()
    memory, written, _, said = grown("bomb", content)
    assert (said, written) == ("written", 128 << 20)
    assert memory < MOST_BYTES, f"{memory >> 20} MiB"


def test_compressed_file_that_wants_a_larger_window_is_refused(site, target):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 192 << 20, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
    # The header alone names the window size.
    site.content = lzma.compress(b"x", lzma.FORMAT_XZ, filters=filters)
    with pytest.raises(ActionError, match="Memory usage limit") as caught:
        target.copy(f"{site.url}/x.img.xz", COMPRESSED="true")
    assert caught.value.reason == "DecompressFailed"
