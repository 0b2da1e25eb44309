"""A file as TFTP sends it: cut into numbered blocks, as far as its bytes are there.

The payloads come from `edge.tftp.source.TftpFile`'s content and go through `edge.tftp.transfer` to the socket. In
octet mode they are views of that content, so a kernel image in a memory map is never copied here. Netascii is
translated on the way, no further ahead than the client's window.

The first block has the number 1, and numbers never wrap here. The last block is shorter than the others, and empty
where the size is a multiple of theirs (RFC 1350 section 6).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from edge.tftp.packets import to_netascii

Payload = bytes | memoryview


class Blocks(Protocol):
    """What a transfer needs of a file."""

    last: int | None
    """The number of the last block, as soon as it is known."""

    def grow(self, filled: int) -> None:
        """The file's bytes before the offset `filled` are there now."""

    def payloads(self, first: int, last: int, acked: int, /) -> list[Payload]:
        """The blocks from `first` to `last`, or fewer where the bytes or the file end.

        Those before `acked` have been acknowledged and will not be asked for again.
        """


class OctetBlocks:
    """Views of the content. `filled` None: all of it is there."""

    def __init__(self, content: bytes | memoryview, block_bytes: int, filled: int | None = None) -> None:
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
        """See Blocks."""
        size, content = self._size, self._content
        if last > self._there:
            last = self._there
        if first == last:
            at = (first - 1) * size
            return [content[at : at + size]]
        end = last * size
        return [content[at : at + size] for at in range((first - 1) * size, end, size)]


class NetasciiBlocks:
    """Text with the line ends of the wire. How many blocks that makes is known when the end has been translated."""

    def __init__(self, content: bytes | memoryview, block_bytes: int, filled: int | None = None) -> None:
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
        """See Blocks."""
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
