"""Predicates on Workflows beside the state, used by transitions and by the dispatch; and the finalizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import (
    API_VERSION,
    BOOT_FINALIZER,
    FINALIZER,
    ActionState,
    BootMode,
    ConditionStatus,
    Raw,
    WorkflowState,
    as_mapping,
)
from tink.workflow.status import (
    REASON_OTHER_WORKFLOW,
    WITHOUT_AGENTS_WORD,
    ConditionType,
    InvalidStatusError,
    action_state,
    actions_of,
    condition,
    deleted,
    parse_timestamp,
    state_of,
    status_of,
)

PREPARING_SECONDS = 10.0
"""Seconds for which a Workflow without rendered actions holds up the Workflows created after it."""
_NOT_BEGUN = (None, WorkflowState.PENDING, WorkflowState.SCHEDULED)


def paused(workflow: Raw) -> bool:
    """Return True if the Workflow is being moved to another API, or was left behind: no component may change it."""
    return PAUSED_ANNOTATION in as_mapping(workflow["metadata"].get("annotations"))


def held(workflow: Raw) -> bool:
    """Return True if the Workflow has not begun and a hold annotation prevents it. Raises InvalidStatusError."""
    return hold_of(workflow) is not None and not begun(workflow)


def begun(workflow: Raw) -> bool:
    """Return True if an action has begun, or it has ended or is being cancelled: it is no longer sent to agents.

    Raises InvalidStatusError.
    """
    return state_of(workflow) not in _NOT_BEGUN


def hold_of(workflow: Raw) -> str | None:
    """Return the reason in the hold annotation, or None if the Workflow has no such annotation."""
    reason = as_mapping(workflow["metadata"].get("annotations")).get(HOLD_ANNOTATION)
    return None if reason is None else str(reason)


def awaits_boot(workflow: Raw) -> bool:
    """Return True if the Workflow's bootOptions ask for a boot of the machine that BMC control has not finished.

    BMC control boots the machine and sets the condition BootPrepared to True. Until then the server does not send the
    Workflow: an agent that is connected now belongs to an earlier boot.
    """
    options = as_mapping(as_mapping(workflow.get("spec")).get("bootOptions"))
    if not options.get("bootMode") and options.get("toggleAllowNetboot") is not True:
        return False
    return condition(status_of(workflow), ConditionType.BOOT_PREPARED).get("status") != ConditionStatus.TRUE


def holds_up_until(workflow: Raw, now: float) -> float:
    """Return the Unix time until which a new Workflow holds up the Workflows created after it; 0 if it does not.

    It counts for a Workflow without rendered actions: of two that are created together, the second may be prepared
    first. Raises InvalidStatusError.
    """
    created = parse_timestamp(workflow["metadata"].get("creationTimestamp"))
    # The time is that of the API's clock. One that differs by more than the limit holds up nothing.
    if created is None or deleted(workflow) or held(workflow) or abs(now - created) > PREPARING_SECONDS:
        return 0.0
    return created + PREPARING_SECONDS


def boot_begun(workflow: Raw) -> bool:
    """Return True if BMC control changes the machine's power or boot device for the Workflow, which has not begun.

    Returns False while the boot waits for another Workflow of the machine, so that this one is sent. Raises
    InvalidStatusError.
    """
    status = status_of(workflow)
    reason = condition(status, ConditionType.BOOT_PREPARED).get("reason")
    has_begun = bool(as_mapping(status.get("boot")).get("way")) and reason != REASON_OTHER_WORKFLOW
    return awaits_boot(workflow) and has_begun and not begun(workflow)


def has_post_actions(workflow: Raw) -> bool:
    """Return True if BMC control is about to carry out the post actions of the ended Workflow on its machine."""
    options = as_mapping(as_mapping(workflow.get("spec")).get("bootOptions"))
    is_custom = options.get("bootMode") == BootMode.CUSTOMBOOT
    has_actions = bool(as_mapping(options.get("custombootConfig")).get("postActions"))
    has_begun = bool(as_mapping(status_of(workflow).get("boot")).get("way"))
    is_unfinished = BOOT_FINALIZER in (workflow["metadata"].get("finalizers") or ())
    return is_custom and has_actions and has_begun and is_unfinished and has_ended(workflow)


def under_way(workflow: Raw) -> bool:
    """Return True if the Workflow is Running or Cancelling; False if the status is invalid."""
    try:
        return state_of(workflow) in (WorkflowState.RUNNING, WorkflowState.CANCELLING)
    except InvalidStatusError:
        return False


def has_ended(workflow: Raw) -> bool:
    """Return True if the Workflow is in a terminal state; False if its status is invalid."""
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return False
    return state is not None and state.terminal


def is_history(workflow: Raw) -> bool:
    """Return True if the Workflow has ended and only its deletion is left to do.

    Returns False for a Workflow that is deleted, moved, held or has a finalizer of ours, or lacks a field that the
    controller writes.
    """
    return (
        has_ended(workflow)
        and not deleted(workflow)
        and not protected(workflow)
        and BOOT_FINALIZER not in (workflow["metadata"].get("finalizers") or ())
        and not paused(workflow)
        and hold_of(workflow) is None
        and bool(status_of(workflow).get("message"))
    )


def rebooting(workflow: Raw) -> bool:
    """Return True if the Workflow is Running and only its last action is left, which reboots the machine.

    Raises InvalidStatusError.
    """
    return state_of(workflow) is WorkflowState.RUNNING and last_action_reboots(status_of(workflow))


def unconfirmed(workflow: Raw) -> bool:
    """Return True if the Workflow has ended without its agent's report: the agent may still run it.

    Raises InvalidStatusError.
    """
    state = state_of(workflow)
    if state is None or not state.terminal:
        return False
    status = status_of(workflow)
    if condition(status, ConditionType.SUCCEEDED).get("reason") in WITHOUT_AGENTS_WORD:
        return True
    # After an agent's report an action has failed, or all have succeeded. A state that was edited by hand lacks that.
    # So does a Workflow that no agent had, such as one canceled before it was sent.
    states = [action_state(action) for action in actions_of(status)]
    if state is WorkflowState.SUCCEEDED:
        return any(action is not ActionState.SUCCEEDED for action in states)
    return ActionState.RUNNING in states or ActionState.FAILED not in states


def last_action_reboots(status: Mapping[str, Any]) -> bool:
    """Return True if only the last action is left, is Running, and reboots the machine.

    A silent agent has then done its work. Raises InvalidStatusError.
    """
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


# --- Finalizer: without it, the deletion of a Workflow would not stop the agent ---


def protected(workflow: Raw) -> bool:
    """Return True if the Workflow has the finalizer."""
    return FINALIZER in (workflow["metadata"].get("finalizers") or ())


def protect(obj: Raw) -> None:
    """Add the finalizer to a Workflow, in place. Other objects are not changed.

    The embedded API does this for each new Workflow, so that the controller need not. A Workflow that is being moved
    from another API is not changed either, so that the copy equals the original.
    """
    if obj.get("kind") != "Workflow" or obj.get("apiVersion") != API_VERSION or paused(obj) or protected(obj):
        return
    metadata = obj["metadata"]
    metadata["finalizers"] = [*(metadata.get("finalizers") or ()), FINALIZER]
