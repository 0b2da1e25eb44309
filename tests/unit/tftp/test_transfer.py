"""A transfer against clients that behave and networks that don't; the test moves the clock."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.tftp.packets import Agreed
from edge.tftp.transfer import MAX_RETRIES, Datagram, Ending, ReadTransfer


def joined(datagrams: list[Datagram]) -> list[bytes]:
    return [header + bytes(payload) for header, payload in datagrams]


def numbers(datagrams: list[Datagram]) -> list[int]:
    return [int.from_bytes(datagram[2:4], "big") for datagram in joined(datagrams)]


def ack(number: int) -> bytes:
    return b"\0\4" + (number & 0xFFFF).to_bytes(2, "big")


class Edk2:
    """How EDK2 takes a file (Mtftp4Rrq.c): it acknowledges the end of each window and the last block, and each block
    that it did not expect with the one before the expected. Written from its rules, not from our sender."""

    def __init__(self, block_bytes: int, window: int) -> None:
        self.block_bytes = block_bytes
        self.window = window
        self.data = bytearray()
        self.expected = 1
        self.in_window = 0
        self.done = False

    def take(self, datagram: bytes) -> bytes | None:
        assert datagram[:2] in (b"\0\3", b"\0\6")
        if datagram[:2] == b"\0\6":
            return ack(0) if self.expected == 1 else None
        number, payload = int.from_bytes(datagram[2:4], "big"), datagram[4:]
        if number != self.expected & 0xFFFF:
            self.in_window = 0
            return ack(self.expected - 1)
        assert not self.done
        self.data += payload
        self.expected += 1
        self.in_window += 1
        self.done = len(payload) < self.block_bytes
        if self.done or self.in_window == self.window:
            self.in_window = 0
            return ack(self.expected - 1)
        return None


def exchange(transfer: ReadTransfer, client: Edk2, loss: float, seed: int, *, shuffle: bool = False) -> int:
    """Run both to the end over a bad network, return the number of datagrams sent."""
    chance = random.Random(seed)
    now, sent = 0.0, 0
    to_client: deque[bytes] = deque(joined(transfer.start(now)))
    to_server: deque[bytes] = deque()
    for _ in range(200_000):
        sent += len(to_client)
        while to_client:
            if shuffle and len(to_client) > 1 and chance.random() < 0.2:
                to_client.rotate(-1)
            datagram = to_client.popleft()
            if chance.random() < loss:
                continue
            for _copy in range(2 if chance.random() < loss else 1):
                answer = client.take(datagram)
                if answer is not None and chance.random() >= loss:
                    to_server.append(answer)
        while to_server and transfer.ended is None:
            now += 0.001
            to_client.extend(joined(transfer.receive(to_server.popleft(), now)))
        if transfer.ended is not None:
            return sent
        if not to_client:
            now = transfer.deadline
            to_client.extend(joined(transfer.expire(now)))
    raise AssertionError("never ended")


@given(st.integers(0, 5000), st.sampled_from([8, 100, 512]), st.sampled_from([1, 2, 4, 16, 64]))
@settings(max_examples=80, deadline=None)
def test_client_on_a_good_network_gets_the_file_in_as_few_packets_as_possible(
    size: int, block: int, window: int
) -> None:
    content = random.Random(size).randbytes(size)
    transfer, client = ReadTransfer(content, Agreed(block, window), 0.0), Edk2(block, window)
    assert exchange(transfer, client, 0.0, 0) == size // block + 1
    assert bytes(client.data) == content
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.SENT
    assert transfer.resent_blocks == 0


@given(st.integers(0, 4000), st.sampled_from([1, 4, 16]), st.integers(0, 2**32), st.booleans())
@settings(max_examples=120, deadline=None)
def test_client_on_a_network_that_loses_doubles_and_reorders_gets_the_file(
    size: int, window: int, seed: int, shuffle: bool
) -> None:
    content = random.Random(size).randbytes(size)
    accepted = {"windowsize": str(window)} if window > 1 else {}
    transfer, client = ReadTransfer(content, Agreed(64, window, None, accepted), 0.0), Edk2(64, window)
    exchange(transfer, client, 0.1, seed, shuffle=shuffle)
    assert transfer.ended is not None
    if transfer.ended.ending is Ending.SENT:
        assert bytes(client.data) == content
    else:  # seven losses in a row, or the loss of all the last acknowledgements
        assert transfer.ended.ending in (Ending.UNCONFIRMED, Ending.SILENT)


def test_block_numbers_wrap_to_zero_where_the_file_has_more_than_65535_blocks() -> None:
    content = bytes(65540 * 8 + 3)
    transfer, client = ReadTransfer(content, Agreed(8, 64), 0.0), Edk2(8, 64)
    assert exchange(transfer, client, 0.0, 0) == 65541
    assert len(client.data) == len(content)


def test_file_of_whole_blocks_ends_with_an_empty_one() -> None:
    transfer = ReadTransfer(bytes(1024), Agreed(), 0.0)
    assert len(joined(transfer.start(0.0))[0]) == 516
    transfer.receive(ack(1), 0.0)
    assert joined(transfer.receive(ack(2), 0.0)) == [b"\0\3\0\3"]
    transfer.receive(ack(3), 0.0)
    assert transfer.ended is not None


def test_empty_file_is_one_empty_block() -> None:
    assert joined(ReadTransfer(b"", Agreed(), 0.0).start(0.0)) == [b"\0\3\0\1"]


def test_client_without_options_gets_the_first_block_at_once_and_one_with_options_the_oack() -> None:
    assert numbers(ReadTransfer(b"x", Agreed(), 0.0).start(0.0)) == [1]
    transfer = ReadTransfer(b"x", Agreed(1468, 1, None, {"blksize": "1468"}), 0.0)
    assert joined(transfer.start(0.0)) == [b"\0\6blksize\x001468\0"]
    assert numbers(transfer.receive(ack(0), 0.0)) == [1]


def test_duplicate_acknowledgements_start_no_storm() -> None:
    transfer = ReadTransfer(bytes(5000), Agreed(), 0.0)
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(1), 0.0)) == [2]
    assert [transfer.receive(ack(1), 0.0) for _ in range(20)] == [[]] * 20
    assert numbers(transfer.receive(ack(2), 0.0)) == [3]
    assert transfer.receive(ack(1), 0.0) == []


def test_lost_block_within_a_window_is_sent_again_from_there_once() -> None:
    transfer = ReadTransfer(bytes(512 * 20), Agreed(512, 4), 0.0)
    assert numbers(transfer.start(0.0)) == [1, 2, 3, 4]
    # Block 3 was lost: EDK2 acknowledges 2 when 4 comes, and says so again for each block that it does not expect.
    assert numbers(transfer.receive(ack(2), 0.0)) == [3, 4, 5, 6]
    assert transfer.receive(ack(2), 0.0) == []
    assert numbers(transfer.receive(ack(6), 0.0)) == [7, 8, 9, 10]
    assert transfer.resent_blocks == 2


def test_lost_first_block_of_a_window_is_sent_again_once() -> None:
    transfer = ReadTransfer(bytes(512 * 20), Agreed(512, 4, None, {"windowsize": "4"}), 0.0)
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3, 4]
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3, 4]
    assert transfer.receive(ack(0), 0.0) == []
    assert numbers(transfer.receive(ack(4), 0.0)) == [5, 6, 7, 8]
    assert numbers(transfer.receive(ack(4), 0.0)) == [5, 6, 7, 8]
    assert transfer.receive(ack(4), 0.0) == []


def test_size_probe_of_edk2_is_no_failure() -> None:
    transfer = ReadTransfer(bytes(9), Agreed(1468, 4, None, {"tsize": "9", "blksize": "1468"}), 0.0)
    transfer.start(0.0)
    assert transfer.receive(b"\0\5\0\x08User aborted the transfer\0", 0.1) == []
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.PROBED


def test_client_that_gives_up_in_the_middle_is_a_failure_with_its_reason() -> None:
    transfer = ReadTransfer(bytes(9000), Agreed(512, 1, None, {"tsize": "9000"}), 0.0)
    transfer.start(0.0)
    transfer.receive(ack(0), 0.0)
    transfer.receive(b"\0\5\0\3no space\0", 0.5)
    assert transfer.ended is not None
    assert (transfer.ended.ending, transfer.ended.detail) == (Ending.REFUSED_BY_CLIENT, "error 3: no space")


def test_second_transfer_for_a_request_that_came_twice_ends_without_noise() -> None:
    transfer = ReadTransfer(bytes(9), Agreed(), 0.0)
    transfer.start(0.0)
    transfer.receive(b"\0\5\0\5unknown transfer ID\0", 0.0)
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.DUPLICATE


def test_silent_client_is_asked_again_ever_more_slowly_and_then_given_up() -> None:
    transfer = ReadTransfer(bytes(9000), Agreed(), 0.0)
    transfer.start(0.0)
    waits, now = [], 0.0
    while True:
        waits.append(transfer.deadline - now)
        now = transfer.deadline
        if not transfer.expire(now):
            break
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert len(waits) == MAX_RETRIES + 1
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.SILENT
    assert transfer.expire(now + 100) == []


def test_timeout_that_the_client_asked_for_is_kept_but_not_for_ever() -> None:
    transfer = ReadTransfer(bytes(9), Agreed(512, 1, 200.0, {"timeout": "200"}), 0.0)
    transfer.start(0.0)
    assert transfer.deadline == 200.0
    assert transfer.expire(199.0) == []
    assert transfer.expire(200.0) == []
    assert transfer.ended is not None


def test_client_that_leaves_without_the_last_acknowledgement_has_its_file() -> None:
    transfer = ReadTransfer(bytes(9), Agreed(), 0.0)
    transfer.start(0.0)
    transfer.unreachable(0.1)
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.UNCONFIRMED


def test_client_that_leaves_in_the_middle_does_not_hold_the_transfer() -> None:
    transfer = ReadTransfer(bytes(9000), Agreed(), 0.0)
    transfer.start(0.0)
    transfer.unreachable(0.1)
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.GONE


@given(st.lists(st.binary(max_size=20), max_size=30), st.sampled_from([1, 4]))
def test_garbage_on_the_transfers_port_raises_nothing_and_sends_no_more_than_a_window(
    datagrams: list[bytes], window: int
) -> None:
    transfer = ReadTransfer(bytes(50), Agreed(8, window), 0.0)
    transfer.start(0.0)
    for datagram in datagrams:
        assert len(transfer.receive(datagram, 0.0)) <= window
        assert len(transfer.receive(b"\0\4" + datagram, 0.0)) <= window


@pytest.mark.parametrize("number", [2, 3, 65535])
def test_acknowledgement_of_what_was_not_sent_is_passed_over(number: int) -> None:
    transfer = ReadTransfer(bytes(5000), Agreed(), 0.0)
    transfer.start(0.0)
    assert transfer.receive(ack(number), 0.0) == []
    assert numbers(transfer.receive(ack(1), 0.0)) == [2]
