"""The transition tables: which state follows which, and which component may cause it.

A Workflow is in one of seven states, or in none before it is prepared; each of its actions is in one of four.
`WORKFLOW` and `ACTION` map a state and a cause to the next state. A pair that is not in the table can't happen and
changes nothing. A state without transitions is terminal.

    (none) ---> Pending <---> Scheduled ---> Running ---> Succeeded
                                  |             |
                                  +-------------+-------> Cancelling ---> Canceled

Failed is one transition away from every state in which an agent may have the Workflow, and from a Workflow that can't
be prepared. A Pending Workflow is Canceled at once, because no agent has to be stopped.

`AUTHOR` maps each cause to the component that may write it. The controller prepares, supervises and cancels. The server
dispatches, and stores what agents report or what their silence means. So two components never decide the same thing,
and each transition comes from one place in the code.

`machine` applies `events` with these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tink.api.v1alpha2 import ActionState, WorkflowState


class Author(StrEnum):
    """The component that writes a transition."""

    CONTROLLER = "controller"
    SERVER = "server"


class Cause(StrEnum):
    """The cause of a Workflow's transition."""

    PREPARED = "prepared"
    PREPARATION_FAILED = "preparation failed"
    DISPATCHED = "dispatched"
    RETURNED = "returned"  # rejected by the agent, or never sent to it
    STARTED = "started"
    SUCCEEDED = "succeeded"
    ACTION_FAILED = "action failed"
    CANCEL_REQUESTED = "cancel requested"
    STOPPED = "stopped"
    NOTHING_TO_STOP = "nothing to stop"  # no agent has the Workflow
    START_TIMED_OUT = "start timed out"
    CANCEL_TIMED_OUT = "cancel timed out"
    RUN_TIMED_OUT = "run timed out"  # the Workflow, or one of its actions
    NOTHING_LEFT = "nothing left"  # no action could still run: its status was edited by hand
    AGENT_LOST = "agent lost"  # the agent reconnected without the Workflow
    ENDED_UNHEARD = "ended unheard"  # the agent ended the Workflow before, and its reports were lost
    REBOOTED = "rebooted"  # the agent disconnected while the last action was to reboot its machine
    REBOOT_ASSUMED = "reboot assumed"  # the rebooting action timed out, and no failure was reported


class ActionCause(StrEnum):
    """The cause of an action's transition."""

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
        Cause.ENDED_UNHEARD: _S.FAILED,
    },
    _S.RUNNING: {
        Cause.SUCCEEDED: _S.SUCCEEDED,
        Cause.ACTION_FAILED: _S.FAILED,
        Cause.RUN_TIMED_OUT: _S.FAILED,
        Cause.NOTHING_LEFT: _S.FAILED,
        Cause.AGENT_LOST: _S.FAILED,
        Cause.ENDED_UNHEARD: _S.FAILED,
        Cause.REBOOTED: _S.SUCCEEDED,
        Cause.REBOOT_ASSUMED: _S.SUCCEEDED,
        Cause.CANCEL_REQUESTED: _S.CANCELLING,
    },
    _S.CANCELLING: {
        Cause.STOPPED: _S.CANCELED,
        Cause.NOTHING_TO_STOP: _S.CANCELED,
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
    Cause.NOTHING_TO_STOP: Author.CONTROLLER,
    Cause.START_TIMED_OUT: Author.CONTROLLER,
    Cause.CANCEL_TIMED_OUT: Author.CONTROLLER,
    Cause.RUN_TIMED_OUT: Author.CONTROLLER,
    Cause.NOTHING_LEFT: Author.CONTROLLER,
    Cause.AGENT_LOST: Author.SERVER,
    Cause.ENDED_UNHEARD: Author.SERVER,
    Cause.REBOOTED: Author.SERVER,
    Cause.REBOOT_ASSUMED: Author.CONTROLLER,
}

ACTION: Mapping[ActionState, Mapping[ActionCause, ActionState]] = {
    _A.PENDING: {ActionCause.STARTED: _A.RUNNING},
    _A.RUNNING: {ActionCause.SUCCEEDED: _A.SUCCEEDED, ActionCause.FAILED: _A.FAILED},
    _A.SUCCEEDED: {},
    _A.FAILED: {},
}
