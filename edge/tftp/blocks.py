"""A file as TFTP sends it: cut into numbered blocks, as far as its bytes are there.

The payloads come from `edge.tftp.source.TftpFile`'s content and go through `edge.tftp.transfer` to the socket. In
octet mode they are views of that content, so a kernel image in a memory map is never kept twice here. Netascii is
translated on the way, no further ahead than the client's window. Of a file that many machines read the packets may be
ready, headers and all (`edge.tftp.framed`).

The first block has the number 1, and numbers never wrap here. The last block is shorter than the others, and empty
where the size is a multiple of theirs (RFC 1350 section 6).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from functools import cache
from typing import Protocol

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
