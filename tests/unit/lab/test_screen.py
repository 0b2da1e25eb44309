"""What the lab shows: one line a step, with times that mean something."""

from __future__ import annotations

import pytest

from edge.journey.events import Outcome
from edge.lab.screen import Screen


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_times_are_the_labs_in_brackets_and_the_machines_from_power_on(clock, capsys):
    screen = Screen(clock)
    clock.now += 2.5
    screen.step("build", "OSIE")
    assert screen.since_power_on() == 0
    clock.now += 10
    screen.power_on()
    clock.now += 0.25
    screen.step("dhcp", "DHCPACK")
    assert screen.elapsed() == 12.75
    assert screen.since_power_on() == 0.25
    assert capsys.readouterr().out.splitlines() == ["[  2.50 s] ✓ build     OSIE", "   0.25 s ✓ dhcp      DHCPACK"]


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_has_a_sign_of_its_own(clock, capsys, outcome):
    Screen(clock).step("step", "message", outcome)
    sign = {Outcome.OK: "✓", Outcome.INFO: "·", Outcome.WARNING: "?", Outcome.REFUSED: "!", Outcome.FAILED: "✗"}[
        outcome
    ]
    assert f" {sign} step" in capsys.readouterr().out


def test_errors_go_to_standard_error_and_without_a_terminal_without_colours(clock, capsys):
    screen = Screen(clock)
    screen.error("lab failed")
    screen.block("two\nlines")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("two\nlines\n", "lab failed\n")


def test_silence_is_broken_by_what_is_waited_for(clock, capsys):
    screen = Screen(clock, terminal=False)
    screen.step("build", "OSIE")
    clock.now += 1
    screen.waiting(lambda: "fetching")
    assert "fetching" not in capsys.readouterr().out
    clock.now += 2
    screen.waiting(lambda: "fetching")
    screen.waiting(lambda: "fetching")
    assert capsys.readouterr().out.splitlines() == ["[  3.00 s] · ...       fetching"]


def test_on_a_terminal_it_is_one_line_that_the_next_step_replaces(clock, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen(clock, terminal=True)
    clock.now += 1
    screen.waiting(lambda: "fetching " + "x" * 100)
    clock.now += 1
    screen.waiting(lambda: "unpacking")
    screen.step("build", "done")
    written = capsys.readouterr().out
    assert written.count("\n") == 1
    first, second, third = written.split("\r\033[K")
    assert len(first) == 39
    assert second == "[  2.00 s] · ...       unpacking"
    assert third == "[  2.00 s] ✓ build     done\n"
