"""A flood of equal happenings must not become a flood of log lines."""

from __future__ import annotations

import time

from tink.limits.once_per import OncePer, Tally, times


def test_a_key_passes_once_in_the_interval_and_again_after_it() -> None:
    once = OncePer(60, 10)
    assert [once.due("a", 0), once.due("a", 59), once.due("b", 59), once.due("a", 60)] == [True, False, True, True]


def test_more_keys_than_the_capacity_are_silent_until_time_has_passed() -> None:
    once = OncePer(60, 2)
    assert [once.due(key, 0) for key in "abc"] == [True, True, False]
    assert once.due("c", 60)
    assert len(once) == 1


def test_a_clock_that_was_set_back_does_not_silence_for_ever() -> None:
    once = OncePer(60, 2)
    assert once.due("a", 1000)
    assert once.due("a", 10)


def test_many_keys_whose_time_is_up_do_not_slow_down_those_that_come_later() -> None:
    def fastest(once: OncePer) -> float:
        def seconds() -> float:
            before = time.perf_counter()
            for _ in range(1000):
                once.due("late", 61.5)
            return time.perf_counter() - before

        return min(seconds() for _ in range(5))

    crowded, empty = OncePer(60.0, 1 << 17), OncePer(60.0, 1 << 17)
    for number in range(100_000):
        crowded.due(number, 0.0)
    for once in (crowded, empty):
        once.due("late", 61.0)
    assert fastest(crowded) < 10 * fastest(empty)


def test_one_owner_has_its_share_and_has_it_again_when_its_time_is_up() -> None:
    once = OncePer(60, 10, share=2)
    assert [once.due(key, 0, "greedy") for key in "abc"] == [True, True, False]
    assert once.due("d", 0, "modest")
    assert once.due("e", 0)
    assert [once.due(key, 60, "greedy") for key in "cde"] == [True, True, False]
    assert once._of_owner == {"greedy": 2}, "owners that have no entry take no room"


def test_a_key_that_was_refused_has_not_passed() -> None:
    once = OncePer(60, 1)
    assert [once.due(key, 0) for key in "ab"] == [True, False]
    assert ["a" in once, "b" in once] == [True, False]


def test_tally_says_how_often_a_key_was_held_back() -> None:
    tally = Tally(60.0, 10)
    assert [tally.due("a", now) for now in (0.0, 1.0, 2.0, 60.0, 61.0)] == [0, None, None, 2, None]
    assert times(2) == " (2 more times since this was last said)"
    assert times(0) == ""


def test_tally_of_invented_keys_is_bounded() -> None:
    tally = Tally(60.0, 10)
    for number in range(1000):
        tally.due(number, 0.0)
        tally.due(number, 0.0)
    assert len(tally._held_back) <= 10
