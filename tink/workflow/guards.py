"""What can be said of a Workflow beside its state: what arrows depend on, and who dispatches asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, FINALIZER, ActionState, Raw, WorkflowState, as_mapping
from tink.workflow.status import (
    WITHOUT_AGENTS_WORD,
    ConditionType,
    InvalidStatusError,
    action_state,
    actions_of,
    condition,
    state_of,
    status_of,
)

_NOT_BEGUN = (None, WorkflowState.PENDING, WorkflowState.SCHEDULED)


def paused(workflow: Raw) -> bool:
    """Whether nobody may change the Workflow: it is on its way to another API, or was left behind there."""
    return PAUSED_ANNOTATION in as_mapping(workflow["metadata"].get("annotations"))


def held(workflow: Raw) -> bool:
    """Whether the Workflow has not begun and is not to, until somebody says so. Raises InvalidStatusError."""
    return hold_of(workflow) is not None and not begun(workflow)


def begun(workflow: Raw) -> bool:
    """Whether an action has begun, or the Workflow has ended or is to: nobody gives it to an agent any more.

    Raises InvalidStatusError.
    """
    return state_of(workflow) not in _NOT_BEGUN


def hold_of(workflow: Raw) -> str | None:
    """Why somebody holds the Workflow; None: nobody does."""
    reason = as_mapping(workflow["metadata"].get("annotations")).get(HOLD_ANNOTATION)
    return None if reason is None else str(reason)


def under_way(workflow: Raw) -> bool:
    """Whether an agent is at work on the Workflow; not of a status that can't be read."""
    try:
        return state_of(workflow) in (WorkflowState.RUNNING, WorkflowState.CANCELLING)
    except InvalidStatusError:
        return False


def rebooting(workflow: Raw) -> bool:
    """Whether the Workflow is Running and nothing is left of it but its last action, which reboots the machine.

    Raises InvalidStatusError.
    """
    return state_of(workflow) is WorkflowState.RUNNING and last_action_reboots(status_of(workflow))


def unconfirmed(workflow: Raw) -> bool:
    """Whether the Workflow has ended, but not by its agent's word: the agent may be running it still.

    Raises InvalidStatusError.
    """
    state = state_of(workflow)
    if state is None or not state.terminal:
        return False
    status = status_of(workflow)
    if condition(status, ConditionType.SUCCEEDED).get("reason") in WITHOUT_AGENTS_WORD:
        return True
    # An agent's word leaves an action that failed, or only such as have succeeded; a state written by hand does not.
    # (Nor does a Workflow that no agent had: canceled before it was sent, say.)
    states = [action_state(action) for action in actions_of(status)]
    if state is WorkflowState.SUCCEEDED:
        return any(action is not ActionState.SUCCEEDED for action in states)
    return ActionState.RUNNING in states or ActionState.FAILED not in states


def last_action_reboots(status: Mapping[str, Any]) -> bool:
    """Whether of the actions of a status only the last is left, and it runs, and reboots the machine: a silent agent
    has then done what it was to do. Raises InvalidStatusError."""
    actions = actions_of(status)
    if not actions:
        return False
    *others, last = actions
    rendered = last.get("rendered")
    return (
        isinstance(rendered, dict)
        and rendered.get("reboots") is True
        and action_state(last) is ActionState.RUNNING
        and all(action_state(action) is ActionState.SUCCEEDED for action in others)
    )


# --- Finalizer ---
#
# The finalizer of Workflows: without it a deletion would not stop the agent.
#
# The controller adds it before it prepares a Workflow. An API that adds it to each new one (the embedded one does,
# by `protect`) saves that write, and everybody who waits for the Workflow the time that it takes.


def protected(workflow: Raw) -> bool:
    """Whether it has the finalizer."""
    return FINALIZER in (workflow["metadata"].get("finalizers") or ())


def protect(obj: Raw) -> None:
    """Add the finalizer, in place, if the object is a Workflow; to none that is being moved from another API, for the
    copy is to be as the original is."""
    if obj.get("kind") != "Workflow" or obj.get("apiVersion") != API_VERSION or paused(obj) or protected(obj):
        return
    metadata = obj["metadata"]
    metadata["finalizers"] = [*(metadata.get("finalizers") or ()), FINALIZER]
