"""Between the messages of `proto/workflow.proto` and the agent's own words in `model`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from proto import metadata
from proto import workflow_pb2 as pb
from tink.agent.model import (
    Action,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    AgentError,
    Command,
    Event,
    StartWorkflow,
    StopWorkflow,
    Workflow,
)

MAX_HELD = 64
"""Workflows that a call names; more would not fit the headers that servers accept."""

_HEADER_VALUE = re.compile(r"[!-~]{1,128}")


class UnusableCommandError(AgentError):
    """A command that cannot even be answered, because it names no workflow or is of an unknown kind."""


def held_workflows_metadata(workflow_ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The metadata of GetWorkflows that names the workflows which the agent holds.

    No header can carry an id with blanks or other than ASCII; such a one is no uid, and is left out.
    """
    held = [workflow_id for workflow_id in workflow_ids if _HEADER_VALUE.fullmatch(workflow_id)][:MAX_HELD]
    return tuple((metadata.WORKFLOW, workflow_id) for workflow_id in held or [""])


def command_from_wire(message: pb.GetWorkflowsResponse | None) -> Command:
    """The command in `message`; None is what grpc hands out for bytes that it cannot parse.

    Raises UnusableCommandError.
    """
    if message is None:
        raise UnusableCommandError("a message that is not valid protobuf")
    kind = message.WhichOneof("cmd")
    if kind == "start_workflow":
        workflow = message.start_workflow.workflow
        if not workflow.workflow_id:
            raise UnusableCommandError("StartWorkflow without workflow.workflow_id")
        return StartWorkflow(Workflow(workflow.workflow_id, tuple(_action(action) for action in workflow.actions)))
    if kind == "stop_workflow":
        if not message.stop_workflow.workflow_id:
            raise UnusableCommandError("StopWorkflow without workflow_id")
        return StopWorkflow(message.stop_workflow.workflow_id)
    raise UnusableCommandError("a command of a kind that this agent does not know; is the server newer than the OSIE?")


def event_to_wire(event: Event) -> pb.PublishEventRequest:
    """The request that publishes `event`."""
    message = pb.Event(workflow_id=event.workflow_id)
    if isinstance(event, ActionStarted):
        message.action_started.action_id = event.action_id
    elif isinstance(event, ActionSucceeded):
        message.action_succeeded.action_id = event.action_id
    elif isinstance(event, ActionFailed):
        message.action_failed.action_id = event.action_id
        message.action_failed.failure_reason = event.reason
        message.action_failed.failure_message = event.message
    else:
        message.workflow_rejected.failure_reason = event.reason
        message.workflow_rejected.failure_message = event.message
    return pb.PublishEventRequest(event=message)


def _action(action: pb.Workflow.Action) -> Action:
    return Action(
        id=action.id,
        name=action.name or action.id,
        image=action.image,
        cmd=action.cmd,
        args=tuple(action.args),
        env=dict(action.env),
        volumes=tuple(action.volumes),
        pid_namespace=action.ns.pid,
        network_namespace=action.ns.net,
    )
