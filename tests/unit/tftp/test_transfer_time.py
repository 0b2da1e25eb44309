"""When a transfer sends again, how long it waits for whom; the test moves the clock."""

import pytest

from edge.tftp.packets import Agreed
from edge.tftp.transfer import (
    CAUTIOUS_TIMEOUT_SECONDS,
    MAX_PATIENCE_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
    PATIENCE_SECONDS,
    STRANGERS_PATIENCE_SECONDS,
    UNPROVEN_FACTOR,
    Ending,
)
from tests.unit.tftp.conftest import REQUEST_BYTES, ack, ending, numbers, of, packets_of, waits

WINDOW_4 = Agreed(512, 4, None, {"windowsize": "4"})


def test_stranger_is_asked_again_ever_more_slowly_and_soon_given_up():
    transfer = of(bytes(9000))
    transfer.start(0.0)
    assert waits(transfer, 0.0) == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert sum([0.5, 1.0, 2.0, 4.0, 8.0]) >= STRANGERS_PATIENCE_SECONDS
    assert ending(transfer) is Ending.SILENT


def to_silent_client(agreed, repeats):
    """What is sent to an address that acknowledges nothing, and asks again so many times."""
    transfer = of(bytes(90_000), agreed)
    sent = packets_of(transfer.start(0.0))
    while transfer.ended is None:
        now = transfer.deadline
        sent += packets_of(transfer.expire(now))
        if repeats:
            repeats -= 1
            sent += packets_of(transfer.requested_again(now))
    assert ending(transfer) is Ending.SILENT
    return sent


@pytest.mark.parametrize("repeats", [0, 1, 4])
def test_address_that_acknowledges_nothing_gets_the_first_block_once_for_each_request(repeats):
    sent = to_silent_client(Agreed(), repeats)
    assert sent == [b"\0\3\0\1" + bytes(512)] * (1 + repeats)


@pytest.mark.parametrize("repeats", [0, 1, 4])
@pytest.mark.parametrize(
    "agreed", [WINDOW_4, Agreed(1468, 64, None, {"blksize": "1468", "windowsize": "64", "tsize": "90000"})]
)
def test_address_that_acknowledges_nothing_gets_no_more_offers_than_thrice_its_requests(agreed, repeats):
    sent = to_silent_client(agreed, repeats)
    assert len(set(sent)) == 1
    assert len(sent) > 1 + repeats, "one that was lost is sent again"
    assert sum(map(len, sent)) <= UNPROVEN_FACTOR * REQUEST_BYTES * (1 + repeats)


def test_client_that_was_heard_is_waited_for_longer():
    transfer = of(bytes(9000))
    transfer.start(0.0)
    transfer.receive(ack(1), 0.5)
    found = waits(transfer, 0.5)
    assert found[:4] == [1.5, 3.0, 6.0, 8.0]  # its pace is 0.5 s, give or take 0.25
    assert max(found) == MAX_TIMEOUT_SECONDS
    assert sum(found[:-1]) < PATIENCE_SECONDS <= sum(found)
    assert transfer.ended is not None
    assert transfer.ended.detail.endswith(" s at block 1 of 18")


def test_loss_is_mended_in_the_clients_own_pace():
    transfer = of(bytes(512 * 100))
    transfer.start(0.0)
    now = 0.0
    for block in range(1, 50):
        now += 0.002
        transfer.receive(ack(block), now)
    assert transfer.deadline - now == pytest.approx(MIN_TIMEOUT_SECONDS)
    for block in range(50, 90):
        now += 0.3
        transfer.receive(ack(block), now)
    assert 0.3 < transfer.deadline - now < 0.45


def at_the_pace_of(windows, size):
    """A whole transfer to a client that takes so many seconds for its windows, in turn, and that acknowledges, as EDK2
    does, each block that it does not expect; and how many blocks were sent twice."""
    transfer = of(bytes(size), WINDOW_4)
    transfer.start(0.0)
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
    return transfer, transfer.resent_blocks


def test_slow_firmware_that_is_late_now_and_then_is_sent_nothing_twice():
    # OVMF: 24 ms a window of four blocks, and 60 to 70 ms now and then.
    _, resent = at_the_pace_of([0.024] * 3 + [0.060] + [0.024] * 40 + [0.070], 512 * 4000)
    assert resent == 0


def test_quick_firmware_that_is_late_now_and_then_is_sent_one_window_twice():
    transfer, resent = at_the_pace_of([0.001] * 40 + [0.070], 512 * 4000)
    assert resent == 4
    assert transfer.ended is not None


def test_client_that_asks_again_because_of_a_loss_is_not_taken_for_a_late_one():
    transfer = of(bytes(512 * 100))
    transfer.start(0.0)
    for block in range(1, 50):
        transfer.receive(ack(block), 0.001 * block)
    transfer.receive(ack(49), 0.08)  # block 50 was lost
    now = transfer.deadline
    assert numbers(transfer.expire(now)) == [50]
    transfer.receive(ack(49), now)
    transfer.receive(ack(50), now + 0.001)
    assert transfer.deadline - now - 0.001 == pytest.approx(MIN_TIMEOUT_SECONDS)
    # That one was late: it acknowledges the block, and its repetition.
    now = transfer.deadline
    assert numbers(transfer.expire(now)) == [51]
    transfer.receive(ack(51), now + 0.01)
    assert transfer.receive(ack(51), now + 0.011) == []
    transfer.receive(ack(52), now + 0.012)
    assert transfer.deadline - now - 0.012 == pytest.approx(CAUTIOUS_TIMEOUT_SECONDS)


def test_patience_is_computed_as_in_rfc_6298():
    transfer = of(bytes(512 * 100))
    transfer.start(0.0)
    transfer.receive(ack(1), 0.1)
    assert transfer.deadline - 0.1 == pytest.approx(0.1 + 4 * 0.05)
    transfer.receive(ack(2), 0.4)
    assert transfer.deadline - 0.4 == pytest.approx(0.125 + 4 * 0.0875)


def test_client_that_was_heard_for_long_is_not_given_up_for_its_first_loss():
    transfer = of(bytes(512 * 100))
    transfer.start(0.0)
    for block in range(1, 60):
        transfer.receive(ack(block), float(block))
    assert numbers(transfer.expire(transfer.deadline)) == [60]


def test_answer_to_a_repetition_says_nothing_of_the_clients_pace():
    transfer = of(bytes(512 * 100))
    transfer.start(0.0)
    transfer.receive(ack(1), 0.001)
    paced = transfer.deadline - 0.001
    now = transfer.deadline
    transfer.expire(now)
    transfer.receive(ack(2), now + 7.0)  # of the first copy or of the second?
    assert transfer.deadline - now - 7.0 == pytest.approx(paced)


def test_timer_that_fires_early_sends_nothing():
    transfer = of(bytes(9000))
    transfer.start(0.0)
    transfer.receive(ack(1), 0.0)
    assert transfer.expire(transfer.deadline - 0.01) == []
    assert numbers(transfer.expire(transfer.deadline)) == [2]


def test_timeout_that_the_client_asked_for_is_kept_to():
    transfer = of(bytes(9000), Agreed(512, 1, 3.0, {"timeout": "3"}))
    transfer.start(0.0)
    assert transfer.deadline == 3.0
    transfer.receive(ack(0), 0.001)
    assert transfer.deadline == 3.001
    found = waits(transfer, 0.001)
    assert set(found) == {3.0}
    assert len(found) == pytest.approx(PATIENCE_SECONDS / 3.0, abs=1)


def test_client_with_a_long_timeout_is_asked_three_times():
    transfer = of(bytes(9), Agreed(512, 1, 15.0, {"timeout": "15"}))
    transfer.start(0.0)
    assert waits(transfer, 0.0) == [15.0] * 3


@pytest.mark.parametrize("timeout", [20.0, 200.0])
def test_timeout_that_the_client_asked_for_keeps_no_transfer_for_ever(timeout):
    transfer = of(bytes(9), Agreed(512, 1, timeout, {"timeout": str(timeout)}))
    transfer.start(0.0)
    assert transfer.deadline == timeout
    found = waits(transfer, 0.0)
    assert sum(found) <= max(MAX_PATIENCE_SECONDS, timeout)
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
    transfer = of(bytes(512 * 20), Agreed(512, 8))
    transfer.start(0.0)
    transfer.receive(ack(8), 0.0)
    for _ in range(10_000):
        transfer.not_taken(8, transfer.deadline, 0.005)
        transfer.expire(transfer.deadline)
    assert ending(transfer) is Ending.SILENT
