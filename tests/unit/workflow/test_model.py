"""A model check: every order of steps of two servers, any number of controllers and one agent.

Breadth first through the states of `world`, by the `steps` of `moves`: commands and reports that are lost, repeated and
late, streams that break seen and unseen, crashes and reboots, informers that lag, timers that fire at any moment. On
each step: no action begins twice or out of order, no two at once, each write goes along an arrow of its author, an end
state never changes, nothing ends by its agent's word while the agent runs it, no agent that another server has seen is
taken for gone, no Workflow fails because its last action rebooted the machine. From each state that was found, with
nothing going wrong any more: everything ends, even with actions that hang until they are stopped, and any agent that is
reached in time (and says what it holds) never waits for a timeout; the agent is idle, and what is deleted goes. And
what was never sent ends as soon as it is cancelled, with only a controller.

Breadth first finds the shortest way to a fault, which the failure prints. TINKEDGE_MODEL=deep looks much further.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.unit.workflow import moves, progress, world
from tests.unit.workflow.table import TERMINAL
from tests.unit.workflow.world import State, ViolationError

DEEP = os.environ.get("TINKEDGE_MODEL") == "deep"
LONGEST = 300
"""Steps in which everything must have come to its end."""

PLAIN, REBOOTS, SILENT = {}, {"reboots": True}, {"says": False}
"""Workflows whose last action reboots the machine; agents that do not say what they hold."""
# Workflows, servers, faults; the states that are looked at (0: all that there are), and those of the deep search.
SIZES = [
    pytest.param(1, 2, 0, PLAIN, 0, 0, id="nothing goes wrong"),
    pytest.param(1, 1, 1, PLAIN, 3_000, 0, id="one server, one fault"),
    pytest.param(1, 2, 1, PLAIN, 2_000, 0, id="two servers, one fault"),
    pytest.param(1, 2, 3, PLAIN, 3_000, 300_000, id="two servers, three faults"),
    pytest.param(2, 2, 2, PLAIN, 3_000, 300_000, id="two Workflows, two faults"),
    pytest.param(1, 2, 1, REBOOTS, 3_000, 0, id="a reboot, one fault"),
    pytest.param(1, 1, 1, SILENT, 2_000, 0, id="an agent that does not say, one fault"),
    pytest.param(1, 2, 2, REBOOTS | SILENT, 2_000, 300_000, id="a reboot, an agent that does not say, two faults"),
]


WISHES = ((moves.cancellations, TERMINAL), (moves.deletions, frozenset[str]()))
"""The actions of a user on a Workflow, with the states in which it may be afterwards, if it still exists."""


class Found:
    """The states that were found, in that order, and how each was reached. What is kept of a state are the numbers of
    its parts, for there are few different ones: some 200 bytes a state."""

    def __init__(self, start: State) -> None:
        self._parts: dict[Any, int] = {}
        self._by_number: list[Any] = []
        self._places: dict[bytes, int] = {}
        self._states: list[bytes] = []
        self._came_from = array("i")
        self._by = array("i")
        self.add(start, 0, "")

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, place: int) -> State:
        api, agent, ghosts, faults, said, sent, *servers = (self._by_number[n] for n in array("i", self._states[place]))
        return State(api, tuple(servers), agent, ghosts, faults, said, sent)

    def key(self, state: State) -> bytes:
        """The same for equal states, and for no others."""
        parts = (state.api, state.agent, state.ghosts, state.faults, state.said, state.sent, *state.servers)
        return array("i", map(self._number, parts)).tobytes()

    def add(self, state: State, before: int, label: str) -> None:
        key = self.key(state)
        if key not in self._places:
            self._places[key] = len(self._states)
            self._states.append(key)
            self._came_from.append(before)
            self._by.append(self._number(label))

    def way_to(self, place: int) -> list[str]:
        labels = []
        while place > 0:
            labels.append(self._by_number[self._by[place]])
            place = self._came_from[place]
        return labels[::-1]

    def _number(self, part: Any) -> int:
        # Equal numbers and truth values are different parts.
        number = self._parts.setdefault((type(part), part), len(self._by_number))
        if number == len(self._by_number):
            self._by_number.append(part)
        return number


def explored(start: State, limit: int) -> Found:
    """The states that can be reached, nearest first; at least `limit` if there are as many."""
    found = Found(start)
    place = 0
    while place < len(found) and not 0 < limit <= len(found):
        try:
            for label, after in moves.steps(found[place]):
                found.add(moves.sorted_servers(after), place, label)
        except ViolationError as violation:
            raise ViolationError("\n".join([*found.way_to(place), str(violation)])) from violation
        place += 1
    return found


def check_that_all_ends(found: Found, *, hangs: bool) -> None:
    """Raise ViolationError for a state from which something never ends. A state known to end is followed once."""
    ending: set[bytes] = set()
    for origin in range(len(found)):
        path: list[str] = []
        passed: list[bytes] = []
        try:
            for state, label in to_the_end(found[origin], hangs=hangs):
                path.append(label)
                passed.append(found.key(state))
                if passed[-1] in ending:
                    break
        except ViolationError as violation:
            story = [*found.way_to(origin), "--- from here on nothing goes wrong", *path, str(violation)]
            raise ViolationError("\n".join(story)) from violation
        ending.update(passed)


def check_that_nothing_waits_for_an_agent_that_never_had_it(found: Found) -> None:
    """Raise ViolationError for a state in which a Workflow that was never sent does not end as soon as it is cancelled,
    or goes as soon as it is deleted, even if the machine never returns."""
    for origin in range(len(found)):
        state = found[origin]
        waits = set(range(len(state.api))) - state.sent
        if not waits:
            continue
        for (wish, ends), soon in product(WISHES, (False, True)):
            after = progress.unattended(state, wish, soon=soon)
            for workflow in waits:
                last = after.api[workflow][-1]
                if last != world.GONE and world.state_of(last) not in ends:
                    story = [*found.way_to(origin), f"{wish.__name__}, and the machine is away: w{workflow} waits"]
                    raise ViolationError("\n".join(story))


def to_the_end(state: State, *, hangs: bool) -> Iterator[tuple[State, str]]:
    """The progress without further failures; then everything is deleted, and the progress after that."""
    for _ in range(LONGEST):
        step = progress.fair(state, hangs=hangs)
        if step is None:
            progress.settled(state)
            step = progress.deletion(state)
            if step is None:
                return
        label, state = step
        state = moves.sorted_servers(state)
        # An agent that does not say what it holds, and has lost it, is waited for until a timeout.
        if not hangs and state.agent.says and label.endswith(", in vain"):
            raise ViolationError("a timeout was waited for, although agent and server reach each other")
        yield state, label
    raise ViolationError(f"it goes on and on: {LONGEST} steps are not enough")


@pytest.mark.timeout(3600 if DEEP else 600)
@pytest.mark.parametrize(("workflows", "servers", "faults", "kind", "limit", "deep_limit"), SIZES)
def test_no_way_leads_to_a_second_run_or_to_a_state_that_stays(
    workflows, servers, faults, kind, limit, deep_limit
) -> None:
    found = explored(world.first(workflows, servers, faults, **kind), deep_limit if DEEP else limit)
    check_that_all_ends(found, hangs=False)
    check_that_all_ends(found, hangs=True)
    check_that_nothing_waits_for_an_agent_that_never_had_it(found)
