"""How old timestamps are, whatever clocks do: too early an end loses work, none at all hangs a machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tink.controller.reconcile import TimestampAges

W = ("d", "w")
F = "status.lastTransitioned"


class Clocks:
    def __init__(self, stamp: float, *, live: bool = False) -> None:
        self.wall, self.steady = 1000.0, 50.0
        self.ages = TimestampAges(lambda: self.wall, lambda: self.steady)
        self.observe(stamp, live=live)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def observe(self, stamp: float, *, live: bool = True, uid: str = "u") -> None:
        self.ages.observe(W, uid, [(F, stamp)], live=live)

    def age(self, stamp: float) -> float:
        return self.ages.age(W, F, stamp)


def test_after_a_restart_the_timestamp_counts_and_no_clock_that_jumps_ages_what_was_seen() -> None:
    clocks = Clocks(900)
    assert clocks.age(900) == 100
    clocks.pass_(7)
    for jump in (0, 86_400.0 * 365, -86_400.0 * 700):
        clocks.wall += jump
        clocks.observe(900)
        assert clocks.age(900) == 107


def test_a_time_in_the_future_is_as_old_as_its_sight() -> None:
    clocks = Clocks(1e10)
    assert clocks.age(1e10) == 0
    clocks.pass_(300)
    assert clocks.age(1e10) == 300


def test_what_happened_before_our_eyes_is_not_older_than_the_version_before() -> None:
    clocks = Clocks(990)
    clocks.pass_(20)
    clocks.observe(400)  # by a component whose clock is ten minutes late
    assert clocks.age(400) == 20


def test_a_workflow_that_appears_while_we_watch_is_new_whatever_clocks_or_its_predecessor_say() -> None:
    clocks = Clocks(1, live=True)
    assert clocks.age(1) == 0
    clocks.pass_(500)
    clocks.observe(1, uid="other")
    assert clocks.age(1) == 0, "it was made anew under the same name"


def test_what_was_not_seen_is_as_old_as_the_clock_says_and_what_ended_is_forgotten() -> None:
    clocks = Clocks(990)
    assert clocks.age(995) == 5
    assert clocks.ages.age(W, "status.startedAt", 990) == 10
    assert len(clocks.ages) == 1
    for _ in range(2):
        clocks.ages.forget(W)
        assert len(clocks.ages) == 0
    assert clocks.age(700) == 300


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), max_size=8), st.floats(0, 2e9))
def test_from_first_sight_on_an_age_grows_exactly_with_the_steady_clock(
    steps: list[tuple[float, float]], stamp: float
) -> None:
    clocks = Clocks(stamp)
    first, begun = clocks.age(stamp), clocks.steady
    assert first >= 0
    for seconds, jump in steps:
        clocks.pass_(seconds)
        clocks.wall += jump
        clocks.observe(stamp)
        assert abs(clocks.age(stamp) - first - (clocks.steady - begun)) < 1e-3
