"""What happens to a Workflow: the decisions of controller and server, and what agents report, with the facts of each.

The controller and the server make these, `machine.apply` turns them into a new status. All seconds are how long
something has lasted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tink.api.v1alpha2 import Raw


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
class Reclaimed:
    """The server claims a Workflow that is Scheduled already: what another stream was to send, this one sends."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The agent's stream was gone before the Workflow could be sent that this server had claimed. `claim` is when, as
    the status has it (`status.claim_of`); `given`, whether an agent might have had it before that, because an earlier
    claim of somebody was given back."""

    claim: str
    given: bool = False


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The agent is at work on another Workflow than this one, which a server has claimed for it, and perhaps sent."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The agent won't run the Workflow; with the reason AlreadyFinished, because it has, to whatever end. Or (reason
    UnknownWorkflow) it was asked to stop one that it does not run.

    The Workflow is not offered again before `delay` seconds have passed."""

    reason: str
    message: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent came back, and says that it neither runs the Workflow nor has anything to report of it."""


@dataclass(frozen=True, slots=True)
class AgentRefused:
    """An agent asked for the Workflow, and may not have it: why, with who it was."""

    message: str


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """The agent is connected to the server that says so."""


@dataclass(frozen=True, slots=True)
class AgentAway:
    """The agent has been gone for `seconds`, without a word of its coming back. `seen` is when a server last saw it, as
    the status said for all that time (`status.agent_seen`)."""

    seconds: float
    seen: str = ""


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
class NothingLeft:
    """The Workflow is Running, and has no action that could still run: somebody edited its status by hand."""


@dataclass(frozen=True, slots=True)
class HardwareMissing:
    """The Hardware of a prepared Workflow was deleted; `message` names it and says what happens now."""

    message: str


@dataclass(frozen=True, slots=True)
class HardwareBack:
    """The Hardware of the Workflow is there, again if it was missing."""


@dataclass(frozen=True, slots=True)
class HardwareTimedOut:
    """The Hardware was missing for too long while an agent had the Workflow; `message` names it."""

    message: str


@dataclass(frozen=True, slots=True)
class ActionTimedOut:
    """An action was Running for longer than `seconds`."""

    action_id: str
    seconds: float


AgentEvent = ActionStarted | ActionSucceeded | ActionFailed | Rejected
"""What an agent may report."""
Event = (
    AgentEvent
    | NothingLeft
    | AgentLost
    | AgentRefused
    | AgentSeen
    | AgentAway
    | Prepared
    | PreparationFailed
    | Dispatched
    | Reclaimed
    | Undelivered
    | GivenBack
    | CancelRequested
    | StartTimedOut
    | CancelTimedOut
    | WorkflowTimedOut
    | HardwareMissing
    | HardwareBack
    | HardwareTimedOut
    | ActionTimedOut
)
