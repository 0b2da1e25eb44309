"""The fleet reads by TFTP as firmware does, from the server's own transfers, over a wire that loses datagrams."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.fleet.protocols.tftp import Reading, Reads, TftpError
from edge.tftp.blocks import OctetBlocks
from edge.tftp.packets import negotiate, oack, parse_request
from edge.tftp.transfer import ReadTransfer

NAME = "snponly.efi"


def served(reading: Reading, content: bytes, lost: Callable[[int], bool] = lambda _number: False) -> int:
    """Let a transfer run; how many datagrams there were. Time passes when nothing is on the way."""
    request = parse_request(reading.packet())
    agreed = negotiate(request, len(content), 1468)
    transfer = ReadTransfer(OctetBlocks(content, agreed.block_bytes, None), agreed, 0.0, request_bytes=40)
    now, count = 0.0, 0
    burst = transfer.start(now)
    while not reading.done:
        packets = [bytes(burst[at]) + bytes(burst[at + 1]) for at in range(0, len(burst), 2)]
        answers = []
        for packet in packets:
            count += 1
            if not lost(count) and (answer := reading.receive(packet)) is not None:
                answers.append(answer)
        burst = []
        for answer in answers:
            count += 1
            if not lost(count):
                burst = [*burst, *transfer.receive(answer, now)]
        if not burst and not reading.done:
            now += 4.0
            burst = transfer.expire(now) or transfer.receive(reading.repeated(), now)
        assert count < 10_000
    return count


@pytest.mark.parametrize("reads", Reads)
@pytest.mark.parametrize("size", [1, 1455, 1456, 1468, 1468 * 4, 240_000])
def test_file_comes_whole(reads, size):
    reading = Reading(NAME, reads.value[1])
    served(reading, bytes(size))
    assert reading.received == size


@pytest.mark.parametrize("reads", Reads)
@pytest.mark.parametrize("every", [3, 7, 20])
def test_file_comes_whole_though_datagrams_are_lost(reads, every):
    reading = Reading(NAME, reads.value[1])
    served(reading, bytes(100_000), lambda number: number % every == 0)
    assert reading.received == 100_000


@pytest.mark.parametrize("reads", Reads)
def test_probe_learns_the_size_and_takes_no_file(reads):
    reading = Reading(NAME, reads.value[0], probe=True)
    request = parse_request(reading.packet())
    answer = reading.receive(oack(negotiate(request, 240_000, 1468).accepted))
    assert (answer or b"")[:4] == b"\0\5\0\x08"
    assert (reading.size, reading.received, reading.done) == (240_000, 0, True)


def test_edk2_takes_four_blocks_for_one_acknowledgement():
    windows, single = Reading(NAME, Reads.UEFI.value[1]), Reading(NAME, Reads.BIOS.value[1])
    assert served(windows, bytes(100_000)) < 0.7 * served(single, bytes(100_000))


@pytest.mark.parametrize(
    ("packet", "says"),
    [
        (b"\0\6blksize\x009000\0", "larger blksize"),
        (b"\0\6timeout\x001\0", "not asked for: timeout"),
        (b"\0\6blksize\0many\0", "without a number"),
        (b"\0\5\0\1no such file\0", "error 1: no such file"),
    ],
)
def test_server_that_does_not_do_as_it_should_is_refused(packet, says):
    with pytest.raises(TftpError, match=says):
        Reading(NAME, Reads.UEFI.value[1]).receive(packet)
