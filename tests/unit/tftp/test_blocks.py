"""Files cut into blocks."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edge.tftp.blocks import Blocks, NetasciiBlocks, OctetBlocks
from edge.tftp.packets import to_netascii


def taken(blocks: Blocks, window: int) -> list[bytes]:
    """All blocks, a window at a time."""
    found: list[bytes] = []
    while blocks.last is None or len(found) < blocks.last:
        payloads = blocks.payloads(len(found) + 1, len(found) + window, len(found))
        assert 0 < len(payloads) <= window
        found += [bytes(payload) for payload in payloads]
    assert blocks.payloads(len(found) + 1, len(found) + window, len(found)) == []
    return found


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(1, 5))
def test_blocks_are_whole_but_the_last_which_is_shorter(content: bytes, size: int, window: int) -> None:
    found = taken(OctetBlocks(content, size), window)
    assert b"".join(found) == content
    assert {len(block) for block in found[:-1]} <= {size}
    assert len(found[-1]) < size


@given(st.text("a\r\n", max_size=200), st.integers(8, 20), st.integers(1, 5))
def test_text_is_translated_whatever_block_a_line_end_falls_into(text: str, size: int, window: int) -> None:
    content = text.encode()
    found = taken(NetasciiBlocks(content, size), window)
    assert b"".join(found) == to_netascii(content)
    assert {len(block) for block in found[:-1]} <= {size}
    assert len(found[-1]) < size


@given(st.text("a\r\n", max_size=200), st.lists(st.integers(0, 400)), st.booleans())
def test_blocks_come_as_the_file_does_and_never_before(text: str, offsets: list[int], netascii: bool) -> None:
    content = text.encode()
    blocks: Blocks = NetasciiBlocks(content, 8, 0) if netascii else OctetBlocks(content, 8, 0)
    found = b""
    number = 0
    for filled in [*sorted(offsets), len(content)]:
        blocks.grow(filled)
        for payload in blocks.payloads(number + 1, number + 1000, number):
            number += 1
            found += payload
        there = content[:filled]
        whole = to_netascii(there) if netascii else there
        assert whole.startswith(found)
        assert len(whole) - len(found) < 8
    assert blocks.last == number
    assert found == (to_netascii(content) if netascii else content)


def test_translated_block_can_be_had_again_until_one_behind_it_was_acknowledged() -> None:
    content = b"".join(b"%07d\n" % number for number in range(10))
    blocks = NetasciiBlocks(content, 9)
    first = blocks.payloads(1, 4, 0)
    assert blocks.payloads(5, 6, 2)
    assert blocks.payloads(2, 4, 2) == first[1:]
    assert blocks.payloads(5, 8, 4)
    assert blocks.payloads(4, 4, 4) == first[3:]  # what was acknowledged last, as a sign of life


def test_long_text_is_not_translated_ahead_of_the_window() -> None:
    blocks = NetasciiBlocks(b"line\n" * 100_000, 512)
    blocks.payloads(1, 4, 0)
    assert len(blocks._kept) < 8
    assert blocks.last is None


def test_map_of_a_file_is_cut_without_copying(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(10_000)
    (tmp_path / "kernel").write_bytes(content)
    with (tmp_path / "kernel").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = memoryview(mapped)
        blocks = OctetBlocks(view, 1468)
        payloads = blocks.payloads(1, 3, 0)
        assert [payload.obj for payload in payloads if isinstance(payload, memoryview)] == [mapped] * 3
        assert b"".join(payloads) == content[: 1468 * 3]
        for payload in payloads:
            payload.release()  # type: ignore[union-attr]
        blocks._content.release()
        view.release()
