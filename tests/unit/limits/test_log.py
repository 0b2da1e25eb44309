"""A log at a bounded rate, of which no tenant takes all."""

from __future__ import annotations

import logging

import pytest

from tink.limits.log import LimitedLog

log = logging.getLogger("test.limited")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_lines_of_one_tenant_leave_room_for_those_of_others(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = LimitedLog(log, lambda: now, capacity=20, interval=10.0, share=5)
    for number in range(100):
        limited.warning("hostile %d", number, owner="hostile")
    limited.warning("victim", owner="victim")
    limited.warning("nobody's")
    assert said(caplog) == [*(f"hostile {number}" for number in range(5)), "victim", "nobody's"]
    now = 10.0
    limited.warning("hostile again", owner="hostile")
    left_out = "95 more lines like the last ones were left out (most of them: hostile 95)"
    assert said(caplog)[-2:] == [left_out, "hostile again"]


def test_lines_are_bounded_in_all(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(log, lambda: 0.0, capacity=20)
    written = [limited.warning("%d", number, owner=number) for number in range(100)]
    assert written == [True] * 20 + [False] * 80
    assert len(said(caplog)) == 20


def test_the_same_is_said_once_in_the_interval_and_is_not_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = LimitedLog(log, lambda: now, capacity=2, interval=60.0)
    for second in (0.0, 1.0, 59.0, 60.0):
        now = second
        limited.warning("the API is away", key="API")
    assert said(caplog) == ["the API is away"] * 2


def test_what_is_left_out_all_the_time_is_one_line_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = LimitedLog(log, lambda: now, capacity=1, interval=60.0)
    for now in range(120):
        limited.warning("%d", now, key=now)
    assert said(caplog) == ["0", "60", "59 more lines like the last ones were left out"]


def test_a_level_and_a_stack_trace_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(log, lambda: 0.0, capacity=1)
    try:
        raise ValueError("boom")
    except ValueError:
        limited.log(logging.ERROR, "failed", exc_info=True)
    assert caplog.records[0].levelno == logging.ERROR
    assert "boom" in caplog.text
