"""Files cut into blocks."""

import mmap
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.tftp import blocks
from edge.tftp.blocks import NetasciiBlocks, OctetBlocks
from edge.tftp.framed import FramedBlocks, FramedFiles
from edge.tftp.packets import to_netascii
from tests.unit.tftp.conftest import packets_of


def taken(blocks, window, size):
    """All blocks, a window at a time."""
    found = []
    while blocks.last is None or len(found) < blocks.last:
        packets, count = blocks.packets(len(found) + 1, len(found) + window, len(found))
        assert 0 < count <= window
        found += payloads(packets, len(found) + 1, size, count)
    packets, count = blocks.packets(len(found) + 1, len(found) + window, len(found))
    assert (len(packets), count) == (0, 0)
    return found


def payloads(burst, first, size, count):
    """Of packets that are numbered from `first` on."""
    packets = packets_of(burst, size)
    assert [packet[:4] for packet in packets] == [
        b"\0\3" + (first + at & 0xFFFF).to_bytes(2, "big") for at in range(count)
    ]
    return [packet[4:] for packet in packets]


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(1, 5))
def test_blocks_are_whole_but_the_last_which_is_shorter(content, size, window):
    found = taken(OctetBlocks(content, size), window, size)
    assert b"".join(found) == content
    assert {len(block) for block in found[:-1]} <= {size}
    assert len(found[-1]) < size


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
def test_packets_that_are_ready_are_those_that_are_put_together(content, size, window, first):
    framed, blocks = FramedBlocks(content, size), OctetBlocks(content, size)
    assert framed.last == blocks.last
    for number in (first, 1, first):  # one machine is ahead of another
        burst, count = framed.packets(number, number + window - 1, 0) if number <= framed.last else (memoryview(b""), 0)
        wanted, wanted_count = blocks.packets(number, number + window - 1, 0)
        assert (bytes(burst), count) == (b"".join(wanted), wanted_count)
    assert taken(framed, window, size) == taken(blocks, window, size)


@pytest.mark.parametrize("kind", [OctetBlocks, NetasciiBlocks])
def test_headers_are_there_before_the_first_client_waits_for_a_window(kind, monkeypatch):
    file = kind(b"content", 8)
    monkeypatch.setattr(blocks, "data_headers", None)  # whoever makes them now makes a client wait
    assert file.packets(1, 1, 0)[1] == 1


def test_block_numbers_wrap_in_packets_that_are_ready():
    content = bytes(range(256)) * (3 * 256 + 1)
    assert taken(FramedBlocks(content, 3), 64, 3) == [content[at : at + 3] for at in range(0, len(content) + 1, 3)]


def test_packets_are_made_ready_for_those_who_read_the_same_file_at_the_same_time():
    files = FramedFiles(max_bytes=1100, min_file_bytes=100)
    content, other = bytes(500), bytes(bytearray(500))
    alone = files.blocks(content, 100)
    assert isinstance(alone, OctetBlocks)
    shared = files.blocks(content, 100)
    assert isinstance(shared, FramedBlocks)
    assert files.blocks(content, 100) is shared
    assert isinstance(files.blocks(content, 50), OctetBlocks), "another size of blocks"
    assert isinstance(files.blocks(other, 100), OctetBlocks), "another file, though it has the same bytes"
    small = bytes(99)
    readers = [files.blocks(small, 10) for _ in range(2)]
    assert [type(blocks) for blocks in readers] == [OctetBlocks] * 2
    del alone
    assert files.blocks(content, 100) is shared
    del shared
    assert isinstance(files.blocks(content, 100), OctetBlocks), "nobody reads it any more"


def test_there_is_a_bound_on_what_is_kept_ready():
    files = FramedFiles(max_bytes=1100, min_file_bytes=100)
    contents = [bytes(bytearray(500)) for _ in range(3)]
    readers = [[files.blocks(content, 100), files.blocks(content, 100)] for content in contents]
    assert [type(second) for _, second in readers] == [FramedBlocks, FramedBlocks, OctetBlocks]
    readers.pop(0)
    assert isinstance(files.blocks(contents[2], 100), FramedBlocks)


def test_file_that_takes_the_place_of_another_in_memory_is_not_taken_for_it():
    files = FramedFiles(min_file_bytes=1)
    content = bytes(range(100))
    whole = memoryview(content)
    view = whole[:50]
    kept = [files.blocks(view, 10), files.blocks(view, 10)]
    del view
    for other in [whole[50:] for _ in range(200)]:  # one of them is where the first view was
        blocks = files.blocks(other, 10)
        assert b"".join(payloads(blocks.packets(1, 6, 0)[0], 1, 10, 6)) == content[50:]
    assert len(kept) == 2


@given(st.text("a\r\n", max_size=200), st.integers(8, 20), st.integers(1, 5))
def test_text_is_translated_whatever_block_a_line_end_falls_into(text, size, window):
    content = text.encode()
    found = taken(NetasciiBlocks(content, size), window, size)
    assert b"".join(found) == to_netascii(content)
    assert {len(block) for block in found[:-1]} <= {size}
    assert len(found[-1]) < size


@given(st.text("a\r\n", max_size=200), st.lists(st.integers(0, 400)), st.booleans())
def test_blocks_come_as_the_file_does_and_never_before(text, offsets, netascii):
    content = text.encode()
    blocks = NetasciiBlocks(content, 8, 0) if netascii else OctetBlocks(content, 8, 0)
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


def test_translated_block_can_be_had_again_until_one_behind_it_was_acknowledged():
    content = b"".join(b"%07d\n" % number for number in range(10))
    blocks = NetasciiBlocks(content, 9)
    first = blocks.payloads(1, 4, 0)
    assert blocks.payloads(5, 6, 2)
    assert blocks.payloads(2, 4, 2) == first[1:]
    assert blocks.payloads(5, 8, 4)
    assert blocks.payloads(4, 4, 4) == first[3:]  # what was acknowledged last, as a sign of life


def test_long_text_is_not_translated_ahead_of_the_window():
    blocks = NetasciiBlocks(b"line\n" * 100_000, 512)
    blocks.payloads(1, 4, 0)
    assert len(blocks._kept) < 8
    assert blocks.last is None


def test_map_of_a_file_is_cut_without_copying(tmp_path):
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
