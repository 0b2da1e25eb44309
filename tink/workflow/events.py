"""The events of a Workflow: decisions of the controller and the server, and reports of agents, with their facts.

The controller and the server create events, and `machine.apply` turns them into a new status. All `seconds` are
durations.
"""

from __future__ import annotations

from dataclasses import dataclass

from tink.api.v1alpha2 import Raw


@dataclass(frozen=True, slots=True)
class PreparedAction:
    """A rendered action (JSON names) and its id."""

    id: str
    rendered: Raw


@dataclass(frozen=True, slots=True)
class Prepared:
    """The Template was rendered into these actions."""

    actions: tuple[PreparedAction, ...]


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The Workflow can't be prepared, and trying again is useless."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The server claims the Workflow to send it to its agent."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The server claims a Workflow that is already Scheduled, to send it instead of another stream."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The agent's stream ended before the server could send the Workflow that it had claimed.

    `claim` identifies that claim (`status.claim_of`). `given` is True if an agent might have had the Workflow before,
    because an earlier claim was given back.
    """

    claim: str
    given: bool = False


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The agent works on another Workflow than this one, which a server has claimed for it and perhaps sent."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The agent refuses to run the Workflow, and it is not offered again for `delay` seconds.

    With the reason AlreadyFinished the agent has ended it before. With the reason UnknownWorkflow the agent was asked
    to stop a Workflow that it does not run.
    """

    reason: str
    message: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent reconnected and reports that it neither runs the Workflow nor has unsent events of it."""


@dataclass(frozen=True, slots=True)
class AgentRefused:
    """An agent asked for the Workflow and was refused; the message has the agent and the reason."""

    message: str


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """The agent is connected to the server that records this."""


@dataclass(frozen=True, slots=True)
class AgentAway:
    """The agent has been disconnected for `seconds`.

    `seen` is when a server last saw it, as the status contained for all that time (`status.agent_seen`).
    """

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
    """An action failed on the agent, which runs no further actions."""

    action_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The Workflow was deleted, or its state was set to Cancelling by hand."""

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
    """The Workflow is Running without an action that could run, because its status was edited by hand."""


@dataclass(frozen=True, slots=True)
class HardwareMissing:
    """The Hardware of a prepared Workflow was deleted; `message` names it and says what happens now."""

    message: str


@dataclass(frozen=True, slots=True)
class HardwareBack:
    """The Hardware of the Workflow exists, perhaps again."""


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
"""The events that an agent may report."""
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
