"""An image read to its end, by the code with which image2disk writes one; its bytes go nowhere.

What the action would fail with on a machine is found here: a file of another kind, a damaged compression or partition
table, a qcow2 image that does not stream. On the way the superblocks of its filesystems are picked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from edge.disk_images.action import (
    HEAD_BYTES,
    HEADER_BYTES,
    MAGIC,
    ActionError,
    DamagedTableError,
    Disk,
    Qcow2,
    Table,
    kind_of,
    looked_at,
    name_of_other,
    read_sector_sizes,
    read_table,
    refuse_other_formats,
    unpacked,
)
from edge.disk_images.errors import ImageError
from edge.disk_images.partitions import SUPERBLOCK_BYTES, Partition, filesystem_of, is_iso, kinds_of

_MOST_PARTITIONS: Final = 32
"""Maximum number of partitions whose filesystem is looked at, and that are listed."""
_ANY: Final = "--any imports a file as it is"


@dataclass(frozen=True, slots=True)
class Image:
    """The content that an image puts on a disk.

    `size` is the number of bytes there; `compression` is that of the file, or empty.
    `table` is GPT, MBR or empty; then the disk has the one filesystem that `partitions` begins with, as number 0.
    """

    format: str
    compression: str
    size: int
    table: str
    partitions: tuple[Partition, ...]


def read_image(chunks: Iterator[bytes], name: str, check: Callable[[str], None]) -> Image:
    """Read an image to its end. `check` is called with the compression of the file as soon as that is known.

    Raises ImageError, and what `chunks` and `check` raise.
    """
    try:
        chunks, beginning = looked_at(chunks, HEADER_BYTES)
        compression = kind_of(beginning)
        check(compression)
        if compression:
            chunks = unpacked(chunks, compression, name)
        chunks, head = looked_at(chunks, HEAD_BYTES)
        if not head:
            raise ImageError(f"{name}: is empty")
        sampler = _Sampler(name)
        if head.startswith(MAGIC):
            qcow2 = Qcow2(name, cast("Disk", sampler), sampler.look)
            qcow2.write(chunks)
            return sampler.image("qcow2", compression, qcow2.size)
        sampler.look(head, 0)
        size = 0
        for chunk in chunks:
            sampler.write(size, chunk)
            size += len(chunk)
        return sampler.image("raw", compression, size)
    except ActionError as error:
        raise ImageError(error.message) from error


class _Sampler:
    """A disk without an end that keeps nothing of what is written to it but the starts of its partitions.

    It has those members of `Disk` that `Qcow2` uses.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 1 << 62
        self._starts: dict[int, bytearray] = {0: bytearray(SUPERBLOCK_BYTES)}
        self._head = b""
        self._sector_bytes = 512
        self._table: Table | None = None

    def look(self, head: bytes, _size: int) -> None:
        """Read the partition table from the first bytes of the image. Raises ImageError."""
        self._head = head[:HEAD_BYTES]
        sizes = read_sector_sizes(self._head)
        self._sector_bytes = sizes[0] if sizes else 512
        if is_iso(self._head):
            what = "is a CD image (ISO): it starts an installer, and is no installed system"
            remedy = "import the distribution's cloud image instead"
            raise ImageError(f"{self.name}: {what}; {remedy}. {_ANY}, for the example autoinstall")
        try:
            self._table = read_table(lambda at, length: self._head[at : at + length], self._sector_bytes)
        except DamagedTableError as error:
            raise ImageError(f"{self.name}: {error}; no system finds partitions in it: make the image again") from error
        if self._table is None:
            _refuse_other(self.name, self._head)
            return
        for each in self._table.partitions[:_MOST_PARTITIONS]:
            self._starts.setdefault(each.start, bytearray(SUPERBLOCK_BYTES))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Keep those bytes that are within the start of a partition."""
        end = offset + len(data)
        for start, kept in self._starts.items():
            first, last = max(offset, start), min(end, start + len(kept))
            if first < last:
                kept[first - start : last - start] = data[first - offset : last - offset]

    def zero(self, start: int, end: int) -> None:
        """Do nothing: what is kept is zero unless it is written."""

    def image(self, form: str, compression: str, size: int) -> Image:
        """Return what was seen. Raises ImageError."""
        if not self._head:  # qcow2 with clusters below 8 KiB
            self.look(bytes(self._starts[0][:HEAD_BYTES]), size)
        table = self._table
        if table is None:
            kind, label = filesystem_of(bytes(self._starts[0]))
            if not kind:
                what = "has neither a partition table nor a filesystem that is known here"
                raise ImageError(f"{self.name}: {what}; give a disk image. {_ANY}")
            return Image(form, compression, size, "", (Partition(0, 0, size, "", label, kind),))
        end = max((each.start + each.length for each in table.partitions), default=0)
        if end > size:
            raise ImageError(f"{self.name}: is cut off: its partitions end at byte {end}, and the disk has {size}")
        listed = table.partitions[:_MOST_PARTITIONS]
        kinds = kinds_of(self._head, self._sector_bytes, [each.number for each in listed])
        found = []
        for each in listed:
            kind, label = kinds.get(each.number, ("", ""))
            filesystem, volume = filesystem_of(bytes(self._starts[each.start]))
            found.append(Partition(each.number, each.start, each.length, kind, label or volume, filesystem))
        return Image(form, compression, size, table.kind, tuple(found))


def _refuse_other(name: str, head: bytes) -> None:
    """Refuse what is no disk image, by its first bytes. Raises ImageError."""
    try:
        refuse_other_formats(name, head, "")
    except ActionError as error:
        if error.reason != "NotAnImage":
            raise ImageError(f"{error.message.removesuffix(' and serve the result')}, and import the result") from None
        what, remedy = name_of_other(head)
        remedy = "give the file or URL of a disk image" if remedy.startswith("IMG_URL") else remedy
        raise ImageError(f"{name}: is {what}, not a disk image; {remedy}. {_ANY}") from None
