"""Transfers against clients written from the rules of real ones, over networks that lose, double and reorder."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge.tftp.packets import Agreed, to_netascii
from edge.tftp.transfer import Ending
from tests.unit.tftp.conftest import CLIENTS, Edk2, of, packets_of

BLOCK = 16


def exchange(transfer, client, loss=0.0, seed=0, *, shuffle=False):
    """Run both to the end over a bad network, return the number of packets sent."""
    chance = random.Random(seed)
    now, sent = 0.0, 0
    to_client = deque(packets_of(transfer.start(now)))
    to_server = deque()
    for _ in range(200_000):
        sent += len(to_client)
        while to_client:
            if shuffle and len(to_client) > 1 and chance.random() < 0.2:
                to_client.rotate(-1)
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
    assert transfer.ended is not None
    assert transfer.ended.ending is Ending.SENT
    assert transfer.resent_blocks == 0


@given(
    st.integers(0, 4000), st.sampled_from([1, 4, 16]), st.sampled_from(CLIENTS), st.integers(0, 2**32), st.booleans()
)
@settings(max_examples=120, deadline=None)
def test_client_on_a_network_that_loses_doubles_and_reorders_gets_the_file(size, window, kind, seed, shuffle):
    content = random.Random(size).randbytes(size)
    accepted = {"windowsize": str(window)} if window > 1 else {}
    transfer, client = of(content, Agreed(64, window, None, accepted)), kind(64, window)
    sent = exchange(transfer, client, 0.1, seed, shuffle=shuffle)
    assert transfer.ended is not None
    if transfer.ended.ending is Ending.SENT:
        assert bytes(client.data) == content
    else:  # five losses in a row, or the loss of all the last acknowledgements
        assert transfer.ended.ending in (Ending.UNCONFIRMED, Ending.SILENT)
    blocks = size // 64 + 1
    assert sent <= blocks * (8 if shuffle else 6) + 10 * window


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
            self.to_server.append(self.client.timed_out())

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


def test_edk2_that_complains_of_every_stale_block_of_a_large_window_gets_its_file():
    content = random.Random(3).randbytes(BLOCK * 500)
    transfer, client = of(content, Agreed(BLOCK, 64)), Edk2(BLOCK, 64)
    to_client = packets_of(transfer.start(0.0))
    del to_client[9]
    sent = 64
    while transfer.ended is None:
        answers = [answer for packet in to_client if (answer := client.take(packet)) is not None]
        to_client = [packet for answer in answers for packet in packets_of(transfer.receive(answer, 0.0))]
        sent += len(to_client)
    assert bytes(client.data) == content
    assert sent == 501 + 55  # 10 to 64 once more
