"""Files that several machines read at the same time: their packets are ready, every block behind its header.

A rack of machines reads one boot program in blocks of one size. What a window costs is then mostly Python's putting
together of its packets; here that is done once for all of them, and a window is one slice of memory. `edge.tftp.server`
asks for the blocks of files that are there as a whole, in octet mode. Who reads a file alone gets `OctetBlocks`: made
ready for one transfer, packets cost more than they spare.

    the first reader of a file     OctetBlocks
    the next, while it is read     FramedBlocks, and all who come after; made as far as somebody has asked
    when nobody reads it any more  nothing is kept
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from edge.tftp.blocks import Burst, OctetBlocks, Payload, data_headers

MAX_BYTES: Final = 64 << 20
"""Of all packets that are kept ready at a time."""
MIN_FILE_BYTES: Final = 64 << 10
"""Of smaller files there may be many, and they are sent before anybody comes to share them."""

_AHEAD_BLOCKS: Final = 64


class FramedBlocks:
    """The blocks of one file in one size, for any number of transfers. See `edge.tftp.blocks.Blocks`."""

    __slots__ = ("__weakref__", "_block_bytes", "_content", "_made", "_packets", "_view", "last", "size_bytes")

    def __init__(self, content: Payload, block_bytes: int) -> None:
        """`size_bytes` is what all of its packets take."""
        self._content = content  # held: the key of FramedFiles is its identity
        self._view = memoryview(content).cast("B")
        self._block_bytes = block_bytes
        self.last: int = len(self._view) // block_bytes + 1
        self.size_bytes = _framed_bytes(content, block_bytes)
        self._packets = memoryview(bytearray(self.size_bytes))
        self._made = 0  # up to which block they are there

    def grow(self, filled: int) -> None:
        """All of the file was there from the beginning."""

    def packets(self, first: int, last: int, _acked: int, /) -> tuple[Burst, int]:
        """See Blocks."""
        if last > self._made:
            last = self._make(last)
        step = self._block_bytes + 4
        return self._packets[(first - 1) * step : last * step], last - first + 1

    def _make(self, last: int) -> int:
        """Make the packets as far as `last` and some more; gives `last`, or the file's last block before it."""
        last = min(last, self.last)
        if last > self._made:
            end = min(max(last, self._made + _AHEAD_BLOCKS), self.last)
            size, view, headers = self._block_bytes, self._view, data_headers()
            parts: list[Payload] = []
            for block in range(self._made, end):
                parts += (headers[(block + 1) & 0xFFFF], view[block * size : (block + 1) * size])
            made, start = b"".join(parts), self._made * (size + 4)
            self._packets[start : start + len(made)] = made
            self._made = end
        return last


class FramedFiles:
    """The blocks of files that are being read, by content and size of blocks. For one event loop's thread."""

    def __init__(self, max_bytes: int = MAX_BYTES, min_file_bytes: int = MIN_FILE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._min_file_bytes = min_file_bytes
        # By the content's identity, which no other object has as long as the framed blocks that hold it live. Of those
        # that are read alone it may have passed to another: that one is then made ready too soon, and nothing worse.
        self._alone: WeakValueDictionary[tuple[int, int], OctetBlocks] = WeakValueDictionary()
        self._framed: WeakValueDictionary[tuple[int, int], FramedBlocks] = WeakValueDictionary()

    def blocks(self, content: Payload, block_bytes: int) -> OctetBlocks | FramedBlocks:
        """The blocks of a file, whose `content` stays unchanged as long as they live."""
        key = id(content), block_bytes
        framed = self._framed.get(key)
        if framed is not None:
            return framed
        if key in self._alone and self._is_room(content, block_bytes):
            framed = self._framed[key] = FramedBlocks(content, block_bytes)
            return framed
        alone = OctetBlocks(content, block_bytes)
        if memoryview(content).nbytes >= self._min_file_bytes:
            self._alone[key] = alone
        return alone

    def _is_room(self, content: Payload, block_bytes: int) -> bool:
        taken = sum(one.size_bytes for one in self._framed.values())
        return taken + _framed_bytes(content, block_bytes) <= self._max_bytes


def _framed_bytes(content: Payload, block_bytes: int) -> int:
    size = memoryview(content).nbytes
    return size + 4 * (size // block_bytes + 1)
