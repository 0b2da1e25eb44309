"""Applies events to Workflows: the only way to a new status.

`apply(workflow, event, now, author)` takes an event through the `table`, through several transitions if necessary, and
returns the new status, or None if the event changes nothing:

- Agents report at least once. A report for a terminal action or Workflow changes nothing.
- A report may skip ahead. Success without a start is both. A start of a Workflow that looks undispatched is also its
  dispatch: its claim was undone because the stream broke, but the command had arrived.
- A Workflow has succeeded when all its actions have, in whatever order the reports came.
- An agent that no longer runs a Cancelling Workflow, for whatever reason, has stopped it.
- A Workflow that no agent has (`status.dispatched` is false) is Canceled at once, even if its state was set to
  Cancelling by hand. A Workflow that may have been sent is not. A server claims a Workflow before it sends it. If it
  then can't send it, it knows that no other server did, provided that the last claim is its own and no agent had it.
- When a Workflow ends early, the Running action has failed; actions that never ran stay Pending.
- A last action that `reboots` the machine also ends the agent, so there may be no report of its end. While it runs and
  all others have succeeded, three events mean success: the agent returns without the Workflow, it does not return, or
  the action times out. For any other action the first is a loss, the second nothing, the third a timeout. One server
  decides that the agent does not return; that counts only if no other server has seen the agent since.
- A rejection is counted and delays the next offer; a start clears both. An agent that rejects a Workflow because it
  ended the Workflow before will never run it nor report on it, so that is a loss.

The caller stores the result with `status.status_patch`, which fails if the object changed meanwhile; then it reads the
object and applies the event again. So every transition is atomic, with any number of controllers and servers.
"""

from __future__ import annotations

from typing import Any

from tink.api.v1alpha2 import ActionState, ConditionStatus, Raw, WorkflowState
from tink.errors import TinkedgeError
from tink.workflow import events
from tink.workflow.guards import last_action_reboots
from tink.workflow.status import (
    REASON_ACTION_TIMEOUT,
    REASON_AGENT_LOST,
    REASON_AGENT_REFUSED,
    REASON_ALREADY_FINISHED,
    REASON_CANCEL_TIMEOUT,
    REASON_CANCELED,
    REASON_CANCELLING,
    REASON_DEFAULT_FAILURE,
    REASON_HARDWARE_BACK,
    REASON_HARDWARE_DELETED,
    REASON_HARDWARE_GONE,
    REASON_INVALID_STATUS,
    REASON_REBOOT_ASSUMED,
    REASON_REBOOTED,
    REASON_REJECTED,
    REASON_START_TIMEOUT,
    REASON_UNKNOWN_WORKFLOW,
    REASON_WORKFLOW_TIMEOUT,
    ConditionType,
    InvalidStatusError,
    Status,
    action_name,
    action_state,
    actions_of,
    agent_seen,
    claim_of,
    condition,
    name_of,
    rejections,
    set_condition,
    state_of,
    status_of,
    summary,
    timestamp,
    with_no_agent,
)
from tink.workflow.table import ACTION, AUTHOR, WORKFLOW, ActionCause, Author, Cause

MAX_REASON = 128
MAX_MESSAGE = 4096
"""Maximum lengths of a reason and a message in characters: agents send the output of containers."""
MAX_REJECTIONS = 1_000_000
"""Upper bound of the count of rejections, so that a number edited by hand can still be stored."""

_NOTHING_LEFT = (
    "the Workflow was Running, but none of status.actions was Pending or Running any more: its status was edited by "
    "hand; create it again"
)


class UnknownActionError(TinkedgeError, ValueError):
    """An event names an action that its Workflow does not have."""


class NotAllowedError(TinkedgeError, RuntimeError):
    """A component tried a transition that belongs to the other one: a bug in this program."""


def apply(workflow: Raw, event: events.Event, now: float, author: Author) -> Status | None:
    """Return the status of `workflow` after `event` at `now` (Unix seconds), or None if nothing changes.

    `workflow` is not changed. Raises UnknownActionError, NotAllowedError, and InvalidStatusError.
    """
    transition = _Transition(workflow, now, author)
    try:
        transition.take(event)
    except InvalidStatusError as error:
        # Errors about an action do not contain the Workflow's name.
        raise InvalidStatusError(f"Workflow {name_of(workflow)}: {error}") from error
    return transition.result()


class _Transition:
    """The application of one event: a copy of the status that is being changed."""

    def __init__(self, workflow: Raw, now: float, author: Author) -> None:
        self._name = name_of(workflow)
        self._workflow = workflow
        self._state = state_of(workflow)
        self._before = status_of(workflow)
        self._after: Status = dict(self._before)
        actions = self._after.get("actions")
        if isinstance(actions, list):  # copies: actions may be changed; deeper values are shared
            self._after["actions"] = [dict(each) if isinstance(each, dict) else each for each in actions]
        self._now = now
        self._time = timestamp(now)
        self._author = author

    def take(self, event: events.Event) -> None:
        match event:
            case events.Prepared():
                self._prepare(event)
            case events.PreparationFailed():
                if self._move(Cause.PREPARATION_FAILED):
                    self._fail(event.reason, event.message)
                    self._observe(ConditionType.PREPARED, ConditionStatus.FALSE, event.reason, event.message)
            case events.Dispatched():
                self._move(Cause.DISPATCHED)
            case events.Reclaimed():
                if self._state is WorkflowState.SCHEDULED:
                    self._claim(Cause.DISPATCHED)
            case events.Undelivered():
                self._take_back(event)
            case events.GivenBack():
                self._move(Cause.RETURNED)
            case events.Rejected():
                self._reject(event)
            case events.ActionStarted() | events.ActionSucceeded() | events.ActionFailed():
                self._report(event)
            case events.AgentLost() if self._state is WorkflowState.CANCELLING:
                self._stopped("the agent came back without the Workflow")
            case events.AgentLost():
                message = "the agent came back without the Workflow: its machine, or the agent itself, was restarted"
                self._lose(Cause.AGENT_LOST, message)
            case events.AgentRefused():
                if self._state is WorkflowState.PENDING:
                    self._observe(ConditionType.STARTED, ConditionStatus.FALSE, REASON_AGENT_REFUSED, event.message)
            case events.AgentSeen():
                if self._state is WorkflowState.RUNNING and self._rebooting():
                    self._after["agentSeenAt"] = self._time
            case events.AgentAway():
                gone = event.seen == agent_seen(self._before)  # False if another server saw the agent meanwhile
                if gone and self._rebooting() and self._move(Cause.REBOOTED):
                    self._rebooted(REASON_REBOOTED, f"the agent has been gone for {event.seconds:g} s")
            case events.CancelRequested():
                self._cancel(event)
            case events.NothingLeft():
                if self._move(Cause.NOTHING_LEFT):
                    self._fail(REASON_INVALID_STATUS, _NOTHING_LEFT)
            case events.HardwareMissing() | events.HardwareBack() | events.HardwareTimedOut():
                self._without_hardware(event)
            case _:
                self._time_out(event)

    def result(self) -> Status | None:
        if self._after == self._before:
            return None
        self._after["message"] = summary(self._after)
        return self._after

    # --- arrows ---------------------------------------------------------------------------------------------------

    def _move(self, cause: Cause) -> bool:
        """Make the transition of `cause`; return False if there is none from this state."""
        self._check(cause)
        target = WORKFLOW[self._state].get(cause)
        if target is None:
            return False
        self._state = target
        self._after["state"] = str(target)
        self._after["lastTransitioned"] = self._time
        if target is WorkflowState.SCHEDULED:
            self._claim(cause)
        return True

    def _claim(self, cause: Cause) -> None:
        self._check(cause)
        another = timestamp(self._now + 0.001)
        self._after["dispatched"] = True
        self._after["claimedAt"] = self._time if self._time != claim_of(self._before) else another

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

    def _prepare(self, event: events.Prepared) -> None:
        if not self._move(Cause.PREPARED):
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
        self._after["dispatched"] = False
        self._observe(ConditionType.PREPARED, ConditionStatus.TRUE)
        self._observe(ConditionType.STARTED, ConditionStatus.FALSE)
        self._observe(ConditionType.SUCCEEDED, ConditionStatus.UNKNOWN)

    def _take_back(self, event: events.Undelivered) -> None:
        if event.claim != claim_of(self._before):
            return  # another server has claimed it since, and may have sent it
        if self._state is WorkflowState.CANCELLING:
            if not event.given:
                self._stopped("the agent had gone before the Workflow could be sent")
        elif self._state is WorkflowState.PENDING or self._move(Cause.RETURNED):  # Pending: another server gave it back
            self._after["dispatched"] = event.given

    def _reject(self, event: events.Rejected) -> None:
        not_run = event.reason in (REASON_UNKNOWN_WORKFLOW, REASON_ALREADY_FINISHED)
        if not_run and self._state is WorkflowState.CANCELLING:
            self._stopped("the agent does not run the Workflow")
        elif event.reason == REASON_ALREADY_FINISHED:
            # The agent reports in order, so its reports of the end are lost.
            message = "the agent says that it ended the Workflow before, and its reports never came"
            self._lose(Cause.ENDED_UNHEARD, f"{message}: {event.message}" if event.message else message)
        elif self._move(Cause.RETURNED):
            self._after["dispatched"] = False
            self._after["rejections"] = min(rejections(self._before) + 1, MAX_REJECTIONS)
            self._after["dispatchAfter"] = timestamp(self._now + event.delay)
            reason = event.reason or REASON_REJECTED
            self._observe(ConditionType.STARTED, ConditionStatus.FALSE, reason, event.message)

    def _report(self, event: events.ActionStarted | events.ActionSucceeded | events.ActionFailed) -> None:
        action = self._action(event.action_id)
        if self._state is not None and self._state.terminal:
            return
        if self._move_action(action, ActionCause.STARTED):
            self._began()
        match event:
            case events.ActionSucceeded():
                done = (action_state(each) is ActionState.SUCCEEDED for each in actions_of(self._after))
                if self._move_action(action, ActionCause.SUCCEEDED) and all(done):
                    if self._move(Cause.SUCCEEDED):
                        self._observe(ConditionType.SUCCEEDED, ConditionStatus.TRUE)
                    else:
                        self._stopped("all actions had succeeded before the agent could be told")
            case events.ActionFailed():
                if self._fail_action(action, event.reason or REASON_DEFAULT_FAILURE, event.message):
                    if self._move(Cause.ACTION_FAILED):
                        self._fail(action["failureReason"], action.get("failureMessage", ""))
                    else:
                        self._stopped("the agent stopped the Workflow")

    def _cancel(self, event: events.CancelRequested) -> None:
        self._check(Cause.CANCEL_REQUESTED)
        cancelling = self._state is WorkflowState.CANCELLING
        noted = condition(self._before, ConditionType.SUCCEEDED).get("reason") == REASON_CANCELLING
        if cancelling and with_no_agent(self._workflow):
            self._move(Cause.NOTHING_TO_STOP)
        elif cancelling and not noted:
            # A user changed the state only. The agent's time to stop begins now.
            self._after["lastTransitioned"] = self._time
        elif not self._move(Cause.CANCEL_REQUESTED):
            return
        if self._state is WorkflowState.CANCELED:
            self._observe(ConditionType.SUCCEEDED, ConditionStatus.FALSE, REASON_CANCELED, event.message)
        else:
            self._observe(ConditionType.SUCCEEDED, ConditionStatus.UNKNOWN, REASON_CANCELLING, event.message)

    def _lose(self, cause: Cause, message: str) -> None:
        """Fail the Workflow, because its agent does not have it any more, unless its last action is a reboot."""
        if self._rebooting():
            if self._move(Cause.REBOOTED):
                self._rebooted(REASON_REBOOTED, "the agent came back anew")
        elif self._move(cause):
            self._fail(REASON_AGENT_LOST, message)

    def _time_out(
        self, event: events.StartTimedOut | events.CancelTimedOut | events.WorkflowTimedOut | events.ActionTimedOut
    ) -> None:
        match event:
            case events.StartTimedOut():
                if self._move(Cause.START_TIMED_OUT):
                    message = f"the agent did not start the Workflow within {event.seconds:g} s after it was scheduled"
                    self._fail(REASON_START_TIMEOUT, message)
            case events.CancelTimedOut():
                if self._move(Cause.CANCEL_TIMED_OUT):
                    message = f"the agent did not report within {event.seconds:g} s that it stopped"
                    self._fail(REASON_CANCEL_TIMEOUT, f"{message}; it may still be running")
            case events.WorkflowTimedOut():
                what = f"the Workflow did not complete within {event.seconds:g} s (spec.timeout)"
                self._run_timed_out(REASON_WORKFLOW_TIMEOUT, what)
            case events.ActionTimedOut():
                action = self._action(event.action_id)
                if action_state(action) is ActionState.RUNNING:
                    what = f"the action {action_name(action)!r} did not complete within {event.seconds:g} s"
                    self._run_timed_out(REASON_ACTION_TIMEOUT, what)

    def _without_hardware(self, event: events.HardwareMissing | events.HardwareBack | events.HardwareTimedOut) -> None:
        is_gone = condition(self._before, ConditionType.HARDWARE_GONE).get("status") == ConditionStatus.TRUE
        match event:
            case events.HardwareMissing():
                if self._state is not None and not self._state.terminal:
                    kind, reason = ConditionType.HARDWARE_GONE, REASON_HARDWARE_DELETED
                    self._observe(kind, ConditionStatus.TRUE, reason, event.message)
            case events.HardwareBack():
                if is_gone and self._state is not None and not self._state.terminal:
                    self._observe(ConditionType.HARDWARE_GONE, ConditionStatus.FALSE, REASON_HARDWARE_BACK)
            case events.HardwareTimedOut():
                if self._rebooting():
                    if self._move(Cause.REBOOT_ASSUMED):
                        self._rebooted(REASON_REBOOT_ASSUMED, f"{event.message}; its last action reboots the machine")
                elif self._move(Cause.START_TIMED_OUT) or self._move(Cause.RUN_TIMED_OUT):
                    self._fail(REASON_HARDWARE_GONE, event.message)

    def _run_timed_out(self, reason: str, message: str) -> None:
        if self._rebooting():
            if self._move(Cause.REBOOT_ASSUMED):
                self._rebooted(REASON_REBOOT_ASSUMED, f"{message}, which reboots the machine")
        elif self._move(Cause.RUN_TIMED_OUT):
            self._fail(reason, message)

    # --- what goes with them ----------------------------------------------------------------------------------------

    def _observe(
        self, kind: ConditionType, value: ConditionStatus, reason: str | None = None, message: str | None = None
    ) -> None:
        set_condition(self._after, kind, value, self._now, (reason or "")[:MAX_REASON], (message or "")[:MAX_MESSAGE])

    def _fail(self, reason: str, message: str) -> None:
        """Record that and why the Workflow did not succeed; the Running action fails for the same reason."""
        self._observe(ConditionType.SUCCEEDED, ConditionStatus.FALSE, reason, message)
        for action in actions_of(self._after):
            self._fail_action(action, reason, message)

    def _began(self) -> None:
        if self._state is WorkflowState.PENDING:
            self._move(Cause.DISPATCHED)
        if self._state is WorkflowState.SCHEDULED:
            self._move(Cause.STARTED)
        self._after.pop("rejections", None)
        self._after.pop("dispatchAfter", None)
        if not self._after.get("startedAt"):
            self._after["startedAt"] = self._time
            self._observe(ConditionType.STARTED, ConditionStatus.TRUE)
        # Reports may arrive in any order, so the current action is the furthest one that has begun.
        begun = [a for a in actions_of(self._after) if action_state(a) is not ActionState.PENDING]
        self._after["currentAction"] = action_name(begun[-1])

    def _rebooting(self) -> bool:
        """Return True if a silent agent has done its work. Only the transitions of Running use this."""
        return last_action_reboots(self._after)

    def _rebooted(self, reason: str, message: str) -> None:
        """Record that the last action, and with it the Workflow, has succeeded."""
        self._move_action(actions_of(self._after)[-1], ActionCause.SUCCEEDED)
        self._observe(ConditionType.SUCCEEDED, ConditionStatus.TRUE, reason, message)

    def _stopped(self, message: str) -> None:
        if self._move(Cause.STOPPED):
            self._fail(REASON_CANCELED, message)

    def _fail_action(self, action: dict[str, Any], reason: str, message: str) -> bool:
        if not self._move_action(action, ActionCause.FAILED):
            return False
        action["failureReason"] = reason[:MAX_REASON]
        if message:
            action["failureMessage"] = message[:MAX_MESSAGE]
        return True

    def _action(self, action_id: str) -> dict[str, Any]:
        for action in actions_of(self._after):
            if action.get("id") == action_id:
                return action
        raise UnknownActionError(f"Workflow {self._name} has no action with the id {action_id!r}")
