"""Why a Workflow did not succeed, or succeeded without its agent's word: the reasons that stand in its conditions."""

from __future__ import annotations

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
"""An agent that asked for the Workflow may not have it: of one that has not started."""
REASON_HELD = "Held"
"""Somebody has to say first that it may run: of one that has not begun."""
REASON_HARDWARE_GONE = "HardwareGone"
"""Its Hardware was deleted while an agent had the Workflow, and did not come back in time."""
REASON_HARDWARE_DELETED = "HardwareDeleted"
REASON_HARDWARE_BACK = "HardwareBack"
"""Reasons of the condition HardwareGone: the Hardware is missing; it exists again."""
REASON_REBOOTED = "Rebooted"
"""The agent went with its machine: of a Workflow that has succeeded."""
REASON_REBOOT_ASSUMED = "RebootAssumed"
"""The time of the action that reboots was up: of a Workflow that has succeeded, as far as anybody knows."""

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
"""Why the controller ended a Workflow without its agent's word: the agent may still be running it."""
WITHOUT_AGENTS_WORD = TIMEOUT_REASONS | {REASON_AGENT_LOST, REASON_INVALID_STATUS}
"""Why a Workflow ended without its agent's word, whoever ended it."""
