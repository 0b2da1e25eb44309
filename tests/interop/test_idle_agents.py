"""What Tinkerbell's older agents cost that have nothing to do: no more than as many of today's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import older_agents


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_idle_older_agents_cost_no_more_than_a_thousand_of_todays(tmp_path: Path) -> None:
    older, todays = older_agents.idle(tmp_path)
    print(f"{older_agents.AGENTS} idle agents: {older} of older ones, {todays} of today's")
    assert todays is not None
    assert older["cpu"] <= todays["cpu"]
    assert older["kb"] <= todays["kb"]
