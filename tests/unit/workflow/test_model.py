"""A model check: every way that two servers, any number of controllers and one agent can go, as far as is told.

Breadth first through the states of `world`, by the `steps` of `moves`: commands and reports that are lost, repeated and
late, streams that break seen and unseen, crashes and reboots, informers that lag, timers that fire at any moment. On
each step: no action begins twice or out of order, no two at once, each write goes along an arrow of its author, an end
state never changes, nothing ends by its agent's word while the agent runs it, no agent that another server has seen is
taken for gone, no Workflow fails because its last action rebooted the machine. From each state that was found, with
nothing going wrong any more: everything ends, even with actions that hang until they are stopped, and whoever is
reached in time (and says what it holds) never waits for a timeout; the agent is idle, and what is deleted goes.

Breadth first finds the shortest way to a fault, which the failure prints. TINKEDGE_MODEL=deep looks much further.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping

import pytest

from tests.unit.workflow import moves, world
from tests.unit.workflow.world import State, ViolationError

DEEP = os.environ.get("TINKEDGE_MODEL") == "deep"
LONGEST = 300
"""Steps in which everything must have come to its end."""

Ways = Mapping[State, tuple[State, str] | None]
"""How each state was first reached."""

PLAIN, REBOOTS, SILENT = {}, {"reboots": True}, {"says": False}
"""Workflows whose last action reboots the machine; agents that do not say what they hold."""
# Workflows, servers, faults; the states that are looked at (0: all that there are), and those of the deep search.
SIZES = [
    pytest.param(1, 2, 0, PLAIN, 5_000, 300_000, id="nothing goes wrong"),
    pytest.param(1, 1, 1, PLAIN, 3_000, 0, id="one server, one fault"),
    pytest.param(1, 2, 1, PLAIN, 2_000, 0, id="two servers, one fault"),
    pytest.param(1, 2, 3, PLAIN, 3_000, 300_000, id="two servers, three faults"),
    pytest.param(2, 2, 2, PLAIN, 3_000, 300_000, id="two Workflows, two faults"),
    pytest.param(1, 2, 1, REBOOTS, 3_000, 300_000, id="a reboot, one fault"),
    pytest.param(1, 1, 1, SILENT, 2_000, 0, id="an agent that does not say, one fault"),
    pytest.param(1, 2, 2, REBOOTS | SILENT, 2_000, 300_000, id="a reboot, an agent that does not say, two faults"),
]


def explored(start: State, limit: int) -> Ways:
    """The states that can be reached, nearest first; at least `limit` if there are as many."""
    ways: dict[State, tuple[State, str] | None] = {start: None}
    todo = deque([start])
    while todo and not 0 < limit <= len(ways):
        state = todo.popleft()
        try:
            for label, after in moves.steps(state):
                after = moves.sorted_servers(after)
                if after not in ways:
                    ways[after] = (state, label)
                    todo.append(after)
        except ViolationError as violation:
            raise ViolationError("\n".join([*way_to(ways, state), str(violation)])) from violation
    return ways


def way_to(ways: Ways, state: State) -> list[str]:
    labels = []
    while (last := ways[state]) is not None:
        state, label = last
        labels.append(label)
    return labels[::-1]


def check_that_all_ends(ways: Ways, *, hangs: bool) -> None:
    """Raise ViolationError for a state from which something stays for ever. What is known to end is followed once."""
    ending: set[State] = set()
    for origin in ways:
        path: list[str] = []
        passed: list[State] = []
        try:
            for state, label in to_the_end(origin, hangs=hangs):
                passed.append(state)
                path.append(label)
                if state in ending:
                    break
        except ViolationError as violation:
            story = [*way_to(ways, origin), "--- from here on nothing goes wrong", *path, str(violation)]
            raise ViolationError("\n".join(story)) from violation
        ending.update(passed)


def to_the_end(state: State, *, hangs: bool) -> Iterator[tuple[State, str]]:
    """What happens when nothing goes wrong any more; then everything is deleted, and the same again."""
    for _ in range(LONGEST):
        step = moves.fair(state, hangs=hangs)
        if step is None:
            moves.settled(state)
            step = moves.deletion(state)
            if step is None:
                return
        label, state = step
        state = moves.sorted_servers(state)
        # An agent that does not say what it holds, and has lost it, is waited for until a timeout.
        if not hangs and state.agent.says and label.endswith(", in vain"):
            raise ViolationError("a timeout was waited for, although agent and server reach each other")
        yield state, label
    raise ViolationError(f"it goes on and on: {LONGEST} steps are not enough")


@pytest.mark.timeout(3600 if DEEP else 120)
@pytest.mark.parametrize(("workflows", "servers", "faults", "kind", "limit", "deep_limit"), SIZES)
def test_no_way_leads_to_a_second_run_or_to_a_state_that_stays(
    workflows: int, servers: int, faults: int, kind: dict[str, bool], limit: int, deep_limit: int
) -> None:
    ways = explored(world.first(workflows, servers, faults, **kind), deep_limit if DEEP else limit)
    check_that_all_ends(ways, hangs=False)
    check_that_all_ends(ways, hangs=True)
