"""Every arrow of the table can be gone, and every pair that is no arrow can't: for each state, event and author.

`table.py` is the design's table; what each event makes of each state is written down here again, without a look at the
program's own tables.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from tests.unit.workflow.cases import BEFORE, NOW, STAMP, author_of, in_state, other_than, unchanged
from tests.unit.workflow.table import ACTION_ARROWS, ARROWS, STATES, TABLE, TERMINAL, reach
from tink.api.v1alpha2 import ActionState, Raw, WorkflowState, WorkflowStatus
from tink.workflow import events, machine
from tink.workflow.machine import apply
from tink.workflow.table import ACTION, AUTHOR, WORKFLOW, Author, Cause

PREPARED = events.Prepared((events.PreparedAction("a0", {"name": "action-0", "image": "i"}),))


@dataclass(frozen=True)
class Case:
    """One event, and where it leads from each state; from a state that is missing, nowhere."""

    event: events.Event
    leads: dict[str | None, str] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()  # states that stay, but in which something else of the status changes

    @property
    def author(self) -> Author:
        return author_of(self.event)

    def __str__(self) -> str:
        return f"{type(self.event).__name__} {getattr(self.event, 'reason', '')}".strip()


# With two actions, of which the first runs in Running and Cancelling and the second has never begun.
CASES = [
    Case(PREPARED, {None: "Pending"}),
    Case(events.PreparationFailed("R", "m"), {None: "Failed"}),
    Case(events.Dispatched(), {"Pending": "Scheduled"}),
    Case(events.Reclaimed(), {}, frozenset({"Scheduled"})),
    Case(
        events.Undelivered(BEFORE), {"Scheduled": "Pending", "Cancelling": "Canceled"}, frozenset({"Pending"})
    ),  # Pending: another server has returned it without knowing that it was never sent
    Case(events.Undelivered(BEFORE, given=True), {"Scheduled": "Pending"}, frozenset({"Pending"})),
    Case(events.Undelivered("2026-01-01T00:00:00.001Z")),
    Case(events.GivenBack(), {"Scheduled": "Pending"}),
    Case(events.Rejected("AlreadyRunning", "m"), {"Scheduled": "Pending"}),
    Case(events.Rejected("UnknownWorkflow", "m"), {"Scheduled": "Pending", "Cancelling": "Canceled"}),
    Case(
        events.Rejected("AlreadyFinished", "m"),
        {"Scheduled": "Failed", "Running": "Failed", "Cancelling": "Canceled"},
    ),
    Case(
        events.CancelRequested("m"),
        {"Pending": "Canceled", "Scheduled": "Cancelling", "Running": "Cancelling"},
        frozenset({"Cancelling"}),  # another server had set it: the limit for the agent starts now
    ),
    Case(events.AgentLost(), {"Running": "Failed", "Cancelling": "Canceled"}),
    Case(events.AgentRefused("m"), {}, frozenset({"Pending"})),  # a condition, and no arrow
    Case(events.AgentSeen()),
    Case(events.AgentAway(30)),
    Case(events.StartTimedOut(1), {"Scheduled": "Failed"}),
    Case(events.CancelTimedOut(1), {"Cancelling": "Canceled"}),
    Case(events.WorkflowTimedOut(1), {"Running": "Failed"}),
    Case(events.NothingLeft(), {"Running": "Failed"}),
    Case(events.HardwareMissing("m"), {}, frozenset({"Pending", "Scheduled", "Running", "Cancelling"})),
    Case(events.HardwareBack()),
    Case(events.HardwareTimedOut("m"), {"Scheduled": "Failed", "Running": "Failed"}),
    Case(events.ActionTimedOut("a0", 1), {"Running": "Failed"}),
    Case(events.ActionTimedOut("a1", 1)),
    Case(events.ActionStarted("a0"), {"Pending": "Running", "Scheduled": "Running"}),
    Case(
        events.ActionStarted("a1"),
        {"Pending": "Running", "Scheduled": "Running"},
        frozenset({"Running", "Cancelling"}),
    ),
    Case(
        events.ActionSucceeded("a0"),
        {"Pending": "Running", "Scheduled": "Running"},
        frozenset({"Running", "Cancelling"}),
    ),
    Case(
        events.ActionFailed("a0", "R", "m"),
        {"Pending": "Failed", "Scheduled": "Failed", "Running": "Failed", "Cancelling": "Canceled"},
    ),
]
ONE_ACTION = [
    Case(
        events.ActionSucceeded("a0"),
        {"Pending": "Succeeded", "Scheduled": "Succeeded", "Running": "Succeeded", "Cancelling": "Canceled"},
    ),
]
# With one action, which reboots the machine.
REBOOTS = [
    Case(events.AgentLost(), {"Running": "Succeeded", "Cancelling": "Canceled"}),
    Case(
        events.Rejected("AlreadyFinished", "m"),
        {"Scheduled": "Failed", "Running": "Succeeded", "Cancelling": "Canceled"},
    ),
    Case(events.AgentSeen(), {}, frozenset({"Running"})),
    Case(events.AgentAway(30), {"Running": "Succeeded"}),
    Case(events.ActionTimedOut("a0", 1), {"Running": "Succeeded"}),
    Case(events.HardwareTimedOut("m"), {"Scheduled": "Failed", "Running": "Succeeded"}),
    Case(events.WorkflowTimedOut(1), {"Running": "Succeeded"}),
    Case(events.ActionFailed("a0", "R", "m"), CASES[-1].leads),
]
ALL = [*((c, 2, False) for c in CASES), *((c, 1, False) for c in ONE_ACTION), *((c, 1, True) for c in REBOOTS)]


def workflow_in(state: str | None, actions: int = 2, reboots: bool = False) -> Raw:
    first = {"Pending": "P", "Scheduled": "P", "Succeeded": "S", "Failed": "F"}.get(state or "", "R")
    return in_state(state, f"{first}P"[:actions], reboots=reboots, claimedAt=BEFORE)


def test_the_cases_are_all_events_that_the_state_machine_knows() -> None:
    known = {kind.__name__ for kind in events.Event.__args__}
    assert {type(case.event).__name__ for case in CASES} == known


def test_the_program_has_the_arrows_of_the_table_each_with_its_author_and_no_others() -> None:
    built = {
        (state and str(state), str(cause), str(target), str(AUTHOR[cause]))
        for state, arrows in WORKFLOW.items()
        for cause, target in arrows.items()
    }
    assert built == TABLE
    assert set(AUTHOR) == set(Cause)
    assert {state and str(state) for state in WORKFLOW} == set(STATES) == {None, *map(str, WorkflowState)}
    assert {(str(state), str(to)) for state, arrows in ACTION.items() for to in arrows.values()} == ACTION_ARROWS
    assert set(ACTION) == set(ActionState)


@pytest.mark.parametrize("arrow", sorted(ARROWS, key=str), ids=str)
def test_each_arrow_is_gone_by_some_event_of_its_author(arrow: tuple[str | None, str, str]) -> None:
    source, target, author = arrow
    assert any(
        case.author == author
        and (apply(workflow_in(source, actions, reboots), case.event, NOW, case.author) or {}).get("state") == target
        for case, actions, reboots in ALL
        if case.leads.get(source) == target
    ), "nothing that happens leads along this arrow"


@pytest.mark.parametrize(
    ("case", "state", "actions", "reboots"),
    [(case, state, actions, reboots) for (case, actions, reboots), state in product(ALL, STATES)],
    ids=str,
)
def test_event_follows_the_table_in_every_state(case, state, actions, reboots) -> None:
    workflow = workflow_in(state, actions, reboots)
    before = copy.deepcopy(workflow)
    if state is None and hasattr(case.event, "action_id"):
        with pytest.raises(machine.UnknownActionError):
            apply(workflow, case.event, NOW, case.author)
        return
    after = apply(workflow, case.event, NOW, case.author)
    assert workflow == before, "the object is everybody's: it must not be changed"
    target = case.leads.get(state)
    if target is not None:
        assert after is not None
        assert after["state"] == target
        assert target in reach(state, case.author), "the test itself does not keep to the table"
        assert after["lastTransitioned"] == STAMP
        WorkflowStatus.model_validate(after)
    elif state in case.marks:
        assert after is not None
        assert after["state"] == state
    else:
        assert after is None, f"{case} changed a Workflow that is {state}"
        assert state not in TERMINAL or not case.leads.get(state)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_nothing_changes_an_ended_workflow_in_which_an_action_runs(state: str) -> None:
    assert unchanged(in_state(state, "RP"), *(case.event for case in CASES))


@pytest.mark.parametrize(("case", "state"), list(product(CASES, STATES)), ids=str)
def test_component_may_not_write_an_arrow_of_the_other(case: Case, state: str | None) -> None:
    if case.leads.get(state) is None:
        return
    other = other_than(case.author)
    with pytest.raises(machine.NotAllowedError, match=f"written by the {case.author}, not by the {other}"):
        apply(workflow_in(state), case.event, NOW, other)


@pytest.mark.parametrize(("before", "event"), list(product(ActionState, ["started", "succeeded", "failed"])), ids=str)
def test_an_action_goes_only_along_its_arrows_in_each_state_of_its_workflow(before: ActionState, event: str) -> None:
    """A report that skips ahead goes two arrows at once; one for an action at its end goes none."""
    expected = {
        ("Pending", "started"): "Running",
        ("Pending", "succeeded"): "Succeeded",
        ("Pending", "failed"): "Failed",
        ("Running", "succeeded"): "Succeeded",
        ("Running", "failed"): "Failed",
    }
    report: Any = {
        "started": events.ActionStarted("a0"),
        "succeeded": events.ActionSucceeded("a0"),
        "failed": events.ActionFailed("a0", "R", "m"),
    }[event]
    for state in ("Pending", "Scheduled", "Running", "Cancelling"):
        workflow = workflow_in(state)
        workflow["status"]["actions"][0]["state"] = str(before)
        after = apply(workflow, report, NOW, Author.SERVER)
        reached = after["actions"][0]["state"] if after is not None else str(before)
        assert reached == expected.get((str(before), event), str(before))
