"""Fields of a Workflow's `.status`, read and written: states, times, conditions, and the patch that stores them.

A status is a plain dictionary as it came from the API, so that fields of a newer version survive. Everything here copes
with a status that somebody edited by hand: what can't be read counts as absent, except the state itself, because
running a Workflow a second time is the one mistake that can't be mended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tink.api.v1alpha2 import ActionState, ConditionStatus, Raw, WorkflowState, as_mapping
from tink.timestamps import rfc3339

Status = dict[str, Any]
"""The `.status` of a Workflow."""


class ConditionType(StrEnum):
    """The observations that stand in `.status.conditions`."""

    PREPARED = "Prepared"  # False: what the controller waits for, or why it gave up; an addition to the proposal
    STARTED = "Started"
    SUCCEEDED = "Succeeded"
    HARDWARE_GONE = "HardwareGone"  # only of a Workflow whose Hardware was deleted before it ended


# Looked up here, and not by calling the enumeration, which takes ten times as long: this is asked all the time.
_STATES: Mapping[str, WorkflowState] = {str(state): state for state in WorkflowState}
_ACTION_STATES: Mapping[str, ActionState] = {str(state): state for state in ActionState}


class InvalidStatusError(ValueError):
    """A status that no component of this program wrote; the message names the object, the field and the value."""


def name_of(workflow: Raw) -> str:
    """`namespace/name`, for messages."""
    metadata = workflow["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def state_of(workflow: Raw) -> WorkflowState | None:
    """The state; None before the Workflow is prepared, when the API says Pending of it by default.

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
    """The status, empty if there is none."""
    return as_mapping(workflow.get("status"))


def unprepared(status: Mapping[str, Any]) -> bool:
    """Whether nobody has prepared the Workflow yet: every change of state leaves its time, the first its actions."""
    return not status.get("lastTransitioned") and not actions_of(status)


def actions_of(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The actions, empty if there are none."""
    actions = status.get("actions")
    return [action for action in actions if isinstance(action, dict)] if isinstance(actions, list) else []


def action_name(action: Mapping[str, Any]) -> str:
    """The name of one action of a status; its id if it has none."""
    rendered = action.get("rendered")
    name = rendered.get("name") if isinstance(rendered, dict) else None
    return str(name or action.get("id", ""))


def action_state(action: Mapping[str, Any]) -> ActionState:
    """The state of one action of a status; Pending if it says nothing. Raises InvalidStatusError."""
    value = action.get("state") or ActionState.PENDING
    state = _ACTION_STATES.get(value) if isinstance(value, str) else None
    if state is None:
        raise InvalidStatusError(
            f"status.actions[{action.get('id')}].state is {value!r}, which is none of {', '.join(ActionState)}"
        )
    return state


def check_states(workflow: Raw) -> None:
    """Raises InvalidStatusError, with the object's name, if the state of the Workflow or of an action is none."""
    state_of(workflow)
    try:
        for action in actions_of(status_of(workflow)):
            action_state(action)
    except InvalidStatusError as error:
        raise InvalidStatusError(f"Workflow {name_of(workflow)}: {error}") from error


def rejections(status: Mapping[str, Any]) -> int:
    """How often an agent has rejected the Workflow since it was last started; 0 where that can't be read."""
    value = status.get("rejections")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def dispatch_after(status: Mapping[str, Any]) -> float:
    """The moment before which the Workflow is not offered again, in seconds since the epoch; 0: there is none."""
    return parse_timestamp(status.get("dispatchAfter")) or 0.0


def claim_of(status: Mapping[str, Any]) -> str:
    """Which claim of a server was the last one: when it was made, and no two claims say the same; "" for none.

    It is compared with itself only: clocks of servers need not agree.
    """
    value = status.get("claimedAt")
    return value if isinstance(value, str) else ""


def given(status: Mapping[str, Any]) -> bool:
    """Whether an agent may have got the Workflow, as far as its dispatch goes."""
    return status.get("dispatched") is not False


def with_no_agent(workflow: Raw) -> bool:
    """Whether it is certain that no agent has the Workflow: it was never given to one, or the agent has rejected it.

    What has actions and does not say so (`status.dispatched`) may be with an agent. Raises InvalidStatusError.
    """
    status = status_of(workflow)
    actions = actions_of(status)
    if status.get("startedAt") or any(action_state(action) is not ActionState.PENDING for action in actions):
        return False
    dispatched = status.get("dispatched")
    return dispatched is False or (dispatched is None and not actions)


def agent_seen(status: Mapping[str, Any]) -> str:
    """When a server last said that the agent is connected while the last action reboots its machine; "" for never.

    It is compared with itself only: clocks of servers need not agree.
    """
    value = status.get("agentSeenAt")
    return value if isinstance(value, str) else ""


def outdated(workflow: Raw) -> bool:
    """Whether the spec changed since the actions were rendered from it: what is prepared must not run any more."""
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
    number = next(filter(None, map(_version_number, versions)), 0)
    return str(metadata.get("creationTimestamp", "")), number, str(metadata["name"])


def _version_number(value: object) -> int:
    # Bounded: a user may have written any text into the status, and int() of a long one is slow.
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20
    return int(str(value)) if is_number else 0


def deleted(obj: Raw) -> bool:
    """Whether somebody asked for the object to be deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def timestamp(now: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, to the millisecond: timeouts may be as short as a second."""
    return rfc3339(now, "milliseconds")


def parse_timestamp(value: object) -> float | None:
    """RFC 3339 as seconds since the epoch; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    """The condition of that type, empty if there is none."""
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
    """Put a condition into `status`, in the place of the one of its type.

    Its `lastTransitionTime` is `now` (seconds since the epoch), or stays as it was if `value` is not a new one.
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
    # A new list: the old one belongs to the object that is shared with everybody.
    kept = list(conditions) if isinstance(conditions, list) else []
    index = next((i for i, c in enumerate(kept) if isinstance(c, dict) and c.get("type") == kind), None)
    if index is None:
        kept.append(new)
    else:
        kept[index] = new
    status["conditions"] = kept


def status_patch(workflow: Raw, status: Status) -> Raw:
    """The merge patch that turns the status of `workflow` into `status`, if nobody has changed it meanwhile."""
    old = status_of(workflow)
    changed = {field: value for field, value in status.items() if field not in old or old[field] != value}
    changed |= {field: None for field in old if field not in status}
    return {"metadata": {"resourceVersion": workflow["metadata"]["resourceVersion"]}, "status": changed}
