"""TFTP packets as clients write them, files cut into blocks, and how bursts of them go to the kernel."""

import errno
import os
import socket
import struct
from contextlib import suppress
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.tftp import TFTP, TFTP_ERROR, TFTP_OACK, TFTP_Options

from edge.tftp import packets
from edge.tftp.blocks import FramedBlocks, FramedFiles, NetasciiBlocks, OctetBlocks
from edge.tftp.packets import ErrorCode, Garbage, ReadRequest, RequestError, to_netascii
from edge.tftp.transport import UdpTransport
from tests.unit.tftp.conftest import packets_of

# --- requests and answers --------------------------------------------------------------------------------------------


def rrq(*strings, opcode=1):
    return opcode.to_bytes(2, "big") + b"".join(string.encode() + b"\0" for string in strings)


def agree(*options):
    return packets.negotiate(packets.parse_request(rrq("f", "octet", *options)), 1000, 1468)


def test_the_requests_of_real_clients_are_understood():
    # EDK2, iPXE, curl, busybox without options, tftp-hpa
    assert packets.parse_request(rrq("snponly.efi", "octet", "tsize", "0", "blksize", "1468", "windowsize", "4")) == (
        ReadRequest("snponly.efi", False, {"tsize": "0", "blksize": "1468", "windowsize": "4"})
    )
    assert packets.parse_request(rrq("f", "octet", "blksize", "1432", "tsize", "0")).options["blksize"] == "1432"
    assert packets.parse_request(rrq("f", "octet", "tsize", "0", "blksize", "512", "timeout", "6")).name == "f"
    assert packets.parse_request(rrq("f", "octet")).options == {}
    asked = b"\0\1snponly.efi\xff\0octet\0tsize\x000\0"
    assert (packets.parse_request(asked).name, packets.parse_request(asked).options) == ("snponly.efi", {"tsize": "0"})
    assert packets.parse_request(rrq("f", "NetASCII")).netascii
    # a ROM that fills its request with NULs
    assert packets.parse_request(rrq("f", "octet", "tsize", "0") + bytes(20)).options == {"tsize": "0"}


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\0\1",
        b"\0\1f\0",
        b"\0\1f\0octet",
        b"\0\1\0octet\0",
        b"\0\3\0\1data\0",
        b"\0\5\0\0x\0",
        rrq("f" * 600, "octet"),
    ],
)
def test_garbage_is_distinguished_from_requests_and_gets_no_answer(datagram):
    with pytest.raises(Garbage):
        packets.parse_request(datagram)


def test_writing_and_mail_mode_are_refused():
    with pytest.raises(RequestError, match="read-only") as caught:
        packets.parse_request(rrq("f", "octet", opcode=2))
    assert caught.value.code is ErrorCode.ACCESS_VIOLATION
    with pytest.raises(RequestError, match="octet and netascii"):
        packets.parse_request(rrq("f", "mail"))


@given(st.binary(max_size=600))
def test_no_request_raises_anything_else(datagram):
    for candidate in (datagram, b"\0\1" + datagram, b"\0\1f\0octet\0" + datagram + b"\0"):
        with suppress(Garbage, RequestError):
            agreed = packets.negotiate(packets.parse_request(candidate), 10, 1468)
            assert 8 <= agreed.block_bytes <= 1468
            assert 1 <= agreed.window_blocks <= 64
            packets.oack(agreed.accepted)


@pytest.mark.parametrize(
    ("asked", "accepted"),
    [
        # EDK2 takes no answer that exceeds what it asked for, or names what it did not.
        ("blksize 1468 windowsize 4", "blksize 1468 windowsize 4"),
        ("blksize 512", "blksize 512"),
        # Up to what the way carries.
        ("tsize 0 blksize 65464 windowsize 65535 timeout 3", "tsize 1000 blksize 1468 windowsize 64 timeout 3"),
        ("blksize 7 windowsize 0 timeout 256 multicast ,", ""),
        ("blksize x timeout -1 tsize 99999999999 windowsize ٣", ""),
        ("BLKSIZE 1024 blksize 512", "BLKSIZE 1024"),
    ],
)
def test_options_are_granted_within_bounds_and_others_left_out(asked, accepted):
    agreed, words = agree(*asked.split()), accepted.split()
    assert agreed.accepted == dict(zip(words[::2], words[1::2], strict=True))
    assert agreed.block_bytes == int({key.lower(): value for key, value in agreed.accepted.items()}.get("blksize", 512))
    assert agreed.window_blocks == int(agreed.accepted.get("windowsize", 1))
    assert agreed.timeout == (3.0 if "timeout" in agreed.accepted else None)


def test_scapy_reads_our_oack_and_error():
    answer = TFTP(packets.oack({"blksize": "1468", "tsize": "5"}))
    assert TFTP_OACK in answer
    assert [(option.oname, option.value) for option in answer[TFTP_Options].options] == [
        (b"blksize", b"1468"),
        (b"tsize", b"5"),
    ]
    refused = TFTP(packets.error(ErrorCode.NOT_FOUND, "nöthing\0here"))[TFTP_ERROR]
    assert (refused.errorcode, refused.errormsg) == (1, b"n?thing?here")


def test_error_message_of_a_client_can_not_forge_log_lines():
    assert packets.parse_error(b"\0\5\0\x08stop\n2026 ERROR\x1b[2J\0rest") == (8, "stop?2026 ERROR?[2J")
    assert packets.parse_error(b"\0\5\0\0") == (0, "")


def test_text_in_netascii_has_the_line_ends_of_the_wire():
    assert packets.to_netascii(b"a\nb\rc\r\nd") == b"a\r\nb\r\0c\r\0\r\nd"


# --- blocks ----------------------------------------------------------------------------------------------------------


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
    """Return the payloads of packets that are numbered from `first` on."""
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


def test_block_numbers_wrap_in_packets_that_are_ready():
    content = bytes(range(256)) * (3 * 256 + 1)
    assert taken(FramedBlocks(content, 3), 64, 3) == [content[at : at + 3] for at in range(0, len(content) + 1, 3)]


def test_packets_are_shared_between_concurrent_readers_of_a_file():
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
    assert blocks.last is None


# --- transport -------------------------------------------------------------------------------------------------------

CLIENT = ("10.0.0.1", 4000)


class Kernel:
    """Takes what it is given to send, and cuts it; `refuse` maps the number of a call to the error that it gives."""

    def __init__(self, refuse=None, segments=True):
        self.calls = []
        self.packets = []
        self.ancillary = []
        self._refuse = refuse or {}
        self._segments = segments
        self._number = 0

    def sendmsg(self, buffers, ancillary, flags, address):
        assert (flags, address) == (0, CLIENT)
        (data,) = buffers
        segments = [value for level, kind, value in ancillary if (level, kind) == (socket.SOL_UDP, 103)]
        size = struct.unpack("=H", segments[0])[0] if segments else len(data)
        self._take([bytes(data[at : at + size]) for at in range(0, len(data), size)])
        self.ancillary = ancillary

    def sendto(self, data, address):
        assert address == CLIENT
        self._take([bytes(data)])
        self.ancillary = []

    def _take(self, packets):
        number, self._number = self._number, self._number + 1
        code = self._refuse.get(number)
        if len(packets) > 1 and not self._segments:
            code = errno.EINVAL
        if code is not None:
            raise OSError(code, os.strerror(code))
        self.calls.append(len(packets))
        self.packets += packets


def packet(number, block_bytes=1468):
    return b"%04d" % number + b"x" * block_bytes


def burst_of(count, block_bytes=1468, ready=False):
    """The last packet is short."""
    packets = [packet(number, block_bytes) for number in range(count - 1)] + [packet(count - 1, block_bytes - 1)]
    if ready:
        return memoryview(b"".join(packets))
    return [part for whole in packets for part in (whole[:4], memoryview(whole)[4:])]


def transport(kernel, block_bytes=1468, local=None):
    return UdpTransport(cast(socket.socket, kernel), CLIENT, block_bytes, local)


@pytest.mark.parametrize(
    ("block_bytes", "count", "calls"),
    [
        (1468, 1, [1]),
        (1468, 2, [1, 1]),  # not worth it
        (1468, 3, [3]),
        (1468, 44, [44]),
        (1468, 64, [44, 20]),  # a datagram holds 44
        (8, 64, [64]),
        (512, 64, [64]),
        (8968, 16, [7, 7, 2]),  # jumbo frames
        (16000, 8, [4, 4]),
        (20000, 6, [3, 3]),
        (30000, 4, [1] * 4),
    ],
)
@pytest.mark.parametrize("ready", [False, True])
def test_window_goes_out_in_as_few_system_calls_as_the_kernel_allows(block_bytes, count, calls, ready):
    kernel = Kernel()
    assert transport(kernel, block_bytes).send(burst_of(count, block_bytes, ready)) == 0
    assert kernel.calls == calls
    assert kernel.packets[:-1] == [packet(number, block_bytes) for number in range(count - 1)]
    assert kernel.packets[-1] == packet(count - 1, block_bytes - 1)


def test_answer_that_is_longer_than_a_block_is_one_packet():
    kernel = Kernel()
    transport(kernel, 8).send([b"\0\6blksize\0008\0windowsize\00064\0tsize\000300000\0", b""])
    assert kernel.packets == [b"\0\6blksize\0008\0windowsize\00064\0tsize\000300000\0"]


def test_kernel_gets_the_packet_length_and_the_source_address():
    kernel = Kernel()
    transport(kernel, 1468).send(burst_of(1))
    assert kernel.ancillary == []
    transport(kernel, 1468).send(burst_of(4))
    assert kernel.ancillary == [(socket.SOL_UDP, 103, struct.pack("=H", 1472))]
    from_address = (socket.IPPROTO_IP, 8, bytes(4) + bytes((10, 0, 0, 9)) + bytes(4))
    transport(kernel, 1468, "10.0.0.9").send(burst_of(1))
    assert kernel.ancillary == [from_address]
    transport(kernel, 1468, "10.0.0.9").send(burst_of(4))
    assert kernel.ancillary == [from_address, (socket.SOL_UDP, 103, struct.pack("=H", 1472))]


def test_kernel_that_does_not_cut_windows_is_asked_once():
    kernel = Kernel(segments=False)
    to_client = transport(kernel)
    assert to_client.send(burst_of(5)) == 0
    assert to_client.send(burst_of(5)) == 0
    assert kernel.calls == [1] * 10
    assert kernel._number == 11


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT])
def test_way_that_became_narrow_in_the_middle_of_a_window_loses_nothing(code):
    kernel = Kernel({1: code})
    assert transport(kernel).send(burst_of(64)) == 0
    assert kernel.calls == [44] + [1] * 20
    assert kernel.packets == [*map(packet, range(63)), packet(63, 1467)]


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOBUFS])
def test_packets_that_there_was_no_room_for_are_counted(code):
    assert transport(Kernel({0: code})).send(burst_of(1)) == 1
    assert transport(Kernel({0: code})).send(burst_of(64)) == 64
    assert transport(Kernel({1: code})).send(burst_of(64)) == 20
    assert transport(Kernel({1: code})).send(burst_of(2)) == 1
    assert transport(Kernel({3: code}, segments=False)).send(burst_of(5)) == 3


def test_other_errors_are_the_callers():
    for count in (1, 2, 64):
        with pytest.raises(ConnectionRefusedError):
            transport(Kernel({0: errno.ECONNREFUSED})).send(burst_of(count))
