"""A flood of equal happenings must not become a flood of log lines."""

from __future__ import annotations

import time

from tink.limits.once_per import OncePer


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
