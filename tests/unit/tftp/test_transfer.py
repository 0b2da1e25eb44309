"""A transfer, step by step; the test moves the clock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.tftp.blocks import OctetBlocks
from edge.tftp.packets import Agreed
from edge.tftp.transfer import MAX_PATIENCE_SECONDS, MIN_TIMEOUT_SECONDS, OFFER_AGAIN_SECONDS, Ending, ReadTransfer
from tests.unit.tftp.conftest import ack, ending, numbers, of, packets_of, waits

WINDOW_4 = Agreed(512, 4, None, {"windowsize": "4"})


# --- the usual course ------------------------------------------------------------------------------------------------


def test_file_of_whole_blocks_ends_with_an_empty_one():
    transfer = of(bytes(1024))
    assert len(packets_of(transfer.start(0.0))[0]) == 516
    transfer.receive(ack(1), 0.0)
    assert packets_of(transfer.receive(ack(2), 0.0)) == [b"\0\3\0\3"]
    transfer.receive(ack(3), 0.0)
    assert ending(transfer) is Ending.SENT


def test_empty_file_is_one_empty_block():
    transfer = of(b"")
    assert packets_of(transfer.start(0.0)) == [b"\0\3\0\1"]
    transfer.receive(ack(1), 2.5)
    assert transfer.ended is not None
    assert (transfer.ended.ending, transfer.ended.duration) == (Ending.SENT, 2.5)


def test_client_without_options_gets_the_first_block_at_once_and_one_with_options_the_oack():
    assert numbers(of(b"x").start(0.0)) == [1]
    transfer = of(b"x", Agreed(1468, 1, None, {"blksize": "1468"}))
    assert packets_of(transfer.start(0.0)) == [b"\0\6blksize\x001468\0"]
    assert numbers(transfer.receive(ack(0), 0.0)) == [1]


def test_acknowledgement_before_the_options_are_agreed_starts_nothing():
    transfer = of(bytes(5000), WINDOW_4)
    transfer.start(0.0)
    assert transfer.receive(ack(1), 0.0) == []
    assert not transfer.answered


def test_windows_follow_one_another_and_the_last_is_shorter():
    transfer = of(bytes(512 * 6 + 5), WINDOW_4)
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3, 4]
    assert numbers(transfer.receive(ack(4), 0.0)) == [5, 6, 7]
    assert transfer.receive(ack(7), 0.0) == []
    assert ending(transfer) is Ending.SENT
    assert not transfer.wrapped


def test_block_numbers_wrap_to_zero_where_the_file_has_more_than_65535_blocks():
    transfer = of(bytes(65540 * 8 + 3), Agreed(8, 64))
    sent = numbers(transfer.start(0.0))
    for end in range(64, 65541, 64):
        sent += numbers(transfer.receive(ack(end), 0.0))
        assert transfer.wrapped == (end > 65535 - 64)
    transfer.receive(ack(65541), 0.0)
    assert ending(transfer) is Ending.SENT
    assert sent == [number & 0xFFFF for number in range(1, 65542)]
    assert transfer.wrapped


def test_file_of_65535_blocks_needs_no_warning():
    transfer = of(bytes(65535 * 8 - 1), Agreed(8, 64))
    transfer.start(0.0)
    for end in range(64, 65535, 64):
        transfer.receive(ack(end), 0.0)
    transfer.receive(ack(65535), 0.0)
    assert ending(transfer) is Ending.SENT
    assert not transfer.wrapped


def test_payloads_are_views_so_that_a_kernel_is_not_copied():
    content = bytearray(b"a" * 2000)
    burst = of(content, Agreed(512, 4)).start(0.0)
    content[:] = b"b" * 2000
    assert bytes(burst[1]) == b"b" * 512


# --- duplicates and losses -------------------------------------------------------------------------------------------


def test_duplicate_acknowledgements_start_no_storm():
    transfer = of(bytes(5000))
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(1), 0.0)) == [2]
    assert [transfer.receive(ack(1), 0.0) for _ in range(20)] == [[]] * 20
    assert numbers(transfer.receive(ack(2), 0.0)) == [3]
    assert transfer.receive(ack(1), 0.0) == []


def test_lost_block_within_a_window_is_sent_again_from_there_once():
    transfer = of(bytes(512 * 20), Agreed(512, 4))
    assert numbers(transfer.start(0.0)) == [1, 2, 3, 4]
    # Block 3 was lost: EDK2 acknowledges 2 when 4 comes, and says so again for each block that it does not expect.
    assert numbers(transfer.receive(ack(2), 0.0)) == [3, 4, 5, 6]
    assert [transfer.receive(ack(2), 0.0) for _ in range(5)] == [[]] * 5
    assert numbers(transfer.receive(ack(6), 0.0)) == [7, 8, 9, 10]
    assert transfer.resent_blocks == 2


def test_lost_first_block_of_a_window_is_sent_again_once():
    transfer = of(bytes(512 * 20), WINDOW_4)
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3, 4]
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3, 4]
    assert transfer.receive(ack(0), 0.0) == []
    assert numbers(transfer.receive(ack(4), 0.0)) == [5, 6, 7, 8]
    # Blocks 1 to 4 came twice, so each may be acknowledged twice: these are echoes.
    assert transfer.receive(ack(4), 0.0) == []
    assert numbers(transfer.receive(ack(8), 0.0)) == [9, 10, 11, 12]
    assert numbers(transfer.receive(ack(8), 0.0)) == [9, 10, 11, 12]
    assert transfer.resent_blocks == 8


def test_lost_acknowledgement_of_a_window_costs_one_repetition_and_its_echoes_nothing():
    transfer = of(bytes(512 * 20), WINDOW_4)
    transfer.start(0.0)
    transfer.receive(ack(0), 0.0)
    assert numbers(transfer.expire(transfer.deadline)) == [1, 2, 3, 4]
    # EDK2 has them all: it says so for each of the four.
    assert numbers(transfer.receive(ack(4), 1.0)) == [5, 6, 7, 8]
    assert [transfer.receive(ack(4), 1.0) for _ in range(3)] == [[]] * 3
    assert transfer.resent_blocks == 4


def test_repeated_oack_makes_no_echo_of_the_first_window():
    transfer = of(bytes(512 * 20), WINDOW_4)
    transfer.start(0.0)
    assert packets_of(transfer.expire(transfer.deadline)) == [b"\0\6windowsize\x004\0"]
    assert numbers(transfer.receive(ack(0), 1.0)) == [1, 2, 3, 4]
    assert transfer.receive(ack(0), 1.0) == []


@pytest.mark.parametrize("number", [2, 3, 65535])
def test_acknowledgement_of_what_was_not_sent_is_passed_over(number):
    transfer = of(bytes(5000))
    transfer.start(0.0)
    assert transfer.receive(ack(number), 0.0) == []
    assert numbers(transfer.receive(ack(1), 0.0)) == [2]


def test_acknowledgement_of_an_old_window_or_of_one_to_come_is_passed_over():
    transfer = of(bytes(512 * 20), Agreed(512, 4))
    transfer.start(0.0)
    transfer.receive(ack(4), 0.0)
    transfer.receive(ack(8), 0.0)
    assert [transfer.receive(ack(number), 0.0) for number in (4, 3, 0, 13, 16, 20)] == [[]] * 6
    assert transfer.acked == 8


def test_only_what_was_sent_before_counts_as_sent_again():
    transfer = of(bytes(512 * 20), Agreed(512, 4))
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(3), 0.0)) == [4, 5, 6, 7]
    assert transfer.resent_blocks == 1
    transfer.receive(ack(7), 0.0)
    assert transfer.resent_blocks == 1


# --- how it ends -----------------------------------------------------------------------------------------------------


def test_size_probe_of_edk2_is_no_failure():
    transfer = of(bytes(9), Agreed(1468, 4, None, {"tsize": "9", "blksize": "1468"}))
    transfer.start(0.0)
    assert transfer.receive(b"\0\5\0\x08User aborted the transfer\0", 0.1) == []
    assert ending(transfer) is Ending.PROBED


def test_client_that_refuses_our_options_is_no_probe():
    transfer = of(bytes(9), Agreed(1468, 4, None, {"blksize": "1468"}))
    transfer.start(0.0)
    transfer.receive(b"\0\5\0\x08no\0", 0.1)
    assert ending(transfer) is Ending.REFUSED_BY_CLIENT


def test_client_that_gives_up_in_the_middle_is_a_failure_with_its_reason():
    transfer = of(bytes(9000), Agreed(512, 1, None, {"tsize": "9000"}))
    transfer.start(0.0)
    transfer.receive(ack(0), 0.0)
    transfer.receive(b"\0\5\0\3no space\0", 0.5)
    assert transfer.ended is not None
    assert (transfer.ended.ending, transfer.ended.detail) == (Ending.REFUSED_BY_CLIENT, "error 3: no space")


def test_second_transfer_for_a_request_that_came_twice_ends_without_noise():
    transfer = of(bytes(9))
    transfer.start(0.0)
    transfer.receive(b"\0\5\0\5unknown transfer ID\0", 0.0)
    assert ending(transfer) is Ending.DUPLICATE


def test_client_that_leaves_without_the_last_acknowledgement_has_its_file():
    transfer = of(bytes(9))
    transfer.start(0.0)
    transfer.unreachable(0.1)
    assert ending(transfer) is Ending.UNCONFIRMED


def test_client_that_leaves_in_the_middle_does_not_hold_the_transfer():
    transfer = of(bytes(9000))
    transfer.start(0.0)
    transfer.unreachable(0.1)
    assert ending(transfer) is Ending.GONE


def test_duration_begins_with_the_request():
    transfer = ReadTransfer(OctetBlocks(b"x", 512), Agreed(), 100.0, request_bytes=40)
    transfer.start(100.0)
    transfer.receive(ack(1), 102.5)
    assert transfer.ended is not None
    assert transfer.ended.duration == 2.5


def test_how_it_ended_first_is_how_it_ended():
    transfer = of(bytes(9))
    transfer.start(0.0)
    transfer.receive(ack(1), 0.0)
    transfer.unreachable(1.0)
    transfer.replaced(1.0)
    assert transfer.source_failed("the disk is gone", 1.0) == []
    assert transfer.receive(ack(1), 1.0) == []
    assert transfer.expire(1000.0) == []
    assert ending(transfer) is Ending.SENT


def test_client_that_asks_for_something_else_ends_the_first_transfer():
    transfer = of(bytes(9000))
    transfer.start(0.0)
    transfer.receive(ack(1), 0.0)
    transfer.replaced(1.0)
    assert transfer.ended is not None
    assert transfer.ended.detail == "the client began anew at block 1 of 18"
    assert ending(transfer) is Ending.REPLACED


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
    assert transfer.deadline == 3.0 + MIN_TIMEOUT_SECONDS
    assert numbers(transfer.receive(ack(4), 4.0)) == [5, 6]
    assert packets_of(transfer.arrived(len(content), 5.0)) == [b"\0\3\0\7" + content[-7:]]
    transfer.receive(ack(7), 6.0)
    assert ending(transfer) is Ending.SENT
    assert transfer.resent_blocks == 0


def test_file_that_was_arriving_and_ends_with_a_whole_block_ends_with_an_empty_one():
    transfer = of(bytes(1024), filled=0)
    assert transfer.start(0.0) == []
    assert numbers(transfer.arrived(1024, 0.0)) == [1]
    assert numbers(transfer.receive(ack(1), 0.0)) == [2]
    assert packets_of(transfer.receive(ack(2), 0.0)) == [b"\0\3\0\3"]


def test_client_that_waits_for_bytes_is_told_every_second_that_it_was_not_forgotten():
    transfer = of(bytes(5000), filled=1024)
    transfer.start(0.0)
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
    transfer = of(bytes(512 * 20), WINDOW_4, filled=512 * 3)
    transfer.start(0.0)
    assert numbers(transfer.receive(ack(0), 0.0)) == [1, 2, 3]
    assert numbers(transfer.receive(ack(1), 0.1)) == [2, 3]  # 2 was lost
    assert transfer.receive(ack(1), 0.1) == []
    # Lost again, and the client is silent: the sign of life makes it say so.
    assert numbers(transfer.expire(transfer.deadline)) == [3]
    assert numbers(transfer.receive(ack(1), 2.0)) == [2, 3]
    assert transfer.receive(ack(1), 2.0) == []


def test_client_of_which_nothing_is_heard_while_the_file_arrives_is_given_up():
    transfer = of(bytes(5000), filled=512)
    transfer.start(0.0)
    transfer.receive(ack(1), 0.0)
    found = waits(transfer, 0.0)
    assert set(found) == {1.0}
    assert len(found) == MAX_PATIENCE_SECONDS


def test_time_that_the_file_took_is_not_the_clients():
    transfer = of(bytes(50_000), filled=512)
    transfer.start(0.0)
    transfer.receive(ack(1), 0.001)
    transfer.arrived(50_000, 29.0)
    assert transfer.ended is None
    assert transfer.deadline - 29.0 == pytest.approx(MIN_TIMEOUT_SECONDS)
    transfer.expire(31.0)
    assert transfer.ended is None
    transfer.receive(ack(2), 31.001)
    assert transfer.deadline - 31.001 == pytest.approx(MIN_TIMEOUT_SECONDS)


def test_file_that_will_never_come_is_an_error_with_its_reason():
    transfer = of(bytes(5000), filled=1024)
    transfer.start(0.0)
    transfer.receive(ack(1), 0.0)
    transfer.receive(ack(2), 0.0)
    assert packets_of(transfer.source_failed("the kernel did not arrive: 503", 9.0)) == [
        b"\0\5\0\0the kernel did not arrive: 503\0"
    ]
    assert transfer.ended is not None
    assert transfer.ended.detail == "the kernel did not arrive: 503, at block 2 of 10"
    assert ending(transfer) is Ending.SOURCE_FAILED


def test_request_without_options_that_comes_again_while_nothing_is_there_is_passed_over():
    transfer = of(bytes(5000), filled=0)
    assert transfer.start(0.0) == []
    assert transfer.requested_again(3.0) == []
    assert transfer.requested_again(50.0) == []
    assert transfer.expire(100.0) == []
    assert transfer.ended is None
    assert numbers(transfer.arrived(5000, 101.0)) == [1]


def test_request_for_a_file_of_which_nothing_comes_is_forgotten():
    transfer = of(bytes(5000), filled=0)
    transfer.start(0.0)
    assert sum(waits(transfer, 0.0)) == MAX_PATIENCE_SECONDS
    assert ending(transfer) is Ending.SILENT


# --- what strangers may send -----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=30), st.sampled_from([1, 4]))
def test_garbage_on_the_transfers_port_raises_nothing_and_sends_no_more_than_a_window(datagrams, window):
    transfer = of(bytes(50), Agreed(8, window))
    transfer.start(0.0)
    for datagram in datagrams:
        for candidate in (datagram, b"\0\4" + datagram, b"\0\5" + datagram):
            assert len(transfer.receive(candidate, 0.0)) <= 2 * window


@pytest.mark.parametrize(
    "datagram", [b"", b"\0\4", b"\0\4\0", b"\1\4\0\1", b"\0\3\0\1", b"\0\6\0\1", b"\0\1f\0octet\0"]
)
def test_what_is_no_acknowledgement_is_passed_over(datagram):
    transfer = of(bytes(5000))
    transfer.start(0.0)
    assert transfer.receive(datagram, 0.0) == []
    assert not transfer.answered
