"""Warnings at a bounded rate, of which no tenant takes all."""

from __future__ import annotations

import logging

import pytest

from tink.limits.complaints import Complaints

log = logging.getLogger("test.complaints")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_lines_of_one_tenant_leave_room_for_those_of_others(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = Complaints(log, lambda: now)
    for number in range(100):
        complaints.warn("hostile %d", number, whose="hostile")
    complaints.warn("victim", whose="victim")
    complaints.warn("nobody's")
    assert said(caplog) == [*(f"hostile {number}" for number in range(5)), "victim", "nobody's"]
    now = 10.0
    complaints.warn("hostile again", whose="hostile")
    assert said(caplog)[-2:] == ["95 more lines like the last ones were left out", "hostile again"]


def test_lines_are_bounded_in_all(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(log, lambda: 0.0)
    for number in range(100):
        complaints.warn("%d", number, whose=number)
    assert len(said(caplog)) == 20
