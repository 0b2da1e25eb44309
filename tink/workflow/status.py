"""Reads and writes the fields of a Workflow's `.status`: states, times, conditions, and the patch that stores them.

A status is a plain dictionary as it came from the API, so that fields of a newer version survive. Users can edit a
status by hand, so invalid fields count as absent. The exception is the state, which raises an error, because running a
Workflow a second time is the one mistake that can't be undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import UNPREPARED, ActionState, ConditionStatus, Raw, WorkflowState, as_mapping
from tink.errors import TinkedgeError
from tink.timestamps import rfc3339

# --- Reasons in conditions: why a Workflow did not succeed, or succeeded without its agent's report ---


REASON_CANCELED = "Canceled"
REASON_UNKNOWN_WORKFLOW = "UnknownWorkflow"
REASON_ALREADY_FINISHED = "AlreadyFinished"
REASON_CANCELLING = "Cancelling"
REASON_START_TIMEOUT = "StartTimeout"
REASON_CANCEL_TIMEOUT = "CancelTimeout"
REASON_WORKFLOW_TIMEOUT = "WorkflowTimeout"
REASON_ACTION_TIMEOUT = "ActionTimeout"
REASON_INVALID_STATUS = "InvalidStatus"
REASON_DEFAULT_FAILURE = "ActionFailed"
REASON_REJECTED = "Rejected"
REASON_AGENT_LOST = "AgentLost"
REASON_AGENT_REFUSED = "AgentRefused"
"""An agent that asked for the Workflow was refused; the Workflow has not started."""
REASON_HELD = "Held"
"""The Workflow has not begun and waits for its hold annotation to be removed."""
REASON_HARDWARE_GONE = "HardwareGone"
"""Its Hardware was deleted while an agent had the Workflow, and did not come back in time."""
REASON_OTHER_WORKFLOW = "OtherWorkflow"
"""Reason of the condition BootPrepared: the boot waits for another Workflow of the machine."""
REASON_HARDWARE_DELETED = "HardwareDeleted"
REASON_HARDWARE_BACK = "HardwareBack"
"""Reasons of the condition HardwareGone: the Hardware is missing; it exists again."""
REASON_REBOOTED = "Rebooted"
"""The Workflow succeeded because its last action rebooted the machine."""
REASON_REBOOT_ASSUMED = "RebootAssumed"
"""The Workflow counts as succeeded because its rebooting action timed out without a reported failure."""

TIMEOUT_REASONS = frozenset(
    {
        REASON_START_TIMEOUT,
        REASON_CANCEL_TIMEOUT,
        REASON_WORKFLOW_TIMEOUT,
        REASON_ACTION_TIMEOUT,
        REASON_REBOOT_ASSUMED,
        REASON_HARDWARE_GONE,
    }
)
"""Reasons with which the controller ends a Workflow without its agent's report: the agent may still run it."""
WITHOUT_AGENTS_WORD = TIMEOUT_REASONS | {REASON_AGENT_LOST, REASON_INVALID_STATUS}
"""Reasons with which the controller or the server ends a Workflow without its agent's report."""


# --- Fields ---


Status = dict[str, Any]
"""The `.status` of a Workflow."""


class ConditionType(StrEnum):
    """The types of the conditions in `.status.conditions`."""

    PREPARED = "Prepared"  # False: what the controller waits for, or why it failed; an addition to the proposal
    BOOT_PREPARED = "BootPrepared"  # only with spec.bootOptions; True: the machine boots as they ask
    BOOT_CLEANED_UP = "BootCleanedUp"  # only after the end; False: the boot options are not undone yet, or never
    STARTED = "Started"
    SUCCEEDED = "Succeeded"
    HARDWARE_GONE = "HardwareGone"  # only if the Hardware was deleted before the Workflow ended


# These dictionaries are ten times faster than calling the enumerations, and every event looks states up.
_STATES: Mapping[str, WorkflowState] = {str(state): state for state in WorkflowState}
_ACTION_STATES: Mapping[str, ActionState] = {str(state): state for state in ActionState}


class InvalidStatusError(TinkedgeError, ValueError):
    """A status that was edited by hand and is invalid. The message names the object, the field and the value."""


def name_of(workflow: Raw) -> str:
    """Return `namespace/name`, for messages."""
    metadata = workflow["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def state_of(workflow: Raw) -> WorkflowState | None:
    """Return the state, or None before the Workflow is prepared. The API's default for that time is Pending.

    Raises InvalidStatusError.
    """
    status = status_of(workflow)
    value = status.get("state")
    if not value or (value == WorkflowState.PENDING and unprepared(status)):
        return None
    state = _STATES.get(value) if isinstance(value, str) else None
    if state is None:
        raise InvalidStatusError(
            f"Workflow {name_of(workflow)}: status.state is {value!r}, which is none of {', '.join(WorkflowState)}"
        )
    return state


def status_of(workflow: Raw) -> Mapping[str, Any]:
    """Return the status, or an empty dictionary."""
    return as_mapping(workflow.get("status"))


def unprepared(status: Mapping[str, Any]) -> bool:
    """Return True before the Workflow is prepared: a change of state sets a time, and the first one adds actions."""
    return not status.get("lastTransitioned") and not actions_of(status)


def actions_of(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the actions, or an empty list."""
    actions = status.get("actions")
    return [action for action in actions if isinstance(action, dict)] if isinstance(actions, list) else []


def action_name(action: Mapping[str, Any]) -> str:
    """Return the name of an action, or its id if it has none."""
    rendered = action.get("rendered")
    name = rendered.get("name") if isinstance(rendered, dict) else None
    return str(name or action.get("id", ""))


def action_state(action: Mapping[str, Any]) -> ActionState:
    """Return the state of an action; the default is Pending. Raises InvalidStatusError."""
    value = action.get("state") or ActionState.PENDING
    state = _ACTION_STATES.get(value) if isinstance(value, str) else None
    if state is None:
        raise InvalidStatusError(
            f"status.actions[{action.get('id')}].state is {value!r}, which is none of {', '.join(ActionState)}"
        )
    return state


def check_states(workflow: Raw) -> None:
    """Raise InvalidStatusError, with the object's name, if the state of the Workflow or of an action is invalid."""
    state_of(workflow)
    try:
        for action in actions_of(status_of(workflow)):
            action_state(action)
    except InvalidStatusError as error:
        raise InvalidStatusError(f"Workflow {name_of(workflow)}: {error}") from error


def rejections(status: Mapping[str, Any]) -> int:
    """Return how often an agent has rejected the Workflow since it last started; 0 if the field is invalid."""
    value = status.get("rejections")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def dispatch_after(status: Mapping[str, Any]) -> float:
    """Return the Unix time before which the Workflow is not offered again; 0 if there is none."""
    return parse_timestamp(status.get("dispatchAfter")) or 0.0


def claim_of(status: Mapping[str, Any]) -> str:
    """Return the time of the last claim, which identifies the claim; "" if there is none.

    Only compared for equality: clocks of servers differ.
    """
    value = status.get("claimedAt")
    return value if isinstance(value, str) else ""


def given(status: Mapping[str, Any]) -> bool:
    """Return True unless the status records that no agent was sent the Workflow."""
    return status.get("dispatched") is not False


def with_no_agent(workflow: Raw) -> bool:
    """Return True if no agent has the Workflow: it was never sent, or the agent has rejected it.

    A Workflow with actions and without `status.dispatched` may be with an agent. Raises InvalidStatusError.
    """
    status = status_of(workflow)
    actions = actions_of(status)
    if status.get("startedAt") or any(action_state(action) is not ActionState.PENDING for action in actions):
        return False
    dispatched = status.get("dispatched")
    return dispatched is False or (dispatched is None and not actions)


def agent_seen(status: Mapping[str, Any]) -> str:
    """Return when a server last recorded that the agent is connected while the last action reboots its machine, or "".

    Only compared for equality: clocks of servers differ.
    """
    value = status.get("agentSeenAt")
    return value if isinstance(value, str) else ""


def outdated(workflow: Raw) -> bool:
    """Return True if the spec changed after the actions were rendered, so that they must not run."""
    observed = status_of(workflow).get("observedGeneration")
    return observed is not None and observed != workflow["metadata"].get("generation", observed)


def creation_order(workflow: Raw) -> tuple[str, int, str]:
    """Return the key that sorts the Workflows of one API by their creation, the oldest first.

    Creation times are whole seconds. Within a second the resourceVersion decides, as it was when a controller first saw
    the Workflow (`status.creationVersion`), or as it is, if none has. Versions of one resource are numbers that grow
    with each write (Kubernetes, KEP-5504). So every process computes the same order, also after a restart.
    """
    metadata = workflow["metadata"]
    versions = (status_of(workflow).get("creationVersion"), metadata.get("resourceVersion"))
    # Bounded: a user may have written any text into the status, and int() of a long one is slow.
    usable = (each for each in versions if isinstance(each, str) and each.isascii() and each.isdecimal())
    number = next(filter(None, (int(each) for each in usable if len(each) <= 20)), 0)
    return str(metadata.get("creationTimestamp", "")), number, str(metadata["name"])


def deleted(obj: Raw) -> bool:
    """Return True if the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def timestamp(now: float) -> str:
    """Return Unix seconds as RFC 3339 in UTC with milliseconds: timeouts may be as short as a second."""
    return rfc3339(now, "milliseconds")


def parse_timestamp(value: object) -> float | None:
    """Return an RFC 3339 time as Unix seconds, or None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    """Return the condition of this type, or an empty dictionary."""
    conditions = status.get("conditions")
    for candidate in conditions if isinstance(conditions, list) else ():
        if isinstance(candidate, dict) and candidate.get("type") == kind:
            return candidate
    return {}


def set_condition(
    status: Status,
    kind: ConditionType,
    value: ConditionStatus,
    now: float,
    reason: str | None = None,
    message: str | None = None,
) -> None:
    """Set a condition in `status`, replacing the one of the same type.

    Its `lastTransitionTime` becomes `now` (Unix seconds) if `value` changes.
    """
    new: dict[str, str] = {"type": str(kind), "status": str(value)}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    old = condition(status, kind)
    since = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    new["lastTransitionTime"] = since if isinstance(since, str) and since else rfc3339(now)
    conditions = status.get("conditions")
    # A new list: the old one belongs to the informer's object, which all readers share.
    kept = list(conditions) if isinstance(conditions, list) else []
    index = next((i for i, c in enumerate(kept) if isinstance(c, dict) and c.get("type") == kind), None)
    if index is None:
        kept.append(new)
    else:
        kept[index] = new
    status["conditions"] = kept


def status_patch(workflow: Raw, status: Status) -> Raw:
    """Return the merge patch to `status`, which fails if the object has changed since `workflow` was read."""
    old = status_of(workflow)
    changed = {field: value for field, value in status.items() if field not in old or old[field] != value}
    changed |= {field: None for field in old if field not in status}
    return {"metadata": {"resourceVersion": workflow["metadata"]["resourceVersion"]}, "status": changed}


# --- Summary ---


TO_RELEASE = "; to let it run: "
"""Separates the reason of a hold from the command that releases it, which is too long for the column."""
MAX_SUMMARY = 120
"""Maximum length in characters, so that a line of a terminal also holds the other columns."""
_BETWEEN_LINES = " | "
"""Separates the lines of output in an agent's failure message (`tink.agent.runtimes.runtime`)."""
_LEAST_OF_OUTPUT = 40
_ENDED = tuple(str(state) for state in WorkflowState if state.terminal)


def summary(status: Mapping[str, Any]) -> str:
    """Return the progress or the end of a Workflow in one line of at most `MAX_SUMMARY` characters.

    It is `.status.message`, the column MESSAGE of `kubectl get workflows`, and never empty. Every writer of a status
    writes it too. The controller adds it to a status of an older release, or one that was edited by hand. Programs read
    the conditions instead.
    """
    text = " ".join(_summary(status).split()) or UNPREPARED
    if len(text) <= MAX_SUMMARY:
        return text
    head, lines, _ = text.partition(_BETWEEN_LINES)
    room = MAX_SUMMARY - len(head) - len(_BETWEEN_LINES) - 1
    if status.get("state") == WorkflowState.FAILED and lines and room >= _LEAST_OF_OUTPUT:
        # the last output of a program usually explains its end
        return f"{head}{_BETWEEN_LINES}…{text[-room:].lstrip()}"
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
            begun = [index for index, action in enumerate(actions) if action.get("state") != ActionState.PENDING]
            if not begun:
                return "the agent has begun"
            return f"action {begun[-1] + 1} of {len(actions)}: {action_name(actions[begun[-1]])}"
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
        # Without the Workflow's name, which has its own column.
        text = str(prepared.get("message") or "")
        return text.partition(": ")[2] if text.startswith("Workflow ") else text
    boots = condition(status, ConditionType.BOOT_PREPARED)
    if rendered and boots.get("status") == ConditionStatus.FALSE:
        return f"boot: {boots.get('message') or boots.get('reason') or ''}"
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
