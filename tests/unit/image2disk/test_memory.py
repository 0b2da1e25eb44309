"""Hostile images that use memory by the clusters of their tables, by decompression, or by their manifests."""

import bz2
import hashlib
import io
import itertools
import lzma
import os
import resource
import struct
import subprocess
import sys
import types
import zlib
from pathlib import Path

import pytest
from image2disk.disk import Disk
from image2disk.errors import ActionError
from image2disk.qcow2 import Qcow2
from image2disk.registry import Registry
from image2disk.settings import Settings
from image2disk.unpacking import ahead, kind_of, unpacked

from tests.unit.image2disk.conftest import header, packed, zstd_frame

pytestmark = pytest.mark.long

MOST_BYTES = 24 << 20
"""Memory limit of the code above the interpreter's own memory."""
BOMB_BYTES = 2 * MOST_BYTES
ROOT = Path(__file__).parents[3]


class Sink(Disk):
    """A disk that forgets what is written to it."""

    def __init__(self):
        self.name, self.size, self.written = "/dev/test", 1 << 40, 0

    def write(self, offset, data):
        self.written += len(data)

    def zero(self, start, end):
        pass


def in_child(name):
    """Call the function `name` of this module; print the growth of the memory, the written bytes and the error."""

    def peak():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    resource.setrlimit(resource.RLIMIT_DATA, (768 << 20, 768 << 20))
    before, disk, said = peak(), Sink(), "written"
    try:
        globals()[name](disk)
    except ActionError as error:
        said = f"{error.reason}: {error.message}"
    except MemoryError:
        said = "out of memory"
    print(peak() - before, disk.written, said)


def grown(name, content=b""):
    """Return what `in_child` prints in a process of its own, with `content` as its standard input."""
    script = f"import sys; sys.path[:0] = {[str(ROOT / 'deploy' / 'actions'), str(ROOT)]}\n"
    script += f"from tests.unit.image2disk import test_memory; test_memory.in_child({name!r})"
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=content, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    memory, written, said = done.stdout.decode().strip().split(" ", 2)
    assert int(memory) < MOST_BYTES, f"{int(memory) >> 20} MiB"
    return int(written), said


# --- images, in the child ---


def write(disk, *parts):
    Qcow2("x.qcow2", disk).write(itertools.chain(*parts))


def tables(bits, count, entries_of):
    """Header, L1 and L2 tables of an image whose tables come first; `entries_of(table)` gives the entries of each."""
    each = 1 << (bits - 3)
    l1_clusters = -(-count * 8 // (1 << bits))
    yield header(bits=bits, size=count * each << bits, l1_size=count, l1=1 << bits)
    first = 1 + l1_clusters
    l1 = b"".join(struct.pack(">Q", (first + number) << bits) for number in range(count))
    yield l1.ljust(l1_clusters << bits, b"\0")
    for number in range(count):
        yield struct.pack(f">{each}Q", *entries_of(number))


def compressed_clusters_of_the_same_sectors(disk):
    """Each of the disk's 65,536 clusters is in the same 128 KiB of the file."""
    data = packed(os.urandom(30_000).ljust(1 << 16, b"\0")).ljust(3 << 16, b"\0")
    write(disk, tables(16, 8, lambda _: [1 << 62 | 255 << 54 | 10 << 16] * 8192), [data])


def compressed_clusters_that_overlap(disk):
    """Each cluster begins a byte after the previous one and claims 128 KiB."""
    first = 2 + (1 << 3)
    stream = packed(bytes(1 << 16))
    data = (stream * ((4 << 16) // len(stream)))[: 4 << 16].ljust(6 << 16, b"\0")
    starts = range(0, 8 * 8192 * len(stream), len(stream))

    def entries(table):
        here = starts[table * 8192 : (table + 1) * 8192]
        return [1 << 62 | 255 << 54 | (first << 16) + start % (3 << 16) // len(stream) * len(stream) for start in here]

    write(disk, tables(16, 8, entries), [data])


def more_clusters_than_may_be_waited_for(disk):
    write(disk, tables(16, 600, lambda table: range((700 + table * 8192) << 16, (8892 + table * 8192) << 16, 1 << 16)))


def tables_that_do_not_come(disk):
    """An L1 table of 4 MB whose half a million tables do not arrive."""
    count, piece = 500_000, 10_000
    places = range(40_000 << 9, (40_000 + count) << 9, 512)
    l1 = (struct.pack(f">{piece}Q", *places[at : at + piece]) for at in range(0, count, piece))
    write(disk, [header(bits=9, size=count << 15, l1_size=count, l1=512)], l1)


def clusters_in_a_disorder(disk):
    """Each table names clusters from all over the file."""
    write(disk, tables(16, 255, lambda table: range((300 + table) << 16, (300 + table + 8192 * 255) << 16, 255 << 16)))


def zeros_with_gaps(disk):
    """Every other cluster is zero: a quarter of a million ranges."""
    data = packed(bytes(1 << 16)).ljust(3 << 16, b"\0")
    write(disk, tables(16, 64, lambda _: [0, 1 << 62 | 66 << 16] * 4096), [data])


def far_cluster(disk):
    write(disk, tables(9, 1 << 15, lambda _: [1 << 62 | 1 << 60] * 64))


def bytes_one_by_one(disk):
    """A server that sends each byte as a chunk of its own."""
    content = header(bits=18, size=1 << 30, l1=1 << 18)
    write(disk, (content[at : at + 1] for at in range(len(content))))


def manifest_of_empty_lists(disk):
    content = b"[" + b"[]," * 1_390_000 + b"[]]"

    class Web:
        def get_as(self, url, headers, authorization):
            response = io.BytesIO(content)
            response.length = 0
            return response

        def content(self, response, most):
            return response.read(most + 1)

    settings = Settings(f"oci://registry/x@sha256:{hashlib.sha256(content).hexdigest()}", "/dev/test")
    Registry(Web(), settings, say=types.SimpleNamespace).blob()


def bomb(disk):
    """Many zeros in few bytes. The parent compresses them, because that takes memory, too."""
    content = sys.stdin.buffer.read()
    for chunk in ahead(unpacked(ahead(iter([content])), kind_of(content), "x")):
        disk.write(0, chunk)


# --- what becomes of them ---


@pytest.mark.parametrize(
    ("name", "outcome", "written"),
    [
        ("compressed_clusters_of_the_same_sectors", "written", 8 * 8192 << 16),
        ("compressed_clusters_that_overlap", "written", 8 * 8192 << 16),
        (
            "more_clusters_than_may_be_waited_for",
            "NotStreamable: x.qcow2: a qcow2 image that can't be streamed: its",
            0,
        ),
        ("tables_that_do_not_come", "ImageDamaged: x.qcow2: a damaged qcow2 image: it ends before", 0),
        ("clusters_in_a_disorder", "NotStreamable: x.qcow2: a qcow2 image that can't be streamed: its clusters", 0),
        ("zeros_with_gaps", "written", 64 * 4096 << 16),
        ("far_cluster", "NotStreamable: x.qcow2: a qcow2 image that can't be streamed: the cluster at", 0),
        ("bytes_one_by_one", "ImageDamaged: x.qcow2: a damaged qcow2 image: it ends before", 0),
        ("manifest_of_empty_lists", "ImageUnsupported: oci://", 0),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_memory_is_bounded_whatever_an_image_contains(name, outcome, written):
    was_written, said = grown(name)
    assert (said.startswith(outcome), was_written) == (True, written), said


PACKERS = {
    "gzip": lambda: zlib.compressobj(9, wbits=31),
    "xz": lambda: lzma.LZMACompressor(preset=1),
    "bzip2": bz2.BZ2Compressor,
}


@pytest.mark.parametrize("kind", [*PACKERS, "zstd"])
def test_memory_is_bounded_whatever_compressed_bytes_become(kind):
    content = zstd_frame(zeros=BOMB_BYTES)
    if kind in PACKERS:
        packer = PACKERS[kind]()
        content = b"".join(packer.compress(bytes(1 << 20)) for _ in range(BOMB_BYTES >> 20)) + packer.flush()
    assert grown("bomb", content) == (BOMB_BYTES, "written")
