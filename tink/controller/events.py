"""What is worth an Event in the life of a Workflow: for `kubectl describe workflow`.

`event_for` reads it from two versions of a Workflow; `tink.kube.runtime.events` records it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.api.v1alpha2 import ConditionStatus, Raw, WorkflowState
from tink.kube.runtime import Event
from tink.workflow.reasons import REASON_CANCEL_TIMEOUT
from tink.workflow.status import ConditionType, actions_of, condition, status_of, unprepared

COMPONENT = "tinkedge-controller"


def _of_hardware(status: Mapping[str, Any], before: Mapping[str, Any]) -> Event | None:
    """Return the Event for a Hardware that was deleted before its Workflow ended, or that is there again."""
    gone, was = (condition(each, ConditionType.HARDWARE_GONE) for each in (status, before))
    if gone.get("status") == was.get("status"):
        return None
    if gone.get("status") == ConditionStatus.TRUE:
        return Event(str(gone.get("reason")), str(gone.get("message", "")), warning=True)
    return Event(str(gone.get("reason")), "the Hardware is there again") if gone else None


def event_for(new: Raw, old: Raw | None) -> Event | None:
    """What the change from `old` to `new` is, in a word and a sentence; None if it is not worth an Event.

    What was there before anybody looked (`old` is None) is no news.
    """
    if old is None:
        return None
    status = status_of(new)
    before, after = (None if unprepared(each) else each.get("state") for each in (status_of(old), status))
    prepared = condition(status, ConditionType.PREPARED)
    if after == before:
        waits = prepared.get("status") == ConditionStatus.FALSE
        if waits and prepared != condition(status_of(old), ConditionType.PREPARED):
            return Event(str(prepared.get("reason")), str(prepared.get("message", "")), warning=True)
        return _of_hardware(status, status_of(old))
    succeeded = condition(status, ConditionType.SUCCEEDED)
    reason, message = str(succeeded.get("reason") or after), str(succeeded.get("message") or "")
    actions = len(actions_of(status))
    match after:
        case WorkflowState.PENDING if before == WorkflowState.SCHEDULED:
            why = condition(status, ConditionType.STARTED)
            said = f"the agent does not take it now: {why.get('reason', '')}: {why.get('message', '')}".rstrip(": ")
            return Event("Returned", said, warning=True)
        case WorkflowState.PENDING:
            return Event("Prepared", f"{actions} actions, waiting for the agent")
        case WorkflowState.SCHEDULED:
            return Event("Scheduled", "given to the agent")
        case WorkflowState.RUNNING:
            return Event("Running", f"the agent has started the first of {actions} actions")
        case WorkflowState.SUCCEEDED:
            return Event("Succeeded", message or f"all {actions} actions have succeeded")
        case WorkflowState.FAILED:
            return Event(reason, message or "the Workflow has failed", warning=True)
        case WorkflowState.CANCELLING:
            return Event("Cancelling", message or "the agent is told to stop")
        case WorkflowState.CANCELED:
            return Event(reason, message or "the Workflow was stopped", reason == REASON_CANCEL_TIMEOUT)
        case _:
            return None
