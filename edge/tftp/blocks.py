"""A file as TFTP sends it: cut into numbered blocks, as far as its bytes are there.

The payloads come from `edge.tftp.source.TftpFile`'s content and go through `edge.tftp.transfer` to the socket. In
octet mode they are views of that content, so a kernel image in a memory map is never kept twice here. Netascii is
translated on the way, no further ahead than the client's window. Of a file that many machines read the packets may be
ready, headers and all (`edge.tftp.blocks`).

The first block has the number 1, and numbers never wrap here. The last block is shorter than the others, and empty
where the size is a multiple of theirs (RFC 1350 section 6).

Files that several machines read at the same time: their packets are ready, every block behind its header.

A rack of machines reads one boot program in blocks of one size. What a window costs is then mostly Python's putting
together of its packets; here that is done once for all of them, and a window is one slice of memory. `edge.tftp.server`
asks for the blocks of files that are there as a whole, in octet mode. Who reads a file alone gets `OctetBlocks`: made
ready for one transfer, packets cost more than they spare.

    the first reader of a file     OctetBlocks
    the next, while it is read     FramedBlocks, and all who come after; made as far as somebody has asked
    when nobody reads it any more  nothing is kept
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from functools import cache
from typing import Final, Protocol
from weakref import WeakValueDictionary

from edge.tftp import packets
from edge.tftp.packets import to_netascii

Payload = bytes | memoryview

Burst = list[Payload] | memoryview
"""Packets, to be sent as they are: header and payload in turn; or all of them behind one another, each but the last as
long as a block and its header."""


class Blocks(Protocol):
    """What a transfer needs of a file."""

    @property
    def last(self) -> int | None:
        """The number of the last block, as soon as it is known."""

    def grow(self, filled: int) -> None:
        """The file's bytes before the offset `filled` are there now."""

    def packets(self, first: int, last: int, acked: int, /) -> tuple[Burst, int]:
        """The DATA packets of the blocks from `first` to `last`, or of fewer where the bytes or the file end; and how
        many these are.

        Those before `acked` have been acknowledged and will not be asked for again.
        """


class _Payloads:
    """Packets that are put together of a file's blocks when they are sent."""

    def __init__(self) -> None:
        # The first transfer of all makes them, which takes as long as a window may: before it begins.
        self._headers = data_headers()

    @abstractmethod
    def payloads(self, first: int, last: int, acked: int, /) -> list[Payload]:
        """The contents of the blocks, as `Blocks.packets` has them."""

    def packets(self, first: int, last: int, acked: int, /) -> tuple[Burst, int]:
        """See Blocks."""
        payloads = self.payloads(first, last, acked)
        count, number = len(payloads), first & 0xFFFF
        if count == 1:
            return [self._headers[number], payloads[0]], 1
        burst: list[Payload] = [b""] * (2 * count)
        burst[::2] = self._headers[number : number + count]
        burst[1::2] = payloads
        return burst, count


class OctetBlocks(_Payloads):
    """Views of the content. `filled` None: all of it is there."""

    def __init__(self, content: bytes | memoryview, block_bytes: int, filled: int | None = None) -> None:
        super().__init__()
        self._content = memoryview(content).cast("B")
        self._size = block_bytes
        self._blocks = len(self._content) // block_bytes + 1
        self.last: int | None = self._blocks
        self._there = 0
        self.grow(len(self._content) if filled is None else filled)

    def grow(self, filled: int) -> None:
        """See Blocks."""
        self._there = self._blocks if filled >= len(self._content) else filled // self._size

    def payloads(self, first: int, last: int, _acked: int, /) -> list[Payload]:
        """The contents of the blocks."""
        size, content = self._size, self._content
        if last > self._there:
            last = self._there
        if first == last:
            at = (first - 1) * size
            return [content[at : at + size]]
        end = last * size
        return [content[at : at + size] for at in range((first - 1) * size, end, size)]


class NetasciiBlocks(_Payloads):
    """Text with the line ends of the wire. How many blocks that makes is known when the end has been translated."""

    def __init__(self, content: bytes | memoryview, block_bytes: int, filled: int | None = None) -> None:
        super().__init__()
        self._content = memoryview(content).cast("B")
        self._size = block_bytes
        self._there = 0
        self.grow(len(self._content) if filled is None else filled)
        self.last: int | None = None
        self._read = 0
        self._translated = bytearray()  # not yet a whole block
        self._kept: deque[bytes] = deque()
        self._first_kept = 1

    def grow(self, filled: int) -> None:
        """See Blocks."""
        self._there = min(filled, len(self._content))

    def payloads(self, first: int, last: int, acked: int, /) -> list[Payload]:
        """The contents of the blocks."""
        while self._first_kept < acked:
            self._kept.popleft()
            self._first_kept += 1
        while self._first_kept + len(self._kept) <= last and self._translate():
            pass
        end = min(last + 1, self._first_kept + len(self._kept))
        return [self._kept[number - self._first_kept] for number in range(first, end)]

    def _translate(self) -> bool:
        """One step ahead; False where there is nothing more to translate."""
        if self.last is not None:
            return False
        end = min(self._read + self._size, self._there)
        if end == self._read and end < len(self._content):
            return False
        self._translated += to_netascii(bytes(self._content[self._read : end]))
        self._read = end
        while len(self._translated) >= self._size:
            self._kept.append(bytes(self._translated[: self._size]))
            del self._translated[: self._size]
        if self._read == len(self._content):
            self._kept.append(bytes(self._translated))
            self.last = self._first_kept + len(self._kept) - 1
        return True


@cache
def data_headers() -> tuple[bytes, ...]:
    """The headers of DATA packets by block number: three megabytes, which every transfer shares.

    Behind the highest number come those that a window may go on with.
    """
    numbers = (number & 0xFFFF for number in range(0x10000 + packets.MAX_WINDOW_BLOCKS))
    return tuple(b"\0\3" + number.to_bytes(2, "big") for number in numbers)


def size_bytes(burst: Burst) -> int:
    """Of all packets together."""
    return len(burst) if isinstance(burst, memoryview) else sum(map(len, burst))


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
