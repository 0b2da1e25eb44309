"""Packets that come fast may wait for a moment, one that comes alone must not; and none may be forgotten."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge.listener import ModeratedListener, moderation, turns
from edge.listener.moderation import INTERVAL_SECONDS, Moderation
from tests.waiting import until


class Clock:
    """A clock that is moved by hand; seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def meet(tested: Moderation, clock: Clock, number: int, *, packets: int, seconds: float) -> None:
    """So many turns, each of so many packets and so long after the one before."""
    for _ in range(number):
        clock.now += seconds
        tested.turned(packets)


def gathering(clock: Clock) -> Moderation:
    """It has met packets that come fast and singly."""
    tested = Moderation(clock)
    meet(tested, clock, 32, packets=1, seconds=INTERVAL_SECONDS / 10)
    assert tested.gathers
    return tested


# --- the decision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1, 1500, 7000, 15_000])
def test_packets_that_would_hardly_meet_in_an_interval_are_answered_at_once(rate: int) -> None:
    clock = Clock()
    tested = Moderation(clock)
    meet(tested, clock, 1000, packets=1, seconds=1 / rate)
    assert not tested.gathers


@pytest.mark.parametrize("rate", [20_000, 40_000])
def test_packets_that_come_fast_and_singly_gather(rate: int) -> None:
    clock = Clock()
    tested = Moderation(clock)
    meet(tested, clock, 64, packets=1, seconds=1 / rate)
    assert tested.gathers


def test_packets_that_come_in_heaps_need_not_gather() -> None:
    clock = Clock()
    tested = Moderation(clock)
    meet(tested, clock, 1000, packets=30, seconds=INTERVAL_SECONDS)
    assert not tested.gathers


def test_few_fast_ones_after_a_long_silence_are_no_rate() -> None:
    clock = Clock()
    tested = Moderation(clock)
    for _ in range(100):
        meet(tested, clock, 31, packets=1, seconds=1e-6)
        meet(tested, clock, 1, packets=1, seconds=60)
    assert not tested.gathers


def test_when_it_is_quiet_again_packets_are_answered_at_once() -> None:
    clock = Clock()
    tested = gathering(clock)
    meet(tested, clock, 32, packets=0, seconds=INTERVAL_SECONDS)
    assert not tested.gathers


def test_packets_gather_while_there_are_enough() -> None:
    clock = Clock()
    tested = gathering(clock)
    meet(tested, clock, 10_000, packets=6, seconds=INTERVAL_SECONDS)
    assert tested.gathers


def test_who_waits_for_an_answer_before_it_asks_again_is_not_slowed_for_long() -> None:
    clock = Clock()
    tested = gathering(clock)
    slow = 0
    for _ in range(10_000):
        # Four clients: one after the other while they are answered at once, all in one turn when that takes a while.
        clock.now += INTERVAL_SECONDS if tested.gathers else INTERVAL_SECONDS / 10
        slow += tested.gathers
        tested.turned(4 if tested.gathers else 1)
    assert slow < 500


def test_heaps_that_one_call_can_hardly_take_are_read_without_a_pause() -> None:
    clock = Clock()
    tested = gathering(clock)
    meet(tested, clock, 32, packets=64, seconds=INTERVAL_SECONDS)
    assert not tested.gathers


# --- the listener --------------------------------------------------------------------------------------------------


class ByHand(Moderation):
    """A test decides whether packets gather, from the next turn on."""

    def turned(self, packets: int) -> None:
        pass


class Served:
    """A listener on a pair of sockets."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ours.setblocking(False)
        self.heard: list[bytes] = []
        self.errors: list[OSError] = []
        self.reads = 0
        self.moderation = ByHand()
        self.listener = ModeratedListener(
            self.ours,
            "test",
            self._receive,
            lambda _, packets: self.heard.extend(packets),
            after_turn=lambda: None,
            moderation=self.moderation,
        )
        self.listener.start()

    def _receive(self, sock: socket.socket) -> list[bytes]:
        self.reads += 1
        if self.errors:
            raise self.errors.pop()
        return [sock.recv(100)]

    def is_heard(self, *packets: bytes) -> bool:
        return self.heard == list(packets)

    async def gather(self) -> None:
        """The next packet is the last of those that are answered at once."""
        self.moderation.gathers = True
        self.theirs.send(b"at once")
        await until(lambda: self.listener.gathers)

    def is_waited_for(self) -> bool:
        """Whether the event loop waits for the socket itself; it does not afterwards."""
        return asyncio.get_running_loop().remove_reader(self.ours)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = Served()
    yield found
    if found.ours.fileno() >= 0:
        found.listener.stop()
    found.theirs.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_packets_that_gather_are_all_heard_in_order(served: Served) -> None:
    await served.gather()
    packets = [b"%d" % number for number in range(50)]
    for packet in packets:
        served.theirs.send(packet)
    await until(lambda: served.is_heard(b"at once", *packets))
    assert not served.is_waited_for()


async def test_socket_is_waited_for_again_when_packets_gather_no_more(served: Served) -> None:
    await served.gather()
    served.moderation.gathers = False
    await until(lambda: not served.listener.gathers)
    served.theirs.send(b"alone")
    await until(lambda: served.is_heard(b"at once", b"alone"))
    assert served.is_waited_for()


async def test_nothing_spins_while_packets_gather(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moderation, "INTERVAL_SECONDS", 0.02)
    began = time.monotonic()
    await served.gather()
    before = served.reads
    await until(lambda: served.reads >= before + 5)
    assert time.monotonic() - began >= (served.reads - before) * 0.02


async def test_stopping_while_packets_gather_leaves_no_descriptor(served: Served) -> None:
    before = descriptors()
    await served.gather()
    assert descriptors() == before + 1
    served.listener.stop()
    assert descriptors() == before - 1  # the socket's
    await asyncio.sleep(0.01)  # a reader on a closed descriptor would raise in the loop


async def test_error_while_packets_gather_is_rested_from(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PAUSE_SECONDS", 0.01)
    await served.gather()
    served.errors.append(OSError(errno.ENETDOWN, "Network is down"))
    await until(lambda: "Network is down; going on" in caplog.text)
    assert not served.listener.gathers
    served.theirs.send(b"afterwards")
    await until(lambda: served.is_heard(b"at once", b"afterwards"))


async def test_without_a_timer_packets_are_answered_at_once(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_seconds: float) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(moderation, "interval_timer", none_left)
    served.moderation.gathers = True
    packets = [b"%d" % number for number in range(5)]
    for packet in packets:
        served.theirs.send(packet)
    await until(lambda: served.is_heard(*packets))
    assert caplog.text.count("test: no timer to let packets gather by: Too many open files") == 1
    assert served.is_waited_for()
