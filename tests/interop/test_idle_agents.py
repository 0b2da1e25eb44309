"""What Tinkerbell's older agents cost that have nothing to do: no more than as many of today's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import older_agents


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_idle_older_agents_cost_no_more_than_a_thousand_of_todays(tmp_path: Path) -> None:
    found = older_agents.idle(tmp_path)
    print(f"{older_agents.AGENTS} idle agents: {found}")
    older, todays = found["older"], found["todays"]
    # What a busy machine makes of two that are the same.
    assert older["cpu"] <= todays["cpu"] * 1.15
    assert older["kb"] <= todays["kb"] * 1.05
