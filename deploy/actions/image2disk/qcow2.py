"""qcow2, read from its first byte to its last, as it comes over the network (QEMU's "Qcow2 Image File Format").

    header -> L1 table: where the L2 tables are -> L2 tables: which cluster of the file is which of the disk

A table must come before the clusters that it names. What `qemu-img convert` writes is so; a file that a machine has run
from need not be, and is refused as soon as that shows. What no table names is zero on the disk.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from image2disk.disk import Disk
from image2disk.errors import ActionError

MAGIC: Final = b"QFI\xfb"
MAX_PENDING: Final = 4 << 20
"""Clusters that tables have named and that have not come yet: 256 GiB of them, of the usual size."""
_MAX_L1_BYTES: Final = 32 << 20
"""QEMU's own limit."""
_HEADER: Final = struct.Struct(">4sIQIIQIIQQIIQ")
_HEADER_3: Final = struct.Struct(">QQQII")
_DIRTY, _DAMAGED, _EXTERNAL, _COMPRESSION, _EXTENDED = (1 << bit for bit in range(5))
_OFFSET: Final = 0x00FF_FFFF_FFFF_FE00
_COMPRESSED: Final = 1 << 62
_ZERO: Final = 1
_SECTOR_BYTES: Final = 512
_REMEDY: Final = "make it anew with `qemu-img convert -O qcow2`, or serve it raw and compressed"


@dataclass(slots=True)
class _Extent:
    """A compressed cluster for `guest`: `left` bytes of it have not come yet."""

    start: int
    left: int
    guest: int
    parts: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Header:
    """`size` of the disk in bytes."""

    cluster_bits: int
    size: int
    l1_offset: int
    l1_entries: int
    may_be_zero: bool


class Qcow2:
    """Writes the disk that the file describes to `disk`; `name` is the file's, for messages."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._name = name
        self._disk = disk
        self._l1 = bytearray()
        self._l1_is_read = False
        self._tables: dict[int, int] = {}
        self._clusters: dict[int, int] = {}
        self._extents: defaultdict[int, list[_Extent]] = defaultdict(list)
        self._pending = 0
        self._zeros: list[tuple[int, int]] = []
        self._index = 0
        self.size = 0

    def write(self, chunks: Iterator[bytes]) -> None:
        """All of the file. Raises ActionError (ImageDamaged, ImageUnsupported, NotStreamable, WriteFailed)."""
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
        if not 9 <= bits <= 21 or not size or l1_entries * 8 > _MAX_L1_BYTES or l1_offset % (1 << bits):
            raise self._damaged("its header has no possible sizes")
        each = 1 << (2 * bits - 3)
        if l1_entries < -(-size // each):
            raise self._damaged("its table is shorter than its disk")
        if size > self._disk.size:
            message = f"its disk has {size} bytes, and {self._disk.name} has {self._disk.size}: No space left"
            raise ActionError("WriteFailed", f"{self._name}: {message}")
        return _Header(bits, size, l1_offset, -(-size // each), version == 3)

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
        needed = header.l1_entries * 8
        if not self._l1_is_read and header.l1_offset <= at < header.l1_offset + needed:
            self._l1 += cluster[: needed - len(self._l1)]
            if len(self._l1) == needed:
                self._read_l1(header)
        elif at in self._tables:
            self._read_l2(header, self._tables.pop(at), cluster)
        elif (guest := self._clusters.pop(at, None)) is not None:
            self._pending -= 1
            self._put(header, guest, cluster)
        if extents := self._extents.pop(self._index, None):
            self._take_compressed(header, at, cluster, extents)

    def _read_l1(self, header: _Header) -> None:
        self._l1_is_read = True
        span = 1 << (2 * header.cluster_bits - 3)
        for number, (entry,) in enumerate(struct.iter_unpack(">Q", self._l1)):
            offset = entry & _OFFSET
            if not offset:
                self._is_zero(number * span, min((number + 1) * span, header.size))
            else:
                self._must_come(header, offset, f"a table at {offset}")
                self._tables[offset] = number * span
        self._l1.clear()

    def _read_l2(self, header: _Header, base: int, table: bytes) -> None:
        bits, size = header.cluster_bits, header.size
        if len(table) != 1 << bits:
            raise self._cut_off()
        shift = 62 - (bits - 8)
        for number, (entry,) in enumerate(struct.iter_unpack(">Q", table)):
            guest = base + (number << bits)
            if guest >= size:
                break
            if entry & _COMPRESSED:
                start = entry & ((1 << shift) - 1)
                sectors = ((entry >> shift) & ((1 << (bits - 8)) - 1)) + 1
                self._must_come(header, start, f"the cluster at {start}", aligned=False)
                extent = _Extent(start, sectors * _SECTOR_BYTES - start % _SECTOR_BYTES, guest)
                self._extents[start >> bits].append(extent)
                self._name_one()
            elif not (offset := entry & _OFFSET) or (header.may_be_zero and entry & _ZERO):
                self._is_zero(guest, min(guest + (1 << bits), size))
            else:
                self._must_come(header, offset, f"the cluster at {offset}")
                if offset in self._clusters:
                    raise self._damaged(f"the cluster at {offset} is named twice")
                self._clusters[offset] = guest
                self._name_one()

    def _name_one(self) -> None:
        self._pending += 1
        if self._pending > MAX_PENDING:
            message = f"its tables name more than {MAX_PENDING} clusters before these come; {_REMEDY}"
            raise ActionError("NotStreamable", f"{self._name}: {message}")

    def _must_come(self, header: _Header, offset: int, what: str, *, aligned: bool = True) -> None:
        if aligned and offset % (1 << header.cluster_bits):
            raise self._damaged(f"{what} does not begin where a cluster does")
        if offset >> header.cluster_bits <= self._index:
            at = self._index << header.cluster_bits
            message = f"its table at {at} comes after {what}, which it names, so it can't be streamed; {_REMEDY}"
            raise ActionError("NotStreamable", f"{self._name}: {message}")

    def _take_compressed(self, header: _Header, at: int, cluster: bytes, extents: list[_Extent]) -> None:
        for extent in extents:
            start = max(extent.start - at, 0)
            part = cluster[start : start + extent.left]
            extent.parts.append(part)
            extent.left -= len(part)
            if extent.left and len(cluster) == 1 << header.cluster_bits:
                self._extents[self._index + 1].append(extent)
            else:
                self._inflate(header, extent)  # the last one's sectors may be more than the file has

    def _inflate(self, header: _Header, extent: _Extent) -> None:
        self._pending -= 1
        length = 1 << header.cluster_bits
        try:
            content = zlib.decompressobj(wbits=-15).decompress(b"".join(extent.parts), length)
        except zlib.error as error:
            raise self._damaged(f"the cluster at {extent.start}: {error}") from None
        if len(content) != length:
            raise self._damaged(f"the cluster at {extent.start} has {len(content)} bytes, not {length}")
        self._put(header, extent.guest, content)

    def _put(self, header: _Header, guest: int, content: bytes) -> None:
        whole = content.ljust(1 << header.cluster_bits, b"\0")
        self._disk.write(guest, memoryview(whole)[: header.size - guest])

    def _is_zero(self, start: int, end: int) -> None:
        if self._zeros and self._zeros[-1][1] == start:
            start = self._zeros.pop()[0]
        if end > start:
            self._zeros.append((start, end))

    def _end(self, header: _Header) -> None:
        for extents in list(self._extents.values()):  # those whose last sectors the file does not have
            for extent in extents:
                if not extent.parts:
                    raise self._cut_off()
                self._inflate(header, extent)
        if not self._l1_is_read or self._tables or self._clusters:
            raise self._cut_off()
        for start, end in self._zeros:
            self._disk.zero(start, end)

    # --- words ---

    def _cut_off(self) -> ActionError:
        return self._damaged("it ends before what its tables name")

    def _damaged(self, why: str) -> ActionError:
        return ActionError("ImageDamaged", f"{self._name}: a damaged qcow2 image: {why}")

    def _unsupported(self, why: str) -> ActionError:
        return ActionError("ImageUnsupported", f"{self._name}: a qcow2 image that can't be written: {why}; {_REMEDY}")


class _Pieces:
    """Chunks of any length, as pieces of a given one."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")

    def take(self, length: int) -> bytes:
        """So many bytes; fewer at the end."""
        if len(self._chunk) >= length:
            piece, self._chunk = self._chunk[:length], self._chunk[length:]
            return bytes(piece)
        parts, left = [], length
        while left:
            if not self._chunk:
                more = next(self._chunks, None)
                if more is None:
                    break
                self._chunk = memoryview(more)
            part, self._chunk = self._chunk[:left], self._chunk[left:]
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def put_back(self, piece: bytes) -> None:
        """Before all others."""
        if piece:
            self._chunk = memoryview(piece + bytes(self._chunk))
