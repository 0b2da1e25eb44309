"""The state machine of Workflows and their actions. Everything that changes a state lives here.

Theory of operation. A Workflow is in one of seven states, each of its actions in one of four. What happens is a
`Cause`; `WORKFLOW` and `ACTION` say which cause leads from where to where, and a pair that is not in the table can't
happen. `AUTHOR` says which component may write a cause: the controller prepares, supervises and cancels; the server
dispatches and passes on what agents report. Neither ever writes the other's.

Controller and server don't deal in causes but in events: what they decided or were told, with the facts of it.
`apply(workflow, event, now, author)` takes an event through the tables, several arrows if need be, and returns the new
status, or None if the event changes nothing. It is the only way to a new status:

- Agents report at least once. A report for an action that is already final, or for a Workflow that is, changes nothing.
- A report may skip ahead. Success without a start is both; a start of a Workflow that looks undispatched (the claim was
  taken back because the stream broke, the command had arrived all the same) is the dispatch too.
- A Workflow has succeeded when all its actions have, in whatever order the reports came.
- An agent that runs nothing of a Cancelling Workflow any more, for whatever reason, has stopped it.
- When a Workflow ends early, the action that ran has failed; actions that never ran stay Pending.

The caller stores the result with `status.status_patch`, which fails if the object changed meanwhile; then it looks at
the object anew and asks again. That makes every arrow atomic, with any number of controllers and servers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tink.api.v1alpha2 import ActionState, ConditionStatus, Raw, WorkflowState
from tink.workflow.status import (
    ConditionType,
    Status,
    action_name,
    action_state,
    actions_of,
    condition,
    name_of,
    set_condition,
    state_of,
    status_of,
    timestamp,
)

MAX_REASON = 128
MAX_MESSAGE = 4096
"""Characters of a reason and a message that are kept: agents send what containers wrote."""

REASON_CANCELED = "Canceled"
REASON_UNKNOWN_WORKFLOW = "UnknownWorkflow"
REASON_CANCELLING = "Cancelling"
REASON_START_TIMEOUT = "StartTimeout"
REASON_CANCEL_TIMEOUT = "CancelTimeout"
REASON_WORKFLOW_TIMEOUT = "WorkflowTimeout"
REASON_ACTION_TIMEOUT = "ActionTimeout"
REASON_DEFAULT_FAILURE = "ActionFailed"

TIMEOUT_REASONS = frozenset(
    {REASON_START_TIMEOUT, REASON_CANCEL_TIMEOUT, REASON_WORKFLOW_TIMEOUT, REASON_ACTION_TIMEOUT}
)
"""Why a Workflow ended without its agent's word: the agent may still be running it."""


class Author(StrEnum):
    """Who writes a transition."""

    CONTROLLER = "controller"
    SERVER = "server"


class Cause(StrEnum):
    """Why a Workflow changes its state."""

    PREPARED = "prepared"
    PREPARATION_FAILED = "preparation failed"
    DISPATCHED = "dispatched"
    RETURNED = "returned"  # rejected by the agent, or never sent to it
    STARTED = "started"
    SUCCEEDED = "succeeded"
    ACTION_FAILED = "action failed"
    CANCEL_REQUESTED = "cancel requested"
    STOPPED = "stopped"
    START_TIMED_OUT = "start timed out"
    CANCEL_TIMED_OUT = "cancel timed out"
    RUN_TIMED_OUT = "run timed out"  # the Workflow, or one of its actions


class ActionCause(StrEnum):
    """Why an action changes its state."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_S = WorkflowState
_A = ActionState

WORKFLOW: Mapping[WorkflowState | None, Mapping[Cause, WorkflowState]] = {
    None: {
        Cause.PREPARED: _S.PENDING,
        Cause.PREPARATION_FAILED: _S.FAILED,
    },
    _S.PENDING: {
        Cause.DISPATCHED: _S.SCHEDULED,
        Cause.CANCEL_REQUESTED: _S.CANCELED,
    },
    _S.SCHEDULED: {
        Cause.RETURNED: _S.PENDING,
        Cause.STARTED: _S.RUNNING,
        Cause.CANCEL_REQUESTED: _S.CANCELLING,
        Cause.START_TIMED_OUT: _S.FAILED,
    },
    _S.RUNNING: {
        Cause.SUCCEEDED: _S.SUCCEEDED,
        Cause.ACTION_FAILED: _S.FAILED,
        Cause.RUN_TIMED_OUT: _S.FAILED,
        Cause.CANCEL_REQUESTED: _S.CANCELLING,
    },
    _S.CANCELLING: {
        Cause.STOPPED: _S.CANCELED,
        Cause.CANCEL_TIMED_OUT: _S.CANCELED,
    },
    _S.SUCCEEDED: {},
    _S.FAILED: {},
    _S.CANCELED: {},
}

AUTHOR: Mapping[Cause, Author] = {
    Cause.PREPARED: Author.CONTROLLER,
    Cause.PREPARATION_FAILED: Author.CONTROLLER,
    Cause.DISPATCHED: Author.SERVER,
    Cause.RETURNED: Author.SERVER,
    Cause.STARTED: Author.SERVER,
    Cause.SUCCEEDED: Author.SERVER,
    Cause.ACTION_FAILED: Author.SERVER,
    Cause.CANCEL_REQUESTED: Author.CONTROLLER,
    Cause.STOPPED: Author.SERVER,
    Cause.START_TIMED_OUT: Author.CONTROLLER,
    Cause.CANCEL_TIMED_OUT: Author.CONTROLLER,
    Cause.RUN_TIMED_OUT: Author.CONTROLLER,
}

ACTION: Mapping[ActionState, Mapping[ActionCause, ActionState]] = {
    _A.PENDING: {ActionCause.STARTED: _A.RUNNING},
    _A.RUNNING: {ActionCause.SUCCEEDED: _A.SUCCEEDED, ActionCause.FAILED: _A.FAILED},
    _A.SUCCEEDED: {},
    _A.FAILED: {},
}


# --- What happens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedAction:
    """A rendered action (JSON names) and the id that it has within its Workflow."""

    id: str
    rendered: Raw


@dataclass(frozen=True, slots=True)
class Prepared:
    """The Template was rendered: these are the actions."""

    actions: tuple[PreparedAction, ...]


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The Workflow can't be prepared, now or ever."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The server claims the Workflow to send it to its agent."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The agent's stream was gone before the claimed Workflow could be sent."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The agent won't run the Workflow, or (reason UnknownWorkflow) was asked to stop one that it does not run."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ActionStarted:
    """The agent began an action."""

    action_id: str


@dataclass(frozen=True, slots=True)
class ActionSucceeded:
    """The agent completed an action."""

    action_id: str


@dataclass(frozen=True, slots=True)
class ActionFailed:
    """An action failed on the agent, which runs no further ones."""

    action_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody deleted the Workflow, or set its state to Cancelling by hand."""

    message: str


@dataclass(frozen=True, slots=True)
class StartTimedOut:
    """The Workflow was Scheduled for longer than `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CancelTimedOut:
    """The Workflow was Cancelling for longer than `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WorkflowTimedOut:
    """The Workflow was Running for longer than `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ActionTimedOut:
    """An action was Running for longer than `seconds`."""

    action_id: str
    seconds: float


AgentEvent = ActionStarted | ActionSucceeded | ActionFailed | Rejected
"""What an agent may report."""
Event = (
    AgentEvent
    | Prepared
    | PreparationFailed
    | Dispatched
    | Undelivered
    | CancelRequested
    | StartTimedOut
    | CancelTimedOut
    | WorkflowTimedOut
    | ActionTimedOut
)


class UnknownActionError(ValueError):
    """An event names an action that its Workflow does not have."""


class NotAllowedError(RuntimeError):
    """A component tried a transition that is another's to write: a mistake in this program."""


def apply(workflow: Raw, event: Event, now: float, author: Author) -> Status | None:
    """The status of `workflow` after `event` at `now` (seconds since the epoch); None if nothing changes.

    `workflow` itself is left alone. Raises UnknownActionError, NotAllowedError, and InvalidStatusError for a status
    that this program did not write.
    """
    transition = _Transition(workflow, now, author)
    match event:
        case Prepared():
            transition.prepare(event)
        case PreparationFailed():
            if transition.move(Cause.PREPARATION_FAILED):
                transition.fail(event.reason, event.message)
                transition.observe(ConditionType.PREPARED, ConditionStatus.FALSE, event.reason, event.message)
        case Dispatched():
            transition.move(Cause.DISPATCHED)
        case Undelivered():
            transition.move(Cause.RETURNED)
        case Rejected():
            transition.reject(event)
        case ActionStarted() | ActionSucceeded() | ActionFailed():
            transition.report(event)
        case CancelRequested():
            transition.cancel(event)
        case StartTimedOut():
            if transition.move(Cause.START_TIMED_OUT):
                message = f"the agent did not start the Workflow within {event.seconds:g} s after it was scheduled"
                transition.fail(REASON_START_TIMEOUT, message)
        case CancelTimedOut():
            if transition.move(Cause.CANCEL_TIMED_OUT):
                message = (
                    f"the agent did not report within {event.seconds:g} s that it stopped; it may still be running"
                )
                transition.fail(REASON_CANCEL_TIMEOUT, message)
        case WorkflowTimedOut():
            if transition.move(Cause.RUN_TIMED_OUT):
                transition.fail(
                    REASON_WORKFLOW_TIMEOUT, f"the Workflow did not complete within {event.seconds:g} s (spec.timeout)"
                )
        case ActionTimedOut():
            transition.time_out_action(event)
    return transition.result()


class _Transition:
    """One event on its way through the tables: a copy of the status that is being changed."""

    def __init__(self, workflow: Raw, now: float, author: Author) -> None:
        self._name = name_of(workflow)
        self._state = state_of(workflow)
        self._before = status_of(workflow)
        self._after: Status = copy.deepcopy(dict(self._before))
        self._time = timestamp(now)
        self._author = author

    def result(self) -> Status | None:
        return self._after if self._after != self._before else None

    # --- arrows ---------------------------------------------------------------------------------------------------

    def move(self, cause: Cause) -> bool:
        """Follow the arrow of `cause`; False if there is none from here."""
        self._check(cause)
        target = WORKFLOW[self._state].get(cause)
        if target is None:
            return False
        self._state = target
        self._after["state"] = str(target)
        self._after["lastTransitioned"] = self._time
        return True

    def _check(self, cause: Cause) -> None:
        if AUTHOR[cause] is not self._author:
            raise NotAllowedError(f"{cause!s} is written by the {AUTHOR[cause]!s}, not by the {self._author!s}")

    def _move_action(self, action: dict[str, Any], cause: ActionCause) -> bool:
        target = ACTION[action_state(action)].get(cause)
        if target is None:
            return False
        action["state"] = str(target)
        action["lastTransitioned"] = self._time
        if target is ActionState.RUNNING:
            action["startedAt"] = self._time
        return True

    # --- events ---------------------------------------------------------------------------------------------------

    def prepare(self, event: Prepared) -> None:
        if not self.move(Cause.PREPARED):
            return
        self._after["actions"] = [
            {
                "id": action.id,
                "rendered": action.rendered,
                "state": str(ActionState.PENDING),
                "lastTransitioned": self._time,
            }
            for action in event.actions
        ]
        self.observe(ConditionType.PREPARED, ConditionStatus.TRUE)
        self.observe(ConditionType.STARTED, ConditionStatus.FALSE)
        self.observe(ConditionType.SUCCEEDED, ConditionStatus.UNKNOWN)

    def reject(self, event: Rejected) -> None:
        if event.reason == REASON_UNKNOWN_WORKFLOW and self._state is WorkflowState.CANCELLING:
            self._stopped("the agent does not run the Workflow")
        elif self.move(Cause.RETURNED):
            self.observe(ConditionType.STARTED, ConditionStatus.FALSE, event.reason or "Rejected", event.message)

    def report(self, event: ActionStarted | ActionSucceeded | ActionFailed) -> None:
        action = self._action(event.action_id)
        if self._state is not None and self._state.terminal:
            return
        if self._move_action(action, ActionCause.STARTED):
            self._began(action)
        match event:
            case ActionSucceeded():
                if self._move_action(action, ActionCause.SUCCEEDED) and self._all_succeeded():
                    if self.move(Cause.SUCCEEDED):
                        self.observe(ConditionType.SUCCEEDED, ConditionStatus.TRUE)
                    else:
                        self._stopped("all actions had succeeded before the agent could be told")
            case ActionFailed():
                if self._fail_action(action, event.reason or REASON_DEFAULT_FAILURE, event.message):
                    if self.move(Cause.ACTION_FAILED):
                        self.fail(action["failureReason"], action.get("failureMessage", ""))
                    else:
                        self._stopped("the agent stopped the Workflow")

    def cancel(self, event: CancelRequested) -> None:
        self._check(Cause.CANCEL_REQUESTED)
        by_hand = (
            self._state is WorkflowState.CANCELLING
            and condition(self._before, ConditionType.SUCCEEDED).get("reason") != REASON_CANCELLING
        )
        if by_hand:
            # A user wrote the state and nothing else: from now on the agent has its time to stop.
            self._after["lastTransitioned"] = self._time
        elif not self.move(Cause.CANCEL_REQUESTED):
            return
        if self._state is WorkflowState.CANCELED:
            self.observe(ConditionType.SUCCEEDED, ConditionStatus.FALSE, REASON_CANCELED, event.message)
        else:
            self.observe(ConditionType.SUCCEEDED, ConditionStatus.UNKNOWN, REASON_CANCELLING, event.message)

    def time_out_action(self, event: ActionTimedOut) -> None:
        action = self._action(event.action_id)
        if action_state(action) is ActionState.RUNNING and self.move(Cause.RUN_TIMED_OUT):
            self.fail(
                REASON_ACTION_TIMEOUT, f"the action {action_name(action)!r} did not complete within {event.seconds:g} s"
            )

    # --- what goes with them ----------------------------------------------------------------------------------------

    def observe(
        self, kind: ConditionType, value: ConditionStatus, reason: str | None = None, message: str | None = None
    ) -> None:
        set_condition(self._after, kind, value, (reason or "")[:MAX_REASON], (message or "")[:MAX_MESSAGE])

    def fail(self, reason: str, message: str) -> None:
        """The Workflow did not succeed, and why; whatever runs has failed for the same reason."""
        self.observe(ConditionType.SUCCEEDED, ConditionStatus.FALSE, reason, message)
        for action in actions_of(self._after):
            self._fail_action(action, reason, message)

    def _began(self, action: dict[str, Any]) -> None:
        if self._state is WorkflowState.PENDING:
            self.move(Cause.DISPATCHED)
        if self._state is WorkflowState.SCHEDULED:
            self.move(Cause.STARTED)
        if not self._after.get("startedAt"):
            self._after["startedAt"] = self._time
            self.observe(ConditionType.STARTED, ConditionStatus.TRUE)
        # Reports may come out of order; what runs now is the furthest action that has begun.
        begun = [a for a in actions_of(self._after) if action_state(a) is not ActionState.PENDING]
        self._after["currentAction"] = action_name(begun[-1])

    def _stopped(self, message: str) -> None:
        if self.move(Cause.STOPPED):
            self.fail(REASON_CANCELED, message)

    def _fail_action(self, action: dict[str, Any], reason: str, message: str) -> bool:
        if not self._move_action(action, ActionCause.FAILED):
            return False
        action["failureReason"] = reason[:MAX_REASON]
        if message:
            action["failureMessage"] = message[:MAX_MESSAGE]
        return True

    def _all_succeeded(self) -> bool:
        return all(action_state(action) is ActionState.SUCCEEDED for action in actions_of(self._after))

    def _action(self, action_id: str) -> dict[str, Any]:
        for action in actions_of(self._after):
            if action.get("id") == action_id:
                return action
        raise UnknownActionError(f"Workflow {self._name} has no action with the id {action_id!r}")
