"""How often each may do something."""

from __future__ import annotations

from tink.limits.token_bucket import TokenBuckets


def test_who_passes_seldom_is_never_held_up_and_forgotten() -> None:
    buckets = TokenBuckets(3, 1.0)
    assert [buckets.allows("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert buckets.allows("b", 0.0)
    assert [buckets.allows("a", 1.0), buckets.allows("a", 1.0)] == [True, False]
    assert len(buckets) == 1, "b has all of its burst again"
    assert all(buckets.allows("c", float(second)) for second in range(10, 40))
    assert len(buckets) == 1


def test_of_many_keys_at_once_those_that_passed_last_are_remembered() -> None:
    buckets = TokenBuckets(1, 1.0, capacity=10)
    assert all(buckets.allows(number, 0.0) for number in range(50))
    assert len(buckets) == 10
    assert not buckets.allows(49, 0.0)
