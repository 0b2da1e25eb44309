"""The agent's data: workflows and actions, commands, events, results, and errors.

Plain frozen dataclasses without gRPC, so that the executor and the runtimes can be read and tested alone. `connection`
converts them to and from the messages of `proto/workflow.proto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tink import waitdaemon
from tink.errors import TinkedgeError


class AgentError(TinkedgeError):
    """Base class of the agent's errors."""


class AgentSettingsError(AgentError):
    """The agent cannot start with these settings; the message names the one that is wrong."""


class ActionError(AgentError):
    """An action could not be run; `reason` is a CamelCase word that ends up in the Workflow's status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Reason(StrEnum):
    """The reasons that the agent itself gives. Actions add their own through `/tinkerbell/failure-reason`."""

    # why an action failed
    IMAGE_PULL_FAILED = "ImagePullFailed"
    INVALID_ACTION = "InvalidAction"  # the action can't be run: a bad volume, no command, ...
    RUNTIME_ERROR = "RuntimeError"  # the runtime rejected the container, so it never started
    NON_ZERO_EXIT = "NonZeroExit"  # the action ran and failed without a reason of its own
    INVALID_REASON = "InvalidReason"  # the action's reason is not a word
    CANCELED = "Canceled"
    AGENT_RESTARTED = "AgentRestarted"  # the agent died while the action ran, so its end is unknown
    # why a workflow was rejected
    ALREADY_RUNNING = "AlreadyRunning"
    ALREADY_FINISHED = "AlreadyFinished"
    UNKNOWN_WORKFLOW = "UnknownWorkflow"
    INVALID_WORKFLOW = "InvalidWorkflow"


@dataclass(frozen=True, slots=True)
class RenderedAction:
    """One action of a workflow, rendered. `cmd` replaces the image's entrypoint, `args` its arguments."""

    id: str
    name: str
    image: str
    cmd: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    pid_namespace: str = ""
    network_namespace: str = ""


def awaits_end(action: RenderedAction) -> RenderedAction | None:
    """Return the action that an action with the image `waitdaemon` starts after the Workflow's end; else None.

    The agent starts it instead of a container engine, and waits for the same event: the server knows the end.
    """
    image = waitdaemon.started_by(action.image, action.env)
    if not image:
        return None
    env = waitdaemon.without_its_own(action.env)
    volumes = tuple(waitdaemon.without_engines(action.volumes))
    return replace(action, image=image, env=env, volumes=volumes, pid_namespace="host")


@dataclass(frozen=True, slots=True)
class Workflow:
    """Actions to run one after the other."""

    id: str
    actions: tuple[RenderedAction, ...]


# --- commands: from the server ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorkflow:
    workflow: Workflow


@dataclass(frozen=True, slots=True)
class StopWorkflow:
    workflow_id: str


Command = StartWorkflow | StopWorkflow


# --- events: to the server --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActionStarted:
    workflow_id: str
    action_id: str


@dataclass(frozen=True, slots=True)
class ActionSucceeded:
    workflow_id: str
    action_id: str


@dataclass(frozen=True, slots=True)
class ActionFailed:
    workflow_id: str
    action_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkflowRejected:
    workflow_id: str
    reason: str
    message: str


Event = ActionStarted | ActionSucceeded | ActionFailed | WorkflowRejected


# --- results ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an action ended. `reason` and `message` are set when `exit_code` is not 0."""

    exit_code: int
    reason: str = ""
    message: str = ""

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0


class WorkflowOutcome(StrEnum):
    """The outcome of a workflow, which the after-workflow command receives in TINKEDGE_WORKFLOW_STATE."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"
