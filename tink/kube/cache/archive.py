"""Very many small records by key, in hardly more memory than their bytes: what is kept of objects that are history.

A dictionary of 100,000 keys and values takes 25 MB before anything stands in them. Here they lie one after the other in
blocks of about eight; a key's hash says in which. The table grows a block at a time (linear hashing, W. Litwin
1980), so that no call takes long.
"""

from __future__ import annotations

from collections.abc import Iterator

_PER_BLOCK = 8
_FIRST_BLOCKS = 8
_LENGTH = 2  # bytes in which the length of a key or a value stands
MAX_LENGTH = (1 << 8 * _LENGTH) - 1
"""Bytes of a key, and of a value, at most."""


class Archive:
    """A mapping from bytes to bytes; both of at most `MAX_LENGTH`."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = [b""] * _FIRST_BLOCKS
        self._round = _FIRST_BLOCKS
        """Blocks that there were when this round of growing began; those before `len(blocks) - round` are split."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def get(self, key: bytes) -> bytes | None:
        """The value; None if there is none."""
        block = self._blocks[self._place(key)]
        found = _find(block, key)
        return None if found is None else block[found[1] : found[2]]

    def put(self, key: bytes, value: bytes) -> None:
        """Add a value, or put it in the place of the one before. Raises OverflowError for what is too long."""
        record = len(key).to_bytes(_LENGTH, "big") + len(value).to_bytes(_LENGTH, "big") + key + value
        self.pop(key)
        place = self._place(key)
        self._blocks[place] += record
        self._length += 1
        if self._length > len(self._blocks) * _PER_BLOCK:
            self._grow()

    def pop(self, key: bytes) -> bytes | None:
        """Take a value out; None if there is none."""
        place = self._place(key)
        block = self._blocks[place]
        found = _find(block, key)
        if found is None:
            return None
        begin, value, end = found
        self._blocks[place] = block[:begin] + block[end:]
        self._length -= 1
        return block[value:end]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values that are there now. What is put in or taken out meanwhile may be given, or not."""
        for block in tuple(self._blocks):
            for begin, value, end in _records(block):
                yield block[begin + 2 * _LENGTH : value], block[value:end]

    def _place(self, key: bytes) -> int:
        spread = hash(key)
        place = spread % self._round
        return spread % (2 * self._round) if place < len(self._blocks) - self._round else place

    def _grow(self) -> None:
        """Split the next block in two."""
        split = len(self._blocks) - self._round
        block = self._blocks[split]
        self._blocks.append(b"")
        stays, goes = bytearray(), bytearray()
        for begin, value, end in _records(block):
            key = block[begin + 2 * _LENGTH : value]
            (stays if self._place(key) == split else goes).extend(block[begin:end])
        self._blocks[split], self._blocks[-1] = bytes(stays), bytes(goes)
        if len(self._blocks) == 2 * self._round:
            self._round *= 2


def _records(block: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each record where it begins, where its value does, and where it ends."""
    at = 0
    while at < len(block):
        value = at + 2 * _LENGTH + int.from_bytes(block[at : at + _LENGTH], "big")
        end = value + int.from_bytes(block[at + _LENGTH : at + 2 * _LENGTH], "big")
        yield at, value, end
        at = end


def _find(block: bytes, key: bytes) -> tuple[int, int, int] | None:
    """The record of a key; None if the block has none."""
    if key not in block:
        return None
    header, at = len(key).to_bytes(_LENGTH, "big"), 0
    while at < len(block):  # not by `_records`: this is what takes the time
        value = at + 2 * _LENGTH + int.from_bytes(block[at : at + _LENGTH], "big")
        end = value + int.from_bytes(block[at + _LENGTH : at + 2 * _LENGTH], "big")
        if block.startswith(key, at + 2 * _LENGTH) and block.startswith(header, at):
            return at, value, end
        at = end
    return None
