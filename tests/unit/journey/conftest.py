"""A clock that stands still until a test moves it, and a journey that lives by it."""

from __future__ import annotations

import pytest

from edge.journey.recorder import Journey


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journey(clock: Clock) -> Journey:
    return Journey(clock, per_machine=5, machines=3, strangers=2)
