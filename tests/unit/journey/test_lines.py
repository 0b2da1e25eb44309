"""The journey in the log: every event at ordinary times, a bounded number of lines in a storm, and the rest counted."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from edge.journey.events import Note, Outcome, Step
from edge.journey.lines import ROUTINE_LINES, WARNING_LINES
from edge.journey.recorder import Journey

if TYPE_CHECKING:
    from collections.abc import Callable

    class Clock:
        now: float
        __call__: Callable[[], float]


OFFER = Note(Step.DHCP, Outcome.OK, "DHCPOFFER", {"address": "10.0.0.1"})
REFUSAL = Note(Step.DHCP, Outcome.REFUSED, "no DHCP answer")


def mac(number: int) -> str:
    return f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="edge.journey")
    return lambda: [record.getMessage() for record in caplog.records]


def storm(journey: Journey, events: int, note: Note = OFFER, machines: int = 300) -> None:
    for number in range(events):
        journey.note(mac(number % machines), note)


def test_every_event_has_its_line_in_order_at_ordinary_times(
    journey: Journey, clock: Clock, said: Callable[[], list[str]]
) -> None:
    for number in range(3 * ROUTINE_LINES):
        clock.now += 1 / (ROUTINE_LINES // 2)
        journey.record(mac(1), Step.DHCP, Outcome.OK, str(number))
    assert [line.rpartition(" ")[2] for line in said()] == [str(number) for number in range(3 * ROUTINE_LINES)]


def test_storm_is_summed_up_when_its_second_is_over(
    journey: Journey, clock: Clock, said: Callable[[], list[str]]
) -> None:
    storm(journey, ROUTINE_LINES + 1_200)
    assert len(said()) == ROUTINE_LINES
    clock.now += 1.25
    storm(journey, 1)
    assert said()[ROUTINE_LINES:] == [
        "1,200 more dhcp events (ok) of 300 machines in 1.2 s are in the journey, without a line here",
        f"{mac(0)} dhcp ok: DHCPOFFER",
    ]


def test_after_a_storm_lines_are_written_again(journey: Journey, clock: Clock, said: Callable[[], list[str]]) -> None:
    for _ in range(3):
        storm(journey, ROUTINE_LINES + 10)
        clock.now += 1
    clock.now += 60
    storm(journey, ROUTINE_LINES)
    lines = said()
    assert sum("more dhcp events" in line for line in lines) == 3
    assert len(lines) == 4 * ROUTINE_LINES + 3


def test_storm_of_offers_takes_no_line_from_other_steps_and_warnings(
    journey: Journey, said: Callable[[], list[str]]
) -> None:
    storm(journey, ROUTINE_LINES + 100)
    journey.record(mac(9), Step.KERNEL, Outcome.OK, "kernel sent")
    journey.note(mac(9), REFUSAL)
    assert said()[ROUTINE_LINES:] == [f"{mac(9)} kernel ok: kernel sent", f"{mac(9)} dhcp refused: no DHCP answer"]


def test_storm_of_refusals_is_bounded_and_its_sum_is_a_warning(
    journey: Journey, caplog: pytest.LogCaptureFixture
) -> None:
    storm(journey, WARNING_LINES + 50, REFUSAL)
    journey.flush()
    assert len(caplog.records) == WARNING_LINES + 1
    last = caplog.records[-1]
    assert last.levelno == logging.WARNING
    assert last.__dict__["fields"] == {"step": "dhcp", "outcome": "refused", "events": 50, "machines": 50}


async def test_end_of_each_storm_is_said_though_nothing_else_happens(
    journey: Journey, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.journey.lines.PERIOD_SECONDS", 0.02)
    for number in (1, 2):
        storm(journey, ROUTINE_LINES + 5)
        async with asyncio.timeout(20):
            while len(said()) < number * (ROUTINE_LINES + 1):
                await asyncio.sleep(0.01)
        assert said()[-1].startswith("5 more dhcp events")


def test_what_the_log_is_owed_is_said_at_the_end_and_once(journey: Journey, said: Callable[[], list[str]]) -> None:
    storm(journey, ROUTINE_LINES + 7, machines=ROUTINE_LINES + 7)
    journey.flush()
    journey.flush()
    assert [line for line in said() if " more " in line] == [
        "7 more dhcp events (ok) of 7 machines in 0.0 s are in the journey, without a line here"
    ]


def test_clock_that_was_set_back_silences_nothing(
    journey: Journey, clock: Clock, said: Callable[[], list[str]]
) -> None:
    storm(journey, ROUTINE_LINES + 1)
    clock.now += 10
    storm(journey, ROUTINE_LINES)
    clock.now -= 3600
    before = len(said())
    storm(journey, 3)
    assert len(said()) == before + 3


def test_each_event_is_counted_whether_it_has_a_line_or_not(journey: Journey, clock: Clock) -> None:
    storm(journey, ROUTINE_LINES + 100)
    clock.now += 2
    storm(journey, 10)
    assert journey.counts()[Step.DHCP, Outcome.OK] == ROUTINE_LINES + 110


def test_line_carries_its_facts_for_collectors(journey: Journey, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="edge.journey")
    journey.note(mac(1), OFFER)
    assert caplog.records[0].__dict__["fields"] == {
        "mac": mac(1),
        "step": "dhcp",
        "outcome": "ok",
        "detail": {"address": "10.0.0.1"},
    }


def test_quiet_level_costs_no_lines(journey: Journey, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="edge.journey")
    storm(journey, ROUTINE_LINES + 10)
    journey.flush()
    assert caplog.records == []
