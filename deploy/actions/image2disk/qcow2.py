"""Reader for qcow2 images that arrive in one pass over the network (QEMU's "Qcow2 Image File Format").

    header -> L1 table: offsets of the L2 tables -> L2 tables: which cluster of the file is which cluster of the disk

A table must come before the clusters that it names. `qemu-img convert` writes images in this order. An image that a
machine has run from may have another order: the reader rejects it at the first cluster that is out of order. Clusters
that no table names are zero on the disk.

Memory is bounded to some 40 MiB, whatever the image contains. A named cluster takes 8 bytes until it arrives
(`_Pending`). Zeros are written as soon as a table has named them. Compressed clusters are inflated one by one from the
last three clusters of the file, even if many of them share bytes.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from image2disk.disk import Disk
from image2disk.errors import ActionError
from image2disk.fit import refuse_too_large

MAGIC: Final = b"QFI\xfb"
MAX_PENDING: Final = 2 << 20
"""Maximum number of tables and clusters that are named and have not arrived: 128 GiB of clusters of the usual size."""
MAX_RUNS: Final = 64
"""Maximum number of ascending runs of these numbers. There is one run if the file follows the order of the tables."""
_SLICE: Final = 1 << 16
"""Number of table entries that are sorted at a time."""
_MAX_L1_BYTES: Final = 32 << 20
"""QEMU's own limit."""
_WINDOW: Final = 3
"""Number of file clusters that are kept: a compressed cluster begins anywhere and has the bytes of at most two."""
_HEADER: Final = struct.Struct(">4sIQIIQIIQQIIQ")
_HEADER_3: Final = struct.Struct(">QQQII")
_DIRTY, _DAMAGED, _EXTERNAL, _COMPRESSION, _EXTENDED = (1 << bit for bit in range(5))
_OFFSET: Final = 0x00FF_FFFF_FFFF_FE00
_COMPRESSED: Final = 1 << 62
_ZERO: Final = 1
_MOST_PARTS: Final = 4096
_MAX_EARLY_ZEROS: Final = 1 << 17
"""Maximum number of offsets that are kept: 1 MiB."""
_HEAD_BYTES: Final = 8192
"""A first cluster of this size contains the GPT header for sectors of 512 and of 4096 bytes."""
_REMEDY: Final = "make it again with `qemu-img convert -O qcow2`, or serve it raw and compressed"


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a qcow2 file. `size` is the disk's size in bytes; `number_bits` is the width of a cluster
    number."""

    cluster_bits: int
    size: int
    l1_offset: int
    l1_entries: int
    may_be_zero: bool

    @property
    def number_bits(self) -> int:
        return (self.size >> self.cluster_bits).bit_length()


class _Pending:
    """A queue of expected numbers below 2**64, in ascending runs of 8 bytes a number."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.numbers) - run.at for run in self._runs)

    def add(self, numbers: list[int]) -> bool:
        """Add at most `_SLICE` expected numbers. Return False if that would make more than `MAX_RUNS` runs."""
        if not numbers:
            return True
        numbers.sort()
        run = next((run for run in self._runs if run.numbers[-1] <= numbers[0]), None)
        if run is None:
            if len(self._runs) == MAX_RUNS:
                return False
            run = _Run(array("Q"))
            self._runs.append(run)
        run.numbers.extend(numbers)
        return True

    def pop(self, end: int) -> int | None:
        """Remove and return the smallest number. Return None if no number is below `end`."""
        run = min(self._runs, key=_Run.head, default=None)
        if run is None or (number := run.head()) >= end:
            return None
        run.at += 1
        if run.at == len(run.numbers):
            self._runs.remove(run)
        elif run.at == _SLICE // 8:
            del run.numbers[: run.at]
            run.at = 0
        return number


@dataclass(slots=True, eq=False)
class _Run:
    """A run of ascending numbers. The numbers before index `at` have arrived."""

    numbers: array[int]
    at: int = 0

    def head(self) -> int:
        return self.numbers[self.at]


class Qcow2:
    """Writes the disk that the file describes to `disk`; `name` is the file's, for messages."""

    def __init__(
        self, name: str, disk: Disk, check: Callable[[bytes, int], object] = lambda _head, _size: None
    ) -> None:
        """Take a `check` of the first cluster and the size of the disk in the image; it may raise ActionError."""
        self._name = name
        self._check_head = check
        self._is_begun = False
        self._early_zeros = array("Q")
        self._disk = disk
        self._l1_read = 0
        # Keyed by the first file cluster: tables and plain clusters. Keyed by the byte offset: compressed clusters.
        self._plain = _Pending()
        self._compressed = _Pending()
        self._window: deque[bytes] = deque(maxlen=_WINDOW)
        self._inflated: tuple[int, bytes] = (-1, b"")
        self._zeros = (0, 0)
        self._index = 0
        self.size = 0

    def write(self, chunks: Iterator[bytes]) -> None:
        """Write the whole file. Raises ActionError (ImageDamaged, ImageUnsupported, NotStreamable, WriteFailed)."""
        pieces = _Pieces(chunks)
        head = pieces.take(_HEADER.size + _HEADER_3.size + 8)
        header = self._read_header(head)
        self.size, bytes_each = header.size, 1 << header.cluster_bits
        cluster = head + pieces.take(bytes_each - len(head)) if len(head) < bytes_each else head
        pieces.put_back(cluster[bytes_each:])
        cluster = cluster[:bytes_each]
        while cluster:
            self._take(header, cluster)
            self._index += 1
            cluster = pieces.take(bytes_each)
        self._end(header)

    # --- the header ---

    def _read_header(self, head: bytes) -> _Header:
        if len(head) < _HEADER.size or not head.startswith(MAGIC):
            raise self._damaged("it has no header")
        (_, version, backing, _, bits, size, encryption, l1_entries, l1_offset, *_) = _HEADER.unpack_from(head)
        if version not in (2, 3):
            raise self._unsupported(f"it is of version {version}, not 2 or 3")
        if backing:
            raise self._unsupported("it has a backing file, which would be missing")
        if encryption:
            raise self._unsupported("it is encrypted")
        features = compression = 0
        if version == 3:
            features, _, _, _, length = _HEADER_3.unpack_from(head.ljust(_HEADER.size + _HEADER_3.size), _HEADER.size)
            compression = head[104] if length > 104 and len(head) > 104 else 0
        self._check(features, compression)
        if not 9 <= bits <= 21:
            raise self._damaged(f"its cluster_bits are {bits}, not 9 to 21")
        if not size:
            raise self._damaged("its size is 0")
        if l1_entries * 8 > _MAX_L1_BYTES:
            raise self._damaged(f"its l1_size is {l1_entries}, more than {_MAX_L1_BYTES // 8}")
        if not l1_offset or l1_offset % (1 << bits):
            raise self._damaged(f"its l1_table_offset is {l1_offset}, which is not where a cluster begins")
        refuse_too_large(self._name, size, self._disk.name, self._disk.size)
        needed = -(-size // (1 << (2 * bits - 3)))
        if l1_entries < needed:
            raise self._damaged(f"its l1_size is {l1_entries}: shorter than the table of its disk, {needed}")
        return _Header(bits, size, l1_offset, needed, version == 3)

    def _check(self, features: int, compression: int) -> None:
        if features & _DAMAGED:
            raise self._damaged("QEMU has marked it so")
        if features & _EXTERNAL:
            raise self._unsupported("its data are in another file")
        if features & _EXTENDED:
            raise self._unsupported("its clusters have parts (extended_l2)")
        if features & ~(_DIRTY | _COMPRESSION):
            raise self._unsupported("it has features that are not known here")
        if compression:
            raise self._unsupported("its clusters are compressed with zstd, not zlib")

    # --- clusters, in the order of the file ---

    def _take(self, header: _Header, cluster: bytes) -> None:
        at = self._index << header.cluster_bits
        self._window.append(cluster)
        self._inflate_until(header, self._index + 2 - _WINDOW)
        found = self._due(header)
        if header.l1_offset <= at < header.l1_offset + header.l1_entries * 8:
            if found is not None:
                raise self._damaged(f"the cluster at {at} is named by a table, and part of the L1 table")
            self._read_l1(header, cluster)
        elif found is not None:
            is_table, number = found
            if is_table:
                self._read_l2(header, number, cluster)
            else:
                self._put(header, number, cluster)

    def _due(self, header: _Header) -> tuple[bool, int] | None:
        """Identify this cluster of the file.

        Return (True, number of its L1 entry) for a table, (False, number of the disk's cluster) for data, and None if
        no table names the cluster.
        """
        bits = header.number_bits
        end = (self._index + 1) << (bits + 1)
        packed = self._plain.pop(end)
        if packed is None:
            return None
        if self._plain.pop(end) is not None:
            raise self._damaged(f"the cluster at {self._index << header.cluster_bits} is named twice")
        return bool(packed >> bits & 1), packed & ((1 << bits) - 1)

    def _read_l1(self, header: _Header, part: bytes) -> None:
        span = 1 << (2 * header.cluster_bits - 3)
        entries = part[: (header.l1_entries - self._l1_read) * 8]
        if len(entries) % 8:
            raise self._cut_off()
        for first in range(0, len(entries), _SLICE * 8):
            tables = []
            for (entry,) in struct.iter_unpack(">Q", entries[first : first + _SLICE * 8]):
                number, offset = self._l1_read, entry & _OFFSET
                self._l1_read += 1
                if not offset:
                    self._is_zero(number * span, min((number + 1) * span, header.size))
                else:
                    self._must_come(header, offset, "table")
                    tables.append(self._packed(header, offset, number, is_table=True))
            self._await(self._plain, tables)

    def _read_l2(self, header: _Header, l1_number: int, table: bytes) -> None:
        bits = header.cluster_bits
        if len(table) != 1 << bits:
            raise self._cut_off()
        first, count = l1_number << (bits - 3), -(-header.size // (1 << bits))
        entries = table[: (count - first) * 8]
        for at in range(0, len(entries), _SLICE * 8):
            self._read_entries(header, first + at // 8, entries[at : at + _SLICE * 8])

    def _read_entries(self, header: _Header, first: int, entries: bytes) -> None:
        """Read entries of an L2 table. The first entry belongs to the disk's cluster `first`."""
        bits, plain, compressed = header.cluster_bits, list[int](), list[int]()
        start_mask = (1 << (70 - bits)) - 1
        for number, (entry,) in enumerate(struct.iter_unpack(">Q", entries), first):
            if entry & _COMPRESSED:
                start = entry & start_mask
                self._must_come(header, start, "cluster", aligned=False)
                compressed.append(self._packed_start(header, start, number))
            elif not (offset := entry & _OFFSET) or (header.may_be_zero and entry & _ZERO):
                self._is_zero(number << bits, min((number + 1) << bits, header.size))
            else:
                self._must_come(header, offset, "cluster")
                plain.append(self._packed(header, offset, number, is_table=False))
        self._await(self._plain, plain)
        self._await(self._compressed, compressed)

    def _packed(self, header: _Header, offset: int, number: int, *, is_table: bool) -> int:
        bits = header.number_bits
        packed = (offset >> header.cluster_bits << 1 | is_table) << bits | number
        if packed >> 64:
            raise self._not_streamable(f"the {'table' if is_table else 'cluster'} at {offset} is too far into the file")
        return packed

    def _packed_start(self, header: _Header, start: int, number: int) -> int:
        packed = start << header.number_bits | number
        if packed >> 64:
            raise self._not_streamable(f"the cluster at {start} is too far into the file")
        return packed

    def _await(self, pending: _Pending, numbers: list[int]) -> None:
        if len(self._plain) + len(self._compressed) + len(numbers) > MAX_PENDING:
            raise self._not_streamable(f"its tables name more than {MAX_PENDING} clusters before these come")
        if not pending.add(numbers):
            raise self._not_streamable("its clusters come in another order than its tables name them")

    def _must_come(self, header: _Header, offset: int, what: str, *, aligned: bool = True) -> None:
        if aligned and offset % (1 << header.cluster_bits):
            raise self._damaged(f"the {what} at {offset} does not begin where a cluster does")
        if offset >> header.cluster_bits <= self._index:
            at = self._index << header.cluster_bits
            article = "a" if what == "table" else "the"
            raise self._not_streamable(f"its table at {at} comes after {article} {what} at {offset}, which it names")

    # --- compressed clusters ---

    def _inflate_until(self, header: _Header, end: int) -> None:
        """Write the compressed clusters that begin before the cluster `end` of the file."""
        bits = header.number_bits
        limit = max(end, 0) << (header.cluster_bits + bits)
        if (packed := self._compressed.pop(limit)) is None:
            return
        first = (self._index + 1 - len(self._window)) << header.cluster_bits
        window = memoryview(b"".join(self._window))
        while packed is not None:
            start, number = packed >> bits, packed & ((1 << bits) - 1)
            if start != self._inflated[0]:
                self._inflated = start, self._inflate(header, start, window[start - first :])
            self._put(header, number, self._inflated[1])
            packed = self._compressed.pop(limit)

    def _inflate(self, header: _Header, start: int, content: memoryview) -> bytes:
        """Return the cluster that the compressed bytes at the start of `content` contain."""
        length = 1 << header.cluster_bits
        if not content:
            raise self._cut_off()
        inner = zlib.decompressobj(wbits=-15)
        try:
            # Most compressed clusters are shorter than one cluster. zlib copies the input that it does not need.
            whole = inner.decompress(content[:length], length)
            if len(whole) < length and not inner.eof:
                whole += inner.decompress(inner.unconsumed_tail + content[length:], length - len(whole))
        except zlib.error as error:
            raise self._damaged(f"the cluster at {start}: {error}") from None
        if len(whole) != length:
            raise self._damaged(f"the cluster at {start} has {len(whole)} bytes, not {length}")
        return whole

    # --- the disk ---

    def _put(self, header: _Header, number: int, content: bytes) -> None:
        guest, whole = number << header.cluster_bits, content.ljust(1 << header.cluster_bits, b"\0")
        if number == 0:
            if len(whole) >= _HEAD_BYTES:
                self._check_head(whole, header.size)
            self._begin()
        self._disk.write(guest, memoryview(whole)[: header.size - guest])

    def _is_zero(self, start: int, end: int) -> None:
        """Zero a range of the disk, together with the pending zeros before it if the two ranges are adjacent."""
        if self._zeros[1] == start:
            self._zeros = self._zeros[0], end
        else:
            self._write_zeros()
            self._zeros = start, end

    def _write_zeros(self) -> None:
        start, end = self._zeros
        if end <= start:
            return
        # Nothing is written before the first cluster has been checked: its tables, with the zeros, come first.
        if not self._is_begun and start > 0 and len(self._early_zeros) < _MAX_EARLY_ZEROS:
            self._early_zeros.extend((start, end))
        else:
            self._begin()
            self._disk.zero(start, end)

    def _begin(self) -> None:
        """Write the zeros that had to wait for the first cluster."""
        self._is_begun, early, self._early_zeros = True, self._early_zeros, array("Q")
        for at in range(0, len(early), 2):
            self._disk.zero(early[at], early[at + 1])

    def _end(self, header: _Header) -> None:
        # The file may omit the last sectors of its last compressed clusters.
        self._index -= 1
        self._inflate_until(header, self._index + 1)
        if self._l1_read < header.l1_entries or len(self._plain) or len(self._compressed):
            raise self._cut_off()
        self._write_zeros()
        self._begin()

    # --- words ---

    def _cut_off(self) -> ActionError:
        return self._damaged("it ends before what its tables name")

    def _damaged(self, why: str) -> ActionError:
        return ActionError("ImageDamaged", f"{self._name}: a damaged qcow2 image: {why}")

    def _unsupported(self, why: str) -> ActionError:
        return ActionError("ImageUnsupported", f"{self._name}: a qcow2 image that can't be written: {why}; {_REMEDY}")

    def _not_streamable(self, why: str) -> ActionError:
        return ActionError("NotStreamable", f"{self._name}: a qcow2 image that can't be streamed: {why}; {_REMEDY}")


class _Pieces:
    """Chunks of any length, as pieces of a given one."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")

    def take(self, length: int) -> bytes:
        """Return `length` bytes; fewer at the end."""
        if len(self._chunk) >= length:
            piece, self._chunk = self._chunk[:length], self._chunk[length:]
            return bytes(piece)
        parts, left = list[bytes | memoryview](), length
        while left:
            if not self._chunk:
                more = next(self._chunks, None)
                if more is None:
                    break
                self._chunk = memoryview(more)
            part, self._chunk = self._chunk[:left], self._chunk[left:]
            parts.append(part)
            left -= len(part)
            if len(parts) == _MOST_PARTS:  # A server may send single bytes, and a memoryview takes 200 bytes.
                parts = [b"".join(parts)]
        return b"".join(parts)

    def put_back(self, piece: bytes) -> None:
        """Put a piece before all others."""
        if piece:
            self._chunk = memoryview(piece + bytes(self._chunk))
