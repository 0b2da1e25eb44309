"""A transfer, step by step and against clients written from the rules of real ones, and how transfers take turns."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge.tftp.blocks import NetasciiBlocks, OctetBlocks
from edge.tftp.packets import Agreed, ReadRequest, to_netascii
from edge.tftp.session import TURN_SECONDS, ActiveTransfers, Session, TransferScheduler
from edge.tftp.source import TftpFile
from edge.tftp.transfer import (
    CAUTIOUS_TIMEOUT_SECONDS,
    MAX_PATIENCE_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
    OFFER_AGAIN_SECONDS,
    PATIENCE_SECONDS,
    STRANGERS_PATIENCE_SECONDS,
    UNPROVEN_FACTOR,
    Ending,
    ReadTransfer,
)
from edge.tftp.transport import UdpTransport
from tests.support.virtual_time import turns
from tests.unit.tftp.conftest import numbers, packets_of
from tests.unit.tftp.loopback import ack, udp

REQUEST_BYTES = 40
PLAIN = Agreed()
WINDOW_4 = Agreed(512, 4, None, {"windowsize": "4"})
PLAIN_4 = Agreed(512, 4)
"""A window from the first packet on, without an offer."""


def of(content, agreed=PLAIN, *, filled=None, netascii=False):
    """A transfer at the time 0; `filled` is given for a file that is still arriving."""
    kind = NetasciiBlocks if netascii else OctetBlocks
    return ReadTransfer(kind(content, agreed.block_bytes, filled), agreed, 0.0, request_bytes=REQUEST_BYTES)


def begun(content, agreed=PLAIN, **how):
    """As `of`, with its first packet sent; `content` may be the number of bytes."""
    transfer = of(bytes(content) if isinstance(content, int) else content, agreed, **how)
    transfer.start(0.0)
    return transfer


def ending(transfer):
    return transfer.ended.ending if transfer.ended is not None else None


def waits(transfer, now=0.0):
    """The seconds between repetitions to a client that has fallen silent, until it is given up."""
    found = []
    while transfer.ended is None:
        found.append(round(transfer.deadline - now, 3))
        now = transfer.deadline
        transfer.expire(now)
    return found


# --- the usual course, duplicates and losses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "agreed", "course", "resent"),
    [
        # Nothing starts before the options are agreed.
        (5000, WINDOW_4, "1: | 4:", 0),
        # Windows follow one another.
        (5000, WINDOW_4, "0: 1 2 3 4 | 4: 5 6 7 8 | 8: 9 10", 0),
        # Duplicate acknowledgements start no storm.
        (5000, PLAIN, "1: 2 | 1: | 1: | 1: | 1: | 1: | 1: | 2: 3 | 1:", 0),
        # Block 3 was lost: EDK2 acknowledges 2 when 4 comes, and says so again for each block that it does not expect.
        (9000, PLAIN_4, "2: 3 4 5 6 | 2: | 2: | 2: | 2: | 2: | 6: 7 8 9 10", 2),
        # Block 1 was lost. As 1 to 4 came twice, each may be acknowledged twice: these are echoes.
        (9000, WINDOW_4, "0: 1 2 3 4 | 0: 1 2 3 4 | 0: | 4: 5 6 7 8 | 4: | 8: 9 10 11 12 | 8: 9 10 11 12", 8),
        # The acknowledgement of a window was lost: EDK2 has all four blocks, and says so for each.
        (9000, WINDOW_4, "0: 1 2 3 4 | timer: 1 2 3 4 | 4: 5 6 7 8 | 4: | 4: | 4:", 4),
        # A repeated offer makes no echo of the first window.
        (9000, WINDOW_4, "timer: offer | 0: 1 2 3 4 | 0:", 0),
        # What was not sent is not acknowledged, nor an old window or one to come.
        (5000, PLAIN, "2: | 3: | 65535: | 1: 2", 0),
        (9000, PLAIN_4, "4: 5 6 7 8 | 8: 9 10 11 12 | 4: | 3: | 0: | 13: | 16: | 20:", 0),
        # Only what was sent before counts as sent again.
        (9000, PLAIN_4, "3: 4 5 6 7 | 7: 8 9 10 11", 1),
    ],
)
def test_blocks_follow_the_acknowledgements(size, agreed, course, resent):
    """The acknowledged block, or the timer, and the blocks that are sent for it."""
    transfer = begun(size, agreed)
    for step in course.split(" | "):
        event, _, sent = step.partition(":")
        burst = transfer.expire(transfer.deadline) if event == "timer" else transfer.receive(ack(int(event)), 1.0)
        if sent == " offer":
            assert packets_of(burst) == [b"\0\6windowsize\x004\0"]
        else:
            assert numbers(burst) == [int(number) for number in sent.split()]
    assert (transfer.resent_blocks, transfer.ended) == (resent, None)
    assert transfer.answered == (course != "1: | 4:")


@pytest.mark.parametrize("filled", [None, 0])
def test_file_of_whole_blocks_ends_with_an_empty_one(filled):
    transfer = of(bytes(1024), filled=filled)
    first = transfer.start(0.0) if filled is None else transfer.start(0.0) or transfer.arrived(1024, 0.0)
    assert [len(packet) for packet in packets_of(first)] == [516]
    assert numbers(transfer.receive(ack(1), 0.0)) == [2]
    assert packets_of(transfer.receive(ack(2), 0.0)) == [b"\0\3\0\3"]
    transfer.receive(ack(3), 0.0)
    assert ending(transfer) is Ending.SENT


def test_empty_file_is_one_empty_block_and_duration_begins_with_the_request():
    transfer = ReadTransfer(OctetBlocks(b"", 512), PLAIN, 100.0, request_bytes=40)
    assert packets_of(transfer.start(100.0)) == [b"\0\3\0\1"]
    transfer.receive(ack(1), 102.5)
    assert (transfer.ended.ending, transfer.ended.duration) == (Ending.SENT, 2.5)


@pytest.mark.parametrize(("size", "wraps"), [(65540 * 8 + 3, True), (65535 * 8 - 1, False)])
def test_block_numbers_wrap_to_zero_where_the_file_has_more_than_65535_blocks(size, wraps):
    transfer, last = of(bytes(size), Agreed(8, 64)), size // 8 + 1
    sent = numbers(transfer.start(0.0))
    for end in range(64, last, 64):
        sent += numbers(transfer.receive(ack(end), 0.0))
        assert transfer.wrapped == (wraps and end > 65535 - 64)
    transfer.receive(ack(last), 0.0)
    assert ending(transfer) is Ending.SENT
    assert sent == [number & 0xFFFF for number in range(1, last + 1)]
    assert transfer.wrapped == wraps


def test_payloads_are_views_so_that_a_kernel_is_not_copied():
    content = bytearray(b"a" * 2000)
    burst = of(content, Agreed(512, 4)).start(0.0)
    content[:] = b"b" * 2000
    assert bytes(burst[1]) == b"b" * 512


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "accepted", "packets", "expected", "detail"),
    [
        # The size probe of EDK2.
        (9, {"tsize": "9", "blksize": "1468"}, [b"\0\5\0\x08User aborted the transfer\0"], Ending.PROBED, None),
        (9, {"blksize": "1468"}, [b"\0\5\0\x08no\0"], Ending.REFUSED_BY_CLIENT, "error 8: no"),
        (9000, {"tsize": "9000"}, [ack(0), b"\0\5\0\3no space\0"], Ending.REFUSED_BY_CLIENT, "error 3: no space"),
        # A request came twice, and had two transfers.
        (9, {}, [b"\0\5\0\5unknown transfer ID\0"], Ending.DUPLICATE, None),
    ],
)
def test_error_of_the_client_ends_the_transfer(size, accepted, packets, expected, detail):
    transfer = begun(size, Agreed(512, 4, None, accepted))
    for packet in packets:
        burst = transfer.receive(packet, 0.1)
    assert burst == []
    assert ending(transfer) is expected
    assert detail is None or transfer.ended.detail == detail


@pytest.mark.parametrize(("size", "expected"), [(9, Ending.UNCONFIRMED), (9000, Ending.GONE)])
def test_client_that_leaves_without_the_last_acknowledgement_has_its_file_and_in_the_middle_not(size, expected):
    transfer = begun(size)
    transfer.unreachable(0.1)
    assert ending(transfer) is expected


def test_how_it_ended_first_is_how_it_ended():
    transfer = begun(9)
    transfer.receive(ack(1), 0.0)
    transfer.unreachable(1.0)
    transfer.replaced(1.0)
    assert transfer.source_failed("the disk is gone", 1.0) == []
    assert transfer.receive(ack(1), 1.0) == []
    assert transfer.expire(1000.0) == []
    assert ending(transfer) is Ending.SENT


# --- a file that is still arriving -----------------------------------------------------------------------------------


def test_file_that_is_still_arriving_is_sent_as_far_as_it_is_there():
    content = random.Random(1).randbytes(512 * 6 + 7)
    transfer = of(content, WINDOW_4, filled=0)
    transfer.start(0.0)
    assert transfer.receive(ack(0), 0.0) == []
    assert transfer.starved
    assert transfer.arrived(511, 1.0) == []
    assert numbers(transfer.arrived(1500, 2.0)) == [1, 2]
    assert numbers(transfer.arrived(512 * 5, 3.0)) == [3, 4]
    assert not transfer.starved
    assert transfer.arrived(512 * 6, 3.01) == []  # the client is the one to wait for
    assert transfer.deadline == 3.0 + CAUTIOUS_TIMEOUT_SECONDS
    assert numbers(transfer.receive(ack(4), 4.0)) == [5, 6]
    assert packets_of(transfer.arrived(len(content), 5.0)) == [b"\0\3\0\7" + content[-7:]]
    transfer.receive(ack(7), 6.0)
    assert ending(transfer) is Ending.SENT
    assert transfer.resent_blocks == 0


def test_client_that_waits_for_bytes_gets_a_sign_of_life_every_second():
    transfer = begun(5000, filled=1024)
    transfer.receive(ack(1), 0.0)
    assert transfer.receive(ack(2), 0.0) == []
    for second in range(1, 200):
        # It asks by itself too, and acknowledges the repeated block: all that gets no answer, or a storm would begin.
        assert transfer.receive(ack(2), second - 0.5) == []
        assert numbers(transfer.expire(float(second))) == [2]
        assert transfer.receive(ack(2), second + 0.001) == []
    assert transfer.ended is None
    assert transfer.resent_blocks == 199
    assert numbers(transfer.arrived(5000, 200.0)) == [3]
    assert transfer.receive(ack(2), 200.1) == []


def test_client_that_waits_for_the_first_bytes_is_offered_the_options_again_but_not_soon():
    transfer = of(bytes(5000), WINDOW_4, filled=0)
    offer = packets_of(transfer.start(0.0))
    transfer.receive(ack(0), 0.0)
    assert transfer.deadline == OFFER_AGAIN_SECONDS  # atftp takes a second one for an error
    assert packets_of(transfer.expire(10.0)) == offer
    assert transfer.receive(ack(0), 10.1) == []
    assert numbers(transfer.arrived(5000, 11.0)) == [1, 2, 3, 4]
    assert transfer.receive(ack(0), 11.0) == []


def test_loss_within_the_part_that_is_there_is_mended_while_the_rest_is_awaited():
    transfer = begun(512 * 20, WINDOW_4, filled=512 * 3)
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3]
    assert numbers(transfer.receive(ack(1), 0.1)) == [2, 3]  # 2 was lost
    assert transfer.receive(ack(1), 0.1) == []
    # Lost again, and the client is silent: the sign of life makes it say so.
    assert numbers(transfer.expire(transfer.deadline)) == [3]
    assert numbers(transfer.receive(ack(1), 2.0)) == [2, 3]
    assert transfer.receive(ack(1), 2.0) == []


@pytest.mark.parametrize("filled", [512, 0])
def test_client_that_sends_nothing_while_the_file_arrives_is_given_up(filled):
    transfer = begun(5000, filled=filled)
    if filled:
        transfer.receive(ack(1), 0.0)
    found = waits(transfer)
    assert sum(found) == MAX_PATIENCE_SECONDS
    assert not filled or set(found) == {1.0}
    assert ending(transfer) is Ending.SILENT


def test_time_that_the_file_took_is_not_the_clients():
    transfer = begun(50_000, filled=512)
    transfer.receive(ack(1), 0.001)
    transfer.arrived(50_000, 29.0)
    assert transfer.ended is None
    assert transfer.deadline - 29.0 == pytest.approx(CAUTIOUS_TIMEOUT_SECONDS)
    transfer.expire(31.0)
    assert transfer.ended is None
    transfer.receive(ack(2), 31.001)
    assert transfer.deadline - 31.001 == pytest.approx(CAUTIOUS_TIMEOUT_SECONDS)


def test_request_without_options_that_comes_again_while_nothing_is_there_is_passed_over():
    transfer = of(bytes(5000), filled=0)
    assert transfer.start(0.0) == []
    assert transfer.requested_again(3.0) == []
    assert transfer.requested_again(50.0) == []
    assert transfer.expire(100.0) == []
    assert transfer.ended is None
    assert numbers(transfer.arrived(5000, 101.0)) == [1]


# --- what strangers may send -----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=30), st.sampled_from([1, 4]))
def test_garbage_on_the_transfers_port_raises_nothing_and_sends_no_more_than_a_window(datagrams, window):
    transfer = begun(50, Agreed(8, window))
    for datagram in datagrams:
        for candidate in (datagram, b"\0\4" + datagram, b"\0\5" + datagram):
            assert len(transfer.receive(candidate, 0.0)) <= 2 * window


@pytest.mark.parametrize(
    "datagram", [b"", b"\0\4", b"\0\4\0", b"\1\4\0\1", b"\0\3\0\1", b"\0\6\0\1", b"\0\1f\0octet\0"]
)
def test_what_is_no_acknowledgement_is_passed_over(datagram):
    transfer = begun(5000)
    assert transfer.receive(datagram, 0.0) == []
    assert not transfer.answered


# --- when it sends again ----------------------------------------------------------------------------------------------


def test_stranger_is_asked_again_ever_more_slowly_and_soon_given_up():
    transfer = begun(9000)
    assert waits(transfer) == [1.0, 2.0, 4.0, 8.0]
    assert sum([1.0, 2.0, 4.0, 8.0]) >= STRANGERS_PATIENCE_SECONDS
    assert ending(transfer) is Ending.SILENT


LARGE_OFFER = Agreed(1468, 64, None, {"blksize": "1468", "windowsize": "64", "tsize": "90000"})


@pytest.mark.parametrize("repeats", [0, 1, 3])
@pytest.mark.parametrize("agreed", [PLAIN, WINDOW_4, LARGE_OFFER])
def test_address_that_acknowledges_nothing_gets_few_bytes_for_each_request(agreed, repeats):
    """The first block once for each request, or offers of options that are no more than thrice its requests."""
    requests = 1 + repeats
    transfer = of(bytes(90_000), agreed)
    sent = packets_of(transfer.start(0.0))
    while transfer.ended is None:
        now = transfer.deadline
        sent += packets_of(transfer.expire(now))
        if repeats:
            repeats -= 1
            sent += packets_of(transfer.requested_again(now))
    assert ending(transfer) is Ending.SILENT
    if agreed is PLAIN:
        assert sent == [b"\0\3\0\1" + bytes(512)] * requests
        return
    assert len(set(sent)) == 1
    assert len(sent) > requests, "one that was lost is sent again"
    assert sum(map(len, sent)) <= UNPROVEN_FACTOR * REQUEST_BYTES * requests


def test_client_that_has_answered_is_waited_for_longer():
    transfer = begun(9000)
    transfer.receive(ack(1), 0.5)
    found = waits(transfer, 0.5)
    assert found[:4] == [1.5, 3.0, 6.0, 8.0]  # its pace is 0.5 s, give or take 0.25
    assert max(found) == MAX_TIMEOUT_SECONDS
    assert sum(found[:-1]) < PATIENCE_SECONDS <= sum(found)
    assert transfer.ended.detail.endswith(" s at block 1 of 18")


def test_loss_is_mended_in_the_clients_own_pace():
    transfer = begun(512 * 100)
    now = 0.0
    for block in range(1, 50):
        now += 0.002
        transfer.receive(ack(block), now)
    assert transfer.deadline - now == pytest.approx(CAUTIOUS_TIMEOUT_SECONDS)
    for block in range(50, 90):
        now += 0.3
        transfer.receive(ack(block), now)
    assert 0.3 < transfer.deadline - now < 0.45


def resent_at_the_pace_of(windows, size):
    """How many blocks are sent twice to a client that takes so many seconds for its windows, in turn, and that
    acknowledges, as EDK2 does, each block that it does not expect."""
    transfer = begun(size, WINDOW_4)
    burst = numbers(transfer.receive(ack(0), 0.0))
    now, expected, turn, echoes = 0.0, 1, 0, 0
    while transfer.ended is None:
        done = now + windows[turn % len(windows)]
        turn += 1
        while transfer.deadline < done:  # it is busy, and does not hear this before it is done
            echoes += len(numbers(transfer.expire(transfer.deadline)))
        now = done
        expected += len(burst)
        burst = numbers(transfer.receive(ack(expected - 1), now))
        for _ in range(echoes):
            assert transfer.ended is not None or transfer.receive(ack(expected - 1), now) == []
        echoes = 0
    assert ending(transfer) is Ending.SENT
    return transfer.resent_blocks


@pytest.mark.parametrize(
    "windows",
    # OVMF: 24 ms a window of four blocks, and 60 to 70 ms now and then.
    [[0.024] * 3 + [0.060] + [0.024] * 40 + [0.070], [0.001] * 40 + [0.070], [0.060]],
    ids=["slow", "quick", "even"],
)
def test_firmware_that_is_late_now_and_then_is_sent_no_window_twice(windows):
    assert resent_at_the_pace_of(windows, 512 * 4000) == 0


@pytest.mark.parametrize("late", [0, 1, 2, 5, 90])
def test_one_acknowledgement_that_is_60_ms_late_has_no_block_sent_twice(late):
    """A Raspberry Pi hangs when a block comes twice."""
    transfer, now = begun(512 * 100), 0.0
    for block in range(1, 102):
        now += 0.06 if block == late + 1 else 0.001
        assert transfer.expire(now) == []
        transfer.receive(ack(block), now)
    assert (ending(transfer), transfer.resent_blocks) == (Ending.SENT, 0)


def test_loss_is_repeated_sooner_once_two_are_proven_until_the_client_is_found_to_be_late():
    transfer, now = begun(512 * 100), 0.0

    def acknowledged(blocks, *, lost):
        nonlocal now
        for block in blocks:
            if block == lost:
                now = transfer.deadline
                assert numbers(transfer.expire(now)) == [block]
            now += 0.001
            transfer.receive(ack(block), now)
        return pytest.approx(transfer.deadline - now)

    assert acknowledged(range(1, 20), lost=10) == CAUTIOUS_TIMEOUT_SECONDS
    assert acknowledged(range(20, 30), lost=20) == MIN_TIMEOUT_SECONDS
    assert acknowledged(range(30, 50), lost=30) == MIN_TIMEOUT_SECONDS
    transfer.receive(ack(49), now)  # asks again, because of a loss: not late
    assert acknowledged([50, 51], lost=50) == MIN_TIMEOUT_SECONDS
    # That one was late: it acknowledges the block, and its repetition.
    acknowledged([52], lost=52)
    assert transfer.receive(ack(52), now) == []
    assert acknowledged(range(53, 90), lost=60) == CAUTIOUS_TIMEOUT_SECONDS
    assert acknowledged(range(90, 95), lost=92) == CAUTIOUS_TIMEOUT_SECONDS


def test_acknowledgement_that_comes_long_after_the_repetition_proves_no_loss():
    transfer, now = begun(512 * 100), 0.0
    for block in range(1, 40):
        if block % 5 == 0:
            now = transfer.deadline
            transfer.expire(now)
        now += 0.05 if block % 5 == 0 else 0.001
        transfer.receive(ack(block), now)
    assert transfer.deadline - now == pytest.approx(CAUTIOUS_TIMEOUT_SECONDS)


def test_patience_is_computed_as_in_rfc_6298():
    transfer = begun(512 * 100)
    transfer.receive(ack(1), 0.1)
    assert transfer.deadline - 0.1 == pytest.approx(0.1 + 4 * 0.05)
    transfer.receive(ack(2), 0.4)
    assert transfer.deadline - 0.4 == pytest.approx(0.125 + 4 * 0.0875)


def test_client_that_has_answered_for_long_is_not_given_up_for_its_first_loss():
    transfer = begun(512 * 100)
    for block in range(1, 60):
        transfer.receive(ack(block), float(block))
    assert numbers(transfer.expire(transfer.deadline)) == [60]


def test_answer_to_a_repetition_says_nothing_of_the_clients_pace():
    transfer = begun(512 * 100)
    transfer.receive(ack(1), 0.001)
    paced = transfer.deadline - 0.001
    now = transfer.deadline
    transfer.expire(now)
    transfer.receive(ack(2), now + 7.0)  # of the first copy or of the second?
    assert transfer.deadline - now - 7.0 == pytest.approx(paced)


def test_timer_that_fires_early_sends_nothing():
    transfer = begun(9000)
    transfer.receive(ack(1), 0.0)
    assert transfer.expire(transfer.deadline - 0.01) == []
    assert numbers(transfer.expire(transfer.deadline)) == [2]


def test_timeout_that_the_client_asked_for_is_kept_to():
    transfer = begun(9000, Agreed(512, 1, 3.0, {"timeout": "3"}))
    assert transfer.deadline == 3.0
    transfer.receive(ack(0), 0.001)
    assert transfer.deadline == 3.001
    found = waits(transfer, 0.001)
    assert set(found) == {3.0}
    assert len(found) == pytest.approx(PATIENCE_SECONDS / 3.0, abs=1)


@pytest.mark.parametrize(("timeout", "times"), [(15.0, 3), (20.0, None), (200.0, None)])
def test_timeout_that_the_client_asked_for_keeps_no_transfer_for_ever(timeout, times):
    transfer = begun(9, Agreed(512, 1, timeout, {"timeout": str(timeout)}))
    assert transfer.deadline == timeout
    found = waits(transfer)
    assert set(found) == {timeout}
    assert sum(found) <= max(MAX_PATIENCE_SECONDS, timeout)
    assert times in (None, len(found))
    assert ending(transfer) is Ending.SILENT


def test_request_that_comes_again_before_the_first_answer_arrived_gets_it_again():
    transfer = of(bytes(9000), WINDOW_4)
    first = transfer.start(0.0)
    assert packets_of(transfer.requested_again(0.2)) == packets_of(first)
    transfer.receive(ack(0), 0.3)
    assert transfer.requested_again(0.4) == []
    plain = of(bytes(9000))
    first = plain.start(0.0)
    assert packets_of(plain.requested_again(0.2)) == packets_of(first)


def test_what_the_kernel_had_no_room_for_is_sent_a_moment_later_and_counts_as_no_loss():
    transfer = of(bytes(512 * 20), Agreed(512, 8))
    assert numbers(transfer.start(0.0)) == [1, 2, 3, 4, 5, 6, 7, 8]
    transfer.not_taken(5, 0.0, 0.005)
    assert transfer.deadline == 0.005
    assert transfer.receive(ack(7), 0.001) == []  # was never sent
    assert numbers(transfer.expire(0.005)) == [4, 5, 6, 7, 8]
    assert numbers(transfer.receive(ack(8), 0.006))[0] == 9
    assert transfer.resent_blocks == 0
    assert numbers(transfer.expire(transfer.deadline)) == list(range(9, 17))  # now it is a loss


def test_offer_that_the_kernel_had_no_room_for_is_repeated_as_if_it_was_lost():
    transfer = of(bytes(512 * 20), WINDOW_4)
    offer = packets_of(transfer.start(0.0))
    transfer.not_taken(1, 0.0, 0.005)
    assert packets_of(transfer.expire(transfer.deadline)) == offer
    assert transfer.deadline > 0.5


def test_way_that_never_has_room_ends_the_transfer():
    transfer = begun(512 * 20, Agreed(512, 8))
    transfer.receive(ack(8), 0.0)
    for _ in range(10_000):
        transfer.not_taken(8, transfer.deadline, 0.005)
        transfer.expire(transfer.deadline)
    assert ending(transfer) is Ending.SILENT


# --- against whole clients, over networks that lose, double and reorder ----------------------------------------------

BLOCK = 16


class Client:
    """Takes blocks in order, and acknowledges the end of each window and the last block (RFC 7440 section 4)."""

    def __init__(self, block_bytes, window):
        self.block_bytes = block_bytes
        self.window = window
        self.data = bytearray()
        self.expected = 1
        self.in_window = 0
        self.done = False

    def take(self, packet):
        """The answer to a packet; None where there is none."""
        assert packet[:2] in (b"\0\3", b"\0\6")
        if packet[:2] == b"\0\6":
            return ack(0) if self.expected == 1 else None
        number, payload = int.from_bytes(packet[2:4], "big"), packet[4:]
        if number != self.expected & 0xFFFF:
            return self.unexpected(number)
        assert not self.done, "a block behind the last one"
        assert len(payload) <= self.block_bytes
        self.data += payload
        self.expected += 1
        self.in_window += 1
        self.done = len(payload) < self.block_bytes
        return self.acknowledged() if self.done or self.in_window == self.window else None

    def acknowledged(self):
        """Return the packet at the end of a window, after a silence or a gap: the last acknowledgement."""
        self.in_window = 0
        return ack(self.expected - 1)


class Edk2(Client):
    """Mtftp4Rrq.c: it acknowledges the last good block for each one that it did not expect, whatever it is."""

    def unexpected(self, number):
        return self.acknowledged()


class Sparing(Client):
    """Like U-Boot and atftp: it says once that there is a gap, and answers a block that it has had once more."""

    reported = 0

    def unexpected(self, number):
        if number != (self.expected - 1) & 0xFFFF:
            if self.reported == self.expected:
                return None
            self.reported = self.expected
        return self.acknowledged()


CLIENTS = (Edk2, Sparing)


def exchange(transfer, client, loss=0.0, seed=0):
    """Run both to the end over a bad network, return the number of packets sent."""
    chance = random.Random(seed)
    now, sent = 0.0, 0
    to_client = deque(packets_of(transfer.start(now)))
    to_server = deque()
    for _ in range(200_000):
        sent += len(to_client)
        while to_client:
            packet = to_client.popleft()
            if chance.random() < loss:
                continue
            for _copy in range(2 if chance.random() < loss else 1):
                answer = client.take(packet)
                if answer is not None and chance.random() >= loss:
                    to_server.append(answer)
        while to_server and transfer.ended is None:
            now += 0.001
            to_client.extend(packets_of(transfer.receive(to_server.popleft(), now)))
        if transfer.ended is not None:
            return sent
        if not to_client:
            now = transfer.deadline
            to_client.extend(packets_of(transfer.expire(now)))
    raise AssertionError("never ended")


@given(
    st.integers(0, 5000),
    st.sampled_from([8, 100, 512]),
    st.sampled_from([1, 2, 4, 16, 64]),
    st.sampled_from(CLIENTS),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_client_on_a_good_network_gets_the_file_in_as_few_packets_as_possible(size, block, window, kind, netascii):
    content = random.Random(size).randbytes(size)
    expected = to_netascii(content) if netascii else content
    transfer, client = of(content, Agreed(block, window), netascii=netascii), kind(block, window)
    assert exchange(transfer, client) == len(expected) // block + 1
    assert bytes(client.data) == expected
    assert transfer.ended.ending is Ending.SENT
    assert transfer.resent_blocks == 0


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("window", [1, 4, 16, 64])
def test_network_that_loses_and_doubles_one_packet_in_a_hundred_feeds_no_storm(kind, window):
    content = random.Random(1).randbytes(BLOCK * 10_000)
    transfer, client = of(content, Agreed(BLOCK, window)), kind(BLOCK, window)
    sent = exchange(transfer, client, 0.01, seed=window)
    assert bytes(client.data) == content
    # Every second window of 64 has a loss or a double. Were each echo answered, it would be twenty times as many.
    assert sent < 10_001 * (1.05 + 0.02 * window)
    assert sent <= 10_001 + transfer.resent_blocks


class BadNetwork(RuleBasedStateMachine):
    """Every packet waits on the wire until a rule takes it, drops it or doubles it, in any order; so does the file."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.to_client = []
        self.to_server = []
        self.room = None

    @initialize(
        size=st.integers(0, BLOCK * 40),
        window=st.sampled_from([1, 2, 4, 8, 64]),
        offered=st.booleans(),
        kind=st.sampled_from(CLIENTS),
        netascii=st.booleans(),
        filled=st.none() | st.integers(0, BLOCK * 20),
    )
    def begin(self, size, window, offered, kind, netascii, filled):
        content = bytes(random.Random(size).choices(b"a\n\r", k=size))
        self.expected = to_netascii(content) if netascii else content
        self.filled = size if filled is None else min(filled, size)
        self.size = size
        accepted = {"blksize": str(BLOCK)} if offered else {}
        self.transfer = of(content, Agreed(BLOCK, window, None, accepted), filled=filled, netascii=netascii)
        self.client = kind(BLOCK, window)
        self._window = window
        self._emit(packets_of(self.transfer.start(0.0)))

    def _emit(self, packets):
        assert len(packets) <= self._window
        for packet in packets:
            if packet[1] == 3:
                number = int.from_bytes(packet[2:4], "big")
                assert packet[4:] == self.expected[(number - 1) * BLOCK : number * BLOCK]
        if self.room is not None and len(packets) > self.room:
            self.transfer.not_taken(len(packets) - self.room, self.now, 0.005)
            packets = packets[: self.room]
            self.room = None
        self.to_client += packets

    @precondition(lambda self: self.to_client)
    @rule(at=st.integers(0, 10**6), copies=st.sampled_from([0, 1, 1, 1, 1, 2]), first=st.booleans())
    def packet_arrives(self, at, copies, first):
        packet = self.to_client.pop(0 if first else at % len(self.to_client))
        for _ in range(copies):
            answer = self.client.take(packet)
            if answer is not None:
                self.to_server.append(answer)

    @precondition(lambda self: self.to_server)
    @rule(at=st.integers(0, 10**6), copies=st.sampled_from([0, 1, 1, 1, 1, 2]), first=st.booleans())
    def answer_arrives(self, at, copies, first):
        answer = self.to_server.pop(0 if first else at % len(self.to_server))
        for _ in range(copies):
            self.now += 0.001
            self._emit(packets_of(self.transfer.receive(answer, self.now)))

    @rule()
    def silence(self):
        self.now = max(self.now, self.transfer.deadline)
        self._emit(packets_of(self.transfer.expire(self.now)))

    @rule(count=st.integers(1, BLOCK * 5))
    def more_of_the_file(self, count):
        if self.filled < self.size:
            self.filled = min(self.size, self.filled + count)
            self._emit(packets_of(self.transfer.arrived(self.filled, self.now)))

    @rule(packets=st.integers(0, 3))
    def kernel_has_little_room(self, packets):
        self.room = packets

    @rule()
    def client_times_out(self):
        if not self.client.done and self.client.expected > 1:
            self.to_server.append(self.client.acknowledged())

    @invariant()
    def client_has_a_beginning_of_the_file(self):
        assert self.expected.startswith(bytes(self.client.data))

    @invariant()
    def sent_is_what_the_client_has(self):
        if self.transfer.ended is not None and self.transfer.ended.ending is Ending.SENT:
            assert self.client.done
            assert bytes(self.client.data) == self.expected

    def teardown(self):
        """The network becomes good and the file comes: unless it was given up before, the client gets it all."""
        if not hasattr(self, "transfer"):
            return
        if self.filled < self.size:
            self._emit(packets_of(self.transfer.arrived(self.size, self.now)))
        for _ in range(2000):
            while self.to_client:
                answer = self.client.take(self.to_client.pop(0))
                if answer is not None:
                    self.to_server.append(answer)
            while self.to_server:
                self._emit(packets_of(self.transfer.receive(self.to_server.pop(0), self.now)))
            if self.transfer.ended is not None:
                break
            if not self.to_client:
                self.now = max(self.now, self.transfer.deadline)
                self._emit(packets_of(self.transfer.expire(self.now)))
        assert self.transfer.ended is not None
        if self.transfer.ended.ending is Ending.SENT:
            assert bytes(self.client.data) == self.expected
        else:  # the rules kept silent for too long
            assert self.now > 5


TestBadNetwork = BadNetwork.TestCase
TestBadNetwork.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


# --- How transfers share the event loop, who may join them, who gives way, and how one ends ---------------------------


# --- turns -----------------------------------------------------------------------------------------------------------


class Crowd:
    """Sessions that always have something to do, until there were `most` turns; each takes `seconds` of the clock."""

    def __init__(self, names, seconds=0.0, most=200):
        self.now = 0.0
        self.turns = []
        self.scheduler = TransferScheduler(lambda: self.now)
        for name in names:
            session = SimpleNamespace(scheduled=False)
            session.step = lambda session=session, name=name: self.step(session, name, seconds, most)
            self.scheduler.schedule(session)
            self.scheduler.schedule(session)  # is in line already

    def step(self, session, name, seconds, most):
        self.turns.append(name)
        self.now += seconds
        if len(self.turns) < most:
            self.scheduler.schedule(session)


async def test_all_transfers_have_the_same_number_of_turns():
    crowd = Crowd("abcdefgh", TURN_SECONDS)
    await turns(210)
    assert crowd.turns[:16] == list("abcdefgh") * 2
    assert set(Counter(crowd.turns).values()) == {25, 26}


@pytest.mark.parametrize(("share", "at_once"), [(0.18, 6), (1.1, 1), (0, 299)])
async def test_others_wait_for_the_time_of_a_turn_and_not_for_all_transfers(share, at_once):
    crowd = Crowd(map(str, range(100)), TURN_SECONDS * share)
    await turns()
    assert len(crowd.turns) == at_once
    await turns()
    assert len(crowd.turns) == min(2 * at_once, 299)


async def test_queue_that_became_empty_starts_again():
    crowd = Crowd("a", most=1)
    for count in (1, 2, 3):
        await turns(2)
        assert crowd.turns == ["a"] * count
        session = SimpleNamespace(scheduled=False, step=lambda: crowd.turns.append("a"))
        crowd.scheduler.schedule(session)


async def test_file_is_closed_once_however_often_its_transfer_is_ended():
    closed, ended, scheduler = [], [], TransferScheduler()
    request, agreed = ReadRequest("file", False, {}), Agreed()
    now = asyncio.get_running_loop().time()
    transfer = ReadTransfer(OctetBlocks(bytes(6000), 512), agreed, now, request_bytes=20)
    file = TftpFile(bytes(6000), "file", None, close=lambda: closed.append(True))
    with udp() as client:
        own = udp()
        transport = UdpTransport(own, client.getsockname(), agreed.block_bytes, None)
        session = Session(request, file, transfer, transport, scheduler, ended.append, own_socket=own)
        session.start()
        assert scheduler.active == 1
        for end in (session.drop, session.drop, session.step):
            end()
            assert (closed, ended, scheduler.active, own.fileno()) == ([True], [session], 0, -1)


# --- admission -------------------------------------------------------------------------------------------------------


class Stub:
    """Stands for a session of a crowd."""

    def __init__(self, active, client, number, *, answered, is_machine):
        self.active, self.client, self.number, self.is_machine = active, (client, number), number, is_machine
        self.transfer = SimpleNamespace(answered=answered)
        self.dropped = False

    def abandon(self, _reason):
        self.drop()

    def drop(self):
        self.dropped = True
        self.active.remove(self)


@pytest.mark.parametrize(
    ("limits", "course", "dropped"),
    [
        ((100, 3, 100), ["m1+"] * 10 + ["m1"] * 5, [10, 11]),
        # Those that went on make room for others of their kind.
        ((100, 3, 100), ["m1", "m1", "m1", "all answer", "m1", "m1", "m1"], []),
        # A full house gives a half open place, and never one that is taken.
        ((3, 100, 100), ["m1+", "m1", "m1+", "m1+", "m1!"], [1]),
        ((3, 100, 100), ["s1+", "s2", "m3+", "s4+", "m5+"], [0, 1]),
        # One client replaces its own transfers only.
        ((100, 100, 2), ["m1", "m2", "m2+", "m2+", "m2!", "m1"], [1]),
        # Nothing is left of those who went.
        ((2, 1, 2), ["m1", "m1+", "all go", "m1+", "m1+", "m1!"], [0, 1]),
        # Strangers give way to machines, and machines to no stranger; among themselves the oldest goes.
        ((100, 3, 100), ["m1", "m2", "m3", *["s4"] * 100], [*range(3, 100)]),
        # A full house ends a stranger's transfer for a machine, and never the other way.
        ((3, 100, 100), ["m0+", "s1+", "s2+", "s3!", "m4+", "m5", "s3!", "m7+", "m8!"], [1, 2, 5]),
    ],
)
def test_machines_come_before_strangers_and_transfers_that_are_taken_before_half_open_ones(limits, course, dropped):
    """Each arrives as a machine or a stranger (m, s) at an address; `+`: it has answered, `!`: there is no room."""
    active, sessions = ActiveTransfers(*limits), []
    for step in course:
        if step == "all answer":
            for session in active:
                session.transfer.answered = True
        elif step == "all go":
            for session in list(active):
                session.drop()
            assert (len(active), active._of_client) == (0, {})
            assert active.get(sessions[0].client) is None
        else:
            client, is_machine = f"10.0.0.{step[1]}", step[0] == "m"
            has_room = active.make_room(client, is_machine=is_machine)
            assert has_room is ("!" not in step)
            session = Stub(active, client, len(sessions), answered="+" in step, is_machine=is_machine)
            sessions.append(session)
            if has_room:
                active.add(session)
    assert [session.number for session in sessions if session.dropped] == dropped
