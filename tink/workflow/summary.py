"""What `kubectl get workflows` says of a Workflow in its column MESSAGE: `.status.message`, which is never empty.

It is made of the rest of the status alone, so whoever writes a status writes it with the same stroke, and a status that
an older release or somebody's hand has left without it is completed at the next look. Programs read the conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import UNPREPARED, ActionState, ConditionStatus, WorkflowState
from tink.workflow.reasons import REASON_AGENT_REFUSED, REASON_CANCELLING, REASON_HELD
from tink.workflow.status import ConditionType, action_name, actions_of, condition

TO_RELEASE = "; to let it run: "
"""What follows in the condition of one that is held, after why it is: the command, too long for the column."""
MAX_SUMMARY = 120
"""Characters: a line of a terminal has to hold it beside the other columns."""
_BETWEEN_LINES = " | "
"""Of what a failed action has printed, in its agent's message (`tink.agent.runtimes.failure`)."""
_LEAST_OF_OUTPUT = 40
_ENDED = tuple(str(state) for state in WorkflowState if state.terminal)


def summary(status: Mapping[str, Any]) -> str:
    """Where the Workflow is, or why it came to its end, in one line of at most `MAX_SUMMARY` characters."""
    text = " ".join(_summary(status).split()) or UNPREPARED
    if len(text) <= MAX_SUMMARY:
        return text
    head, lines, _ = text.partition(_BETWEEN_LINES)
    room = MAX_SUMMARY - len(head) - len(_BETWEEN_LINES) - 1
    if status.get("state") == WorkflowState.FAILED and lines and room >= _LEAST_OF_OUTPUT:
        return f"{head}{_BETWEEN_LINES}…{text[-room:].lstrip()}"  # what a program says last is why it ended
    return text[: MAX_SUMMARY - 1].rstrip() + "…"


def _summary(status: Mapping[str, Any]) -> str:
    succeeded = condition(status, ConditionType.SUCCEEDED)
    reason, message = str(succeeded.get("reason") or ""), str(succeeded.get("message") or "")
    actions = actions_of(status)
    gone = condition(status, ConditionType.HARDWARE_GONE)
    if gone.get("status") == ConditionStatus.TRUE and status.get("state") not in _ENDED:
        return str(gone.get("message") or "its Hardware is gone")
    match status.get("state"):
        case WorkflowState.SCHEDULED:
            return _held(status) or "given to the agent, which has not begun yet"
        case WorkflowState.RUNNING:
            return _running(actions)
        case WorkflowState.CANCELLING:
            why = message if reason == REASON_CANCELLING else ""
            return f"{why}: waits for the agent to stop" if why else "waits for the agent to stop"
        case WorkflowState.SUCCEEDED:
            return message or f"all {len(actions)} actions have succeeded"
        case WorkflowState.FAILED:
            return ": ".join(filter(None, (reason, message))) or "the Workflow has failed"
        case WorkflowState.CANCELED:
            return message or "the Workflow was stopped"
        case _:
            return _pending(status, bool(actions))


def _pending(status: Mapping[str, Any], rendered: bool) -> str:
    if held := _held(status):
        return held
    prepared, started = (condition(status, kind) for kind in (ConditionType.PREPARED, ConditionType.STARTED))
    if prepared.get("status") == ConditionStatus.FALSE:
        # Without the name before it, which stands in its own column.
        said = str(prepared.get("message") or "")
        return said.partition(": ")[2] if said.startswith("Workflow ") else said
    if rendered and started.get("reason") == REASON_AGENT_REFUSED:
        return f"its agent is refused: {started.get('message') or ''}"
    if rendered and started.get("reason"):
        return f"the agent does not take it now: {started['reason']}: {started.get('message') or ''}".rstrip(": ")
    return "waits for the machine's agent" if rendered else UNPREPARED


def _held(status: Mapping[str, Any]) -> str:
    started = condition(status, ConditionType.STARTED)
    if started.get("reason") != REASON_HELD:
        return ""
    return f"held ({HOLD_ANNOTATION}): {str(started.get('message') or '').partition(TO_RELEASE)[0]}"


def _running(actions: list[dict[str, Any]]) -> str:
    begun = [index for index, action in enumerate(actions) if action.get("state") != ActionState.PENDING]
    if not begun:
        return "the agent has begun"
    return f"action {begun[-1] + 1} of {len(actions)}: {action_name(actions[begun[-1]])}"
