"""Workflows as steps of a machine's journey: what the controller, the server and the agent wrote into the status.

An informer of Workflows calls `on_change(new, old)`; the differences between the two objects become events of the
machine that the Workflow's Hardware is (found in `edge.machines.inventory`). An informer that hands in an unchanged
object (a relist, a resync) causes no event. The MAC of each Workflow that runs is remembered, so that its end is on the
journey even if its Hardware has been deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from edge.journey.events import Outcome, Step, Value
from edge.journey.history import detail_of, message_of, step_of
from edge.journey.recorder import Journey
from edge.machines import Inventory, Machine
from tink.api.v1alpha2 import ActionState, ActionStatus, Raw, Workflow, WorkflowState
from tink.limits.newest import Newest
from tink.workflow.ended import has_ended
from tink.workflow.status import status_of, unprepared

log = logging.getLogger(__name__)

_LOOKED_AT = 100
"""So many of the last events of a machine are looked at for what an earlier run has told."""

_REMEMBERED = 10_000
"""Workflows whose machine is remembered, beyond the deletion of its Hardware."""

_STATE_OUTCOME = {
    WorkflowState.PENDING: Outcome.INFO,
    WorkflowState.SCHEDULED: Outcome.INFO,
    WorkflowState.RUNNING: Outcome.INFO,
    WorkflowState.CANCELLING: Outcome.INFO,
    WorkflowState.SUCCEEDED: Outcome.OK,
    WorkflowState.FAILED: Outcome.FAILED,
    WorkflowState.CANCELED: Outcome.INFO,
}


@dataclass(frozen=True, slots=True)
class _Entry:
    step: Step
    outcome: Outcome
    message: str
    detail: dict[str, Value]


class WorkflowJourney:
    """Turns changes of Workflow objects into journey events."""

    def __init__(self, journey: Journey, inventory: Inventory, *, others: bool = False) -> None:
        """`others`: there are Workflows for Hardware that this edge is not for."""
        self._others = others
        self._journey = journey
        self._inventory = inventory
        self._macs: Newest[str, str] = Newest(_REMEMBERED)
        """The MAC of the machine of each Workflow, by the Workflow's UID."""

    def on_change(self, new: Raw, old: Raw | None) -> None:
        """Record what is new in `new`; `old` is the object as it was, None when it is met for the first time."""
        if old is not None and has_ended(old):
            return  # nothing happens to it any more, and of what it was there may be less than all
        workflow = _parse(new)
        if workflow is None:
            return
        before = _parse(old) if old is not None else None
        if before is not None and before.metadata.uid != workflow.metadata.uid:
            before = None  # deleted and created anew under the same name between two looks
        if before is None and workflow.status.state is not None and workflow.status.state.terminal:
            return  # history of before this process started, not something that happens now
        entries = list(_changes(workflow, before))
        self._record(workflow, entries if old is not None else self._not_told_before(workflow, entries))

    def on_delete(self, old: Raw) -> None:
        """Record that a Workflow went away before it came to an end."""
        workflow = None if has_ended(old) else _parse(old)
        if workflow is None:
            return
        entry = _Entry(Step.WORKFLOW, Outcome.INFO, f"workflow {_name(workflow)}: deleted", {})
        self._record(workflow, [entry])

    def _record(self, workflow: Workflow, entries: list[_Entry]) -> None:
        if not entries:
            return
        mac = self._mac(workflow)
        if not mac:
            for entry in entries:
                log.log(
                    logging.DEBUG if self._others else logging.WARNING,
                    "%s (its Hardware %s is not known here)",
                    entry.message,
                    workflow.spec.hardware_ref.name or '""',
                )
            return
        for entry in entries:
            self._journey.record(
                mac, entry.step, entry.outcome, entry.message, workflow=_name(workflow), **entry.detail
            )

    def _mac(self, workflow: Workflow) -> str:
        """Return the MAC whose journey a Workflow is part of, or "" if its Hardware was never known here."""
        machine, uid = self._machine(workflow), workflow.metadata.uid
        if machine is None:
            return self._macs.get(uid, "")
        if workflow.status.state is not None and workflow.status.state.terminal:
            self._macs.pop(uid, None)
        else:
            self._macs[uid] = machine.mac
        return machine.mac

    def _not_told_before(self, workflow: Workflow, entries: list[_Entry]) -> list[_Entry]:
        """A Workflow that goes on while this process is started again is as it was: that is no news."""
        machine = self._machine(workflow)
        if not entries or machine is None:
            return entries
        newest: dict[Step, str] = {}
        for _, kept in self._journey.earlier(machine.mac, _LOOKED_AT):
            detail = dict(detail_of(kept))
            if detail.get("workflow") == _name(workflow) and "state" in detail:
                newest[step_of(kept)] = message_of(kept)
        return [entry for entry in entries if newest.get(entry.step) != entry.message]

    def _machine(self, workflow: Workflow) -> Machine | None:
        """The interface whose journey this is part of: the one heard last, so that a boot reads as one story."""
        machines = self._inventory.by_name(workflow.spec.hardware_ref.name, workflow.metadata.namespace)
        return max(machines, key=lambda machine: self._heard_at(machine.mac), default=None)

    def _heard_at(self, mac: str) -> float:
        """Return when this card was heard last, in seconds since the epoch, or 0.0 if it never was.

        An earlier Workflow event of a card does not count: it would keep later ones at a card that never boots.
        """
        last = self._journey.last_sign(mac)
        return last.time if last is not None else 0.0


def _changes(new: Workflow, old: Workflow | None) -> Iterator[_Entry]:
    """Actions before the state: a Workflow has succeeded after its last action has."""
    state = new.status.state
    state_changed = state is not None and (old is None or old.status.state is not state)
    if state_changed and state is not None and not state.terminal:
        yield _state_entry(new, state)
    yield from _action_changes(new, old)
    if state_changed and state is not None and state.terminal:
        yield _state_entry(new, state)


def _state_entry(workflow: Workflow, state: WorkflowState) -> _Entry:
    message = f"workflow {_name(workflow)}: {state.value}"
    if state is WorkflowState.FAILED:
        message += _why(workflow)
    detail: dict[str, Value] = {"state": state.value}
    if state.terminal:
        seconds = _seconds(workflow.status.started_at, workflow.status.last_transitioned)
        if seconds is not None:
            detail["duration_seconds"] = seconds
            message += f" after {seconds:.1f} s" if state is WorkflowState.SUCCEEDED else ""
    return _Entry(Step.WORKFLOW, _STATE_OUTCOME[state], message, detail)


def _why(workflow: Workflow) -> str:
    """The reason that the status's condition gives for a failure, for there need not be an action that failed."""
    for condition in workflow.status.conditions or []:
        if condition.type == "Succeeded" and condition.reason is not None:
            return f": {condition.reason}" + (f": {condition.message}" if condition.message else "")
    return ""


def _action_changes(new: Workflow, old: Workflow | None) -> Iterator[_Entry]:
    actions = new.status.actions or []
    before = {action.id: action.state for action in (old.status.actions if old is not None else None) or []}
    for number, action in enumerate(actions, start=1):
        was = before.get(action.id) or ActionState.PENDING
        if action.state is None or action.state is was or action.state is ActionState.PENDING:
            continue
        if was is ActionState.PENDING and (old is not None or action.state is ActionState.RUNNING):
            yield _started(action, number, len(actions))
        if old is not None and action.state in (ActionState.SUCCEEDED, ActionState.FAILED):
            yield _ended(action, number, len(actions))


def _started(action: ActionStatus, number: int, of: int) -> _Entry:
    message = f"action {_action_name(action)} started ({number} of {of})"
    detail = _action_detail(action, number, ActionState.RUNNING) | {"of": of}
    if action.rendered is not None and action.rendered.timeout:
        detail["timeout_seconds"] = action.rendered.timeout
    return _Entry(Step.ACTION, Outcome.INFO, message, detail)


def _ended(action: ActionStatus, number: int, of: int) -> _Entry:
    detail = _action_detail(action, number, action.state or ActionState.PENDING) | {"of": of}
    seconds = _seconds(action.started_at, action.last_transitioned)
    took = ""
    if seconds is not None:
        detail["duration_seconds"] = seconds
        took = f" in {seconds:.1f} s" if action.state is ActionState.SUCCEEDED else f" after {seconds:.1f} s"
    if action.state is ActionState.SUCCEEDED:
        message = f"action {_action_name(action)} succeeded{took} ({number} of {of})"
        return _Entry(Step.ACTION, Outcome.OK, message, detail)
    reason, text = action.failure_reason or "Unknown", action.failure_message or ""
    detail |= {"reason": reason, "failure_message": text}
    message = f"action {_action_name(action)} failed{took} ({number} of {of}): {reason}" + (f": {text}" if text else "")
    return _Entry(Step.ACTION, Outcome.FAILED, message, detail)


def _action_detail(action: ActionStatus, number: int, state: ActionState) -> dict[str, Value]:
    detail: dict[str, Value] = {"action": _action_name(action), "number": number, "state": state.value}
    if action.rendered is not None:
        detail["image"] = action.rendered.image
    return detail


def _action_name(action: ActionStatus) -> str:
    return action.rendered.name if action.rendered is not None else action.id


def _name(workflow: Workflow) -> str:
    return f"{workflow.metadata.namespace}/{workflow.metadata.name}"


def _seconds(start: str | None, end: str | None) -> float | None:
    """Seconds between two RFC 3339 times; None if one is missing, or can't be read."""
    if start is None or end is None:
        return None
    try:
        return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    except (ValueError, TypeError):
        log.warning("a Workflow's status has times that are not RFC 3339: %r, %r", start, end)
        return None


def _parse(obj: Raw) -> Workflow | None:
    try:
        workflow = Workflow.model_validate(obj)
    except ValidationError as error:
        metadata = obj.get("metadata", {})
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        log.error("Workflow %s/%s is ignored: %s", metadata.get("namespace", ""), metadata.get("name", ""), problems)
        return None
    if workflow.status.state is WorkflowState.PENDING and unprepared(status_of(obj)):
        # That is what the API says by default: the step is that the controller has prepared it.
        return workflow.model_copy(update={"status": workflow.status.model_copy(update={"state": None})})
    return workflow
