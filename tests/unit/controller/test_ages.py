"""How old timestamps are, whatever clocks do: too early an end loses work, none at all hangs a machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tink.controller.ages import TimestampAges

W = ("d", "w")
F = "status.lastTransitioned"


class Clocks:
    def __init__(self, wall: float = 1000.0) -> None:
        self.wall = wall
        self.steady = 50.0
        self.ages = TimestampAges(lambda: self.wall, lambda: self.steady)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def observe(self, stamp: float, *, live: bool, uid: str = "u") -> None:
        self.ages.observe(W, uid, [(F, stamp)], live=live)

    def age(self, stamp: float) -> float:
        return self.ages.age(W, F, stamp)


def test_after_a_restart_the_timestamp_counts() -> None:
    clocks = Clocks()
    clocks.observe(900, live=False)
    assert clocks.age(900) == 100
    clocks.pass_(7)
    clocks.observe(900, live=True)
    assert clocks.age(900) == 107


def test_a_clock_that_jumps_does_not_age_what_was_seen() -> None:
    clocks = Clocks()
    clocks.observe(990, live=False)
    for jump in (86_400.0 * 365, -86_400.0 * 700):
        clocks.wall += jump
        clocks.observe(990, live=True)
        assert clocks.age(990) == 10


def test_a_time_in_the_future_is_as_old_as_its_sight() -> None:
    clocks = Clocks()
    clocks.observe(1e10, live=False)
    assert clocks.age(1e10) == 0
    clocks.pass_(300)
    assert clocks.age(1e10) == 300


def test_what_happened_before_our_eyes_is_not_older_than_the_version_before() -> None:
    clocks = Clocks()
    clocks.observe(990, live=False)
    clocks.pass_(20)
    clocks.observe(400, live=True)  # by a component whose clock is ten minutes late
    assert clocks.age(400) == 20


def test_a_workflow_that_appears_while_we_watch_is_new_whatever_its_creator_s_clock_says() -> None:
    clocks = Clocks()
    clocks.observe(1, live=True)
    assert clocks.age(1) == 0


def test_a_workflow_made_anew_under_the_same_name_inherits_nothing() -> None:
    clocks = Clocks()
    clocks.observe(1000, live=True)
    clocks.pass_(500)
    clocks.observe(1000, live=True, uid="other")
    assert clocks.age(1000) == 0


def test_what_was_not_seen_is_as_old_as_the_clock_says() -> None:
    clocks = Clocks()
    assert clocks.age(700) == 300
    clocks.observe(990, live=False)
    assert clocks.age(995) == 5
    assert clocks.ages.age(W, "status.startedAt", 990) == 10


def test_nothing_is_kept_of_workflows_that_ended() -> None:
    clocks = Clocks()
    clocks.observe(990, live=False)
    assert len(clocks.ages) == 1
    clocks.ages.forget(W)
    clocks.ages.forget(W)
    assert len(clocks.ages) == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), max_size=8), st.floats(0, 2e9))
def test_from_first_sight_on_an_age_grows_exactly_with_the_steady_clock(
    steps: list[tuple[float, float]], stamp: float
) -> None:
    clocks = Clocks()
    clocks.observe(stamp, live=False)
    first, begun = clocks.age(stamp), clocks.steady
    assert first >= 0
    for seconds, jump in steps:
        clocks.pass_(seconds)
        clocks.wall += jump
        clocks.observe(stamp, live=True)
        assert abs(clocks.age(stamp) - first - (clocks.steady - begun)) < 1e-3
