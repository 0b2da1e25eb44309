"""Workflows in any state, and what an event makes of them."""

from __future__ import annotations

from typing import Any

from tests.support.objects import CREATED, action, workflow
from tink.api.v1alpha2 import Raw
from tink.workflow import events
from tink.workflow.machine import apply
from tink.workflow.table import Author

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"
"""NOW, as the state machine writes it."""
BEFORE = "2026-01-01T00:00:00.000Z"
"""When the Workflow came into its state."""
LETTERS = {"P": "Pending", "R": "Running", "S": "Succeeded", "F": "Failed"}
OF_CONTROLLER = (
    events.Prepared,
    events.PreparationFailed,
    events.CancelRequested,
    events.StartTimedOut,
    events.CancelTimedOut,
    events.WorkflowTimedOut,
    events.NothingLeft,
    events.HardwareMissing,
    events.HardwareBack,
    events.HardwareTimedOut,
    events.ActionTimedOut,
)


def in_state(state: str | None, actions: str = "PP", *, reboots: bool = False, **status: Any) -> Raw:
    """Return a Workflow with actions a0, a1, ... in these states (their first letters); `reboots`: the last one
    reboots the machine."""
    metadata = {"uid": "u-1", "resourceVersion": "7", "creationTimestamp": CREATED}
    made = [action(f"a{i}", LETTERS.get(each, each), name=f"action-{i}") for i, each in enumerate(actions)]
    if reboots:
        made[-1]["rendered"]["reboots"] = True
    fields = {"lastTransitioned": BEFORE, "actions": made, **status}
    return workflow(state=state, finalizers=(), metadata=metadata, **(fields if state is not None else {}))


def author_of(event: events.Event) -> Author:
    return Author.CONTROLLER if isinstance(event, OF_CONTROLLER) else Author.SERVER


def other_than(author: Author) -> Author:
    return Author.SERVER if author is Author.CONTROLLER else Author.CONTROLLER


def after(workflow: Raw, *happened: events.Event, now: float = NOW) -> Raw:
    """Return the status after events, each of which changes it."""
    for event in happened:
        status = apply(workflow, event, now, author_of(event))
        assert status is not None, f"{event} changes nothing"
        workflow = {**workflow, "status": status}
    return workflow["status"]


def unchanged(workflow: Raw, *happened: events.Event) -> bool:
    """Return True if none of the events changes the Workflow a second later."""
    return all(apply(workflow, event, NOW + 1, author_of(event)) is None for event in happened)


def letters(status: Raw) -> str:
    """Return the first letters of the states of the actions."""
    return "".join(each["state"][0] for each in status["actions"])
