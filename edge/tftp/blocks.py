"""A file as TFTP sends it: cut into numbered blocks, as far as its bytes are available.

The payloads come from the content of `edge.tftp.source.TftpFile` and go through `edge.tftp.transfer` to the socket. In
octet mode they are views of that content, so a kernel in a memory map is never copied as a whole. Netascii is
translated on the way, no further ahead than the client's window.

The first block has the number 1, and numbers never wrap here. The last block is shorter than the others, or empty if
the file size is a multiple of the block size (RFC 1350 section 6).

A rack of machines reads one boot program with the same block size. Most of the cost of a window is then the assembly of
its packets in Python. `FramedBlocks` assembles the packets of a file once for all transfers, so a window is one slice
of memory. For a single reader this would cost more than it saves, so the first one gets `OctetBlocks`:

    the first reader of a file       OctetBlocks
    each reader while it is read     FramedBlocks, assembled as far as the fastest reader has come
    after the last reader            the packets are freed
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import cache
from typing import Final
from weakref import WeakValueDictionary

from edge.tftp import packets
from edge.tftp.packets import to_netascii

Payload = bytes | memoryview

Burst = list[Payload] | memoryview
"""Packets to send: a list of headers and payloads in turn, or one view of all packets, which all but the last have the
size of a block and its header."""

MAX_BYTES: Final = 64 << 20
"""Size of all assembled packets."""
MIN_FILE_BYTES: Final = 64 << 10
"""Smaller files are not shared: there may be many, and each is sent before a second reader comes."""

_AHEAD_BLOCKS: Final = 64


class Blocks(ABC):
    """A file as a transfer reads it."""

    def __init__(self, content: Payload, block_bytes: int, filled: int | None = None) -> None:
        """`filled` is the number of available bytes; None: all."""
        # The first call creates all headers, which takes as long as a window. So it happens before the transfer starts.
        self._headers = data_headers()
        self._content = memoryview(content).cast("B")
        self._size = block_bytes
        self.last: int | None = None
        """The number of the last block, or None while it is unknown."""
        self.grow(len(self._content) if filled is None else filled)

    @abstractmethod
    def grow(self, filled: int) -> None:
        """Record that the file's bytes before the offset `filled` are available."""

    @abstractmethod
    def payloads(self, first: int, last: int, acked: int, /) -> list[Payload]:
        """Return the contents of the blocks that `packets` describes."""

    def packets(self, first: int, last: int, acked: int, /) -> tuple[Burst, int]:
        """Return the DATA packets of the blocks from `first` to `last`, and their number.

        There are fewer if the available bytes or the file end earlier. Blocks before `acked` were acknowledged and will
        not be requested again.
        """
        payloads = self.payloads(first, last, acked)
        count, number = len(payloads), first & 0xFFFF
        if count == 1:
            return [self._headers[number], payloads[0]], 1
        burst: list[Payload] = [b""] * (2 * count)
        burst[::2] = self._headers[number : number + count]
        burst[1::2] = payloads
        return burst, count


class OctetBlocks(Blocks):
    """Blocks that are views of the content."""

    def __init__(self, content: Payload, block_bytes: int, filled: int | None = None) -> None:
        super().__init__(content, block_bytes, filled)
        self.last = len(self._content) // block_bytes + 1

    def grow(self, filled: int) -> None:
        """See Blocks."""
        is_whole = filled >= len(self._content)
        self._there = len(self._content) // self._size + 1 if is_whole else filled // self._size

    def payloads(self, first: int, last: int, _acked: int, /) -> list[Payload]:
        """See Blocks."""
        size, content = self._size, self._content
        if last > self._there:
            last = self._there
        if first == last:
            at = (first - 1) * size
            return [content[at : at + size]]
        end = last * size
        return [content[at : at + size] for at in range((first - 1) * size, end, size)]


class NetasciiBlocks(Blocks):
    """Blocks of text with CR LF line ends. The number of blocks is known when the end has been translated."""

    def __init__(self, content: Payload, block_bytes: int, filled: int | None = None) -> None:
        super().__init__(content, block_bytes, filled)
        self._read = 0
        self._translated = bytearray()  # not yet a whole block
        self._kept: deque[bytes] = deque()
        self._first_kept = 1

    def grow(self, filled: int) -> None:
        """See Blocks."""
        self._there = min(filled, len(self._content))

    def payloads(self, first: int, last: int, acked: int, /) -> list[Payload]:
        """See Blocks."""
        while self._first_kept < acked:
            self._kept.popleft()
            self._first_kept += 1
        while self._first_kept + len(self._kept) <= last and self._translate():
            pass
        end = min(last + 1, self._first_kept + len(self._kept))
        return [self._kept[number - self._first_kept] for number in range(first, end)]

    def _translate(self) -> bool:
        """Translate one more block's worth of text. Return False if there is no more."""
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
    """Return the headers of DATA packets by block number: three megabytes, shared by all transfers."""
    # The headers of one more window follow the highest number, so that a slice can cross the wrap to 0.
    numbers = (number & 0xFFFF for number in range(0x10000 + packets.MAX_WINDOW_BLOCKS))
    return tuple(b"\0\3" + number.to_bytes(2, "big") for number in numbers)


def size_bytes(burst: Burst) -> int:
    """Return the size of all packets."""
    return len(burst) if isinstance(burst, memoryview) else sum(map(len, burst))


class FramedBlocks(OctetBlocks):
    """The assembled packets of one file and block size, for any number of transfers."""

    last: int

    def __init__(self, content: Payload, block_bytes: int) -> None:
        super().__init__(content, block_bytes)
        self._key = content  # a reference: `FramedFiles` uses id(content) as key
        self.size_bytes = _framed_bytes(content, block_bytes)
        """Size of all packets."""
        self._packets = memoryview(bytearray(self.size_bytes))
        self._made = 0  # the last assembled block

    def packets(self, first: int, last: int, _acked: int, /) -> tuple[Burst, int]:
        """See Blocks."""
        if last > self._made:
            last = self._make(last)
        step = self._size + 4
        return self._packets[(first - 1) * step : last * step], last - first + 1

    def _make(self, last: int) -> int:
        """Assemble the packets up to `last` and some more. Return `last`, or the file's last block if that is less."""
        last = min(last, self.last)
        if last > self._made:
            end = min(max(last, self._made + _AHEAD_BLOCKS), self.last)
            size, view, headers = self._size, self._content, self._headers
            parts: list[Payload] = []
            for block in range(self._made, end):
                parts += (headers[(block + 1) & 0xFFFF], view[block * size : (block + 1) * size])
            made, start = b"".join(parts), self._made * (size + 4)
            self._packets[start : start + len(made)] = made
            self._made = end
        return last


class FramedFiles:
    """The blocks of files that are being read, by content and block size. For one event loop's thread."""

    def __init__(self, max_bytes: int = MAX_BYTES, min_file_bytes: int = MIN_FILE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._min_file_bytes = min_file_bytes
        # The key is id(content). FramedBlocks keep a reference to their content, so no other object can get its id.
        # The content of OctetBlocks may be gone and its id reused: then packets are assembled too early, which is
        # harmless.
        self._alone: WeakValueDictionary[tuple[int, int], OctetBlocks] = WeakValueDictionary()
        self._framed: WeakValueDictionary[tuple[int, int], FramedBlocks] = WeakValueDictionary()

    def blocks(self, content: Payload, block_bytes: int) -> OctetBlocks | FramedBlocks:
        """Return the blocks of a file whose `content` stays unchanged during their lifetime."""
        key = id(content), block_bytes
        framed = self._framed.get(key)
        if framed is not None:
            return framed
        taken = sum(one.size_bytes for one in self._framed.values())
        if key in self._alone and taken + _framed_bytes(content, block_bytes) <= self._max_bytes:
            framed = self._framed[key] = FramedBlocks(content, block_bytes)
            return framed
        alone = OctetBlocks(content, block_bytes)
        if memoryview(content).nbytes >= self._min_file_bytes:
            self._alone[key] = alone
        return alone


def _framed_bytes(content: Payload, block_bytes: int) -> int:
    size = memoryview(content).nbytes
    return size + 4 * (size // block_bytes + 1)
