"""So much for each and so much for all."""

from __future__ import annotations

from tink.limits.allowance import Allowance


def test_each_has_its_share_and_all_have_theirs() -> None:
    allowance = Allowance(2, 5)
    assert [allowance.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert [allowance.take("b", 0.5) for _ in range(3)] == [True, True, False]
    assert [allowance.take("c", 0.9) for _ in range(2)] == [True, False]
    assert allowance.take("a", 1.0)


def test_invented_keys_cost_no_memory_and_a_clock_set_back_stops_nobody() -> None:
    allowance = Allowance(2, 100)
    assert sum(allowance.take(number, 5.0) for number in range(10_000)) == 100
    assert len(allowance._passed) == 100
    assert allowance.take("a", -5.0)
